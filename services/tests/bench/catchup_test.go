package bench

import (
	"testing"
	"time"

	"github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// BenchmarkCatchUp: bytes per second of one reader of a stream that is in storage
// only, against getting the objects that hold it one after another. Each round
// has a node that has read nothing yet.
func BenchmarkCatchUp(b *testing.B) {
	for _, s := range stores {
		b.Run(s.name, func(b *testing.B) {
			for b.Loop() {
				report(b, catchUp(b, func() objectstore.Store { return s.open(b) }, 640, 3))
			}
		})
	}
}

func catchUp(tb testing.TB, open func() objectstore.Store, batches, rounds int) map[string]float64 {
	var rate, cpu against
	m := machine{tb: tb}
	records := batchOf(batchRecords, recordBytes)
	for range rounds {
		store := open()
		n, flights := nodeOn(tb, store, nil, "--tail-window-mib", "1")
		c := dial(tb, n.Addr())
		create(tb, c)
		ses := c.OpenSession(tb.Context(), client.SessionConfig{Bucket: bucket, Stream: "catch-up"})
		for range batches {
			if err := ses.Send(tb.Context(), records); err != nil {
				tb.Fatal(err)
			}
		}
		if _, err := ses.Close(tb.Context()); err != nil {
			tb.Fatal(err)
		}
		m.watch(0)
		begun, idle, read := time.Now(), m.ours(), 0
		err := c.Read(tb.Context(), client.ReadConfig{Request: &novapb.ReadRequest{Bucket: bucket, Stream: "catch-up"}}, func(page *novapb.ReadResponse) error {
			for _, r := range page.GetRecords() {
				read += len(r.GetBody())
			}
			return nil
		})
		if want := batches * batchRecords * recordBytes; err != nil || read != want {
			tb.Fatalf("read %d bytes of %d: %v", read, want, err)
		}
		rate.nova.add(float64(read) / time.Since(begun).Seconds())
		cpu.nova.add((m.ours() - idle).Seconds() / float64(read))
		begun, idle, read = time.Now(), m.ours(), 0
		for _, key := range flights.written() {
			o, err := store.Get(tb.Context(), key)
			if err != nil {
				tb.Fatal(err)
			}
			read += len(o.Body)
		}
		rate.raw.add(float64(read) / time.Since(begun).Seconds())
		cpu.raw.add((m.ours() - idle).Seconds() / float64(read))
		m.end()
		n.stop()
	}
	return map[string]float64{
		"x-raw": rate.ratio(), "nova-MiB/s": rate.nova.median() / (1 << 20), "raw-MiB/s": rate.raw.median() / (1 << 20),
		"cpu-s/GiB": cpu.nova.median() * (1 << 30), "raw-cpu-s/GiB": cpu.raw.median() * (1 << 30), "others-%": m.othersShare(),
	}
}
