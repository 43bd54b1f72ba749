// Package hub hands the changes of a store to its watchers.
//
// Invariants: publishing never blocks on a slow watcher; a watcher holds at
// most one pending event per path, the newest, and at most MaxPending of them
// (I8); the channel of a watch is closed exactly once, when its context ends
// or the hub closes; after Close no goroutine of the hub is left.
package hub

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"

	"github.com/nova-stream/nova/libs/metastore"
)

// MaxPending is how many changed paths wait for one watcher. Further ones are
// dropped and logged: watchers read again from time to time anyway.
const MaxPending = 1 << 16

// ErrClosed: the hub was closed.
var ErrClosed = errors.New("hub closed")

// Hub distributes events. The zero value is not usable; call New.
type Hub struct {
	log  *slog.Logger
	done chan struct{}
	wg   sync.WaitGroup

	mu       sync.Mutex // guards what follows
	closed   bool
	watchers map[*watcher]struct{}
}

type watcher struct {
	prefix string
	wake   chan struct{} // capacity 1: something is pending

	mu      sync.Mutex // guards what follows
	order   []string   // paths in the order of their first pending change
	pending map[string]bool
	dropped uint64 // since the watcher was last empty
}

// New returns a hub without watchers. log may be nil.
func New(log *slog.Logger) *Hub {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Hub{log: log, done: make(chan struct{}), watchers: make(map[*watcher]struct{})}
}

// Watch returns the changes published from now on to paths under prefix.
func (h *Hub) Watch(ctx context.Context, prefix string) (<-chan metastore.Event, error) {
	w := &watcher{prefix: prefix, wake: make(chan struct{}, 1), pending: make(map[string]bool)}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, ErrClosed
	}
	h.watchers[w] = struct{}{}
	out := make(chan metastore.Event)
	h.wg.Go(func() {
		defer close(out)
		defer h.forget(w)
		h.deliver(ctx, w, out)
	})
	return out, nil
}

func (h *Hub) forget(w *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.watchers, w)
}

func (h *Hub) deliver(ctx context.Context, w *watcher, out chan<- metastore.Event) {
	for {
		e, ok := w.next()
		if !ok {
			select {
			case <-w.wake:
				continue
			case <-ctx.Done():
				return
			case <-h.done:
				return
			}
		}
		select {
		case out <- e:
		case <-ctx.Done():
			return
		case <-h.done:
			return
		}
	}
}

// Publish tells every watcher of e.Path. It does not block.
func (h *Hub) Publish(e metastore.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watchers {
		if strings.HasPrefix(e.Path, w.prefix) && !w.add(e) {
			h.log.Warn("metastore watcher is too slow, events dropped", "prefix", w.prefix, "pending", MaxPending)
		}
	}
}

// Close ends every watch and returns when their channels are closed.
func (h *Hub) Close() {
	h.mu.Lock()
	if !h.closed {
		h.closed = true
		close(h.done)
	}
	h.mu.Unlock()
	h.wg.Wait()
}

// add queues or merges an event. It returns false when it dropped the first
// event since the watcher was last empty.
func (w *watcher) add(e metastore.Event) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, there := w.pending[e.Path]; !there {
		if len(w.order) >= MaxPending {
			w.dropped++
			return w.dropped > 1
		}
		w.order = append(w.order, e.Path)
	}
	w.pending[e.Path] = e.Deleted
	select {
	case w.wake <- struct{}{}:
	default:
	}
	return true
}

func (w *watcher) next() (metastore.Event, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.order) == 0 {
		w.order, w.dropped = nil, 0
		return metastore.Event{}, false
	}
	path := w.order[0]
	w.order = w.order[1:]
	deleted := w.pending[path]
	delete(w.pending, path)
	return metastore.Event{Path: path, Deleted: deleted}, true
}
