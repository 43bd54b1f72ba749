package bench

import (
	"bytes"
	"encoding/binary"
	"os"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/libs/objectstore/mem"
	"github.com/nova-stream/nova/libs/settled"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// BenchmarkStored: bytes of settled objects, all of them, over the zstd of the
// bodies of their records, and over that of the records as chunks encode them, each
// with its length in front: real data, the file of the demo in records of 1 KiB, ten
// in a batch. The zstd is of the level that chunks have, of as many bytes at once as
// a frame of a settled object holds.
func BenchmarkStored(b *testing.B) {
	data, err := os.ReadFile("../../../deploy/demo/earthquakes.ndjson")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		report(b, stored(b, data))
	}
}

func stored(tb testing.TB, data []byte) map[string]float64 {
	const inBatch = 10
	b, n := newBackground(tb, mem.New())
	c := dial(tb, n.Addr())
	create(tb, c)
	s := c.OpenSession(tb.Context(), client.SessionConfig{Bucket: bucket, Stream: "stored"})
	var batch []*novapb.AppendRecord
	var encoded []byte
	for rest := data; len(rest) > 0; {
		body := rest[:min(recordBytes, len(rest))]
		rest = rest[len(body):]
		encoded = append(binary.AppendUvarint(append(encoded, 0, 0), uint64(len(body))), body...) // as old as the last, no headers
		if batch = append(batch, &novapb.AppendRecord{Body: body}); len(batch) == inBatch || len(rest) == 0 {
			send(tb, s, batch)
			batch = nil
		}
	}
	if _, err := s.Close(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	b.absorb()
	b.settle()
	flights, made := b.take().flights, b.settles.objects.take()
	n.stop()
	bodies, payload := packed(tb, data), packed(tb, encoded)
	return map[string]float64{
		"x-zstd-bodies": total(made["settled"], made["page"]) / bodies, "x-zstd-records": total(made["settled"], made["page"]) / payload,
		"x-zstd-flights": total(flights) / bodies, "settled-KiB": total(made["settled"]) / 1024, "zstd-KiB": bodies / 1024, "bodies-KiB": float64(len(data)) / 1024,
	}
}

// packed is how many bytes data has when it is compressed frame by frame.
func packed(tb testing.TB, data []byte) float64 {
	w, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(false))
	if err != nil {
		tb.Fatal(err)
	}
	n := 0
	for rest := bytes.NewBuffer(data); rest.Len() > 0; {
		n += len(w.EncodeAll(rest.Next(settled.FrameBytes), nil))
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return float64(n)
}
