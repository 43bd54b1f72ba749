package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/node/v1"
)

// drainer is a service that gives its work away when its node is to be drained.
// SetDraining MUST NOT wait for that. The others only stop getting new work,
// since discovery shows that the node is draining.
type drainer interface{ SetDraining(draining bool) }

// steering is a node as discovery shows it, and whether it is draining. That is
// in memory only: a process that starts again is not draining.
type steering struct {
	part Part
	turn sync.Mutex // held while draining changes, so that part and node agree

	mu     sync.Mutex // guards what follows
	node   discovery.Node
	shown  bool          // discovery has the node as it is now
	change chan struct{} // closed at the next change of node or shown
}

func newSteering(part Part, n discovery.Node) *steering {
	return &steering{part: part, node: n, change: make(chan struct{})}
}

// wanted returns the node as it is now, which nobody changes, and a channel
// that is closed when it may be another.
func (s *steering) wanted() (discovery.Node, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node, s.change
}

// registered notes that discovery has n.
func (s *steering) registered(n discovery.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.shown && s.node.Equal(n) {
		s.shown = true
		s.changed()
	}
}

// changed is called with mu held.
func (s *steering) changed() {
	close(s.change)
	s.change = make(chan struct{})
}

// set begins or ends to drain.
func (s *steering) set(draining bool) {
	s.turn.Lock()
	defer s.turn.Unlock()
	if n, _ := s.wanted(); n.Draining() == draining {
		return
	}
	if d, ok := s.part.(drainer); ok {
		d.SetDraining(draining)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.node = s.node.Clone()
	if draining {
		s.node.Meta[discovery.MetaDraining] = "1"
	} else {
		delete(s.node.Meta, discovery.MetaDraining)
	}
	s.shown = false
	s.changed()
}

// await waits until discovery shows the node as it is.
func (s *steering) await(ctx context.Context) error {
	for {
		s.mu.Lock()
		shown, change := s.shown, s.change
		s.mu.Unlock()
		if shown {
			return nil
		}
		select {
		case <-change:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// control is the NodeService of one node.
type control struct {
	nodepb.UnimplementedNodeServiceServer

	process  *Process
	steering *steering
	patience time.Duration // of Drain and Undrain with discovery
}

const (
	// showPatience is how long Drain and Undrain wait for discovery.
	showPatience = 5 * time.Second
	// maxFigures limits what GetStats returns.
	maxFigures = 1000
)

// Drain begins to drain the node.
func (c *control) Drain(ctx context.Context, req *nodepb.DrainRequest) (*nodepb.DrainResponse, error) {
	return &nodepb.DrainResponse{}, c.set(ctx, req.GetNodeId(), true)
}

// Undrain ends that.
func (c *control) Undrain(ctx context.Context, req *nodepb.UndrainRequest) (*nodepb.UndrainResponse, error) {
	return &nodepb.UndrainResponse{}, c.set(ctx, req.GetNodeId(), false)
}

func (c *control) set(ctx context.Context, id string, draining bool) error {
	if err := c.check(id); err != nil {
		return err
	}
	c.steering.set(draining)
	c.process.Log.InfoContext(ctx, "draining changed", "id", id, "draining", draining)
	waiting, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	if err := c.steering.await(waiting); err != nil && ctx.Err() == nil {
		return reason.New(codes.Unavailable, reason.NodeUnavailable, "node "+id+" does as it is told, but cannot tell discovery; it goes on trying")
	} else if err != nil {
		return err
	}
	return nil
}

// GetStats returns the figures of the process.
func (c *control) GetStats(_ context.Context, req *nodepb.GetStatsRequest) (*nodepb.GetStatsResponse, error) {
	if err := c.check(req.GetNodeId()); err != nil {
		return nil, err
	}
	figures, err := c.process.Figures(maxFigures)
	if err != nil {
		return nil, err
	}
	return &nodepb.GetStatsResponse{Stats: figures}, nil
}

// check refuses what is meant for another node.
func (c *control) check(id string) error {
	n, _ := c.steering.wanted()
	if n.ID == id {
		return nil
	}
	return reason.New(codes.NotFound, reason.NodeNotFound, fmt.Sprintf("node %q is not here: this is %q", id, n.ID))
}

// control gives an endpoint the NodeService of its node.
func (p *Process) control(s *steering, r grpc.ServiceRegistrar) {
	c := &control{process: p, steering: s, patience: showPatience}
	nodepb.RegisterNodeServiceServer(r, c)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.controls == nil {
		p.controls = map[string]*control{}
	}
	p.controls[s.node.ID] = c
}

// Node returns the NodeService of a node. One of this process is called without
// its listener, which may want a certificate.
func (p *Process) Node(n discovery.Node) (nodepb.NodeServiceClient, error) {
	p.mu.Lock()
	c := p.controls[n.ID]
	p.mu.Unlock()
	if c != nil {
		if own, _ := c.steering.wanted(); own.Address == n.Address {
			return sameProcess{c}, nil
		}
	}
	conn, err := p.Pool.Address(n.Address)
	if err != nil {
		return nil, err
	}
	return nodepb.NewNodeServiceClient(conn), nil
}

// sameProcess calls a node of this process.
type sameProcess struct{ c *control }

func (w sameProcess) Drain(ctx context.Context, req *nodepb.DrainRequest, _ ...grpc.CallOption) (*nodepb.DrainResponse, error) {
	return w.c.Drain(ctx, req)
}

func (w sameProcess) Undrain(ctx context.Context, req *nodepb.UndrainRequest, _ ...grpc.CallOption) (*nodepb.UndrainResponse, error) {
	return w.c.Undrain(ctx, req)
}

func (w sameProcess) GetStats(ctx context.Context, req *nodepb.GetStatsRequest, _ ...grpc.CallOption) (*nodepb.GetStatsResponse, error) {
	return w.c.GetStats(ctx, req)
}
