package settler

import (
	"context"
	"errors"
	"hash/fnv"
	"time"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// tracked is a chain that this settler looks after. Its fields are guarded by
// the service's mu.
type tracked struct {
	id       stream.ChainID
	name     string // the id as text
	sealed   bool
	cut      stream.Slot // of a sealed one
	from     stream.Slot // absorbed_to, as last known
	seen     stream.Slot // slots below it were seen
	looking  bool        // a worker is at it
	active   bool        // it had something at the last look of an interval
	looked   time.Time   // when slots below a full window were looked for last
	next     time.Time   // when to look again
	failures int         // in a row
	waits    time.Time   // since when there was always a backlog; zero: there is none
	stuck    string      // why it is not absorbed any further

	settled        stream.Slot // settled_to, as last known
	surveyed       stream.Slot // directories below it are known
	windows        []unsettled // those above settled
	settleNext     time.Time   // when to try to settle again
	settleFailures int         // in a row
	blocked        string      // why it is not settled any further
}

// backlog is how many slots are known to wait. Called with the service's mu held.
func (t *tracked) backlog() uint64 {
	if end := max(t.cut, t.seen); end > t.from {
		return uint64(end - t.from)
	}
	return 0
}

// waiting notes whether there is a backlog. Called with the service's mu held,
// whenever that may have changed.
func (t *tracked) waiting(now time.Time) {
	if t.backlog() == 0 {
		t.waits = time.Time{}
	} else if t.waits.IsZero() {
		t.waits = now
	}
}

// track makes tracked what a listing found.
func (s *Service) track(needed map[string]*indexpb.Chain) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.tracked {
		if needed[name] == nil {
			delete(s.tracked, name) // done, or another's
		}
	}
	for name, c := range needed {
		t := s.tracked[name]
		if t == nil {
			id, err := stream.ParseChainID(name)
			if err != nil {
				continue // list has said so
			}
			t = &tracked{id: id, name: name}
			s.tracked[name] = t
		}
		t.from = max(t.from, stream.Slot(c.GetAbsorbedTo()))
		t.settledTo(stream.Slot(c.GetSettledTo()))
		if c.GetState() != indexpb.ChainState_CHAIN_STATE_OPEN && !t.sealed {
			t.sealed, t.cut, t.next = true, stream.Slot(c.GetCut()), time.Time{}
		}
		t.waiting(s.now())
	}
}

// due returns the chains to look at now, and marks them.
func (s *Service) due() []*tracked {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	var out []*tracked
	for _, t := range s.tracked {
		if !t.looking && !t.next.After(now) {
			t.looking = true
			out = append(out, t)
		}
	}
	return out
}

// maxPause is how long a chain that fails is left alone at most.
const maxPause = time.Minute

// look absorbs what a chain has, if it is time, and says when to look again.
func (s *Service) look(ctx context.Context, t *tracked) {
	s.mu.Lock()
	from, active, looked, now := t.from, t.active, t.looked, s.now()
	sealed, done := t.sealed, t.sealed && from >= t.cut
	s.mu.Unlock()
	whole := sealed || now.Sub(looked) >= s.cfg.Interval
	found, err := sealed && !done, error(nil)
	switch {
	case whole && !sealed:
		found, err = s.chains.Holds(ctx, t.id, from)
	case !whole && active:
		// Only a full window is worth a directory before the interval is over.
		found, err = s.chains.Holds(ctx, t.id, from+chain.Window-1)
	}
	if err == nil && found {
		s.mu.Lock()
		t.seen = from + 1
		if !whole {
			t.seen = from + chain.Window
		}
		t.waiting(s.now())
		s.mu.Unlock()
		var to stream.Slot
		to, err = s.chains.Absorb(ctx, t.id)
		s.absorbed(ctx, t.name, to)
	}
	// What is absorbed is settled even if no more can be.
	if serr := s.survey(ctx, t); err == nil {
		err = serr
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t.looking = false
	if whole {
		t.looked, t.active = now, found
	}
	if err != nil && ctx.Err() == nil {
		pause := min(s.cfg.Interval<<min(t.failures, 10), maxPause)
		t.failures++
		t.next = now.Add(pause)
		t.stuck = "absorbing fails: " + err.Error()
		s.failed(ctx, t, err, pause)
		return
	}
	t.failures, t.stuck = 0, ""
	t.next = now.Add(s.cfg.Interval)
	if t.active {
		t.next = now.Add(s.cfg.Probe)
	}
}

func (s *Service) failed(ctx context.Context, t *tracked, err error, pause time.Duration) {
	s.metrics.failures.Add(ctx, 1)
	if errors.Is(err, chain.ErrBroken) || errors.Is(err, chain.ErrForeign) || errors.Is(err, bundle.ErrCorrupt) {
		s.log.ErrorContext(ctx, "a chain is damaged and is not absorbed any further", "chain", t.name, "absorbed_to", uint64(t.from), "again_in", pause.String(), "err", err)
		return
	}
	if ctx.Err() == nil {
		s.log.WarnContext(ctx, "absorb", "chain", t.name, "again_in", pause.String(), "err", err)
	}
}

// absorbed notes how far a chain is.
func (s *Service) absorbed(ctx context.Context, name string, to stream.Slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tracked[name]
	if t == nil || to <= t.from {
		return
	}
	s.metrics.absorbed.Add(ctx, int64(to-t.from))
	t.from = to
	t.waiting(s.now())
}

// load returns what this settler looks after.
func (s *Service) load() load {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now().UnixMilli()
	out := load{chains: int64(len(s.tracked))}
	for _, t := range s.tracked {
		out.backlog += int64(t.backlog())
		if _, since := t.unsettled(); since > 0 {
			out.lag = max(out.lag, (now-since)/1000)
		}
		if t.blocked != "" {
			out.blocked++
		}
	}
	return out
}

// score is the rendezvous score of a node for a chain: the highest wins.
func score(key, node string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key + "\x00" + node))
	// FNV's high bits hardly depend on the last bytes; finish as splitmix64 does.
	x := h.Sum64()
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
