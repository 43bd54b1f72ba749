package consul

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/nova-stream/nova/libs/discovery"
)

// A node's id and zone travel as service meta, its own meta under a prefix.
const (
	idMeta     = "nova-id"
	zoneMeta   = "nova-zone"
	metaPrefix = "meta-"
)

// registration is one Register call. A later one of the same id replaces it.
type registration struct {
	node    discovery.Node
	service *api.AgentServiceRegistration
	cancel  context.CancelFunc // ends the goroutine that keeps it alive
	// doubtful: the agent may have another node under the id. Guarded by the
	// agent lock.
	doubtful bool
}

func serviceName(s discovery.Service) string { return "nova-" + string(s) }

// serviceID is unique in the agent. Node ids may hold what a URL path may not.
func (r *Registry) serviceID(id string) string {
	return "nova-" + r.cfg.Constellation + "-" + url.PathEscape(id)
}

func (r *Registry) checkID(id string) string { return "service:" + r.serviceID(id) }

// service describes a node to the agent.
func (r *Registry) service(n discovery.Node) (*api.AgentServiceRegistration, error) {
	host, portText, err := net.SplitHostPort(n.Address)
	if err != nil {
		return nil, fmt.Errorf("address %q is not host:port: %w", n.Address, err)
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil || port == 0 || host == "" {
		return nil, fmt.Errorf("address %q is none that others can call", n.Address)
	}
	meta := map[string]string{idMeta: n.ID, zoneMeta: n.Zone}
	for k, v := range n.Meta {
		meta[metaPrefix+k] = v
	}
	check := &api.AgentServiceCheck{
		CheckID: r.checkID(n.ID), Name: "nova " + string(r.cfg.Check),
		DeregisterCriticalServiceAfter: r.cfg.DeregisterAfter.String(),
		// A node registers once it serves, so it need not wait to be seen.
		Status: api.HealthPassing,
	}
	if r.cfg.Check == TTL {
		check.TTL = (3 * r.cfg.CheckInterval).String()
	} else {
		check.GRPC, check.GRPCUseTLS = n.Address, r.cfg.CheckTLS
		check.Interval, check.Timeout = r.cfg.CheckInterval.String(), r.cfg.CheckInterval.String()
	}
	return &api.AgentServiceRegistration{
		ID: r.serviceID(n.ID), Name: serviceName(n.Service), Tags: []string{r.cfg.Constellation},
		Address: host, Port: int(port), Meta: meta, Check: check,
	}, nil
}

// node is the inverse of service.
func node(s discovery.Service, e *api.AgentService) (discovery.Node, error) {
	n := discovery.Node{
		ID: e.Meta[idMeta], Service: s, Zone: e.Meta[zoneMeta],
		Address: net.JoinHostPort(e.Address, strconv.Itoa(e.Port)),
	}
	if n.ID == "" {
		return n, fmt.Errorf("service %q has no %s", e.ID, idMeta)
	}
	for k, v := range e.Meta {
		if name, ok := strings.CutPrefix(k, metaPrefix); ok {
			if n.Meta == nil {
				n.Meta = make(map[string]string)
			}
			n.Meta[name] = v
		}
	}
	return n, nil
}

// Register implements discovery.Registry. The node's address must be host:port.
// On ErrUnavailable the node is not registered, or will soon not be.
func (r *Registry) Register(ctx context.Context, n discovery.Node) error {
	if err := discovery.CheckNode(n); err != nil {
		return err
	}
	service, err := r.service(n)
	if err != nil {
		return discovery.Fail("Register", n.ID, discovery.ErrInvalid, err.Error())
	}
	callCtx, done, err := r.begin(ctx, "Register", n.ID)
	if err != nil {
		return err
	}
	defer done()
	reg := &registration{node: n.Clone(), service: service}
	if err := r.enter(ctx, callCtx, reg); err != nil {
		return r.explain(ctx, "Register", n.ID, err)
	}
	if err := r.awaitVisible(callCtx, reg.node); err != nil {
		reg.cancel() // which takes the node away
		return r.explain(ctx, "Register", n.ID, err)
	}
	return nil
}

// enter tells the agent of a node and starts to keep it alive until ctx ends.
func (r *Registry) enter(ctx, callCtx context.Context, reg *registration) error {
	if err := r.lock(callCtx); err != nil {
		return err
	}
	defer r.unlock()
	if err := r.tell(callCtx, reg); err != nil {
		// The agent may have it nevertheless.
		if old := r.nodes[reg.node.ID]; old != nil {
			old.doubtful = true
		} else {
			r.forget(reg.node.ID)
		}
		return err
	}
	var keepCtx context.Context
	keepCtx, reg.cancel = context.WithCancel(ctx)
	if !r.spawn(func() { r.keep(keepCtx, reg) }) {
		reg.cancel()
		r.forget(reg.node.ID)
		return discovery.ErrClosed
	}
	if old := r.nodes[reg.node.ID]; old != nil {
		old.cancel()
	}
	r.nodes[reg.node.ID] = reg
	return nil
}

func (r *Registry) tell(ctx context.Context, reg *registration) error {
	return r.client.Agent().ServiceRegisterOpts(reg.service, api.ServiceRegisterOpts{ReplaceExistingChecks: true}.WithContext(ctx))
}

// forget takes back what may have been registered, whatever became of the
// context it was registered under.
func (r *Registry) forget(id string) {
	ctx, cancel := context.WithTimeout(context.Background(), r.cfg.RequestTimeout)
	defer cancel()
	if err := r.deregister(ctx, id); err != nil {
		r.cfg.Log.WarnContext(ctx, "consul: take back a registration", "node", id, "error", err)
	}
}

// deregister removes a node from the agent. One that is not there is a success.
func (r *Registry) deregister(ctx context.Context, id string) error {
	err := r.client.Agent().ServiceDeregisterOpts(r.serviceID(id), new(api.QueryOptions).WithContext(ctx))
	if unknown(err) {
		return nil
	}
	return err
}

// unknown reports whether the agent does not know the service or the check.
func unknown(err error) bool {
	var status api.StatusError
	return errors.As(err, &status) && status.Code == http.StatusNotFound
}

// awaitVisible waits until the catalog, which the agent tells in its own time,
// has the node.
func (r *Registry) awaitVisible(ctx context.Context, n discovery.Node) error {
	var index uint64
	for {
		nodes, next, err := r.query(ctx, n.Service, index)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(nodes, n.Equal) {
			return nil
		}
		index = next
	}
}

// keep holds a registration until its context or the registry ends, or another
// takes its place.
func (r *Registry) keep(ctx context.Context, reg *registration) {
	defer reg.cancel()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(r.ctx, cancel)
	defer stop()
	// A TTL check wants to hear of us three times per TTL.
	for sleep(ctx, r.cfg.CheckInterval/2+jitter(r.cfg.CheckInterval)/2) {
		if err := r.refresh(ctx, reg); err != nil && ctx.Err() == nil {
			r.cfg.Log.WarnContext(ctx, "consul: keep a registration", "node", reg.node.ID, "error", err)
		}
	}
	if r.ctx.Err() == nil { // Close removes all nodes by itself
		r.leave(reg)
	}
}

// refresh makes sure that the agent knows the node, and says that it lives.
func (r *Registry) refresh(ctx context.Context, reg *registration) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.RequestTimeout)
	defer cancel()
	if err := r.lock(ctx); err != nil {
		return err
	}
	defer r.unlock()
	if r.nodes[reg.node.ID] != reg {
		return nil
	}
	if reg.doubtful {
		err := r.tell(ctx, reg)
		reg.doubtful = err != nil
		return err
	}
	var err error
	options := new(api.QueryOptions).WithContext(ctx)
	if r.cfg.Check == TTL {
		err = r.client.Agent().UpdateTTLOpts(r.checkID(reg.node.ID), "", api.HealthPassing, options)
	} else {
		_, _, err = r.client.Agent().Service(r.serviceID(reg.node.ID), options)
	}
	if unknown(err) {
		r.cfg.Log.InfoContext(ctx, "consul: the agent forgot a node, it is registered again", "node", reg.node.ID)
		return r.tell(ctx, reg)
	}
	return err
}

// leave takes the node of an ended context away, unless another took its place.
// It tries for as long as the node's check would need to do the same.
func (r *Registry) leave(reg *registration) {
	ctx, cancel := context.WithTimeout(r.ctx, r.cfg.DeregisterAfter)
	defer cancel()
	var pause backoff
	for {
		err := r.remove(ctx, reg)
		if err == nil {
			return
		}
		r.cfg.Log.WarnContext(ctx, "consul: deregister", "node", reg.node.ID, "error", err)
		if !pause.wait(ctx) {
			return
		}
	}
}

func (r *Registry) remove(ctx context.Context, reg *registration) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.RequestTimeout)
	defer cancel()
	if err := r.lock(ctx); err != nil {
		return err
	}
	defer r.unlock()
	if r.nodes[reg.node.ID] != reg {
		return nil
	}
	if err := r.deregister(ctx, reg.node.ID); err != nil {
		return err
	}
	delete(r.nodes, reg.node.ID)
	return nil
}

// Deregister implements discovery.Registry. Only the agent a node was
// registered with can remove it.
func (r *Registry) Deregister(ctx context.Context, id string) error {
	callCtx, done, err := r.begin(ctx, "Deregister", id)
	if err != nil {
		return err
	}
	defer done()
	if err := r.lock(callCtx); err != nil {
		return r.explain(ctx, "Deregister", id, err)
	}
	defer r.unlock()
	if err := r.deregister(callCtx, id); err != nil {
		return r.explain(ctx, "Deregister", id, err)
	}
	if reg := r.nodes[id]; reg != nil {
		delete(r.nodes, id) // before the cancel, so that its goroutine finds itself replaced
		reg.cancel()
	}
	return nil
}

// query returns the healthy nodes of a service, sorted by id, once the index
// has passed the given one or a while has gone by.
func (r *Registry) query(ctx context.Context, s discovery.Service, index uint64) ([]discovery.Node, uint64, error) {
	options := &api.QueryOptions{WaitIndex: index, WaitTime: blockingWait}
	entries, meta, err := r.client.Health().Service(serviceName(s), r.cfg.Constellation, true, options.WithContext(ctx))
	if err != nil {
		return nil, 0, err
	}
	nodes := make([]discovery.Node, 0, len(entries))
	for _, e := range entries {
		n, err := node(s, e.Service)
		if err != nil {
			r.cfg.Log.WarnContext(ctx, "consul: foreign service", "error", err)
			continue
		}
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b discovery.Node) int { return strings.Compare(a.ID, b.ID) })
	// The same node registered with two agents, as after a move: either will do.
	nodes = slices.CompactFunc(nodes, func(a, b discovery.Node) bool { return a.ID == b.ID })
	return nodes, nextIndex(index, meta.LastIndex), nil
}

// nextIndex is the index to wait for. One that goes back means that Consul was
// restored or restarted: begin again. Index 0 would not block.
// See "Blocking Queries" in Consul's HTTP API documentation.
func nextIndex(last, got uint64) uint64 {
	if got < last {
		return 0
	}
	return max(got, 1)
}

// Nodes implements discovery.Registry.
func (r *Registry) Nodes(ctx context.Context, s discovery.Service) ([]discovery.Node, error) {
	callCtx, done, err := r.begin(ctx, "Nodes", string(s))
	if err != nil {
		return nil, err
	}
	defer done()
	nodes, _, err := r.query(callCtx, s, 0)
	if err != nil {
		return nil, r.explain(ctx, "Nodes", string(s), err)
	}
	return nodes, nil
}
