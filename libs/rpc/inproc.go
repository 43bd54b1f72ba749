package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"

	"github.com/fullstorydev/grpchan/inprocgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Scheme begins the address of a server in this process: inproc:sequencer.
const Scheme = "inproc:"

// Inproc is the servers of one process, by name.
type Inproc struct {
	opts Options

	mu      sync.RWMutex
	servers map[string]*InprocServer
}

// NewInproc returns a registry whose servers all have these options.
func NewInproc(o Options) *Inproc {
	return &Inproc{opts: o, servers: map[string]*InprocServer{}}
}

// Server returns a new server, called by the address "inproc:" + name. A name
// whose server was stopped can be used again.
func (i *Inproc) Server(name string) (*InprocServer, error) {
	chain, err := newChain(i.opts)
	if err != nil {
		return nil, err
	}
	s := &InprocServer{name: name, calls: map[*inprocCall]struct{}{}, methods: map[string]unaryMethod{}, chain: chain.unary}
	s.idle = sync.NewCond(&s.mu)
	s.channel = (&inprocgrpc.Channel{}).
		WithCloner(&s.sharing).
		WithServerUnaryInterceptor(chainUnary([]grpc.UnaryServerInterceptor{s.countUnary, chain.unary})).
		WithServerStreamInterceptor(chainStream([]grpc.StreamServerInterceptor{s.countStream, chain.stream}))
	i.mu.Lock()
	defer i.mu.Unlock()
	if old, ok := i.servers[name]; ok && !old.stopped() {
		return nil, fmt.Errorf("rpc: the in-process server %q exists", name)
	}
	i.servers[name] = s
	return s, nil
}

// conn returns a connection to an address of this process.
func (i *Inproc) conn(address string) grpc.ClientConnInterface {
	return &inprocConn{inproc: i, name: strings.TrimPrefix(address, Scheme)}
}

// find returns the server of a name, or a refusal.
func (i *Inproc) find(name string) (*InprocServer, error) {
	i.mu.RLock()
	s := i.servers[name]
	i.mu.RUnlock()
	if s == nil {
		return nil, refused(name, "is not there")
	}
	return s, nil
}

type inprocState int

const (
	created inprocState = iota
	serving
	ended
)

// InprocServer serves the calls of this process.
type InprocServer struct {
	name    string
	channel *inprocgrpc.Channel
	sharing sharing
	workers workers
	methods map[string]unaryMethod // by full name; does not change after Start
	chain   grpc.UnaryServerInterceptor

	mu    sync.Mutex // guards what follows, and every inprocCall
	state inprocState
	calls map[*inprocCall]struct{} // under way
	idle  *sync.Cond               // calls became empty
}

// inprocCall is a call from before its caller has entered the channel until
// its handler has returned.
type inprocCall struct {
	running bool // the handler has begun
	cancel  context.CancelCauseFunc
}

type inprocCallKey struct{}

// errStopped is why a call was canceled by its server.
var errStopped = errors.New("the server was stopped")

// RegisterService adds a service; before Start.
func (s *InprocServer) RegisterService(desc *grpc.ServiceDesc, impl any) {
	s.channel.RegisterService(desc, impl)
	maps.Copy(s.methods, methodsOf(desc, impl))
}

// Address returns "inproc:" and the name.
func (s *InprocServer) Address() string { return Scheme + s.name }

// Start serves.
func (s *InprocServer) Start() { s.set(serving) }

func (s *InprocServer) set(st inprocState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = st
}

func (s *InprocServer) stopped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state == ended
}

// Stop is the Endpoint's.
func (s *InprocServer) Stop(ctx context.Context) {
	s.set(ended)
	unwatch := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for c := range s.calls {
			c.cancel(errStopped)
		}
	})
	defer unwatch()
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.calls) > 0 {
		s.idle.Wait()
	}
	s.workers.end()
}

// enter admits a call, or refuses it.
func (s *InprocServer) enter(ctx context.Context) (context.Context, *inprocCall, error) {
	c := &inprocCall{}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != serving {
		return nil, nil, refused(s.name, "is not serving")
	}
	ctx, c.cancel = context.WithCancelCause(ctx)
	s.calls[c] = struct{}{}
	return ctx, c, nil
}

// marked is a call's context for the channel, which hands it to begin.
func (c *inprocCall) marked(ctx context.Context) context.Context {
	return context.WithValue(ctx, inprocCallKey{}, c)
}

// abandon ends a call whose caller is gone; if its handler runs, that ends it.
func (s *InprocServer) abandon(c *inprocCall) {
	c.cancel(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !c.running {
		s.remove(c)
	}
}

// begin is called on the handler's side; leave must follow if it returns no error.
func (s *InprocServer) begin(ctx context.Context) (*inprocCall, error) {
	// The handler's own context has no values of the caller's.
	c, _ := inprocgrpc.ClientContext(ctx).Value(inprocCallKey{}).(*inprocCall)
	if !s.beginCall(c) {
		return nil, status.FromContextError(context.Canceled).Err() // abandoned
	}
	return c, nil
}

// beginCall reports whether a call was not abandoned; then leave must follow.
func (s *InprocServer) beginCall(c *inprocCall) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.calls[c]; !ok {
		return false
	}
	c.running = true
	return true
}

func (s *InprocServer) leave(c *inprocCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(c)
}

// remove is called with mu held.
func (s *InprocServer) remove(c *inprocCall) {
	delete(s.calls, c)
	if len(s.calls) == 0 {
		s.idle.Broadcast()
	}
}

func (s *InprocServer) countUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	c, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer s.leave(c)
	return handler(ctx, req)
}

func (s *InprocServer) countStream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	c, err := s.begin(ss.Context())
	if err != nil {
		return err
	}
	defer s.leave(c)
	return handler(srv, ss)
}

// inprocConn calls a server of this process by its name, whichever has it now.
type inprocConn struct {
	inproc *Inproc
	name   string
}

func (c *inprocConn) Invoke(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
	s, err := c.inproc.find(c.name)
	if err != nil {
		return err
	}
	ctx, call, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer s.abandon(call)
	method = fullName(method)
	if m, ok := s.methods[method]; ok && plain(opts) {
		return callError(ctx, s.unary(ctx, call, m, method, req, reply), false)
	}
	return callError(ctx, s.channel.Invoke(call.marked(ctx), method, req, reply, opts...), false)
}

func (c *inprocConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := c.inproc.find(c.name)
	if err != nil {
		return nil, err
	}
	ctx, call, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	cs, err := s.channel.NewStream(call.marked(ctx), desc, method, opts...)
	if err != nil {
		s.abandon(call)
		return nil, callError(ctx, err, false)
	}
	return &inprocClientStream{ClientStream: cs, ctx: ctx, cancel: call.cancel, many: desc.ServerStreams, one: !desc.ClientStreams}, nil
}

// inprocClientStream has the errors of a network stream.
type inprocClientStream struct {
	grpc.ClientStream
	ctx    context.Context
	cancel context.CancelCauseFunc
	many   bool // responses
	one    bool // request
}

// SendMsg returns io.EOF once the stream has ended; RecvMsg says why. For a call with
// one request that is no error: whoever makes it would take it for the call's.
func (s *inprocClientStream) SendMsg(m any) error {
	err := s.send(m)
	if s.one && errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func (s *inprocClientStream) send(m any) error {
	if s.ctx.Err() != nil {
		return io.EOF // the channel could deliver it before it looks
	}
	err := s.ClientStream.SendMsg(m)
	if err != nil && s.ctx.Err() != nil {
		return io.EOF
	}
	return callError(s.ctx, err, true)
}

func (s *inprocClientStream) RecvMsg(m any) error {
	err := callError(s.ctx, s.ClientStream.RecvMsg(m), true)
	if err != nil || !s.many {
		// The end: nothing more comes, so the context need not live on.
		s.cancel(nil)
	}
	return err
}

// callError is streamError for callers: a call that its server canceled is
// UNAVAILABLE, as it is when a network server goes away.
func callError(ctx context.Context, err error, eof bool) error {
	err = streamError(ctx, err, eof)
	if status.Code(err) == codes.Canceled && errors.Is(context.Cause(ctx), errStopped) {
		return status.Error(codes.Unavailable, errStopped.Error())
	}
	return err
}
