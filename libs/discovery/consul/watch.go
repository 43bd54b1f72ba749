package consul

import (
	"context"
	"slices"
	"time"

	"github.com/nova-stream/nova/libs/discovery"
)

// Watch implements discovery.Registry. While Consul does not answer, the watch
// is silent and tries again.
func (r *Registry) Watch(ctx context.Context, s discovery.Service) (<-chan []discovery.Node, error) {
	var known []discovery.Node // as handed on; nil before the first
	return watch(ctx, r, "Watch", string(s), func(ctx context.Context, index uint64) ([]discovery.Node, bool, uint64, error) {
		nodes, next, err := r.query(ctx, s, index)
		if err != nil || known != nil && slices.EqualFunc(nodes, known, discovery.Node.Equal) {
			return nil, false, next, err
		}
		known = make([]discovery.Node, len(nodes)) // nodes will be the receiver's
		for i := range nodes {
			known[i] = nodes[i].Clone()
		}
		return nodes, true, next, nil
	}, func(_, newest []discovery.Node) []discovery.Node { return newest })
}

// leastQuery is the least time between two queries of a watch: a service that
// flaps costs its watchers no more than that.
const leastQuery = 20 * time.Millisecond

// watch asks look again and again, each time with the index to wait for, and
// hands on what it says is news. merge combines what waits for a slow receiver
// with what came after it. Two goroutines, one asking and one sending, end with
// ctx or the registry.
func watch[T any](ctx context.Context, r *Registry, op, what string,
	look func(ctx context.Context, index uint64) (value T, news bool, next uint64, err error),
	merge func(waiting, newest T) T,
) (<-chan T, error) {
	_, done, err := r.begin(ctx, op, what)
	if err != nil {
		return nil, err
	}
	done()
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(r.ctx, cancel)
	found, out := make(chan T), make(chan T)
	ask := func() {
		defer close(found)
		var index uint64
		var pause backoff
		for {
			// Consul adds up to a sixteenth to the wait; after that it hangs.
			lookCtx, done := context.WithTimeout(ctx, blockingWait+blockingWait/16+r.cfg.RequestTimeout)
			value, news, next, err := look(lookCtx, index)
			done()
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				if pause.next == 0 { // the first of a row
					r.cfg.Log.WarnContext(ctx, "consul: watch", "op", op, "what", what, "error", err)
				}
				index = 0
				if !pause.wait(ctx) {
					return
				}
				continue
			}
			pause.reset()
			index = next
			if news {
				select {
				case found <- value:
				case <-ctx.Done():
					return
				}
			}
			if !sleep(ctx, leastQuery) {
				return
			}
		}
	}
	started := r.spawn(func() {
		defer cancel()
		defer stop()
		defer close(out)
		relay(found, out, merge)
	}) && r.spawn(ask)
	if !started {
		cancel()
		close(found)
		return nil, discovery.Fail(op, what, discovery.ErrClosed, "")
	}
	return out, nil
}

// relay passes values on until found is closed, and merges those that the
// receiver is too slow for.
func relay[T any](found <-chan T, out chan<- T, merge func(waiting, newest T) T) {
	var waiting T
	var send chan<- T // out while something waits
	for {
		select {
		case v, ok := <-found:
			if !ok {
				return
			}
			if send != nil {
				v = merge(waiting, v)
			}
			waiting, send = v, out
		case send <- waiting:
			var none T
			waiting, send = none, nil // it is the receiver's now
		}
	}
}
