package sequencer

import (
	"bytes"
	"testing"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/libs/telemetry"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// newNumbering numbers for a stream of a shard that does not serve: its entries
// stay in the shard's line.
func newNumbering(t *testing.T) (*numbering, *shard) {
	t.Helper()
	sh := newShard(&Service{}, 0)
	st := &openStream{id: stream.NewID(), shard: sh}
	sh.streams[st.id] = st
	return &numbering{st: st, mode: novapb.TimestampingMode_TIMESTAMPING_MODE_ARRIVAL, arrival: 1}, sh
}

func batchRequest(records int, r stream.Record) *request {
	out := newRequest(bundle.KindChunk)
	out.records = make([]stream.Record, records)
	for i := range out.records {
		out.records[i] = r
		out.records[i].Timestamp = noTimestamp
		out.size += int64(r.Size())
	}
	return out
}

// A chunk is bounded by what its records take, not by the bytes of their
// headers and bodies: a reader must hold them all (I8).
func TestChunksOfRecordsWithoutBytes(t *testing.T) {
	headers := make([]stream.Header, stream.MaxHeaders)
	for i := range headers {
		headers[i].Name = []byte("k")
	}
	for name, r := range map[string]stream.Record{
		"empty": {}, "empty headers": {Headers: headers}, "small": {Body: []byte("x")},
	} {
		t.Run(name, func(t *testing.T) {
			const batches = 100
			n, sh := newNumbering(t)
			for range batches {
				n.number(batchRequest(stream.MaxBatchRecords, r))
			}
			n.flush()
			next, single := stream.Seq(0), chunk.RawBound([]stream.Record{r})
			for i, e := range sh.pending {
				h := e.header
				if h.BaseSeq != next {
					t.Fatalf("chunk %d begins at %d, want %d", i, h.BaseSeq, next)
				}
				next = h.Next()
				if len(h.Batches) > 1 && int(h.Count)*single > chunkTarget {
					t.Errorf("chunk %d has %d records of up to %d bytes", i, h.Count, single)
				}
			}
			if next != batches*stream.MaxBatchRecords {
				t.Errorf("%d records were numbered, want %d", next, batches*stream.MaxBatchRecords)
			}
		})
	}
}

// An entry names the spans of the requests that it carries, boundedly; not of
// those that only wait for it.
func TestEntriesNameTheirSpans(t *testing.T) {
	n, sh := newNumbering(t)
	span := func(i int) []byte { return []byte{byte(i)} }
	add := func(r *request, s []byte) *request {
		r.span = s
		n.number(r)
		return r
	}
	record := stream.Record{Body: []byte("x")}
	add(batchRequest(1, record), span(1))
	add(batchRequest(1, record), nil)
	wrong := uint64(99)
	refused := batchRequest(1, record)
	refused.match = &wrong
	add(refused, span(2))
	add(batchRequest(1, record), span(3))
	add(newRequest(bundle.KindToken), span(4))
	add(newRequest(bundle.KindToken), nil)
	for i := range telemetry.MaxSpans + 10 {
		add(batchRequest(1, record), span(i))
	}
	n.flush()
	if len(sh.pending) != 4 {
		t.Fatalf("%d entries, want 4", len(sh.pending))
	}
	for i, want := range []string{"\x01\x03", "\x04", ""} {
		if got := string(bytes.Join(sh.pending[i].spans, nil)); got != want {
			t.Errorf("entry %d names %q, want %q", i, got, want)
		}
	}
	if got := len(sh.pending[3].spans); got != telemetry.MaxSpans {
		t.Errorf("an entry of %d traced appends names %d", telemetry.MaxSpans+10, got)
	}
}

// holdPump keeps what is queued in line until the test calls pump. An append is
// acknowledged before the pump that numbered it has ended.
func holdPump(t *testing.T, st *openStream) {
	t.Helper()
	eventually(t, "nobody pumps", func() bool {
		st.mu.Lock()
		defer st.mu.Unlock()
		if st.pumping {
			return false
		}
		st.pumping = true
		return true
	})
}

// Batches that a producer has in line share a chunk; one that repeats, or leaves
// one out, is judged as if each had a chunk of its own (I5).
func TestBatchesOfAProducerShareAChunk(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{})
	d := w.stream(nil)
	l.append(batch(d, "first"), 0, 1)
	st := l.open(d)
	holdPump(t, st)
	other := batch(d, "other")
	other.ProducerId = "other"
	var answers []<-chan answer
	for i, req := range []*novapb.AppendRequest{
		produced(d, 0, "0"), produced(d, 1, "1"), batch(d, "nobody's"), produced(d, 2, "2"),
		produced(d, 1, "1"), produced(d, 4, "gap"), produced(d, 3, "3"), produced(d, 4, "4"), produced(d, 4, "4"), other, produced(d, 6, "gap"), produced(d, 5, "5"),
	} {
		answers = append(answers, l.begin(t.Context(), req))
		eventually(t, "it is in line", func() bool {
			st.mu.Lock()
			defer st.mu.Unlock()
			return len(st.queue) == i+1
		})
	}
	st.pump()
	for i, want := range []uint64{1, 2, 3, 4, 2, 0, 5, 6, 6, 7, 0, 8} {
		a := receive(t, answers[i])
		if want == 0 {
			wantRefusal(t, a.err, reason.ProducerGap)
			continue
		}
		wantAck(t, a, want, want+1)
		if a.ack.GetDuplicate() != (i == 4 || i == 8) {
			t.Errorf("answer %d: %v", i, a.ack)
		}
	}
	w.wantStored(d, "first", "0", "1", "nobody's", "2", "3", "4", "other", "5")
	if n := len(w.entriesOf(d)); n != 4 {
		t.Errorf("%d chunks, want the first, two up to repeats, and one from there on", n)
	}
}
