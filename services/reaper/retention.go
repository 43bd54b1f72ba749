package reaper

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/history"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// queueRetention holds a marker per stream that has a limit of age or bytes, or is
// deleted when it is empty: stream_id, bucket, name. It is armed before such a
// setting is put, and stays while there is one and the descriptor names it. number
// is one more than the tail at which the stream was seen empty, since when: 0 if it
// was not.
const queueRetention = "retention"

// How soon the records of a stream are looked at again.
const (
	looksApart   = time.Minute
	looksAtLeast = 6 * time.Hour
	// bytesLook is when a stream whose bytes are near their limit is looked at: how
	// fast it grows is not known.
	bytesLook = 10 * time.Minute
)

// retain asks a stream's leader to trim what is beyond its limits, and to delete it
// when it has been empty for long. It names the stream by id, so one that was
// created again under the name is not touched.
//
// What is decided on is the head: records that are settled, ref by ref, so records
// expire up to a ref's span later than the limit says, and those that are not
// settled do not, which is as long as settling may take. Settings that are about to
// be acted on are proven to be no old read; an old head only names less. The leader
// alone trims: it never lowers a trim, and what it trimmed is gone for every read
// that begins later.
func (s *Service) retain(ctx context.Context, m catalog.Marker) error {
	id, err := stream.ParseID(m.Due.GetStreamId())
	if err != nil {
		return err
	}
	h, _, err := s.index.GetHead(ctx, id)
	if catalog.IsNotFound(err) {
		h, _, err = s.index.ProvenHead(ctx, id)
	}
	if catalog.IsNotFound(err) && s.now().Sub(m.Armed()) < lookAgain {
		return later{looksApart, "the stream may be about to be made"}
	}
	if err != nil {
		return absent(err)
	}
	if h.GetState() == deletedState {
		return s.deletedEmpty(ctx, m.Due)
	}
	d, err := s.index.GetDescriptor(ctx, id)
	switch {
	case catalog.IsNotFound(err):
		// It is on its way, or goes with the stream, whose head will tell.
		return later{lookAgain, "the stream has no settings"}
	case err != nil:
		return err
	case d.GetUnfinished():
		return later{looksApart, "the stream is being made"}
	}
	ours := func(d *indexpb.StreamDescriptor) bool {
		return limited(d.GetConfig()) && d.GetRetentionMarker() == m.Due.GetDueId()
	}
	plan, err := s.planFor(ctx, id, h, d.GetConfig())
	if err != nil {
		return err
	}
	if plan.to > h.GetTrim() || !ours(d) {
		// Whoever is about to change the settings fails, and arms again.
		if d, err = s.index.FreshDescriptor(ctx, id); err != nil {
			return err
		}
		if !ours(d) {
			return nil
		}
		if plan, err = s.planFor(ctx, id, h, d.GetConfig()); err != nil {
			return err
		}
	}
	key := &sequencerpb.StreamKey{StreamId: id.String(), Shard: d.GetShard()}
	if plan.to > h.GetTrim() {
		err := s.leader(ctx, key, func(c sequencerpb.SequencerServiceClient) error {
			_, err := c.TrimStream(ctx, &sequencerpb.TrimStreamRequest{Stream: key, To: plan.to})
			return err
		})
		if gone, err := unserved(err); gone && m.Due.GetNumber() == 0 || err != nil {
			return err
		}
	}
	wait, deleted, err := s.deleteEmpty(ctx, m.Due, h, d, max(plan.to, h.GetTrim()))
	if deleted || err != nil {
		return err
	}
	return later{max(min(plan.next, wait), looksApart), "records will expire"}
}

// lookIn is when to look again at what happens in so many milliseconds.
func lookIn(ms int64) time.Duration {
	return time.Duration(min(ms, looksAtLeast.Milliseconds())) * time.Millisecond
}

// limited reports whether there is anything to look after.
func limited(c *novapb.StreamConfig) bool {
	return c.GetRetentionAgeMs() > 0 || c.GetRetentionBytes() > 0 || c.GetDeleteOnEmptyMs() > 0
}

// plan is what the settings make of a head.
type plan struct {
	to   uint64        // records below it are beyond the limits
	next time.Duration // when to look again
}

func (s *Service) planFor(ctx context.Context, id stream.ID, h *indexpb.Head, c *novapb.StreamConfig) (plan, error) {
	p := plan{next: looksAtLeast}
	if age := c.GetRetentionAgeMs(); age > 0 {
		now := s.now().UnixMilli()
		r, err := history.Seek(ctx, s.load(id), h, stream.Millis(now-age))
		switch {
		case err != nil:
			return p, tornDown(err)
		case r != nil:
			p.to = r.GetFirstSeq()
			p.next = lookIn(r.GetLastTimestamp() + age - now + 1)
		default:
			p.to = uint64(history.Next(h)) // all that is settled
			p.next = lookIn(age)
		}
	}
	if limit := c.GetRetentionBytes(); limit > 0 {
		to, err := s.beyond(ctx, id, h, limit)
		if err != nil {
			return p, err
		}
		p.to = max(p.to, to)
		if history.Stored(h) > limit/2 {
			p.next = min(p.next, bytesLook)
		} else {
			p.next = min(p.next, lookAgain)
		}
	}
	return p, nil
}

// beyond returns the number below which the records lie that are older than the
// newest limit bytes. It reads at most a page per level.
func (s *Service) beyond(ctx context.Context, id stream.ID, h *indexpb.Head, limit uint64) (uint64, error) {
	pages, refs := h.GetPages(), h.GetRefs()
	for sum := uint64(0); ; {
		for i := len(refs) - 1; i >= 0; i-- {
			if sum >= limit {
				return refs[i].GetNextSeq(), nil
			}
			sum += refs[i].GetLength()
		}
		i := len(pages) - 1
		for ; i >= 0 && sum+pages[i].GetStoredBytes() < limit; i-- {
			sum += pages[i].GetStoredBytes()
		}
		if i < 0 {
			return 0, nil
		}
		if sum >= limit {
			return pages[i].GetNextSeq(), nil
		}
		body, err := s.readPage(ctx, pages[i].GetObject(), id)
		if err != nil {
			return 0, err
		}
		if body == nil {
			return 0, later{looksApart, "the head is an old read: a page that it names is gone"}
		}
		pages, refs = append(pages[:i:i], body.GetPages()...), body.GetRefs()
	}
}

// deleteEmpty deletes a stream that has been empty at the same tail for as long as
// its settings say, and returns when to look again otherwise. The leader decides
// that it is empty still: an append in the air is acknowledged, or refused for
// certain.
func (s *Service) deleteEmpty(ctx context.Context, due *indexpb.Due, h *indexpb.Head, d *indexpb.StreamDescriptor, trim uint64) (wait time.Duration, deleted bool, err error) {
	after := d.GetConfig().GetDeleteOnEmptyMs()
	if after <= 0 {
		return looksAtLeast, false, nil
	}
	if trim < h.GetTail() {
		due.Number, due.Since = 0, 0
		return lookIn(after), false, nil
	}
	key := &sequencerpb.StreamKey{StreamId: d.GetStreamId(), Shard: d.GetShard()}
	var state *sequencerpb.StreamState
	err = s.leader(ctx, key, func(c sequencerpb.SequencerServiceClient) error {
		res, err := c.GetState(ctx, &sequencerpb.GetStateRequest{Stream: key})
		state = res.GetState()
		return err
	})
	gone, err := unserved(err)
	if err != nil || gone && due.GetNumber() == 0 {
		return 0, gone, err
	}
	if gone {
		// Perhaps by an earlier try, and its leader died before it had armed what
		// leads to the rest: whoever asked asks again.
		state = &sequencerpb.StreamState{Trim: due.GetNumber() - 1, Tail: due.GetNumber() - 1}
	}
	now := s.now().UnixMilli()
	if state.GetTrim() < state.GetTail() {
		due.Number, due.Since = 0, 0
		return lookIn(after), false, nil
	}
	if due.GetNumber() != state.GetTail()+1 {
		due.Number, due.Since = state.GetTail()+1, now
	}
	if wait := after - (now - due.GetSince()); wait > 0 && !gone {
		return lookIn(wait), false, nil
	}
	id, err := stream.ParseID(d.GetStreamId())
	if err != nil {
		return 0, false, err
	}
	fresh, err := s.index.FreshDescriptor(ctx, id)
	if err != nil && !gone {
		return 0, false, err
	}
	if !gone && fresh.GetConfig().GetDeleteOnEmptyMs() != d.GetConfig().GetDeleteOnEmptyMs() {
		return looksApart, false, nil // decided by what it is now
	}
	// Not armed: the leader's marker leads to what the stream leaves.
	err = s.delete(ctx, &sequencerpb.DeleteStreamRequest{
		Stream: key, Bucket: d.GetBucket(), Name: d.GetName(),
		IfEmptyAtPresence: &sequencerpb.DeleteStreamRequest_IfEmptyAt{IfEmptyAt: state.GetTail()},
	})
	if reason.Is(err, reason.SeqMismatch) {
		due.Number, due.Since = 0, 0
		return lookIn(after), false, nil
	}
	gone, err = unserved(err)
	return 0, err == nil || gone, err
}

// deletedEmpty sees to it that something leads to what a deleted stream leaves, if
// it may have been this marker's work that deleted it.
func (s *Service) deletedEmpty(ctx context.Context, due *indexpb.Due) error {
	if due.GetNumber() == 0 {
		return nil
	}
	id, err := stream.ParseID(due.GetStreamId())
	if err != nil {
		return err
	}
	h, _, err := s.index.ProvenHead(ctx, id)
	if err != nil {
		return absent(err)
	}
	_, err = s.index.ArmDue(ctx, &indexpb.Due{
		Queue: "delete", At: s.now().UnixMilli(), Bucket: due.GetBucket(), Name: due.GetName(), StreamId: id.String(), Number: uint64(h.GetShard()),
	})
	return err
}

// leader asks the leader of a stream.
func (s *Service) leader(ctx context.Context, key *sequencerpb.StreamKey, f func(sequencerpb.SequencerServiceClient) error) error {
	return s.router.DoIdempotent(ctx, stream.Shard(key.GetShard()), func(conn grpc.ClientConnInterface) error {
		return f(sequencerpb.NewSequencerServiceClient(conn))
	})
}

// unserved judges a leader's answer: a stream that is deleted needs nothing any
// more, and what a leader does not do for one that is broken it may do later.
func unserved(err error) (gone bool, _ error) {
	switch {
	case reason.Is(err, reason.StreamNotFound):
		return true, nil
	case reason.Is(err, reason.StreamQuarantine):
		return false, later{looksAtLeast, "the stream is quarantined"}
	case reason.Is(err, reason.StreamDeleting):
		return false, later{bytesLook, "the stream is being deleted"}
	}
	return false, err
}
