package bench

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// BenchmarkSettle: bytes of slots settled per second, against a copy that gets the
// same slots, eight at once as settling does, and puts objects of the sizes that
// settling made, one after another. 64 streams got batches of 100 records of 1 KiB.
func BenchmarkSettle(b *testing.B) {
	for _, s := range stores {
		for name, records := range map[string][]*novapb.AppendRecord{"random": batchOf(batchRecords, recordBytes), "text": textBatch(batchRecords, recordBytes)} {
			b.Run(s.name+"/"+name, func(b *testing.B) {
				for b.Loop() {
					report(b, settleRate(b, s.open(b), records, 64, 16, 5))
				}
			})
		}
	}
}

// textBatch returns n records of size bytes that compress as logs do.
func textBatch(n, size int) []*novapb.AppendRecord {
	all := text(n * size / 40)
	out := make([]*novapb.AppendRecord, n)
	for i := range out {
		out[i] = &novapb.AppendRecord{Body: all[i*size : (i+1)*size]}
	}
	return out
}

func settleRate(tb testing.TB, store objectstore.Store, records []*novapb.AppendRecord, sessions, batches, rounds int) map[string]float64 {
	b, n := newBackground(tb, store)
	c := dial(tb, n.Addr())
	create(tb, c)
	all := make([]*client.Session, sessions)
	for i := range all {
		all[i] = c.OpenSession(tb.Context(), client.SessionConfig{Bucket: bucket, Stream: fmt.Sprintf("settle-%d", i)})
		send(tb, all[i], records)
	}
	b.absorb()
	b.settle()
	b.take()
	b.settles.objects.take()
	bodies := 0
	for _, r := range records {
		bodies += sessions * batches * len(r.GetBody())
	}
	raw := &copier{tb: tb, store: store, body: random(64 << 20)}
	var rate, cpu against
	var size, settled samples
	m := machine{tb: tb}
	for range rounds {
		var wg sync.WaitGroup
		for _, s := range all {
			wg.Go(func() { sendMany(tb, s, records, batches) })
		}
		wg.Wait()
		b.absorb()
		flights := b.take().flights
		bytes := total(flights)
		m.watch(0)
		begun, idle := time.Now(), m.ours()
		b.settle()
		took := time.Since(begun).Seconds()
		rate.nova.add(bytes / took)
		settled.add(float64(bodies) / took)
		cpu.nova.add((m.ours() - idle).Seconds() / bytes)
		objects := b.settles.objects.take()["settled"]
		for _, o := range objects {
			size.add(float64(o.size))
		}
		begun, idle = time.Now(), m.ours()
		raw.copy(flights, objects)
		rate.raw.add(bytes / time.Since(begun).Seconds())
		cpu.raw.add((m.ours() - idle).Seconds() / bytes)
		m.end()
		b.reap()
		raw.clean()
	}
	for _, s := range all {
		if _, err := s.Close(tb.Context()); err != nil {
			tb.Error(err)
		}
	}
	n.stop()
	return map[string]float64{
		"x-raw": rate.ratio(), "x-raw-best": rate.nova.quantile(1) / rate.raw.quantile(1),
		"nova-MiB/s": rate.nova.median() / (1 << 20), "raw-MiB/s": rate.raw.median() / (1 << 20),
		"cpu-s/GiB": cpu.nova.median() * (1 << 30), "raw-cpu-s/GiB": cpu.raw.median() * (1 << 30),
		"bodies-MiB/s": settled.median() / (1 << 20), "object-KiB": size.median() / 1024, "others-%": m.othersShare(),
	}
}

func sendMany(tb testing.TB, s *client.Session, records []*novapb.AppendRecord, batches int) {
	for range batches {
		if err := s.Send(tb.Context(), records); err != nil {
			tb.Error(err)
			return
		}
	}
	if err := s.Flush(tb.Context()); err != nil {
		tb.Error(err)
	}
}

// copier copies as settling does, without looking at what it copies.
type copier struct {
	tb    testing.TB
	store objectstore.Store
	body  []byte // at least as large as any object

	put []string
}

// readsAtOnce is how many slots settling reads at once.
const readsAtOnce = 8

func (c *copier) copy(flights, objects []putObject) {
	for i, o := range objects {
		// As much is got as the object has, and for the last one the rest.
		n, bytes := 0, 0
		for n < len(flights) && (bytes < o.size || i == len(objects)-1) {
			bytes += flights[n].size
			n++
		}
		c.get(flights[:n])
		flights = flights[n:]
		key := fmt.Sprintf("raw/copy/%016x", len(c.put))
		if _, err := c.store.PutIfAbsent(c.tb.Context(), key, c.body[:o.size]); err != nil {
			c.tb.Error(err)
		}
		c.put = append(c.put, key)
	}
}

func (c *copier) get(flights []putObject) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range readsAtOnce {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(flights) {
					return
				}
				if _, err := c.store.Get(c.tb.Context(), flights[i].key); err != nil {
					c.tb.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// clean removes what was put since it was called last.
func (c *copier) clean() {
	if err := c.store.Delete(c.tb.Context(), c.put...); err != nil {
		c.tb.Error(err)
	}
	c.put = nil
}
