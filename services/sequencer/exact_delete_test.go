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
