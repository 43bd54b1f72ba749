package sequencer

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
)

type (
	lookupRequest  = chainwriterpb.LookupEntriesRequest
	lookupResponse = chainwriterpb.LookupEntriesResponse
)

// spoil has lookups of a stream's entries be damaged from now on; nil: no more.
func (w *writer) spoil(d *indexpb.StreamDescriptor, f func(*lookupRequest, *lookupResponse) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.damage = nil
	if f == nil {
		return
	}
	id := streamID(d)
	w.damage = func(req *lookupRequest, out *lookupResponse) error {
		if slices.ContainsFunc(req.GetStreamIds(), func(b []byte) bool { return slices.Equal(b, id[:]) }) {
			return f(req, out)
		}
		return nil
	}
}

// without loses the nth entry that a lookup found.
func without(n int) func(*lookupRequest, *lookupResponse) error {
	return func(_ *lookupRequest, out *lookupResponse) error {
		out.Entries = slices.Delete(out.GetEntries(), n, n+1)
		return nil
	}
}

func errDirectory() error {
	return reason.New(codes.DataLoss, reason.ChecksumMismatch, "a block is damaged")
}

// headOf reads the head's row.
func (w *world) headOf(d *indexpb.StreamDescriptor) *indexpb.Head {
	w.t.Helper()
	h, err := w.index.GetHead(w.t.Context(), &indexpb.GetHeadRequest{StreamId: d.GetStreamId()})
	if err != nil {
		w.t.Fatal(err)
	}
	return h.GetHead()
}

func wantQuarantine(t *testing.T, l *leader, d *indexpb.StreamDescriptor, slot uint64) {
	t.Helper()
	_, err := l.Append(t.Context(), batch(d, "x"))
	wantRefusal(t, err, reason.StreamQuarantine)
	if reason.Code(err) != codes.DataLoss || !strings.Contains(err.Error(), d.GetStreamId()) || !strings.Contains(err.Error(), fmt.Sprint("slot ", slot)) {
		t.Errorf("the refusal does not name stream and slot %d: %v", slot, err)
	}
	if _, err := l.GetState(t.Context(), &sequencerpb.GetStateRequest{Stream: key(d)}); !reason.Is(err, reason.StreamQuarantine) {
		t.Errorf("its state is shown: %v", err)
	}
}

// A stream whose log is broken is quarantined alone, in its head, with the slots
// that a repair needs. Others go on; trying again costs nothing; the next leader
// knows; and it is served as soon as the repair has lifted it.
func TestBrokenStreamStopsNobodyElse(t *testing.T) {
	// The stream's three chunks are in the slots 0, 2 and 3 of the chain.
	for what, c := range map[string]struct {
		spoil func(*lookupRequest, *lookupResponse) error
		pins  string
	}{
		"a gap":        {without(1), "[3,4)"},
		"a lost first": {without(0), "[2,4)"},
		"a damaged one": {func(_ *lookupRequest, out *lookupResponse) error {
			out.Entries[1].Header = slices.Clone(out.GetEntries()[1].GetHeader()) // the chain's own stays
			out.Entries[1].Header[20]++
			return nil
		}, "[2,4)"},
		"another's": {func(_ *lookupRequest, out *lookupResponse) error {
			body, h, err := chunk.Encode(nil, chunk.Input{
				StreamID: stream.NewID(), BaseSeq: 1, HashBefore: 7, Batches: []chunk.InputBatch{{Records: []stream.Record{{Seq: 1, Timestamp: 1 << 50}}}},
			})
			out.Entries[1].Header = body[:len(body)-int(h.PayloadLength)]
			return err
		}, "[2,4)"},
		"no chain": {func(_ *lookupRequest, out *lookupResponse) error { out.Entries[2].At.ChainId = nil; return nil }, "[3,4)"},
		"a damaged block": {func(req *lookupRequest, _ *lookupResponse) error {
			if req.GetFrom() <= 3 && req.GetTo() > 2 { // of the directory of slots 2 and 3
				return errDirectory()
			}
			return nil
		}, "[2,5)"},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				l := w.lead(Config{IdleStream: time.Microsecond})
				d, other := w.stream(nil), w.stream(nil)
				l.append(batch(d, "a"), 0, 1)
				l.append(batch(other, "1"), 0, 1)
				l.append(batch(d, "b"), 1, 2)
				l.append(batch(d, "c"), 2, 3)
				l.append(batch(other, "2"), 1, 2)
				l.evict()
				w.writer.spoil(d, c.spoil)
				wantQuarantine(t, l, d, w.firstSlot(c.pins))
				l.append(batch(other, "3"), 2, 3)
				h := w.headOf(d)
				if h.GetQuarantine() == "" || pinsOf(h) != c.pins || h.GetTail() != 0 {
					t.Errorf("head %v, want the pins %s", h, c.pins)
				}

				// Whoever tries again costs neither lookups nor metadata.
				var calls atomic.Int64
				l.rows.Script(fault.Rule{Prefix: "head/", Hook: func(context.Context, fault.Op, string) error { calls.Add(1); return nil }})
				w.writer.takeSteps()
				for range 100 {
					wantQuarantine(t, l, d, w.firstSlot(c.pins))
				}
				if steps := w.writer.takeSteps(); calls.Load() > 0 || len(steps) > 0 {
					t.Errorf("100 tries cost %d changes of heads and %v", calls.Load(), steps)
				}

				// The next leader takes the head's word, though it would read all well.
				w.writer.spoil(d, nil)
				next := l.die()
				w.writer.takeSteps()
				wantQuarantine(t, next, d, w.firstSlot(c.pins))
				if steps := w.writer.takeSteps(); slices.Contains(steps, "look up") {
					t.Error("a quarantined head was folded over")
				}
				next.append(batch(other, "4"), 3, 4)

				w.head(d, func(h *indexpb.Head) { h.Quarantine, h.Pins = "", nil })
				time.Sleep(quarantineLook + time.Second)
				next.append(batch(d, "d"), 3, 4)
				w.wantStored(d, "a", "b", "c", "d")
				w.wantStored(other, "1", "2", "3", "4")
				next.stop()
				l.stop()
			})
		})
	}
}

func pinsOf(h *indexpb.Head) string {
	var out []string
	for _, p := range h.GetPins() {
		out = append(out, fmt.Sprintf("[%d,%d)", p.GetFrom(), p.GetTo()))
	}
	return strings.Join(out, " ")
}

func (w *world) firstSlot(pins string) (slot uint64) {
	if _, err := fmt.Sscanf(pins, "[%d,", &slot); err != nil {
		w.t.Fatal(err)
	}
	return slot
}

// What is seen damaged once and not again quarantines nobody.
func TestDamageOnTheWayQuarantinesNobody(t *testing.T) {
	for what, does := range map[string]func(*lookupRequest, *lookupResponse) error{
		"a gap": without(1), "a block": func(*lookupRequest, *lookupResponse) error { return errDirectory() },
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			l := w.lead(Config{IdleStream: time.Microsecond})
			d := w.stream(nil)
			for i := range uint64(3) {
				l.append(batch(d, fmt.Sprint(i)), i, i+1)
			}
			l.evict()
			var once atomic.Bool
			w.writer.spoil(d, func(req *lookupRequest, out *lookupResponse) error {
				if once.CompareAndSwap(false, true) {
					return does(req, out)
				}
				return nil
			})
			l.append(batch(d, "3"), 3, 4)
			if h := w.headOf(d); h.GetQuarantine() != "" || !once.Load() {
				t.Errorf("head %v", h)
			}
			w.wantStored(d, "0", "1", "2", "3")
		})
	}
}

// Damage of a whole directory is no stream's own: it passes when that is
// repaired, and costs little until then.
func TestDamagedDirectoryQuarantinesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := w.lead(Config{IdleStream: time.Microsecond})
		d := w.stream(nil)
		l.append(batch(d, "a"), 0, 1)
		l.evict()
		damage := func(do func(*lookupRequest, *lookupResponse) error) {
			w.writer.mu.Lock()
			defer w.writer.mu.Unlock()
			w.writer.damage = do
		}
		damage(func(*lookupRequest, *lookupResponse) error { return errDirectory() })
		for range 10 {
			_, err := l.Append(t.Context(), batch(d, "x"))
			wantRefusal(t, err, reason.ChecksumMismatch)
		}
		if h := w.headOf(d); h.GetQuarantine() != "" {
			t.Errorf("head %v", h)
		}
		if n := len(w.writer.takeSteps()); n > 10 {
			t.Errorf("10 tries cost %d calls", n)
		}
		damage(nil)
		time.Sleep(quarantineLook + time.Second)
		l.append(batch(d, "b"), 1, 2)
		w.wantStored(d, "a", "b")
		l.stop()
	})
}

// A quarantined stream can be deleted: its DELETE is committed before the name is
// free, every leader knows that it is gone, and the name may mean another.
func TestQuarantinedStreamCanBeDeleted(t *testing.T) {
	synctest.Test(t, deleteQuarantined)
}

func deleteQuarantined(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{IdleStream: time.Microsecond})
	d := w.stream(nil)
	for i := range uint64(3) {
		l.append(batch(d, fmt.Sprint(i)), i, i+1)
	}
	l.evict()
	w.writer.spoil(d, without(1))
	wantQuarantine(t, l, d, 2)
	w.writer.script(always(hold))
	deleted := l.control(d, func() error { return l.delete(d) })
	silent(t, "the delete", deleted)
	if _, err := w.index.ResolveStream(t.Context(), &indexpb.ResolveStreamRequest{Bucket: "bucket", Stream: d.GetName()}); err != nil {
		t.Fatalf("the name is free before the stream is deleted: %v", err)
	}
	// The head cannot be told at first: the delete fails, and its caller tries again.
	l.rows.Script(fault.Rule{Op: fault.Put, Prefix: "head/", Times: 100, Do: fault.FailBefore})
	w.writer.release()
	if err := receive(t, deleted); err == nil {
		t.Error("deleted, and the head does not know")
	}
	l.rows.Clear()
	if err := l.delete(d); err != nil {
		t.Fatal(err)
	}
	entries := w.entriesOf(d)
	if last := entries[len(entries)-1]; last.Kind != bundle.KindDelete {
		t.Errorf("its log ends with %+v", last)
	}
	gone := func(l *leader) {
		t.Helper()
		if _, err := l.GetState(t.Context(), &sequencerpb.GetStateRequest{Stream: key(d)}); !reason.Is(err, reason.StreamNotFound) {
			t.Errorf("a deleted stream: %v", err)
		}
		if err := l.delete(d); err != nil {
			t.Errorf("deleted again: %v", err)
		}
	}
	gone(l)
	again, err := w.index.CreateStream(t.Context(), &indexpb.CreateStreamRequest{Bucket: "bucket", Stream: d.GetName()})
	if err != nil {
		t.Fatal(err)
	}
	l.append(batch(again.GetStream(), "new"), 0, 1)
	next := l.die()
	gone(next)
	next.stop()
	l.stop()
}

// Pins stay within the limit of a head (I8), and hold what they held.
func TestPinsAreBounded(t *testing.T) {
	for _, slots := range [][]uint64{{5}, {5, 6, 7}, {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31, 33, 35}} {
		var pins []*indexpb.Pin
		for _, chain := range []string{"c", "d"} {
			for _, s := range slots {
				pins = addPin(pins, chain, s)
			}
		}
		pins = fewPins(pins)
		if len(pins) > maxPins || pins[0].GetChainId() != "c" || pins[0].GetFrom() != slots[0] {
			t.Errorf("%v: pins %v", slots, pins)
		}
		for _, chain := range []string{"c", "d"} {
			for _, s := range slots {
				if !slices.ContainsFunc(pins, func(p *indexpb.Pin) bool { return p.GetChainId() == chain && p.GetFrom() <= s && s < p.GetTo() }) {
					t.Errorf("%v: slot %d of chain %s is not pinned by %v", slots, s, chain, pins)
				}
			}
		}
	}
}
