package bench

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// The batch of these figures: 100 records of 1 KiB.
const (
	batchRecords = 100
	recordBytes  = 1 << 10
)

// BenchmarkAck: how long one session waits for the acknowledgement of a batch,
// against a conditional PUT of the same size to the same store. The two take
// turns, one by one.
func BenchmarkAck(b *testing.B) {
	for _, s := range stores {
		b.Run(s.name, func(b *testing.B) {
			for b.Loop() {
				report(b, ack(b, s.open(b), 300))
			}
		})
	}
}

func ack(tb testing.TB, store objectstore.Store, times int) map[string]float64 {
	n, flights := nodeOn(tb, store, nil)
	c := dial(tb, n.Addr())
	create(tb, c)
	raw := &putter{tb: tb, store: store, body: random(2 * batchRecords * recordBytes)}
	ses := c.OpenSession(tb.Context(), client.SessionConfig{Bucket: bucket, Stream: "ack"})
	records := batchOf(batchRecords, recordBytes)
	send(tb, ses, records) // connects, and opens the stream
	flights.take()
	var took against
	m := machine{tb: tb}
	m.watch(0)
	for range times {
		took.nova.addTime(send(tb, ses, records))
		var puts samples
		for _, size := range flights.take() {
			puts.addTime(raw.put(size))
		}
		// A batch is one flight; more mean that something else flew as well.
		took.raw.add(puts.quantile(1))
	}
	m.end()
	if _, err := ses.Close(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	n.stop()
	return map[string]float64{
		"x-raw-p10": took.quantiles(.1), "x-raw-p50": took.quantiles(.5), "x-raw-p99": took.quantiles(.99), "nova-p50-ms": took.nova.milliseconds(.5), "raw-p50-ms": took.raw.milliseconds(.5),
		"nova-p99-ms": took.nova.milliseconds(.99), "raw-p99-ms": took.raw.milliseconds(.99),
		"added-ms": took.nova.milliseconds(.5) - took.raw.milliseconds(.5), "others-%": m.othersShare(),
	}
}

// send appends a batch and returns how long its acknowledgement took.
func send(tb testing.TB, s *client.Session, records []*novapb.AppendRecord) time.Duration {
	begun := time.Now()
	if err := s.Send(tb.Context(), records); err != nil {
		tb.Fatal(err)
	}
	if err := s.Flush(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	return time.Since(begun)
}

// putter puts objects as a chain does: each under the next key.
type putter struct {
	tb    testing.TB
	store objectstore.Store
	body  []byte

	mu   sync.Mutex
	next int
}

func (p *putter) put(size int) time.Duration {
	p.mu.Lock()
	p.next++
	key := fmt.Sprintf("raw/bench/%016x", p.next)
	p.mu.Unlock()
	begun := time.Now()
	if _, err := p.store.PutIfAbsent(p.tb.Context(), key, p.body[:size]); err != nil {
		p.tb.Error(err)
	}
	return time.Since(begun)
}

// BenchmarkDelivery: how long a batch takes from its append to a subscriber,
// against its acknowledgement.
func BenchmarkDelivery(b *testing.B) {
	for _, s := range stores {
		b.Run(s.name, func(b *testing.B) {
			for b.Loop() {
				report(b, delivery(b, s.open(b), 300))
			}
		})
	}
}

func delivery(tb testing.TB, store objectstore.Store, times int) map[string]float64 {
	n, _ := nodeOn(tb, store, nil)
	c := dial(tb, n.Addr())
	create(tb, c)
	ses := c.OpenSession(tb.Context(), client.SessionConfig{Bucket: bucket, Stream: "delivery"})
	records := batchOf(batchRecords, recordBytes)
	send(tb, ses, records)
	sub := c.Subscribe(tb.Context(), client.SubscribeConfig{Request: &novapb.SubscribeRequest{
		Bucket: bucket, Stream: "delivery", Start: &novapb.SubscribeRequest_Seq{Seq: 0},
	}})
	arrived := make(chan time.Time, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		// One time per batch, once its last record is there.
		for due := uint64(batchRecords); ; {
			msg, err := sub.Next()
			if err != nil {
				close(arrived)
				return
			}
			if msg.GetNextSeq() >= due {
				arrived <- time.Now()
				due += batchRecords
			}
		}
	})
	<-arrived
	var took against
	for range times {
		begun, acked := time.Now(), send(tb, ses, records)
		at, ok := <-arrived
		if !ok {
			tb.Fatal("the subscription ended")
		}
		took.nova.addTime(at.Sub(begun))
		took.raw.addTime(acked)
	}
	sub.Close()
	for range arrived {
	}
	wg.Wait()
	if _, err := ses.Close(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	n.stop()
	return map[string]float64{
		"x-ack-p10": took.quantiles(.1), "x-ack-p50": took.quantiles(.5), "x-ack-p99": took.quantiles(.99), "delivery-p50-ms": took.nova.milliseconds(.5), "ack-p50-ms": took.raw.milliseconds(.5),
	}
}
