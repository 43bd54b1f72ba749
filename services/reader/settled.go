package reader

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/maypok86/otter/v2"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/history"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/settled"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// headLife is for how long a head is used again. What it says may be older than
// that; a head that does not reach what the leader says is settled is read again.
const headLife = time.Second

// known keeps what reads of settled records need besides the frames. Pages and
// indexes are parts of objects that never change and whose keys are never used
// again, so they are never wrong: when a head's refs lead nowhere, the head is.
type known struct {
	heads *otter.Cache[stream.ID, readHead]
	parts *otter.Cache[part, any]
}

// readHead is a head, and when it was read.
type readHead struct {
	*indexpb.Head
	at time.Time
}

// part names a page, or the index of a run.
type part struct {
	object string
	run    int64 // of a page -1
}

func newKnown(maxBytes int64) known {
	const overhead = 256 // of key and bookkeeping, bytes
	return known{
		heads: otter.Must(&otter.Options[stream.ID, readHead]{
			MaximumWeight: uint64(maxBytes / 2),
			// A message takes about twice its encoding.
			Weigher: func(_ stream.ID, h readHead) uint32 { return uint32(2*proto.Size(h.Head)) + overhead },
		}),
		parts: otter.Must(&otter.Options[part, any]{
			MaximumWeight: uint64(maxBytes / 2),
			Weigher: func(p part, v any) uint32 {
				n := uint32(len(p.object)) + overhead
				switch v := v.(type) {
				case *indexpb.RefPageBody:
					n += uint32(2 * proto.Size(v))
				case []settled.Frame:
					n += uint32(40 * len(v))
				}
				return n
			},
		}),
	}
}

// head returns what a stream's head names. It reaches at least reach: one that
// does not is an old read, as the leader has seen a newer one.
func (s *Service) head(ctx context.Context, id stream.ID, reach stream.Seq) (*indexpb.Head, error) {
	if h, ok := s.known.heads.GetIfPresent(id); ok && time.Since(h.at) < headLife && reaches(h.Head, reach) {
		return h.Head, nil
	}
	begun := time.Now()
	row, _, err := s.index.GetHead(ctx, id)
	switch {
	case catalog.IsNotFound(err):
		return nil, fmt.Errorf("%w: no head of stream %s", errMoved, id)
	case err != nil:
		return nil, err
	}
	// Not the producers, which are most of many heads.
	h := &indexpb.Head{StreamId: row.GetStreamId(), Tail: row.GetTail(), DroppedTo: row.GetDroppedTo(), Pages: row.GetPages(), Refs: row.GetRefs()}
	if !reaches(h, reach) {
		return nil, fmt.Errorf("%w: the head of stream %s ends at %d, records up to %d are settled", errMoved, id, history.Next(h), reach)
	}
	s.known.heads.Set(id, readHead{h, begun})
	return h, nil
}

func reaches(h *indexpb.Head, reach stream.Seq) bool {
	return max(history.Next(h), stream.Seq(h.GetDroppedTo())) >= reach
}

// getter reads a part of an object and makes something of it.
type getter[T any] func(ctx context.Context, s *Service, at place, parse func([]byte) (T, error)) (T, error)

// pages loads pages of a stream, and keeps them.
func (s *Service) pages(id stream.ID) history.Load {
	load := s.loadPage(id, read[*indexpb.RefPageBody])
	return func(ctx context.Context, p *indexpb.RefPage) (*indexpb.RefPageBody, error) {
		key := part{p.GetObject(), -1}
		if v, ok := s.known.parts.GetIfPresent(key); ok {
			if body, ok := v.(*indexpb.RefPageBody); ok && body.GetStreamId() == id.String() {
				return body, nil
			}
		}
		body, err := load(ctx, p)
		if err == nil {
			s.known.parts.Set(key, body)
		}
		return body, err
	}
}

// loadPage loads pages of a stream. One that is gone is an error: what a head
// names is there.
func (s *Service) loadPage(id stream.ID, get getter[*indexpb.RefPageBody]) history.Load {
	return func(ctx context.Context, p *indexpb.RefPage) (*indexpb.RefPageBody, error) {
		return get(ctx, s, pagePlace(p), func(b []byte) (*indexpb.RefPageBody, error) {
			body, err := history.DecodePage(b, id)
			if err != nil {
				return nil, fmt.Errorf("%w: %w", errDamaged, err)
			}
			return body, nil
		})
	}
}

func pagePlace(p *indexpb.RefPage) place {
	return place{object: p.GetObject(), length: uint64(p.GetSize()), first: stream.Seq(p.GetFirstSeq())}
}

func indexPlace(r *indexpb.Ref) place {
	return place{object: r.GetObject(), offset: r.GetIndexOffset(), length: uint64(r.GetIndexLength()), first: stream.Seq(r.GetFirstSeq())}
}

// frames returns the frames of a run, and keeps them.
func (s *Service) frames(ctx context.Context, id stream.ID, r *indexpb.Ref) ([]settled.Frame, error) {
	key := part{r.GetObject(), int64(r.GetRun())}
	if v, ok := s.known.parts.GetIfPresent(key); ok {
		// Verified once, but perhaps for another ref.
		if frames, ok := v.([]settled.Frame); ok && checkFrames(r, frames) == nil {
			return frames, nil
		}
	}
	frames, err := s.loadFrames(ctx, id, r, read[[]settled.Frame])
	if err == nil && r.GetFrames() > 1 {
		s.known.parts.Set(key, frames)
	}
	return frames, err
}

// loadFrames returns the frames of a run as its index lists them.
func (s *Service) loadFrames(ctx context.Context, id stream.ID, r *indexpb.Ref, get getter[[]settled.Frame]) ([]settled.Frame, error) {
	if r.GetFrames() == 1 {
		// The ref says it all.
		frames := []settled.Frame{{
			Offset: r.GetOffset(), Length: uint32(min(r.GetLength(), maxPart+1)),
			First: stream.Seq(r.GetFirstSeq()), Next: stream.Seq(r.GetNextSeq()), LastTimestamp: stream.Millis(r.GetLastTimestamp()),
		}}
		if err := checkFrames(r, frames); err != nil {
			return nil, place{object: r.GetObject(), offset: r.GetOffset(), length: r.GetLength(), first: stream.Seq(r.GetFirstSeq())}.damaged(err.Error())
		}
		return frames, nil
	}
	return get(ctx, s, indexPlace(r), func(b []byte) ([]settled.Frame, error) {
		frames, err := settled.ParseIndex(b, id)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errDamaged, err)
		}
		return frames, checkFrames(r, frames)
	})
}

// checkFrames checks that frames lie side by side and are together what a ref says
// of its run.
func checkFrames(r *indexpb.Ref, frames []settled.Frame) error {
	next, offset, last := stream.Seq(r.GetFirstSeq()), r.GetOffset(), stream.Millis(r.GetFirstTimestamp())
	for i := range frames {
		f := &frames[i]
		if f.First != next || f.Next <= f.First || f.Offset != offset || f.Length == 0 || f.Length > maxPart || f.LastTimestamp < last {
			return fmt.Errorf("%w frame %d of run %d holds records %d..%d in %d bytes at %d, up to %d ms", errOther,
				i, r.GetRun(), f.First, f.Next, f.Length, f.Offset, f.LastTimestamp)
		}
		next, offset, last = f.Next, offset+uint64(f.Length), f.LastTimestamp
	}
	if len(frames) != int(r.GetFrames()) || next != stream.Seq(r.GetNextSeq()) || offset != r.GetOffset()+r.GetLength() || last != stream.Millis(r.GetLastTimestamp()) {
		return fmt.Errorf("%w run %d has %d frames up to record %d, byte %d, %d ms; its ref says %d, %d, %d, %d", errOther,
			r.GetRun(), len(frames), next, offset, last, r.GetFrames(), r.GetNextSeq(), r.GetOffset()+r.GetLength(), r.GetLastTimestamp())
	}
	return nil
}

// frame returns frame i of a run as a piece.
func frame(r *indexpb.Ref, frames []settled.Frame, i int) piece {
	f := &frames[i]
	p := piece{
		at:   place{object: r.GetObject(), offset: f.Offset, length: uint64(f.Length), first: f.First},
		next: f.Next, lastTimestamp: &f.LastTimestamp, about: int64(f.Length),
	}
	if i == 0 {
		before, first := stream.Hash(r.GetHashBefore()), stream.Millis(r.GetFirstTimestamp())
		p.before, p.firstTimestamp = &before, &first
	}
	if i == len(frames)-1 {
		after := stream.Hash(r.GetHashAfter())
		p.after = &after
	} else {
		// Frames are made up to this size, but for what was large by itself.
		p.about = max(p.about, settled.FrameBytes)
	}
	return p
}

// settled returns the pieces of settled records from start on, which are below
// to: about budget bytes in storage, and what is to be read ahead of them.
func (s *Service) settled(ctx context.Context, id stream.ID, start, to stream.Seq, want *demand, budget int64) ([]piece, error) {
	h, err := s.head(ctx, id, to)
	if err != nil {
		return nil, err
	}
	var pieces []piece
	budget += aheadBytes
	enough := func(first stream.Seq) bool {
		return len(pieces) > 0 && (budget <= 0 || first >= to || first >= want.until(start, &pieces[0]))
	}
	err = history.Walk(ctx, s.pages(id), h, start, func(r *indexpb.Ref) (bool, error) {
		if enough(stream.Seq(r.GetFirstSeq())) {
			return false, nil
		}
		frames, err := s.frames(ctx, id, r)
		if err != nil {
			return false, err
		}
		for i := range frames {
			if frames[i].Next <= start {
				continue
			}
			if enough(frames[i].First) {
				return false, nil
			}
			pieces = append(pieces, frame(r, frames, i))
			budget -= int64(frames[i].Length)
		}
		return true, nil
	})
	switch {
	case len(pieces) > 0 && pieces[0].at.first <= start:
		// Whoever wants what an error kept away meets it when it comes first.
		return pieces, nil
	case err != nil:
		return nil, walked(id, start, err)
	}
	// The leader is asked again: a trim may have passed it.
	return nil, fmt.Errorf("%w: the head of stream %s does not name record %d", errMoved, id, start)
}

// walked is what a walk over the history ended with: without the names of objects
// that are added to what the caller may know, and damage where refs and pages do
// not fit together.
func walked(id stream.ID, first stream.Seq, err error) error {
	var known interface {
		error
		GRPCStatus() *status.Status
	}
	switch {
	case errors.Is(err, history.ErrBroken):
		return headPlace(id, first).damaged(err.Error())
	case errors.As(err, &known):
		return known
	}
	return err
}

// headPlace stands for a stream's head where it is damaged.
func headPlace(id stream.ID, first stream.Seq) place {
	return place{object: "head of " + id.String(), first: first}
}

// seek returns the first record of the frame that holds the first settled record
// at or after a time, not below start; found is false if there is none below to.
func (s *Service) seek(ctx context.Context, id stream.ID, start, to stream.Seq, at stream.Millis) (seq stream.Seq, found bool, err error) {
	h, err := s.head(ctx, id, to)
	if err != nil {
		return 0, false, err
	}
	// The leader's trim may be ahead of the head's: what is below it is not looked at.
	if dropped := uint64(start); h.GetDroppedTo() < dropped {
		h = &indexpb.Head{StreamId: h.GetStreamId(), Tail: h.GetTail(), DroppedTo: dropped, Pages: h.GetPages(), Refs: h.GetRefs()}
	}
	r, err := history.Seek(ctx, s.pages(id), h, at)
	if err != nil || r == nil {
		return 0, false, walked(id, start, err)
	}
	frames, err := s.frames(ctx, id, r)
	if err != nil {
		return 0, false, err
	}
	i := slices.IndexFunc(frames, func(f settled.Frame) bool { return f.LastTimestamp >= at })
	// The ref's last frame is one; and a ref may begin below the trim.
	return max(frames[max(i, 0)].First, stream.Seq(h.GetDroppedTo())), true, nil
}

// gone reports whether an error means that what was looked for is not where it
// was said to be.
func gone(err error) bool { return errors.Is(err, errMoved) || reason.Is(err, reason.ObjectNotFound) }
