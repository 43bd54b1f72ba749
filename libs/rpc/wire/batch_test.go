package wire

import (
	"bytes"
	"fmt"
	"testing"

	"google.golang.org/grpc/mem"
	protobuf "google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// anyBatch draws a batch with whatever a batch can have.
func anyBatch(t *rapid.T) *novapb.AppendSessionRequest {
	bytesUpTo := func(n int, name string) []byte { return rapid.SliceOfN(rapid.Byte(), 0, n).Draw(t, name) }
	b := &novapb.AppendSessionBatch{}
	var records []*novapb.AppendRecord
	for i := range rapid.IntRange(0, 20).Draw(t, "records") {
		r := &novapb.AppendRecord{}
		if rapid.Bool().Draw(t, fmt.Sprint("timed", i)) {
			r.SetTimestamp(rapid.Int64().Draw(t, fmt.Sprint("timestamp", i)))
		}
		var headers []*novapb.Header
		for k := range rapid.IntRange(0, 3).Draw(t, fmt.Sprint("headers", i)) {
			h := &novapb.Header{}
			h.SetName(bytesUpTo(20, fmt.Sprint("name", i, k)))
			h.SetValue(bytesUpTo(200, fmt.Sprint("value", i, k)))
			headers = append(headers, h)
		}
		r.SetHeaders(headers)
		r.SetBody(bytesUpTo(300, fmt.Sprint("body", i)))
		records = append(records, r)
	}
	b.SetRecords(records)
	if rapid.Bool().Draw(t, "match") {
		b.SetMatchSeq(rapid.Uint64().Draw(t, "match_seq"))
	}
	if rapid.Bool().Draw(t, "token") {
		b.SetFencingToken(rapid.String().Draw(t, "fencing_token"))
	}
	b.SetBatchSeq(rapid.Uint64Range(0, 300).Draw(t, "batch_seq"))
	b.SetSeal(rapid.Bool().Draw(t, "seal"))
	m := &novapb.AppendSessionRequest{}
	m.SetBatch(b)
	return m
}

// What is written is what Protobuf reads, and what Protobuf writes is read: the
// other side may be any program.
func TestBatchIsProtobufs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := anyBatch(t)
		size, inner, ok := batchSize(in)
		if !ok {
			t.Fatal("an ordinary batch is left to Protobuf")
		}
		written := writeBatch(nil, in, inner)
		if len(written) != size || size != protobuf.Size(in) {
			t.Fatalf("%d bytes are written, %d were announced, Protobuf's are %d", len(written), size, protobuf.Size(in))
		}
		got := &novapb.AppendSessionRequest{}
		if err := protobuf.Unmarshal(written, got); err != nil || !protobuf.Equal(in, got) {
			t.Fatalf("Protobuf reads %v of %v: %v", got, in, err)
		}
		theirs, err := protobuf.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		got = &novapb.AppendSessionRequest{}
		if !readBatch(theirs, got) || !protobuf.Equal(in, got) {
			t.Fatalf("%v was read of %v", got, in)
		}
	})
}

// Whatever bytes come: what is read here is what Protobuf reads, and nothing is
// read here that Protobuf refuses.
func FuzzReadBatch(f *testing.F) {
	record := []byte{tagRecord, 7, tagTimestamp, 9, tagBody, 3, 'a', 'b', 'c'}
	for _, in := range [][]byte{
		nil, {tagBatch, 0}, {tagBatch, 1}, {tagBatch, 2, tagSeal, 0}, {tagBatch, 2, tagSeal, 7}, {tagBatch, 3, tagToken, 1, 0xff},
		append([]byte{tagBatch, 9}, record...),
		append([]byte{tagBatch, 9}, append(record, tagBatch, 2, tagSeal, 1)...), // two that are one
		{tagBatch, 4, tagRecord, 2, tagBody, 0}, {tagBatch, 4, tagRecord, 2, tagBody, 1}, {0x92, 0x80, 0, 0}, {tagBatch, 3, 0x30, 1, 1},
		{tagBatch, 6, tagRecord, 4, tagHeader, 2, tagName, 0}, {tagBatch, 12, tagMatch, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0},
	} {
		f.Add(in)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, want := &novapb.AppendSessionRequest{}, &novapb.AppendSessionRequest{}
		if !readBatch(bytes.Clone(b), got) {
			if !protobuf.Equal(got, want) {
				t.Fatalf("%v is left of what could not be read", got)
			}
			return
		}
		if err := protobuf.Unmarshal(b, want); err != nil || !protobuf.Equal(got, want) {
			t.Fatalf("%v was read, Protobuf reads %v, %v", got, want, err)
		}
	})
}

// What is no ordinary batch goes the ordinary way, both ways, and nothing of it is
// lost: a field of a later version is handed on.
func TestBatchLeftToProtobuf(t *testing.T) {
	batch := func(change func(m *novapb.AppendSessionRequest, b *novapb.AppendSessionBatch, r *novapb.AppendRecord, h *novapb.Header)) *novapb.AppendSessionRequest {
		h, r, b, m := &novapb.Header{}, &novapb.AppendRecord{}, &novapb.AppendSessionBatch{}, &novapb.AppendSessionRequest{}
		h.SetName([]byte("name"))
		r.SetBody([]byte("body"))
		r.SetHeaders([]*novapb.Header{h})
		b.SetRecords([]*novapb.AppendRecord{r})
		m.SetBatch(b)
		change(m, b, r, h)
		return m
	}
	later := []byte{15<<3 | kindNumber, 1}
	many := make([]*novapb.AppendRecord, stream.MaxBatchRecords+1)
	for i := range many {
		many[i] = &novapb.AppendRecord{}
	}
	for name, in := range map[string]*novapb.AppendSessionRequest{
		"open": func() *novapb.AppendSessionRequest {
			o, m := &novapb.AppendSessionOpen{}, &novapb.AppendSessionRequest{}
			o.SetBucket("bucket")
			m.SetOpen(o)
			return m
		}(),
		"nothing": {},
		"field of a message": batch(func(m *novapb.AppendSessionRequest, _ *novapb.AppendSessionBatch, _ *novapb.AppendRecord, _ *novapb.Header) {
			m.ProtoReflect().SetUnknown(later)
		}),
		"field of a batch": batch(func(_ *novapb.AppendSessionRequest, b *novapb.AppendSessionBatch, _ *novapb.AppendRecord, _ *novapb.Header) {
			b.ProtoReflect().SetUnknown(later)
		}),
		"field of a record": batch(func(_ *novapb.AppendSessionRequest, _ *novapb.AppendSessionBatch, r *novapb.AppendRecord, _ *novapb.Header) {
			r.ProtoReflect().SetUnknown(later)
		}),
		"field of a header": batch(func(_ *novapb.AppendSessionRequest, _ *novapb.AppendSessionBatch, _ *novapb.AppendRecord, h *novapb.Header) {
			h.ProtoReflect().SetUnknown(later)
		}),
		"too many records": batch(func(_ *novapb.AppendSessionRequest, b *novapb.AppendSessionBatch, _ *novapb.AppendRecord, _ *novapb.Header) {
			b.SetRecords(many)
		}),
	} {
		t.Run(name, func(t *testing.T) {
			sent, err := codec.Marshal(in)
			if err != nil {
				t.Fatal(err)
			}
			got := &novapb.AppendSessionRequest{}
			got.SetOpen(&novapb.AppendSessionOpen{}) // what was in it goes
			if err := codec.Unmarshal(sent, got); err != nil || !protobuf.Equal(in, got) {
				t.Errorf("sent %v, got %v, %v", in, got, err)
			}
			sent.Free()
		})
	}
	bad := batch(func(_ *novapb.AppendSessionRequest, b *novapb.AppendSessionBatch, _ *novapb.AppendRecord, _ *novapb.Header) {
		b.SetFencingToken("\xff")
	})
	if _, err := codec.Marshal(bad); err == nil {
		t.Error("a text that is none was sent")
	}
	// A record that is nil is an empty one.
	none := batch(func(_ *novapb.AppendSessionRequest, b *novapb.AppendSessionBatch, _ *novapb.AppendRecord, _ *novapb.Header) {
		b.SetRecords([]*novapb.AppendRecord{nil})
	})
	if _, err := codec.Marshal(none); err != nil {
		t.Error(err)
	}
}

// What was received stays as it is when the connection's buffers are used again,
// and one body's end is not the next one's start.
func TestBatchIsItsOwn(t *testing.T) {
	in := &novapb.AppendSessionRequest{}
	b := &novapb.AppendSessionBatch{}
	b.SetRecords([]*novapb.AppendRecord{{Body: bytes.Repeat([]byte("a"), 3000)}, {Body: bytes.Repeat([]byte("b"), 3000)}})
	in.SetBatch(b)
	sent, err := codec.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	whole := sent.Materialize()
	sent.Free()
	parts := mem.BufferSlice{mem.SliceBuffer(whole[:1000]), mem.SliceBuffer(whole[1000:4000]), mem.SliceBuffer(whole[4000:])}
	got := &novapb.AppendSessionRequest{}
	if err := codec.Unmarshal(parts, got); err != nil {
		t.Fatal(err)
	}
	clear(whole)
	first := got.GetBatch().GetRecords()[0]
	first.SetBody(append(first.GetBody(), 'x'))
	first.SetBody(first.GetBody()[:3000])
	if !protobuf.Equal(in, got) {
		t.Error("what was received has changed")
	}
}

func BenchmarkBatch(b *testing.B) {
	for _, shape := range []struct{ records, size int }{{1000, 50}, {100, 1024}} {
		in, batch := &novapb.AppendSessionRequest{}, &novapb.AppendSessionBatch{}
		records := make([]*novapb.AppendRecord, shape.records)
		for i := range records {
			records[i] = &novapb.AppendRecord{Body: make([]byte, shape.size)}
		}
		batch.SetRecords(records)
		in.SetBatch(batch)
		name := fmt.Sprintf("%dx%d", shape.records, shape.size)
		b.Run("write/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				out, err := codec.Marshal(in)
				if err != nil {
					b.Fatal(err)
				}
				out.Free()
			}
		})
		b.Run("read/"+name, func(b *testing.B) {
			b.ReportAllocs()
			sent, err := protobuf.Marshal(in)
			if err != nil {
				b.Fatal(err)
			}
			data := mem.BufferSlice{mem.SliceBuffer(sent)}
			for b.Loop() {
				if err := codec.Unmarshal(data, &novapb.AppendSessionRequest{}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("read by Protobuf/"+name, func(b *testing.B) {
			b.ReportAllocs()
			sent, err := protobuf.Marshal(in)
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if err := protobuf.Unmarshal(sent, &novapb.AppendSessionRequest{}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("write by Protobuf/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := protobuf.Marshal(in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// The codec of both sides takes that way: an object per record would be thousands.
func TestCodecReadsBatches(t *testing.T) {
	records := make([]*novapb.AppendRecord, stream.MaxBatchRecords)
	for i := range records {
		records[i] = &novapb.AppendRecord{}
		records[i].SetBody([]byte("body"))
	}
	b := &novapb.AppendSessionBatch{}
	b.SetRecords(records)
	in := &novapb.AppendSessionRequest{}
	in.SetBatch(b)
	allocated := testing.AllocsPerRun(20, func() {
		data, err := Codec().Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		out := &novapb.AppendSessionRequest{}
		if err := Codec().Unmarshal(data, out); err != nil || len(out.GetBatch().GetRecords()) != len(records) {
			t.Fatalf("%d records, %v", len(out.GetBatch().GetRecords()), err)
		}
		data.Free()
	})
	if allocated > stream.MaxBatchRecords/10 {
		t.Errorf("%v allocations for a batch of %d records", allocated, len(records))
	}
}
