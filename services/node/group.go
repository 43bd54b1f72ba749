package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/nova-stream/nova/libs/config"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/rpc"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/libs/telemetry"
)

// Part is a service: what every service package's Service is.
type Part interface {
	Register(r grpc.ServiceRegistrar)
	// Run does the service's own work until ctx ends.
	Run(ctx context.Context) error
	// Ready returns nil, or why the service is not ready, for people.
	Ready() error
}

// Group is the services that run in one process.
type Group struct {
	process *Process
	failed  chan error // of a service that ended by itself
	ending  atomic.Bool

	stopping sync.Once

	mu      sync.Mutex // guards members: the admin page reads them
	members []*member
}

// member is one running service.
type member struct {
	service  discovery.Service
	part     Part
	endpoint rpc.Endpoint
	id       string
	steering *steering

	cancel     context.CancelFunc // ends Run
	done       chan struct{}      // Run has returned
	register   context.CancelFunc // ends the registration
	registered sync.WaitGroup
	unknown    atomic.Pointer[error] // why it is not registered yet; nil: it is

	listeners []func(context.Context) // stopped before the endpoint; guarded by Group.mu
}

// NewGroup returns an empty group.
func NewGroup(p *Process) *Group {
	return &Group{process: p, failed: make(chan error, 16)}
}

// Add starts a service behind an endpoint that was not started; advertise is
// where others reach it, "": the endpoint's own address. Add callees before
// their callers: Stop goes the other way.
func (g *Group) Add(s discovery.Service, part Part, endpoint rpc.Endpoint, advertise string) {
	p := g.process
	if advertise == "" {
		advertise = endpoint.Address()
	}
	m := &member{service: s, part: part, endpoint: endpoint, id: p.ID(s), done: make(chan struct{})}
	meta := map[string]string{"version": config.Version}
	if l, ok := part.(interface{ LifeID() stream.LifeID }); ok {
		meta["life"] = l.LifeID().String()
	}
	m.steering = newSteering(part, discovery.Node{ID: m.id, Service: s, Address: advertise, Zone: p.Settings.Zone, Meta: meta})
	part.Register(endpoint)
	p.control(m.steering, endpoint)
	endpoint.Start()
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	go func() {
		defer close(m.done)
		err := part.Run(ctx)
		if ctx.Err() == nil {
			// Its work ended though nobody asked: the process must start again.
			g.fail(fmt.Errorf("%s ended by itself: %w", s, errors.Join(err, errors.New("start the program again"))))
		} else if err != nil {
			p.Log.Warn("service ended with an error", "service", string(s), "err", err)
		}
	}()
	registering, stop := context.WithCancel(context.Background())
	m.register = stop
	starting := errors.New("not registered yet")
	m.unknown.Store(&starting)
	if srv, ok := endpoint.(*rpc.Server); ok {
		if s == discovery.Gateway {
			m.registered.Go(func() { g.announce(registering, srv) })
		} else {
			// Inside, discovery shows who takes calls; /readyz tells the rest.
			srv.SetReady(true)
		}
	}
	m.registered.Go(func() { g.registerNode(registering, m) })
	g.mu.Lock()
	defer g.mu.Unlock()
	g.members = append(g.members, m)
}

// announce tells the callers from outside, once all parts are ready. It does not
// wait for registrations, which may themselves wait for it.
func (g *Group) announce(ctx context.Context, srv *rpc.Server) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		ready := true
		for _, m := range g.all() {
			ready = ready && m.part.Ready() == nil
		}
		if ready {
			srv.SetReady(true)
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// registerNode registers the node, and again whenever it begins or ends to
// drain, and tries until it is done: a registry that is down must not stop a
// node that others may already know.
func (g *Group) registerNode(ctx context.Context, m *member) {
	const least = 50 * time.Millisecond
	for pause := least; ; {
		n, change := m.steering.wanted()
		err := g.process.Registry.Register(ctx, n)
		if err == nil {
			pause = least
			m.unknown.Store(nil)
			m.steering.registered(n)
			select {
			case <-change:
				continue
			case <-ctx.Done():
				return
			}
		}
		if ctx.Err() != nil {
			return
		}
		m.unknown.Store(&err)
		g.process.Log.WarnContext(ctx, "not registered, trying again", "id", n.ID, "err", err)
		timer := time.NewTimer(pause)
		pause = min(2*pause, 2*time.Second)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

func (g *Group) fail(err error) {
	select {
	case g.failed <- err:
	default: // enough are known
	}
}

// Failed receives the error of a service, or of a listener, that ended by itself.
func (g *Group) Failed() <-chan error { return g.failed }

// Ready returns nil, or which services are not ready and why.
func (g *Group) Ready() error {
	if g.ending.Load() {
		return errors.New("stopping")
	}
	members := g.all()
	if len(members) == 0 {
		return errors.New("starting")
	}
	var errs []error
	for _, m := range members {
		if err := m.ready(); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (m *member) ready() error {
	if err := m.part.Ready(); err != nil {
		return err
	}
	if why := m.unknown.Load(); why != nil {
		return fmt.Errorf("%s: %w", m.service, *why)
	}
	return nil
}

// Stop stops every service, the last added first; package node says in which
// order, and why. All together have StopTimeout for the calls under way, and
// each at least StopLeast. A second Stop does nothing.
func (g *Group) Stop() { g.stopping.Do(g.stopAll) }

// StopLeast is what a service has for its calls although those before it used
// up the time.
const StopLeast = time.Second

// leavePatience is how long a stop waits for the registry, over all services: a
// node that cannot say that it goes is found out by its missing heartbeats.
const leavePatience = time.Second

func (g *Group) stopAll() {
	g.ending.Store(true)
	deadline, patience := time.Now().Add(g.process.Settings.StopTimeout), leavePatience
	members := g.all()
	for i := len(members) - 1; i >= 0; i-- {
		began := time.Now()
		g.leave(members[i], patience)
		patience -= time.Since(began)
		g.stop(members[i], deadline)
	}
}

// leave ends a service's registration, so that nobody new comes.
func (g *Group) leave(m *member, patience time.Duration) {
	// The registration keeps itself alive by its context, which therefore ends
	// before the node is taken out.
	m.register()
	m.registered.Wait()
	if srv, ok := m.endpoint.(*rpc.Server); ok {
		srv.SetReady(false)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := g.process.Registry.Deregister(ctx, m.id); err != nil {
		g.process.Log.WarnContext(ctx, "not deregistered; it goes by itself", "id", m.id, "err", err)
	}
}

// listen adds a listener that calls a service: it stops with the service's
// endpoint, before it.
func (g *Group) listen(p Part, stop func(context.Context)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, m := range g.members {
		if m.part == p {
			m.listeners = append(m.listeners, stop)
		}
	}
}

func (g *Group) all() []*member {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.members[:len(g.members):len(g.members)]
}

func (g *Group) stop(m *member, deadline time.Time) {
	// Its work: it answers what is under way while its endpoint still takes what
	// others send it for that, and ends what would not end by itself.
	m.cancel()
	<-m.done
	if least := time.Now().Add(StopLeast); deadline.Before(least) {
		deadline = least
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	g.mu.Lock()
	listeners := m.listeners
	g.mu.Unlock()
	for _, stop := range listeners {
		stop(ctx)
	}
	m.endpoint.Stop(ctx)
}

// Facts are the lines of the admin page.
func (g *Group) Facts() []telemetry.Fact {
	facts := []telemetry.Fact{
		{Name: "version", Value: config.Version},
		{Name: "node", Value: g.process.Settings.NodeID},
		{Name: "zone", Value: g.process.Settings.Zone},
	}
	for _, m := range g.all() {
		state := "ready at " + m.endpoint.Address()
		if err := m.ready(); err != nil {
			state = err.Error()
		}
		facts = append(facts, telemetry.Fact{Name: string(m.service), Value: state})
	}
	return facts
}
