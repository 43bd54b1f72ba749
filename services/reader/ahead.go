package reader

import (
	"context"
	"sync"
	"time"

	"github.com/maypok86/otter/v2"
	"golang.org/x/sync/semaphore"

	"github.com/nova-stream/nova/proto/gen/nova/cache/v1"
)

const (
	// aheadBytes is how far beyond what a call fetches the cache is told to read.
	aheadBytes = 4 << 20
	// aheadFrom is how much a call fetches, decoded, that reads on and on.
	aheadFrom = messageBytes / 2
	// aheadStep is not more than a cache reads at once: a byte of each step brings
	// in all of them.
	aheadStep = 1 << 20
	// aheadAtOnce limits the calls to the cache for all who read; without room,
	// nothing is read ahead.
	aheadAtOnce = 32
	// aheadAgain is for how long a step is not asked for again.
	aheadAgain = 10 * time.Second
)

// ahead has the cache read what a call that follows will want. Nothing depends
// on it and nobody waits for it; what it brings in is the cache's.
type ahead struct {
	cache cachepb.CacheServiceClient
	room  *semaphore.Weighted
	asked *otter.Cache[step, time.Time]

	mu     sync.Mutex
	ended  bool
	work   sync.WaitGroup
	living context.Context
	end    context.CancelFunc
}

// step is an aligned part of an object, aheadStep long.
type step struct {
	object string
	number uint64
}

func newAhead(cache cachepb.CacheServiceClient) *ahead {
	a := &ahead{
		cache: cache, room: semaphore.NewWeighted(aheadAtOnce),
		asked: otter.Must(&otter.Options[step, time.Time]{MaximumSize: 4096}),
	}
	a.living, a.end = context.WithCancel(context.Background())
	return a
}

// of reads pieces ahead that are not fetched yet, up to aheadBytes.
func (a *ahead) of(pieces []piece) {
	left := int64(aheadBytes)
	for i := range pieces {
		at := pieces[i].at
		if len(pieces[i].window) > 0 || at.length == 0 || at.length > maxPart {
			continue
		}
		for n := at.offset / aheadStep; n <= (at.offset+at.length-1)/aheadStep; n++ {
			a.step(step{at.object, n}, max(at.offset, n*aheadStep))
		}
		if left -= int64(at.length); left <= 0 {
			return
		}
	}
}

func (a *ahead) step(s step, offset uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if at, asked := a.asked.GetIfPresent(s); asked && time.Since(at) < aheadAgain || a.ended || !a.room.TryAcquire(1) {
		return
	}
	a.asked.Set(s, time.Now())
	a.work.Go(func() {
		defer a.room.Release(1)
		ctx, cancel := context.WithTimeout(a.living, aheadAgain)
		defer cancel()
		_, _ = a.cache.ReadRange(ctx, &cachepb.ReadRangeRequest{Object: s.object, Offset: offset, Length: 1})
	})
}

// close ends what is under way.
func (a *ahead) close() {
	a.mu.Lock()
	a.ended = true
	a.mu.Unlock()
	a.end()
	a.work.Wait()
}
