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
	return &lease{life: stream.NewLifeID(), ttl: ttl, margin: min(ttl/10, marginMost), alone: alone, now: now}
}

// marginMost is the greatest margin: it covers clocks that run at different
// speeds for the length of a lease, which are off by 0.1 % at worst, and the way
// from looking at the clock to the answer.
const marginMost = 500 * time.Millisecond

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

// sinceSent is how long the last successful renewal is ago, by the clock that
// went further: the monotonic one stands still in a suspended machine.
func (l *lease) sinceSent() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	return max(now.Sub(l.sent), now.Round(0).Sub(l.sent.Round(0)))
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
		State: state, Renewals: renewals, TtlMs: s.lease.ttl.Milliseconds(), Weight: s.cfg.Weight,
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
			call, cancel := context.WithTimeout(ctx, l.ttl/3)
			row, v, gerr := s.index.GetLife(call, l.life.String())
			cancel()
			over := gerr == nil && row.GetState() != indexpb.LifeState_LIFE_STATE_LIVE
			// Nor can that it is gone, so long after it was there: see forgetLives.
			over = over || catalog.IsNotFound(gerr) && version != catalog.Absent && l.sinceSent() > lifeKept/2
			if over {
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
	first    time.Time // when the life was first seen
}

// peer is a life that may hold shards, and the node that it runs on.
type peer struct {
	node, address string
	weight        uint32
	since         time.Time // when this life first saw it; zero of itself
}

// census is which lives there are, by id.
type census struct {
	live map[string]peer
	over map[string]int64 // the version of its row
}

// lives counts the lives, after declaring those dead that did not renew for
// their lease + margin, or all others if they are known to be dead.
func (s *Service) lives(ctx context.Context) (census, error) {
	c := census{live: map[string]peer{}, over: map[string]int64{}}
	seen := map[string]watchedLife{}
	// Who could not look has not watched: after an outage of the metastore, in which
	// nobody could renew, everybody gets a whole lease to do so.
	unwatched := s.now().Sub(s.lookedAt) > s.lease.ttl/2
	err := s.index.EachLife(ctx, func(l *indexpb.Life, version int64) error {
		id := l.GetLifeId()
		if l.GetState() != indexpb.LifeState_LIFE_STATE_LIVE {
			c.over[id] = version
			return nil
		}
		p := peer{node: l.GetNodeId(), address: l.GetAddress(), weight: l.GetWeight()}
		if id == s.lease.life.String() {
			c.live[id] = p
			return nil
		}
		w, ok := s.watched[id]
		if !ok {
			w.first = s.now()
		}
		if !ok || unwatched || w.renewals != l.GetRenewals() {
			w.renewals, w.since = l.GetRenewals(), s.now()
		}
		p.since = w.first
		ttl := time.Duration(l.GetTtlMs()) * time.Millisecond
		if !s.cfg.FormerLivesDead && s.now().Sub(w.since) < ttl+s.lease.margin {
			seen[id], c.live[id] = w, p
			return nil
		}
		l.State = indexpb.LifeState_LIFE_STATE_DEAD
		version, err := s.index.PutLife(ctx, l, version)
		if err != nil {
			if catalog.IsConflict(err) || catalog.IsRuleBroken(err) {
				// It renewed after all, or another was faster; look again next time.
				seen[id], c.live[id] = w, p
				return nil
			}
			return err
		}
		c.over[id] = version
		s.log.InfoContext(ctx, "declared a life dead", "life", id, "of", l.GetNodeId())
		return nil
	})
	if err == nil {
		s.watched, s.lookedAt = seen, s.now()
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
	if _, over := c.over[holder]; over || holder == "" {
		return true, nil
	}
	version, err := s.index.PutLife(ctx, &indexpb.Life{LifeId: holder, State: indexpb.LifeState_LIFE_STATE_DEAD}, catalog.Absent)
	switch {
	case err == nil:
		c.over[holder] = version
		return true, nil
	case catalog.IsConflict(err) || catalog.IsRuleBroken(err):
		c.live[holder] = peer{} // the next census sees it
		return false, nil
	}
	return false, err
}

const (
	// lifeKept is how long the row of a life that is over stays: for people, and
	// for a process that hung and wants to know what became of it.
	lifeKept = time.Hour
	// forgetMost is how many rows one look removes, so that it stays short.
	forgetMost = 16
)

// forgetLives removes the rows of lives that are over for long and hold no shard.
func (s *Service) forgetLives(ctx context.Context, c *census, records map[stream.Shard]*indexpb.Shard) {
	ended := map[string]time.Time{}
	for id := range c.over {
		if ended[id] = s.ended[id]; ended[id].IsZero() {
			ended[id] = s.now()
		}
	}
	s.ended = ended
	holders := map[string]bool{}
	for _, r := range records {
		holders[r.GetHolderLife()] = true
	}
	n := 0
	for id, version := range c.over {
		if holders[id] || s.now().Sub(ended[id]) < lifeKept || n == forgetMost {
			continue
		}
		n++
		// Another may be faster; whatever fails is seen again at the next look.
		if err := s.index.DeleteLife(ctx, id, version); err != nil {
			s.log.DebugContext(ctx, "a life that is over stays listed", "life", id, "err", err)
		}
	}
}
