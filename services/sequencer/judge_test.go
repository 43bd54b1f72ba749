package sequencer

import (
	"slices"
	"testing"
	"time"

	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
)

// receive waits for an answer.
func receive[T any](t testing.TB, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience(t)):
		t.Fatal("no answer")
		panic("unreachable")
	}
}

// silent reports that nothing was answered yet.
func silent[T any](t testing.TB, what string, c <-chan T) {
	t.Helper()
	select {
	case v := <-c:
		t.Fatalf("%s was answered too early: %v", what, v)
	default:
	}
}

// inflight returns how many entries of a stream are numbered and not committed,
// and how many wait for them beside their own requests.
func (l *leader) inflight(d *indexpb.StreamDescriptor) (entries, waiters int) {
	st := l.open(d)
	if st == nil {
		return 0, 0
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, e := range st.inflight {
		waiters += len(e.waits)
	}
	return len(st.inflight), waiters
}

// open returns the stream if it is in memory.
func (l *leader) open(d *indexpb.StreamDescriptor) *openStream {
	sh := l.shard()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.streams[streamID(d)]
}

func streamID(d *indexpb.StreamDescriptor) stream.ID {
	id, err := stream.ParseID(d.GetStreamId())
	if err != nil {
		panic(err)
	}
	return id
}

func key(d *indexpb.StreamDescriptor) *sequencerpb.StreamKey {
	return &sequencerpb.StreamKey{StreamId: d.GetStreamId(), Shard: d.GetShard()}
}

// stored decodes what the chains hold of a stream and wants it to be numbered
// from 0 without a gap, with timestamps that do not decrease and a content hash
// over all of it (I1, I9). It returns the bodies.
func (w *world) stored(d *indexpb.StreamDescriptor) []string {
	w.t.Helper()
	id := streamID(d)
	var bodies []string
	var hash stream.Hash
	var last stream.Millis
	for _, e := range w.writer.landed() {
		if e.GetKind() != chainwriterpb.EntryKind_ENTRY_KIND_CHUNK || !slices.Equal(e.GetStreamId(), id[:]) {
			continue
		}
		h, recs, err := chunk.Decode(e.GetBody())
		if err != nil {
			w.t.Fatal(err)
		}
		if h.BaseSeq != stream.Seq(len(bodies)) || h.HashBefore != hash {
			w.t.Fatalf("a chunk begins at %d with hash %x, want %d and %x", h.BaseSeq, h.HashBefore, len(bodies), hash)
		}
		for _, r := range recs {
			if r.Timestamp < last {
				w.t.Fatalf("timestamp %d follows %d", r.Timestamp, last)
			}
			last = r.Timestamp
			bodies = append(bodies, string(r.Body))
		}
		hash = h.HashAfter
	}
	return bodies
}

func (w *world) wantStored(d *indexpb.StreamDescriptor, want ...string) {
	w.t.Helper()
	if got := w.stored(d); !slices.Equal(got, want) {
		w.t.Fatalf("stored %q, want %q", got, want)
	}
}

// eventually polls until ok.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for until := time.Now().Add(patience(t)); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("%s: not in time", what)
		}
	}
}

// patience is how long something that must happen may take: long enough for a
// slow machine.
func patience(testing.TB) time.Duration { return 30 * time.Second }
