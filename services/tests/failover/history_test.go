package failover

import (
	"slices"
	"sync"
	"time"
)

// history is what clients did with one stream.
type history struct {
	stream string
	began  time.Time

	mu     sync.Mutex
	ops    []*op
	blind  int // appends whose outcome is unknown
	unsure int // other changes whose outcome is unknown
}

func newHistory(stream string) *history { return &history{stream: stream, began: time.Now()} }

// begin returns an operation whose request leaves now.
func (h *history) begin(client int, k kind) *op {
	return &op{client: client, kind: k, call: int64(time.Since(h.began)), ret: never}
}

// end adds an operation whose answer has come, or will not come any more.
func (h *history) end(o *op) {
	now := int64(time.Since(h.began))
	h.mu.Lock()
	defer h.mu.Unlock()
	switch o.outcome {
	case unknown:
		if o.kind == appendOp {
			h.blind++
		} else {
			h.unsure++
		}
	default:
		o.ret = now
	}
	h.ops = append(h.ops, o)
}

// Limits of what is unknown in one history: each of it doubles what Porcupine
// may have to look at.
const (
	maxBlind  = 40
	maxUnsure = 5
)

// full says whether no more appends, or no more other changes, should be made.
func (h *history) full() (appends, others bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.blind >= maxBlind, h.unsure >= maxUnsure
}

// all returns the operations by the time of their request.
func (h *history) all() []*op {
	h.mu.Lock()
	defer h.mu.Unlock()
	ops := slices.Clone(h.ops)
	slices.SortStableFunc(ops, func(a, b *op) int { return int(a.call - b.call) })
	return ops
}
