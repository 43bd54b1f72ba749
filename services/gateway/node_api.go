package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/node/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// nodePatience limits a call to one node, so that one that hangs is told from a
// gateway that does. Drain waits there for discovery, for less.
const nodePatience = 8 * time.Second

// GetNodeStats returns the figures of a node's process.
func (s *Service) GetNodeStats(ctx context.Context, req *novapb.GetNodeStatsRequest) (*novapb.GetNodeStatsResponse, error) {
	out := &novapb.GetNodeStatsResponse{}
	err := s.steer(ctx, req.GetNodeId(), func(ctx context.Context, n nodepb.NodeServiceClient) error {
		res, err := n.GetStats(ctx, &nodepb.GetStatsRequest{NodeId: req.GetNodeId()})
		out.Stats = res.GetStats()
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// DrainNode hands a node's work to others.
func (s *Service) DrainNode(ctx context.Context, req *novapb.DrainNodeRequest) (*novapb.DrainNodeResponse, error) {
	err := s.steer(ctx, req.GetNodeId(), func(ctx context.Context, n nodepb.NodeServiceClient) error {
		_, err := n.Drain(ctx, &nodepb.DrainRequest{NodeId: req.GetNodeId()})
		return err
	})
	if err != nil {
		return nil, err
	}
	return &novapb.DrainNodeResponse{}, nil
}

// UndrainNode lets a node take work again.
func (s *Service) UndrainNode(ctx context.Context, req *novapb.UndrainNodeRequest) (*novapb.UndrainNodeResponse, error) {
	err := s.steer(ctx, req.GetNodeId(), func(ctx context.Context, n nodepb.NodeServiceClient) error {
		_, err := n.Undrain(ctx, &nodepb.UndrainRequest{NodeId: req.GetNodeId()})
		return err
	})
	if err != nil {
		return nil, err
	}
	return &novapb.UndrainNodeResponse{}, nil
}

// steer calls f with a node that discovery sees.
func (s *Service) steer(ctx context.Context, id string, f func(context.Context, nodepb.NodeServiceClient) error) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	n, err := s.nodeOf(ctx, id)
	if err != nil {
		return err
	}
	node, err := s.nodes.Node(n)
	if err != nil {
		s.log.WarnContext(ctx, "a node cannot be reached", "node", id, "err", err)
		return noAnswer(id)
	}
	call, cancel := context.WithTimeout(ctx, nodePatience)
	defer cancel()
	err = f(call, node)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil, reason.Is(err, reason.NodeUnavailable):
		return err
	case reason.Is(err, reason.NodeNotFound):
		// Another node has its address by now: it went, and discovery is behind.
		err = noAnswer(id)
	case reason.Code(err) == codes.Unavailable, reason.Code(err) == codes.DeadlineExceeded:
		s.log.WarnContext(ctx, "a node does not answer", "node", id, "err", err)
		err = noAnswer(id)
	}
	return err
}

func noAnswer(id string) error {
	return reason.New(codes.Unavailable, reason.NodeUnavailable, fmt.Sprintf("node %q does not answer", id))
}

// nodeOf finds a node among those of all services.
func (s *Service) nodeOf(ctx context.Context, id string) (discovery.Node, error) {
	var like []string // of the machine that was named instead of a node
	for _, service := range discovery.Services() {
		nodes, err := s.registry.Nodes(ctx, service)
		if errors.Is(err, discovery.ErrUnavailable) {
			s.log.WarnContext(ctx, "discovery does not answer", "err", err)
			return discovery.Node{}, reason.New(codes.Unavailable, reason.NodeUnavailable, "discovery does not answer, so that nodes cannot be found")
		}
		if err != nil {
			return discovery.Node{}, err
		}
		if i := slices.IndexFunc(nodes, func(n discovery.Node) bool { return n.ID == id }); i >= 0 {
			return nodes[i], nil
		}
		for _, n := range nodes {
			if n.ID == id+"."+string(service) {
				like = append(like, n.ID)
			}
		}
	}
	message := fmt.Sprintf("discovery sees no node %q", id)
	if len(like) > 0 {
		message += "; its services are nodes of their own: " + strings.Join(like, ", ")
	}
	return discovery.Node{}, reason.New(codes.NotFound, reason.NodeNotFound, message)
}
