package sequencer

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
)

// links keeps the link to the chain that this life's shards are bound to. All
// shards of a profile share one chain: its flights then carry them together.
type links struct {
	svc *Service

	mu       sync.Mutex
	current  *link
	opening  chan struct{} // not nil while one opens; closed when it is done
	attached map[*link]map[stream.Shard]*shard
}

func newLinks(s *Service) *links {
	return &links{svc: s, attached: map[*link]map[stream.Shard]*shard{}}
}

// get returns the present link, opening one if there is none.
func (ls *links) get(ctx context.Context) (*link, error) {
	for {
		ls.mu.Lock()
		if l := ls.current; l != nil && !l.isBroken() {
			ls.mu.Unlock()
			return l, nil
		}
		wait := ls.opening
		if wait == nil {
			wait = make(chan struct{})
			ls.opening = wait
			ls.mu.Unlock()
			l, err := ls.open(ctx)
			ls.mu.Lock()
			ls.opening = nil
			close(wait)
			if err == nil {
				ls.current = l
				ls.attached[l] = map[stream.Shard]*shard{}
				ls.svc.work.Go(func() { ls.run(l) })
			}
			ls.mu.Unlock()
			return l, err
		}
		ls.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// open chooses a chain-writer and opens its chain: zone first, then by
// rendezvous, so that sequencers spread and keep their choice.
func (ls *links) open(ctx context.Context) (*link, error) {
	s := ls.svc
	nodes, err := s.chainWriters(ctx)
	if err != nil {
		return nil, fmt.Errorf("find a chain-writer: %w", err)
	}
	if len(nodes) == 0 {
		return nil, reason.New(codes.Unavailable, "", "no chain-writer is registered yet")
	}
	var last error
	for _, n := range byPreference(nodes, s.cfg.Zone, s.cfg.NodeID) {
		w, err := s.writerOf(n.Address)
		if err != nil {
			last = err
			continue
		}
		opened, err := w.OpenChain(ctx, &chainwriterpb.OpenChainRequest{Profile: uint32(stream.ProfileStandard)})
		if err != nil {
			last = fmt.Errorf("chain-writer %s: %w", n.Address, err)
			continue
		}
		chain, err := stream.ParseChainID(opened.GetChainId())
		if err != nil {
			last = fmt.Errorf("chain-writer %s: %w", n.Address, err)
			continue
		}
		// The link lives as long as the service, not as long as the caller.
		l, err := openLink(s.running, ctx, w, chain, s.lease.life)
		if err != nil {
			last = err
			continue
		}
		s.log.InfoContext(ctx, "writes to chain", "chain", chain.String(), "writer", n.Address)
		s.limitPool(l.credit)
		return l, nil
	}
	return nil, last
}

// run serves a link until it breaks; then each of its shards recovers.
func (ls *links) run(l *link) {
	s := ls.svc
	err := l.run(
		func(c *chainwriterpb.Commit) {
			if n := stream.Shard(c.GetShard()); int(n) < len(s.shards) {
				s.shards[n].committed(l, c)
			}
		},
		func(n stream.Shard, epoch stream.Epoch) {
			if int(n) < len(s.shards) {
				s.fenced(s.shards[n], epoch)
			}
		})
	ls.mu.Lock()
	shards := ls.attached[l]
	delete(ls.attached, l)
	if ls.current == l {
		ls.current = nil
	}
	ls.mu.Unlock()
	if s.running.Err() == nil {
		s.log.WarnContext(s.running, "lost the chain; its shards recover", "chain", l.chain.String(), "shards", len(shards), "err", err)
	}
	for _, sh := range shards {
		if sh.suspend() {
			s.startRecovery(sh)
		}
	}
}

// attach notes that a shard sends to the link; false if it is broken.
func (ls *links) attach(l *link, sh *shard) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	shards, ok := ls.attached[l]
	if ok {
		shards[sh.number] = sh
	}
	return ok
}

// byPreference orders chain-writers: the own zone first, then by rendezvous.
func byPreference(nodes []discovery.Node, zone, self string) []discovery.Node {
	out := append([]discovery.Node(nil), nodes...)
	score := func(n discovery.Node) uint64 {
		v := rendezvous(self, n.ID) >> 1
		if zone != "" && n.Zone == zone {
			v |= 1 << 63
		}
		return v
	}
	slices.SortStableFunc(out, func(a, b discovery.Node) int { return cmp.Compare(score(b), score(a)) })
	return out
}
