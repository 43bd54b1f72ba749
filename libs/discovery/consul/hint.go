package consul

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/hashicorp/consul/api"

	"github.com/nova-stream/nova/libs/discovery"
)

// hintValue is the JSON of a hint.
type hintValue struct {
	Epoch   uint64 `json:"epoch"`
	Address string `json:"address"`
}

func (r *Registry) hintPrefix() string { return "nova/" + r.cfg.Constellation + "/shards/" }

const (
	// maxHintTries bounds the CASes of one try; each lost one means that
	// another's was written.
	maxHintTries = 32
	// hintTurns is how many hints are written at once. A sequencer has one for
	// each of hundreds of shards when it starts, and an agent answers 429 to the
	// connections beyond its limit for one client.
	hintTurns = 4
	// maxLateHints is how many hints are kept to be tried again: more shards than
	// a constellation may have.
	maxLateHints = 1 << 16
)

// lateHints are those that Consul did not take: the newest of each shard.
type lateHints struct {
	mu      sync.Mutex
	waiting map[uint32]hintValue
	running bool // somebody works on them
}

// PutHint implements discovery.Registry. After ErrUnavailable the hint is tried
// again until it is written, a newer one of its shard takes its place, or the
// registry is closed.
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
	r.late.supersede(h)
	err = r.putInTurn(callCtx, h.Shard, hintValue{h.Epoch, h.Address})
	if err != nil && ctx.Err() == nil {
		r.putLater(h)
	}
	return r.explain(ctx, "PutHint", shard, err)
}

func (r *Registry) putInTurn(ctx context.Context, shard uint32, h hintValue) error {
	select {
	case r.turns <- struct{}{}:
		defer func() { <-r.turns }()
	case <-ctx.Done():
		return ctx.Err()
	}
	return r.putHint(ctx, r.hintPrefix()+strconv.FormatUint(uint64(shard), 10), h)
}

// putLater keeps a hint to be tried again.
func (r *Registry) putLater(h discovery.Hint) {
	l := &r.late
	l.mu.Lock()
	defer l.mu.Unlock()
	there, known := l.waiting[h.Shard]
	switch {
	case known && there.Epoch > h.Epoch:
		return
	case !known && len(l.waiting) >= maxLateHints:
		r.cfg.Log.Warn("consul: too many hints wait, one is dropped", "shard", h.Shard)
		return
	}
	if l.waiting == nil {
		l.waiting = make(map[uint32]hintValue)
	}
	l.waiting[h.Shard] = hintValue{h.Epoch, h.Address}
	if !l.running {
		l.running = r.spawn(r.putLate)
	}
}

// putLate writes the waiting hints, one at a time, until there is none.
func (r *Registry) putLate() {
	var pause backoff
	for {
		shard, h, ok := r.late.next()
		if !ok {
			return
		}
		ctx, cancel := context.WithTimeout(r.ctx, r.cfg.RequestTimeout)
		err := r.putInTurn(ctx, shard, h)
		cancel()
		if err == nil {
			r.late.written(shard, h)
			pause.reset()
			continue
		}
		if pause.next == 0 && r.ctx.Err() == nil { // the first of a row
			r.cfg.Log.WarnContext(ctx, "consul: put a hint, trying again", "shard", shard, "error", err)
		}
		if !pause.wait(r.ctx) {
			return
		}
	}
}

// next returns one that waits; when there is none, the work on them has ended.
func (l *lateHints) next() (uint32, hintValue, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for shard, h := range l.waiting {
		return shard, h, true
	}
	l.running = false
	return 0, hintValue{}, false
}

// supersede drops the hint that a newer one replaces; of the same epoch, the one
// put last is newer.
func (l *lateHints) supersede(h discovery.Hint) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting[h.Shard].Epoch <= h.Epoch {
		delete(l.waiting, h.Shard)
	}
}

// written notes that a hint is stored, or that a newer one was there.
func (l *lateHints) written(shard uint32, h hintValue) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting[shard] == h {
		delete(l.waiting, shard)
	}
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
