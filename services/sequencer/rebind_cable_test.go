package sequencer

import (
	"context"
	"fmt"
	"path"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/rpc"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/services/index" //nolint:depguard // the real rules of the records are part of what is tested
)

// meeting is what becomes of one call.
type meeting int

const (
	passes   meeting = iota
	fails            // it never arrives
	unasked          // it arrives, and its reply is lost
	dies             // it never arrives, and nothing does from now on
	diesLate         // it arrives; its reply and everything from now on is lost
)

func (m meeting) String() string {
	return []string{"passes", "never arrives", "loses its reply", "meets the end before", "meets the end after"}[m]
}

// cable is everything that a sequencer says to others, so that it can be cut.
type cable struct {
	inner Connections

	mu     sync.Mutex
	dead   bool
	cut    map[string]bool // addresses that are not reached
	script func(method string) meeting
	open   map[*cableStream]context.CancelFunc
}

type cableStream struct{ address string }

func newCable(inner Connections) *cable {
	return &cable{inner: inner, cut: map[string]bool{}, open: map[*cableStream]context.CancelFunc{}}
}

// Address implements Connections.
func (w *cable) Address(address string) (grpc.ClientConnInterface, error) {
	conn, err := w.inner.Address(address)
	return cableConn{conn, w, address}, err
}

// follow sets what becomes of each call from now on; it may block.
func (w *cable) follow(script func(method string) meeting) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.script = script
}

// sever cuts the way to an address, or restores it.
func (w *cable) sever(address string, is bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut[address] = is
	if is {
		w.endLocked(func(s *cableStream) bool { return s.address == address })
	}
}

func (w *cable) endLocked(which func(*cableStream) bool) {
	for s, cancel := range w.open {
		if which(s) {
			cancel()
			delete(w.open, s)
		}
	}
}

func (w *cable) kill() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead = true
	w.endLocked(func(*cableStream) bool { return true })
}

var errCut = status.Error(codes.Unavailable, "the cable is cut")

// meet decides about a call: an error, or what to do once it was made.
func (w *cable) meet(address, method string) (meeting, error) {
	w.mu.Lock()
	script := w.script
	if w.dead || w.cut[address] {
		w.mu.Unlock()
		return fails, errCut
	}
	w.mu.Unlock()
	does := passes
	if script != nil {
		does = script(path.Base(method))
	}
	switch does {
	case fails:
		return does, errCut
	case dies:
		w.kill()
		return does, errCut
	}
	return does, nil
}

// cableConn is the cable to one address.
type cableConn struct {
	grpc.ClientConnInterface

	cable   *cable
	address string
}

func (c cableConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	does, err := c.cable.meet(c.address, method)
	if err != nil {
		return err
	}
	err = c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
	switch does {
	case diesLate:
		c.cable.kill()
		return errCut
	case unasked:
		return errCut
	}
	return err
}

func (c cableConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	does, err := c.cable.meet(c.address, method)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	str, err := c.ClientConnInterface.NewStream(ctx, desc, method, opts...)
	if err == nil && does != passes {
		err = errCut
	}
	if err != nil {
		cancel()
		if does == diesLate {
			c.cable.kill()
		}
		return nil, err
	}
	s := &cableStream{address: c.address}
	c.cable.mu.Lock()
	gone := c.cable.dead || c.cable.cut[c.address] // since it was asked
	c.cable.open[s] = cancel
	c.cable.mu.Unlock()
	context.AfterFunc(ctx, func() {
		c.cable.mu.Lock()
		defer c.cable.mu.Unlock()
		delete(c.cable.open, s)
	})
	if gone {
		cancel()
		return nil, errCut
	}
	return str, nil
}

// startOver starts a sequencer that says everything over a cable.
func (w *world) startOver(cfg Config) (*leader, *cable) {
	w.t.Helper()
	w.servers++
	out := newCable(w.pool)
	l := &leader{w: w, rows: w.rows.Fork(), ended: make(chan struct{})}
	name := fmt.Sprint("sequencer", w.servers)
	cfg.NodeID, cfg.Address = name, rpc.Scheme+name
	rows, err := index.New(index.Config{}, index.Deps{Store: l.rows})
	if err != nil {
		w.t.Fatal(err)
	}
	conn := w.serve(fmt.Sprint("index", w.servers), rows.Register)
	w.run(l, cfg, Deps{Index: indexpb.NewIndexServiceClient(cableConn{conn, out, ""}), Conns: out, Registry: w.registry})
	return l, out
}

// leadOver starts a sequencer over a cable and waits until it leads.
func (w *world) leadOver(cfg Config) (*leader, *cable) {
	w.t.Helper()
	l, out := w.startOver(cfg)
	eventually(w.t, "it leads", func() bool { return l.shard() != nil && l.shard().serving.Load() })
	return l, out
}

// another registers one more chain-writer.
func (w *world) another(name string) *writer {
	w.t.Helper()
	o := w.writer.beside(rpc.Scheme + name)
	w.serve(name, func(r grpc.ServiceRegistrar) { chainwriterpb.RegisterChainWriterServiceServer(r, o) })
	w.announce(name, o, nil)
	return o
}

// announce registers a chain-writer, or replaces what is registered.
func (w *world) announce(name string, o *writer, meta map[string]string) {
	w.t.Helper()
	n := discovery.Node{ID: name, Service: discovery.ChainWriter, Address: o.address, Meta: meta}
	if err := w.registry.Register(w.t.Context(), n); err != nil {
		w.t.Fatal(err)
	}
}

// writesTo returns the address of the chain-writer that the shard sends to.
func (l *leader) writesTo() string {
	sh := l.shard()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.link == nil || !sh.serving.Load() {
		return ""
	}
	return sh.link.address
}
