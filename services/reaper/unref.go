package reaper

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/history"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/settled"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// queueUnref holds markers of refs and pages that a head no longer names: stream_id,
// refs, pages. They are armed before the change of the head, which may not have
// happened.
const queueUnref = "unref"

// pagePrefix is what keys of pages begin with.
const pagePrefix = "page/"

// atOnce is how many heads or rows are changed at once for one marker.
const atOnce = 8

// unref drops what a head no longer names:
//
//  1. bump the head by compare-and-set: whoever is about to change what it read
//     before fails, and arms again. Only then look what the head names. A crash
//     leaves a head that has another version.
//  2. per object clear the bits of the dead runs, by one compare-and-set. When the
//     last bit goes, the same change makes the row CONDEMNED; before it a marker of
//     queue "settled" is armed, which deletes the object once more and removes the
//     row. When most of the object is dead by it, a marker of queue "compact" is armed
//     before. A crash leaves some bits cleared: the next try finds them so.
//  3. delete the objects that have no live run. A crash leaves CONDEMNED rows
//     without a bit: the next try deletes their objects again. If the metadata are
//     exported, this is left to the markers, since exports name the objects still.
//  4. pages, deepest first: what is below a page, then the page itself as an object
//     with one run. A page whose object is gone has nothing below it any more. What the
//     head names of it all the same stays: a compaction puts pages in the place of such
//     as hold the same refs but one, and drops these alone, by refs to them. If such a
//     page is trimmed, it goes with all that is below it even so: who trimmed it may
//     have come before the compaction, and then the trim's marker would find it gone.
func (s *Service) unref(ctx context.Context, m catalog.Marker) error {
	id, err := stream.ParseID(m.Due.GetStreamId())
	if err != nil {
		return err
	}
	h, _, err := s.index.BumpHead(ctx, id)
	if err != nil && !catalog.IsNotFound(err) {
		return err
	}
	if catalog.IsNotFound(err) {
		h = noHead(id)
	}
	var dead dropped
	named := 0
	for _, r := range m.Due.GetRefs() {
		is, err := history.Names(ctx, s.load(id), h, r)
		if err != nil {
			return tornDown(err)
		}
		if is {
			named++
		} else {
			dead.refs = append(dead.refs, r)
		}
	}
	for _, p := range m.Due.GetPages() {
		is, err := history.NamesPage(ctx, s.load(id), h, p)
		if err != nil {
			return tornDown(err)
		}
		if is {
			named++
		} else {
			dead.pages = append(dead.pages, p)
		}
	}
	d := dropping{Service: s, queue: queueUnref, id: id, head: h}
	if err := d.drop(ctx, dead); err != nil {
		return err
	}
	// Named still: the change did not happen, and whoever made it anew armed anew. It
	// is looked at for some time all the same, which costs little. A head that is
	// DELETED is torn down with all that it names.
	if named > 0 && h.GetState() != deletedState && s.now().Sub(m.Armed()) < s.cfg.LateAfter {
		return later{lookAgain, "the head still names what was to be dropped"}
	}
	return nil
}

// noHead is the head of a stream that is proven to have none: nothing is named any more,
// and all is dropped.
func noHead(id stream.ID) *indexpb.Head {
	return &indexpb.Head{StreamId: id.String(), DroppedTo: math.MaxUint64}
}

// tornDown makes no failure of a page that is gone though a head names it that was
// just bumped: the stream is being torn down, and soon the head names nothing.
func tornDown(err error) error {
	if errors.Is(err, history.ErrGone) {
		return later{looksApart, err.Error()}
	}
	return err
}

// dropped is what is named no longer.
type dropped struct {
	refs  []*indexpb.Ref
	pages []*indexpb.RefPage
}

// dropping drops what a stream's head names no longer.
type dropping struct {
	*Service

	queue string
	id    stream.ID
	head  *indexpb.Head // after a bump; nil: what it names goes too
}

// drop is steps 2 to 4.
func (d dropping) drop(ctx context.Context, what dropped) error {
	var trimmed []*indexpb.Ref // to pages
	refs := slices.DeleteFunc(what.refs, func(r *indexpb.Ref) bool {
		is := strings.HasPrefix(r.GetObject(), pagePrefix) && d.trimmed(r.GetNextSeq())
		if is {
			trimmed = append(trimmed, r)
		}
		return is
	})
	if err := d.dropRefs(ctx, refs); err != nil {
		return err
	}
	for _, p := range what.pages {
		if err := d.dropPage(ctx, p); err != nil {
			return err
		}
	}
	for _, r := range trimmed {
		body, err := d.readPage(ctx, r.GetObject(), d.id)
		switch {
		case err != nil:
			return err
		case body == nil:
			err = d.dropRefs(ctx, []*indexpb.Ref{r})
		default:
			err = d.dropPage(ctx, history.PageOf(body, r.GetObject(), 0))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// trimmed reports whether what ends at a number is dead for ever, whatever lists it.
func (d dropping) trimmed(next uint64) bool { return next <= d.head.GetDroppedTo() }

// named reports whether the head names a ref, or a page by a ref to it.
func (d dropping) named(ctx context.Context, r *indexpb.Ref) (bool, error) {
	if d.head == nil {
		return false, nil
	}
	is, err := history.Names(ctx, d.load(d.id), d.head, r)
	return is, tornDown(err)
}

// dropRefs clears the bits of refs, which are dead, and deletes the objects that are
// dead by it, or leaves them to their markers.
func (d dropping) dropRefs(ctx context.Context, refs []*indexpb.Ref) error {
	if len(refs) == 0 {
		return nil
	}
	// After the refs were dead: exports that begin from now on do not name them.
	st, err := d.ask(ctx)
	if err != nil {
		return err
	}
	exported := st.GetEnabled()
	runs := map[string][]*indexpb.Ref{}
	for _, r := range refs {
		runs[r.GetObject()] = append(runs[r.GetObject()], r)
	}
	var mu sync.Mutex
	var dead []object
	workers, wctx := errgroup.WithContext(ctx)
	workers.SetLimit(atOnce)
	for key, of := range runs {
		workers.Go(func() error {
			if d.nearlyOver(ctx) {
				return d.more("more refs than fit in a turn")
			}
			o, err := d.clear(wctx, key, of, exported)
			if err != nil {
				return fmt.Errorf("object %s: %w", key, err)
			}
			if o != nil {
				mu.Lock()
				dead = append(dead, *o)
				mu.Unlock()
			}
			return nil
		})
	}
	err = workers.Wait()
	if rerr := d.remove(ctx, d.queue, dead); rerr != nil {
		return rerr
	}
	return err
}

// dropPage drops all that is below a page and is not named, and then the page.
func (d dropping) dropPage(ctx context.Context, p *indexpb.RefPage) error {
	if err := d.dropBelow(ctx, p); err != nil {
		return err
	}
	return d.dropOwn(ctx, p)
}

// dropOwn drops a page below which nothing is left, if it is not named.
func (d dropping) dropOwn(ctx context.Context, p *indexpb.RefPage) error {
	r := &indexpb.Ref{Object: p.GetObject(), FirstSeq: p.GetFirstSeq(), NextSeq: p.GetNextSeq()}
	if is, err := d.named(ctx, r); err != nil || is {
		return err
	}
	return d.dropRefs(ctx, []*indexpb.Ref{r})
}

// dropBelow drops all that is below a page and is not named.
func (d dropping) dropBelow(ctx context.Context, p *indexpb.RefPage) error {
	var refs []*indexpb.Ref
	flush := func() error {
		if d.nearlyOver(ctx) {
			return d.more("more pages than fit in a turn")
		}
		err := d.dropRefs(ctx, refs)
		refs = refs[:0]
		return err
	}
	err := history.WalkPage(ctx, d.load(d.id), p, func(r *indexpb.Ref) error {
		if is, err := d.named(ctx, r); err != nil || is {
			return err
		}
		refs = append(refs, r)
		if len(refs) < page {
			return nil
		}
		return flush()
	}, func(below *indexpb.RefPage) error {
		if err := flush(); err != nil {
			return err
		}
		return d.dropOwn(ctx, below)
	})
	if err != nil {
		return err
	}
	return flush()
}

// clear clears bits of an object's row, and returns the object if no run of it is
// live: then it is CONDEMNED, and to be deleted. An object that exports may name is
// left to a marker.
func (s *Service) clear(ctx context.Context, key string, runs []*indexpb.Ref, exported bool) (*object, error) {
	for armed := false; ; {
		row, version, err := s.index.GetSettled(ctx, key)
		if catalog.IsNotFound(err) {
			gone, err := s.proveGone(ctx, key)
			if catalog.IsConflict(err) && ctx.Err() == nil {
				continue // another proves the same
			}
			if err != nil || gone {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		next := proto.CloneOf(row)
		for _, r := range runs {
			catalog.ClearRun(next, r.GetRun(), runBytes(r))
		}
		dead := !settled.Live(next.GetLive()).Any()
		if dead && next.GetState() == indexpb.SettledState_SETTLED_STATE_ADOPTED {
			next.State = indexpb.SettledState_SETTLED_STATE_CONDEMNED
		}
		condemned := next.GetState() == indexpb.SettledState_SETTLED_STATE_CONDEMNED
		if !proto.Equal(row, next) {
			// An object that is ADOPTING is judged by then too, in case that its maker
			// saw it ADOPTED before this.
			if dead && !armed {
				if err := s.armDead(ctx, key, exported); err != nil {
					return nil, err
				}
				armed = true
			}
			if err := s.armCompact(ctx, row, next); err != nil {
				return nil, err
			}
			if _, err := s.index.PutSettled(ctx, next, version); catalog.IsConflict(err) && ctx.Err() == nil {
				armed = armed && !exported // a judge may have been there, and dropped it
				continue
			} else if err != nil {
				return nil, err
			}
		}
		if dead && condemned && !exported {
			return &object{key, next.GetSize()}, nil
		}
		return nil, nil
	}
}

// runBytes returns what the run of a ref takes in its object; 0: the ref does not tell.
func runBytes(r *indexpb.Ref) uint64 {
	if r.GetLength() == 0 {
		return 0
	}
	return settled.RunBytes(r.GetLength(), r.GetIndexLength())
}

// armDead leads to the second deletion of an object, or to both.
func (s *Service) armDead(ctx context.Context, key string, both bool) error {
	now := s.now()
	due := &indexpb.Due{Queue: queueSettled, Object: key, At: now.Add(s.cfg.LateAfter).UnixMilli(), Since: now.UnixMilli()}
	if both {
		// When the row is changed: a judge that comes before that finds nothing to do.
		due.At, due.Since = now.Add(s.cfg.Patience+leaseSlack).UnixMilli(), 0
	}
	_, err := s.index.ArmDue(ctx, due)
	return err
}

// proveGone reports whether an object has no row, by a change. A marker leads to
// what this leaves if it dies.
func (s *Service) proveGone(ctx context.Context, key string) (bool, error) {
	due, err := s.index.ArmDue(ctx, &indexpb.Due{Queue: queueSettled, Object: key, At: s.now().Add(lookAgain).UnixMilli()})
	if err != nil {
		return false, err
	}
	version, gone, err := s.place(ctx, key)
	if err != nil || !gone {
		return false, err // the marker stays: what is there may be an earlier try's
	}
	if err := s.index.DeleteSettled(ctx, key, version); err != nil {
		return false, err
	}
	return true, s.index.DropDue(ctx, due)
}

// place puts a CONDEMNED row, without a live run, where there seems to be none: so
// a maker that is slow fails to put its own. false: there is a row.
func (s *Service) place(ctx context.Context, key string) (version int64, placed bool, err error) {
	r := &indexpb.SettledObject{Object: key, State: indexpb.SettledState_SETTLED_STATE_ADOPTING, Runs: 1, Live: []byte{1}, CreatedAt: s.now().UnixMilli()}
	if version, err = s.index.PutSettled(ctx, r, catalog.Absent); catalog.IsConflict(err) {
		return 0, false, nil
	} else if err != nil {
		return 0, false, err
	}
	r.State, r.Live = indexpb.SettledState_SETTLED_STATE_CONDEMNED, []byte{0}
	if version, err = s.index.PutSettled(ctx, r, version); catalog.IsConflict(err) {
		return 0, false, reason.New(codes.Aborted, reason.VersionConflict, "another works on "+key)
	}
	return version, err == nil, err
}
