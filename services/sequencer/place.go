package sequencer

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"sync"
	"time"

	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// lookMost is how long placement waits at most between two looks at the lives
// of others: a dead one is then followed soon after its lease has run out.
const lookMost = 500 * time.Millisecond

// vacantLeases is for how many leases a vacant shard waits for the node that it
// falls to; a node may live and yet reach no chain-writer.
const vacantLeases = 2

// place takes the shards that nobody alive holds and that fall to this life by
// rendezvous, and hands those over that fall to others. It looks at everything
// as often as leases are renewed, and at once when the lives change.
func (s *Service) place(ctx context.Context) {
	pause, said := retryLeast, ""
	// Until ctx ends: a stop must not wait for a recovery that storage holds up.
	var taking sync.WaitGroup
	defer taking.Wait()
	for {
		next := s.lease.ttl / 3
		seen, err := s.placeOnce(ctx, &taking)
		if err == nil {
			pause, said = retryLeast, ""
		} else if ctx.Err() == nil {
			next = min(next, jittered(pause))
			pause = min(2*pause, retryMost)
			if err.Error() != said {
				said = err.Error()
				s.log.WarnContext(ctx, "placement waits", "err", err)
			}
		}
		s.evictIdle()
		if !s.watchLives(ctx, seen, next) {
			return
		}
	}
}

// watchLives returns when the time is over, or before it when the lives are not
// those that were seen; false when ctx has ended.
func (s *Service) watchLives(ctx context.Context, seen census, patience time.Duration) bool {
	over := time.NewTimer(patience)
	defer over.Stop()
	for {
		var look <-chan time.Time
		// Nobody else is there whose death matters; a newcomer can wait.
		if len(seen.live) > 1 {
			look = time.After(min(s.lease.ttl/10, lookMost))
		}
		select {
		case <-ctx.Done():
			return false
		case <-over.C:
			return true
		case <-s.wake:
			return true
		case <-look:
		}
		now, err := s.lives(ctx)
		if err != nil || !maps.EqualFunc(now.live, seen.live, func(peer, peer) bool { return true }) {
			return ctx.Err() == nil
		}
	}
}

// placeOnce starts to take what falls to this life, and to hand over what does
// not. Shards are listed before lives: who holds a shard in the list was there
// before the census.
func (s *Service) placeOnce(ctx context.Context, taking *sync.WaitGroup) (census, error) {
	records, err := s.index.ListShards(ctx)
	if err != nil {
		return census{}, fmt.Errorf("list shards: %w", err)
	}
	lives, err := s.lives(ctx)
	if err != nil {
		return census{}, fmt.Errorf("list lives: %w", err)
	}
	peers := s.placeable(ctx, &lives)
	_, self := peers[s.cfg.NodeID]
	s.others.Store(len(peers) > 1 || !self)
	var vacant []*shard
	for _, sh := range s.shards {
		record := records[sh.number]
		sh.mu.Lock()
		held, busy, lost := sh.held, sh.taking, sh.held && record.GetEpoch() > sh.record.GetEpoch()
		// The list may be older than what is known: the shard was handed over
		// meanwhile, and its record as it was before says that it is our own.
		epoch, old := sh.epoch, record.GetEpoch() < sh.record.GetEpoch()
		if !held && !old {
			sh.record = record
		}
		sh.mu.Unlock()
		if lost {
			s.fenced(sh, epoch)
		}
		if held || busy || old {
			continue
		}
		ours, err := s.falls(ctx, &lives, peers, sh.number, record)
		if err != nil {
			return census{}, fmt.Errorf("end life %s: %w", record.GetHolderLife(), err)
		}
		if ours {
			s.takeable.Store(sh.number, record.GetHolderLife())
			vacant = append(vacant, sh)
		}
	}
	if len(vacant) > 0 {
		// Without a chain-writer none of them could be taken.
		if _, err := s.links.get(ctx); err != nil {
			s.notReady("waiting for a chain-writer: " + err.Error())
			return census{}, err
		}
	}
	for _, sh := range vacant {
		if !sh.startTaking() {
			continue // it was handed over meanwhile
		}
		// One that cannot recover must not keep the others, nor the next look.
		taking.Go(func() { s.takeOver(ctx, sh) })
	}
	s.reportReady()
	s.rebalance(ctx, peers, taking)
	s.forgetLives(ctx, &lives, records)
	return lives, nil
}

// falls reports whether a shard that this life does not hold is to be taken by it.
func (s *Service) falls(ctx context.Context, lives *census, peers map[string]peer, n stream.Shard, record *indexpb.Shard) (bool, error) {
	if record.GetState() == indexpb.ShardState_SHARD_STATE_RELEASED {
		// Who let it go does not come first: it drains, or could not recover it.
		if by := lives.live[record.GetHolderLife()].node; by != "" && len(peers) > 1 {
			peers = maps.Clone(peers)
			delete(peers, by)
		}
	} else {
		if record.GetHolderLife() == s.lease.life.String() {
			// A shard that this life let go because of an old read is still its own:
			// nobody else would take it.
			return true, nil
		}
		gone, err := s.gone(ctx, lives, record.GetHolderLife())
		if err != nil {
			return false, err
		}
		if !gone {
			delete(s.vacant, n)
			return false, nil
		}
	}
	return s.fallsHere(peers, n), nil
}

// fallsHere reports whether a vacant shard falls to this node: because it ranks
// first, or because those that do leave it alone for long.
func (s *Service) fallsHere(peers map[string]peer, n stream.Shard) bool {
	if first(peers, n).node == s.cfg.NodeID {
		delete(s.vacant, n)
		return true
	}
	since, ok := s.vacant[n]
	if !ok {
		s.vacant[n] = s.now()
	}
	return ok && s.now().Sub(since) > vacantLeases*s.lease.ttl
}

// mayTake reports whether placement found the record's holder gone.
func (s *Service) mayTake(cur *indexpb.Shard) bool {
	holder, ok := s.takeable.Load(stream.Shard(cur.GetShard()))
	return ok && holder == cur.GetHolderLife() || cur.GetState() == indexpb.ShardState_SHARD_STATE_RELEASED
}

// placeable returns the nodes that shards fall to, by id: those that live, which
// is what leases say, less those that drain. If all drain, they stay.
func (s *Service) placeable(ctx context.Context, lives *census) map[string]peer {
	all := map[string]peer{}
	newest := map[string]string{} // life by node: one that restarted has two for a while
	for life, p := range lives.live {
		if p.node != "" && life > newest[p.node] {
			newest[p.node], all[p.node] = life, p
		}
	}
	all[s.cfg.NodeID] = peer{node: s.cfg.NodeID, address: s.cfg.Address, weight: s.cfg.Weight}
	nodes, err := s.nodes.of(ctx, discovery.Sequencer)
	if err != nil {
		s.log.DebugContext(ctx, "who is draining is not known", "err", err)
	} else if _, err := s.nodes.of(ctx, discovery.ChainWriter); err != nil {
		// One that leads nothing yet must know whom to write to when discovery is down.
		s.log.DebugContext(ctx, "the chain-writers are not known", "err", err)
	}
	active := maps.Clone(all)
	for _, n := range nodes {
		if n.Draining() {
			delete(active, n.ID)
		}
	}
	// What this one knows of itself is newer than what discovery shows.
	if s.draining.Load() {
		delete(active, s.cfg.NodeID)
	} else {
		active[s.cfg.NodeID] = all[s.cfg.NodeID]
	}
	if len(active) == 0 {
		return all
	}
	return active
}

// SetDraining says whether the node is to lead no shards while another can.
func (s *Service) SetDraining(draining bool) {
	s.draining.Store(draining)
	select {
	case s.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// first returns the node that ranks first for a shard; empty without nodes.
func first(peers map[string]peer, n stream.Shard) (best peer) {
	key, most := fmt.Sprint(n), math.Inf(-1)
	for _, p := range peers {
		if score := weighted(rendezvous(key, p.node), p.weight); score > most || score == most && p.node > best.node {
			best, most = p, score
		}
	}
	return best
}

// weighted turns a score into one by which a node wins in proportion to its
// weight: -w / ln(u) for u evenly spread over (0, 1), the logarithmic method of
// weighted rendezvous hashing (Schindler and Schomaker, "Weighted distributed
// hash tables", 2005).
func weighted(score uint64, weight uint32) float64 {
	u := (float64(score>>11) + 0.5) / (1 << 53)
	return -float64(max(weight, 1)) / math.Log(u)
}

// rendezvous is the score of a node for a key: the highest wins.
func rendezvous(key, node string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key))
	_, _ = h.Write([]byte{0})
	_, _ = h.Write([]byte(node))
	// FNV's high bits mix little of the last bytes; finish as splitmix64 does.
	x := h.Sum64()
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
