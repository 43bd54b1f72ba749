package gateway

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/node/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// nodeFleet is discovery and the nodes that it sees. Each answers what failure
// says and notes what it was asked.
type nodeFleet struct {
	down    error
	missing bool // no connection can be made
	failure error
	hangs   bool
	asked   []string
}

func (f *nodeFleet) Nodes(_ context.Context, s discovery.Service) ([]discovery.Node, error) {
	if f.down != nil {
		return nil, f.down
	}
	if s == discovery.Reader || s == discovery.Cache {
		return []discovery.Node{{ID: "a." + string(s), Service: s, Address: "a:1"}, {ID: "b." + string(s), Service: s, Address: "b:1"}}, nil
	}
	return nil, nil
}

func (f *nodeFleet) Node(n discovery.Node) (nodepb.NodeServiceClient, error) {
	if f.missing {
		return nil, errors.New("no route")
	}
	return nodeFake{f, n.Address}, nil
}

type nodeFake struct {
	fleet   *nodeFleet
	address string
}

func (n nodeFake) answer(ctx context.Context, what, id string) error {
	n.fleet.asked = append(n.fleet.asked, n.address+" "+what+" "+id)
	if n.fleet.hangs {
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	return n.fleet.failure
}

func (n nodeFake) Drain(ctx context.Context, r *nodepb.DrainRequest, _ ...grpc.CallOption) (*nodepb.DrainResponse, error) {
	return &nodepb.DrainResponse{}, n.answer(ctx, "drain", r.GetNodeId())
}

func (n nodeFake) Undrain(ctx context.Context, r *nodepb.UndrainRequest, _ ...grpc.CallOption) (*nodepb.UndrainResponse, error) {
	return &nodepb.UndrainResponse{}, n.answer(ctx, "undrain", r.GetNodeId())
}

func (n nodeFake) GetStats(ctx context.Context, r *nodepb.GetStatsRequest, _ ...grpc.CallOption) (*nodepb.GetStatsResponse, error) {
	if err := n.answer(ctx, "stats", r.GetNodeId()); err != nil {
		return nil, err
	}
	return &nodepb.GetStatsResponse{Stats: map[string]float64{"x": 1}}, nil
}

func nodeGateway(f *nodeFleet) *Service {
	return &Service{cfg: Config{Patience: time.Minute}, registry: f, nodes: f, log: slog.New(slog.DiscardHandler)}
}

// The node that the id names is asked, whatever service it is.
func TestNodesAreFoundById(t *testing.T) {
	f := &nodeFleet{}
	s := nodeGateway(f)
	res, err := s.GetNodeStats(t.Context(), &novapb.GetNodeStatsRequest{NodeId: "b.cache"})
	if err != nil || res.GetStats()["x"] != 1 {
		t.Errorf("stats: %v, %v", res, err)
	}
	if _, err := s.DrainNode(t.Context(), &novapb.DrainNodeRequest{NodeId: "a.reader"}); err != nil {
		t.Error(err)
	}
	if _, err := s.UndrainNode(t.Context(), &novapb.UndrainNodeRequest{NodeId: "b.reader"}); err != nil {
		t.Error(err)
	}
	if got, want := strings.Join(f.asked, ", "), "b:1 stats b.cache, a:1 drain a.reader, b:1 undrain b.reader"; got != want {
		t.Errorf("asked %q, want %q", got, want)
	}
}

func TestNodesThatCannotBeSteered(t *testing.T) {
	for _, c := range []struct {
		name   string
		fleet  nodeFleet
		node   string
		code   codes.Code
		reason reason.Reason
		says   string
	}{
		{"unknown", nodeFleet{}, "c.reader", codes.NotFound, reason.NodeNotFound, `no node "c.reader"`},
		{"a machine", nodeFleet{}, "a", codes.NotFound, reason.NodeNotFound, "a.reader, a.cache"},
		{"no connection", nodeFleet{missing: true}, "a.reader", codes.Unavailable, reason.NodeUnavailable, "a.reader"},
		{"dead", nodeFleet{failure: status.Error(codes.Unavailable, "connection refused")}, "a.reader", codes.Unavailable, reason.NodeUnavailable, "does not answer"},
		{"hangs", nodeFleet{hangs: true}, "a.reader", codes.Unavailable, reason.NodeUnavailable, "does not answer"},
		{"another has its address", nodeFleet{failure: reason.New(codes.NotFound, reason.NodeNotFound, "not here")}, "a.reader", codes.Unavailable, reason.NodeUnavailable, "does not answer"},
		{"discovery is behind", nodeFleet{failure: reason.New(codes.Unavailable, reason.NodeUnavailable, "cannot tell discovery")}, "a.reader", codes.Unavailable, reason.NodeUnavailable, "cannot tell"},
		{"discovery is down", nodeFleet{down: discovery.Fail("Nodes", "x", discovery.ErrUnavailable, "")}, "a.reader", codes.Unavailable, reason.NodeUnavailable, "discovery does not answer"},
		{"an older version", nodeFleet{failure: status.Error(codes.Unimplemented, "unknown service")}, "a.reader", codes.Unimplemented, "", "unknown service"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := nodeGateway(&c.fleet)
				began := time.Now()
				_, stats := s.GetNodeStats(t.Context(), &novapb.GetNodeStatsRequest{NodeId: c.node})
				_, drain := s.DrainNode(t.Context(), &novapb.DrainNodeRequest{NodeId: c.node})
				_, undrain := s.UndrainNode(t.Context(), &novapb.UndrainNodeRequest{NodeId: c.node})
				if took := time.Since(began); took > 3*nodePatience {
					t.Errorf("took %v", took)
				}
				for _, err := range []error{stats, drain, undrain} {
					if reason.Code(err) != c.code || reason.Of(err) != c.reason || !strings.Contains(status.Convert(err).Message(), c.says) {
						t.Errorf("got %v, want %v %s that says %q", err, c.code, c.reason, c.says)
					}
				}
			})
		})
	}
}

// What the caller's own deadline ended is not the node's fault.
func TestNodesWithinTheCallersDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := nodeGateway(&nodeFleet{hangs: true}).DrainNode(ctx, &novapb.DrainNodeRequest{NodeId: "a.reader"})
		if reason.Code(err) != codes.DeadlineExceeded || reason.Of(err) != "" {
			t.Errorf("got %v", err)
		}
	})
}

// A gateway that is draining serves on and is not ready, which balancers see.
func TestGatewayDrains(t *testing.T) {
	s := nodeGateway(&nodeFleet{})
	s.SetDraining(true)
	if err := s.Ready(); err == nil || !strings.Contains(err.Error(), "draining") {
		t.Errorf("draining: %v", err)
	}
	if _, err := s.GetNodeStats(t.Context(), &novapb.GetNodeStatsRequest{NodeId: "a.reader"}); err != nil {
		t.Errorf("it does not serve: %v", err)
	}
	s.SetDraining(false)
	if err := s.Ready(); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}
