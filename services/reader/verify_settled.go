package reader

import (
	"context"
	"errors"
	"fmt"

	"github.com/nova-stream/nova/libs/history"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/settled"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// errSkipped means that a page could not be read, which is noted, and next is
// behind it.
var errSkipped = errors.New("skipped")

// settled checks some of the refs of the records below to.
func (v *verification) settled(ctx context.Context, to stream.Seq) error {
	v.svc.known.heads.Invalidate(v.id)
	h, err := v.svc.head(ctx, v.id, to)
	if errors.Is(err, errMoved) {
		return v.unnamed(to, err.Error())
	}
	if err != nil {
		return err
	}
	left := int64(pageBytes)
	begun := v.next
	err = history.Walk(ctx, v.load(ctx), h, v.next, func(r *indexpb.Ref) (bool, error) {
		if stream.Seq(r.GetFirstSeq()) >= to || left <= 0 {
			return false, nil
		}
		left -= int64(r.GetLength())
		return true, v.ref(ctx, r)
	})
	switch {
	case errors.Is(err, errSkipped):
		return nil
	case errors.Is(err, history.ErrBroken):
		return v.unnamed(to, err.Error())
	case errors.Is(err, errAgain):
		return errAgain
	case err == nil && v.next == begun:
		return v.unnamed(to, fmt.Sprintf("the head does not name record %d", v.next))
	}
	return walked(v.id, v.next, err)
}

// unnamed notes that records up to next are not named as they should be, unless
// the head that says so may be old.
func (v *verification) unnamed(next stream.Seq, message string) error {
	if !v.stays(headPlace(v.id, v.next)) {
		return errAgain
	}
	v.find("ref", message, v.next, next)
	v.skip(next)
	return nil
}

// load reads pages from storage itself.
func (v *verification) load(ctx context.Context) history.Load {
	load := v.svc.loadPage(v.id, fromStorage[*indexpb.RefPageBody])
	return func(_ context.Context, p *indexpb.RefPage) (*indexpb.RefPageBody, error) {
		body, err := load(ctx, p)
		at := pagePlace(p)
		switch {
		case gone(err) && !v.stays(at):
			return nil, errAgain
		case gone(err):
			v.find("missing", "page "+at.String()+" is not there", stream.Seq(p.GetFirstSeq()), stream.Seq(p.GetNextSeq()))
		case errors.Is(err, errDamaged):
			v.find("checksum", "page "+at.String()+": "+err.Error(), stream.Seq(p.GetFirstSeq()), stream.Seq(p.GetNextSeq()))
		default:
			return body, err
		}
		v.skip(stream.Seq(p.GetNextSeq()))
		return nil, errSkipped
	}
}

// fromStorage is read without a cache: what is damaged is errDamaged.
func fromStorage[T any](ctx context.Context, s *Service, at place, parse func([]byte) (T, error)) (T, error) {
	return parsed(ctx, at, s.direct, parse)
}

// ref checks a run: that the object says of it what the ref says, and its frames.
func (v *verification) ref(ctx context.Context, r *indexpb.Ref) error {
	first, next := stream.Seq(r.GetFirstSeq()), stream.Seq(r.GetNextSeq())
	if first > v.next {
		if err := v.unnamed(first, fmt.Sprintf("the head does not name records from %d on", v.next)); err != nil {
			return err
		}
	}
	where := fmt.Sprintf("run %d of %s", r.GetRun(), r.GetObject())
	runs, err := v.footer(ctx, r.GetObject())
	at := place{object: r.GetObject(), first: first}
	switch {
	case gone(err) && !v.stays(at):
		return errAgain
	case gone(err):
		v.find("missing", r.GetObject()+" is not there", first, next)
		v.skip(next)
		return nil
	case errors.Is(err, errDamaged):
		v.find("checksum", fmt.Sprintf("footer of %s: %s", r.GetObject(), err), first, next)
	case err != nil:
		return err
	default:
		if what := v.differs(r, runs); what != "" {
			v.find("ref", where+": "+what, first, next)
		}
	}
	frames, err := v.svc.loadFrames(ctx, v.id, r, fromStorage[[]settled.Frame])
	var damaged *damage // of a run of one frame
	switch {
	case gone(err) && !v.stays(at):
		return errAgain
	case errors.Is(err, errOther), errors.As(err, &damaged):
		v.find("ref", where+": "+err.Error(), first, next)
	case errors.Is(err, errDamaged):
		v.find("checksum", "index of "+where+": "+err.Error(), first, next)
	case gone(err):
		v.find("missing", where+" is not there", first, next)
	}
	switch {
	case gone(err), errors.Is(err, errDamaged), damaged != nil:
		v.skip(next)
		return nil
	case err != nil:
		return err
	}
	for i := range frames {
		if frames[i].Next <= v.next {
			continue
		}
		p := frame(r, frames, i)
		if err := v.piece(ctx, &p); err != nil {
			return err
		}
	}
	return nil
}

// differs says how what an object says of a run differs from a ref; empty: not.
func (v *verification) differs(r *indexpb.Ref, runs []settled.Run) string {
	if int(r.GetRun()) >= len(runs) {
		return fmt.Sprintf("the object has %d runs", len(runs))
	}
	run := &runs[r.GetRun()]
	says := settled.Run{
		StreamID: v.id, First: stream.Seq(r.GetFirstSeq()), Next: stream.Seq(r.GetNextSeq()),
		FirstTimestamp: stream.Millis(r.GetFirstTimestamp()), LastTimestamp: stream.Millis(r.GetLastTimestamp()),
		HashBefore: stream.Hash(r.GetHashBefore()), HashAfter: stream.Hash(r.GetHashAfter()),
		Offset: r.GetOffset(), Length: r.GetLength(), Frames: r.GetFrames(),
		IndexOffset: r.GetIndexOffset(), IndexLength: r.GetIndexLength(),
	}
	if *run != says {
		return fmt.Sprintf("the object says %+v, the ref %+v", *run, says)
	}
	return ""
}

// footer reads what an object says of its runs.
func (v *verification) footer(ctx context.Context, object string) ([]settled.Run, error) {
	size, err := v.svc.size(ctx, object)
	if err != nil {
		return nil, err
	}
	runs, err := settled.Footer(size, func(offset, length int64) ([]byte, error) {
		return v.svc.direct(ctx, place{object: object, offset: uint64(offset), length: uint64(length)})
	})
	if errors.Is(err, settled.ErrCorrupt) || errors.Is(err, settled.ErrVersion) {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	return runs, err
}

// size returns the bytes of an object.
func (s *Service) size(ctx context.Context, object string) (int64, error) {
	o, err := s.objects.GetRange(ctx, object, objectstore.Range{Offset: 0, Length: 1})
	return o.Size, s.storeError(ctx, object, err)
}
