package rpc

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nova-stream/nova/libs/discovery"
)

// localService balances over the nodes of a service that are in this process;
// on a network gRPC's own balancer does the same.
type localService struct {
	inproc  *Inproc
	service discovery.Service
	turn    atomic.Uint32

	mu      sync.Mutex // guards what follows
	nodes   []string
	changed chan struct{} // closed when nodes change
}

func newLocal(i *Inproc, s discovery.Service) *localService {
	return &localService{inproc: i, service: s, changed: make(chan struct{})}
}

// watch follows the registry until ctx ends.
func (l *localService) watch(ctx context.Context, r discovery.Registry) {
	for ctx.Err() == nil {
		sets, err := r.Watch(ctx, l.service)
		if err != nil {
			wait(ctx, 100*time.Millisecond)
			continue
		}
		for nodes := range sets {
			l.set(nodes)
		}
		// The registry ended the watch: it is closed, or ctx has ended.
		wait(ctx, 100*time.Millisecond)
	}
}

func (l *localService) set(nodes []discovery.Node) {
	names := make([]string, 0, len(nodes))
	for _, n := range nodes {
		if strings.HasPrefix(n.Address, Scheme) {
			names = append(names, strings.TrimPrefix(n.Address, Scheme))
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.nodes = names
	close(l.changed)
	l.changed = make(chan struct{})
}

// each calls f with the nodes in turn until one does not refuse; when all do,
// it waits for other nodes, or for these to serve.
func (l *localService) each(ctx context.Context, f func(*inprocConn) error) error {
	for {
		l.mu.Lock()
		nodes, changed := l.nodes, l.changed
		l.mu.Unlock()
		start := int(l.turn.Add(1))
		for i := range nodes {
			err := f(&inprocConn{l.inproc, nodes[(start+i)%len(nodes)]})
			if !NotSent(err) {
				return err
			}
		}
		timer := time.NewTimer(20 * time.Millisecond)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			s := status.FromContextError(ctx.Err())
			return status.Errorf(s.Code(), "%s while waiting for a node of the service %s", s.Message(), l.service)
		}
		timer.Stop()
	}
}

func (l *localService) Invoke(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
	return l.each(ctx, func(c *inprocConn) error { return c.Invoke(ctx, method, req, reply, opts...) })
}

func (l *localService) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	var cs grpc.ClientStream
	err := l.each(ctx, func(c *inprocConn) (err error) {
		cs, err = c.NewStream(ctx, desc, method, opts...)
		return err
	})
	return cs, err
}

// failing is a connection that cannot be.
type failing struct{ err error }

func (f failing) Invoke(context.Context, string, any, any, ...grpc.CallOption) error {
	return unavailable(f.err)
}

func (f failing) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, unavailable(f.err)
}

func unavailable(err error) error { return status.Error(codes.Unavailable, err.Error()) }

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
