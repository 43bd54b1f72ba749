package directory

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/stream"
)

var update = flag.Bool("update", false, "write the golden files")

var testChain = stream.ChainID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}

func idOf(n int) stream.ID {
	var id stream.ID
	binary.BigEndian.PutUint64(id[:], uint64(n)+1)
	return id
}

func chunkOf(t testing.TB, id stream.ID, base stream.Seq) []byte {
	t.Helper()
	b, _, err := chunk.Encode(nil, chunk.Input{StreamID: id, BaseSeq: base, Batches: []chunk.InputBatch{{
		Records: []stream.Record{{Seq: base, Timestamp: 1700000000000, Body: []byte("x")}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// footer is what a bundle of these entries says of itself.
func footer(t testing.TB, slot stream.Slot, es ...bundle.Entry) bundle.Footer {
	t.Helper()
	b := bundle.NewBuilder(testChain, stream.FlightID{1}, stream.ProfileStandard)
	for _, e := range es {
		if _, _, err := b.Add(e); err != nil {
			t.Fatal(err)
		}
	}
	f, _, err := bundle.Parse(b.Finish(slot))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func chunkEntry(t testing.TB, shard stream.Shard, epoch stream.Epoch, no stream.EntryNo, id stream.ID, base stream.Seq) bundle.Entry {
	t.Helper()
	return bundle.Entry{Kind: bundle.KindChunk, Shard: shard, Epoch: epoch, EntryNo: no, StreamID: id, Body: chunkOf(t, id, base)}
}

// window is a window of two slots: a shard that changes hands inside it, one
// that only starts, and one that is only fenced.
func window(t testing.TB) []bundle.Footer {
	t.Helper()
	return []bundle.Footer{
		footer(t, 64,
			chunkEntry(t, 1, 4, 17, idOf(2), 100),
			chunkEntry(t, 1, 4, 18, idOf(1), 0),
			bundle.Entry{Kind: bundle.KindFence, Shard: 1, Epoch: 5},
			bundle.Entry{Kind: bundle.KindFence, Shard: 9, Epoch: 2}),
		footer(t, 65,
			bundle.Entry{Kind: bundle.KindTrim, Shard: 1, Epoch: 5, EntryNo: 0, StreamID: idOf(2), Timestamp: 7, Body: []byte{1, 0, 0, 0, 0, 0, 0, 0}},
			chunkEntry(t, 2, 1, 0, idOf(3), 0),
			chunkEntry(t, 1, 5, 1, idOf(2), 101)),
	}
}

func build(t testing.TB) []byte {
	t.Helper()
	b := NewBuilder(testChain, 64)
	for _, f := range window(t) {
		for i := range f.Entries {
			b.Add(f.Slot, &f.Entries[i])
		}
	}
	if got := b.Shards(); !slices.Equal(got, []stream.Shard{1, 2, 9}) {
		t.Fatalf("shards %v", got)
	}
	return b.Finish(66)
}

// wanted is what the window says of a stream.
func wanted(t testing.TB, id stream.ID) []Located {
	t.Helper()
	var out []Located
	for _, f := range window(t) {
		for _, e := range f.Entries {
			if e.StreamID == id && e.Kind != bundle.KindFence {
				out = append(out, Located{
					Kind: e.Kind, Shard: e.Shard, Epoch: e.Epoch, EntryNo: e.EntryNo, StreamID: id, Timestamp: e.Timestamp,
					Header: e.Header, Chunk: e.Chunk,
					At: stream.Coordinates{Chain: testChain, Slot: f.Slot, Offset: e.Offset, Length: e.Length},
				})
			}
		}
	}
	return out
}

func checkWindow(t *testing.T, r *Reader) {
	t.Helper()
	if r.Chain != testChain || r.From != 64 || r.To != 66 || r.Len() != 3 {
		t.Fatalf("reader %+v", r)
	}
	if got := r.Streams(); !slices.Equal(got, []stream.ID{idOf(1), idOf(2), idOf(3)}) {
		t.Fatalf("streams %v", got)
	}
	for _, id := range r.Streams() {
		got, err := r.Stream(id)
		if err != nil || !reflect.DeepEqual(got, wanted(t, id)) {
			t.Errorf("stream %s: %+v, %v", id, got, err)
		}
	}
	for _, id := range []stream.ID{{}, idOf(0x100), {0xff}} {
		if got, err := r.Stream(id); err != nil || got != nil {
			t.Errorf("stream %s: %v, %v", id, got, err)
		}
	}
	w := window(t)
	want := []ShardEpoch{
		{Shard: 1, Epoch: 4, Slot: 64, Offset: w[0].Entries[0].Offset, First: 17, Next: 19},
		{Shard: 1, Epoch: 5, Slot: 64, Offset: w[0].Entries[2].Offset, First: 0, Next: 2},
		{Shard: 2, Epoch: 1, Slot: 65, Offset: w[1].Entries[1].Offset, First: 0, Next: 1},
		{Shard: 9, Epoch: 2, Slot: 64, Offset: w[0].Entries[3].Offset},
	}
	if got := r.Epochs(); !reflect.DeepEqual(got, want) {
		t.Errorf("epochs %+v, want %+v", got, want)
	}
}

func TestGoldenBytes(t *testing.T) {
	b := build(t)
	path := filepath.Join("testdata", "directory-v1.golden")
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
		t.Errorf("encoded\n% x\nwant\n% x", b, want)
	}
	r, err := Parse(want)
	if err != nil {
		t.Fatal(err)
	}
	checkWindow(t, r)
}

func TestEmptyDirectory(t *testing.T) {
	r, err := Parse(NewBuilder(testChain, 5).Finish(9))
	if err != nil || r.Len() != 0 || r.From != 5 || r.To != 9 || len(r.Epochs()) != 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

// reads counts what a reader asks for.
type reads struct {
	b     []byte
	calls [][2]int64
}

func (r *reads) read(offset, length int64) ([]byte, error) {
	r.calls = append(r.calls, [2]int64{offset, length})
	return r.b[offset : offset+length], nil
}

func large(t testing.TB, streams int) []byte {
	t.Helper()
	b := NewBuilder(testChain, 0)
	c := chunkOf(t, idOf(0), 0)
	_, n, err := chunk.ParseHeader(c)
	if err != nil {
		t.Fatal(err)
	}
	for i := range streams {
		e := bundle.FooterEntry{Kind: bundle.KindToken, Shard: 1, Epoch: 1, EntryNo: stream.EntryNo(i), StreamID: idOf(i), Header: make([]byte, n)}
		b.Add(stream.Slot(i/1000), &e)
	}
	return b.Finish(64)
}

// Two reads open a large directory, one a small one; each stream costs one
// more, of only its bytes, and a stream that is not there none.
func TestReads(t *testing.T) {
	for _, c := range []struct{ streams, open int }{{10, 1}, {5000, 2}} {
		src := &reads{b: large(t, c.streams)}
		r, err := Open(int64(len(src.b)), src.read)
		if err != nil {
			t.Fatal(err)
		}
		if len(src.calls) != c.open {
			t.Errorf("%d streams: opened with reads %v", c.streams, src.calls)
		}
		src.calls = nil
		got, err := r.Stream(idOf(c.streams / 2))
		if err != nil || len(got) != 1 || got[0].EntryNo != stream.EntryNo(c.streams/2) {
			t.Errorf("%+v, %v", got, err)
		}
		if _, err := r.Stream(stream.ID{0xff}); err != nil {
			t.Error(err)
		}
		if len(src.calls) != 1 || src.calls[0][1] > 300 {
			t.Errorf("%d streams: a stream cost reads %v", c.streams, src.calls)
		}
	}
}

func TestReadErrorsAndShortReads(t *testing.T) {
	src := &reads{b: build(t)}
	failing := errors.New("storage is away")
	if _, err := Open(int64(len(src.b)), func(int64, int64) ([]byte, error) { return nil, failing }); !errors.Is(err, failing) || errors.Is(err, ErrCorrupt) {
		t.Errorf("%v", err)
	}
	if _, err := Open(int64(len(src.b)), func(_, n int64) ([]byte, error) { return src.b[:n-1], nil }); !errors.Is(err, ErrCorrupt) {
		t.Errorf("%v", err)
	}
	down := false
	r, err := Open(int64(len(src.b)), func(o, n int64) ([]byte, error) {
		if down {
			return nil, failing
		}
		return src.read(o, n)
	})
	if err != nil {
		t.Fatal(err)
	}
	down = true
	if _, err := r.Stream(idOf(1)); !errors.Is(err, failing) {
		t.Errorf("%v", err)
	}
}

// I10: no flipped bit and no lost byte is ever taken for data, whether the
// directory is read at once or in parts.
func TestDamageIsDetected(t *testing.T) {
	b := build(t)
	for i := range b {
		if _, err := Parse(b[:i:i]); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("cut at %d: %v", i, err)
		}
		for bit := range 8 {
			d := bytes.Clone(b)
			d[i] ^= 1 << bit
			what := fmt.Sprintf("byte %d bit %d", i, bit)
			if _, err := Parse(d); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%s: %v", what, err)
			}
			r, err := Open(int64(len(d)), (&reads{b: d}).read)
			if err != nil {
				if !errors.Is(err, ErrCorrupt) {
					t.Fatalf("%s: %v", what, err)
				}
				continue
			}
			for n := 1; n <= 3; n++ {
				got, err := r.Stream(idOf(n))
				if !errors.Is(err, ErrCorrupt) && (err != nil || !reflect.DeepEqual(got, wanted(t, idOf(n)))) {
					t.Fatalf("%s: stream %d: %+v, %v", what, n, got, err)
				}
			}
		}
	}
	if _, err := Parse(append(bytes.Clone(b), 0)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a byte more: %v", err)
	}
}

func TestNewerVersionIsNotCorrupt(t *testing.T) {
	b := build(t)
	tr := b[len(b)-trailer:]
	tr[trailerCRC-4] = Version + 1
	binary.LittleEndian.PutUint32(tr[trailerCRC:], crc32.Checksum(tr[:trailerCRC], castagnoli))
	if _, err := Parse(b); !errors.Is(err, ErrVersion) || errors.Is(err, ErrCorrupt) {
		t.Errorf("%v", err)
	}
}

// Damage to the entries of one stream is none to others: a directory in memory is
// not refused as a whole.
func TestDamageIsOfOneStream(t *testing.T) {
	b := NewBuilder(testChain, 0)
	f := footer(t, 0, chunkEntry(t, 1, 1, 0, idOf(0), 0), chunkEntry(t, 1, 1, 1, idOf(1), 0))
	for i := range f.Entries {
		b.Add(0, &f.Entries[i])
	}
	body := b.Finish(1)
	body[preamble+1] ^= 1 // in the first stream's entries
	r, err := InMemory(body)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Stream(idOf(0)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("the damaged stream: %v", err)
	}
	if found, err := r.Stream(idOf(1)); err != nil || len(found) != 1 {
		t.Errorf("the other one: %v, %v", found, err)
	}
	if _, err := Parse(body); !errors.Is(err, ErrCorrupt) {
		t.Errorf("all of it: %v", err)
	}
}
