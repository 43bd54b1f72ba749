package reaper

import (
	"context"
	"time"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
)

const deletedState = indexpb.HeadState_HEAD_STATE_DELETED

// deleteStream finishes a delete that was begun and then removes what the stream
// leaves. The marker names the stream by id, so a name that was created again is
// not touched:
//
//  1. the leader writes the DELETE entry, unless that was done, and frees the name.
//     since is when that was known.
//  2. wait until settling has folded the entry: the head is DELETED. Nobody adds to
//     it any more, and it is not read.
//  3. wait for those who were reading, and until the chain is settled beyond the
//     entry: before, a settler that does not find the head could not tell a stream
//     that is gone from an old read.
//  4. drop all that the head names, oldest first, page by page: first the objects,
//     then the head is changed. A crash in between: the next try finds the objects
//     gone.
//  5. remove the head, with the descriptor.
//
// What came to be no more than an object, without a head that names it, has a
// marker of its own.
func (s *Service) deleteStream(ctx context.Context, m catalog.Marker) error {
	id, err := stream.ParseID(m.Due.GetStreamId())
	if err != nil {
		return err
	}
	h, version, err := s.index.GetHead(ctx, id)
	if catalog.IsNotFound(err) {
		h, version, err = s.index.ProvenHead(ctx, id)
	}
	deleted := err == nil && h.GetState() == deletedState // for ever, so no old read
	switch {
	case catalog.IsNotFound(err):
		return s.index.FreeName(ctx, m.Due.GetBucket(), m.Due.GetName(), id)
	case err != nil:
		return err
	case m.Due.GetSince() > 0:
	case deleted:
		if err := s.index.FreeName(ctx, m.Due.GetBucket(), m.Due.GetName(), id); err != nil {
			return err
		}
		m.Due.Since = s.now().UnixMilli()
	default:
		// Armed: this marker is enough. If each try armed one more, markers would
		// double for as long as tries fail.
		err := s.delete(ctx, &sequencerpb.DeleteStreamRequest{
			Stream: &sequencerpb.StreamKey{StreamId: id.String(), Shard: uint32(m.Due.GetNumber())},
			Bucket: m.Due.GetBucket(), Name: m.Due.GetName(), Armed: true,
		})
		if err != nil {
			return err
		}
		m.Due.Since = s.now().UnixMilli()
	}
	if !deleted && h.GetQuarantine() != "" {
		// The entry is committed, and nobody folds up to it.
		if err := s.index.DeleteBrokenHead(ctx, id); err != nil {
			return err
		}
	}
	if !deleted {
		return later{s.cfg.ReadGrace, "the delete is not settled"}
	}
	since := time.UnixMilli(m.Due.GetSince())
	if wait := since.Add(s.cfg.ReadGrace).Sub(s.now()); wait > 0 {
		return later{wait, "the stream may still be read"}
	}
	if settled, err := s.settledBeyond(ctx, h, since); err != nil {
		return err
	} else if !settled {
		return later{s.cfg.ReadGrace, "the chain is not settled beyond the delete"}
	}
	return s.tearDown(ctx, id, h, version)
}

// settledBeyond reports whether no chain is still to be settled that has entries of
// a deleted stream. Old reads of chains only say no.
func (s *Service) settledBeyond(ctx context.Context, h *indexpb.Head, since time.Time) (bool, error) {
	if h.GetDeletedChain() != "" {
		c, _, err := s.index.GetChain(ctx, h.GetDeletedChain())
		return c.GetSettledTo() > h.GetDeletedSlot(), err
	}
	// It was quarantined, so nobody folded up to the entry. It is in a chain that
	// the shard was bound to by then: all of those must be settled to their cuts.
	// Days later no read of the shard's row is from before.
	if s.now().Sub(since) < s.cfg.LateAfter {
		return false, nil
	}
	r, _, err := s.index.GetShard(ctx, stream.Shard(h.GetShard()))
	if err != nil {
		return false, err
	}
	for _, b := range r.GetBindings() {
		if !b.GetCutKnown() {
			return false, nil
		}
		c, _, err := s.index.GetChain(ctx, b.GetChainId())
		if err != nil || c.GetSettledTo() < b.GetCut() {
			return false, err
		}
	}
	return true, nil
}

// tearDown is steps 4 and 5.
func (s *Service) tearDown(ctx context.Context, id stream.ID, h *indexpb.Head, version int64) error {
	d := dropping{Service: s, queue: "delete", id: id}
	for {
		if s.nearlyOver(ctx) {
			return s.more("more pages than fit in a turn")
		}
		var err error
		switch {
		case len(h.GetPages()) > 0:
			if err := d.dropPage(ctx, h.GetPages()[0]); err != nil {
				return err
			}
			h.Pages = h.GetPages()[1:]
			version, err = s.index.PutHead(ctx, h, version)
		case len(h.GetRefs()) > 0:
			if err := d.dropRefs(ctx, h.GetRefs()); err != nil {
				return err
			}
			h.Refs = nil
			version, err = s.index.PutHead(ctx, h, version)
		default:
			if err = s.index.DeleteHead(ctx, id, version); err == nil {
				return nil
			}
		}
		if err == nil {
			continue
		}
		if !catalog.IsConflict(err) {
			return err
		}
		// A judge bumped the head, or another tears it down too.
		if h, version, err = s.index.ProvenHead(ctx, id); err != nil {
			return absent(err)
		}
		if h.GetState() != deletedState {
			return later{s.cfg.Interval, "an old read of the head"}
		}
	}
}
