package reaper

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/settler/v1"
)

// repairedBy is how often an object is looked at again that quarantined streams keep.
const repairedBy = 6 * time.Hour

// compact has a settler move what heads name out of an object of which most is dead.
// The marker was armed before the change of the row that made it so, which may not have
// come. So the settler changes the row first: who is about to change what was read
// before fails, and arms again. What was moved is dropped by markers of queue "unref",
// and with the last bit goes the object. A crash leaves a marker, and an object some of
// whose runs have moved.
func (s *Service) compact(ctx context.Context, m catalog.Marker) error {
	res, err := s.askToCompact(ctx, m.Due.GetObject())
	switch {
	case reason.Code(err) == codes.ResourceExhausted:
		return later{s.cfg.Retry, err.Error()}
	case err != nil:
		return err
	case res.GetLeft() > 0:
		return later{s.cfg.Retry, fmt.Sprintf("%d runs are still to be moved, after %d", res.GetLeft(), res.GetMoved())}
	case res.GetQuarantined() > 0:
		return later{repairedBy, fmt.Sprintf("%d runs are of quarantined streams", res.GetQuarantined())}
	}
	return nil
}

// askToCompact asks one settler after the other, all reapers in the same order, which
// only spares two the same work.
func (s *Service) askToCompact(ctx context.Context, object string) (*settlerpb.CompactObjectResponse, error) {
	nodes, err := s.registry.Nodes(ctx, discovery.Settler)
	if err != nil {
		return nil, fmt.Errorf("list settlers: %w", err)
	}
	nodes = slices.Clone(discovery.Preferred(nodes))
	score := func(n discovery.Node) uint64 {
		h := fnv.New64a()
		_, _ = h.Write([]byte(n.ID + "\x00" + object))
		return h.Sum64()
	}
	slices.SortFunc(nodes, func(a, b discovery.Node) int { return cmp.Compare(score(a), score(b)) })
	last := reason.New(codes.Unavailable, reason.NodeUnavailable, "there is no settler")
	for _, n := range nodes {
		conn, err := s.conns.Address(n.Address)
		if err == nil {
			var res *settlerpb.CompactObjectResponse
			res, err = settlerpb.NewSettlerServiceClient(conn).CompactObject(ctx, &settlerpb.CompactObjectRequest{Object: object})
			if err == nil {
				return res, nil
			}
		}
		last = fmt.Errorf("settler %s: %w", n.ID, err)
		if !isOutage(err) || ctx.Err() != nil {
			break
		}
	}
	return nil, last
}

// armCompact arms the marker of an object of which most is dead by the change of its
// row that follows.
func (s *Service) armCompact(ctx context.Context, before, after *indexpb.SettledObject) error {
	if !catalog.ToCompact(before, after) {
		return nil
	}
	if err := s.index.ArmCompact(ctx, after.GetObject(), s.now().Add(s.cfg.ReadGrace)); err != nil {
		return fmt.Errorf("arm the marker of an object that is mostly dead: %w", err)
	}
	return nil
}
