package reaper

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

var reclaimedQueues = []string{queueReclaim}

// chain makes a chain whose slots below n are absorbed, in directories of 10 slots.
func (f *farm) chain(n uint64) stream.ChainID {
	f.t.Helper()
	id := stream.NewChainID()
	r := &indexpb.Chain{
		ChainId: id.String(), State: indexpb.ChainState_CHAIN_STATE_OPEN, WriterLife: stream.NewLifeID().String(), WriterAddress: "writer",
		AbsorbingTo: n, AbsorbedTo: n, Lanes: 4,
	}
	_, err := f.index.PutChain(f.t.Context(), r, catalog.Absent)
	f.must(err)
	for slot := range n {
		f.put(chain.SlotKey(id, stream.Slot(slot)), []byte("bundle"))
	}
	for from := uint64(0); from < n; from += 10 {
		d := &indexpb.Directory{ChainId: id.String(), From: from, To: min(from+10, n), Object: directoryOf(id, from), Size: 9}
		f.put(d.GetObject(), []byte("directory"))
		f.must(f.index.PutDirectory(f.t.Context(), d))
	}
	return id
}

func directoryOf(id stream.ChainID, from uint64) string {
	return fmt.Sprintf("directory/%s/%016x-x", id, from)
}

func (f *farm) update(id stream.ChainID, change func(*indexpb.Chain)) {
	f.t.Helper()
	_, err := f.index.UpdateChain(f.t.Context(), id.String(), func(c *indexpb.Chain) (bool, error) { change(c); return true, nil })
	f.must(err)
}

// seal ends a chain at the end of what is absorbed, with its SEAL.
func (f *farm) seal(id stream.ChainID) {
	f.t.Helper()
	f.update(id, func(c *indexpb.Chain) {
		c.State, c.Cut = indexpb.ChainState_CHAIN_STATE_SEALED, c.GetAbsorbedTo()
		f.put(chain.SlotKey(id, stream.Slot(c.GetCut())), []byte("SEAL"))
	})
}

// left fails unless exactly these slots and directories of a chain are there, and
// the rows of the directories.
func (f *farm) left(id stream.ChainID, directories []uint64, slots ...uint64) {
	f.t.Helper()
	want := map[string]bool{}
	for _, s := range slots {
		want[chain.SlotKey(id, stream.Slot(s))] = true
	}
	for _, d := range directories {
		want[directoryOf(id, d)] = true
	}
	if got, keys := f.keys(), slices.Sorted(maps.Keys(want)); !slices.Equal(got, keys) {
		f.t.Fatalf("left are\n%v, want\n%v", got, keys)
	}
	rows, err := f.index.Directories(f.t.Context(), id.String(), 0, 1<<40)
	f.must(err)
	var from []uint64
	for _, r := range rows {
		from = append(from, r.GetFrom())
	}
	if !slices.Equal(from, directories) {
		f.t.Fatalf("rows of directories from %v, want %v", from, directories)
	}
}

func upTo(from, to uint64) (all []uint64) {
	for ; from < to; from++ {
		all = append(all, from)
	}
	return all
}

// What is settled goes, but for what pins keep, and nothing above, wherever the
// reaper dies (I11). What a pin kept goes when the pin has gone.
func TestSettledSlotsGoWhereverItDies(t *testing.T) {
	crashes(t, Config{}, queueReclaim, reclaimedQueues, func(f *farm) func() {
		id, broken := f.chain(45), stream.NewID()
		f.arm(&indexpb.Due{Queue: queueReclaim, ChainId: id.String(), Number: 30})
		f.update(id, func(c *indexpb.Chain) {
			c.SettledTo = 30
			c.Pins = []*indexpb.ChainPin{{StreamId: broken.String(), From: 8, To: 11}}
		})
		return func() {
			f.left(id, []uint64{0, 10, 30, 40}, append([]uint64{8, 9, 10}, upTo(30, 45)...)...)
			f.arm(&indexpb.Due{Queue: queueReclaim, ChainId: id.String(), StreamId: broken.String(), From: 8, Number: 11})
			f.update(id, func(c *indexpb.Chain) { c.Pins = nil })
			f.converge(Config{}, reclaimedQueues...)
			f.left(id, []uint64{30, 40}, upTo(30, 45)...)
			if c, _, err := f.index.GetChain(f.t.Context(), id.String()); err != nil || c.GetReclaimedTo() != 30 {
				f.t.Fatalf("%v, %v", c, err)
			}
		}
	})
}

// The same for the slots of a pin that went.
func TestSlotsOfAPinGoWhereverItDies(t *testing.T) {
	crashes(t, Config{}, queueReclaim, reclaimedQueues, func(f *farm) func() {
		id, broken := f.chain(20), stream.NewID()
		f.update(id, func(c *indexpb.Chain) {
			c.SettledTo, c.ReclaimedTo = 20, 20
			c.Pins = []*indexpb.ChainPin{{StreamId: broken.String(), From: 0, To: 3}, {StreamId: broken.String() + "x", From: 2, To: 4}}
		})
		f.must(f.objects.Delete(f.t.Context(), slotsOf(id, upTo(4, 20))...))
		f.must(f.objects.Delete(f.t.Context(), directoryOf(id, 10)))
		f.must(f.index.DeleteDirectory(f.t.Context(), id.String(), 10))
		f.arm(&indexpb.Due{Queue: queueReclaim, ChainId: id.String(), StreamId: broken.String(), Number: 3})
		f.update(id, func(c *indexpb.Chain) { c.Pins = c.GetPins()[1:] })
		return func() { f.left(id, []uint64{0}, 2, 3) }
	})
}

func slotsOf(id stream.ChainID, slots []uint64) (keys []string) {
	for _, s := range slots {
		keys = append(keys, chain.SlotKey(id, stream.Slot(s)))
	}
	return keys
}

// A marker whose change did not come deletes nothing, and whoever is about to make
// the change fails.
func TestSlotsThatAreNotSettledStay(t *testing.T) {
	f := newFarm(t)
	id := f.chain(20)
	slow, version, err := f.index.GetChain(t.Context(), id.String())
	f.must(err)
	f.arm(&indexpb.Due{Queue: queueReclaim, ChainId: id.String(), Number: 20})
	drain(t, f.process(Config{}).Service, 1, 0)
	f.left(id, []uint64{0, 10}, upTo(0, 20)...)
	slow.SettledTo = 20
	if _, err := f.index.PutChain(t.Context(), slow, version); !catalog.IsConflict(err) {
		t.Fatalf("a record is changed that was looked at in between: %v", err)
	}
	// A pin that is there still.
	f.update(id, func(c *indexpb.Chain) {
		c.SettledTo, c.ReclaimedTo, c.Pins = 20, 20, []*indexpb.ChainPin{{StreamId: "s", From: 0, To: 3}}
	})
	slow, version, err = f.index.GetChain(t.Context(), id.String())
	f.must(err)
	f.arm(&indexpb.Due{Queue: queueReclaim, ChainId: id.String(), StreamId: "s", Number: 3})
	drain(t, f.process(Config{}).Service, 1, 0)
	f.left(id, []uint64{0, 10}, upTo(0, 20)...)
	slow.Pins = nil
	if _, err := f.index.PutChain(t.Context(), slow, version); !catalog.IsConflict(err) {
		t.Fatalf("a pin goes without its marker: %v", err)
	}
}

// The settled part of a long chain is deleted in parts, none larger than a cache
// takes.
func TestManySlotsAreReclaimedInParts(t *testing.T) {
	f := newFarm(t)
	id := f.chain(0)
	f.update(id, func(c *indexpb.Chain) { c.AbsorbingTo, c.AbsorbedTo, c.SettledTo = 3500, 3500, 3500 })
	f.arm(&indexpb.Due{Queue: queueReclaim, ChainId: id.String(), Number: 3500})
	drain(t, f.process(Config{}).Service, 1, 0)
	if c, _, err := f.index.GetChain(t.Context(), id.String()); err != nil || c.GetReclaimedTo() != 3500 {
		t.Fatalf("%v, %v", c, err)
	}
}

// A chain that is settled is retired days later, wherever the reaper dies; late
// PUTs are gone then, and the SEAL at the cut stays for ever (I4).
func TestChainIsRetiredWhereverItDies(t *testing.T) {
	crashes(t, Config{}, queueChain, []string{queueChain, queueReclaim}, func(f *farm) func() {
		id := f.chain(25)
		f.seal(id)
		f.update(id, func(c *indexpb.Chain) { c.SettledTo, c.ReclaimedTo = 25, 25 })
		for _, above := range []uint64{26, 29} {
			f.put(chain.SlotKey(id, stream.Slot(above)), []byte("late"))
		}
		f.arm(&indexpb.Due{Queue: queueChain, ChainId: id.String(), Since: f.clock().Add(-settlesAfter).UnixMilli()})
		return func() {
			f.left(id, nil, 25)
			c, _, err := f.index.GetChain(f.t.Context(), id.String())
			if err != nil || c.GetState() != indexpb.ChainState_CHAIN_STATE_RETIRED || c.GetCut() != 25 {
				f.t.Fatalf("%v, %v", c, err)
			}
		}
	})
}

// A chain waits for what is not settled, for its pins, and then for days.
func TestChainIsNotRetiredEarly(t *testing.T) {
	f := newFarm(t)
	broken := f.stream(nil)
	id := f.chain(20)
	f.seal(id)
	f.arm(&indexpb.Due{Queue: queueChain, ChainId: id.String()})
	s := f.process(Config{}).Service
	look := func(what string, want indexpb.ChainState) {
		t.Helper()
		f.pass(2 * time.Hour)
		drainAll(t, s)
		c, _, err := f.index.GetChain(t.Context(), id.String())
		if err != nil || c.GetState() != want {
			t.Fatalf("%s: %v, %v", what, c, err)
		}
	}
	const sealed = indexpb.ChainState_CHAIN_STATE_SEALED
	look("nothing is settled", sealed)
	f.update(id, func(c *indexpb.Chain) {
		c.SettledTo, c.Pins = 20, []*indexpb.ChainPin{{StreamId: broken.String(), From: 0, To: 3}}
	})
	look("it is not reclaimed", sealed)
	look("it is reclaimed now, for it was settled and had no marker", sealed)
	f.left(id, []uint64{0}, 0, 1, 2, 20)
	for range 40 {
		look("a pin keeps it", sealed)
	}
	f.head(broken, func(h *indexpb.Head) { h.State = deletedState })
	look("the pinned stream is deleted", sealed)
	look("its slots are reclaimed", sealed)
	f.left(id, nil, 20)
	look("it waits for late PUTs", sealed)
	f.pass(settlesAfter)
	look("all is done", indexpb.ChainState_CHAIN_STATE_RETIRED)
	if left := f.queue(queueChain); len(left) != 0 {
		t.Fatalf("left %v", left)
	}
}

// sealer is a chain-writer.
type sealer struct {
	chainwriterpb.UnimplementedChainWriterServiceServer

	f    *farm
	life string
	fail error
}

func (w *sealer) Probe(context.Context, *chainwriterpb.ProbeRequest) (*chainwriterpb.ProbeResponse, error) {
	return &chainwriterpb.ProbeResponse{Reached: true, WriterLife: w.life}, nil
}

func (w *sealer) Seal(_ context.Context, req *chainwriterpb.SealRequest) (*chainwriterpb.SealResponse, error) {
	if w.fail != nil {
		return nil, w.fail
	}
	id, err := stream.ParseChainID(req.GetChainId())
	if err != nil {
		return nil, err
	}
	w.f.seal(id)
	return &chainwriterpb.SealResponse{}, nil
}

// A chain is sealed only when its writer has been gone for long: not registered, or
// another life, and silent.
func TestChainOfAWriterThatIsGoneIsSealed(t *testing.T) {
	f := newFarm(t)
	id := f.chain(10)
	c, _, err := f.index.GetChain(t.Context(), id.String())
	f.must(err)
	serve := func(address, life string) *sealer {
		w := &sealer{f: f, life: life}
		f.writers[address] = direct{w, &chainwriterpb.ChainWriterService_ServiceDesc, nil}
		f.nodes = append(f.nodes, discovery.Node{ID: address, Service: discovery.ChainWriter, Address: address, Meta: map[string]string{"life": life}})
		return w
	}
	f.arm(&indexpb.Due{Queue: queueChain, ChainId: id.String()})
	s := f.process(Config{}).Service
	look := func(what string, open bool) {
		t.Helper()
		f.pass(61 * time.Minute)
		drainAll(t, s)
		c, _, err := f.index.GetChain(t.Context(), id.String())
		if err != nil || (c.GetState() == indexpb.ChainState_CHAIN_STATE_OPEN) != open {
			t.Fatalf("%s: %v, %v", what, c, err)
		}
	}
	serve("writer", c.GetWriterLife())
	look("it is there", true)
	f.nodes = nil
	look("discovery has lost it, but it answers", true)
	serve("writer", stream.NewLifeID().String())
	look("another life is in its place, not for long", true)
	f.nodes = nil
	serve("writer", c.GetWriterLife())
	look("it is back", true)
	f.nodes, f.writers = nil, map[string]grpc.ClientConnInterface{}
	serve("third", stream.NewLifeID().String())
	look("it is gone, not for long", true)
	f.nodes = nil
	look("there is no other to seal it", true)
	serve("other", stream.NewLifeID().String()).fail = errDown
	look("the other cannot", true)
	f.nodes = nil
	serve("third", stream.NewLifeID().String())
	look("the third can", false)
}
