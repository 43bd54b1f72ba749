package bench

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/objectstore/mem"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// BenchmarkSpread: PUTs per second while the same records, at the same pace, go
// to few or to many streams. The store takes 20 ms for a PUT, as remote ones do.
func BenchmarkSpread(b *testing.B) {
	for b.Loop() {
		report(b, spread(b, []int{10, 1000, 10_000}, 10_000, 1000, 3))
	}
}

// spread appends records at so many per second in all, round robin.
func spread(tb testing.TB, counts []int, records, perSecond, rounds int) map[string]float64 {
	n, flights := nodeOn(tb, slow{Store: mem.New(), delay: 20 * time.Millisecond}, nil)
	c := dial(tb, n.Addr())
	create(tb, c)
	openStreams(tb, c, counts[len(counts)-1])
	body := random(recordBytes)
	rates, puts, paces := make([]samples, len(counts)), make([]samples, len(counts)), make([]samples, len(counts))
	for range rounds {
		for k, streams := range counts {
			flights.take()
			begun := time.Now()
			var wg sync.WaitGroup
			for i := range records {
				if wait := time.Duration(i)*time.Second/time.Duration(perSecond) - time.Since(begun); wait > 0 {
					time.Sleep(wait)
				}
				wg.Go(func() {
					if _, err := c.Appends.Append(tb.Context(), &novapb.AppendRequest{
						Bucket: bucket, Stream: fmt.Sprintf("stream-%06d", i%streams), Records: []*novapb.AppendRecord{{Body: body}},
					}); err != nil {
						tb.Error(err)
					}
				})
			}
			wg.Wait()
			took, flown := time.Since(begun).Seconds(), float64(len(flights.take()))
			rates[k].add(flown / took)
			puts[k].add(flown)
			paces[k].add(float64(records) / took)
		}
	}
	n.stop()
	figures := map[string]float64{}
	low, high := rates[0].median(), rates[0].median()
	for k, streams := range counts {
		v := rates[k].median()
		figures[fmt.Sprintf("PUTs/s@%d", streams)] = v
		figures[fmt.Sprintf("PUTs@%d", streams)] = puts[k].median()
		figures[fmt.Sprintf("records/s@%d", streams)] = paces[k].median()
		low, high = min(low, v), max(high, v)
	}
	figures["x-highest/lowest"] = high / low
	return figures
}

// slow delays PUTs.
type slow struct {
	objectstore.Store

	delay time.Duration
}

func (s slow) PutIfAbsent(ctx context.Context, key string, body []byte) (objectstore.ETag, error) {
	select {
	case <-time.After(s.delay):
	case <-ctx.Done():
		return "", ctx.Err()
	}
	return s.Store.PutIfAbsent(ctx, key, body)
}
