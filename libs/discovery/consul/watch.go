package consul

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

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

// hintValue is the JSON of a hint.
type hintValue struct {
	Epoch   uint64 `json:"epoch"`
	Address string `json:"address"`
}

func (r *Registry) hintPrefix() string { return "nova/" + r.cfg.Constellation + "/shards/" }

// leastQuery is the least time between two queries of a watch: a service that
// flaps costs its watchers no more than that.
const leastQuery = 20 * time.Millisecond

// maxHintTries bounds the CASes of one PutHint; each lost one means that
// another's was written.
const maxHintTries = 32

// PutHint implements discovery.Registry.
func (r *Registry) PutHint(ctx context.Context, h discovery.Hint) error {
	if err := discovery.CheckHint(h); err != nil {
		return err
	}
	shard := strconv.FormatUint(uint64(h.Shard), 10)
	callCtx, done, err := r.begin(ctx, "PutHint", shard)
	if err != nil {
		return err
	}
	defer done()
	if err := r.putHint(callCtx, r.hintPrefix()+shard, hintValue{h.Epoch, h.Address}); err != nil {
		return r.explain(ctx, "PutHint", shard, err)
	}
	return nil
}

func (r *Registry) putHint(ctx context.Context, key string, h hintValue) error {
	value, err := json.Marshal(h)
	if err != nil {
		return err
	}
	for range maxHintTries {
		pair, _, err := r.client.KV().Get(key, new(api.QueryOptions).WithContext(ctx))
		if err != nil {
			return err
		}
		next := &api.KVPair{Key: key, Value: value} // ModifyIndex 0: only if there is none
		if pair != nil {
			var there hintValue
			if err := json.Unmarshal(pair.Value, &there); err != nil {
				r.cfg.Log.WarnContext(ctx, "consul: hint that is none is replaced", "key", key, "error", err)
			}
			if there.Epoch > h.Epoch || there == h {
				return nil
			}
			next.ModifyIndex = pair.ModifyIndex
		}
		swapped, _, err := r.client.KV().CAS(next, new(api.WriteOptions).WithContext(ctx))
		if err != nil {
			return err
		}
		if swapped {
			return nil
		}
		if !sleep(ctx, jitter(minBackoff/10)) {
			return ctx.Err()
		}
	}
	return fmt.Errorf("lost %d races", maxHintTries)
}

// WatchHints implements discovery.Registry. While Consul does not answer, the
// watch is silent and tries again.
func (r *Registry) WatchHints(ctx context.Context) (<-chan []discovery.Hint, error) {
	var known map[uint32]discovery.Hint // as handed on; nil before the first
	return watch(ctx, r, "WatchHints", r.cfg.Constellation, func(ctx context.Context, index uint64) ([]discovery.Hint, bool, uint64, error) {
		now, next, err := r.hints(ctx, index)
		if err != nil {
			return nil, false, next, err
		}
		changed := []discovery.Hint{}
		for _, shard := range slices.Sorted(maps.Keys(now)) {
			switch old, h := known[shard], now[shard]; {
			case h.Epoch < old.Epoch: // a follower that lags answered
				now[shard] = old
			case h != old:
				changed = append(changed, h)
			}
		}
		first := known == nil
		known = now
		return changed, first || len(changed) > 0, next, nil
	}, newestHints)
}

// newestHints adds changed hints to those a slow receiver has not yet taken.
func newestHints(waiting, changed []discovery.Hint) []discovery.Hint {
	merged := make(map[uint32]discovery.Hint, len(waiting)+len(changed))
	for _, h := range append(waiting, changed...) {
		merged[h.Shard] = h
	}
	hints := make([]discovery.Hint, 0, len(merged))
	for _, shard := range slices.Sorted(maps.Keys(merged)) {
		hints = append(hints, merged[shard])
	}
	return hints
}

func (r *Registry) hints(ctx context.Context, index uint64) (map[uint32]discovery.Hint, uint64, error) {
	options := &api.QueryOptions{WaitIndex: index, WaitTime: blockingWait}
	pairs, meta, err := r.client.KV().List(r.hintPrefix(), options.WithContext(ctx))
	if err != nil {
		return nil, 0, err
	}
	hints := make(map[uint32]discovery.Hint, len(pairs))
	for _, p := range pairs {
		shard, err := strconv.ParseUint(strings.TrimPrefix(p.Key, r.hintPrefix()), 10, 32)
		var v hintValue
		if err == nil {
			err = json.Unmarshal(p.Value, &v)
		}
		if err != nil {
			r.cfg.Log.WarnContext(ctx, "consul: not a hint", "key", p.Key, "error", err)
			continue
		}
		hints[uint32(shard)] = discovery.Hint{Shard: uint32(shard), Epoch: v.Epoch, Address: v.Address}
	}
	return hints, nextIndex(index, meta.LastIndex), nil
}

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
