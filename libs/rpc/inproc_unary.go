package rpc

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/nova-stream/nova/libs/rpc/wire"
)

// unaryMethod is a method and whose it is.
type unaryMethod struct {
	impl   any
	handle grpc.MethodHandler
}

// plain reports whether a call asks for nothing but its answer. Calls that want
// headers, trailers or the peer go through the channel, which has them.
func plain(opts []grpc.CallOption) bool {
	for _, o := range opts {
		switch o.(type) {
		case grpc.StaticMethodCallOption, grpc.FailFastCallOption, grpc.EmptyCallOption:
		default:
			return false
		}
	}
	return true
}

// unaryAnswer is what a handler returned.
type unaryAnswer struct {
	message any
	err     error
}

// unary makes a plain call. The handler runs on another goroutine, so that a
// caller whose context ends goes at once, and in a context that has the caller's
// deadline and end and none of its values.
func (s *InprocServer) unary(ctx context.Context, c *inprocCall, m unaryMethod, method string, req, reply any) error {
	answers := make(chan unaryAnswer, 1)
	replying := &wire.Replying{}
	s.workers.run(func() {
		var a unaryAnswer
		// A handler that ends its goroutine, as the tests' Fatal does, answers too.
		a.err = status.Error(codes.Internal, "the handler ended without an answer")
		defer func() { answers <- a }()
		if !s.beginCall(c) {
			a.err = status.FromContextError(context.Canceled).Err() // abandoned
			return
		}
		defer s.leave(c)
		handlerCtx, cancel := serverContext(ctx, method)
		defer cancel()
		handlerCtx = replying.In(handlerCtx)
		a.message, a.err = m.handle(m.impl, handlerCtx, func(out any) error { return s.sharing.Copy(out, req) }, s.chain)
	})
	select {
	case a := <-answers:
		if a.err != nil {
			replying.Free()
			return a.err
		}
		replying.Delivered(ctx)
		return s.sharing.Copy(reply, a.message)
	case <-ctx.Done():
		replying.Free()
		return status.FromContextError(ctx.Err()).Err()
	}
}

// inprocPeer is who calls within a process.
var inprocPeer = &peer.Peer{Addr: inprocAddr{}, AuthInfo: inprocAddr{}}

type inprocAddr struct{}

func (inprocAddr) Network() string  { return "inproc" }
func (inprocAddr) String() string   { return "0" }
func (inprocAddr) AuthType() string { return "inproc" }

// serverContext returns the context of a handler. It is one of the standard
// library's all the way down, so that deriving from it starts no goroutine.
func serverContext(caller context.Context, method string) (context.Context, context.CancelFunc) {
	var ctx context.Context
	var cancel context.CancelFunc
	if deadline, ok := caller.Deadline(); ok {
		ctx, cancel = context.WithDeadline(context.Background(), deadline)
	} else {
		ctx, cancel = context.WithCancel(context.Background())
	}
	unlink := context.AfterFunc(caller, func() {
		// A deadline is the handler's own as well, and says so by its error.
		if !errors.Is(caller.Err(), context.DeadlineExceeded) {
			cancel()
		}
	})
	if md, ok := metadata.FromOutgoingContext(caller); ok {
		ctx = metadata.NewIncomingContext(ctx, md)
	}
	ctx = grpc.NewContextWithServerTransportStream(peer.NewContext(ctx, inprocPeer), unheard(method))
	return ctx, func() { unlink(); cancel() }
}

// unheard takes headers and trailers for a caller that did not ask for them.
type unheard string

func (u unheard) Method() string             { return string(u) }
func (unheard) SetHeader(metadata.MD) error  { return nil }
func (unheard) SendHeader(metadata.MD) error { return nil }
func (unheard) SetTrailer(metadata.MD) error { return nil }

// methodsOf are the unary methods of a service, by their full names.
func methodsOf(desc *grpc.ServiceDesc, impl any) map[string]unaryMethod {
	found := map[string]unaryMethod{}
	for _, m := range desc.Methods {
		found["/"+desc.ServiceName+"/"+m.MethodName] = unaryMethod{impl, m.Handler}
	}
	return found
}

// fullName is a method's name with the slash that callers may leave out.
func fullName(method string) string {
	if strings.HasPrefix(method, "/") {
		return method
	}
	return "/" + method
}
