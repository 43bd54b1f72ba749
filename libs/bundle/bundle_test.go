package bundle

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/stream"
)

var update = flag.Bool("update", false, "write the golden files")

var (
	testChain  = stream.ChainID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	testFlight = stream.FlightID{0xf1, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8, 0xf9, 0xfa, 0xfb, 0xfc, 0xfd, 0xfe, 0xff, 0xf0}
	testStream = stream.ID{0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xab, 0xac, 0xad, 0xae, 0xaf, 0xa0}
	otherID    = stream.ID{0xb1}
)

func chunkOf(t testing.TB, id stream.ID, base stream.Seq, body string) []byte {
	t.Helper()
	b, _, err := chunk.Encode(nil, chunk.Input{StreamID: id, BaseSeq: base, Batches: []chunk.InputBatch{{
		Records:  []stream.Record{{Seq: base, Timestamp: 1700000000000, Body: []byte(body)}},
		Producer: stream.Producer{ID: "p", Epoch: 1, Batch: 2},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// entries is one entry of each kind.
func entries(t testing.TB) []Entry {
	return []Entry{
		{Kind: KindFence, Shard: 7, Epoch: 3, Timestamp: 1700000000001},
		{Kind: KindChunk, Shard: 7, Epoch: 3, EntryNo: 0, StreamID: testStream, Body: chunkOf(t, testStream, 5, "hello")},
		{Kind: KindTrim, Shard: 7, Epoch: 3, EntryNo: 1, StreamID: testStream, Timestamp: 1700000000002, Body: []byte{9, 0, 0, 0, 0, 0, 0, 0}},
		{Kind: KindToken, Shard: 7, Epoch: 3, EntryNo: 2, StreamID: testStream, Timestamp: 1700000000003, Body: []byte("token")},
		{Kind: KindToken, Shard: 7, Epoch: 3, EntryNo: 3, StreamID: testStream, Timestamp: 1700000000004, Body: []byte{}},
		{Kind: KindSeal, Shard: 7, Epoch: 3, EntryNo: 4, StreamID: testStream, Timestamp: 1700000000005, Body: []byte{}},
		{Kind: KindDelete, Shard: 8, Epoch: 1, EntryNo: 12, StreamID: otherID, Timestamp: 1700000000006, Body: []byte{}},
	}
}

func build(t testing.TB, slot stream.Slot, es []Entry) []byte {
	t.Helper()
	b := NewBuilder(testChain, testFlight, stream.ProfileStandard)
	for _, e := range es {
		offset, length, err := b.Add(e)
		if err != nil {
			t.Fatal(err)
		}
		if length != uint32(EntryOverhead+len(e.Body)) || offset == 0 {
			t.Fatalf("entry at %d of %d bytes", offset, length)
		}
	}
	if b.Count() != len(es) {
		t.Fatalf("%d entries of %d", b.Count(), len(es))
	}
	size := b.Size()
	out := b.Finish(slot)
	if len(out) != size {
		t.Fatalf("%d bytes, Size said %d", len(out), size)
	}
	return out
}

func testSeal() Seal {
	return Seal{Chain: testChain, Slot: 77, Sealer: stream.LifeID{0x51, 0x52}, Attempt: stream.AttemptID{0x61, 0x62}}
}

func golden(t *testing.T, name string, b []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b, want) {
		t.Errorf("%s: encoded\n% x\nwant\n% x", name, b, want)
	}
}

func TestGoldenBytes(t *testing.T) {
	golden(t, "bundle-v1.golden", build(t, 0x0102, entries(t)))
	golden(t, "seal-v1.golden", EncodeSeal(testSeal()))
}

// equal compares entries, with nil and empty bodies alike.
func equal(a, b Entry) bool {
	body := bytes.Equal(a.Body, b.Body)
	a.Body, b.Body = nil, nil
	return body && reflect.DeepEqual(a, b)
}

func TestRoundTrip(t *testing.T) {
	es := entries(t)
	b := build(t, 42, es)
	f, got, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	want := Ident{Chain: testChain, Slot: 42, Flight: testFlight, Profile: stream.ProfileStandard}
	if f.Ident != want || f.Size != int64(len(b)) || len(f.Entries) != len(es) {
		t.Errorf("footer %+v", f)
	}
	for i, e := range es {
		if !equal(got[i], e) {
			t.Errorf("entry %d: %+v, want %+v", i, got[i], e)
		}
		fe := f.Entries[i]
		alone, err := ParseEntry(b[fe.Offset : fe.Offset+fe.Length])
		if err != nil || !equal(alone, e) {
			t.Errorf("entry %d by its coordinates: %+v, %v", i, alone, err)
		}
		if fe.Kind != e.Kind || fe.Shard != e.Shard || fe.Epoch != e.Epoch || fe.EntryNo != e.EntryNo || fe.StreamID != e.StreamID || fe.Timestamp != e.Timestamp {
			t.Errorf("footer entry %d: %+v", i, fe)
		}
		if e.Kind != KindChunk {
			if fe.Chunk != nil || !bytes.Equal(fe.Header, e.Body) {
				t.Errorf("footer entry %d: %+v", i, fe)
			}
			continue
		}
		h, n, err := chunk.ParseHeader(e.Body)
		if err != nil || !reflect.DeepEqual(*fe.Chunk, h) || !bytes.Equal(fe.Header, e.Body[:n]) {
			t.Errorf("footer entry %d: %+v, %v", i, fe, err)
		}
	}
	if id, err := Identify(b[:IdentBytes]); err != nil || id != want {
		t.Errorf("%+v, %v", id, err)
	}
}

func TestEmptyBundle(t *testing.T) {
	if f, es, err := Parse(build(t, 0, nil)); err != nil || len(es) != 0 || len(f.Entries) != 0 {
		t.Errorf("%+v, %v, %v", f, es, err)
	}
}

func TestSeal(t *testing.T) {
	b := EncodeSeal(testSeal())
	if s, err := ParseSeal(b); err != nil || s != testSeal() {
		t.Errorf("%+v, %v", s, err)
	}
	if id, err := Identify(b[:IdentBytes]); err != nil || id != (Ident{IsSeal: true, Chain: testChain, Slot: 77}) {
		t.Errorf("%+v, %v", id, err)
	}
	if _, _, err := Parse(b); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a SEAL parsed as a bundle: %v", err)
	}
	if _, err := ParseSeal(build(t, 0, nil)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a bundle parsed as a SEAL: %v", err)
	}
}

func TestParseTail(t *testing.T) {
	b := build(t, 42, entries(t))
	size := int64(len(b))
	whole, _, err := ParseTail(b[:IdentBytes], b, size)
	if err != nil {
		t.Fatal(err)
	}
	_, need, err := ParseTail(b[:IdentBytes], b[size-trailer:], size)
	if err != nil || need <= trailer {
		t.Fatalf("need %d, %v", need, err)
	}
	for n := int64(trailer); n <= size; n++ {
		f, again, err := ParseTail(b[:IdentBytes], b[size-n:], size)
		switch {
		case err != nil:
			t.Fatalf("%d bytes: %v", n, err)
		case n < need && again != need:
			t.Fatalf("%d bytes: need %d, want %d", n, again, need)
		case n >= need && (again != 0 || !reflect.DeepEqual(f, whole)):
			t.Fatalf("%d bytes: %+v", n, f)
		}
	}
	s := EncodeSeal(testSeal())
	if f, need, err := ParseTail(s[:IdentBytes], s, int64(len(s))); err != nil || need != 0 || !f.IsSeal {
		t.Errorf("SEAL: %+v, %d, %v", f, need, err)
	}
}

// A footer belongs to one flight in one slot: that of another does not pass,
// even if the entries are the same.
func TestFooterOfAnotherSlotIsRefused(t *testing.T) {
	a, b := build(t, 1, entries(t)), build(t, 2, entries(t))
	if _, _, err := ParseTail(a[:IdentBytes], b, int64(len(b))); !errors.Is(err, ErrCorrupt) {
		t.Errorf("%v", err)
	}
	s, other := EncodeSeal(testSeal()), testSeal()
	other.Slot++
	mixed := append(EncodeSeal(other)[:IdentBytes:IdentBytes], s[IdentBytes:]...)
	if _, err := ParseSeal(mixed); !errors.Is(err, ErrCorrupt) {
		t.Errorf("SEAL: %v", err)
	}
}

// I10: no flipped bit and no lost byte is ever taken for data.
func TestDamageIsDetected(t *testing.T) {
	b := build(t, 42, entries(t))
	f, _, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, d []byte) {
		t.Helper()
		if _, _, err := Parse(d); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("%s: %v", what, err)
		}
	}
	check("a byte more", append(bytes.Clone(b), 0))
	for i := range b {
		check(fmt.Sprintf("cut at %d", i), b[:i:i])
		for bit := range 8 {
			d := bytes.Clone(b)
			d[i] ^= 1 << bit
			what := fmt.Sprintf("byte %d bit %d", i, bit)
			check(what, d)
			// What is read in parts: each part alone tells, or is as it was.
			if id, err := Identify(d); !errors.Is(err, ErrCorrupt) && (err != nil || id != f.Ident) {
				t.Fatalf("%s: Identify: %+v, %v", what, id, err)
			}
			if g, _, err := ParseTail(d[:IdentBytes], d, int64(len(d))); !errors.Is(err, ErrCorrupt) && (err != nil || !reflect.DeepEqual(g, f)) {
				t.Fatalf("%s: ParseTail: %+v, %v", what, g, err)
			}
			for _, e := range f.Entries {
				inside := i >= int(e.Offset) && i < int(e.Offset+e.Length)
				if _, err := ParseEntry(d[e.Offset : e.Offset+e.Length]); inside != errors.Is(err, ErrCorrupt) {
					t.Fatalf("%s: entry at %d: %v", what, e.Offset, err)
				}
			}
		}
	}
	s := EncodeSeal(testSeal())
	for i := range s {
		if _, err := ParseSeal(s[:i]); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("SEAL cut at %d: %v", i, err)
		}
		for bit := range 8 {
			d := bytes.Clone(s)
			d[i] ^= 1 << bit
			if _, err := ParseSeal(d); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("SEAL byte %d bit %d: %v", i, bit, err)
			}
			if id, err := Identify(d); i < IdentBytes && !errors.Is(err, ErrCorrupt) {
				t.Fatalf("SEAL byte %d bit %d: %+v, %v", i, bit, id, err)
			}
		}
	}
}

func TestNewerVersionsAreNotCorrupt(t *testing.T) {
	for name, b := range map[string][]byte{"bundle": build(t, 1, nil), "SEAL": EncodeSeal(testSeal())} {
		b[4] = Version + 1
		crc := crc32.Checksum(b[:IdentBytes-crcBytes], castagnoli)
		b[IdentBytes-4], b[IdentBytes-3], b[IdentBytes-2], b[IdentBytes-1] = byte(crc), byte(crc>>8), byte(crc>>16), byte(crc>>24)
		if _, err := Identify(b); !errors.Is(err, ErrVersion) || errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAddRefuses(t *testing.T) {
	c := chunkOf(t, testStream, 0, "x")
	for name, e := range map[string]Entry{
		"no kind":                  {StreamID: testStream},
		"unknown kind":             {Kind: 7, StreamID: testStream},
		"fence of a stream":        {Kind: KindFence, StreamID: testStream},
		"fence with a body":        {Kind: KindFence, Body: []byte{1}},
		"seal of no stream":        {Kind: KindSeal},
		"trim without a number":    {Kind: KindTrim, StreamID: testStream, Body: []byte{1}},
		"long token":               {Kind: KindToken, StreamID: testStream, Body: []byte(strings.Repeat("x", stream.MaxTokenBytes+1))},
		"no chunk":                 {Kind: KindChunk, StreamID: testStream},
		"broken chunk":             {Kind: KindChunk, StreamID: testStream, Body: c[1:]},
		"chunk of another stream":  {Kind: KindChunk, StreamID: otherID, Body: c},
		"chunk that is cut off":    {Kind: KindChunk, StreamID: testStream, Body: c[:len(c)-1]},
		"chunk with a byte behind": {Kind: KindChunk, StreamID: testStream, Body: append(bytes.Clone(c), 0)},
	} {
		b := NewBuilder(testChain, testFlight, stream.ProfileStandard)
		before := b.Size()
		if _, _, err := b.Add(e); !errors.Is(err, ErrCorrupt) && !errors.Is(err, chunk.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
		if b.Size() != before || b.Count() != 0 {
			t.Errorf("%s: something was added", name)
		}
	}
}

func TestSizeLimit(t *testing.T) {
	big := chunkOf(t, testStream, 0, random(stream.MaxRecordBytes))
	b := NewBuilder(testChain, testFlight, stream.ProfileStandard)
	n := stream.EntryNo(0)
	for {
		if _, _, err := b.Add(Entry{Kind: KindChunk, StreamID: testStream, EntryNo: n, Body: big}); err != nil {
			break
		}
		n++
	}
	if n < MaxBytes/stream.MaxRecordBytes-2 || b.Count() != int(n) || b.Size() > MaxBytes {
		t.Errorf("%d entries, %d bytes", n, b.Size())
	}
	if _, es, err := Parse(b.Finish(0)); err != nil || len(es) != int(n) {
		t.Errorf("%d entries, %v", len(es), err)
	}
}
