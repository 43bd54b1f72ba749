package sequencer

import (
	"context"
	"sync"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/reason"
)

// How a sequencer stops: Run says in which order. For its callers it means:
//   - An append that comes later is refused with errStopping: NOT_COMMITTED and
//     without a leader, so that routers and clients ask the successor.
//   - An append that was taken before is answered as ever.
//   - A session is both: what it has queued is answered, then it ends with
//     errStopping, which is true of every batch that has no answer. Nothing else
//     would end an idle session, and a stop would wait for it.
//   - Who waits at a tail hears it when the service does not run any more.

// errStopping is for what was not taken.
func errStopping() error {
	return reason.WithOutcome(reason.New(codes.Unavailable, reason.NoLeader, "the sequencer is stopping"), reason.NotCommitted)
}

// whileAdmitting returns a context that ends with ctx, or when a stop begins.
// The second result MUST be called.
func (s *Service) whileAdmitting(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	forget := context.AfterFunc(s.admitting, cancel)
	return ctx, func() { forget(); cancel() }
}

// intake is the moment at which a session stops taking batches.
type intake struct {
	mu     sync.Mutex
	taken  uint64
	closed bool
}

// enter reports whether one more batch may be taken; the answering side MUST
// then be given it.
func (i *intake) enter() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return false
	}
	i.taken++
	return true
}

// close reports whether the batches answered are all that were taken; if so,
// no more will be.
func (i *intake) close(answered uint64) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed = i.taken == answered
	return i.closed
}
