package bench

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/libs/metastore"
	metamem "github.com/nova-stream/nova/libs/metastore/mem"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// BenchmarkAbsorbLag: how long a slot waits from its PUT until it is absorbed, while
// 64 sessions append as much as they can and the node settles with its defaults; in
// seconds, and in slots that were put meanwhile.
func BenchmarkAbsorbLag(b *testing.B) {
	for _, s := range stores {
		b.Run(s.name, func(b *testing.B) {
			for b.Loop() {
				report(b, absorbLag(b, s.open(b), 64, 30*time.Second))
			}
		})
	}
}

// absorbed is a change of how far a chain is absorbed.
type absorbed struct {
	at time.Time
	to uint64
}

func absorbLag(tb testing.TB, store objectstore.Store, sessions int, period time.Duration) map[string]float64 {
	var mu sync.Mutex
	steps := map[string][]absorbed{}
	metadata := &rows{Store: metamem.New(), watch: func(key metastore.Key, value []byte) {
		if !strings.HasPrefix(key.Path, "chain/") {
			return
		}
		var c indexpb.Chain
		if err := proto.Unmarshal(value, &c); err != nil {
			tb.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		steps[c.GetChainId()] = append(steps[c.GetChainId()], absorbed{time.Now(), c.GetAbsorbedTo()})
	}}
	n, flights := nodeOn(tb, store, metadata)
	c := dial(tb, n.Addr())
	create(tb, c)
	records := batchOf(batchRecords, recordBytes)
	m := machine{tb: tb}
	m.watch(0)
	begun := time.Now()
	var wg sync.WaitGroup
	for i := range sessions {
		wg.Go(func() {
			s := c.OpenSession(tb.Context(), client.SessionConfig{Bucket: bucket, Stream: fmt.Sprintf("lag-%d", i)})
			for first := true; first || time.Since(begun) < period; first = false {
				if err := s.Send(tb.Context(), records); err != nil {
					tb.Error(err)
					return
				}
			}
			if _, err := s.Close(tb.Context()); err != nil {
				tb.Error(err)
			}
		})
	}
	wg.Wait()
	m.end()
	// What was put last is absorbed at the end of an interval.
	eventually(tb, func() bool {
		mu.Lock()
		defer mu.Unlock()
		var reached uint64
		for _, s := range steps {
			reached += s[len(s)-1].to
		}
		return reached >= distinct(flights.written())
	})
	n.stop()
	seconds, behind := lags(tb, flights, steps)
	return map[string]float64{
		"p50-s": seconds.quantile(.5), "p99-s": seconds.quantile(.99), "max-s": seconds.quantile(1),
		"p50-slots": behind.quantile(.5), "p99-slots": behind.quantile(.99),
		"x-window-s-p99": seconds.quantile(.99) / 5, "x-window-slots-p99": behind.quantile(.99) / chain.Window,
		"slots/s": float64(len(flights.written())) / period.Seconds(), "others-%": m.othersShare(),
	}
}

// distinct counts keys: a PUT may have been tried twice.
func distinct(keys []string) uint64 {
	seen := map[string]bool{}
	for _, k := range keys {
		seen[k] = true
	}
	return uint64(len(seen))
}

// eventually fails the benchmark if ok stays false for a minute.
func eventually(tb testing.TB, ok func() bool) {
	tb.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatal("it takes too long")
		}
	}
}

// lags returns of each slot how long it waited, and how many slots of its chain
// were there above it when it was absorbed.
func lags(tb testing.TB, flights *recorder, steps map[string][]absorbed) (seconds, behind samples) {
	flights.mu.Lock()
	defer flights.mu.Unlock()
	put := map[string]map[uint64]time.Time{}
	for i, key := range flights.keys {
		parts := strings.Split(key, "/")
		slot, err := strconv.ParseUint(parts[2], 16, 64)
		if err != nil {
			tb.Fatal(err)
		}
		if put[parts[1]] == nil {
			put[parts[1]] = map[uint64]time.Time{}
		}
		if _, again := put[parts[1]][slot]; !again {
			put[parts[1]][slot] = flights.times[i]
		}
	}
	for id, all := range steps {
		from, newest := uint64(0), uint64(0)
		for _, s := range all {
			for {
				at, there := put[id][newest]
				if !there || at.After(s.at) {
					break
				}
				newest++
			}
			for ; from < s.to; from++ {
				// A PUT may be noted after its slot was absorbed.
				seconds.addTime(max(s.at.Sub(put[id][from]), 0))
				behind.add(float64(max(newest, from) - from))
			}
		}
	}
	return seconds, behind
}
