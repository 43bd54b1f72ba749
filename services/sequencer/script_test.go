package sequencer

import (
	"cmp"
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
)

// What tests tell the writer to do, and ask it.

// script says what becomes of the entries that arrive from now on.
func (w *writer) script(f func(*chainwriterpb.Entry) fate) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fates = f
}

// always is a script for entries of streams; all have the same fate.
func always(f fate) func(*chainwriterpb.Entry) fate {
	return func(*chainwriterpb.Entry) fate { return f }
}

// release lets everything go on that is held, and all that comes.
func (w *writer) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fates = nil
	if w.chain != nil {
		w.chain.land(w.chain.waiting, true)
		w.chain.waiting = nil
	}
}

// releaseHeld lets go on what is held; what comes is held as before.
func (w *writer) releaseHeld() {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.chain
	held := c.waiting
	c.waiting = nil
	c.land(held, true)
}

// disconnect breaks every call; the chain stays open.
func (w *writer) disconnect() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.chain.endCalls(reason.New(codes.Unavailable, "", "the connection broke"))
}

// note adds a step.
func (w *writer) note(step string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.steps = append(w.steps, step)
}

// takeSteps returns the steps since the last call.
func (w *writer) takeSteps() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.steps
	w.steps = nil
	return out
}

// arrivals returns how many entries of an epoch came.
func (w *writer) arrivals(epoch stream.Epoch) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, e := range w.arrived {
		if e.GetEpoch() == uint64(epoch) {
			n++
		}
	}
	return n
}

// total returns how many entries came.
func (w *writer) total() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.arrived)
}

// held returns how many entries wait.
func (w *writer) held() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.chain == nil {
		return 0
	}
	return len(w.chain.waiting)
}

// landed returns the entries that chains hold, fences left out, in the order of
// their shards' logs.
func (w *writer) landed() []*chainwriterpb.Entry {
	w.mu.Lock()
	defer w.mu.Unlock()
	var chains []*memChain
	for _, c := range w.chains {
		chains = append(chains, c)
	}
	slices.SortFunc(chains, func(a, b *memChain) int { return slices.Compare(a.id[:], b.id[:]) })
	var out []*chainwriterpb.Entry
	for _, c := range chains {
		for _, e := range c.slots {
			if e.GetKind() != chainwriterpb.EntryKind_ENTRY_KIND_FENCE {
				out = append(out, e)
			}
		}
	}
	// A shard may come back to a chain.
	slices.SortStableFunc(out, func(a, b *chainwriterpb.Entry) int { return cmp.Compare(a.GetEpoch(), b.GetEpoch()) })
	return out
}
