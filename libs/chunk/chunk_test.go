package chunk

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/nova-stream/nova/libs/stream"
)

var update = flag.Bool("update", false, "write the golden files")

var testStream = stream.ID{0x01, 0x93, 0x7a, 0x5e, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc}

// sample has what a chunk can have: several batches, a producer, a seal,
// headers, repeated and empty names and values, an empty and a binary body.
func sample() Input {
	return Input{
		StreamID: testStream, BaseSeq: 41, HashBefore: 0x1122334455667788,
		Batches: []InputBatch{
			{Records: []stream.Record{
				{Seq: 41, Timestamp: 1700000000000, Body: []byte("hello")},
				{Seq: 42, Timestamp: 1700000000000},
			}},
			{
				Producer: stream.Producer{ID: "producer-1", Epoch: 3, Batch: 9}, Seal: true,
				Records: []stream.Record{{
					Seq: 43, Timestamp: 1700000000250, Body: []byte{0, 0xff, '\n'},
					Headers: []stream.Header{
						{Name: []byte("n"), Value: []byte("v")},
						{Name: []byte("n"), Value: nil},
						{Name: nil, Value: []byte{0x80}},
					},
				}},
			},
		},
	}
}

// compressible is an input that is stored compressed.
func compressible() Input {
	in := Input{StreamID: testStream}
	var records []stream.Record
	for i := range 20 {
		records = append(records, stream.Record{
			Seq: stream.Seq(i), Timestamp: stream.Millis(1000 + i), Body: fmt.Appendf(nil, "the quick brown fox jumps over lazy dog %02d", i),
		})
	}
	in.Batches = []InputBatch{{Records: records}}
	return in
}

func mustEncode(t testing.TB, in Input) ([]byte, Header) {
	t.Helper()
	b, h, err := Encode(nil, in)
	if err != nil {
		t.Fatal(err)
	}
	return b, h
}

func recordsOf(in Input) []stream.Record {
	var out []stream.Record
	for _, b := range in.Batches {
		out = append(out, b.Records...)
	}
	return out
}

// sameRecords compares records, with nil and empty alike.
func sameRecords(a, b []stream.Record) bool {
	return len(a) == len(b) && !slicesDiffer(a, b)
}

func slicesDiffer(a, b []stream.Record) bool {
	for i := range a {
		x, y := &a[i], &b[i]
		if x.Seq != y.Seq || x.Timestamp != y.Timestamp || !bytes.Equal(x.Body, y.Body) || len(x.Headers) != len(y.Headers) {
			return true
		}
		for k := range x.Headers {
			if !bytes.Equal(x.Headers[k].Name, y.Headers[k].Name) || !bytes.Equal(x.Headers[k].Value, y.Headers[k].Value) {
				return true
			}
		}
	}
	return false
}

func golden(t *testing.T, name string, b []byte) []byte {
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
	return want
}

func TestGoldenBytes(t *testing.T) {
	b, h := mustEncode(t, sample())
	if h.Compression != CompressionNone {
		t.Fatal("the sample must be stored plain")
	}
	want := golden(t, "plain-v1.golden", b)
	if !bytes.Equal(b, want) {
		t.Errorf("encoded\n% x\nwant\n% x", b, want)
	}
	got, records, err := Decode(want)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, h) || !sameRecords(records, recordsOf(sample())) {
		t.Errorf("decoded %+v %v", got, records)
	}
}

// A compressor may choose other bytes one day; what it wrote must stay readable.
func TestGoldenCompressedIsReadable(t *testing.T) {
	b, h := mustEncode(t, compressible())
	if h.Compression != CompressionZstd {
		t.Fatal("the sample must be stored compressed")
	}
	_, records, err := Decode(golden(t, "zstd-v1.golden", b))
	if err != nil {
		t.Fatal(err)
	}
	if !sameRecords(records, recordsOf(compressible())) {
		t.Errorf("decoded %v", records)
	}
}

func TestHeader(t *testing.T) {
	b, h := mustEncode(t, sample())
	if h.Count != 3 || h.Next() != 44 || h.FirstTimestamp != 1700000000000 || h.LastTimestamp != 1700000000250 {
		t.Errorf("header %+v", h)
	}
	if h.HashAfter != HashRecords(0x1122334455667788, recordsOf(sample())) || h.HashAfter != h.Batches[1].HashAfter {
		t.Errorf("content hash %x, batches %+v", h.HashAfter, h.Batches)
	}
	if p := h.Batches[1].Producer; p != (stream.Producer{ID: "producer-1", Epoch: 3, Batch: 9}) || !h.Batches[1].Seal || h.Batches[0].Seal {
		t.Errorf("batches %+v", h.Batches)
	}
	alone, n, err := ParseHeader(b)
	if err != nil || !reflect.DeepEqual(alone, h) {
		t.Fatalf("%+v, %v", alone, err)
	}
	if n != len(b)-int(h.PayloadLength) {
		t.Errorf("header of %d bytes in %d", n, len(b))
	}
	// It stands alone, without the payload.
	if again, m, err := ParseHeader(b[:n]); err != nil || m != n || !reflect.DeepEqual(again, h) {
		t.Errorf("alone: %+v, %d, %v", again, m, err)
	}
	if checked, err := Check(b); err != nil || !reflect.DeepEqual(checked, h) {
		t.Errorf("check: %+v, %v", checked, err)
	}
}

func TestEncodeAppends(t *testing.T) {
	b, _ := mustEncode(t, sample())
	got, _, err := Encode([]byte("prefix"), sample())
	if err != nil || string(got[:6]) != "prefix" || !bytes.Equal(got[6:], b) {
		t.Errorf("%x, %v", got, err)
	}
}

func TestDecodeFrom(t *testing.T) {
	for _, in := range []Input{sample(), compressible()} {
		b, h := mustEncode(t, in)
		all := recordsOf(in)
		for from := range h.Next() + 2 {
			_, got, err := DecodeFrom(b, from)
			if err != nil {
				t.Fatal(err)
			}
			want := all[min(uint64(max(from, h.BaseSeq)-h.BaseSeq), uint64(len(all))):]
			if !sameRecords(got, want) {
				t.Errorf("from %d: %d records, want %d", from, len(got), len(want))
			}
		}
	}
}

// I10: no flipped bit and no lost byte is ever taken for data.
func TestDamageIsDetected(t *testing.T) {
	for _, in := range []Input{sample(), compressible()} {
		b, h := mustEncode(t, in)
		head := len(b) - int(h.PayloadLength)
		check := func(what string, damaged []byte) {
			t.Helper()
			if _, _, err := Decode(damaged); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%s: Decode: %v", what, err)
			}
			if _, err := Check(damaged); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%s: Check: %v", what, err)
			}
		}
		for i := range b {
			check(fmt.Sprintf("cut at %d", i), b[:i:i])
			for bit := range 8 {
				damaged := bytes.Clone(b)
				damaged[i] ^= 1 << bit
				check(fmt.Sprintf("byte %d bit %d", i, bit), damaged)
				if _, _, err := ParseHeader(damaged); (i < head) != errors.Is(err, ErrCorrupt) {
					t.Fatalf("byte %d bit %d: ParseHeader: %v", i, bit, err)
				}
			}
		}
		check("a byte more", append(bytes.Clone(b), 0))
	}
}

// reseal gives changed header bytes a good checksum.
func reseal(b []byte, h *Header) []byte {
	end := headerSize(h) - crcBytes
	le := crc32.Checksum(b[:end], castagnoli)
	b[end], b[end+1], b[end+2], b[end+3] = byte(le), byte(le>>8), byte(le>>16), byte(le>>24)
	return b
}

// What a newer program wrote is not broken.
func TestNewerVersionsAreNotCorrupt(t *testing.T) {
	for at, name := range map[int]string{4: "version", 5: "encoding", 6: "compression", 7: "flags"} {
		b, h := mustEncode(t, sample())
		b[at] = 9
		_, _, err := Decode(reseal(b, &h))
		if !errors.Is(err, ErrVersion) || errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A header with a good checksum and a lie inside is refused all the same.
func TestLiesAreDetected(t *testing.T) {
	for name, lie := range map[string]func(h *Header){
		"a record more":        func(h *Header) { h.Batches[0].Count++ },
		"a record less":        func(h *Header) { h.Batches[0].Count-- },
		"no record":            func(h *Header) { h.Batches[0].Count = 0 },
		"many records":         func(h *Header) { h.Batches[0].Count = 1000 },
		"earlier":              func(h *Header) { h.Batches[0].FirstTimestamp-- },
		"later":                func(h *Header) { h.Batches[1].LastTimestamp++ },
		"second batch earlier": func(h *Header) { h.Batches[1].FirstTimestamp-- },
		"decreasing":           func(h *Header) { h.Batches[1].FirstTimestamp = 5 },
		"seal before the end":  func(h *Header) { h.Batches[0].Seal = true },
		"numbers that wrap":    func(h *Header) { h.BaseSeq = ^stream.Seq(0) },
		"no payload":           func(h *Header) { h.RawLength, h.PayloadLength = 0, 0 },
		"raw beyond the limit": func(h *Header) { h.RawLength = MaxRawBytes + 1 },
		"raw unlike stored":    func(h *Header) { h.RawLength++ },
		"compressed":           func(h *Header) { h.Compression = CompressionZstd },
	} {
		b, h := mustEncode(t, sample())
		payload := b[headerSize(&h):]
		lie(&h)
		if _, _, err := Decode(append(appendHeader(nil, &h), payload...)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// withPayload is a chunk whose checksums are good, with any payload.
func withPayload(h Header, c Compression, raw int, payload []byte) []byte {
	h.Compression, h.RawLength, h.PayloadLength = c, uint32(raw), uint32(len(payload))
	h.PayloadCRC = crc32.Checksum(payload, castagnoli)
	return append(appendHeader(nil, &h), payload...)
}

func TestDecompressionBombs(t *testing.T) {
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	zeros := func(n int) []byte { return w.EncodeAll(make([]byte, n), nil) }
	_, h := mustEncode(t, compressible())
	for name, b := range map[string][]byte{
		"more than it says":           withPayload(h, CompressionZstd, 100_000, zeros(MaxRawBytes)),
		"far more than it says":       withPayload(h, CompressionZstd, 100_000, zeros(64<<20)),
		"less than it says":           withPayload(h, CompressionZstd, 100_000, zeros(99_999)),
		"says more than the limit":    withPayload(h, CompressionZstd, MaxRawBytes+1, zeros(MaxRawBytes+1)),
		"stored is larger than raw":   withPayload(h, CompressionZstd, 8, zeros(8)),
		"no frame":                    withPayload(h, CompressionZstd, 100_000, []byte("not a frame")),
		"two frames":                  withPayload(h, CompressionZstd, 100_000, append(zeros(100_000), zeros(100_000)...)),
		"plain, says less than it is": withPayload(h, CompressionNone, 10, make([]byte, 11)),
	} {
		_, _, _ = Decode(b) // the decoder's own buffers come once
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _, err := Decode(b)
		runtime.ReadMemStats(&after)
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
			t.Errorf("%s: %d bytes allocated to refuse it", name, n)
		}
	}
}

// Payloads that a checksum vouches for and that do not parse.
func TestMalformedPayloads(t *testing.T) {
	one := Header{
		StreamID: testStream, Encoding: EncodingRecords,
		Batches: []Batch{{Count: 1, FirstTimestamp: 7, LastTimestamp: 7}},
	}
	for name, payload := range map[string]string{
		"body is cut off":        "\x00\x00\x05abc",
		"length is cut off":      "\x00\x00\x80\x80",
		"length wraps":           "\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
		"header is cut off":      "\x00\x01\x01",
		"too many headers":       "\x00\x41" + strings.Repeat("\x00\x00", 65) + "\x00",
		"header count is huge":   "\x00\xff\xff\xff\x7f\x00",
		"time goes back":         "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00\x00",
		"bytes after the record": "\x00\x00\x00\x00",
		"name is too long":       "\x00\x01\x80\x02" + strings.Repeat("n", 256) + "\x00\x00",
	} {
		if _, _, err := Decode(withPayload(one, CompressionNone, len(payload), []byte(payload))); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, r, err := Decode(withPayload(one, CompressionNone, 3, []byte("\x00\x00\x00"))); err != nil || len(r) != 1 {
		t.Errorf("the well-formed one: %v, %v", r, err)
	}
}

func TestEncodeRefuses(t *testing.T) {
	batch := func(r ...stream.Record) Input { return Input{Batches: []InputBatch{{Records: r}}} }
	big := make([]byte, stream.MaxRecordBytes)
	var nine []InputBatch
	for i := range 9 {
		nine = append(nine, InputBatch{Records: []stream.Record{{Seq: stream.Seq(i), Body: big}}})
	}
	for name, in := range map[string]Input{
		"no batch":        {},
		"many batches":    {Batches: make([]InputBatch, MaxBatches+1)},
		"empty batch":     batch(),
		"gap":             batch(stream.Record{Seq: 0}, stream.Record{Seq: 2}),
		"wrong base":      batch(stream.Record{Seq: 1}),
		"time goes back":  batch(stream.Record{Seq: 0, Timestamp: 2}, stream.Record{Seq: 1, Timestamp: 1}),
		"large record":    batch(stream.Record{Body: make([]byte, stream.MaxRecordBytes+1)}),
		"long name":       batch(stream.Record{Headers: []stream.Header{{Name: big[:256]}}}),
		"long value":      batch(stream.Record{Headers: []stream.Header{{Value: big[:stream.MaxHeaderValue+1]}}}),
		"many headers":    batch(stream.Record{Headers: make([]stream.Header, stream.MaxHeaders+1)}),
		"large payload":   {Batches: nine},
		"long producer":   {Batches: []InputBatch{{Records: []stream.Record{{}}, Producer: stream.Producer{ID: strings.Repeat("x", 65)}}}},
		"numbers wrap":    {BaseSeq: ^stream.Seq(0), Batches: []InputBatch{{Records: []stream.Record{{Seq: ^stream.Seq(0)}, {}}}}},
		"seal in between": {Batches: []InputBatch{{Seal: true, Records: []stream.Record{{}}}, {Records: []stream.Record{{Seq: 1}}}}},
	} {
		dst := []byte("dst")
		if got, _, err := Encode(dst, in); !errors.Is(err, ErrInput) || string(got) != "dst" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// The largest batch that the public limits allow fits, and RawBound bounds it.
func TestLargestBatchFits(t *testing.T) {
	value := make([]byte, 37)
	in := Input{Batches: []InputBatch{{}}}
	for i := range stream.MaxBatchRecords {
		r := stream.Record{Seq: stream.Seq(i), Timestamp: stream.Millis(i) << 40, Headers: make([]stream.Header, stream.MaxHeaders)}
		for k := range r.Headers {
			r.Headers[k] = stream.Header{Name: value[:12], Value: value}
		}
		in.Batches[0].Records = append(in.Batches[0].Records, r)
	}
	_, h := mustEncode(t, in)
	if bound := RawBound(in.Batches[0].Records); int(h.RawLength) > bound || bound > MaxRawBytes {
		t.Errorf("%d bytes raw, bound %d, limit %d", h.RawLength, bound, MaxRawBytes)
	}
}

func TestVerifyHash(t *testing.T) {
	b, h := mustEncode(t, sample())
	_, records, err := Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	if err := VerifyHash(&h, records); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(r []stream.Record) []stream.Record{
		"loss":       func(r []stream.Record) []stream.Record { return r[:2] },
		"repetition": func(r []stream.Record) []stream.Record { r[1] = r[0]; return r },
		"order":      func(r []stream.Record) []stream.Record { r[0], r[1] = r[1], r[0]; return r },
		"change":     func(r []stream.Record) []stream.Record { r[0].Body = []byte("hellp"); return r },
		"time":       func(r []stream.Record) []stream.Record { r[2].Timestamp++; return r },
	} {
		if err := VerifyHash(&h, change(append([]stream.Record(nil), records...))); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
