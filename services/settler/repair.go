package settler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/directory"
	"github.com/nova-stream/nova/libs/head"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/settler/v1"
)

// What a quarantined stream has above its head is in slots that chains keep pinned.
// The repair folds it, if it can be folded now, and lifts the quarantine by the same
// change of the head. Its steps, and what a crash after each leaves:
//
//  1. settle what the chains of the stream's shard have absorbed: what is above the
//     head is pinned then. It is an ordinary span.
//  2. bump the head, THEN bump the chains' records, and see what they pin: nothing.
//  3. read the directories of what is pinned. A block that is damaged is made again
//     from the slots, which must give its checksum. Fold: nothing.
//  4. read the chunks, verify them, make objects and adopt them, as a span does, with
//     one change of the head that was bumped: objects that no head names, and their
//     markers; or a stream that is whole, and pins that keep what nobody needs.
//  5. per chain: arm a marker (queue "reclaim") per pin, then remove the stream's pins
//     by compare-and-set of the record that was read before: markers that find the
//     pins there, or fewer pins.
//  6. begin again, until a head that is not quarantined was bumped, and then no chain
//     has pins.
//
// Two repairs are safe: one's change of the head fails, or finds everything folded.
//
// Why no pin is missed: a settler reads the chain's record, then bumps the head and
// sees the quarantine, then changes that record. If it does so behind step 2's bump
// of the record it has bumped the head since step 2 did, and the change that lifts
// the quarantine fails, and is not tried again without step 2. So whatever a record pins for a stream that is not
// quarantined is folded. What is above the pins is not settled; the next span or
// opening folds it over the head as always.

// errRepair is what keeps a stream from being repaired; it is as it was.
type errRepair struct{ why string }

func (e *errRepair) Error() string { return e.why }

func cannot(format string, args ...any) error { return &errRepair{fmt.Sprintf(format, args...)} }

// RepairStream lifts the quarantine of a stream whose log folds.
func (s *Service) RepairStream(ctx context.Context, req *settlerpb.RepairStreamRequest) (*settlerpb.RepairStreamResponse, error) {
	id, err := stream.ParseID(req.GetStreamId())
	if err != nil {
		return nil, reason.Field("stream_id", err.Error())
	}
	if err := s.settleFor(ctx, id); err != nil {
		return nil, status(err)
	}
	r := &repair{engine: s.engine, id: id, name: id.String()}
	err = r.run(ctx)
	out := &settlerpb.RepairStreamResponse{Repaired: err == nil, Entries: r.entries, Pins: r.unpinned}
	var why *errRepair
	switch {
	case errors.As(err, &why):
		out.Why = why.why
		s.log.WarnContext(ctx, "a stream cannot be repaired", "stream", r.name, "why", why.why)
	case err != nil && ctx.Err() != nil:
		return nil, reason.New(reason.Code(ctx.Err()), "", ctx.Err().Error())
	case err != nil:
		return nil, status(err)
	case out.GetEntries() > 0 || out.GetPins() > 0 || r.lifted:
		s.log.InfoContext(ctx, "stream repaired", "stream", r.name, "entries", out.GetEntries(), "pins", out.GetPins())
	}
	return out, nil
}

// settleFor is step 1. A chain that waits for something is left: what is in the way
// of the repair is told by what its record says.
func (s *Service) settleFor(ctx context.Context, id stream.ID) error {
	h, _, err := s.engine.index.ProvenHead(ctx, id)
	if catalog.IsNotFound(err) || err == nil && h.GetQuarantine() == "" {
		return nil
	}
	if err != nil {
		return err
	}
	shard, _, err := s.engine.index.GetShard(ctx, stream.Shard(h.GetShard()))
	if err != nil {
		return err
	}
	for _, b := range shard.GetBindings() {
		c, err := stream.ParseChainID(b.GetChainId())
		if err != nil {
			return err
		}
		record, _, err := s.engine.index.GetChain(ctx, b.GetChainId())
		if err == nil {
			_, err = s.settleTo(ctx, c, record)
		}
		if err != nil && ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			s.log.WarnContext(ctx, "a chain is not settled before a stream is repaired", "chain", b.GetChainId(), "err", err)
		}
	}
	return nil
}

// repair is one repair of a stream.
type repair struct {
	*engine

	id   stream.ID
	name string // the id as text

	lifted            bool
	entries, unpinned uint64
}

// run is steps 2 to 6. Its error is an errRepair if the stream's log is in the way.
func (r *repair) run(ctx context.Context) error {
	var last error
	for round := 0; round < maxRounds; round++ {
		if round > 1 {
			if err := sleep(ctx, backoff(round)); err != nil {
				return err
			}
		}
		done, err := r.once(ctx)
		var log *errLog
		var why errBlocked
		switch {
		case done || errors.As(err, new(*errRepair)):
			return err
		case errors.As(err, &log):
			if errors.As(last, &log) {
				return cannot("%s", err) // twice is a verdict: it was not on the way that bytes were damaged
			}
		case errors.As(err, &why):
			return cannot("%s", why.why)
		case err != nil && !errors.Is(err, errMoved) && !catalog.IsConflict(err):
			return err
		}
		last = err
	}
	if last != nil {
		return cannot("%s", last)
	}
	return cannot("the stream or its chains change all the time")
}

// once is steps 2 to 5. It reports whether nothing is left to do.
func (r *repair) once(ctx context.Context) (done bool, err error) {
	h, version, err := r.index.BumpHead(ctx, r.id)
	if catalog.IsNotFound(err) {
		return true, nil // proven: it was torn down
	}
	if err != nil {
		return false, fmt.Errorf("bump the head: %w", err)
	}
	if h.GetState() == indexpb.HeadState_HEAD_STATE_DELETED {
		return true, nil // nobody repairs it, and its pins go with its chains
	}
	records, err := r.records(ctx, h)
	if err != nil {
		return false, err
	}
	pinned := slices.DeleteFunc(slices.Clone(records), func(c *indexpb.Chain) bool { return len(r.pinsOf(c)) == 0 })
	if h.GetQuarantine() == "" && len(pinned) == 0 {
		return true, nil
	}
	if h.GetQuarantine() != "" {
		if err := wantSettled(h, records); err != nil {
			return false, err
		}
	}
	entries, err := r.gather(ctx, pinned)
	if err != nil {
		return false, err
	}
	if err := r.fold(ctx, h, version, entries); err != nil {
		return false, err
	}
	for _, c := range pinned {
		if err := r.unpin(ctx, c); err != nil {
			return false, err
		}
	}
	return false, nil
}

// records bumps and returns the records of all chains that pin slots of the stream,
// or may do so by a change that is under way. The head MUST have been bumped before.
func (r *repair) records(ctx context.Context, h *indexpb.Head) ([]*indexpb.Chain, error) {
	names := map[string]bool{}
	err := r.index.EachChain(ctx, func(c *indexpb.Chain) error {
		settled := c.GetState() != indexpb.ChainState_CHAIN_STATE_OPEN && c.GetSettledTo() >= c.GetCut()
		if !settled || len(r.pinsOf(c)) > 0 {
			names[c.GetChainId()] = true
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	shard, _, err := r.index.GetShard(ctx, stream.Shard(h.GetShard()))
	if err != nil && !catalog.IsNotFound(err) {
		return nil, fmt.Errorf("read shard %d: %w", h.GetShard(), err)
	}
	for _, b := range shard.GetBindings() {
		names[b.GetChainId()] = true
	}
	for _, p := range h.GetPins() {
		if _, err := stream.ParseChainID(p.GetChainId()); err == nil {
			names[p.GetChainId()] = true
		}
	}
	var out []*indexpb.Chain
	for name := range names {
		c, err := r.index.BumpChain(ctx, name)
		if catalog.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("bump the record of chain %s: %w", name, err)
		}
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b *indexpb.Chain) int { return cmp.Compare(a.GetChainId(), b.GetChainId()) })
	return out, nil
}

func (r *repair) pinsOf(c *indexpb.Chain) []*indexpb.ChainPin {
	return slices.DeleteFunc(slices.Clone(c.GetPins()), func(p *indexpb.ChainPin) bool { return p.GetStreamId() != r.name })
}

// wantSettled sees that what the head's quarantine is about is settled: what is not
// would be found broken again.
func wantSettled(h *indexpb.Head, records []*indexpb.Chain) error {
	for _, p := range h.GetPins() {
		i := slices.IndexFunc(records, func(c *indexpb.Chain) bool { return c.GetChainId() == p.GetChainId() })
		switch {
		case i < 0:
			return cannot("it is about slots [%d, %d) of chain %s, which has no record: %s", p.GetFrom(), p.GetTo(), p.GetChainId(), h.GetQuarantine())
		case records[i].GetSettledTo() < min(p.GetTo(), records[i].GetAbsorbedTo()):
			return cannot("it is about slots [%d, %d) of chain %s, which is settled to %d: first see why it is not settled", p.GetFrom(), p.GetTo(), p.GetChainId(), records[i].GetSettledTo())
		}
	}
	return nil
}

// gather returns the entries of the stream in the windows of what is pinned, in order
// of their positions. All that the head lacks and that is settled is among them.
func (r *repair) gather(ctx context.Context, pinned []*indexpb.Chain) ([]directory.Located, error) {
	var out []directory.Located
	for _, c := range pinned {
		id, err := stream.ParseChainID(c.GetChainId())
		if err != nil {
			return nil, err
		}
		s := &span{engine: r.engine, chain: id, name: c.GetChainId()}
		next := uint64(0) // windows below it are gathered
		for _, p := range r.pinsOf(c) {
			rows, err := r.windows(ctx, c, p)
			if err != nil {
				return nil, err
			}
			for _, row := range rows {
				if row.GetTo() <= next {
					continue
				}
				next = row.GetTo()
				found, err := r.entriesOf(ctx, s, row)
				if err != nil {
					return nil, err
				}
				out = append(out, found...)
			}
		}
	}
	slices.SortFunc(out, func(a, b directory.Located) int {
		return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.EntryNo, b.EntryNo))
	})
	return out, nil
}

// windows returns the rows of the directories that cover a pin.
func (r *repair) windows(ctx context.Context, c *indexpb.Chain, p *indexpb.ChainPin) ([]*indexpb.Directory, error) {
	rows, err := r.index.Directories(ctx, c.GetChainId(), p.GetFrom()-min(p.GetFrom(), chain.Window-1), p.GetTo())
	if err != nil {
		return nil, fmt.Errorf("list directories: %w", err)
	}
	rows = slices.DeleteFunc(rows, func(d *indexpb.Directory) bool { return d.GetTo() <= p.GetFrom() })
	next := p.GetFrom()
	for _, d := range rows {
		if d.GetFrom() > next {
			break
		}
		next = d.GetTo()
	}
	if next < p.GetTo() {
		return nil, fmt.Errorf("chain %s has no directory of slot %d, which is pinned: %w", c.GetChainId(), next, errMoved)
	}
	return rows, nil
}

// entriesOf returns what a window holds of the stream, made again from its slots if
// the stream's block is damaged.
func (r *repair) entriesOf(ctx context.Context, s *span, row *indexpb.Directory) ([]directory.Located, error) {
	where := fmt.Sprintf("directory %s of slots [%d, %d) of chain %s", row.GetObject(), row.GetFrom(), row.GetTo(), row.GetChainId())
	w, err := s.openOne(ctx, row)
	if errors.Is(err, directory.ErrCorrupt) {
		w, err = s.openOne(ctx, row) // it may have been damaged on its way
	}
	if errors.Is(err, directory.ErrCorrupt) {
		return nil, cannot("%s: %s", where, err)
	}
	if err != nil {
		return nil, err
	}
	found, err := w.Stream(r.id)
	if errors.Is(err, directory.ErrCorrupt) {
		damage := err
		if found, err = r.fromSlots(ctx, w); err != nil && (errors.Is(err, directory.ErrCorrupt) || damagedSlot(err)) {
			return nil, cannot("%s: %s, and it cannot be made again: %s", where, damage, err)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	return found, nil
}

// fromSlots makes the stream's entries of a window again.
func (r *repair) fromSlots(ctx context.Context, w window) ([]directory.Located, error) {
	footers, err := r.chains.Footers(ctx, w.Chain, w.From, w.To)
	if err != nil {
		return nil, err
	}
	return w.Rebuild(r.id, footers)
}

// fold is steps 3 and 4.
func (r *repair) fold(ctx context.Context, h *indexpb.Head, version int64, entries []directory.Located) error {
	p := &plan{work: &work{id: r.id}, head: h, version: version, state: head.Read(h), lift: true}
	folded := p.state.Folded
	for _, e := range entries {
		if folded.Epoch == 0 || folded.Less(stream.Position{Epoch: e.Epoch, Entry: e.EntryNo}) {
			p.unfolded = append(p.unfolded, e)
		}
	}
	if h.GetQuarantine() == "" && len(p.unfolded) == 0 {
		return nil // an earlier try came so far
	}
	if err := p.fold(); err != nil {
		return err
	}
	s := &span{engine: r.engine}
	for i := range p.unfolded {
		if p.deleted == &p.unfolded[i].At.Slot {
			s.name = p.unfolded[i].At.Chain.String()
		}
	}
	w := &writer{span: s, plans: map[stream.ID]*plan{}}
	bad, err := w.write(ctx, []*plan{p})
	if err != nil {
		return err
	}
	if log := bad[p]; log != nil {
		return log
	}
	g := &group{span: s}
	g.add(p)
	again, err := g.adopt(ctx, g.plans, w.objects)
	switch {
	case err != nil:
		return err
	case p.failed != nil:
		return p.failed
	case len(again) > 0:
		return fmt.Errorf("the head was changed meanwhile: %w", errMoved)
	}
	r.lifted = r.lifted || h.GetQuarantine() != ""
	r.entries += uint64(len(p.unfolded))
	return nil
}

// unpin is step 5: it removes the pins that were folded, and no others.
func (r *repair) unpin(ctx context.Context, was *indexpb.Chain) error {
	name := was.GetChainId()
	own := r.pinsOf(was)
	for n := 0; ; n++ {
		c, version, err := r.index.GetChain(ctx, name)
		if err != nil {
			return fmt.Errorf("read chain %s: %w", name, err)
		}
		if !slices.EqualFunc(r.pinsOf(c), own, func(a, b *indexpb.ChainPin) bool { return proto.Equal(a, b) }) {
			return fmt.Errorf("the pins of chain %s were changed: %w", name, errMoved)
		}
		for _, p := range own {
			if _, err := r.index.ArmDue(ctx, &indexpb.Due{
				Queue: queueReclaim, At: r.now().Add(r.grace).UnixMilli(), ChainId: name, StreamId: r.name, From: p.GetFrom(), Number: p.GetTo(),
			}); err != nil {
				return fmt.Errorf("arm the marker of what was pinned: %w", err)
			}
		}
		c.Pins = slices.DeleteFunc(c.GetPins(), func(p *indexpb.ChainPin) bool { return p.GetStreamId() == r.name })
		_, err = r.index.PutChain(ctx, c, version)
		if err == nil {
			r.unpinned += uint64(len(own))
			return nil
		}
		if !catalog.IsConflict(err) || n == maxTries {
			return fmt.Errorf("remove the pins of chain %s: %w", name, err)
		}
		if err := sleep(ctx, backoff(n)); err != nil {
			return err
		}
	}
}

// proveKept sees that the streams for which pins are about to be recorded are
// quarantined still: a repair that has lifted one has not folded what is pinned by
// that. It bumps their heads, after the chain's record was read.
func (s *span) proveKept(ctx context.Context) error {
	seen := map[string]bool{}
	for _, p := range s.pins {
		if seen[p.GetStreamId()] {
			continue
		}
		seen[p.GetStreamId()] = true
		id, err := stream.ParseID(p.GetStreamId())
		if err != nil {
			return err
		}
		h, _, err := s.index.BumpHead(ctx, id)
		switch {
		case catalog.IsNotFound(err):
		case err != nil:
			return fmt.Errorf("prove the quarantine of stream %s: %w", id, err)
		case h.GetQuarantine() == "" && h.GetState() != indexpb.HeadState_HEAD_STATE_DELETED:
			return fmt.Errorf("stream %s was repaired meanwhile: %w", id, errMoved)
		}
	}
	return nil
}

// damagedSlot reports whether an error says that a slot is damaged or gone.
func damagedSlot(err error) bool {
	return errors.Is(err, chain.ErrBroken) || errors.Is(err, chain.ErrForeign) || errors.Is(err, bundle.ErrCorrupt) || errors.Is(err, objectstore.ErrRange)
}
