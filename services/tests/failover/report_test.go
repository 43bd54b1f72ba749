package failover

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
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
