package routing

import (
	"context"
	"maps"
	"math/rand/v2"
	"time"

	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/stream"
)

const (
	// suspicion is how long an address that did not answer is not asked in turn,
	// nor believed when others name it as the leader that it was before.
	suspicion = time.Second
	// spread is the mean time between the calls that look whether a shard has a
	// leader by now, however many wait for it.
	spread = 20 * time.Millisecond
	// crowd is how many calls wait for a shard's leader before new ones wait with
	// them instead of asking first.
	crowd = 8
	// quiet is how long a shard has served nobody before there can be a crowd, and
	// the least time between two wakings by one that was served: a stream that
	// fails must not slow those down that do not, nor be asked for by all who wait
	// whenever one of those is served.
	quiet = 100 * time.Millisecond
)

// shard is what is known of a shard's leader, and who waits for it. Guarded by
// Router.mu.
type shard struct {
	epoch    uint64
	address  string    // "": not there any more
	version  uint64    // grows with everything that may help those who wait
	served   time.Time // the last success
	woken    time.Time // by a success
	waiting  int
	news     chan struct{} // closed when version grows; nil: nobody waits
	attempts map[*attempt]struct{}
}

// shard returns the state of a shard; r.mu is held.
func (r *Router) shard(n stream.Shard) *shard {
	s := r.shards[n]
	if s == nil {
		s = &shard{attempts: map[*attempt]struct{}{}}
		r.shards[n] = s
	}
	return s
}

// changed wakes those who wait; Router.mu is held.
func (s *shard) changed() {
	s.version++
	if s.news != nil {
		close(s.news)
		s.news = nil
	}
}

func (r *Router) version(n stream.Shard) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.shard(n).version
}

// setNodes takes the sequencers that discovery sees.
func (r *Router) setNodes(all []discovery.Node) {
	nodes := discovery.Preferred(all)
	addresses := make([]string, len(nodes))
	there := map[string]bool{}
	for i, n := range nodes {
		addresses[i], there[n.Address] = n.Address, true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.nodes) == 0 && len(addresses) > 0 {
		for _, s := range r.shards {
			s.changed() // there is somebody to ask
		}
	}
	r.nodes = addresses
	maps.DeleteFunc(r.suspects, func(address string, _ time.Time) bool { return !there[address] })
}

// suspect reports whether an address did not answer a moment ago; r.mu is held.
func (r *Router) suspect(address string) bool {
	until, ok := r.suspects[address]
	return ok && time.Now().Before(until)
}

// learn notes a leader unless a later one is known; it reports whether that
// says anything new. Calls that wait for a leader go on, and calls to others are
// given up: see attempt.
func (r *Router) learn(n stream.Shard, epoch uint64, address string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.shard(n)
	switch {
	case epoch < s.epoch, epoch == s.epoch && s.address != "":
		return false
	case epoch == s.epoch && r.suspect(address):
		return false // it led, and is not there any more
	}
	newer := epoch > s.epoch
	s.epoch, s.address = epoch, address
	if address == "" {
		return false
	}
	// It was there to take the shard.
	delete(r.suspects, address)
	// Sequencers that name each other must not keep everybody awake.
	if newer {
		s.changed()
	}
	for a := range s.attempts {
		a.leaderIs(epoch, address)
	}
	return true
}

// confirm notes that an address leads, also when nobody said so.
func (r *Router) confirm(n stream.Shard, address string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.suspects, address)
	s := r.shard(n)
	s.served = time.Now()
	if s.address == "" {
		s.address = address
	}
	if s.waiting > 0 && s.served.Sub(s.woken) > quiet {
		s.woken = s.served
		s.changed()
	}
}

// doubt forgets the address of a leader that does not lead, or, gone, did not
// answer; what an older hint says is still not believed.
func (r *Router) doubt(n stream.Shard, address string, gone bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.shard(n); s.address == address {
		s.address = ""
	}
	if gone {
		r.suspects[address] = time.Now().Add(suspicion)
	}
}

// begin chooses whom to ask: the leader, or else any sequencer, in turn. It
// returns an attempt, with no address if there is nobody.
func (r *Router) begin(n stream.Shard) *attempt {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.shard(n)
	a := &attempt{router: r, shard: n, epoch: s.epoch, version: s.version, address: s.address, known: s.address != ""}
	if !a.known {
		a.address = r.next()
	}
	if a.address != "" {
		s.attempts[a] = struct{}{}
	}
	return a
}

// next is the next sequencer in turn, one that answers if possible; r.mu is held.
func (r *Router) next() string {
	for range r.nodes {
		r.turn++
		if address := r.nodes[r.turn%len(r.nodes)]; !r.suspect(address) {
			return address
		}
	}
	if len(r.nodes) == 0 {
		return ""
	}
	return r.nodes[r.turn%len(r.nodes)]
}

// queue lets a new call wait with the others if there is a crowd.
func (r *Router) queue(ctx context.Context, n stream.Shard) bool {
	r.mu.Lock()
	s := r.shards[n]
	alone, version := s == nil || s.waiting < crowd || time.Since(s.served) < quiet, uint64(0)
	if !alone {
		version = s.version
	}
	r.mu.Unlock()
	return alone || r.rest(ctx, n, version, firstPause, time.Now().Add(r.cfg.Patience))
}

// rest waits until it may help to ask again: for news since a version, or for
// about delay, and longer if many wait, so that their number does not matter to
// the sequencers. It reports whether there is time left.
func (r *Router) rest(ctx context.Context, n stream.Shard, version uint64, delay time.Duration, end time.Time) bool {
	if ctx.Err() != nil {
		return false
	}
	r.mu.Lock()
	s := r.shard(n)
	if s.version != version {
		r.mu.Unlock()
		return true
	}
	if s.news == nil {
		s.news = make(chan struct{})
	}
	news := s.news
	s.waiting++
	d := delay/2 + rand.N(delay)
	if few := time.Duration(s.waiting) * spread; few > delay {
		d = firstPause + rand.N(2*few)
	}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		s.waiting--
		r.mu.Unlock()
	}()
	left := time.Until(end)
	timer := time.NewTimer(min(d, max(left, 0)))
	defer timer.Stop()
	select {
	case <-news:
		return true
	case <-timer.C:
		return d <= left
	case <-ctx.Done():
		return false
	}
}
