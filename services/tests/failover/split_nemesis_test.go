package failover

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/nova-stream/nova/proto/gen/nova/v1"
	"github.com/nova-stream/nova/services/tests/constellation"
)

// splitNemesis hurts a split constellation.
type splitNemesis struct {
	*constellation.Constellation
	doors []*door

	dead   string // to be started again
	frozen string // to go on
	undo   func(ctx context.Context) error
}

// hurt implements nemesis.
func (n *splitNemesis) hurt(ctx context.Context, r *rand.Rand) (string, error) {
	n.dead, n.frozen, n.undo = "", "", nil
	services, err := n.Services()
	if err != nil {
		return "list services", err
	}
	some := services[r.IntN(len(services))]
	// Those that decide are hurt most.
	behind := []string{"settler-1", "settler-2", "reaper-1", "reaper-2"}[r.IntN(4)]
	switch r.IntN(5) {
	case 0, 1:
		some = n.important(ctx, r)
	case 2:
		some = behind
	}
	switch r.IntN(10) {
	case 0, 1, 2:
		n.dead = some
		return "kill " + kindOf(some), n.Kill(some)
	case 3:
		n.dead = some
		return "stop " + kindOf(some), n.Down(ctx, some)
	case 4, 5:
		if some = behind; r.IntN(3) > 0 {
			some = n.important(ctx, r)
		}
		if n.frozen = some; r.IntN(2) == 0 {
			if err := n.Freeze(some); err != nil {
				return "freeze " + kindOf(some), err
			}
			time.Sleep(2 * splitLease) // until another has its work
			return "freeze " + kindOf(some) + " for longer than the lease", nil
		}
		return "freeze " + kindOf(some), n.Freeze(some)
	case 6:
		n.frozen = servers[r.IntN(len(servers))]
		return "cut off " + n.frozen, n.Freeze(n.frozen)
	case 7:
		n.dead = servers[r.IntN(len(servers))]
		return "kill " + n.dead, n.Kill(n.dead)
	case 8:
		return sealChain(ctx, n.doors[r.IntN(2)], r)
	default:
		return drain(ctx, n.doors[r.IntN(2)], r, &n.undo)
	}
}

// heal implements nemesis.
func (n *splitNemesis) heal(ctx context.Context) error {
	if n.frozen != "" {
		if err := n.Thaw(n.frozen); err != nil {
			return err
		}
	}
	if n.dead != "" {
		if err := n.revive(ctx, n.dead); err != nil {
			return err
		}
	}
	if n.undo != nil {
		if err := n.undo(ctx); err != nil {
			return err
		}
	}
	// One that lost its lease ends, to be started again by whoever runs it.
	return n.Up(ctx)
}

// revive starts a process that was killed: it may take a moment to be gone.
func (n *splitNemesis) revive(ctx context.Context, name string) error {
	return within(ctx, time.Minute, func(context.Context) error { return n.Restart(ctx, name) })
}

// important is a sequencer that leads or a chain-writer that writes.
func (n *splitNemesis) important(ctx context.Context, r *rand.Rand) string {
	all := []string{"sequencer-1", "sequencer-2", "chain-writer-1", "chain-writer-2"}
	some := all[r.IntN(len(all))]
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	leader, writer, err := n.busiest(ctx)
	switch {
	case err != nil:
		return some
	case r.IntN(2) == 0:
		return leader
	}
	return writer
}

// busiest returns the names of the sequencer that leads most and of its writer.
func (n *splitNemesis) busiest(ctx context.Context) (leader, writer string, err error) {
	shards, err := n.doors[0].admin.ListShards(ctx, &novapb.ListShardsRequest{})
	if err != nil {
		return "", "", err
	}
	leads, writes := map[string]int{}, map[string]int{}
	for _, s := range shards.GetShards() {
		if ids := s.GetChainIds(); s.GetLeader() != "" && len(ids) > 0 {
			leads[n.Who(s.GetLeader())]++
			writes[ids[len(ids)-1]]++
		}
	}
	leader, chain := most(leads), most(writes)
	for after, more := "", true; more; {
		res, err := n.doors[0].admin.ListChains(ctx, &novapb.ListChainsRequest{StartAfter: after})
		if err != nil {
			return "", "", err
		}
		for _, c := range res.GetChains() {
			if after = c.GetChainId(); after == chain {
				writer = n.Who(c.GetAddress())
			}
		}
		more = res.GetHasMore()
	}
	if leader == "" || writer == "" {
		return "", "", errors.New("nobody leads or nobody writes")
	}
	return leader, writer, nil
}

func most(counts map[string]int) (name string) {
	for k, n := range counts {
		if name == "" || n > counts[name] {
			name = k
		}
	}
	return name
}

// kindOf is the service of a process.
func kindOf(name string) string {
	if server(name) {
		return name
	}
	return strings.TrimRight(name, "-0123456789")
}
