package settled

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/stream"
)

var update = flag.Bool("update", false, "write the golden files")

func idOf(n int) stream.ID {
	var id stream.ID
	binary.BigEndian.PutUint64(id[:], uint64(n)+1)
	return id
}

// log makes the chunks of one stream, one after the other.
type log struct {
	id   stream.ID
	next stream.Seq
	hash stream.Hash
	at   stream.Millis
}

func newLog(n int, next stream.Seq) *log { return &log{id: idOf(n), next: next, at: 1700000000000} }

// chunk is the next chunk, a batch with a record for each body.
func (l *log) chunk(t testing.TB, bodies ...string) ([]byte, *chunk.Header) {
	t.Helper()
	var batch chunk.InputBatch
	for i, body := range bodies {
		l.at += 10
		batch.Records = append(batch.Records, stream.Record{Seq: l.next + stream.Seq(i), Timestamp: l.at, Body: []byte(body)})
	}
	return l.encode(t, batch)
}

func (l *log) encode(t testing.TB, batches ...chunk.InputBatch) ([]byte, *chunk.Header) {
	t.Helper()
	b, h, err := chunk.Encode(nil, chunk.Input{StreamID: l.id, BaseSeq: l.next, HashBefore: l.hash, Batches: batches})
	if err != nil {
		t.Fatal(err)
	}
	l.next, l.hash = h.Next(), h.HashAfter
	return b, &h
}

func add(t testing.TB, b *Builder, frame []byte, h *chunk.Header) {
	t.Helper()
	if err := b.Add(frame, h); err != nil {
		t.Fatal(err)
	}
}

// build makes an object of two runs of one stream and one of another.
func build(t testing.TB) ([]byte, []Run) {
	t.Helper()
	one, two, b := newLog(1, 100), newLog(2, 0), NewBuilder()
	for _, bodies := range [][]string{{"a", "b"}, {"c"}} {
		if len(bodies) == 2 {
			b.Begin(one.id)
		}
		frame, h := one.chunk(t, bodies...)
		add(t, b, frame, h)
	}
	b.Begin(idOf(9)) // of which nothing comes
	b.Begin(two.id)
	frame, h := two.chunk(t, "d")
	add(t, b, frame, h)
	b.Begin(one.id)
	frame, h = one.chunk(t, "e")
	add(t, b, frame, h)
	size := b.Size()
	object, runs := b.Finish()
	if size != len(object) {
		t.Fatalf("%d bytes, announced were %d", len(object), size)
	}
	return object, runs
}

func indexOf(b []byte, r *Run) []byte { return b[r.IndexOffset : r.IndexOffset+uint64(r.IndexLength)] }

func readerOf(b []byte) func(offset, length int64) ([]byte, error) {
	return func(offset, length int64) ([]byte, error) {
		if offset < 0 || length < 0 || offset > int64(len(b))-length {
			return nil, fmt.Errorf("range %d+%d of %d", offset, length, len(b))
		}
		return b[offset : offset+length], nil
	}
}

func footerOf(b []byte) ([]Run, error) { return Footer(int64(len(b)), readerOf(b)) }

// recordsOf reads a run as a reader does.
func recordsOf(b []byte, r *Run) ([]stream.Record, error) {
	frames, err := ParseIndex(indexOf(b, r), r.StreamID)
	if err != nil {
		return nil, err
	}
	var out []stream.Record
	for _, f := range frames {
		h, records, err := chunk.Decode(b[f.Offset : f.Offset+uint64(f.Length)])
		if err != nil {
			return nil, err
		}
		if h.StreamID != r.StreamID || h.BaseSeq != f.First || h.Next() != f.Next || h.LastTimestamp != f.LastTimestamp {
			return nil, fmt.Errorf("frame %+v is %+v", f, h)
		}
		out = append(out, records...)
	}
	return out, nil
}

func TestGoldenBytes(t *testing.T) {
	b, runs := build(t)
	path := filepath.Join("testdata", "settled-v1.golden")
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
	if got, err := Parse(want); err != nil || !slices.Equal(got, runs) {
		t.Fatalf("%+v, %v", got, err)
	}
	if got, err := footerOf(want); err != nil || !slices.Equal(got, runs) {
		t.Fatalf("%+v, %v", got, err)
	}
	for i, w := range []struct {
		id     stream.ID
		first  stream.Seq
		bodies string
		frames uint32
	}{{idOf(1), 100, "abc", 2}, {idOf(2), 0, "d", 1}, {idOf(1), 103, "e", 1}} {
		r := &runs[i]
		records, err := recordsOf(want, r)
		if err != nil {
			t.Fatal(err)
		}
		var bodies []byte
		for _, record := range records {
			bodies = append(bodies, record.Body...)
		}
		if r.StreamID != w.id || r.First != w.first || r.Next != w.first+stream.Seq(len(w.bodies)) || string(bodies) != w.bodies || r.Frames != w.frames ||
			records[0].Seq != r.First || r.FirstTimestamp != records[0].Timestamp || r.LastTimestamp != records[len(records)-1].Timestamp ||
			r.HashAfter != chunk.HashRecords(r.HashBefore, records) {
			t.Errorf("run %d is %+v with %q", i, *r, bodies)
		}
	}
}

func TestAnObjectWithoutARunIsNone(t *testing.T) {
	b := NewBuilder()
	b.Begin(idOf(1))
	if object, runs := b.Finish(); object != nil || runs != nil {
		t.Errorf("%x, %v", object, runs)
	}
}

// A frame that does not continue its run is refused, and the builder goes on as if
// it had not come.
func TestRunsAreContiguous(t *testing.T) {
	l, b := newLog(1, 5), NewBuilder()
	frame, h := l.chunk(t, "a")
	if err := b.Add(frame, h); err == nil {
		t.Error("a frame of no run")
	}
	b.Begin(l.id)
	add(t, b, frame, h)
	second, h2 := l.chunk(t, "b")
	size := b.Size()
	for name, change := range map[string]func(h *chunk.Header){
		"twice":         func(h *chunk.Header) { h.BaseSeq-- },
		"a gap":         func(h *chunk.Header) { h.BaseSeq++ },
		"other content": func(h *chunk.Header) { h.HashBefore++ },
		"back in time":  func(h *chunk.Header) { h.FirstTimestamp = 0 },
		"other stream":  func(h *chunk.Header) { h.StreamID[0]++ },
	} {
		bad := *h2
		change(&bad)
		if err := b.Add(second, &bad); err == nil || errors.Is(err, ErrFull) || b.Size() != size {
			t.Errorf("%s: %v", name, err)
		}
	}
	add(t, b, second, h2)
	object, runs := b.Finish()
	if got, err := Parse(object); err != nil || !slices.Equal(got, runs) || len(runs) != 1 || runs[0].Frames != 2 {
		t.Errorf("%+v, %v", got, err)
	}
}

// An object that was told how much comes is not copied as it grows, nor when it is
// finished, and is the same as one that was not.
func TestGrow(t *testing.T) {
	object := func(grow int) ([]byte, *byte) {
		b := NewBuilder()
		b.Grow(grow)
		var first *byte
		for n := range 20 {
			l := newLog(n+1, 0)
			b.Begin(l.id)
			for range 5 {
				frame, h := l.chunk(t, string(make([]byte, 3000)), string(rune('a'+n)))
				add(t, b, frame, h)
			}
			if n == 0 {
				first = &b.out[0]
			}
		}
		out, _ := b.Finish()
		return out, first
	}
	plain, _ := object(0)
	grown, first := object(len(plain))
	if !bytes.Equal(plain, grown) {
		t.Error("another object")
	}
	if &grown[0] != first {
		t.Error("it was copied")
	}
}

// I8: an object has a limit of bytes and of runs; what did not fit goes into the
// next one.
func TestFullObjects(t *testing.T) {
	large, b := newLog(1, 0), NewBuilder()
	bodies := []string{string(make([]byte, stream.MaxRecordBytes))}
	_, h := large.chunk(t, bodies...)
	// The builder does not look into frames, so these may be larger than any chunk.
	frame := make([]byte, 21<<20)
	b.Begin(large.id)
	add(t, b, frame, h)
	for range 2 {
		_, h = large.chunk(t, bodies...)
		add(t, b, frame, h)
	}
	size := b.Size()
	_, h = large.chunk(t, bodies...)
	for range 2 {
		if err := b.Add(frame, h); !errors.Is(err, ErrFull) || b.Size() != size {
			t.Fatalf("%v", err)
		}
	}
	b.Begin(large.id)
	if err := b.Add(frame, h); !errors.Is(err, ErrFull) {
		t.Errorf("as another run: %v", err)
	}
	if object, runs := b.Finish(); len(object) != size || len(object) > MaxBytes || len(runs) != 1 {
		t.Errorf("%d bytes, %+v", len(object), runs)
	}

	b = NewBuilder()
	for i := range MaxRuns {
		l := newLog(i, 0)
		frame, h := l.chunk(t, "x")
		b.Begin(l.id)
		add(t, b, frame, h)
	}
	l := newLog(MaxRuns, 0)
	frame, h = l.chunk(t, "x")
	b.Begin(l.id)
	if err := b.Add(frame, h); !errors.Is(err, ErrFull) {
		t.Errorf("a run too many: %v", err)
	}
	object, runs := b.Finish()
	if got, err := Parse(object); err != nil || !slices.Equal(got, runs) || len(runs) != MaxRuns {
		t.Errorf("%d runs, %v", len(got), err)
	}
}

// A frame that is larger than an object goes into one that has none yet.
func TestAFirstFrameAlwaysFits(t *testing.T) {
	l, b := newLog(1, 0), NewBuilder()
	_, h := l.chunk(t, "x")
	b.Begin(l.id)
	add(t, b, make([]byte, MaxBytes), h)
}

// One read gives the runs of a small object, two those of a large one.
func TestFooterReads(t *testing.T) {
	for _, c := range []struct{ runs, reads int }{{1, 1}, {600, 1}, {700, 2}, {MaxRuns, 2}} {
		b := NewBuilder()
		for i := range c.runs {
			l := newLog(i, 0)
			frame, h := l.chunk(t, "x")
			b.Begin(l.id)
			add(t, b, frame, h)
		}
		object, runs := b.Finish()
		reads := 0
		got, err := Footer(int64(len(object)), func(offset, length int64) ([]byte, error) {
			reads++
			return readerOf(object)(offset, length)
		})
		if err != nil || !slices.Equal(got, runs) || reads != c.reads {
			t.Errorf("%d runs: %d in %d reads, %v", c.runs, len(got), reads, err)
		}
	}
}

func TestReadErrorsAndShortReads(t *testing.T) {
	b, _ := build(t)
	failing := errors.New("storage is away")
	if _, err := Footer(int64(len(b)), func(int64, int64) ([]byte, error) { return nil, failing }); !errors.Is(err, failing) || errors.Is(err, ErrCorrupt) {
		t.Errorf("%v", err)
	}
	if _, err := Footer(int64(len(b)), func(_, n int64) ([]byte, error) { return b[:n-1], nil }); !errors.Is(err, ErrCorrupt) {
		t.Errorf("%v", err)
	}
	for _, size := range []int64{-1, 0, preamble + trailer - 1} {
		if _, err := Footer(size, readerOf(b)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

// I10: no flipped bit and no lost byte is ever taken for data, whether the
// object is read at once or in parts.
func TestDamageIsDetected(t *testing.T) {
	b, runs := build(t)
	for i := range b {
		if _, err := Parse(b[:i:i]); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("cut at %d: %v", i, err)
		}
		if _, err := footerOf(b[:i:i]); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("footer cut at %d: %v", i, err)
		}
		for bit := range 8 {
			d := bytes.Clone(b)
			d[i] ^= 1 << bit
			what := fmt.Sprintf("byte %d bit %d", i, bit)
			if _, err := Parse(d); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%s: %v", what, err)
			}
			got, err := footerOf(d)
			if inRows := uint64(i) >= runs[2].IndexOffset+uint64(runs[2].IndexLength); inRows != errors.Is(err, ErrCorrupt) || !inRows && !slices.Equal(got, runs) {
				t.Fatalf("%s: footer %+v, %v", what, got, err)
			}
		}
	}
	if _, err := Parse(append(bytes.Clone(b), 0)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a byte more: %v", err)
	}
	for k := range runs {
		index := indexOf(b, &runs[k])
		for i := range index {
			if _, err := ParseIndex(index[:i:i], runs[k].StreamID); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("index cut at %d: %v", i, err)
			}
			for bit := range 8 {
				d := bytes.Clone(index)
				d[i] ^= 1 << bit
				if _, err := ParseIndex(d, runs[k].StreamID); !errors.Is(err, ErrCorrupt) {
					t.Fatalf("index byte %d bit %d: %v", i, bit, err)
				}
			}
		}
		if _, err := ParseIndex(append(bytes.Clone(index), 0), runs[k].StreamID); !errors.Is(err, ErrCorrupt) {
			t.Errorf("index with a byte more: %v", err)
		}
	}
}

// I10: the index of another stream's run is never taken for that of this one.
func TestAnIndexIsOfItsStream(t *testing.T) {
	b, runs := build(t)
	if _, err := ParseIndex(indexOf(b, &runs[0]), idOf(2)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("%v", err)
	}
}

// reseal gives a changed object good checksums again, but for its indexes.
func reseal(b []byte) []byte {
	tr := b[len(b)-trailer:]
	le := binary.LittleEndian
	le.PutUint32(tr[12:], crc32.Checksum(b[le.Uint64(tr):len(b)-trailer], castagnoli))
	le.PutUint32(tr[trailerCRC:], crc32.Checksum(tr[:trailerCRC], castagnoli))
	return b
}

func resealIndex(b []byte, id stream.ID) []byte {
	end := len(b) - crcBytes
	binary.LittleEndian.PutUint32(b[end:], indexCRC(id, b[:end]))
	return b
}

// What a newer program wrote is not broken.
func TestNewerVersionIsNotCorrupt(t *testing.T) {
	for at := range 4 {
		b, runs := build(t)
		b[len(b)-trailer+trailerCRC-4+at]++
		for _, parse := range []func([]byte) ([]Run, error){Parse, footerOf} {
			if _, err := parse(reseal(b)); !errors.Is(err, ErrVersion) || errors.Is(err, ErrCorrupt) {
				t.Errorf("trailer: %v", err)
			}
		}
		b, _ = build(t)
		index := indexOf(b, &runs[0])
		index[at]++
		resealIndex(index, idOf(1))
		if _, err := ParseIndex(index, idOf(1)); !errors.Is(err, ErrVersion) || errors.Is(err, ErrCorrupt) {
			t.Errorf("index: %v", err)
		}
		if _, err := Parse(b); !errors.Is(err, ErrVersion) || errors.Is(err, ErrCorrupt) {
			t.Errorf("object with the index: %v", err)
		}
	}
}

// A footer or an index with a good checksum and a lie inside is refused all the
// same, and nothing is allocated on its word.
func TestLiesAreDetected(t *testing.T) {
	good, runs := build(t)
	rows := int(runs[2].IndexOffset) + int(runs[2].IndexLength)
	le := binary.LittleEndian
	u64 := func(at int, v uint64) func(b []byte) { return func(b []byte) { le.PutUint64(b[at:], v) } }
	u32 := func(at int, v uint32) func(b []byte) { return func(b []byte) { le.PutUint32(b[at:], v) } }
	for name, lie := range map[string]func(b []byte){
		"no run":                  u32(len(good)-trailer+8, 0),
		"runs beyond the limit":   u32(len(good)-trailer+8, 1<<32-1),
		"a run less":              u32(len(good)-trailer+8, 2),
		"it begins before itself": u64(rows+64, 0),
		"it begins later":         u64(rows+64, preamble+1),
		"it is short":             u64(rows+72, 5),
		"it is long":              u64(rows+72, 1<<63),
		"it is as long as can be": u64(rows+72, 1<<64-1-preamble),
		"no frame":                u32(rows+80, 0),
		"another frame":           u32(rows+80, 3),
		"many frames":             u32(rows+80, 1<<32-1),
		"it ends before itself":   u64(rows+24, 99),
		"more frames than seqs":   u64(rows+24, 101),
		"its time goes back":      u64(rows+40, 0),
		"its index is elsewhere":  u64(rows+84, preamble),
		"its index is long":       u32(rows+92, 1<<32-1),
	} {
		b := bytes.Clone(good)
		lie(b)
		if _, err := footerOf(reseal(b)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("footer, %s: %v", name, err)
		}
	}
	for name, lie := range map[string]func(b []byte){
		"other stream":    func(b []byte) { b[rows]++ },
		"first of it":     u64(rows+16, 99),
		"end of it":       u64(rows+24, 104),
		"first timestamp": u64(rows+32, 1),
		"last timestamp":  u64(rows+40, 1800000000000),
		"hash before":     u64(rows+48, 1),
		"hash after":      u64(rows+56, 1),
	} {
		b := bytes.Clone(good)
		lie(b)
		if _, err := Parse(reseal(b)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("footer and frames, %s: %v", name, err)
		}
	}
	for name, lie := range map[string]func(b []byte){
		"no frame":           u32(4, 0),
		"a frame less":       u32(4, 1),
		"many frames":        u32(4, 1<<32-1),
		"it begins at 0":     u64(16, 0),
		"it ends wrapped":    u64(16, 1<<64-10),
		"numbers wrap":       u64(8, 1<<64-1),
		"a frame of nothing": u32(indexFixed, 0),
		"no record":          u32(indexFixed+4, 0),
		"its time goes back": u64(indexFixed+8, 1900000000000),
	} {
		index := bytes.Clone(indexOf(good, &runs[0]))
		lie(index)
		if _, err := ParseIndex(resealIndex(index, idOf(1)), idOf(1)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("index, %s: %v", name, err)
		}
	}
	for name, lie := range map[string]func(b []byte){
		"it begins later":          u64(16, preamble+1),
		"its first record":         u64(8, 101),
		"a frame is longer":        u32(indexFixed, 1000),
		"a record moves over":      func(b []byte) { le.PutUint32(b[indexFixed+4:], 1); le.PutUint32(b[indexFixed+frameRow+4:], 2) },
		"a frame ends sooner":      u64(indexFixed+8, 1),
		"a byte moves over":        func(b []byte) { b[indexFixed]++; b[indexFixed+frameRow]-- },
		"the last one ends sooner": u64(indexFixed+frameRow+8, 1700000000020),
	} {
		b := bytes.Clone(good)
		lie(indexOf(b, &runs[0]))
		resealIndex(indexOf(b, &runs[0]), idOf(1))
		if _, err := Parse(b); !errors.Is(err, ErrCorrupt) {
			t.Errorf("index and frames, %s: %v", name, err)
		}
	}
}
