package sequencer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/reason"
)

// How a sequencer leaves a chain-writer that works: because it drains, or because
// another of the own zone, or with less to do, is there. It opens a link to
// another chain and has its shards go the one recovery path (recovery.go) under
// the next epoch, a few at a time. What they sent is fenced where it is: below
// the cut it is acknowledged, above it is sent again. Appends wait meanwhile; none
// fails. The old link ends when nothing is bound to it. A crash at any point is
// that of any leader.

const (
	// movesAtOnce is how many shards change their chain at once.
	movesAtOnce = 8
	// movePatience is how long one shard may take before the others go on.
	movePatience = 10 * time.Second
	// watchMost is how often the chain-writers are looked at, at least.
	watchMost = time.Second
	// settledLinks is for how many leases a choice stays when it is only not the
	// best one any more, so that nodes that come and go move nothing.
	settledLinks = 5
)

// watch looks, while the service runs, whether the present chain-writer is still
// the one to write to.
func (ls *links) watch() {
	s := ls.svc
	ctx := s.running
	tick := time.NewTicker(min(s.lease.ttl/3, watchMost))
	defer tick.Stop()
	settled, of := s.now(), (*link)(nil)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		ls.finishMoves(ctx)
		l := ls.present()
		if l != of {
			// Jittered, so that of several sequencers one looks first, and the others
			// see what it did.
			of, settled = l, s.now().Add(jittered(settledLinks*s.lease.ttl))
		}
		if l == nil {
			continue
		}
		nodes, err := s.chainWriters(ctx)
		if err != nil {
			continue // nothing is known to move for
		}
		if ls.gone(ctx, l, nodes) {
			// Its connection may take long to notice. Its shards recover, which decides
			// by itself what becomes of the chain.
			l.fail(errGone)
			continue
		}
		balance := !s.now().Before(settled)
		if balance {
			settled = s.now().Add(jittered(settledLinks * s.lease.ttl))
		}
		better, why := ls.better(ctx, l, nodes, balance)
		if why == "" {
			continue
		}
		s.log.InfoContext(ctx, "moves to another chain-writer", "from", l.address, "why", why)
		if err := ls.move(ctx, l, better); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "stays with its chain-writer for now", "writer", l.address, "err", err)
		}
	}
}

// present returns the current link, nil if it is broken or none.
func (ls *links) present() *link {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if l := ls.current; l != nil && !l.isBroken() {
		return l
	}
	return nil
}

// errGone ends a link to a writer that hangs, or whose machine is gone.
var errGone = errors.New("the chain-writer is not registered any more and does not answer")

// gone reports whether the link's writer is not registered, while others are, and
// does not answer either.
func (ls *links) gone(ctx context.Context, l *link, nodes []discovery.Node) bool {
	if len(nodes) == 0 || slices.ContainsFunc(nodes, func(n discovery.Node) bool { return n.Address == l.address }) {
		return false
	}
	_, err := probe(ctx, l.writer)
	return err != nil && reason.Code(err) != codes.Unimplemented && ctx.Err() == nil
}

// better returns the chain-writers to move to and why, or no reason to move.
// balance: being only worse than another is one.
func (ls *links) better(ctx context.Context, l *link, nodes []discovery.Node, balance bool) ([]choice, string) {
	i := slices.IndexFunc(nodes, func(n discovery.Node) bool { return n.Address == l.address })
	if i < 0 || len(nodes) < 2 || !nodes[i].Draining() && !balance {
		return nil, ""
	}
	order := ls.choices(ctx, nodes)
	i = slices.IndexFunc(order, func(c choice) bool { return c.Address == l.address })
	own := order[i]
	others := slices.Delete(order, i, i+1)
	others = slices.DeleteFunc(others, func(c choice) bool { return c.silent || c.draining })
	switch {
	case len(others) == 0:
	case own.draining:
		return others, "it drains"
	case own.silent: // if it is gone, the link breaks
	case own.foreign && !others[0].foreign:
		return others[:1], "another is in the own zone"
	case own.foreign == others[0].foreign && own.senders-others[0].senders >= 2:
		// Not for a difference that the move itself would turn round.
		return others[:1], "another has less to do"
	}
	return nil, ""
}

// errChanged means that the link was replaced meanwhile.
var errChanged = errors.New("the link has changed")

// move makes a link to one of the choices the present one in the place of from,
// and has the shards follow.
func (ls *links) move(ctx context.Context, from *link, to []choice) error {
	ls.mu.Lock()
	if ls.current != from || ls.opening != nil {
		ls.mu.Unlock()
		return errChanged
	}
	if _, err := ls.openLocked(ctx, func(context.Context) ([]choice, error) { return to, nil }); err != nil {
		return fmt.Errorf("open another: %w", err)
	}
	ls.finishMoves(ctx)
	return nil
}

// finishMoves has the shards of links that are not the present one go on to that
// one, and ends those links.
func (ls *links) finishMoves(ctx context.Context) {
	ls.mu.Lock()
	var old []*link
	for l := range ls.attached {
		if l != ls.current && ls.current != nil && !l.isBroken() {
			old = append(old, l)
		}
	}
	ls.mu.Unlock()
	for _, l := range old {
		if ls.empty(ctx, l) {
			l.fail(errMoved)
		}
	}
}

// empty has a link's shards recover, and reports whether all have left it.
func (ls *links) empty(ctx context.Context, l *link) bool {
	ls.mu.Lock()
	var shards []*shard
	for _, sh := range ls.attached[l] {
		shards = append(shards, sh)
	}
	ls.mu.Unlock()
	slices.SortFunc(shards, func(a, b *shard) int { return int(a.number) - int(b.number) })
	left := true
	for batch := range slices.Chunk(shards, movesAtOnce) {
		for _, sh := range batch {
			ls.moveShard(l, sh)
		}
		patience, cancel := context.WithTimeout(ctx, movePatience)
		for _, sh := range batch {
			left = sh.leftLink(patience, l) && left
		}
		cancel()
	}
	return left
}

// moveShard has a shard recover that sends to the link.
func (ls *links) moveShard(l *link, sh *shard) {
	if sh.boundTo(l) && sh.suspend() {
		l.leave(sh.number, sh.currentEpoch())
		ls.svc.startRecovery(sh)
	}
}

// boundTo reports whether the shard is held here and sends to the link.
func (sh *shard) boundTo(l *link) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.held && sh.link == l
}

// leftLink waits until the shard does not send to the link any more.
func (sh *shard) leftLink(ctx context.Context, l *link) bool {
	for {
		sh.mu.Lock()
		bound, changed := sh.held && sh.link == l, sh.changed
		sh.mu.Unlock()
		if !bound {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}
