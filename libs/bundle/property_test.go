package bundle

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/stream"
)

// random returns n bytes that do not compress.
func random(n int) string {
	rng := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return string(b)
}

func drawEntry(t *rapid.T) Entry {
	e := Entry{
		Kind:      Kind(rapid.IntRange(1, 6).Draw(t, "kind")),
		Shard:     stream.Shard(rapid.Uint32().Draw(t, "shard")),
		Epoch:     stream.Epoch(rapid.Uint64().Draw(t, "epoch")),
		EntryNo:   stream.EntryNo(rapid.Uint64().Draw(t, "entry")),
		Timestamp: stream.Millis(rapid.Int64().Draw(t, "ts")),
	}
	if e.Kind == KindFence {
		return e
	}
	e.StreamID = stream.ID{rapid.ByteRange(1, 5).Draw(t, "stream")}
	switch e.Kind {
	case KindTrim:
		e.Body = binary.LittleEndian.AppendUint64(nil, rapid.Uint64().Draw(t, "trim"))
	case KindToken:
		e.Body = rapid.SliceOfN(rapid.Byte(), 0, stream.MaxTokenBytes).Draw(t, "token")
	case KindChunk:
		body := rapid.SliceOfN(rapid.Byte(), 0, 600).Draw(t, "body")
		c, _, err := chunk.Encode(nil, chunk.Input{StreamID: e.StreamID, Batches: []chunk.InputBatch{{Records: []stream.Record{{Body: body}}}}})
		if err != nil {
			t.Fatal(err)
		}
		e.Body = c
	}
	return e
}

func TestAnyEntriesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var es []Entry
		b := NewBuilder(testChain, testFlight, stream.ProfileExpress)
		for range rapid.IntRange(0, 30).Draw(t, "entries") {
			e := drawEntry(t)
			if _, _, err := b.Add(e); err != nil {
				t.Fatal(err)
			}
			es = append(es, e)
		}
		slot := stream.Slot(rapid.Uint64().Draw(t, "slot"))
		f, got, err := Parse(b.Finish(slot))
		if err != nil {
			t.Fatal(err)
		}
		if f.Slot != slot || len(got) != len(es) {
			t.Fatalf("slot %d, %d entries of %d", f.Slot, len(got), len(es))
		}
		for i := range es {
			if !equal(es[i], got[i]) || !f.Entries[i].describes(&es[i]) {
				t.Fatalf("entry %d: %+v, want %+v", i, got[i], es[i])
			}
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add(build(f, 1, entries(f)))
	f.Add(build(f, 1, nil))
	f.Add(EncodeSeal(testSeal()))
	f.Fuzz(func(t *testing.T, b []byte) {
		typed := func(err error) {
			if err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
				t.Fatalf("untyped error: %v", err)
			}
		}
		_, _, err := Parse(b)
		typed(err)
		_, err = ParseSeal(b)
		typed(err)
		_, err = ParseEntry(b)
		typed(err)
		_, err = Identify(b)
		typed(err)
		for _, n := range []int{IdentBytes, trailer, len(b) / 2} {
			if n <= len(b) {
				_, _, err = ParseTail(b[:n], b[len(b)-n:], int64(len(b)))
				typed(err)
			}
		}
	})
}

// FuzzFooterEntry looks behind the footer's checksum.
func FuzzFooterEntry(f *testing.F) {
	b := build(f, 1, entries(f))
	footer, _, err := Parse(b)
	if err != nil {
		f.Fatal(err)
	}
	last := footer.Entries[len(footer.Entries)-1]
	for raw := b[last.Offset+last.Length : len(b)-trailer]; len(raw) > 0; {
		_, n, err := parseFooterEntry(raw)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw[:n])
		raw = raw[n:]
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, n, err := parseFooterEntry(b); err == nil && n > len(b) {
			t.Fatalf("%d bytes of %d", n, len(b))
		}
	})
}

func BenchmarkBuild(b *testing.B) {
	c := chunkOf(b, testStream, 0, random(4000))
	b.SetBytes(int64(1000 * len(c)))
	b.ReportAllocs()
	for b.Loop() {
		bb := NewBuilder(testChain, testFlight, stream.ProfileStandard)
		for i := range 1000 {
			if _, _, err := bb.Add(Entry{Kind: KindChunk, EntryNo: stream.EntryNo(i), StreamID: testStream, Body: c}); err != nil {
				b.Fatal(err)
			}
		}
		bb.Finish(1)
	}
}

func BenchmarkParseTail(b *testing.B) {
	bb := NewBuilder(testChain, testFlight, stream.ProfileStandard)
	c := chunkOf(b, testStream, 0, "hello")
	for i := range 1000 {
		if _, _, err := bb.Add(Entry{Kind: KindChunk, EntryNo: stream.EntryNo(i), StreamID: testStream, Body: c}); err != nil {
			b.Fatal(err)
		}
	}
	body := bb.Finish(1)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := ParseTail(body[:IdentBytes], body, int64(len(body))); err != nil {
			b.Fatal(err)
		}
	}
}
