package bench

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/libs/objectstore"
)

// lanes is the default of --put-lanes.
const lanes = 4

// BenchmarkThroughput: bytes per second of 64 sessions, against the same bytes
// put directly, as objects of the same sizes, by as many lanes as the node has.
func BenchmarkThroughput(b *testing.B) {
	for _, s := range stores {
		b.Run(s.name, func(b *testing.B) {
			for b.Loop() {
				report(b, throughput(b, s.open(b), 64, 8, 5))
			}
		})
	}
}

func throughput(tb testing.TB, store objectstore.Store, sessions, batches, rounds int) map[string]float64 {
	n, flights := nodeOn(tb, store, nil)
	c := dial(tb, n.Addr())
	create(tb, c)
	records := batchOf(batchRecords, recordBytes)
	all := make([]*client.Session, sessions)
	for i := range all {
		all[i] = c.OpenSession(tb.Context(), client.SessionConfig{Bucket: bucket, Stream: fmt.Sprintf("throughput-%d", i)})
		send(tb, all[i], records)
	}
	raw := &putter{tb: tb, store: store, body: random(8 << 20)}
	flights.take()
	var rate against
	var sizes samples
	var cpu against // seconds per byte, clients included
	m := machine{tb: tb}
	for range rounds {
		m.watch(0)
		begun, idle := time.Now(), m.ours()
		var wg sync.WaitGroup
		for _, s := range all {
			wg.Go(func() {
				for range batches {
					if err := s.Send(tb.Context(), records); err != nil {
						tb.Error(err)
						return
					}
				}
				if err := s.Flush(tb.Context()); err != nil {
					tb.Error(err)
				}
			})
		}
		wg.Wait()
		took, spent := time.Since(begun), m.ours()-idle
		flown := flights.take()
		total := 0
		for _, n := range flown {
			total += n
			sizes.add(float64(n))
		}
		rate.nova.add(float64(total) / took.Seconds())
		idle = m.ours()
		rate.raw.add(float64(total) / raw.putAll(flown).Seconds())
		cpu.nova.add(spent.Seconds() / float64(total))
		cpu.raw.add((m.ours() - idle).Seconds() / float64(total))
		m.end()
	}
	for _, s := range all {
		if _, err := s.Close(tb.Context()); err != nil {
			tb.Error(err)
		}
	}
	n.stop()
	return map[string]float64{
		"x-raw": rate.ratio(), "nova-MiB/s": rate.nova.median() / (1 << 20), "raw-MiB/s": rate.raw.median() / (1 << 20),
		"cpu-s/GiB": cpu.nova.median() * (1 << 30), "raw-cpu-s/GiB": cpu.raw.median() * (1 << 30), "x-raw-cpu": cpu.ratio(),
		"flight-KiB": sizes.median() / 1024, "others-%": m.othersShare(),
	}
}

// putAll puts objects of these sizes over all lanes and returns how long it took.
func (p *putter) putAll(sizes []int) time.Duration {
	begun := time.Now()
	queue := make(chan int, len(sizes))
	for _, n := range sizes {
		queue <- n
	}
	close(queue)
	var wg sync.WaitGroup
	for range lanes {
		wg.Go(func() {
			for n := range queue {
				p.put(n)
			}
		})
	}
	wg.Wait()
	return time.Since(begun)
}
