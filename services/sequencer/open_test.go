package sequencer

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// evict lets every stream go that is at rest. An append is acknowledged before the
// pump that numbered it has ended, which keeps its stream.
func (l *leader) evict() {
	l.w.t.Helper()
	eventually(l.w.t, "nobody pumps", func() bool {
		sh := l.shard()
		sh.mu.Lock()
		streams := slices.Collect(maps.Values(sh.streams))
		sh.mu.Unlock()
		return !slices.ContainsFunc(streams, func(st *openStream) bool {
			st.mu.Lock()
			defer st.mu.Unlock()
			return st.pumping
		})
	})
	time.Sleep(time.Millisecond) // longer than idle streams stay; see Config.IdleStream
	l.evictIdle()
}

// A stream that left memory is read back with all that it was (I1, I5).
func TestIdleStreamsComeBackAsTheyWere(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{IdleStream: time.Microsecond})
	d := w.stream(nil)
	req := func(n uint64, body string) *novapb.AppendRequest {
		r := batch(d, body)
		r.ProducerId, r.BatchSeq = "p", n
		return r
	}
	var want []string
	for i := range uint64(6) {
		body := fmt.Sprint(i)
		l.append(req(i, body), i, i+1)
		want = append(want, body)
		l.evict()
		if l.open(d) != nil {
			t.Fatal("the stream is in memory")
		}
		if ack := l.append(req(i, body), i, i+1); !ack.GetDuplicate() {
			t.Fatalf("stored again: %v", ack)
		}
		if i == 2 {
			epoch := l.epoch()
			w.writer.disconnect()
			l.later(epoch)
		}
	}
	w.wantStored(d, want...)
	if got := l.coordinates.Load(); got != 6*pieceBytes {
		t.Errorf("%d bytes of coordinates are counted for 6 chunks", got)
	}
}

func TestBusyStreamsStay(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{IdleStream: time.Microsecond})
	d := w.stream(nil)
	w.writer.script(always(hold))
	a := l.pending(batch(d, "a"))
	l.evict()
	if l.open(d) == nil {
		t.Fatal("a stream with an entry under way left memory")
	}
	w.writer.release()
	wantAck(t, receive(t, a), 0, 1)
	l.append(batch(d, "b"), 1, 2)
	w.wantStored(d, "a", "b")
}

// Streams leave and come back while they are appended to.
func TestAppendsAndEvictionsTogether(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{IdleStream: time.Nanosecond})
	d := w.stream(nil)
	stop := make(chan struct{})
	var evicting sync.WaitGroup
	evicting.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				l.evictIdle()
			}
		}
	})
	next := uint64(0)
	for i := 0; i < 100 || next < 10 && i < 100_000; i++ {
		res, err := l.Append(t.Context(), batch(d, fmt.Sprint(i)))
		switch {
		case err == nil && res.GetAck().GetFirstSeq() == next:
			next++
		case err == nil || !reason.Is(err, reason.NoLeader) || reason.OutcomeOf(err) != reason.NotCommitted:
			t.Errorf("append %d: %v, %v; number %d is due", i, res, err, next)
		}
	}
	close(stop)
	evicting.Wait()
	if n := len(w.stored(d)); uint64(n) != next || n < 10 {
		t.Errorf("%d records are stored, %d acknowledged", n, next)
	}
}

// The order is what makes an opening right: the chains are absorbed, then the
// head is touched under the own epoch, then directories are folded over it.
func TestOpenAbsorbsThenTouchesThenFolds(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{IdleStream: time.Microsecond})
	d := w.stream(nil)
	l.append(batch(d, "a"), 0, 1)
	l.evict()
	w.writer.takeSteps()
	l.rows.Script(fault.Rule{Op: fault.Put, Prefix: "head/", Hook: func(context.Context, fault.Op, string) error {
		w.writer.note("touch")
		return nil
	}})
	// An old read of the head is found out by the touch.
	l.rows.Script(fault.Rule{Op: fault.Get, Prefix: "head/", Nth: 1, Do: fault.Stale})
	l.append(batch(d, "b"), 1, 2)
	steps := slices.Compact(w.writer.takeSteps())
	if want := []string{"absorb", "touch", "look up"}; !slices.Equal(steps, want) {
		t.Errorf("steps %v, want %v", steps, want)
	}
	h, err := w.index.GetHead(t.Context(), &indexpb.GetHeadRequest{StreamId: d.GetStreamId()})
	if err != nil || h.GetHead().GetOpenedEpoch() != uint64(l.epoch()) {
		t.Errorf("head %v, %v", h, err)
	}
}

// A head that a later leader opened is refused: this one is deposed (I4).
func TestStreamOpenedByALaterLeaderIsNotServed(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{AdmissionTimeout: time.Second})
	d := w.stream(nil)
	w.head(d, func(h *indexpb.Head) { h.OpenedEpoch = uint64(l.epoch()) + 1 })
	if _, err := l.Append(t.Context(), batch(d, "x")); err == nil || reason.OutcomeOf(err) != reason.NotCommitted {
		t.Errorf("append: %v", err)
	}
	w.wantStored(d)
}

// head changes a stream's head.
func (w *world) head(d *indexpb.StreamDescriptor, f func(*indexpb.Head)) {
	w.t.Helper()
	h, err := w.index.GetHead(w.t.Context(), &indexpb.GetHeadRequest{StreamId: d.GetStreamId()})
	if err != nil {
		w.t.Fatal(err)
	}
	f(h.GetHead())
	h.Head.Attempt = stream.NewAttemptID().String()
	if _, err := w.index.PutHead(w.t.Context(), &indexpb.PutHeadRequest{Head: h.GetHead(), ExpectedVersion: h.GetVersion()}); err != nil {
		w.t.Fatal(err)
	}
}

// Entries that the head holds already are not applied again, those above are.
func TestOpenGoesOnFromTheHead(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{IdleStream: time.Microsecond})
	d := w.stream(nil)
	req := batch(d, "a")
	req.ProducerId = "p"
	l.append(req, 0, 1)
	l.append(batch(d, "b"), 1, 2)
	l.evict()
	w.head(d, func(h *indexpb.Head) { w.foldInto(h, w.entriesOf(d)[:1]) })
	l.append(batch(d, "c"), 2, 3)
	if ack := l.append(req, 0, 1); !ack.GetDuplicate() {
		t.Errorf("stored again: %v", ack)
	}
	w.wantStored(d, "a", "b", "c")
}
