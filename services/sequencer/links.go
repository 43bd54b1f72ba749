package sequencer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
)

// links keeps the link to the chain that this life's shards are bound to. All
// shards of a profile share one chain: its flights then carry them together.
type links struct {
	svc *Service

	mu      sync.Mutex
	current *link
	opening chan struct{} // not nil while one opens; closed when it is done
	// attached are the links that are not broken: the current one, and those that
	// shards are moving away from.
	attached map[*link]map[stream.Shard]*shard
	watched  bool
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
			return ls.openLocked(ctx, ls.candidates)
		}
		ls.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// openLocked opens a link to one of the candidates and makes it the present one.
// It is called with mu held, and returns without.
func (ls *links) openLocked(ctx context.Context, candidates func(context.Context) ([]choice, error)) (*link, error) {
	wait := make(chan struct{})
	ls.opening = wait
	ls.mu.Unlock()
	l, err := ls.open(ctx, candidates)
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.opening = nil
	close(wait)
	if err != nil {
		return nil, err
	}
	ls.current = l
	ls.attached[l] = map[stream.Shard]*shard{}
	ls.svc.work.Go(func() { ls.run(l) })
	if !ls.watched {
		ls.watched = true
		ls.svc.work.Go(ls.watch)
	}
	return l, nil
}

// openPatience is how long a chain-writer may take to say which chain it writes:
// longer than one that has to make it, and to prove its store before.
const openPatience = 10 * time.Second

// open opens a link to the first of the candidates that takes it.
func (ls *links) open(ctx context.Context, candidates func(context.Context) ([]choice, error)) (*link, error) {
	s := ls.svc
	order, err := candidates(ctx)
	if err != nil {
		return nil, fmt.Errorf("find a chain-writer: %w", err)
	}
	if len(order) == 0 {
		return nil, reason.New(codes.Unavailable, "", "no chain-writer is registered yet")
	}
	var last error
	for _, n := range order {
		w, err := s.writerOf(n.Address)
		if err != nil {
			last = err
			continue
		}
		asking, cancel := context.WithTimeout(ctx, openPatience)
		opened, err := w.OpenChain(asking, &chainwriterpb.OpenChainRequest{Profile: uint32(stream.ProfileStandard)})
		cancel()
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
		l.address = n.Address
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
				l.deliver(n, stream.Epoch(c.GetEpoch()), func() { s.shards[n].committed(l, c) })
			}
		},
		func(n stream.Shard, epoch stream.Epoch) {
			if int(n) < len(s.shards) {
				l.leave(n, epoch)
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
	if s.running.Err() == nil && !errors.Is(err, errMoved) {
		s.log.WarnContext(s.running, "lost the chain; its shards recover", "chain", l.chain.String(), "shards", len(shards), "err", err)
	}
	for _, sh := range shards {
		if sh.suspend() {
			s.startRecovery(sh)
		}
	}
}

// attach notes that a shard sends to the link, and to no other; false if it is
// broken.
func (ls *links) attach(l *link, sh *shard) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, shards := range ls.attached {
		delete(shards, sh.number)
	}
	shards, ok := ls.attached[l]
	if ok {
		shards[sh.number] = sh
	}
	return ok
}
