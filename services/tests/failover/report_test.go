package failover

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// report counts what a run did.
type report struct {
	mu       sync.Mutex
	calls    map[string]int // by kind and outcome
	faults   map[string]int
	verdicts map[porcupine.CheckResult]int
	judged   int // operations
	longest  time.Duration
	rounds   int

	settled, reclaimed int           // rounds in which slots were, while the clients were at work
	records, stored    uint64        // verified, and of those settled
	behind             time.Duration // the longest that it took to settle and reclaim the rest
}

func newReport() *report {
	return &report{calls: map[string]int{}, faults: map[string]int{}, verdicts: map[porcupine.CheckResult]int{}}
}

func (r *report) count(o *op) {
	r.mu.Lock()
	defer r.mu.Unlock()
	what := string(o.outcome)
	if o.outcome == refused {
		what = string(o.reason)
	}
	if o.duplicate {
		what = "duplicate"
	}
	r.calls[string(o.kind)+" "+what]++
}

func (r *report) fault(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults[what]++
}

func (r *report) judgement(j *judgement) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.verdicts[j.result]++
	r.judged += j.ops
	r.longest = max(r.longest, j.took)
}

// moved notes what happened to slots during a round.
func (r *report) moved(before, after moved) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if after.settled > before.settled {
		r.settled++
	}
	if after.reclaimed > before.reclaimed {
		r.reclaimed++
	}
}

func (r *report) verified(v *verified) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.records += v.records
	r.stored += v.settled
}

func (r *report) caughtUp(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.behind = max(r.behind, d)
}

// happened fails a run in which too little was settled, reclaimed or read from
// where it is settled to show anything: percent of the rounds must have seen it.
func (r *report) happened(t *testing.T, percent int) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if least := r.rounds * percent / 100; r.settled < least || r.reclaimed < least {
		t.Errorf("of %d rounds, slots were settled during %d and reclaimed during %d", r.rounds, r.settled, r.reclaimed)
	}
	if r.stored == 0 || r.stored < r.records/2 {
		t.Errorf("of %d records verified, %d were settled", r.records, r.stored)
	}
}

// of returns how often a call had an outcome.
func (r *report) of(what string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[what]
}

func (r *report) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "%d rounds; operations: %s\n", r.rounds, table(r.calls))
	fmt.Fprintf(&b, "faults: %s\n", table(r.faults))
	fmt.Fprintf(&b, "settled during %d rounds, reclaimed during %d; the rest took %v at most; %d of %d records verified were settled\n",
		r.settled, r.reclaimed, r.behind.Round(time.Millisecond), r.stored, r.records)
	fmt.Fprintf(&b, "histories: %s, %d operations in them, the longest took %v to judge", table(r.verdicts), r.judged, r.longest.Round(time.Millisecond))
	return b.String()
}

func table[K ~string](m map[K]int) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%s %d", k, m[k]))
	}
	return strings.Join(parts, ", ")
}
