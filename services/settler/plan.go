package settler

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/directory"
	"github.com/nova-stream/nova/libs/head"
	"github.com/nova-stream/nova/libs/history"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// plan is what is to happen to one stream of the span: its head, as it was read,
// is folded, and these chunks are to be stored before it is changed.
type plan struct {
	*work

	head    *indexpb.Head // as read
	version int64
	state   head.State // after the fold
	limits  limits     // of one that has chunks to store
	// unfolded are the entries that the head did not hold, in order; none once the
	// plan is only to change the row.
	unfolded []directory.Located
	store    []directory.Located // the chunks among them that stay
	bytes    int64               // of store, in their slots, and of what is rewritten
	weight   int64               // bytes that the plan holds in memory, store's included
	deleted  *stream.Slot        // where the DELETE entry is
	placed   []*placed           // where the chunks went, in order
	lift     bool                // the change ends the quarantine: see repair.go
	rewrite  *rewrite            // what becomes one with them; nil: nothing
	unread   error               // why that could not be read
	redo     bool                // the stream is taken up again, without rewriting
	move     *indexpb.Ref        // what the chunk that is placed is a copy of: see compact.go
	pages    []*object           // that name it there, if it was in a page
}

// errLog is what is wrong with a stream's own log; other streams are not
// concerned.
type errLog struct {
	cause error
	at    []slotRange // if it is a directory that is damaged, its slots
}

func (e *errLog) Error() string { return e.cause.Error() }
func (e *errLog) Unwrap() error { return e.cause }

// plan is step 3 for some streams: plans of those whose heads are to change, and
// the streams to take up again. What is done already has neither.
func (s *span) plan(ctx context.Context, some []*work) (plans []*plan, again []*work, err error) {
	out := make([]*plan, len(some))
	redo := make([]bool, len(some))
	group, gctx := errgroup.WithContext(ctx)
	for i, w := range some {
		group.Go(func() (err error) {
			out[i], err = s.planOne(gctx, w)
			var log *errLog
			switch {
			case errors.As(err, &log) && w.failed == nil:
				w.failed, redo[i], err = err, true, nil
			case catalog.IsConflict(err):
				redo[i], err = true, nil // of a quarantine: the head was changed since
			}
			if err != nil {
				return fmt.Errorf("stream %s: %w", w.id, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, nil, err
	}
	for i, w := range some {
		if redo[i] {
			again = append(again, w)
		} else if out[i] != nil {
			plans = append(plans, out[i])
		}
	}
	return plans, again, nil
}

// planOne returns nil when nothing is to be done to the head.
func (s *span) planOne(ctx context.Context, w *work) (*plan, error) {
	entries, damage := s.entries(ctx, w)
	var log *errLog
	if damage != nil && !errors.As(damage, &log) {
		return nil, damage
	}
	h, version, err := s.head(ctx, w.id, entries, damage != nil)
	if err != nil || h == nil {
		return nil, err
	}
	p := &plan{work: w, head: h, version: version, state: head.Read(h)}
	folded := p.state.Folded
	i := slices.IndexFunc(entries, func(e directory.Located) bool {
		return folded.Epoch == 0 || folded.Less(stream.Position{Epoch: e.Epoch, Entry: e.EntryNo})
	})
	if i >= 0 {
		p.unfolded = entries[i:]
	}
	switch {
	case h.GetState() == indexpb.HeadState_HEAD_STATE_DELETED:
		return p.ofDeleted()
	case h.GetQuarantine() != "":
		return nil, s.keep(ctx, p, log)
	case damage != nil:
		return nil, s.broken(ctx, p, log)
	case len(p.unfolded) == 0:
		return nil, nil
	}
	if err := p.fold(); err != nil {
		if errors.As(err, &log) {
			err = s.broken(ctx, p, log)
		}
		return nil, err
	}
	if len(p.store) > 0 {
		p.limits = s.limitsOf(ctx, p.id)
	}
	s.rewrite(p)
	return p, nil
}

// entries returns what the span holds of a stream, in chain order. Damage is an
// errLog; what is intact is returned with it.
func (s *span) entries(ctx context.Context, w *work) ([]directory.Located, error) {
	var out []directory.Located
	var damage *errLog
	for _, i := range w.windows {
		d := s.windows[i]
		if w.failed != nil {
			// It may have been damaged on its way.
			var err error
			if d, err = s.openOne(ctx, d.row); err != nil {
				return nil, err
			}
		}
		found, err := d.Stream(w.id)
		if errors.Is(err, directory.ErrCorrupt) {
			if damage == nil {
				damage = &errLog{cause: fmt.Errorf("directory of slots [%d, %d): %w", d.From, d.To, err)}
			}
			damage.at = append(damage.at, slotRange{d.From, d.To})
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("directory of slots [%d, %d): %w", d.From, d.To, err)
		}
		out = append(out, found...)
	}
	if damage != nil {
		return out, damage
	}
	return out, nil
}

// head reads a stream's head; nil means that there is nothing to do, because the
// stream is gone. That the read may be old is met by the change of the head.
func (s *span) head(ctx context.Context, id stream.ID, entries []directory.Located, damaged bool) (*indexpb.Head, int64, error) {
	h, version, err := s.index.GetHead(ctx, id)
	if catalog.IsNotFound(err) {
		h, version, err = s.index.ProvenHead(ctx, id)
	}
	if !catalog.IsNotFound(err) {
		if err != nil {
			return nil, 0, fmt.Errorf("read head: %w", err)
		}
		return h, version, nil
	}
	// The stream was torn down, which is done when all of it is settled. A DELETE
	// that was written again may come after that.
	onlyDelete := func(e directory.Located) bool { return e.Kind == bundle.KindDelete }
	if !damaged && !slices.ContainsFunc(entries, func(e directory.Located) bool { return !onlyDelete(e) }) {
		return nil, 0, nil
	}
	r, _, err := s.index.GetChain(ctx, s.name)
	if err != nil {
		return nil, 0, fmt.Errorf("read the chain's record: %w", err)
	}
	if r.GetSettledTo() >= uint64(s.to) {
		return nil, 0, nil
	}
	return nil, 0, blocked("stream %s has no head and entries that are not settled", id)
}

// ofDeleted notes where the DELETE entry is, if the head does not say so: a
// quarantined stream is deleted before its entry is folded.
func (p *plan) ofDeleted() (*plan, error) {
	if p.head.GetDeletedChain() != "" {
		return nil, nil
	}
	for _, e := range p.unfolded {
		if e.Kind == bundle.KindDelete {
			p.deleted = &e.At.Slot
			p.unfolded = nil
			p.weight = p.inMemory()
			return p, nil
		}
	}
	return nil, nil
}

// fold folds the entries and chooses the chunks that stay.
func (p *plan) fold() error {
	for i, e := range p.unfolded {
		if uint32(e.Shard) != p.head.GetShard() {
			return fmt.Errorf("entry of shard %d, the stream's is %d", e.Shard, p.head.GetShard())
		}
		he := head.Entry{Position: stream.Position{Epoch: e.Epoch, Entry: e.EntryNo}, Kind: e.Kind, Timestamp: e.Timestamp, Chunk: e.Chunk}
		if e.Kind != bundle.KindChunk {
			he.Argument = e.Header
		}
		applied, err := p.state.Fold(he)
		if errors.Is(err, head.ErrBroken) {
			return &errLog{cause: fmt.Errorf("epoch %d entry %d in slot %d of chain %s: %w", e.Epoch, e.EntryNo, e.At.Slot, e.At.Chain, err)}
		}
		if err != nil {
			return err
		}
		if !applied {
			continue
		}
		if e.Kind == bundle.KindDelete && p.deleted == nil {
			p.deleted = &p.unfolded[i].At.Slot
		}
		if e.Kind == bundle.KindChunk {
			p.store = append(p.store, e)
		}
	}
	// Nobody reads what is trimmed, or a stream that is deleted.
	p.store = slices.DeleteFunc(p.store, func(e directory.Located) bool { return p.state.Deleted || e.Chunk.Next() <= p.state.Trim })
	for _, e := range p.store {
		p.bytes += int64(e.At.Length)
	}
	p.weight = p.inMemory() + p.bytes
	return nil
}

// inMemory estimates the bytes that the plan holds beside the chunks.
func (p *plan) inMemory() int64 {
	const perEntry, perBatch, perHeadByte = 400, 100, 6 // of what is decoded
	n := int64(perHeadByte * (512 + proto.Size(p.head)))
	for _, e := range p.unfolded {
		n += perEntry + int64(len(e.Header))
		if e.Chunk != nil {
			n += perBatch * int64(len(e.Chunk.Batches))
		}
	}
	return n
}

// broken quarantines the stream, if it is found broken for the second time. It is
// refused if the head that was read is an old one.
func (s *span) broken(ctx context.Context, p *plan, log *errLog) error {
	if p.failed == nil {
		return log
	}
	kept := p.kept(log)
	next := proto.CloneOf(p.head)
	next.Quarantine, next.Pins = log.Error(), s.headPins(kept)
	if _, err := s.index.PutHead(ctx, next, p.version); err != nil {
		return fmt.Errorf("quarantine, since %s: %w", log.Error(), err)
	}
	s.log.ErrorContext(ctx, "stream quarantined", "stream", p.id.String(), "chain", s.name, "err", log)
	s.metrics.quarantined.Add(ctx, 1)
	s.pin(p.id, kept)
	return nil
}

// kept are the slots that the repair of the stream needs.
func (p *plan) kept(log *errLog) []slotRange {
	out := slotsOf(p.unfolded)
	if log != nil {
		out = append(out, log.at...)
	}
	return out
}

// keep pins what the span holds of a stream that is quarantined. A change of the
// head proves that it still is.
func (s *span) keep(ctx context.Context, p *plan, log *errLog) error {
	kept := p.kept(log)
	for _, pin := range p.head.GetPins() {
		if pin.GetChainId() == s.name {
			kept = append(kept, slotRange{stream.Slot(pin.GetFrom()), stream.Slot(pin.GetTo())})
		}
	}
	if len(kept) == 0 {
		return nil
	}
	if _, err := s.index.PutHead(ctx, p.head, p.version); err != nil {
		return fmt.Errorf("prove the quarantine: %w", err)
	}
	s.pin(p.id, kept)
	return nil
}

// next returns the head as it is to be: folded, with the new refs, without what
// is trimmed or rewritten, and what is dead by that.
func (p *plan) next(ctx context.Context, s *span) (next *indexpb.Head, dead []*indexpb.Ref, deadPages []*indexpb.RefPage, err error) {
	next = proto.CloneOf(p.head)
	if p.move != nil {
		dead, err = p.moved(ctx, s, next)
		return next, dead, nil, err
	}
	if p.lift {
		next.Quarantine, next.Pins = "", nil
	}
	if p.deleted != nil && next.GetDeletedChain() == "" {
		next.DeletedChain, next.DeletedSlot = s.name, uint64(*p.deleted)
	}
	if p.unfolded == nil {
		return next, nil, nil, nil
	}
	p.state.Write(next)
	if p.state.Deleted {
		return next, nil, nil, nil // its teardown drops all that the head names
	}
	dead, deadPages, err = history.Trim(ctx, s.loader(p.id), next, p.state.Trim)
	if errors.Is(err, history.ErrGone) {
		// The head is an old read, and then its change fails. Or the page is lost: what
		// it names can never be dropped, and the rest of the chain must not wait for it.
		s.log.ErrorContext(ctx, "a page of refs is gone", "stream", p.id.String(), "err", err)
		err = nil
	}
	if err == nil {
		var replaced []*indexpb.Ref
		replaced, err = p.rewrite.replace(next)
		dead = append(dead, replaced...)
	}
	for _, r := range p.placed {
		if err == nil {
			err = history.Append(next, r.ref())
		}
	}
	if errors.Is(err, history.ErrBroken) || errors.Is(err, history.ErrCorrupt) {
		if p.rewrite != nil {
			return nil, nil, nil, fmt.Errorf("%w: %w", errRewrite, err)
		}
		err = &errLog{cause: err}
	}
	return next, dead, deadPages, err
}

// same reports that a head that was read again differs from the one that was
// folded in nothing that matters: a leader opened the stream, or a reaper looked.
func same(a, b *indexpb.Head) bool {
	a, b = proto.CloneOf(a), proto.CloneOf(b)
	a.Attempt, b.Attempt, a.OpenedEpoch, b.OpenedEpoch = "", "", 0, 0
	return proto.Equal(a, b)
}

// damaged reports whether an error is about what a chunk is, and not about a
// newer format or a passing state.
func damaged(err error) bool {
	return errors.Is(err, bundle.ErrCorrupt) || errors.Is(err, chunk.ErrCorrupt)
}
