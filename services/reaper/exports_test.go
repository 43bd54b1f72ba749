package reaper

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/history"
	metafault "github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/services/index" //nolint:depguard // real exports are part of what is tested
)

// exportsApart is how often a farm's metadata are exported.
const exportsApart = time.Hour

// exports has a farm export its metadata, now and then as time passes.
func (f *farm) exports() {
	f.t.Helper()
	f.setExports(exportsApart)
	f.export()
}

// setExports sets how often the rows say that there are exports.
func (f *farm) setExports(interval time.Duration) {
	f.t.Helper()
	var err error
	f.exporting, err = index.NewExporting(f.service, index.ExportConfig{Interval: interval, Rate: 1e9}, f.objects)
	f.must(err)
	rows, err := index.NewRows(f.rows)
	f.must(err)
	st := &indexpb.ExportState{}
	_, err = rows.Get(f.t.Context(), st)
	f.must(err)
	st.IntervalMs, st.Attempt = interval.Milliseconds(), stream.NewAttemptID().String()
	f.must(rows.Put(f.t.Context(), st))
}

// export makes an export, and notes what it needs.
func (f *farm) export() {
	f.t.Helper()
	ctx := f.t.Context()
	f.exported = f.clock()
	f.must(f.exporting.Export(ctx))
	needs := map[string]bool{}
	for _, id := range f.streams {
		h, _, err := f.index.GetHead(ctx, id)
		if absent(err) == nil && (err != nil || h.GetState() == deletedState) {
			continue
		}
		f.must(err)
		load := f.reaper(Config{}, f.raw, f.objects).load(id)
		noted := func(ctx context.Context, p *indexpb.RefPage) (*indexpb.RefPageBody, error) {
			needs[p.GetObject()] = true
			return load(ctx, p)
		}
		f.must(history.Walk(ctx, noted, h, 0, func(r *indexpb.Ref) (bool, error) {
			needs[r.GetObject()] = true
			return true, nil
		}))
	}
	f.must(f.index.EachChain(ctx, func(c *indexpb.Chain) error {
		id, err := stream.ParseChainID(c.GetChainId())
		f.must(err)
		for slot := range c.GetAbsorbedTo() {
			pinned := slices.ContainsFunc(c.GetPins(), func(p *indexpb.ChainPin) bool { return p.GetFrom() <= slot && slot < p.GetTo() })
			if slot >= c.GetSettledTo() || pinned {
				needs[chain.SlotKey(id, stream.Slot(slot))] = true
			}
		}
		rows, err := f.index.Directories(ctx, c.GetChainId(), c.GetSettledTo(), c.GetAbsorbedTo())
		for _, d := range rows {
			needs[d.GetObject()] = true
		}
		return err
	}))
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kept = append(f.kept, needs)
	f.kept = f.kept[max(len(f.kept)-2, 0):]
}

// keeper fails a test that deletes what an export that is kept needs.
type keeper struct {
	objectstore.Store

	f *farm
}

// Delete implements objectstore.Store.
func (k keeper) Delete(ctx context.Context, keys ...string) error {
	k.f.mu.Lock()
	for _, key := range keys {
		for i, needs := range k.f.kept {
			if needs[key] {
				k.f.t.Errorf("%s is deleted, and export %d of %d that are kept needs it", key, i+1, len(k.f.kept))
			}
		}
	}
	k.f.mu.Unlock()
	return k.Store.Delete(ctx, keys...)
}

// gated is something dead that an export needs.
func gated(t *testing.T) (f *farm, key string) {
	f = newFarm(t)
	f.exports()
	id := f.stream(nil)
	key = f.settle(id, 1).GetRefs()[0].GetObject()
	f.trim(id, 1)
	return f, key
}

func (f *farm) has(key string) bool { return slices.Contains(f.keys(), key) }

// What no head names goes only when two exports are complete that began after that:
// a restore uses the newest, or the one before it if that is damaged (I11). Until
// then it is looked at about as often as exports are made.
func TestNothingGoesThatAnExportNeeds(t *testing.T) {
	f, key := gated(t)
	s := f.process(Config{}).Service
	drainAll(t, s)
	began := f.clock()
	for n := range 2 {
		for range 6 {
			f.pass(9 * time.Minute)
			drainAll(t, s)
		}
		if !f.has(key) {
			t.Fatalf("it is gone after %d exports", n)
		}
		f.pass(7 * time.Minute) // an export
	}
	if got := f.queue(queueSettled); len(got) != 1 || got[0].Due.GetAttempts() != 0 || got[0].Due.GetExport() == 0 {
		t.Fatalf("%v", got)
	}
	f.converge(Config{}, collected...)
	f.want(nil, []string{key})
	if took := f.clock().Sub(began) - settlesAfter; took > 4*exportsApart {
		t.Errorf("it took %s", took)
	}
}

// The same for slots and directories, with what came to be dead meanwhile: slots
// that a pin kept when the rest was noted wait for exports of their own.
func TestSlotsThatAnExportNeedsStay(t *testing.T) {
	f := newFarm(t)
	f.exports()
	id, broken := f.chain(20), stream.NewID().String()
	f.arm(&indexpb.Due{Queue: queueReclaim, ChainId: id.String(), Number: 20})
	f.update(id, func(c *indexpb.Chain) {
		c.SettledTo, c.Pins = 20, []*indexpb.ChainPin{{StreamId: broken, From: 3, To: 5}}
	})
	s := f.process(Config{}).Service
	drainAll(t, s)
	m := f.queue(queueReclaim)[0].Due
	if wait := time.UnixMilli(m.GetAt()).Sub(f.clock()); wait < exportsApart || wait > 3*exportsApart {
		t.Errorf("it is looked at again in %s", wait)
	}
	f.pass(exportsApart)
	f.left(id, []uint64{0, 10}, upTo(0, 20)...)
	// The stream is repaired, or deleted.
	f.arm(&indexpb.Due{Queue: queueReclaim, ChainId: id.String(), StreamId: broken, From: 3, Number: 5})
	f.update(id, func(c *indexpb.Chain) { c.Pins = nil })
	f.pass(time.UnixMilli(m.GetAt()).Sub(f.clock()))
	drainAll(t, s)
	f.left(id, []uint64{0, 10}, upTo(0, 20)...)
	f.converge(Config{}, reclaimedQueues...)
	f.left(id, nil)
}

// A chain is not retired while an export has a pin of it.
func TestChainThatAnExportHasAPinOfIsNotRetired(t *testing.T) {
	f := newFarm(t)
	f.exports()
	id := f.chain(5)
	f.seal(id)
	f.update(id, func(c *indexpb.Chain) {
		c.SettledTo, c.ReclaimedTo, c.Pins = 5, 5, []*indexpb.ChainPin{{StreamId: stream.NewID().String(), To: 2}}
	})
	f.export() // the stream has no head: its pin goes
	f.arm(&indexpb.Due{Queue: queueChain, ChainId: id.String()})
	s := f.process(Config{}).Service
	drainAll(t, s)
	f.mu.Lock()
	f.now = f.now.Add(settlesAfter + time.Hour) // exports fail
	f.mu.Unlock()
	drainAll(t, s)
	if c, _, err := f.index.GetChain(t.Context(), id.String()); err != nil || c.GetState() != indexpb.ChainState_CHAIN_STATE_SEALED || len(f.keys()) != 7 {
		t.Fatalf("%v, %v, %q", c, err, f.keys())
	}
	f.converge(Config{}, queueChain, queueReclaim)
	if c, _, err := f.index.GetChain(t.Context(), id.String()); err != nil || c.GetState() != indexpb.ChainState_CHAIN_STATE_RETIRED {
		t.Fatalf("%v, %v", c, err)
	}
}

// While exports fail nothing is deleted, and that is said loudly; it costs little.
func TestNothingGoesWhileExportsFail(t *testing.T) {
	f, key := gated(t)
	var said bytes.Buffer
	s, err := New(Config{}, Deps{
		Index: f.raw, Cache: store{objects: f.objects}, Router: f, Registry: f, Conns: f, Now: f.clock, Log: slog.New(slog.NewTextHandler(&said, nil)),
	})
	f.must(err)
	f.exporting = nil
	for range 20 * 24 * 6 {
		f.pass(10 * time.Minute)
		drainAll(t, s)
	}
	if !f.has(key) {
		t.Fatal("it is gone")
	}
	if n := strings.Count(said.String(), "nothing is deleted"); n < 24 {
		t.Errorf("it was said %d times", n)
	}
	f.setExports(exportsApart)
	f.export()
	f.converge(Config{}, collected...)
	f.want(nil, []string{key})
}

// Exports that were switched off keep nothing.
func TestExportsThatWereSwitchedOff(t *testing.T) {
	f, key := gated(t)
	s := f.process(Config{}).Service
	drainAll(t, s)
	f.pass(2 * time.Minute)
	drainAll(t, s)
	f.setExports(0)
	f.exporting, f.kept = nil, nil
	f.pass(waitsForExport)
	drainAll(t, s)
	if f.has(key) {
		t.Error("it is there")
	}
	f.converge(Config{}, collected...)
	f.want(nil, []string{key})
}

// An old read of the row of exports opens nothing.
func TestOldReadOfExports(t *testing.T) {
	for back := 1; back <= 3; back++ {
		f, key := gated(t)
		p := f.process(Config{})
		p.rows.Script(metafault.Rule{Op: metafault.Read, Prefix: "export", Do: metafault.Stale, Back: back, Nth: 1})
		p.rows.Script(metafault.Rule{Op: metafault.Read, Prefix: "export", Do: metafault.Stale, Back: back, Nth: 2})
		drainAll(t, p.Service)
		f.pass(2 * time.Minute)
		drainAll(t, p.Service)
		if m := f.queue(queueSettled); !f.has(key) || m[0].Due.GetExport() != 3 { // it died after the second one began
			t.Fatalf("%v", m)
		}
	}
}

// Whoever asks while a call is under way gets the answer of a later one, and those
// who do so share it.
func TestAskingForExportsIsNoOldRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &slowExports{answers: make(chan uint64)}
		_, s := newWorld(t, Config{})
		s.index = catalog.New(x)
		got := make(chan uint64, 9)
		ask := func() {
			st, err := s.ask(t.Context())
			if err != nil {
				t.Error(err)
			}
			got <- st.GetBegun()
		}
		go ask()
		synctest.Wait()
		for range 3 {
			go ask()
		}
		synctest.Wait()
		x.answers <- 1
		if n := <-got; n != 1 {
			t.Errorf("%d", n)
		}
		x.answers <- 2
		for range 3 {
			if n := <-got; n != 2 {
				t.Errorf("the answer of call %d", n)
			}
		}
		go ask()
		x.answers <- 3
		if n := <-got; n != 3 {
			t.Errorf("the answer of call %d", n)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go ask()
		synctest.Wait()
		cancel()
		if _, err := s.ask(ctx); err == nil {
			t.Error("it waits for others after it was given up")
		}
		x.answers <- 4
		<-got
	})
}

type slowExports struct {
	indexpb.IndexServiceClient

	answers chan uint64
}

func (x *slowExports) GetExportState(ctx context.Context, _ *indexpb.GetExportStateRequest, _ ...grpc.CallOption) (*indexpb.GetExportStateResponse, error) {
	select {
	case n := <-x.answers:
		return &indexpb.GetExportStateResponse{Begun: n}, nil
	case <-ctx.Done():
		return nil, reason.New(reason.Code(ctx.Err()), "", fmt.Sprint(ctx.Err()))
	}
}
