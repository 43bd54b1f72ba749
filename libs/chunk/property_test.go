package chunk

import (
	"errors"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/nova-stream/nova/libs/stream"
)

// inputs draws what Encode must accept.
func inputs(t *rapid.T) Input {
	in := Input{
		BaseSeq: stream.Seq(rapid.Uint64Range(0, 1<<62).Draw(t, "base")), HashBefore: stream.Hash(rapid.Uint64().Draw(t, "hash")),
	}
	copy(in.StreamID[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "stream"))
	seq, ts := in.BaseSeq, stream.Millis(rapid.Int64Range(-1<<60, 1<<60).Draw(t, "ts"))
	batches := rapid.IntRange(1, 12).Draw(t, "batches")
	for i := range batches {
		b := InputBatch{Seal: i == batches-1 && rapid.Bool().Draw(t, "seal")}
		if rapid.Bool().Draw(t, "has producer") {
			b.Producer = stream.Producer{
				ID:    rapid.StringN(1, 16, stream.MaxTokenBytes).Draw(t, "producer"),
				Epoch: rapid.Uint64().Draw(t, "epoch"), Batch: rapid.Uint64().Draw(t, "batch"),
			}
		}
		for range rapid.IntRange(1, 6).Draw(t, "records") {
			r := stream.Record{Seq: seq, Timestamp: ts, Body: bodies(t)}
			for range rapid.IntRange(0, 4).Draw(t, "headers") {
				r.Headers = append(r.Headers, stream.Header{
					Name:  rapid.SliceOfN(rapid.Byte(), 0, stream.MaxHeaderName).Draw(t, "name"),
					Value: rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "value"),
				})
			}
			b.Records = append(b.Records, r)
			seq++
			ts += stream.Millis(rapid.Int64Range(0, 1<<40).Draw(t, "later"))
		}
		in.Batches = append(in.Batches, b)
	}
	return in
}

// bodies draws empty, small binary, compressible and now and then large bodies.
func bodies(t *rapid.T) []byte {
	switch rapid.IntRange(0, 40).Draw(t, "body") {
	case 0:
		return make([]byte, stream.MaxRecordBytes-5*stream.MaxHeaderName-5*300)
	case 1, 2, 3:
		return nil
	case 4, 5, 6:
		return make([]byte, rapid.IntRange(200, 5000).Draw(t, "zeros"))
	}
	return rapid.SliceOfN(rapid.Byte(), 0, 64).Draw(t, "bytes")
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs(t)
		b, h, err := Encode(nil, in)
		if errors.Is(err, ErrInput) && RawBound(recordsOf(in)) > MaxRawBytes {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		got, records, err := Decode(b)
		if err != nil {
			t.Fatal(err)
		}
		all := recordsOf(in)
		if !reflect.DeepEqual(got, h) {
			t.Fatalf("header %+v, want %+v", got, h)
		}
		if !sameRecords(records, all) {
			t.Fatal("records differ")
		}
		if err := VerifyHash(&h, records); err != nil {
			t.Fatal(err)
		}
		if h.HashAfter != HashRecords(in.HashBefore, all) || int(h.RawLength) > RawBound(all) {
			t.Fatalf("header %+v", h)
		}
		from := h.BaseSeq + stream.Seq(rapid.IntRange(0, len(all)).Draw(t, "from"))
		if _, some, err := DecodeFrom(b, from); err != nil || !sameRecords(some, all[from-h.BaseSeq:]) {
			t.Fatalf("from %d: %d records, %v", from, len(some), err)
		}
	})
}

func FuzzDecode(f *testing.F) {
	for _, in := range []Input{sample(), compressible()} {
		b, _ := mustEncode(f, in)
		f.Add(b)
		f.Add(b[:len(b)/2])
	}
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, records, err := Decode(b)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
				t.Fatalf("untyped error: %v", err)
			}
			return
		}
		if uint64(len(records)) != uint64(h.Count) || records[0].Seq != h.BaseSeq {
			t.Fatalf("%d records of %+v", len(records), h)
		}
	})
}

// FuzzPayload looks behind the checksums, where FuzzDecode hardly gets.
func FuzzPayload(f *testing.F) {
	f.Add([]byte("\x00\x00\x00"), uint32(1), false)
	f.Add([]byte("\x00\x01\x01n\x01v\x01b\x05\x00\x00"), uint32(2), false)
	f.Add([]byte("\x28\xb5\x2f\xfd"), uint32(1), true)
	f.Fuzz(func(t *testing.T, payload []byte, count uint32, compressed bool) {
		h := Header{Encoding: EncodingRecords, Batches: []Batch{{Count: count, LastTimestamp: 5}}}
		c, raw := CompressionNone, len(payload)
		if compressed {
			c, raw = CompressionZstd, 1<<16
		}
		if _, _, err := Decode(withPayload(h, c, raw, payload)); err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatalf("untyped error: %v", err)
		}
	})
}
