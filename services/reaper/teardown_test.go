package reaper

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
)

var torn = []string{"delete", queueSettled, queueUnref}

func (f *farm) deleted(id stream.ID, c stream.ChainID, slot uint64) {
	f.t.Helper()
	if f.exporting != nil {
		f.export()
	}
	f.head(id, func(h *indexpb.Head) { h.State, h.DeletedChain, h.DeletedSlot = deletedState, c.String(), slot })
}

func (f *farm) gone(id stream.ID) {
	f.t.Helper()
	if h, _, err := f.index.GetHead(f.t.Context(), id); !catalog.IsNotFound(err) {
		f.t.Fatalf("head %v, %v", h, err)
	}
	if d, err := f.index.GetDescriptor(f.t.Context(), id); !catalog.IsNotFound(err) {
		f.t.Fatalf("descriptor %v, %v", d, err)
	}
}

func (f *farm) deleteMarker(id stream.ID) *indexpb.Due {
	return &indexpb.Due{Queue: "delete", StreamId: id.String(), Bucket: "bucket", Name: fmt.Sprint("s", f.names)}
}

// Nothing is left of a deleted stream, and nothing of others goes, wherever the
// reaper dies (I11).
func TestDeletedStreamGoesWhereverItDies(t *testing.T) {
	crashes(t, Config{}, "delete", torn, func(f *farm) func() {
		other, id := f.stream(nil), f.stream(nil)
		shared := f.object(run{other, 0, 1, 1, 0}, run{id, 0, 1, 1, 0})
		own := f.object(run{id, 1, 2, 1, 0})
		keys := []string{shared[0].GetObject(), own[0].GetObject()}
		f.adopted(keys...)
		f.add(other, shared[0])
		f.add(id, shared[1], own[0])
		c := f.chain(0)
		f.update(c, func(c *indexpb.Chain) { c.AbsorbingTo, c.AbsorbedTo, c.SettledTo = 10, 10, 10 })
		f.deleted(id, c, 9)
		m := f.deleteMarker(id)
		m.Since = f.clock().Add(-time.Hour).UnixMilli()
		f.arm(m)
		return func() {
			f.gone(id)
			f.want(map[string][]uint32{keys[0]: {0}}, keys)
		}
	})
}

// A large history goes page by page.
func TestPagesOfADeletedStreamGoWhereverItDies(t *testing.T) {
	play := func(f *farm, id stream.ID) func() {
		c := f.chain(0)
		f.update(c, func(c *indexpb.Chain) { c.AbsorbingTo, c.AbsorbedTo, c.SettledTo = 10, 10, 10 })
		f.deleted(id, c, 9)
		m := f.deleteMarker(id)
		m.Since = f.clock().Add(-time.Hour).UnixMilli()
		f.arm(m)
		return func() {
			f.gone(id)
			f.want(nil, nil)
		}
	}
	f := newFarm(t)
	id := f.stream(nil)
	f.settle(id, 300)
	end := play(f, id)
	f.converge(Config{}, torn...)
	end()
	crashes(t, Config{}, "delete", torn, func(f *farm) func() {
		id := f.stream(nil)
		keys := f.paged(id)
		end := play(f, id)
		return func() { end(); f.want(nil, keys) }
	})
}

// A stream goes only when its delete is settled, nobody reads it any more, and no
// settler can meet its entries.
func TestDeletedStreamStaysUntilItsDeleteIsSettled(t *testing.T) {
	f := newFarm(t)
	id := f.stream(nil)
	f.settle(id, 1)
	c := f.chain(10)
	asked := 0
	f.leader = func(method string, req, _ proto.Message) error {
		asked++
		if r := req.(*sequencerpb.DeleteStreamRequest); method != "DeleteStream" || r.GetStream().GetStreamId() != id.String() || !r.GetArmed() {
			return fmt.Errorf("%s %v", method, req)
		}
		return nil
	}
	f.arm(f.deleteMarker(id))
	s := f.process(Config{}).Service
	look := func(what string) {
		t.Helper()
		drain(t, s, 0, 1)
		if left := f.queue("delete"); len(left) != 1 || left[0].Due.GetAttempts() != 0 {
			t.Fatalf("%s: left %v", what, left)
		}
		if _, _, err := f.index.GetHead(t.Context(), id); err != nil || len(f.keys()) < 12 {
			t.Fatalf("%s: %v, %d objects", what, err, len(f.keys()))
		}
	}
	look("the leader has deleted it")
	f.pass(time.Hour)
	look("it is not settled")
	f.deleted(id, c, 9)
	f.pass(time.Hour)
	look("the chain is not settled")
	f.update(c, func(c *indexpb.Chain) { c.SettledTo = 9 })
	f.pass(time.Hour)
	look("the chain is settled up to it")
	f.update(c, func(c *indexpb.Chain) { c.SettledTo = 10 })
	f.pass(time.Hour)
	f.converge(Config{}, torn...)
	f.gone(id)
	if asked != 1 {
		t.Errorf("the leader was asked %d times", asked)
	}
}

// Whoever was reading it has time.
func TestDeletedStreamMayBeReadForAWhile(t *testing.T) {
	f := newFarm(t)
	id := f.stream(nil)
	f.settle(id, 1)
	c := f.chain(0)
	f.update(c, func(c *indexpb.Chain) { c.AbsorbingTo, c.AbsorbedTo, c.SettledTo = 1, 1, 1 })
	f.deleted(id, c, 0)
	f.arm(f.deleteMarker(id))
	s := f.process(Config{ReadGrace: time.Hour}).Service
	drain(t, s, 0, 1)
	f.pass(59 * time.Minute)
	drainAll(t, s)
	if len(f.keys()) != 1 {
		t.Fatal("it is gone")
	}
	f.pass(time.Minute)
	drain(t, s, 1, 0)
	f.converge(Config{}, torn...)
	f.gone(id)
	f.want(nil, nil)
}

// Of a stream that was deleted while it was quarantined nobody knows where the
// delete is: all chains that its shard was bound to must be settled.
func TestQuarantinedStreamThatIsDeletedWaitsForAllItsChains(t *testing.T) {
	f := newFarm(t)
	id := f.stream(nil)
	f.settle(id, 1)
	c := f.chain(10)
	f.head(id, func(h *indexpb.Head) {
		h.State, h.Quarantine, h.Pins = deletedState, "broken", []*indexpb.Pin{{ChainId: c.String(), From: 1, To: 2}}
	})
	shard := &indexpb.Shard{Epoch: 1, State: indexpb.ShardState_SHARD_STATE_RECOVERING, HolderLife: "life", Bindings: []*indexpb.Binding{{ChainId: c.String(), Epoch: 1}}}
	version, err := f.index.PutShard(t.Context(), shard, catalog.Absent)
	f.must(err)
	f.arm(f.deleteMarker(id))
	s := f.process(Config{}).Service
	look := func(what string) {
		t.Helper()
		for range 200 {
			f.pass(time.Hour)
			drainAll(t, s)
		}
		if _, _, err := f.index.GetHead(t.Context(), id); err != nil || len(f.queue("delete")) != 1 {
			t.Fatalf("%s: %v, left %v", what, err, f.queue("delete"))
		}
	}
	look("the shard may write to the chain")
	shard.Bindings[0].Cut, shard.Bindings[0].CutKnown = 10, true
	_, err = f.index.PutShard(t.Context(), shard, version)
	f.must(err)
	look("the chain is not settled")
	f.update(c, func(c *indexpb.Chain) { c.SettledTo = 10 })
	f.converge(Config{}, torn...)
	f.gone(id)
}

// A settled object whose PUT arrives after its stream is gone leaves nothing (C15).
func TestPutThatIsLaterThanTheTeardownLeavesNothing(t *testing.T) {
	f := newFarm(t)
	id := f.stream(nil)
	f.settle(id, 3)
	key, body, _ := f.build(run{id, 3, 4, 1, 0})
	f.row(key, 1, "", len(body))
	f.arm(&indexpb.Due{Queue: queueSettled, Object: key, At: f.clock().Add(time.Hour).UnixMilli()})
	c := f.chain(0)
	f.update(c, func(c *indexpb.Chain) { c.AbsorbingTo, c.AbsorbedTo, c.SettledTo = 1, 1, 1 })
	f.deleted(id, c, 0)
	f.arm(f.deleteMarker(id))
	s := f.process(Config{}).Service
	for range 3 {
		drainAll(t, s)
		f.pass(time.Hour)
	}
	f.gone(id)
	f.put(key, body)
	f.converge(Config{}, torn...)
	f.want(nil, []string{key})
}

// A marker whose delete never came to anything, or was finished by another, only
// frees the name, and that by id (C8).
func TestDeleteMarkerOfAStreamThatIsGone(t *testing.T) {
	f := newFarm(t)
	next := f.stream(nil)
	m := f.deleteMarker(stream.NewID())
	f.arm(m)
	drain(t, f.process(Config{}).Service, 1, 0)
	if _, err := f.raw.ResolveStream(t.Context(), &indexpb.ResolveStreamRequest{Bucket: "bucket", Stream: m.GetName()}); err != nil {
		t.Fatalf("the stream %s under the name: %v", next, err)
	}
}

// An outage of the object store sets nothing aside, however long it is, and ends
// the round, so that not every marker meets it.
func TestOutageSetsNothingAside(t *testing.T) {
	f := newFarm(t)
	var keys []string
	for range 20 {
		key := "settled/" + stream.NewAttemptID().String()
		keys = append(keys, key)
		f.judgeLater(key)
	}
	s := f.process(Config{Attempts: 4, Workers: 1})
	deletes := 0
	s.Service.cache = outage{deletes: &deletes}
	for range 100 {
		r := s.drain(t.Context(), s.queues[slices.IndexFunc(s.queues, func(q queue) bool { return q.name == queueSettled })])
		if r.err == nil && r.failed > 0 {
			t.Fatal("the round went on")
		}
		f.pass(time.Hour)
	}
	if deletes == 0 || deletes > 100 || len(f.queue(catalog.DeadQueue(queueSettled))) != 0 || len(f.queue(queueSettled)) != 20 {
		t.Fatalf("%d deletes, set aside %v", deletes, f.queue(catalog.DeadQueue(queueSettled)))
	}
	for _, m := range f.queue(queueSettled) {
		if m.Due.GetAttempts() > 2 {
			t.Fatalf("the outage counts: %v", m.Due)
		}
	}
	f.converge(Config{Attempts: 4}, judged...)
	f.want(nil, keys)
	if !errors.Is(errStorage{errDown}, errDown) || reason.Code(errStorage{errDown}) != reason.Code(errDown) {
		t.Fatal("the cause is hidden")
	}
}
