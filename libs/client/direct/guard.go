package direct

import (
	"context"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/validate"
)

// guarded is a connection whose requests are checked, whose calls have a
// deadline, and whose services are known to exist.
type guarded struct {
	to       grpc.ClientConnInterface
	registry discovery.Registry
	needs    []discovery.Service
	o        *Options
	appends  bool        // failures carry an outcome
	found    atomic.Bool // all of needs, at some time
}

// refuse is a failure of a call that did not leave.
func (g *guarded) refuse(err error) error {
	if g.appends {
		return reason.WithOutcome(err, reason.NotCommitted)
	}
	return err
}

// check fails while a service was never seen.
func (g *guarded) check(ctx context.Context) error {
	if g.found.Load() {
		return nil
	}
	var missing []string
	for _, s := range g.needs {
		nodes, err := g.registry.Nodes(ctx, s)
		if err != nil {
			return status.Error(codes.Unavailable, err.Error())
		}
		if len(nodes) == 0 {
			missing = append(missing, "no "+string(s))
		}
	}
	if len(missing) > 0 {
		return status.Errorf(codes.FailedPrecondition, "Consul at %s knows %s of the constellation %s", g.o.Consul, strings.Join(missing, " and "), g.o.Constellation)
	}
	g.found.Store(true)
	return nil
}

// Invoke makes one call.
func (g *guarded) Invoke(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, g.o.Patience)
		defer cancel()
	}
	if m, ok := req.(proto.Message); ok {
		if err := validate.Request(m); err != nil {
			return g.refuse(err)
		}
	}
	if err := g.check(ctx); err != nil {
		return g.refuse(err)
	}
	return g.to.Invoke(ctx, method, req, reply, opts...)
}

// NewStream begins a session, a subscription or a verification.
func (g *guarded) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if err := g.check(ctx); err != nil {
		return nil, g.refuse(err)
	}
	open := func() (grpc.ClientStream, error) { return g.to.NewStream(ctx, desc, method, opts...) }
	if desc.ClientStreams {
		return open() // a sequencer checks the messages of sessions
	}
	return &requested{open: open}, nil
}

// requested is a stream of answers that is opened once its request is checked.
type requested struct {
	grpc.ClientStream // nil until then

	open func() (grpc.ClientStream, error)
}

func (r *requested) SendMsg(req any) error {
	if m, ok := req.(proto.Message); ok {
		if err := validate.Request(m); err != nil {
			return err
		}
	}
	stream, err := r.open()
	if err != nil {
		return err
	}
	r.ClientStream = stream
	return stream.SendMsg(req)
}
