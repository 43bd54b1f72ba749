package settler

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/settler/v1"
)

const (
	// settlesAtOnce is how many chains are settled in parallel; they share the
	// memory.
	settlesAtOnce = 2
	// settleWindows is how many directories are settled at once, without waiting:
	// half of what stops appends.
	settleWindows = 512
)

// unsettled is a directory that is not settled yet.
type unsettled struct {
	to    stream.Slot
	bytes uint64 // of its entries; 0 if its row does not tell
	at    int64  // when it was absorbed, milliseconds since the Unix epoch; 0: long ago
}

// unsettled returns how much waits, and since when. Called with the service's mu
// held.
func (t *tracked) unsettled() (bytes uint64, since int64) {
	for _, w := range t.windows {
		bytes += w.bytes
	}
	if len(t.windows) > 0 {
		since = max(t.windows[0].at, 1)
	}
	return bytes, since
}

// settledTo notes how far the chain is settled. Called with the service's mu held.
func (t *tracked) settledTo(to stream.Slot) {
	t.settled = max(t.settled, to)
	t.surveyed = max(t.surveyed, t.settled)
	t.windows = slices.DeleteFunc(t.windows, func(w unsettled) bool { return w.to <= t.settled })
}

// survey learns of directories that were added.
func (s *Service) survey(ctx context.Context, t *tracked) error {
	s.mu.Lock()
	from, to := t.surveyed, t.from
	s.mu.Unlock()
	if from >= to {
		return nil
	}
	rows, err := s.engine.index.Directories(ctx, t.name, uint64(from), uint64(to))
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range rows {
		// What is missing comes later: the list may be an old read.
		if r.GetFrom() == uint64(t.surveyed) {
			t.surveyed = stream.Slot(r.GetTo())
			t.windows = append(t.windows, unsettled{to: t.surveyed, bytes: r.GetEntryBytes(), at: r.GetAbsorbedAt()})
		}
	}
	return nil
}

// ripe says whether a chain is to be settled now. Called with mu held.
func (s *Service) ripe(t *tracked, now time.Time) bool {
	if len(t.windows) == 0 {
		return false
	}
	bytes, _ := t.unsettled()
	return bytes >= uint64(s.cfg.SettleBytes) || len(t.windows) >= settleWindows ||
		now.UnixMilli()-t.windows[0].at >= s.cfg.SettleAge.Milliseconds() || t.sealed && t.from >= t.cut
}

// toSettle returns chains to settle now, each with a token, and marks them: those
// that wait for longest come first.
func (s *Service) toSettle() []*tracked {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	var out []*tracked
	for _, t := range s.tracked {
		if s.settling[t.name] == nil && !t.settleNext.After(now) && s.ripe(t, now) {
			out = append(out, t)
		}
	}
	slices.SortFunc(out, func(a, b *tracked) int { return cmp.Compare(a.windows[0].at, b.windows[0].at) })
	for i, t := range out {
		select {
		case s.settlers <- struct{}{}:
			s.settling[t.name] = make(chan struct{})
		default:
			return out[:i]
		}
	}
	return out
}

// settle settles the next span of a chain and says when to try again.
func (s *Service) settle(ctx context.Context, t *tracked) {
	to, err := s.engine.settle(ctx, t.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.released(t.name)
	if ctx.Err() != nil {
		return
	}
	s.settledLocked(ctx, t, to, err)
}

// released ends the settling of a chain. Called with mu held.
func (s *Service) released(name string) {
	close(s.settling[name])
	delete(s.settling, name)
	<-s.settlers
}

// settledLocked notes what came of a try to settle.
func (s *Service) settledLocked(ctx context.Context, t *tracked, to stream.Slot, err error) {
	now := s.now()
	pause := min(s.cfg.Interval<<min(t.settleFailures, 10), maxPause)
	var why errBlocked
	switch {
	case errors.As(err, &why):
		if why.why != t.blocked {
			s.log.WarnContext(ctx, "a chain is not settled any further for now", "chain", t.name, "settled_to", uint64(t.settled), "why", why.why)
		}
		t.blocked = why.why
	case err != nil:
		s.metrics.settleFailures.Add(ctx, 1)
		if ctx.Err() == nil {
			s.log.WarnContext(ctx, "settle", "chain", t.name, "settled_to", uint64(t.settled), "again_in", pause.String(), "err", err)
		}
		t.blocked = err.Error()
	case to <= t.settled:
		t.settleNext = now.Add(pause) // an old read
		return
	default:
		t.settledTo(to)
		t.settleFailures, t.settleNext, t.blocked = 0, now, ""
		for _, o := range s.tracked {
			if o.blocked != "" {
				o.settleNext = now // it may have waited for this one
			}
		}
		return
	}
	t.settleFailures++
	t.settleNext = now.Add(pause)
}

// begin waits for a chain's turn to be settled, and for a token.
func (s *Service) begin(ctx context.Context, name string) error {
	select {
	case s.settlers <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		s.mu.Lock()
		other := s.settling[name]
		if other == nil {
			s.settling[name] = make(chan struct{})
			s.mu.Unlock()
			return nil
		}
		s.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			<-s.settlers
			return ctx.Err()
		}
	}
}

// Settle settles what a chain has absorbed now.
func (s *Service) Settle(ctx context.Context, req *settlerpb.SettleRequest) (*settlerpb.SettleResponse, error) {
	id, err := stream.ParseChainID(req.GetChainId())
	if err != nil {
		return nil, reason.Field("chain_id", err.Error())
	}
	record, _, err := s.engine.index.GetChain(ctx, req.GetChainId())
	if err != nil {
		return nil, status(err)
	}
	to, err := s.settleTo(ctx, id, record)
	var why errBlocked
	switch {
	case errors.As(err, &why):
		return nil, reason.New(codes.FailedPrecondition, "", why.why)
	case err != nil && ctx.Err() != nil:
		return nil, reason.New(reason.Code(ctx.Err()), "", ctx.Err().Error())
	case err != nil:
		return nil, status(err)
	}
	return &settlerpb.SettleResponse{SettledTo: uint64(to)}, nil
}

func (s *Service) settleTo(ctx context.Context, id stream.ChainID, record *indexpb.Chain) (stream.Slot, error) {
	name := id.String()
	to, end := stream.Slot(record.GetSettledTo()), stream.Slot(record.GetAbsorbedTo())
	for to < end {
		if err := s.begin(ctx, name); err != nil {
			return to, err
		}
		next, err := s.engine.settle(ctx, id)
		s.mu.Lock()
		s.released(name)
		if t := s.tracked[name]; t != nil && ctx.Err() == nil {
			s.settledLocked(ctx, t, next, err)
		}
		s.mu.Unlock()
		if err != nil {
			return to, err
		}
		if next <= to {
			return to, errMoved
		}
		to = next
	}
	return to, nil
}
