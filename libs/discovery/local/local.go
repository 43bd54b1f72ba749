// Package local is discovery within one process: for novad without Consul, and
// for tests that run several nodes in one process.
//
// Invariants: a Network is one constellation and one mutex orders all changes;
// every registered node counts as healthy; a hint's epoch never goes back; a
// watcher is never waited for and holds one set, the newest.
package local

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/nova-stream/nova/libs/discovery"
)

// Network is what the registries of one constellation share.
type Network struct {
	mu       sync.Mutex // guards what follows
	nodes    map[string]*registration
	hints    map[uint32]discovery.Hint
	watchers map[*watcher]struct{}
}

// registration is one Register call; a second one of the same id is another.
type registration struct {
	node  discovery.Node
	owner *Registry
	stop  func() bool // forgets the context
}

// watcher is woken by every change and compares what it sees.
type watcher struct {
	wake chan struct{} // capacity 1
}

// NewNetwork returns an empty constellation.
func NewNetwork() *Network {
	return &Network{
		nodes:    make(map[string]*registration),
		hints:    make(map[uint32]discovery.Hint),
		watchers: make(map[*watcher]struct{}),
	}
}

// Registry is one node's view of a Network.
type Registry struct {
	net  *Network
	done chan struct{} // closed by Close
	wg   sync.WaitGroup

	mu     sync.Mutex // held while a watch starts, so that Close waits for it
	closed bool
}

var _ discovery.Registry = (*Registry)(nil)

// Registry joins the network, as another process would.
func (n *Network) Registry() *Registry {
	return &Registry{net: n, done: make(chan struct{})}
}

// New returns the registry of a network of its own.
func New() *Registry { return NewNetwork().Registry() }

// changed wakes all watchers; n.mu is held.
func (n *Network) changed() {
	for w := range n.watchers {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// remove removes a registration if it is still the one of its id; n.mu is held.
func (n *Network) remove(r *registration) {
	if n.nodes[r.node.ID] != r {
		return
	}
	delete(n.nodes, r.node.ID)
	r.stop()
	n.changed()
}

func (r *Registry) begin(ctx context.Context, op, what string) error {
	select {
	case <-r.done:
		return discovery.Fail(op, what, discovery.ErrClosed, "")
	default:
		return discovery.Ended(ctx, op, what)
	}
}

// Register implements discovery.Registry.
func (r *Registry) Register(ctx context.Context, node discovery.Node) error {
	if err := discovery.CheckNode(node); err != nil {
		return err
	}
	n := r.net
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := r.begin(ctx, "Register", node.ID); err != nil {
		return err
	}
	reg := &registration{node: node.Clone(), owner: r}
	if old := n.nodes[node.ID]; old != nil {
		old.stop()
	}
	n.nodes[node.ID] = reg
	reg.stop = context.AfterFunc(ctx, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.remove(reg)
	})
	n.changed()
	return nil
}

// Deregister implements discovery.Registry.
func (r *Registry) Deregister(ctx context.Context, id string) error {
	n := r.net
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := r.begin(ctx, "Deregister", id); err != nil {
		return err
	}
	if reg := n.nodes[id]; reg != nil {
		n.remove(reg)
	}
	return nil
}

// Nodes implements discovery.Registry.
func (r *Registry) Nodes(ctx context.Context, s discovery.Service) ([]discovery.Node, error) {
	if err := r.begin(ctx, "Nodes", string(s)); err != nil {
		return nil, err
	}
	return r.net.of(s), nil
}

// of returns the nodes of a service, sorted by id, as the caller's own.
func (n *Network) of(s discovery.Service) []discovery.Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	nodes := []discovery.Node{}
	for _, reg := range n.nodes {
		if reg.node.Service == s {
			nodes = append(nodes, reg.node.Clone())
		}
	}
	slices.SortFunc(nodes, func(a, b discovery.Node) int { return cmp.Compare(a.ID, b.ID) })
	return nodes
}

// Watch implements discovery.Registry.
func (r *Registry) Watch(ctx context.Context, s discovery.Service) (<-chan []discovery.Node, error) {
	var known []discovery.Node // as sent; nil before the first
	return watch(ctx, r, "Watch", string(s), func() ([]discovery.Node, func()) {
		now := r.net.of(s)
		if known != nil && slices.EqualFunc(now, known, discovery.Node.Equal) {
			return nil, nil
		}
		own := make([]discovery.Node, len(now)) // now is the receiver's once it has it
		for i := range now {
			own[i] = now[i].Clone()
		}
		return now, func() { known = own }
	})
}

// PutHint implements discovery.Registry.
func (r *Registry) PutHint(ctx context.Context, h discovery.Hint) error {
	if err := discovery.CheckHint(h); err != nil {
		return err
	}
	n := r.net
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := r.begin(ctx, "PutHint", fmt.Sprint(h.Shard)); err != nil {
		return err
	}
	if h.Epoch >= n.hints[h.Shard].Epoch {
		n.hints[h.Shard] = h
		n.changed()
	}
	return nil
}

// WatchHints implements discovery.Registry.
func (r *Registry) WatchHints(ctx context.Context) (<-chan []discovery.Hint, error) {
	var known map[uint32]discovery.Hint // as sent; nil before the first
	return watch(ctx, r, "WatchHints", "", func() ([]discovery.Hint, func()) {
		now := r.net.hintsOtherThan(known)
		if known != nil && len(now) == 0 {
			return nil, nil
		}
		own := slices.Clone(now)
		return now, func() {
			if known == nil {
				known = make(map[uint32]discovery.Hint)
			}
			for _, h := range own {
				known[h.Shard] = h
			}
		}
	})
}

// hintsOtherThan returns the hints that differ from the known, sorted by shard.
func (n *Network) hintsOtherThan(known map[uint32]discovery.Hint) []discovery.Hint {
	n.mu.Lock()
	defer n.mu.Unlock()
	hints := []discovery.Hint{}
	for _, shard := range slices.Sorted(maps.Keys(n.hints)) {
		if h := n.hints[shard]; known[shard] != h {
			hints = append(hints, h)
		}
	}
	return hints
}

// watch sends what look returns, and calls the function look returned with it
// once it was taken. No function means no news. The goroutine ends with ctx or
// with the registry.
func watch[T any](ctx context.Context, r *Registry, op, what string, look func() (T, func())) (<-chan T, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.begin(ctx, op, what); err != nil {
		return nil, err
	}
	w := &watcher{wake: make(chan struct{}, 1)}
	r.net.mu.Lock()
	r.net.watchers[w] = struct{}{}
	r.net.mu.Unlock()
	out := make(chan T)
	r.wg.Go(func() {
		defer close(out)
		defer func() {
			r.net.mu.Lock()
			defer r.net.mu.Unlock()
			delete(r.net.watchers, w)
		}()
		for {
			value, taken := look()
			var send chan<- T
			if taken != nil {
				send = out
			}
			select {
			case send <- value:
				taken()
			case <-w.wake: // look again, whether the old value was taken or not
			case <-ctx.Done():
				return
			case <-r.done:
				return
			}
		}
	})
	return out, nil
}

// Close implements discovery.Registry: it ends the watches and removes the
// registrations made through this Registry. The network goes on.
func (r *Registry) Close() error {
	r.mu.Lock()
	closed := r.closed
	if !closed {
		r.closed = true
		close(r.done)
	}
	r.mu.Unlock()
	r.wg.Wait()
	r.net.mu.Lock()
	defer r.net.mu.Unlock()
	for _, reg := range r.net.nodes {
		if reg.owner == r {
			r.net.remove(reg)
		}
	}
	return nil
}
