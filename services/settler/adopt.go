package settler

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

const (
	// queueUnref holds markers of refs and pages that a head no longer names:
	// stream_id, refs, pages.
	queueUnref = "unref"
	// maxDead limits the refs and pages of one marker.
	maxDead = 1000
	// maxHeadBytes is the index's limit of a head.
	maxHeadBytes = 64 << 10
	// maxTries is how often the change of a head is tried before the stream is
	// taken up again, or an object's row is touched.
	maxTries = 10
	// rowsAtOnce is how many rows of objects are changed in parallel.
	rowsAtOnce = 4
)

// adopt is steps 5 and 6. The heads were read before, when they were folded.
//
// What makes it right: the judge of an object condemns its row, then changes each
// head, then looks whether it names the object. A head that is changed here was
// read before the row was touched as ADOPTING. So either the judge condemned the
// row before the touch, which then fails; or it changes the head after that was
// read, and then the change here fails, unless it came first, and then the judge
// sees it.
func (g *group) adopt(ctx context.Context, plans []*plan, objects []*object) (again []*work, err error) {
	touched := errs{}
	gather(rowsAtOnce, objects, func(o *object) { touched.add(o.touch(ctx)) })
	if err := touched.first(); err != nil {
		return nil, err
	}
	lost := make([]bool, len(plans))
	found := make([]*errLog, len(plans))
	changed := errs{}
	order := make([]int, len(plans))
	for i := range order {
		order[i] = i
	}
	gather(headsAtOnce, order, func(i int) {
		p := plans[i]
		done, err := g.adoptHead(ctx, p)
		if errors.As(err, &found[i]) {
			return
		}
		if err != nil {
			changed.add(fmt.Errorf("stream %s: %w", p.id, err))
		}
		lost[i] = !done
	})
	finished := errs{}
	gather(rowsAtOnce, objects, func(o *object) { finished.add(o.finish(ctx)) })
	if err := errors.Join(changed.first(), finished.first()); err != nil {
		return nil, err
	}
	for i, p := range plans {
		if found[i] != nil {
			if again, err = g.take(ctx, again, p, found[i]); err != nil {
				return nil, err
			}
		} else if lost[i] {
			again = append(again, p.work)
		}
	}
	return again, nil
}

// adoptHead changes one head, once. false without an error means that the head,
// or an object, was lost to another: the stream is to be taken up again.
func (s *span) adoptHead(ctx context.Context, p *plan) (bool, error) {
	for _, at := range p.placed {
		if at.object.isCondemned() {
			return false, nil
		}
	}
	next, dead, deadPages, err := p.next(ctx, s)
	if errors.Is(err, errRewrite) {
		s.unwritten(ctx, p, err)
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := s.armDead(ctx, next.GetStreamId(), dead, deadPages); err != nil {
		return false, err
	}
	more, err := s.overflow(ctx, next)
	if err != nil {
		return false, err
	}
	pages := slices.Concat(p.pages, more)
	if n := proto.Size(next); n > maxHeadBytes {
		return false, blocked("the head of stream %s would have %d bytes", p.id, n)
	}
	named := slices.Clone(pages)
	for _, at := range p.placed {
		named = append(named, at.object)
	}
	version := p.version
	for n := 0; ; n++ {
		touch := named
		if n == 0 {
			touch = pages // adopt has touched the others
		}
		for _, o := range touch {
			if err := o.touch(ctx); err != nil {
				return false, err
			}
			if o.isCondemned() {
				return false, nil
			}
		}
		p.tried(pages)
		_, err := s.index.PutHead(ctx, next, version)
		if err == nil {
			break
		}
		if !catalog.IsConflict(err) {
			return false, fmt.Errorf("change the head: %w", err)
		}
		// All three again: read, touch, change. Whatever else was changed, the fold
		// begins anew; what may be named by what was tried is left to its judge.
		if p.lift {
			return false, nil // a settler may have proven the quarantine: what is pinned is looked at anew
		}
		h, v, err := s.index.GetHead(ctx, p.id)
		if err != nil && !catalog.IsNotFound(err) {
			return false, fmt.Errorf("read the head again: %w", err)
		}
		if err != nil || n == maxTries || !same(h, p.head) {
			return false, nil
		}
		next.OpenedEpoch, version = h.GetOpenedEpoch(), v
		if err := sleep(ctx, backoff(n)); err != nil {
			return false, err
		}
	}
	for _, at := range p.placed {
		at.named = true
	}
	if p.rewrite != nil {
		s.metrics.rewritten.Add(ctx, p.rewrite.bytes)
		s.metrics.rewrittenBytes.Add(uint64(p.rewrite.bytes))
	}
	if p.move != nil {
		s.metrics.compacted.Add(ctx, int64(p.move.GetLength()))
		s.metrics.compactedBytes.Add(p.move.GetLength())
	}
	for _, o := range pages {
		o.placed[0].named = true
		if err := o.finish(ctx); err != nil {
			return true, err
		}
	}
	return true, nil
}

// tried notes that the head may name the stream's objects from now on, whatever
// the answer is.
func (p *plan) tried(pages []*object) {
	for _, at := range p.placed {
		at.tried = true
	}
	for _, o := range pages {
		o.placed[0].tried = true
	}
}

// armDead arms the markers of what the head will no longer name.
func (s *span) armDead(ctx context.Context, id string, refs []*indexpb.Ref, pages []*indexpb.RefPage) error {
	for len(refs)+len(pages) > 0 {
		n := min(len(refs), maxDead)
		m := min(len(pages), maxDead-n)
		_, err := s.index.ArmDue(ctx, &indexpb.Due{
			Queue: queueUnref, At: s.now().Add(s.grace).UnixMilli(), StreamId: id, Refs: refs[:n], Pages: pages[:m],
		})
		if err != nil {
			return fmt.Errorf("arm the marker of what is dropped: %w", err)
		}
		refs, pages = refs[n:], pages[m:]
	}
	return nil
}

// touch changes nothing of an object's row but its version, as long as it is
// ADOPTING. It succeeds when the row was judged as well: see isCondemned.
func (o *object) touch(ctx context.Context) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for n := 0; o.row.GetState() == indexpb.SettledState_SETTLED_STATE_ADOPTING; n++ {
		v, err := o.index.PutSettled(ctx, o.row, o.version)
		if err == nil {
			o.version = v
			return nil
		}
		if !catalog.IsConflict(err) || n == maxTries {
			return fmt.Errorf("touch object %s: %w", o.key, err)
		}
		if n > 0 {
			if err := sleep(ctx, backoff(n)); err != nil {
				return err
			}
		}
		r, v, err := o.index.GetSettled(ctx, o.key)
		switch {
		case catalog.IsNotFound(err): // an old read, or it is gone
			r = &indexpb.SettledObject{State: indexpb.SettledState_SETTLED_STATE_CONDEMNED}
		case err != nil:
			return fmt.Errorf("read the row of object %s: %w", o.key, err)
		}
		o.row, o.version = r, v
	}
	return nil
}

// isCondemned reports that the object may not be named by any more heads.
func (o *object) isCondemned() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.row.GetState() != indexpb.SettledState_SETTLED_STATE_ADOPTING
}

// finish is step 6: the row says which runs heads name, if that is certain. What
// is not is left to the judge.
func (o *object) finish(ctx context.Context) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	named := 0
	for _, at := range o.placed {
		if at.tried && !at.named {
			return nil
		}
		if at.named {
			named++
		}
	}
	if named == 0 || o.row.GetState() != indexpb.SettledState_SETTLED_STATE_ADOPTING {
		return nil
	}
	r := proto.CloneOf(o.row)
	r.State = indexpb.SettledState_SETTLED_STATE_ADOPTED
	for run, at := range o.placed {
		if !at.named {
			catalog.ClearRun(r, uint32(run), at.of.Bytes())
		}
	}
	if catalog.ToCompact(o.row, r) {
		if err := o.index.ArmCompact(ctx, o.key, o.now().Add(o.grace)); err != nil {
			return fmt.Errorf("arm the marker of an object that is mostly dead: %w", err)
		}
	}
	if _, err := o.index.PutSettled(ctx, r, o.version); err != nil {
		if catalog.IsConflict(err) {
			return nil // its judge has come
		}
		return fmt.Errorf("adopt object %s: %w", o.key, err)
	}
	if err := o.index.DropDue(ctx, o.marker); err != nil {
		return fmt.Errorf("drop the marker of object %s: %w", o.key, err)
	}
	return nil
}
