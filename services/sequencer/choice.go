package sequencer

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/reason"
)

// choice is a chain-writer as one to write to.
type choice struct {
	discovery.Node

	draining bool
	silent   bool // it did not answer
	foreign  bool // of another zone
	// senders are the sequencers that write to it.
	senders int
	rank    uint64
}

// compare orders choices, the best first. One that drains is taken only where
// there is no other; then the own zone comes first, then who has less to do,
// then rendezvous, so that sequencers spread and keep their choice. One that is
// silent is tried last.
func (c choice) compare(o choice) int {
	return cmp.Or(
		flag(c.draining)-flag(o.draining), flag(c.silent)-flag(o.silent), flag(c.foreign)-flag(o.foreign),
		cmp.Compare(c.senders, o.senders), cmp.Compare(o.rank, c.rank),
	)
}

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

// candidates returns the registered chain-writers, the best first.
func (ls *links) candidates(ctx context.Context) ([]choice, error) {
	nodes, err := ls.svc.chainWriters(ctx)
	if err != nil {
		return nil, err
	}
	return ls.choices(ctx, nodes), nil
}

// choices ranks chain-writers. Each is asked how much it has to do, unless there
// is only one.
func (ls *links) choices(ctx context.Context, nodes []discovery.Node) []choice {
	s := ls.svc
	out := make([]choice, len(nodes))
	var asking sync.WaitGroup
	for i, n := range nodes {
		c := &out[i]
		*c = choice{Node: n, draining: n.Draining(), foreign: s.cfg.Zone != "" && n.Zone != s.cfg.Zone, rank: rendezvous(s.cfg.NodeID, n.ID)}
		if len(nodes) == 1 {
			break
		}
		asking.Go(func() {
			w, err := s.writerOf(c.Address)
			if err != nil {
				c.silent = true
				return
			}
			res, err := probe(ctx, w)
			// An older version lives, and does not know the question.
			c.silent, c.senders = err != nil && reason.Code(err) != codes.Unimplemented, int(res.GetSenders())
		})
	}
	asking.Wait()
	slices.SortStableFunc(out, choice.compare)
	return out
}

// byPreference orders chain-writers without asking them: the own zone first, then
// by rendezvous.
func byPreference(nodes []discovery.Node, zone, self string) []discovery.Node {
	score := func(n discovery.Node) choice {
		return choice{foreign: zone != "" && n.Zone != zone, rank: rendezvous(self, n.ID)}
	}
	return slices.SortedStableFunc(slices.Values(nodes), func(a, b discovery.Node) int { return score(a).compare(score(b)) })
}
