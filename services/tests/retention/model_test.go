package retention

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sort"
	"sync"
	"time"

	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// What retention promises, and its slack. Nothing is gone before its limit. Beyond
// it a record stays until
//
//   - the ref that holds it expires, which is when its last record does: a ref spans
//     what came in one settling age;
//   - it is settled: another settling age, if the stream was looked at before;
//   - the stream is looked at: a minute;
//
// and while processes that do it are dead, which here is less than a few minutes.
const (
	settleAge = 10 * time.Minute
	outages   = 5 * time.Minute
	ageSlack  = settleAge + settleAge + time.Minute + outages
	// bytesSlack is how long the records came in that a limit of bytes may be
	// exceeded by: a stream that is far from its limit is looked at every hour.
	bytesSlack = time.Hour + ageSlack
	// recordSlack and batchSlack are the most that a record and a batch take in
	// frames beyond their bodies, which do not compress.
	recordSlack, batchSlack = 32, 256
)

// generation is one stream: a name that is made again gets another. Its bodies
// follow from its seed and the number of the record.
type generation struct {
	bucket, name string
	cfg          *novapb.StreamConfig
	seed         uint64
	size         int // largest body
	created      time.Time
	producer     string

	mu       sync.Mutex // guards what follows
	id       string
	sent     int     // records sent; those beyond times may be stored
	times    []int64 // of the acknowledged records
	batches  uint64
	trimmed  uint64    // acknowledged
	trimming uint64    // asked
	emptied  time.Time // when a trim to the tail was first asked for since the last record
	deleting bool
	gone     time.Time     // when its delete was acknowledged
	late     time.Duration // how much later than that its limits may be kept
}

// bodyOf returns the body of a record.
func (g *generation) bodyOf(seq int) []byte {
	r := rand.NewPCG(g.seed, uint64(seq))
	n := g.size/2 + int(r.Uint64()%uint64(g.size/2+1))
	b := make([]byte, (n+7)/8*8)
	for i := 0; i < n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], r.Uint64())
	}
	return b[:n]
}

func (g *generation) sizeOf(seq int) int {
	r := rand.NewPCG(g.seed, uint64(seq))
	return g.size/2 + int(r.Uint64()%uint64(g.size/2+1))
}

// sum is the bytes of bodies of records.
func (g *generation) sum(from, to int) (n int) {
	for i := from; i < to; i++ {
		n += g.sizeOf(i)
	}
	return n
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

func (g *generation) age() time.Duration   { return ms(g.cfg.GetRetentionAgeMs()) }
func (g *generation) empty() time.Duration { return ms(g.cfg.GetDeleteOnEmptyMs()) }

// emptySince is when the stream became empty at the soonest, if no record comes
// any more; mu is held. The zero time: it does not.
func (g *generation) emptySince() time.Time {
	var at time.Time
	switch {
	case g.sent == 0:
		return g.created
	case g.age() > 0 && len(g.times) == g.sent:
		at = time.UnixMilli(g.times[len(g.times)-1]).Add(g.age())
	}
	if !g.emptied.IsZero() && (at.IsZero() || g.emptied.Before(at)) {
		at = g.emptied
	}
	return at
}

// mayBeGone reports whether the stream may have been deleted.
func (g *generation) mayBeGone(now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.deleting {
		return true
	}
	since := g.emptySince()
	return g.empty() > 0 && !since.IsZero() && now.Sub(since) >= g.empty()
}

// mustBeGone reports whether the stream must have been deleted because it was
// empty: it is looked at once in the time it may be empty.
func (g *generation) mustBeGone(now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	since := g.emptySince()
	return g.empty() > 0 && !since.IsZero() && now.Sub(since) > 2*g.empty()+2*ageSlack+g.late
}

// extent is what was seen of a stream.
type extent struct {
	asked, told time.Time // before and after
	acked       int       // records acknowledged before it
	trimmed     uint64    // acknowledged before it
	first, tail uint64
}

// begin is called before a stream is looked at.
func (g *generation) begin() extent {
	g.mu.Lock()
	defer g.mu.Unlock()
	return extent{asked: time.Now(), acked: len(g.times), trimmed: g.trimmed}
}

// judge says what is wrong with what was seen.
func (g *generation) judge(x extent) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if x.tail < uint64(x.acked) || x.tail > uint64(g.sent) {
		return fmt.Errorf("the tail is %d: %d were acknowledged before, %d sent", x.tail, x.acked, g.sent)
	}
	if x.first < x.trimmed {
		return fmt.Errorf("it begins at %d and was trimmed to %d before", x.first, x.trimmed)
	}
	if err := g.tooSoon(x); err != nil {
		return err
	}
	return g.tooLate(x)
}

// tooSoon finds a record that is gone and should not be.
func (g *generation) tooSoon(x extent) error {
	if x.first <= g.trimming {
		return nil
	}
	last := int(x.first) - 1 // the last one that is gone
	if last >= len(g.times) {
		return fmt.Errorf("it begins at %d, and only %d were acknowledged", x.first, len(g.times))
	}
	old := x.told.Sub(time.UnixMilli(g.times[last]))
	if g.age() > 0 && old > g.age() {
		return nil
	}
	kept := g.sum(int(x.first), g.sent) + (recordSlack+batchSlack)*(g.sent-int(x.first))
	if limit := g.cfg.GetRetentionBytes(); limit > 0 && uint64(kept) >= limit {
		return nil
	}
	return fmt.Errorf("record %d is gone: it is %v old, and at most %d bytes lie behind it; it may be %v old and have %d bytes behind it",
		last, old, kept, g.age(), g.cfg.GetRetentionBytes())
}

// tooLate finds a record that is there and should not be.
func (g *generation) tooLate(x extent) error {
	first := int(x.first)
	if first >= x.acked {
		return nil
	}
	if old := x.asked.Sub(time.UnixMilli(g.times[first])); g.age() > 0 && old > g.age()+ageSlack+g.late {
		return fmt.Errorf("record %d is %v old and still there, the limit is %v", first, old, g.age())
	}
	if limit := g.cfg.GetRetentionBytes(); limit > 0 && g.late == 0 {
		young := g.at(x.asked.Add(-bytesSlack))
		// The oldest ref reaches beyond the limit: it holds what came in one span.
		second := g.at(time.UnixMilli(g.times[first]).Add(settleAge + time.Minute))
		if over := g.sum(second, x.acked); over > int(limit)+g.sum(young, x.acked) {
			return fmt.Errorf("%d bytes of bodies are there behind the oldest ref, from record %d, the limit is %d, and %d came lately", over, second, limit, g.sum(young, x.acked))
		}
	}
	return nil
}

// at returns the first acknowledged record at or after a time; mu is held.
func (g *generation) at(t time.Time) int {
	return sort.Search(len(g.times), func(i int) bool { return g.times[i] >= t.UnixMilli() })
}
