package sequencer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/head"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// opening is a stream on its way into memory; all who want it wait for one.
type opening struct {
	done chan struct{}
	st   *openStream
	err  error
}

// open returns the stream, reading it into memory first if need be.
func (sh *shard) open(ctx context.Context, id stream.ID) (*openStream, error) {
	st, err := sh.openAny(ctx, id)
	if err == nil && st.broken != nil {
		return nil, st.broken
	}
	return st, err
}

// openAny is open that returns a quarantined stream too.
func (sh *shard) openAny(ctx context.Context, id stream.ID) (*openStream, error) {
	if err := sh.ready(ctx); err != nil {
		return nil, err
	}
	sh.mu.Lock()
	if st := sh.streams[id]; st != nil && (st.broken == nil || sh.svc.now().Before(st.lookAgain) || st.deleting.Load()) {
		sh.mu.Unlock()
		return st, nil
	} else if st != nil {
		// It has nothing under way, and is read anew.
		delete(sh.streams, id)
	}
	o := sh.opening[id]
	if o == nil {
		o = &opening{done: make(chan struct{})}
		sh.opening[id] = o
		// The work outlives the first caller: others may wait for it.
		sh.svc.work.Go(func() {
			sh.finishOpening(id, o)
		})
	}
	sh.mu.Unlock()
	select {
	case <-o.done:
		return o.st, o.err
	case <-ctx.Done():
		return nil, reason.New(reason.Code(ctx.Err()), "", "open stream: "+ctx.Err().Error())
	}
}

func (sh *shard) finishOpening(id stream.ID, o *opening) {
	st, epoch, err := sh.read(sh.svc.running, id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	delete(sh.opening, id)
	switch {
	case err != nil:
		o.err = err
	case !sh.serving.Load() || sh.epoch != epoch:
		// Recovery moved on while it was read; what was read may lack entries.
		o.err = errNoLeader(sh.number)
	default:
		sh.svc.coordinates.Add(int64(len(st.pieces) * pieceBytes))
		o.st = st
		sh.streams[id] = st
	}
	close(o.done)
}

// vanishedMost is how often one opening starts again because directories were
// gone: once is enough unless reads of the chain's record are old.
const vanishedMost = 4

// read reads a stream, and quarantines it if what it finds is broken both times
// that it looks.
func (sh *shard) read(ctx context.Context, id stream.ID) (*openStream, stream.Epoch, error) {
	broke := false
	for vanished := 0; ; {
		epoch, bindings, l, evicted, serving := sh.present()
		if !serving {
			return nil, 0, errNoLeader(sh.number)
		}
		st := &openStream{id: id, shard: sh, used: sh.svc.now()}
		touched, err := sh.readInto(ctx, st, epoch, bindings, l, evicted)
		var broken *errBroken
		switch {
		case errors.As(err, &broken) && !broke:
			broke = true
			for _, b := range bindings {
				sh.svc.chains.forget(b.GetChainId()) // what is damaged may be settled, and not needed
			}
			continue
		case broken != nil:
			err = sh.quarantine(ctx, touched, st, broken)
		case reason.Is(err, reason.DirectoryVanished) && vanished < vanishedMost:
			vanished++
			select {
			case <-ctx.Done():
			case <-time.After(jittered(retryLeast)):
			}
			continue
		case reason.Is(err, reason.DirectoryVanished):
			err = reason.New(codes.Unavailable, "", "how far its chains are settled is not known: "+err.Error())
		}
		if err != nil {
			return nil, 0, fmt.Errorf("open stream %s: %w", id, err)
		}
		return st, epoch, nil
	}
}

// lookupsAtOnce is how many chains are looked into in parallel for one stream.
const lookupsAtOnce = 4

// part is a part of a chain that may hold entries of a stream that its head lacks.
type part struct {
	chain    string
	from, to stream.Slot
}

// unsettled returns the parts of the shard's chains that a stream's entries may be
// in, and that its head, touched later, need not hold. They are absorbed. A chain
// that is bound twice is one part.
func (sh *shard) unsettled(ctx context.Context, id stream.ID, bindings []*indexpb.Binding, l *link, evicted stream.Slot) ([]part, error) {
	var parts []part
	for _, b := range bindings {
		to := stream.Slot(b.GetCut())
		if !b.GetCutKnown() {
			// The present chain: entries of streams that left memory, and of
			// earlier epochs, lie below evicted; no other of this stream can be in it.
			to = evicted
		}
		i := slices.IndexFunc(parts, func(p part) bool { return p.chain == b.GetChainId() })
		if i < 0 {
			i, parts = len(parts), append(parts, part{chain: b.GetChainId()})
		}
		parts[i].to = max(parts[i].to, to)
	}
	chains := sh.svc.chains
	for i := range parts {
		p := &parts[i]
		if p.to == 0 {
			continue
		}
		if err := chains.absorb(ctx, l.writer, p.chain, p.to); err != nil {
			return nil, err
		}
		record, err := chains.record(ctx, p.chain, p.to)
		if err != nil {
			return nil, err
		}
		p.from = min(stream.Slot(record.GetSettledTo()), p.to)
		for _, pin := range record.GetPins() {
			// It was quarantined when this part was settled, and its head may lack what
			// is pinned. If nobody can tell any more, it is not served.
			if pin.GetStreamId() == id.String() {
				p.from = min(p.from, stream.Slot(pin.GetFrom()))
			}
		}
	}
	return parts, nil
}

// readInto rebuilds a stream from its head and the absorbed part of every chain
// the shard is bound to, and returns the head. The order is what makes it right
// (architecture 5): the chains are absorbed as far as they may hold entries of
// the stream, and it is read how far they are settled, THEN the head is touched by
// compare-and-set under the own epoch, THEN the directories that are not settled
// are folded over it. A head read first, or read plainly, may be older than a
// directory that is gone by then, and numbers would be given twice; so they would
// if the head were older than the end of what is passed over as settled.
func (sh *shard) readInto(ctx context.Context, st *openStream, epoch stream.Epoch, bindings []*indexpb.Binding, l *link, evicted stream.Slot) (*indexpb.Head, error) {
	s, id := sh.svc, st.id
	parts, err := sh.unsettled(ctx, id, bindings, l, evicted)
	if err != nil {
		return nil, err
	}
	record, err := s.index.TouchHead(ctx, id, uint64(epoch))
	if catalog.IsNotFound(err) {
		return nil, errDeleted() // which is proven
	}
	if err != nil {
		return nil, err
	}
	st.assigned = head.Read(record)
	if q := record.GetQuarantine(); q != "" && !st.assigned.Deleted {
		st.verdict(errQuarantined(id, record.GetPins()))
		return record, nil
	}
	found := make([][]*chainwriterpb.LocatedEntry, len(parts))
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(lookupsAtOnce)
	for i, p := range parts {
		if st.assigned.Deleted {
			break
		}
		group.Go(func() (err error) {
			found[i], err = sh.lookupOwn(gctx, l, p, id)
			if reason.Is(err, reason.DirectoryVanished) {
				s.chains.forget(p.chain)
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return record, err
	}
	// Numbers below the head's tail have no coordinates: who reads them finds them
	// through the head.
	st.settledTo, st.settledTS = st.assigned.Tail, st.assigned.LastTimestamp
	if err := st.fold(slices.Concat(found...)); err != nil {
		return record, err
	}
	// That there is no descriptor may be an old read; whether the stream is
	// deleted is what its log says.
	st.descriptor, err = s.index.GetDescriptor(ctx, id)
	if catalog.IsNotFound(err) && st.deleted {
		err = nil
	} else if catalog.IsNotFound(err) {
		err = reason.New(codes.Unavailable, "", "its descriptor was not found and its log goes on")
	}
	return record, err
}

// fold applies located entries and takes the result as the committed state.
func (st *openStream) fold(located []*chainwriterpb.LocatedEntry) error {
	slices.SortStableFunc(located, func(a, b *chainwriterpb.LocatedEntry) int {
		pa, pb := position(a), position(b)
		switch {
		case pa.Less(pb):
			return -1
		case pb.Less(pa):
			return 1
		}
		return 0
	})
	for i, le := range located {
		e, err := headEntry(le)
		applied := false
		if err == nil {
			applied, err = st.assigned.Fold(e)
		}
		if err != nil {
			err = fmt.Errorf("epoch %d entry %d in slot %d of chain %s: %w", le.GetEpoch(), le.GetEntryNo(), le.GetAt().GetSlot(), chainName(le), err)
		}
		if isBroken(err) {
			return brokenAt(err, located[i:])
		}
		if err != nil {
			return err
		}
		if !applied || e.Chunk == nil {
			continue
		}
		chain := stream.ChainID(le.GetAt().GetChainId())
		p := st.shard.pieceAt(chain, le.GetAt())
		p.base, p.count, p.lastTS = e.Chunk.BaseSeq, e.Chunk.Count, e.Chunk.LastTimestamp
		st.addPieceLocked(p)
	}
	a := &st.assigned
	st.tail, st.lastTS, st.hash = a.Tail, a.LastTimestamp, a.Hash
	st.trim, st.sealed, st.deleted = a.Trim, a.Sealed, a.Deleted
	st.dropTrimmedLocked()
	return nil
}

func position(le *chainwriterpb.LocatedEntry) stream.Position {
	return stream.Position{Epoch: stream.Epoch(le.GetEpoch()), Entry: stream.EntryNo(le.GetEntryNo())}
}

var errNoChain = errors.New("located entry without a chain")

func headEntry(le *chainwriterpb.LocatedEntry) (head.Entry, error) {
	if len(le.GetAt().GetChainId()) != len(stream.ChainID{}) {
		return head.Entry{}, errNoChain
	}
	e := head.Entry{Position: position(le), Kind: bundleKind(le.GetKind()), Timestamp: stream.Millis(le.GetTimestamp())}
	if e.Kind != bundle.KindChunk {
		e.Argument = le.GetHeader()
		return e, nil
	}
	h, _, err := chunk.ParseHeader(le.GetHeader())
	if err != nil {
		return head.Entry{}, err
	}
	e.Chunk = &h
	return e, nil
}
