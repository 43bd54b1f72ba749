package s3

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
)

const (
	hedgeFloor   = 50 * time.Millisecond
	latencySpan  = 128 // reads the percentile is taken of
	latencyEvery = 16  // reads between two computations of it
	// A read earns a tenth of a hedge; ten are saved for a burst.
	hedgeEarned = 0.1
	hedgeSaved  = 10
)

// latencies remembers how long recent reads took until their answer began.
type latencies struct {
	mu     sync.Mutex
	ring   [latencySpan]time.Duration
	n      int // ever added
	p95    time.Duration
	budget float64 // hedges
}

// add notes one read.
func (l *latencies) add(took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ring[l.n%latencySpan] = took
	l.n++
	l.budget = min(l.budget+hedgeEarned, hedgeSaved)
	if l.n%latencyEvery == 0 {
		recent := slices.Clone(l.ring[:min(l.n, latencySpan)])
		slices.Sort(recent)
		l.p95 = recent[len(recent)*95/100]
	}
}

// patience is how long to wait before a read is hedged.
func (l *latencies) patience() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(l.p95, hedgeFloor)
}

// spend takes a hedge from the budget, if there is one.
func (l *latencies) spend() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.budget < 1 {
		return false
	}
	l.budget--
	return true
}

// answer is a GET whose answer has begun; whoever has it closes it.
type answer struct {
	*s3.GetObjectOutput
	attempt *attempt
}

func (a *answer) close() {
	_ = a.Body.Close()
	a.attempt.end()
}

// hedged asks by open, which ends its attempt unless it succeeds, and asks once
// more beside that if it takes long. The first answer wins, the other attempt is
// canceled and closed. An error is an answer too, unless it is passing and the
// other attempt may do better.
func (s *Store) hedged(ctx context.Context, open func(*attempt) (*answer, error)) (*answer, error) {
	type result struct {
		from *attempt
		got  *answer
		err  error
	}
	results, over := make(chan result), make(chan struct{})
	defer close(over)
	var attempts []*attempt
	launch := func() {
		a := begin(ctx, s.config.Silence)
		attempts = append(attempts, a)
		// Ends soon after we return, as its attempt is canceled; Close waits.
		s.running.Go(func() {
			got, err := open(a)
			select {
			case results <- result{a, got, err}:
			case <-over:
				if err == nil {
					got.close()
				}
			}
		})
	}
	start := time.Now()
	launch()
	timer := time.NewTimer(s.reads.patience())
	defer timer.Stop()
	for failed := 0; ; {
		select {
		case <-timer.C:
			if s.reads.spend() {
				launch()
			}
		case r := <-results:
			if failed++; passing(r.err) && failed < len(attempts) {
				continue
			}
			for _, a := range attempts {
				if a != r.from {
					a.end()
				}
			}
			if !passing(r.err) {
				s.reads.add(time.Since(start))
			}
			return r.got, r.err
		}
	}
}
