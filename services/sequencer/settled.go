package sequencer

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// What a leader does as its chains are settled. Records of entries in slots below
// a chain's settled_to are found through the streams' heads, and their slots will
// be deleted. So now and then the leader reads the records of the chains that its
// shards are bound to, and
//
//  1. forgets the coordinates of what is settled. They are the first ones of each
//     stream: chains are settled in the order in which a shard was bound to them.
//  2. unbinds shards from chains that are settled past their cut, by a change of
//     the shard's record under its epoch. A crash or a lost reply: it is done by
//     the next look, or by the next leader's.
//  3. forgets what it knows of chains that no shard here is bound to any more.
//
// An old read of a chain's record says less than is settled, never more.

const (
	// chainsAtOnce is how many chains' records are read in parallel.
	chainsAtOnce = 4
	// unbindPatience is how long unbinding may take, and rereadPatience finding out
	// what became of it: both may hold up a handoff.
	unbindPatience = 2 * time.Second
	rereadPatience = time.Second
)

// watchSettled looks, while the service runs, how far its chains are settled.
func (s *Service) watchSettled() {
	for {
		// On average as often as configured.
		select {
		case <-s.running.Done():
			return
		case <-time.After(jittered(s.cfg.SettledEvery * 2 / 3)):
		}
		s.followSettled(s.running)
	}
}

// followSettled goes the three steps once.
func (s *Service) followSettled(ctx context.Context) {
	known := s.readSettled(ctx)
	for _, sh := range s.shards {
		sh.forgetSettled(known)
	}
	for _, sh := range s.shards {
		sh.unbind(ctx, known)
	}
	bound := s.bound()
	s.chains.keep(bound)
	s.chainNames.Range(func(chain, _ any) bool {
		if !bound[chain.(stream.ChainID).String()] {
			s.chainNames.Delete(chain)
		}
		return true
	})
}

// bound returns the chains that the shards held here are bound to.
func (s *Service) bound() map[string]bool {
	out := map[string]bool{}
	for _, sh := range s.shards {
		sh.mu.Lock()
		if sh.held {
			for _, b := range sh.record.GetBindings() {
				out[b.GetChainId()] = true
			}
		}
		sh.mu.Unlock()
	}
	return out
}

// settledChains is what the records of chains say; of those that could not be
// read it says nothing.
type settledChains struct {
	to map[string]stream.Slot
	// pinned are streams that were quarantined when a part of a chain was settled
	// that holds entries of theirs; their heads need not hold those. keeps are the
	// chains.
	pinned map[string]bool
	keeps  map[string]bool
}

func (s *Service) readSettled(ctx context.Context) settledChains {
	out := settledChains{to: map[string]stream.Slot{}, pinned: map[string]bool{}, keeps: map[string]bool{}}
	var mu sync.Mutex // guards out
	var group errgroup.Group
	group.SetLimit(chainsAtOnce)
	for chain := range s.bound() {
		group.Go(func() error {
			r, err := s.chains.read(ctx, chain)
			if err != nil {
				s.log.DebugContext(ctx, "how far a chain is settled is not known", "chain", chain, "err", err)
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			out.to[chain] = stream.Slot(r.GetSettledTo())
			for _, p := range r.GetPins() {
				out.pinned[p.GetStreamId()], out.keeps[chain] = true, true
			}
			return nil
		})
	}
	_ = group.Wait() // no call fails
	return out
}

// forgetSettled forgets the coordinates of the shard's streams that are settled. A
// stream that was quarantined behind its leader's back keeps them, since nothing
// else leads to its records, and leaves memory when it is at rest: who opens it
// finds what is wrong.
func (sh *shard) forgetSettled(known settledChains) {
	sh.mu.Lock()
	streams := make([]*openStream, 0, len(sh.streams))
	for _, st := range sh.streams {
		streams = append(streams, st)
	}
	sh.mu.Unlock()
	for _, st := range streams {
		st.mu.Lock()
		switch {
		case !known.pinned[st.id.String()]:
			st.uncountLocked(st.dropSettledLocked(known.to))
		case st.broken == nil && st.atRestLocked():
			sh.evictLocked(st)
		}
		st.mu.Unlock()
	}
}

// dropSettledLocked forgets the stream's first pieces as far as they are settled,
// and returns how many.
func (st *openStream) dropSettledLocked(settled map[string]stream.Slot) int {
	if st.gone != nil {
		return 0
	}
	n := 0
	for n < len(st.pieces) {
		chain := st.pieces[n].chain
		below := st.shard.settledIn(st, chain, settled)
		first := n
		for n < len(st.pieces) && *st.pieces[n].chain == *chain && st.pieces[n].slot < below {
			n++
		}
		if n == first {
			break
		}
	}
	if n > 0 {
		last := &st.pieces[n-1]
		st.settledTo, st.settledTS = last.next(), last.lastTS
	}
	return st.dropFirstLocked(n)
}

// settledIn returns the slot below which the shard's entries in a chain are
// settled, as far as it is known: all of them, if the shard was unbound from it. It
// is called with the stream's lock held, so that what it says is true of the
// pieces that are there.
func (sh *shard) settledIn(st *openStream, chain *stream.ChainID, settled map[string]stream.Slot) stream.Slot {
	const all = ^stream.Slot(0)
	name := chain.String()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	switch {
	case !sh.held || sh.streams[st.id] != st:
		return 0
	case !slices.ContainsFunc(sh.record.GetBindings(), func(b *indexpb.Binding) bool { return b.GetChainId() == name }):
		return all
	}
	return settled[name]
}

// unbind takes the bindings out of the shard's record that are settled past their
// cut; the last one stays. A chain that keeps slots of quarantined streams stays
// bound, so that whoever opens such a stream sees that.
func (sh *shard) unbind(ctx context.Context, known settledChains) {
	if !sh.changing.TryLock() {
		return // it is being handed over
	}
	defer sh.changing.Unlock()
	sh.mu.Lock()
	old, version, serves := sh.record, sh.version, sh.held && sh.serving.Load()
	sh.mu.Unlock()
	if !serves {
		return
	}
	next := proto.CloneOf(old)
	present := len(next.GetBindings()) - 1
	var kept []*indexpb.Binding
	for i, b := range next.GetBindings() {
		to, ok := known.to[b.GetChainId()]
		if done := ok && b.GetCutKnown() && stream.Slot(b.GetCut()) <= to && !known.keeps[b.GetChainId()]; !done || i == present {
			kept = append(kept, b)
		}
	}
	if len(kept) == len(next.GetBindings()) {
		return
	}
	next.Bindings = kept
	call, cancel := context.WithTimeout(ctx, unbindPatience)
	defer cancel()
	version, err := sh.svc.index.PutShard(call, next, version)
	if err == nil {
		sh.adopt(old, next, version)
		return
	}
	sh.svc.log.DebugContext(ctx, "chains that are settled stay bound for now", "shard", sh.number, "err", err)
	sh.reread(ctx, old)
}

// adopt takes over what became of the record that was known, unless another change
// of it came between.
func (sh *shard) adopt(known, record *indexpb.Shard, version int64) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.held && sh.record == known && version > sh.version {
		sh.record, sh.version = record, version
	}
}

// reread finds out what became of a change of the record under the own epoch whose
// reply was lost. What another life did to it is not learnt here.
func (sh *shard) reread(ctx context.Context, known *indexpb.Shard) {
	ctx, cancel := context.WithTimeout(ctx, rereadPatience)
	defer cancel()
	record, version, err := sh.svc.index.GetShard(ctx, sh.number)
	if err != nil || record.GetEpoch() != known.GetEpoch() || record.GetHolderLife() != known.GetHolderLife() || record.GetState() != known.GetState() {
		return
	}
	sh.adopt(known, record, version)
}
