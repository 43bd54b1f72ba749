// Package consul is discovery through a Consul agent.
//
// What is where:
//   - a node is a service "nova-<service>" of the local agent, with the
//     constellation as a tag, so that constellations may share a Consul;
//   - a hint is the key nova/<constellation>/shards/<shard>, JSON
//     {"epoch":1,"address":"host:port"}.
//
// Invariants: a registration whose agent forgot it is made again; a node that
// is critical for longer than Config.DeregisterAfter goes, also when its
// process can no longer ask for it; hints change by CAS and never to a lower
// epoch; while Consul does not answer, watches keep silent, so that their
// receivers keep what they know; a hint that Consul does not take is tried again
// until a newer one takes its place; retries are jittered.
package consul

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"regexp"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/hashicorp/go-cleanhttp"

	"github.com/nova-stream/nova/libs/discovery"
)

// Check is how Consul learns that a node is healthy.
type Check string

// The checks.
const (
	// GRPC: the agent calls the gRPC health service at the node's address.
	GRPC Check = "grpc"
	// TTL: the node tells the agent. For agents that cannot reach the node.
	TTL Check = "ttl"
)

// Defaults of Config.
const (
	DefaultAddress         = "127.0.0.1:8500"
	DefaultCheckInterval   = 2 * time.Second
	DefaultDeregisterAfter = time.Minute // the least that Consul takes
	DefaultRequestTimeout  = 10 * time.Second
)

const (
	// blockingWait is how long a blocking query waits for a change.
	blockingWait = time.Minute
	// minBackoff and maxBackoff bound the pause after a failed query.
	minBackoff = 100 * time.Millisecond
	maxBackoff = 5 * time.Second
)

// Config says where Consul is and how nodes appear there. TLS and the ACL token
// come from Consul's own environment variables (CONSUL_HTTP_TOKEN and so on).
type Config struct {
	// Address of the local agent: host:port, http://..., https://... or unix://...
	Address string
	// Constellation is 1..63 letters, digits and '-'.
	Constellation string
	// Check defaults to GRPC.
	Check Check
	// CheckTLS lets the agent's gRPC check use TLS.
	CheckTLS bool
	// CheckInterval is the interval of gRPC checks, at least a second, and a
	// third of the TTL; 0 means DefaultCheckInterval.
	CheckInterval time.Duration
	// DeregisterAfter is how long a node may be critical before it goes; 0
	// means DefaultDeregisterAfter.
	DeregisterAfter time.Duration
	// RequestTimeout limits every call; 0 means DefaultRequestTimeout.
	RequestTimeout time.Duration
	// Log may be nil.
	Log *slog.Logger
}

var constellationName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]{0,62}$`)

func (c *Config) complete() error {
	if !constellationName.MatchString(c.Constellation) {
		return fmt.Errorf("open consul: %w: constellation %q is not 1..63 letters, digits and '-'", discovery.ErrInvalid, c.Constellation)
	}
	if c.Check == "" {
		c.Check = GRPC
	}
	if c.Check != GRPC && c.Check != TTL {
		return fmt.Errorf("open consul: %w: check %q is neither grpc nor ttl", discovery.ErrInvalid, c.Check)
	}
	if c.Address == "" {
		c.Address = DefaultAddress
	}
	if c.CheckInterval == 0 {
		c.CheckInterval = DefaultCheckInterval
	}
	if c.CheckInterval < time.Second {
		return fmt.Errorf("open consul: %w: check interval %v is below a second", discovery.ErrInvalid, c.CheckInterval)
	}
	if c.DeregisterAfter == 0 {
		c.DeregisterAfter = DefaultDeregisterAfter
	}
	if c.RequestTimeout == 0 {
		c.RequestTimeout = DefaultRequestTimeout
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Registry is discovery through one agent.
type Registry struct {
	cfg       Config
	client    *api.Client
	transport *http.Transport

	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	life   sync.RWMutex // held for reading while a goroutine starts, for writing by Close
	closed bool
	wg     sync.WaitGroup

	// agent is a lock, held through the calls that change what the agent has
	// of us, so that they take effect in the order of nodes. Each of them ends
	// within RequestTimeout.
	agent chan struct{}
	nodes map[string]*registration // by node id; guarded by agent

	turns chan struct{} // one for each hint that is being written
	late  lateHints
}

var _ discovery.Registry = (*Registry)(nil)

// Open returns a registry. It calls nobody: a Consul that is down is found out
// by the calls that need it.
func Open(cfg Config) (*Registry, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	transport := cleanhttp.DefaultPooledTransport()
	client, err := api.NewClient(&api.Config{Address: cfg.Address, Transport: transport})
	if err != nil {
		return nil, fmt.Errorf("open consul at %s: %w: %w", cfg.Address, discovery.ErrInvalid, err)
	}
	r := &Registry{
		cfg: cfg, client: client, transport: transport,
		agent: make(chan struct{}, 1), nodes: make(map[string]*registration), turns: make(chan struct{}, hintTurns),
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r, nil
}

// begin starts a call: its context ends with the caller's, with the registry
// and after the request timeout.
func (r *Registry) begin(ctx context.Context, op, what string) (context.Context, func(), error) {
	if r.ctx.Err() != nil {
		return nil, nil, discovery.Fail(op, what, discovery.ErrClosed, "")
	}
	if err := discovery.Ended(ctx, op, what); err != nil {
		return nil, nil, err
	}
	callCtx, cancel := context.WithTimeout(ctx, r.cfg.RequestTimeout)
	stop := context.AfterFunc(r.ctx, cancel)
	return callCtx, func() { stop(); cancel() }, nil
}

// explain gives an error of the client the shape every error has. ctx is the
// caller's own.
func (r *Registry) explain(ctx context.Context, op, what string, err error) error {
	switch {
	case err == nil:
		return nil
	case r.ctx.Err() != nil:
		return discovery.Fail(op, what, discovery.ErrClosed, "")
	case ctx.Err() != nil:
		return discovery.Ended(ctx, op, what)
	default:
		return discovery.Fail(op, what, discovery.ErrUnavailable, "consul "+r.cfg.Address+": "+err.Error())
	}
}

// spawn runs f in a goroutine that Close waits for, or not at all.
func (r *Registry) spawn(f func()) bool {
	r.life.RLock()
	defer r.life.RUnlock()
	if r.closed {
		return false
	}
	r.wg.Go(f)
	return true
}

// lock takes the agent lock, or returns why not.
func (r *Registry) lock(ctx context.Context) error {
	select {
	case r.agent <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *Registry) unlock() { <-r.agent }

// Close implements discovery.Registry: it ends the watches and takes the
// registered nodes away. When Consul does not answer within the request
// timeout, their checks will do it.
func (r *Registry) Close() error {
	r.life.Lock()
	closed := r.closed
	r.closed = true
	r.life.Unlock()
	if closed {
		return nil
	}
	r.cancel()
	r.wg.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), r.cfg.RequestTimeout)
	defer cancel()
	var errs []error
	// A Register that is under way ends with r.ctx.
	if err := r.lock(ctx); err != nil {
		return discovery.Fail("Close", r.cfg.Address, discovery.ErrUnavailable, err.Error())
	}
	defer r.unlock()
	for id := range r.nodes {
		if err := r.deregister(ctx, id); err != nil {
			errs = append(errs, discovery.Fail("Close", id, discovery.ErrUnavailable, "consul "+r.cfg.Address+": "+err.Error()))
		}
	}
	r.transport.CloseIdleConnections()
	return errors.Join(errs...)
}

// backoff is the pause before the next try, with jitter.
type backoff struct{ next time.Duration }

func (b *backoff) reset() { b.next = 0 }

// wait pauses and returns false if ctx ended first.
func (b *backoff) wait(ctx context.Context) bool {
	b.next = min(max(2*b.next, minBackoff), maxBackoff)
	return sleep(ctx, jitter(b.next))
}

// jitter returns d, give or take half of it.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
