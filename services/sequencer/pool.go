package sequencer

import (
	"context"
	"fmt"
	"time"

	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/reason"
)

// requestOverhead is what a request costs beside its records, in bytes.
const requestOverhead = 512

// reserve takes room for a request before it is queued, so that numbers are
// never given to what cannot be sent. It waits up to the admission timeout.
func (s *Service) reserve(ctx context.Context, r *request) error {
	if s.admitting.Err() != nil {
		return errStopping()
	}
	if used := s.coordinates.Load(); used >= s.cfg.CoordinateBytes {
		s.evictForRoom()
		if s.coordinates.Load() >= s.cfg.CoordinateBytes {
			s.metrics.refused(ctx, "coordinates")
			return reason.WithOutcome(reason.Over("coordinates",
				fmt.Sprintf("open streams need %d bytes of coordinates, the limit is %d", used, s.cfg.CoordinateBytes), time.Second), reason.NotCommitted)
		}
	}
	n := min(int64(chunk.RawBound(r.records))+requestOverhead, s.cfg.PoolBytes)
	admitting, forget := s.whileAdmitting(ctx)
	defer forget()
	wait, cancel := context.WithTimeout(admitting, s.cfg.AdmissionTimeout)
	defer cancel()
	if err := s.pool.Acquire(wait, n); err != nil {
		switch {
		case s.admitting.Err() != nil:
			return errStopping()
		case ctx.Err() != nil:
			return reason.WithOutcome(reason.New(reason.Code(ctx.Err()), "", "append: "+ctx.Err().Error()), reason.NotCommitted)
		}
		s.metrics.refused(ctx, "append_pool")
		return reason.WithOutcome(reason.Over("append_pool",
			fmt.Sprintf("%d bytes of appends wait for storage, the limit", s.cfg.PoolBytes-s.withheld.Load()), time.Second), reason.NotCommitted)
	}
	r.reserved, r.release = n, s.pool.Release
	return nil
}

// limitPool withholds the part of the pool that the chain-writer does not
// grant; one maximal append always fits. It does not wait: what is withheld may be
// in the hands of appends that only the caller's link can answer.
func (s *Service) limitPool(credit int64) {
	const smallest = 4 << 20
	s.toWithhold.Store(max(0, s.cfg.PoolBytes-max(credit, smallest)))
	s.work.Go(s.adjustPool)
}

func (s *Service) adjustPool() {
	s.poolMu.Lock()
	defer s.poolMu.Unlock()
	have, want := s.withheld.Load(), s.toWithhold.Load()
	switch {
	case want < have:
		s.pool.Release(have - want)
	case want > have:
		// Waits for room that appends under way give back.
		if err := s.pool.Acquire(s.running, want-have); err != nil {
			return
		}
	}
	s.withheld.Store(want)
}
