package reaper

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// exports is what a reaper knows of the exports of the metadata.
type exports struct {
	turn  chan struct{} // whoever has put something into it asks
	asked atomic.Uint64 // how often it was begun to ask

	mu     sync.Mutex
	last   *indexpb.GetExportStateResponse // nil: never asked
	answer uint64                          // of which asking
	first  time.Time                       // when that was first answered
	told   time.Time                       // when it was last said that none is complete for long
}

// ask returns how far exports are, by a call that begins after ask was called. Those
// who wait for their turn meanwhile share the next call.
func (s *Service) ask(ctx context.Context) (*indexpb.GetExportStateResponse, error) {
	x := &s.exports
	before := x.asked.Load()
	select {
	case x.turn <- struct{}{}:
		defer func() { <-x.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	x.mu.Lock()
	last, answer := x.last, x.answer
	x.mu.Unlock()
	if answer > before {
		return last, nil
	}
	n := x.asked.Add(1)
	st, err := s.index.ExportState(ctx)
	if err != nil {
		return nil, fmt.Errorf("how far exports are: %w", err)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.last, x.answer = st, n
	if x.first.IsZero() {
		x.first = s.now()
	}
	return st, nil
}

// unneeded fails with a later while an export that is kept, which a restore may have
// to use, was begun before what the marker is about was dead. It MUST be called only
// after it is proven that all of that is dead for ever: the first call notes in the
// marker which export comes after that, and whoever finds more to be dead later
// MUST take the note away.
//
// The newest two complete exports are kept; both must be younger, since a restore
// goes back to the older one if the newest is damaged. The call that says which
// exports have begun is no old read: an old one would name an export that began
// before. That none are made must be as new. Which ones are complete may be old.
func (s *Service) unneeded(ctx context.Context, m catalog.Marker) error {
	need := m.Due.GetExport()
	if need > 0 && s.oldestKept() >= need {
		return nil
	}
	st, err := s.ask(ctx)
	if err != nil {
		return err
	}
	if !st.GetEnabled() {
		return nil
	}
	if need == 0 {
		need = st.GetBegun() + 1
		m.Due.Export = need
	}
	if st.GetOldestKept() >= need {
		return nil
	}
	s.tellOverdue(ctx, st)
	return later{s.untilExport(st, need), fmt.Sprintf("export %d and the next are not complete, which show that it is not needed", need)}
}

// oldestKept is what the last answer said, which may have grown since.
func (s *Service) oldestKept() uint64 {
	s.exports.mu.Lock()
	defer s.exports.mu.Unlock()
	return s.exports.last.GetOldestKept()
}

// Export waits are a tenth of the interval longer than exports are apart, for the
// time that one takes. At least as often as waitsForExport it is looked whether
// exports were switched off.
const waitsForExport = 6 * time.Hour

// untilExport is when it is worth while to look again whether the exports that a
// marker waits for are complete.
func (s *Service) untilExport(st *indexpb.GetExportStateResponse, need uint64) time.Duration {
	interval := time.Duration(st.GetIntervalMs()) * time.Millisecond
	slack := max(min(interval/10, lookAgain), s.cfg.Interval)
	at := time.UnixMilli(st.GetCompletedBegunAt()).Add(interval)
	if need > st.GetCompleted() {
		at = at.Add(interval) // two are missing
	}
	return min(max(at.Sub(s.now()), 0)+slack, waitsForExport)
}

// tellOverdue says loudly, now and then, that no export is complete for long.
func (s *Service) tellOverdue(ctx context.Context, st *indexpb.GetExportStateResponse) {
	const every = 10 * time.Minute
	interval := time.Duration(st.GetIntervalMs()) * time.Millisecond
	now, x := s.now(), &s.exports
	x.mu.Lock()
	since := x.first
	if at := st.GetCompletedBegunAt(); at > 0 {
		since = time.UnixMilli(at)
	}
	overdue := now.Sub(since) > 3*interval+every && now.Sub(x.told) >= every
	if overdue {
		x.told = now
	}
	x.mu.Unlock()
	if overdue {
		s.log.ErrorContext(ctx, "nothing is deleted, since for long no export of the metadata is complete",
			"since", since, "begun", st.GetBegun(), "completed", st.GetCompleted(), "interval", interval)
	}
}
