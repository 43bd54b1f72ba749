package sequencer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/head"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
)

// opening is a stream on its way into memory; all who want it wait for one.
type opening struct {
	done chan struct{}
	st   *openStream
	err  error
}

// open returns the stream, reading it into memory first if need be.
func (sh *shard) open(ctx context.Context, id stream.ID) (*openStream, error) {
	if err := sh.ready(ctx); err != nil {
		return nil, err
	}
	sh.mu.Lock()
	if st := sh.streams[id]; st != nil {
		sh.mu.Unlock()
		return st, nil
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

// read rebuilds a stream from its head and the absorbed part of every chain
// the shard is bound to. The order is what makes it right (architecture 5): the
// chains are absorbed as far as they may hold entries of the stream, THEN the
// head is touched by compare-and-set under the own epoch, THEN the directories
// are folded over it. A head read first, or read plainly, may be older than a
// directory that is gone by then, and numbers would be given twice.
func (sh *shard) read(ctx context.Context, id stream.ID) (*openStream, stream.Epoch, error) {
	epoch, bindings, l, evicted, serving := sh.present()
	if !serving {
		return nil, 0, errNoLeader(sh.number)
	}
	s := sh.svc
	// That there is no descriptor may be an old read; whether the stream is
	// deleted is what its log says.
	descriptor, err := s.index.GetDescriptor(ctx, id)
	if err != nil && !catalog.IsNotFound(err) {
		return nil, 0, fmt.Errorf("open stream %s: %w", id, err)
	}
	gone := err != nil
	ends := make([]stream.Slot, len(bindings))
	for i, b := range bindings {
		ends[i] = stream.Slot(b.GetCut())
		if !b.GetCutKnown() {
			// The present chain: entries of streams that left memory, and of
			// earlier epochs, lie below evicted; no other of this stream can be in it.
			ends[i] = evicted
		}
		if ends[i] > 0 {
			if err := s.chains.absorb(ctx, l.writer, b.GetChainId(), ends[i]); err != nil {
				return nil, 0, fmt.Errorf("open stream %s: %w", id, err)
			}
		}
	}
	record, err := s.index.TouchHead(ctx, id, uint64(epoch))
	if gone && catalog.IsNotFound(err) {
		return nil, 0, errDeleted()
	}
	if err != nil {
		return nil, 0, fmt.Errorf("open stream %s: %w", id, err)
	}
	st := &openStream{id: id, shard: sh, descriptor: descriptor, assigned: head.Read(record), used: s.now()}
	var located []*chainwriterpb.LocatedEntry
	for i, b := range bindings {
		if ends[i] == 0 {
			continue
		}
		found, err := s.chains.lookup(ctx, l.writer, b.GetChainId(), sh.number, [][]byte{id[:]}, 0, ends[i])
		if err != nil {
			return nil, 0, fmt.Errorf("open stream %s: %w", id, err)
		}
		located = append(located, found...)
	}
	if err := st.fold(located); err != nil {
		s.log.ErrorContext(ctx, "stream quarantined", "stream", id.String(), "shard", sh.number, "err", err)
		return nil, 0, reason.New(codes.DataLoss, reason.StreamQuarantine, "the stream's log is damaged; see the server's log")
	}
	if gone && !st.deleted {
		return nil, 0, reason.New(codes.Unavailable, "", "open stream "+id.String()+": its descriptor was not found and its log goes on")
	}
	return st, epoch, nil
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
	for _, le := range located {
		e, err := headEntry(le)
		if err != nil {
			return err
		}
		applied, err := st.assigned.Fold(e)
		if err != nil {
			return fmt.Errorf("epoch %d entry %d in slot %d: %w", le.GetEpoch(), le.GetEntryNo(), le.GetAt().GetSlot(), err)
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

func headEntry(le *chainwriterpb.LocatedEntry) (head.Entry, error) {
	if len(le.GetAt().GetChainId()) != len(stream.ChainID{}) {
		return head.Entry{}, errors.New("located entry without a chain")
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
