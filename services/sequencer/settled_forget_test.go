package sequencer

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// Coordinates are forgotten of what is settled and of nothing else, in the order of
// the stream; readers are told where they begin, and their budget is given back.
func TestCoordinatesOfWhatIsSettledAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := w.lead(Config{SettledEvery: time.Hour})
		d := w.stream(nil)
		var want []string
		add := func(bodies ...string) {
			n := uint64(len(want))
			l.append(batch(d, bodies...), n, n+uint64(len(bodies)))
			want = append(want, bodies...)
		}
		add("0", "1")
		add("2")
		epoch := l.epoch()
		if err := w.writer.end(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.later(epoch)
		add("3")
		add("4")
		chains := w.writer.chainIDs()
		hasCoordinates := func(settled uint64, pieces int) {
			t.Helper()
			st := l.open(d)
			if uint64(st.settledTo) != settled || len(st.pieces) != pieces || l.coordinates.Load() != int64(pieces)*pieceBytes {
				t.Errorf("settled to %d, %d pieces, %d bytes are counted; want %d, %d", st.settledTo, len(st.pieces), l.coordinates.Load(), settled, pieces)
			}
			stored := uint64(0)
			for _, p := range st.pieces {
				stored += uint64(p.length)
			}
			if l.state(d).GetStoredBytes() != stored {
				t.Errorf("%d bytes are stored, want %d", l.state(d).GetStoredBytes(), stored)
			}
			l.wantReadable(d, 0, uint64(len(want)))
		}
		hasCoordinates(0, 4)
		if s := w.span(chains[1], 1<<40); s != nil {
			t.Fatalf("a chain may be settled to %d before the one before it", s.to)
		}
		s := w.span(chains[0], 1)
		s.fold()
		l.followSettled(t.Context())
		hasCoordinates(0, 4) // nothing is, before settled_to says so
		s.advance()
		l.followSettled(t.Context())
		hasCoordinates(2, 3)
		w.span(chains[0], 1<<40).settle()
		// An old read of the first chain's record does not make a hole.
		w.span(chains[1], 1).settle()
		l.chains.keep(nil)
		l.rows.Script(fault.Rule{Op: fault.Get, Prefix: "chain/" + chains[0], Do: fault.Stale, Back: 1})
		l.followSettled(t.Context())
		hasCoordinates(2, 3)
		l.rows.Clear()
		l.followSettled(t.Context())
		hasCoordinates(4, 1)
		if b := w.bindings(); len(b) != 1 {
			t.Errorf("bindings %v", b)
		}
		w.settleAll()
		l.followSettled(t.Context())
		hasCoordinates(5, 0)
		add("5")
		hasCoordinates(5, 1)
		w.wantStored(d, want...)
		l.stop()
	})
}

// A stream that comes into memory with coordinates of a chain that the shard was
// unbound from meanwhile loses them too.
func TestCoordinatesOfAnUnboundChainAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l, out := w.leadOver(Config{IdleStream: time.Microsecond, SettledEvery: time.Hour})
		d := w.stream(nil)
		l.append(batch(d, "0"), 0, 1)
		epoch := l.epoch()
		if err := w.writer.end(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.later(epoch)
		l.append(batch(d, "1"), 1, 2)
		l.evict()
		var once atomic.Bool
		out.follow(func(method string) meeting {
			if method == "GetDescriptor" && once.CompareAndSwap(false, true) { // the last call of an opening
				s := w.span(w.writer.chainIDs()[0], 1<<40)
				s.settle()
				l.followSettled(t.Context())
			}
			return passes
		})
		l.state(d)
		if n := len(w.bindings()); n != 1 || len(l.open(d).pieces) != 2 {
			t.Fatalf("%d bindings, %d pieces", n, len(l.open(d).pieces))
		}
		l.followSettled(t.Context())
		if n := len(l.open(d).pieces); n != 1 {
			t.Errorf("%d pieces", n)
		}
		l.wantReadable(d, 0, 2)
		l.stop()
	})
}

// What is known of chains is forgotten when no shard is bound to them any more (I8).
func TestChainsThatAreLeftAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, l, _, d := twoChains(t, Config{IdleStream: time.Microsecond})
		l.evict()
		l.append(batch(d, "2"), 2, 3)
		known := func() (n int) {
			l.chains.mu.Lock()
			defer l.chains.mu.Unlock()
			first := w.writer.chainIDs()[0]
			for _, is := range []bool{l.chains.records[first] != nil, l.chains.absorbed[first] > 0, l.chains.wanted[first] > 0, l.chains.sealed[first] > 0} {
				n += flag(is)
			}
			l.chainNames.Range(func(k, _ any) bool { n += flag(k.(fmt.Stringer).String() == first); return true })
			return n
		}
		if n := known(); n < 3 {
			t.Errorf("only %d things are known", n)
		}
		l.followSettled(t.Context())
		if n := known(); n != 0 {
			t.Errorf("%d things are known of a chain that was left", n)
		}
		l.append(batch(d, "3"), 3, 4)
		l.stop()
	})
}

// A stream that is quarantined while its leader has it open keeps its coordinates,
// and is not served any more once it is at rest. When that is lifted and its head
// lacks what was settled meanwhile, it is not served as if that had never been (I2).
func TestPinnedRecordsAreNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, l, _, other := twoChains(t, Config{})
		d := w.stream(nil)
		l.append(batch(d, "a"), 0, 1)
		epoch := l.epoch()
		if err := w.writer.end(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.later(epoch)
		l.append(batch(d, "b"), 1, 2)
		second := w.writer.chainIDs()[1]
		w.head(d, func(h *indexpb.Head) {
			h.Quarantine, h.Pins = "damaged", []*indexpb.Pin{{ChainId: second, From: 1, To: 2}}
		})
		s := w.span(second, 1<<40)
		s.fold()
		if _, err := w.writer.index.UpdateChain(t.Context(), second, func(r *indexpb.Chain) (bool, error) {
			r.SettledTo, r.Pins = s.to, []*indexpb.ChainPin{{StreamId: d.GetStreamId(), From: 1, To: 2}}
			return true, nil
		}); err != nil {
			t.Fatal(err)
		}
		s.discard()
		synctest.Wait() // nobody pumps
		st := l.open(d)
		l.evictIdle()
		st.addWaiters(1) // so that it stays
		l.followSettled(t.Context())
		if n := len(st.pieces); n != 2 || st.settledTo != 0 {
			t.Fatalf("%d pieces, settled to %d", n, st.settledTo)
		}
		st.addWaiters(-1)
		l.followSettled(t.Context())
		if l.open(d) != nil {
			t.Error("it stays in memory")
		}
		wantQuarantine(t, l, d, 1)
		chains := func() (out []string) {
			for _, b := range w.bindings() {
				out = append(out, b.GetChainId())
			}
			return out
		}
		if got := chains(); !slices.Equal(got, w.writer.chainIDs()[1:]) {
			t.Errorf("the shard is bound to %v", got)
		}
		// Lifted without its records.
		w.head(d, func(h *indexpb.Head) { h.Quarantine, h.Pins = "", nil })
		time.Sleep(2 * quarantineLook)
		_, err := l.Append(t.Context(), batch(d, "c"))
		wantRefusal(t, err, "")
		// And with them.
		w.settle(d)
		if _, err := w.writer.index.UpdateChain(t.Context(), second, func(r *indexpb.Chain) (bool, error) {
			r.Pins = nil
			return true, nil
		}); err != nil {
			t.Fatal(err)
		}
		l.followSettled(t.Context())
		l.append(batch(d, "c"), 2, 3)
		l.append(batch(other, "2"), 2, 3)
		l.wantReadable(d, 0, 3)
		l.stop()
	})
}
