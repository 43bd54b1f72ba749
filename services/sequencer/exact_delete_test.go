package sequencer

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// Old reads, from before a stream was made, neither let it be taken for deleted
// nor free its name: a delete is what its log says (I2).
func TestOldReadsDeleteNothing(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{IdleStream: time.Microsecond})
	d := w.stream(nil)
	l.append(batch(d, "a"), 0, 1)
	l.evict()
	old := func() {
		for _, rows := range []string{"descriptor/", "head/"} {
			l.rows.Script(fault.Rule{Op: fault.Get, Prefix: rows, Do: fault.Stale, Back: fault.MaxStates, Times: 1})
		}
	}
	old()
	if _, err := l.Append(t.Context(), batch(d, "b")); reason.Is(err, reason.StreamNotFound) {
		t.Errorf("a stream that is there: %v", err)
	}
	w.writer.script(func(e *chainwriterpb.Entry) fate {
		if e.GetKind() == chainwriterpb.EntryKind_ENTRY_KIND_DELETE {
			return hold
		}
		return land
	})
	l.evict()
	old()
	deleted := make(chan error, 1)
	go func() { deleted <- l.delete(d) }()
	eventually(t, "it is deleted in its log", func() bool { return w.writer.held() > 0 || len(deleted) > 0 })
	if _, err := w.index.ResolveStream(t.Context(), &indexpb.ResolveStreamRequest{Bucket: "bucket", Stream: d.GetName()}); err != nil {
		t.Fatalf("the name is free before the stream is deleted: %v", err)
	}
	w.writer.release()
	if err := receive(t, deleted); reason.Is(err, reason.StreamNotFound) {
		t.Fatal(err)
	}
	if err := l.delete(d); err != nil { // the first may have found its old read out, and said so
		t.Fatal(err)
	}
	entries := w.entriesOf(d)
	if last := entries[len(entries)-1]; last.Kind != bundle.KindDelete {
		t.Errorf("the name is free, and the stream's log ends with %+v", last)
	}
}

// Settings that were changed hold from the answer on, whatever a read says (I6).
func TestRefreshTakesNoOldRead(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{})
	d := w.stream(&novapb.StreamConfig{Timestamping: novapb.TimestampingMode_TIMESTAMPING_MODE_CLIENT_PREFER})
	dated := func() *novapb.AppendRequest {
		req := batch(d, "a")
		req.Records[0].SetTimestamp(7)
		return req
	}
	if ack := l.append(dated(), 0, 1); ack.GetFirstTimestamp() != 7 {
		t.Fatalf("ack %v", ack)
	}
	if _, err := w.index.UpdateStream(t.Context(), &indexpb.UpdateStreamRequest{Bucket: "bucket", Stream: d.GetName(), Config: &novapb.StreamConfig{
		Timestamping: novapb.TimestampingMode_TIMESTAMPING_MODE_ARRIVAL,
	}}); err != nil {
		t.Fatal(err)
	}
	stale := l.rows.Script(fault.Rule{Op: fault.Get, Prefix: "descriptor/", Do: fault.Stale, Times: 1})
	if _, err := l.RefreshStream(t.Context(), &sequencerpb.RefreshStreamRequest{Stream: key(d)}); err != nil {
		t.Fatal(err)
	}
	if ack := l.append(dated(), 1, 2); ack.GetFirstTimestamp() == 7 || stale.Acted() != 1 {
		t.Errorf("ack %v after %d old reads", ack, stale.Acted())
	}
	// A read from before there were settings is no reason to say that there are none.
	l.rows.Script(fault.Rule{Op: fault.Get, Prefix: "descriptor/", Do: fault.Stale, Back: fault.MaxStates, Times: 1})
	if _, err := l.RefreshStream(t.Context(), &sequencerpb.RefreshStreamRequest{Stream: key(d)}); err == nil || reason.Is(err, reason.StreamNotFound) || reason.Is(err, reason.RowNotFound) {
		t.Errorf("an old read: %v", err)
	}
}

// At the limit of coordinates not every append looks at all streams for idle
// ones, only one now and then (I8).
func TestIdleStreamsAreLookedForNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := w.lead(Config{CoordinateBytes: pieceBytes, IdleStream: 6 * time.Second}) // 100 ms at the limit
		d, other := w.stream(nil), w.stream(nil)
		time.Sleep(time.Minute) // behind the eviction that placement does
		synctest.Wait()
		l.append(batch(d, "a"), 0, 1)
		refused := func() {
			t.Helper()
			_, err := l.Append(t.Context(), batch(other, "x"))
			wantRefusal(t, err, reason.OverBudget)
		}
		refused() // it looks, and the first is not idle yet
		time.Sleep(200 * time.Millisecond)
		for range 10 {
			refused() // it is now, and nobody looks
		}
		time.Sleep(evictApart)
		l.append(batch(other, "1"), 0, 1)
		w.wantStored(d, "a")
		w.wantStored(other, "1")
		l.stop()
	})
}

func (l *leader) deleteIfEmpty(d *indexpb.StreamDescriptor, at uint64) error {
	_, err := l.DeleteStream(l.w.t.Context(), &sequencerpb.DeleteStreamRequest{
		Stream: key(d), Bucket: "bucket", Name: d.GetName(), IfEmptyAtPresence: &sequencerpb.DeleteStreamRequest_IfEmptyAt{IfEmptyAt: at},
	})
	return err
}

// deletes returns the markers that lead to a delete without conditions.
func (w *world) deletes() []*indexpb.VersionedDue {
	w.t.Helper()
	res, err := w.index.ListDue(w.t.Context(), &indexpb.ListDueRequest{Queue: "delete", Until: time.Now().Add(time.Hour).UnixMilli(), Limit: 10})
	if err != nil {
		w.t.Fatal(err)
	}
	return res.GetDue()
}

// A stream is deleted for being empty only if it is, and at the number that its
// judge saw. A refusal leaves nothing that would delete it later (I2).
func TestDeleteOfAnEmptyStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := w.lead(Config{})
		d := w.stream(nil)
		refused := func(at, tail uint64) {
			t.Helper()
			err := l.deleteIfEmpty(d, at)
			if n, _ := reason.Number(err, reason.KeyTail); !reason.Is(err, reason.SeqMismatch) || n != tail {
				t.Errorf("deleted at %d: %v", at, err)
			}
			if due := w.deletes(); len(due) > 0 {
				t.Errorf("what leads to a delete: %v", due)
			}
			l.state(d)
		}
		refused(1, 0)
		l.append(batch(d, "a", "b"), 0, 2)
		refused(2, 2) // not empty
		if _, err := l.trim(d, 1); err != nil {
			t.Fatal(err)
		}
		refused(2, 2)
		if _, err := l.trim(d, 2); err != nil {
			t.Fatal(err)
		}
		refused(1, 2)
		w.writer.script(always(hold))
		token := l.control(d, func() error {
			_, err := l.SetFencingToken(t.Context(), &novapb.SetFencingTokenRequest{Bucket: "bucket", Stream: d.GetName(), Token: "t"})
			return err
		})
		deleted := make(chan error, 1)
		go func() { deleted <- l.deleteIfEmpty(d, 2) }()
		synctest.Wait()
		silent(t, "the refusal while something is under way", deleted)
		w.writer.release()
		if err := receive(t, token); err != nil {
			t.Fatal(err)
		}
		if err := receive(t, deleted); !reason.Is(err, reason.SeqMismatch) {
			t.Errorf("deleted beside a change: %v", err)
		}
		if err := l.deleteIfEmpty(d, 2); err != nil {
			t.Fatal(err)
		}
		for range 2 { // it converges
			if _, err := w.index.ResolveStream(t.Context(), &indexpb.ResolveStreamRequest{Bucket: "bucket", Stream: d.GetName()}); !reason.Is(err, reason.StreamNotFound) {
				t.Errorf("the name: %v", err)
			}
			if due := w.deletes(); len(due) == 0 || due[0].GetDue().GetStreamId() != d.GetStreamId() {
				t.Errorf("nothing leads to what the stream leaves behind: %v", due)
			}
			if err := l.deleteIfEmpty(d, 2); err != nil {
				t.Fatal(err)
			}
		}
		l.stop()
	})
}

// An append that is on its way when a stream is to be deleted for being empty is
// acknowledged and the stream lives; the refusal comes when that is certain. One that
// comes behind the delete is refused for certain (I2).
func TestDeleteOfAnEmptyStreamBesideAppends(t *testing.T) {
	for what, prepare := range map[string]func(st *openStream, l *leader, d *indexpb.StreamDescriptor) <-chan answer{
		"under way": func(_ *openStream, l *leader, d *indexpb.StreamDescriptor) <-chan answer {
			return l.pending(batch(d, "a"))
		},
		"in line before it": func(st *openStream, l *leader, d *indexpb.StreamDescriptor) <-chan answer {
			st.mu.Lock()
			st.pumping = true // nobody is: it stays in line
			st.mu.Unlock()
			return l.begin(l.w.t.Context(), batch(d, "a"))
		},
		"in line behind it": func(st *openStream, _ *leader, _ *indexpb.StreamDescriptor) <-chan answer {
			st.mu.Lock()
			st.pumping = true
			st.mu.Unlock()
			return nil
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				l := w.lead(Config{})
				d := w.stream(nil)
				l.state(d)
				st := l.open(d)
				w.writer.script(always(hold))
				a := prepare(st, l, d)
				synctest.Wait()
				deleted := make(chan error, 1)
				go func() { deleted <- l.deleteIfEmpty(d, 0) }()
				synctest.Wait()
				if a == nil {
					a = l.begin(t.Context(), batch(d, "a"))
					synctest.Wait()
				}
				if st.pumping && what != "under way" {
					st.mu.Lock()
					st.pumping = false
					st.kickLocked()
					st.mu.Unlock()
				}
				synctest.Wait()
				silent(t, "the append", a)
				if what != "in line behind it" { // there is nothing to wait for when nothing is numbered
					silent(t, "the refusal", deleted)
				}
				w.writer.release()
				wantAck(t, receive(t, a), 0, 1)
				if err := receive(t, deleted); !reason.Is(err, reason.SeqMismatch) {
					t.Errorf("deleted: %v", err)
				}
				l.append(batch(d, "b"), 1, 2)
				w.wantStored(d, "a", "b")
				l.stop()
			})
		})
	}
	t.Run("behind it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			l := w.lead(Config{})
			d := w.stream(nil)
			l.state(d)
			w.writer.script(always(hold))
			deleted := make(chan error, 1)
			go func() { deleted <- l.deleteIfEmpty(d, 0) }()
			synctest.Wait()
			if w.writer.held() != 1 {
				t.Fatal("the delete is not under way")
			}
			a := l.begin(t.Context(), batch(d, "a"))
			synctest.Wait()
			silent(t, "the append", a)
			w.writer.release()
			if err := receive(t, deleted); err != nil {
				t.Fatal(err)
			}
			wantRefusal(t, receive(t, a).err, reason.StreamNotFound)
			w.wantStored(d)
			l.stop()
		})
	})
}
