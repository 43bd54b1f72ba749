package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/fullstorydev/grpchan"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"

	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/rpc/wire"
)

// PoolConfig holds a pool's settings. Zero values take the defaults.
type PoolConfig struct {
	Options
	// Inproc serves the addresses that begin with Scheme. With it, services are
	// found among the nodes that Registry shows, all of this process.
	Inproc   *Inproc
	Registry discovery.Registry
	// Resolver finds the nodes of a service on a network: target
	// "<scheme>:///<service>".
	Resolver resolver.Builder
	// TLS of connections over a network, nil: none.
	TLS *tls.Config
	// MaxRecv limits a received message, default MaxMessage bytes.
	MaxRecv int
	// Idle is how long an unused connection stays open, default 10 min.
	Idle time.Duration
}

// Pool is a process's connections to other services. Its methods are safe for
// concurrent use and never wait; calls do.
type Pool struct {
	cfg PoolConfig
	obs *observer

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // the watches of services in process

	mu        sync.Mutex // guards what follows
	closed    bool
	services  map[discovery.Service]grpc.ClientConnInterface
	networks  []*grpc.ClientConn // of services
	addresses map[string]*addressConn
}

// errPoolClosed ends every call that begins after Close.
var errPoolClosed = errors.New("rpc: the pool is closed")

// NewPool returns an empty pool.
func NewPool(cfg PoolConfig) (*Pool, error) {
	if cfg.MaxRecv == 0 {
		cfg.MaxRecv = MaxMessage
	}
	if cfg.Idle == 0 {
		cfg.Idle = 10 * time.Minute
	}
	if cfg.Inproc != nil && cfg.Registry == nil {
		return nil, errors.New("rpc: a pool within the process needs a registry")
	}
	obs, err := newObserver(cfg.Options, client)
	if err != nil {
		return nil, fmt.Errorf("rpc: metrics: %w", err)
	}
	p := &Pool{cfg: cfg, obs: obs, services: map[discovery.Service]grpc.ClientConnInterface{}, addresses: map[string]*addressConn{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p, nil
}

// Service returns a connection over the live nodes of a service, taken in
// turn. A call waits until there is a node, up to its context's deadline. One
// that did not reach its node goes to another; one that may have does not.
func (p *Pool) Service(s discovery.Service) grpc.ClientConnInterface {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return failing{errPoolClosed}
	}
	if c, ok := p.services[s]; ok {
		return c
	}
	var conn grpc.ClientConnInterface
	switch {
	case p.cfg.Inproc != nil:
		l := newLocal(p.cfg.Inproc, s)
		p.wg.Go(func() { l.watch(p.ctx, p.cfg.Registry) })
		conn = p.observed(l)
	case p.cfg.Resolver != nil:
		c, err := p.dial(p.cfg.Resolver.Scheme()+":///"+string(s),
			grpc.WithResolvers(p.cfg.Resolver),
			grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"round_robin":{}}],"methodConfig":[{"name":[{}],"waitForReady":true}]}`))
		if err != nil {
			return failing{err}
		}
		p.networks = append(p.networks, c)
		conn = c
	default:
		return failing{fmt.Errorf("rpc: no resolver to find the service %s", s)}
	}
	p.services[s] = conn
	return conn
}

// Address returns a connection to one node. A call to a node that is not there
// fails at once with UNAVAILABLE. The connection is shared and closed when it
// was unused for long; it may be kept and opens again by itself.
func (p *Pool) Address(address string) (grpc.ClientConnInterface, error) {
	if strings.HasPrefix(address, Scheme) {
		if p.cfg.Inproc == nil {
			return nil, fmt.Errorf("rpc: %s is an address of another process", address)
		}
		return p.observed(p.cfg.Inproc.conn(address)), nil
	}
	if address == "" {
		return nil, errors.New("rpc: no address")
	}
	return pooledConn{p, address}, nil
}

// Close closes every connection; calls under way fail.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.closed = true
	conns := p.networks
	for _, a := range p.addresses {
		conns = append(conns, a.conn)
	}
	p.networks, p.addresses, p.services = nil, nil, nil
	p.mu.Unlock()
	p.cancel()
	p.wg.Wait()
	var errs []error
	for _, c := range conns {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// observed adds the client's observation where grpc.NewClient does not.
func (p *Pool) observed(c grpc.ClientConnInterface) grpc.ClientConnInterface {
	return grpchan.InterceptClientConn(c, interceptors.UnaryClientInterceptor(p.obs), interceptors.StreamClientInterceptor(p.obs))
}

// innerWindow is how many bytes another service may send on one stream before
// they are read.
const innerWindow = 1 << 20

func (p *Pool) dial(target string, more ...grpc.DialOption) (*grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	if p.cfg.TLS != nil {
		creds = credentials.NewTLS(p.cfg.TLS)
	}
	c, err := grpc.NewClient(target, append(append(wire.DialOptions(), more...),
		// A stream whose own caller does not read must not hold much here.
		grpc.WithInitialWindowSize(innerWindow),
		grpc.WithTransportCredentials(creds),
		grpc.WithUnaryInterceptor(interceptors.UnaryClientInterceptor(p.obs)),
		grpc.WithStreamInterceptor(interceptors.StreamClientInterceptor(p.obs)),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(p.cfg.MaxRecv)),
		grpc.WithIdleTimeout(p.cfg.Idle),
		// A node that came back is found within a second.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: 3 * time.Second,
		}),
		// A machine that vanished, or a process that hangs, is noticed within 15 s.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
	)...)
	if err != nil {
		return nil, fmt.Errorf("rpc: connect to %s: %w", target, err)
	}
	return c, nil
}

// addressConn is a connection to one node and how it is used; guarded by the
// pool's mu.
type addressConn struct {
	conn  *grpc.ClientConn
	calls int
	last  time.Time // when the last call began or ended
}

// pooledConn takes the connection of an address from the pool for each call.
type pooledConn struct {
	pool    *Pool
	address string
}

func (c pooledConn) Invoke(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
	a, err := c.pool.acquire(c.address)
	if err != nil {
		return err
	}
	defer c.pool.release(a)
	var p peer.Peer
	err = a.conn.Invoke(ctx, method, req, reply, append(opts[:len(opts):len(opts)], grpc.Peer(&p))...)
	if p.Addr == nil {
		// gRPC knows the peer as soon as it has a transport to send on.
		return unsent(err)
	}
	return err
}

func (c pooledConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	a, err := c.pool.acquire(c.address)
	if err != nil {
		return nil, err
	}
	var once sync.Once
	release := func() { once.Do(func() { c.pool.release(a) }) }
	s, err := a.conn.NewStream(ctx, desc, method, append(opts[:len(opts):len(opts)], grpc.OnFinish(func(error) { release() }))...)
	if err != nil {
		release()
		return nil, unsent(err) // before any message
	}
	return s, nil
}

func unsent(err error) error {
	if status.Code(err) != codes.Unavailable {
		return err
	}
	return refusal{status.Convert(err)}
}

func (p *Pool) acquire(address string) (*addressConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, unavailable(errPoolClosed)
	}
	a, ok := p.addresses[address]
	if !ok {
		p.sweep()
		// No resolver: discovery gives addresses, not names to balance over.
		conn, err := p.dial("passthrough:///" + address)
		if err != nil {
			return nil, unavailable(err)
		}
		a = &addressConn{conn: conn}
		p.addresses[address] = a
	}
	a.calls++
	a.last = time.Now()
	return a, nil
}

func (p *Pool) release(a *addressConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a.calls--
	a.last = time.Now()
}

// sweep closes what was unused for long, whenever a new address comes: so the
// table is bounded by the addresses in use. Called with mu held.
func (p *Pool) sweep() {
	for address, a := range p.addresses {
		if a.calls == 0 && time.Since(a.last) > p.cfg.Idle {
			delete(p.addresses, address)
			_ = a.conn.Close()
		}
	}
}
