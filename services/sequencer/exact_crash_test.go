package sequencer

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/nova-stream/nova/libs/head"
	"github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// produced is a batch of producer p.
func produced(d *indexpb.StreamDescriptor, n uint64, bodies ...string) *novapb.AppendRequest {
	r := batch(d, bodies...)
	r.ProducerId, r.ProducerEpoch, r.BatchSeq = "p", 1, n
	return r
}

// entriesOf returns the entries of a stream that chains hold, as folds see them.
func (w *world) entriesOf(d *indexpb.StreamDescriptor) []head.Entry {
	w.t.Helper()
	id := streamID(d)
	var out []head.Entry
	for _, e := range w.writer.landed() {
		if !slices.Equal(e.GetStreamId(), id[:]) {
			continue
		}
		he, err := foldable(e)
		if err != nil {
			w.t.Fatal(err)
		}
		out = append(out, he)
	}
	return out
}

// firstAck returns what a batch of producer p was first stored as; nil: it was not.
func (w *world) firstAck(d *indexpb.StreamDescriptor, n uint64) *novapb.AppendAck {
	for _, e := range w.entriesOf(d) {
		if e.Chunk == nil {
			continue
		}
		for i := range e.Chunk.Batches {
			if p := e.Chunk.Batches[i].Producer; p.ID == "p" && p.Batch == n {
				b := batchOf(e.Chunk, i)
				return &novapb.AppendAck{
					FirstSeq: uint64(b.First), NextSeq: uint64(b.Next), ContentHash: uint64(b.Hash),
					FirstTimestamp: int64(b.FirstTimestamp), LastTimestamp: int64(b.LastTimestamp), Duplicate: true,
				}
			}
		}
	}
	return nil
}

func sameAck(a, b *novapb.AppendAck) bool {
	return a.GetFirstSeq() == b.GetFirstSeq() && a.GetNextSeq() == b.GetNextSeq() && a.GetContentHash() == b.GetContentHash() &&
		a.GetFirstTimestamp() == b.GetFirstTimestamp() && a.GetLastTimestamp() == b.GetLastTimestamp() && a.GetDuplicate() == b.GetDuplicate()
}

// settle folds all that chains hold of a stream into its head, as a settler does.
func (w *world) settle(d *indexpb.StreamDescriptor) {
	w.t.Helper()
	w.head(d, func(h *indexpb.Head) { w.foldInto(h, w.entriesOf(d)) })
}

// crashPoint is where the leader dies on the way of batch 1. What becomes of the
// batch may depend on how its chain ends: by a fence or by a seal.
type crashPoint struct {
	what             string
	begin            func(t *testing.T, w *world, l *leader, d *indexpb.StreamDescriptor) <-chan answer
	fenced, sealed   bool // it is stored then
	settled, evicted bool // what happens after it was acknowledged
}

var one = []string{"one", "and a half"}

func begun(f fate) func(*testing.T, *world, *leader, *indexpb.StreamDescriptor) <-chan answer {
	return func(t *testing.T, w *world, l *leader, d *indexpb.StreamDescriptor) <-chan answer {
		before := w.writer.total()
		w.writer.script(always(f))
		a := l.pending(produced(d, 1, one...))
		eventually(t, "it is sent", func() bool { return w.writer.total() > before })
		w.writer.script(nil)
		return a
	}
}

func acknowledged(t *testing.T, _ *world, l *leader, d *indexpb.StreamDescriptor) <-chan answer {
	t.Helper()
	l.append(produced(d, 1, one...), 1, 3)
	return nil
}

var crashPoints = []crashPoint{
	{what: "in line", begin: func(t *testing.T, _ *world, l *leader, d *indexpb.StreamDescriptor) <-chan answer {
		st := l.open(d)
		holdPump(t, st)
		a := l.begin(t.Context(), produced(d, 1, one...))
		eventually(t, "it is in line", func() bool {
			st.mu.Lock()
			defer st.mu.Unlock()
			return len(st.queue) == 1
		})
		return a
	}},
	{what: "lost on the way", begin: begun(lose)},
	{what: "in the writer's hands", begin: begun(hold), fenced: true},
	{what: "landed, unheard", begin: begun(unheard), fenced: true, sealed: true},
	{what: "acknowledged", begin: acknowledged, fenced: true, sealed: true},
	{what: "evicted", begin: acknowledged, fenced: true, sealed: true, evicted: true},
	{what: "settled", begin: acknowledged, fenced: true, sealed: true, settled: true},
	{what: "evicted and settled", begin: acknowledged, fenced: true, sealed: true, evicted: true, settled: true},
}

// Wherever its leader dies, a producer that sends its batch again to the
// successor has it stored once, and hears what it was first stored as (I5).
func TestResendAfterEveryCrashIsStoredOnce(t *testing.T) {
	for _, c := range crashPoints {
		for _, seal := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, sealed %v", c.what, seal), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					l := w.lead(Config{})
					d := w.stream(nil)
					l.append(produced(d, 0, "zero"), 0, 1)
					said := w.crash(t, l, d, c, seal)
					next := w.lead(Config{FormerLivesDead: true})
					w.resend(t, next, d, seal && c.sealed || !seal && c.fenced)
					next.stop()
					l.stop()
					if said == nil {
						return
					}
					// What the dead one would have said, had it lived.
					want := reason.Unknown
					if c.what == "in line" {
						want = reason.NotCommitted
					}
					wantFailure(t, receive(t, said).err, "", want)
				})
			})
		}
	}
}

// crash has the leader die at a point; the batch's answer would come out of the
// result.
func (w *world) crash(t *testing.T, l *leader, d *indexpb.StreamDescriptor, c crashPoint, seal bool) <-chan answer {
	t.Helper()
	a := c.begin(t, w, l, d)
	if c.evicted {
		sh := l.shard()
		st := l.open(d)
		st.mu.Lock()
		sh.evictLocked(st)
		st.mu.Unlock()
	}
	if c.settled {
		w.settle(d)
	}
	l.rows.KillAt(1, fault.Before)
	if seal {
		if err := w.writer.end(t.Context()); err != nil {
			t.Fatal(err)
		}
	} else {
		w.writer.disconnect()
	}
	return a
}

// die has the leader's process die at rest, and another lead.
func (l *leader) die() *leader {
	l.w.t.Helper()
	l.rows.KillAt(1, fault.Before)
	return l.w.lead(Config{FormerLivesDead: true, IdleStream: l.cfg.IdleStream})
}

// resend sends batch 1 again, behind another's append, and goes on.
func (w *world) resend(t *testing.T, l *leader, d *indexpb.StreamDescriptor, stored bool) {
	t.Helper()
	first := w.firstAck(d, 1)
	if (first != nil) != stored {
		t.Fatalf("batch 1 is stored as %v; want it stored: %v", first, stored)
	}
	want := []string{"zero"}
	if stored {
		want = append(want, one...)
	}
	other := uint64(len(want))
	l.append(batch(d, "other"), other, other+1)
	res, err := l.Append(t.Context(), produced(d, 1, one...))
	if err != nil {
		t.Fatal(err)
	}
	want = append(want, "other")
	if !stored {
		want = append(want, one...)
		first = w.firstAck(d, 1)
		first.Duplicate = false
	}
	if !sameAck(res.GetAck(), first) {
		t.Errorf("the resend was acknowledged with %v, first stored as %v", res.GetAck(), first)
	}
	n := uint64(len(want))
	l.append(produced(d, 2, "two"), n, n+1)
	want = append(want, "two")
	for batch, bodies := range map[uint64][]string{0: {"zero"}, 1: one, 2: {"two"}} {
		res, err := l.Append(t.Context(), produced(d, batch, bodies...))
		if err != nil || !sameAck(res.GetAck(), w.firstAck(d, batch)) {
			t.Errorf("batch %d again: %v, %v; first stored as %v", batch, res.GetAck(), err, w.firstAck(d, batch))
		}
	}
	w.wantStored(d, want...)
}

// A successor may die in the middle of opening the stream, at every call to the
// metastore; the one after it goes on, with the same numbers (I1, I5).
func TestCrashesWhileAStreamIsOpened(t *testing.T) {
	for _, c := range []crashPoint{crashPoints[3], crashPoints[7]} {
		for _, when := range []fault.When{fault.Before, fault.After} {
			died := true
			for n := int64(1); died; n++ {
				if n > 20 {
					t.Fatal("an opening takes more than 20 calls")
				}
				t.Run(fmt.Sprintf("%s, call %d, after %v", c.what, n, when == fault.After), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { died = diesOpening(t, c, n, when) })
				})
			}
		}
	}
}

// diesOpening has a successor die at the nth call of its opening; false if it
// took fewer.
func diesOpening(t *testing.T, c crashPoint, n int64, when fault.When) bool {
	w := newWorld(t)
	l := w.lead(Config{})
	d := w.stream(nil)
	l.append(produced(d, 0, "zero"), 0, 1)
	w.crash(t, l, d, c, false)
	next := w.lead(Config{FormerLivesDead: true})
	var calls atomic.Int64
	next.rows.Script(fault.Rule{Op: fault.Any, Hook: func(_ context.Context, _ fault.Op, path string) error {
		if (strings.HasPrefix(path, "head/") || strings.HasPrefix(path, "descriptor/")) && calls.Add(1) == n {
			next.rows.KillAt(1, when)
		}
		return nil
	}})
	res, err := next.Append(t.Context(), produced(d, 1, one...))
	last := next
	died := calls.Load() >= n
	if died && err == nil {
		died = false // the kill came behind the last call
	}
	if died {
		if reason.OutcomeOf(err) != reason.NotCommitted {
			t.Errorf("the one that died: %v", err)
		}
		last = w.lead(Config{FormerLivesDead: true})
		w.resend(t, last, d, true)
	} else {
		wantAck(t, answer{res.GetAck(), err}, 1, 3)
	}
	last.stop()
	next.stop()
	l.stop()
	return died
}
