package chainwriter

import (
	"context"
	"time"

	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/stream"
)

// backlogInterval is how often the index is asked how far the present chain is
// absorbed and settled, while anything is not absorbed or flights wait for it to
// be settled. An idle chain costs nothing.
const backlogInterval = time.Second

// watchBacklog keeps the present chain's backlog in view until ctx ends, and
// absorbs itself when the settlers have fallen behind by half of the budget.
func (s *Service) watchBacklog(ctx context.Context) {
	tick := time.NewTicker(backlogInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s.mu.Lock()
		w := s.current
		s.mu.Unlock()
		if w == nil {
			continue
		}
		if err := s.reduceBacklog(ctx, w); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "the chain's backlog stays", "chain", w.id.String(), "err", err)
		}
	}
}

func (s *Service) reduceBacklog(ctx context.Context, w *writer) error {
	if !w.curious() {
		return nil
	}
	r, _, err := s.index.GetChain(ctx, w.id.String())
	if err != nil {
		return err
	}
	w.learn(stream.Slot(r.GetAbsorbedTo()), stream.Slot(r.GetSettledTo()))
	// Window by window, so that flights leave again as soon as there is room.
	for {
		backlog, absorbed := w.behind()
		if backlog < max(s.cfg.BacklogFlights/2, 1) {
			return nil
		}
		to, err := s.chains.AbsorbTo(ctx, w.id, absorbed+min(chain.Window, stream.Slot(backlog)))
		if err != nil {
			return err
		}
		w.learn(to, 0)
	}
}

// curious reports whether there is something to learn of the chain.
func (w *writer) curious() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.ended && (w.backlog() > 0 || w.atLimit() == limitUnsettled)
}

// behind returns the backlog and how far the chain is absorbed; 0 once it ended.
func (w *writer) behind() (int, stream.Slot) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return 0, w.absorbed
	}
	return w.backlog(), w.absorbed
}

// learn takes in how far the chain is absorbed and settled, as somebody read: it
// may be less than what was learned before.
func (w *writer) learn(absorbed, settled stream.Slot) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.absorbed = max(w.absorbed, absorbed)
	w.unsettled.learn(w.absorbed, settled)
	w.changed.Broadcast()
}
