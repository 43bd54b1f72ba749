package reaper

import (
	"context"
	"fmt"
	"slices"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// queueReclaim holds markers of slots that are settled: chain_id, and in number
// where they end. They are armed before settled_to gets there, which may not have
// happened. With a stream_id they are of slots [from, number) that a pin of that
// stream kept, armed before the pin is removed; of others from tells how many slots
// pins kept when export was noted, which is the export of the metadata that shows
// that the rest is settled.
const queueReclaim = "reclaim"

// reclaim deletes slots that are settled:
//
//  1. if settled_to is not there, or the pin still is, bump the chain's record and
//     look again: whoever was about to change it fails, and arms again. Done then.
//  2. wait until no export that is kept needs them.
//  3. part by part: delete the slots that no pin keeps, and the directories that
//     overlap no pin; then the rows of those directories. A crash leaves slots or
//     rows that the next try deletes.
//  4. move reclaimed_to behind the part.
//
// Nothing at or above settled_to is touched, so never the SEAL at the cut. Which
// slots a pin keeps is decided by the change that moves settled_to beyond them, so
// a record that has settled_to has the pins, and an old one has more of them.
func (s *Service) reclaim(ctx context.Context, m catalog.Marker) error {
	id, err := stream.ParseChainID(m.Due.GetChainId())
	if err != nil {
		return err
	}
	r, _, err := s.index.GetChain(ctx, id.String())
	if err != nil {
		return err
	}
	unpinned := m.Due.GetStreamId() != ""
	if r.GetSettledTo() < m.Due.GetNumber() || unpinned {
		if r, err = s.index.BumpChain(ctx, id.String()); err != nil {
			return err
		}
	}
	if r.GetSettledTo() < m.Due.GetNumber() {
		return nil
	}
	from, to := r.GetReclaimedTo(), m.Due.GetNumber()
	if unpinned {
		from, to = m.Due.GetFrom(), min(to, r.GetReclaimedTo()) // the rest comes with settled_to
		for _, p := range r.GetPins() {
			if p.GetStreamId() == m.Due.GetStreamId() && p.GetFrom() < m.Due.GetNumber() && p.GetTo() > from {
				return nil
			}
		}
	} else {
		kept := pinnedSlots(r, to)
		if kept < m.Due.GetFrom() {
			m.Due.Export = 0 // more is dead than when it was noted
		}
		m.Due.From = kept
	}
	if from < to {
		if err := s.unneeded(ctx, m); err != nil {
			return err
		}
	}
	for from < to {
		if s.nearlyOver(ctx) {
			return s.more("more slots than fit in a turn")
		}
		next := min(from+deleteAtOnce, to)
		if err := s.reclaimPart(ctx, queueReclaim, id, r.GetPins(), from, next); err != nil {
			return err
		}
		from = next
		if unpinned {
			m.Due.From = from
			continue
		}
		if _, err := s.index.UpdateChain(ctx, id.String(), func(c *indexpb.Chain) (bool, error) {
			behind := c.GetReclaimedTo() < from
			c.ReclaimedTo = max(c.GetReclaimedTo(), from)
			return behind, nil
		}); err != nil {
			return fmt.Errorf("record reclaimed_to %d: %w", from, err)
		}
	}
	return nil
}

// pinnedSlots is how many slots below a number pins keep, a slot once per pin. Below
// settled_to it only ever falls.
func pinnedSlots(r *indexpb.Chain, below uint64) (n uint64) {
	for _, p := range r.GetPins() {
		if to := min(p.GetTo(), below); to > p.GetFrom() {
			n += to - p.GetFrom()
		}
	}
	return n
}

// reclaimPart deletes slots [from, to) but for what pins keep, and the directories
// that begin there or reach in.
func (s *Service) reclaimPart(ctx context.Context, queue string, id stream.ChainID, pins []*indexpb.ChainPin, from, to uint64) error {
	pinned := func(from, to uint64) bool { return catalog.Pinned(pins, from, to) }
	var dead []object
	for slot := from; slot < to; slot++ {
		if !pinned(slot, slot+1) {
			dead = append(dead, object{key: chain.SlotKey(id, stream.Slot(slot))})
		}
	}
	for looks := 0; ; looks++ {
		// A directory may begin up to a window earlier.
		rows, err := s.index.Directories(ctx, id.String(), from-min(from, chain.Window-1), to)
		if err != nil {
			return err
		}
		rows = slices.DeleteFunc(rows, func(d *indexpb.Directory) bool { return d.GetTo() <= from || pinned(d.GetFrom(), d.GetTo()) })
		for _, d := range rows {
			dead = append(dead, object{d.GetObject(), d.GetSize()})
		}
		// That there is none may be an old read: once is not enough.
		if looks > 0 && len(rows) == 0 {
			return nil
		}
		if err := s.remove(ctx, queue, dead); err != nil {
			return err
		}
		dead = dead[:0]
		for _, d := range rows {
			if err := s.index.DeleteDirectory(ctx, id.String(), d.GetFrom()); err != nil {
				return fmt.Errorf("remove the row of directory %d: %w", d.GetFrom(), err)
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}
