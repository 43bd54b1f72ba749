package sequencer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// errDeposed means that this life was declared dead or gave up.
var errDeposed = errors.New("this life's lease is over")

// lease is the right of one life to answer from memory. It is renewed by
// compare-and-set every third of its length and holds until the send time of
// the last successful renewal + length - margin: whoever wants to take over
// watches the record unchanged for length + margin.
type lease struct {
	life   stream.LifeID
	ttl    time.Duration
	margin time.Duration
	// alone: no other life can run, so nobody can declare this one dead.
	alone bool
	now   func() time.Time

	mu   sync.Mutex
	sent time.Time // of the last successful renewal; zero: never held
	lost bool
}

func newLease(ttl time.Duration, alone bool, now func() time.Time) *lease {
	return &lease{life: stream.NewLifeID(), ttl: ttl, margin: ttl / 10, alone: alone, now: now}
}

// valid reports whether answers from memory still hold. Call it after reading
// the state that is answered. It wants both clocks to agree: the monotonic one
// stands still in a suspended machine, the wall one may be set back.
func (l *lease) valid() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost || l.sent.IsZero() {
		return false
	}
	if l.alone {
		return true
	}
	now := l.now()
	length := l.ttl - l.margin
	wall := now.Round(0).Sub(l.sent.Round(0))
	return now.Sub(l.sent) < length && wall < length && wall > -length
}

func (l *lease) renewed(sent time.Time) {
	l.mu.Lock()
	l.sent = sent
	l.mu.Unlock()
}

func (l *lease) isLost() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

func (l *lease) end() {
	l.mu.Lock()
	l.lost = true
	l.mu.Unlock()
}

// record is the life's row.
func (s *Service) lifeRecord(state indexpb.LifeState, renewals uint64) *indexpb.Life {
	return &indexpb.Life{
		LifeId: s.lease.life.String(), NodeId: s.cfg.NodeID, Address: s.cfg.Address, Zone: s.cfg.Zone,
		State: state, Renewals: renewals, TtlMs: s.lease.ttl.Milliseconds(),
	}
}

// keepLease makes the life's row and renews it until ctx ends or the life is
// over; then errDeposed.
func (s *Service) keepLease(ctx context.Context, held func()) error {
	l := s.lease
	version := catalog.Absent
	for renewals := uint64(1); ; renewals++ {
		sent := l.now()
		// A call that hangs must leave time for another one.
		call, cancel := context.WithTimeout(ctx, l.ttl/3)
		v, err := s.index.PutLife(call, s.lifeRecord(indexpb.LifeState_LIFE_STATE_LIVE, renewals), version)
		cancel()
		next := min(jittered(retryMost), l.ttl/10)
		switch {
		case err == nil:
			next = max(0, l.ttl/3-l.now().Sub(sent))
			version = v
			l.renewed(sent)
			s.metrics.leaseRenewed(ctx)
			if held != nil {
				held()
				held = nil
			}
		case ctx.Err() != nil:
			return nil
		case catalog.IsConflict(err) || catalog.IsRuleBroken(err):
			// Another ended this life; or an own renewal landed whose reply was lost,
			// or the index judged by an old read. Lives do not come back, so that it
			// is over can not be an old read.
			row, v, gerr := s.index.GetLife(ctx, l.life.String())
			if gerr == nil && row.GetState() != indexpb.LifeState_LIFE_STATE_LIVE {
				l.end()
				return fmt.Errorf("life %s: %w", l.life, errDeposed)
			}
			if gerr == nil {
				version, renewals = v, max(renewals, row.GetRenewals())
			}
			next = jittered(retryLeast)
			s.log.WarnContext(ctx, "lease renewal met another version", "life", l.life.String(), "err", err)
		default:
			s.log.WarnContext(ctx, "lease not renewed", "life", l.life.String(), "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(next):
		}
	}
}

// watchedLife is what this life has seen of another.
type watchedLife struct {
	renewals uint64
	since    time.Time // when renewals was first seen
}

// census is which lives there are, by id.
type census struct {
	live map[string]string // that may hold shards: the id of the node
	over map[string]bool
}

// lives counts the lives, after declaring those dead that did not renew for
// their lease + margin, or all others if they are known to be dead.
func (s *Service) lives(ctx context.Context) (census, error) {
	c := census{live: map[string]string{}, over: map[string]bool{}}
	seen := map[string]watchedLife{}
	err := s.index.EachLife(ctx, func(l *indexpb.Life, version int64) error {
		if l.GetState() != indexpb.LifeState_LIFE_STATE_LIVE {
			c.over[l.GetLifeId()] = true
			return nil
		}
		if l.GetLifeId() == s.lease.life.String() {
			c.live[l.GetLifeId()] = l.GetNodeId()
			return nil
		}
		w, ok := s.watched[l.GetLifeId()]
		if !ok || w.renewals != l.GetRenewals() {
			w = watchedLife{renewals: l.GetRenewals(), since: s.now()}
		}
		ttl := time.Duration(l.GetTtlMs()) * time.Millisecond
		if !s.cfg.FormerLivesDead && s.now().Sub(w.since) < ttl+s.lease.margin {
			seen[l.GetLifeId()] = w
			c.live[l.GetLifeId()] = l.GetNodeId()
			return nil
		}
		l.State = indexpb.LifeState_LIFE_STATE_DEAD
		if _, err := s.index.PutLife(ctx, l, version); err != nil {
			if catalog.IsConflict(err) || catalog.IsRuleBroken(err) {
				// It renewed after all, or another was faster; look again next time.
				c.live[l.GetLifeId()] = l.GetNodeId()
				return nil
			}
			return err
		}
		c.over[l.GetLifeId()] = true
		s.log.InfoContext(ctx, "declared a life dead", "life", l.GetLifeId(), "node", l.GetNodeId())
		return nil
	})
	if err == nil {
		s.watched = seen
	}
	return c, err
}

// gone reports whether the holder of a shard can hold it no more. A life that the
// census did not see may be a newcomer, or the census an old read: it is made
// DEAD where there is no row, which fails if there is one.
func (s *Service) gone(ctx context.Context, c *census, holder string) (bool, error) {
	if _, live := c.live[holder]; live {
		return false, nil
	}
	if holder == "" || c.over[holder] {
		return true, nil
	}
	_, err := s.index.PutLife(ctx, &indexpb.Life{LifeId: holder, State: indexpb.LifeState_LIFE_STATE_DEAD}, catalog.Absent)
	switch {
	case err == nil:
		c.over[holder] = true
		return true, nil
	case catalog.IsConflict(err) || catalog.IsRuleBroken(err):
		c.live[holder] = "" // the next census sees it
		return false, nil
	}
	return false, err
}
