package settled

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/stream"
)

// same compares records, with nil and empty alike.
func same(a, b []stream.Record) error {
	if len(a) != len(b) {
		return fmt.Errorf("%d records and %d", len(a), len(b))
	}
	for i := range a {
		x, y := &a[i], &b[i]
		equal := x.Seq == y.Seq && x.Timestamp == y.Timestamp && bytes.Equal(x.Body, y.Body) && len(x.Headers) == len(y.Headers)
		for k := 0; equal && k < len(x.Headers); k++ {
			equal = bytes.Equal(x.Headers[k].Name, y.Headers[k].Name) && bytes.Equal(x.Headers[k].Value, y.Headers[k].Value)
		}
		if !equal {
			return fmt.Errorf("record %d is %+v and %+v", i, x, y)
		}
	}
	return nil
}

// drawnChunks draws the next chunks of a log, with all that a chunk can have.
func drawnChunks(t *rapid.T, l *log) (chunks [][]byte, records []stream.Record) {
	noise := rand.NewChaCha8([32]byte{1})
	for range rapid.IntRange(1, 12).Draw(t, "chunks") {
		var batches []chunk.InputBatch
		next := l.next
		for range rapid.IntRange(1, 3).Draw(t, "batches") {
			var batch chunk.InputBatch
			if rapid.Bool().Draw(t, "has producer") {
				batch.Producer = stream.Producer{ID: "p", Epoch: 1, Batch: uint64(next)}
			}
			n := rapid.SampledFrom([]int{1, 2, 5, 300, 1000}).Draw(t, "records")
			size := rapid.SampledFrom([]int{0, 1, 50, 900, 3000, 70_000, stream.MaxRecordBytes - 10}).Draw(t, "size")
			random := rapid.Bool().Draw(t, "random")
			later := stream.Millis(rapid.Int64Range(0, 3).Draw(t, "later"))
			for range min(n, max(1, stream.MaxBatchBytes/(size+1))) {
				l.at += later
				body := bytes.Repeat([]byte("ab"), size/2)
				if random {
					_, _ = noise.Read(body)
				}
				r := stream.Record{Seq: next, Timestamp: l.at, Body: body}
				if n < 10 && rapid.Bool().Draw(t, "has headers") {
					r.Headers = []stream.Header{{Name: []byte("n"), Value: []byte("v")}, {Name: nil, Value: []byte{0}}}
				}
				batch.Records = append(batch.Records, r)
				next++
			}
			if chunk.RawBound(records)+chunk.RawBound(batch.Records) > 6<<20 {
				break
			}
			all := batch.Records
			for _, b := range batches {
				all = append(all[:len(all):len(all)], b.Records...)
			}
			if chunk.RawBound(all) > chunk.MaxRawBytes {
				break
			}
			batches = append(batches, batch)
		}
		if len(batches) == 0 {
			continue
		}
		c, _, err := chunk.Encode(nil, chunk.Input{StreamID: l.id, BaseSeq: l.next, HashBefore: l.hash, Batches: batches})
		if err != nil {
			t.Fatal(err)
		}
		h, got, err := chunk.Decode(c)
		if err != nil {
			t.Fatal(err)
		}
		l.next, l.hash = h.Next(), h.HashAfter
		chunks, records = append(chunks, c), append(records, got...)
	}
	return chunks, records
}

// I2, I10: whatever chunks a stream has, what is settled of them holds the same
// records, byte for byte, with the same hashes; and in frames that are not too
// large for a small read.
func TestSettledRecordsAreTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := NewBuilder()
		type settled struct {
			from, to log
			records  []stream.Record
		}
		var want []settled
		for n := range rapid.IntRange(1, 3).Draw(t, "runs") {
			l := &log{
				id: idOf(n), next: stream.Seq(rapid.Uint64Range(0, 1<<60).Draw(t, "first")), hash: stream.Hash(rapid.Uint64().Draw(t, "hash")),
				at: stream.Millis(rapid.Int64Range(-1<<60, 1<<60).Draw(t, "at")),
			}
			s := settled{from: *l}
			chunks, records := drawnChunks(t, l)
			s.to, s.records = *l, records
			large := map[string]bool{}
			b.Begin(l.id)
			m := NewMerger(l.id, func(frame []byte, h *chunk.Header) error {
				if !large[string(frame)] {
					if h.RawLength > FrameBytes && h.Count > 1 {
						t.Fatalf("frame of %d records in %d bytes", h.Count, h.RawLength)
					}
					for _, batch := range h.Batches {
						if batch.Seal || batch.Producer.ID != "" {
							t.Fatalf("frame with %+v", batch)
						}
					}
				}
				return b.Add(frame, h)
			})
			for _, c := range chunks {
				if h, err := chunk.Check(c); err != nil {
					t.Fatal(err)
				} else if h.PayloadLength >= verbatim {
					large[string(c)] = true
				}
				if err := m.Add(c); err != nil {
					t.Fatal(err)
				}
				if rapid.IntRange(0, 5).Draw(t, "flush") == 0 {
					if err := m.Flush(); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := m.Flush(); err != nil {
				t.Fatal(err)
			}
			if len(chunks) > 0 {
				want = append(want, s)
			}
		}
		object, runs := b.Finish()
		if len(runs) != len(want) {
			t.Fatalf("%d runs, want %d", len(runs), len(want))
		}
		if len(runs) == 0 {
			return
		}
		if _, err := Parse(object); err != nil {
			t.Fatal(err)
		}
		for i, w := range want {
			r := &runs[i]
			if r.StreamID != w.from.id || r.First != w.from.next || r.Next != w.to.next || r.HashBefore != w.from.hash || r.HashAfter != w.to.hash ||
				r.LastTimestamp != w.records[len(w.records)-1].Timestamp || r.FirstTimestamp != w.records[0].Timestamp {
				t.Fatalf("run %+v, want %+v", *r, w)
			}
			got, err := recordsOf(object, r)
			if err != nil {
				t.Fatal(err)
			}
			if err := same(got, w.records); err != nil {
				t.Fatal(err)
			}
			if chunk.HashRecords(r.HashBefore, got) != r.HashAfter {
				t.Fatal("hash")
			}
		}
	})
}

type emitted struct {
	frame []byte
	h     chunk.Header
}

func collect(to *[]emitted) func([]byte, *chunk.Header) error {
	return func(frame []byte, h *chunk.Header) error {
		*to = append(*to, emitted{bytes.Clone(frame), *h})
		return nil
	}
}

func noise(n int) string {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{2}).Read(b)
	return string(b)
}

// Small chunks become one frame, a large one stays as it is, and what comes after
// it starts anew.
func TestLargeChunksAreCopied(t *testing.T) {
	l := newLog(1, 7)
	var got []emitted
	m := NewMerger(l.id, collect(&got))
	var all [][]byte
	for _, body := range []string{"a", "b", noise(verbatim + 10), "c"} {
		c, _ := l.chunk(t, body)
		all = append(all, c)
		if err := m.Add(c); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Flush(); err != nil {
		t.Fatal(err)
	}
	if len(got) != 3 || got[0].h.Count != 2 || !bytes.Equal(got[1].frame, all[2]) || got[2].h.Count != 1 || len(got[0].h.Batches) != 1 {
		t.Errorf("%+v", got)
	}
	if err := m.Flush(); err != nil || len(got) != 3 {
		t.Errorf("nothing was gathered: %d frames, %v", len(got), err)
	}
}

// A small chunk of records that compress well becomes several frames, so that a
// small read does not have to decompress all of it.
func TestFramesAreBounded(t *testing.T) {
	l := newLog(1, 0)
	var bodies []string
	for range 1000 {
		bodies = append(bodies, string(make([]byte, 3000)))
	}
	c, h := l.chunk(t, bodies...)
	if h.PayloadLength >= verbatim {
		t.Fatal("the chunk must be small")
	}
	var got []emitted
	m := NewMerger(l.id, collect(&got))
	if err := errors.Join(m.Add(c), m.Flush()); err != nil {
		t.Fatal(err)
	}
	if len(got) != 6 {
		t.Errorf("%d frames", len(got))
	}
	for _, f := range got {
		if f.h.RawLength > FrameBytes {
			t.Errorf("a frame of %d bytes", f.h.RawLength)
		}
	}
	if last := got[len(got)-1].h; last.HashAfter != h.HashAfter || last.Next() != h.Next() {
		t.Errorf("%+v, want the end of %+v", last, h)
	}
}

// I10: a chunk that is damaged, is another stream's or does not continue the one
// before it ends the merge before anything is made of it, and nothing comes after.
func TestMergerRefuses(t *testing.T) {
	for _, large := range []bool{false, true} {
		body := "b"
		if large {
			body = noise(verbatim + 1)
		}
		// of makes the second chunk over a log that was changed.
		of := func(change func(l *log)) []byte {
			l := newLog(1, 7)
			l.chunk(t, "a")
			change(l)
			c, _ := l.chunk(t, body)
			return c
		}
		good := of(func(*log) {})
		flipped := bytes.Clone(good)
		flipped[len(flipped)-1] ^= 1
		for name, c := range map[string][]byte{
			"damaged":       flipped,
			"cut":           good[:len(good)-1],
			"other stream":  of(func(l *log) { l.id = idOf(2) }),
			"a gap":         of(func(l *log) { l.next++ }),
			"twice":         of(func(l *log) { l.next-- }),
			"other content": of(func(l *log) { l.hash++ }),
			"back in time":  of(func(l *log) { l.at -= 100 }),
			"of a liar":     lying(t, body),
		} {
			l := newLog(1, 7)
			first, _ := l.chunk(t, "a")
			var got []emitted
			m := NewMerger(l.id, collect(&got))
			if err := m.Add(first); err != nil {
				t.Fatal(err)
			}
			if err := m.Add(c); !errors.Is(err, chunk.ErrCorrupt) {
				t.Errorf("large %v, %s: %v", large, name, err)
			}
			for _, err := range []error{m.Add(good), m.Flush()} {
				if !errors.Is(err, chunk.ErrCorrupt) {
					t.Errorf("large %v, %s: goes on with %v", large, name, err)
				}
			}
			if len(got) != 0 {
				t.Errorf("large %v, %s: %+v", large, name, got)
			}
		}
	}
}

// lying makes a second chunk whose checksums are good, and whose content hash is
// not that of its records.
func lying(t *testing.T, body string) []byte {
	t.Helper()
	l := newLog(1, 7)
	l.chunk(t, "a")
	c, h := l.chunk(t, body)
	return rehash(t, c, h.HashAfter+1)
}

func TestErrorsOfEmitEndTheMerge(t *testing.T) {
	full := errors.New("full")
	for _, body := range []string{"a", noise(verbatim + 1)} {
		l := newLog(1, 0)
		calls := 0
		m := NewMerger(l.id, func([]byte, *chunk.Header) error { calls++; return full })
		c, _ := l.chunk(t, body)
		if err := errors.Join(m.Add(c), m.Flush()); !errors.Is(err, full) {
			t.Errorf("%v", err)
		}
		if err := m.Flush(); !errors.Is(err, full) || calls != 1 {
			t.Errorf("%d calls, %v", calls, err)
		}
	}
}
