package settler

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/history"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/settled"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// An object that streams share stays until the last of its runs is dropped. When most
// of it is dead, what heads name of it is copied, frame by frame as it is, and the heads
// name it there. Then the object goes as every other does. The steps, and what a crash
// after each leaves:
//
//  1. change the object's row, so that who is about to clear bits by an older one fails
//     and arms a marker again; note what its live runs take. If that is enough: done.
//     Leaves nothing.
//  2. read the heads of the live runs, and see which name theirs: nothing.
//  3. for a batch of them, read and verify the frames, and make an object of them, as
//     settling does: an object that no head names, and its marker.
//  4. per head: read it; touch the object's row; arm the marker (queue "unref") of the
//     run and of the pages that go; write pages anew if the run is in one; change the
//     head, once: heads that name the copy, and others that name the run.
//  5. make the object's row ADOPTED, with a bit per run that is named: its judge does
//     what is left of that.
//
// Two that work on one object are safe: one's change of the head fails, and then the
// head does not name the run.
//
// What it costs: less is copied than goes with the object, so all compactions together
// write less than all else that is written to objects. An object that is made holds less
// than half of the one before. So between two rewrites a byte is copied at most
// log2(settled.MaxBytes / catalog.MinDead) = 10 times, and an object of which nothing
// more dies is never compacted again.

const (
	// runsPrefix is what keys of objects of runs begin with.
	runsPrefix = "settled/"
	// movesAtOnce is how many heads are read before the object's row is touched for
	// them, and movesInABatch how many runs are moved into one object.
	movesAtOnce, movesInABatch = 4 * headsAtOnce, 1024
	// moveTries is how often a head is changed that others change meanwhile.
	moveTries = 4
	// batchTime is how long the bytes of a batch take at the limited rate.
	batchTime = 10 * time.Second
)

// compaction is one try at moving all that is named out of an object.
type compaction struct {
	*span

	key  string
	runs []settled.Run

	moved, left, kept uint32 // runs
	bytes             uint64 // moved
}

// move is a run that is moved.
type move struct {
	id     stream.ID
	ref    *indexpb.Ref // as the head has it
	kin    string
	frames [][]byte
	to     *placed
}

// run does as much as there is time for.
func (c *compaction) run(ctx context.Context) error {
	begun := time.Now()
	row, err := c.look(ctx)
	if err != nil || row == nil {
		return err
	}
	moves, err := c.named(ctx, row)
	if err != nil || c.kept > 0 {
		return err // while one run stays, so does the object: to move others spares nothing
	}
	for len(moves) > 0 {
		n := c.batch(moves)
		if err := c.moveBatch(ctx, moves[:n]); err != nil {
			return err
		}
		moves = moves[n:]
		if deadline, ok := ctx.Deadline(); ok && time.Since(begun) > time.Until(deadline) {
			break
		}
	}
	c.left += uint32(len(moves))
	return nil
}

// look is step 1. It returns the row of an object that is to be compacted.
func (c *compaction) look(ctx context.Context) (*indexpb.SettledObject, error) {
	row, _, err := c.index.GetSettled(ctx, c.key)
	if catalog.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the row: %w", err)
	}
	if !settled.Live(row.GetLive()).Any() {
		return nil, nil // it is going already
	}
	c.runs, err = settled.Footer(int64(row.GetSize()), func(offset, length int64) ([]byte, error) {
		o, err := again(ctx, func(ctx context.Context) (objectstore.Object, error) {
			return c.objects.GetRange(ctx, c.key, objectstore.Range{Offset: offset, Length: length})
		})
		return o.Body, err
	})
	if err == nil && len(c.runs) != int(row.GetRuns()) {
		err = fmt.Errorf("%w: %d runs, the row says %d", settled.ErrCorrupt, len(c.runs), row.GetRuns())
	}
	row, _, rerr := c.index.UpdateSettled(ctx, c.key, func(r *indexpb.SettledObject) (bool, error) {
		live := uint64(0)
		for i := range c.runs {
			if settled.Live(r.GetLive()).Has(uint32(i)) {
				live += c.runs[i].Bytes()
			}
		}
		if err == nil {
			r.LiveBytes = live
		}
		return true, nil
	})
	switch {
	case catalog.IsNotFound(rerr):
		return nil, nil
	case rerr != nil:
		return nil, fmt.Errorf("change the row: %w", rerr)
	case !settled.Live(row.GetLive()).Any():
		return nil, nil
	case row.GetState() != indexpb.SettledState_SETTLED_STATE_ADOPTED:
		c.left = 1 // what is live is not decided
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the footer: %w", err)
	case !catalog.MostlyDead(row):
		return nil, nil
	}
	return row, nil
}

// named is step 2: the runs that heads name, in the order in which they are moved. What
// is not named goes without this.
func (c *compaction) named(ctx context.Context, row *indexpb.SettledObject) ([]*move, error) {
	var mu sync.Mutex
	var out []*move
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(headsAtOnce)
	for run := range c.runs {
		if !settled.Live(row.GetLive()).Has(uint32(run)) {
			continue
		}
		group.Go(func() error {
			m := &move{id: c.runs[run].StreamID}
			h, _, err := c.find(gctx, m, uint32(run))
			if err != nil {
				return fmt.Errorf("run %d, of stream %s: %w", run, m.id, err)
			}
			if m.ref == nil {
				return nil
			}
			m.kin = c.limitsOf(gctx, m.id).kin(h.GetBucketId())
			mu.Lock()
			defer mu.Unlock()
			if h.GetQuarantine() != "" {
				c.kept++
			}
			out = append(out, m)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	slices.SortFunc(out, func(a, b *move) int {
		return cmp.Or(cmp.Compare(a.kin, b.kin), cmp.Compare(a.ref.GetRun(), b.ref.GetRun()))
	})
	return out, nil
}

// find reads the head of a run's stream and notes the ref to the run; none: the head
// does not name it, or the stream is being torn down. It may be an old read.
func (c *compaction) find(ctx context.Context, m *move, run uint32) (*indexpb.Head, int64, error) {
	m.ref = nil
	h, version, err := c.index.GetHead(ctx, m.id)
	if catalog.IsNotFound(err) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read the head: %w", err)
	}
	if h.GetState() == indexpb.HeadState_HEAD_STATE_DELETED {
		return h, version, nil
	}
	r, err := history.Find(ctx, c.loader(m.id), h, stream.Seq(max(uint64(c.runs[run].First), h.GetDroppedTo())))
	if err != nil {
		return nil, 0, err
	}
	if r.GetObject() == c.key && r.GetRun() == run {
		m.ref = r
	}
	return h, version, nil
}

// batch returns how many of the next runs are moved into one object: streams that may
// share it, and what fits into it.
func (c *compaction) batch(moves []*move) int {
	room := min(c.frameBytes(), c.groupBytes())
	if c.limiter != nil {
		room = min(room, int64(float64(c.limiter.Limit())*batchTime.Seconds()))
	}
	for i, m := range moves {
		room -= int64(m.ref.GetLength())
		if i > 0 && (room < 0 || i == movesInABatch || m.kin != moves[0].kin) {
			return i
		}
	}
	return len(moves)
}

// moveBatch is steps 3 to 5 for some runs.
func (c *compaction) moveBatch(ctx context.Context, batch []*move) error {
	if err := c.readFrames(ctx, batch); err != nil {
		return err
	}
	o, err := c.copies(ctx, batch)
	if err != nil {
		return err
	}
	todo := batch
	for n := 0; len(todo) > 0 && n < moveTries && err == nil; n++ {
		if n > 0 {
			if err = sleep(ctx, backoff(n)); err != nil {
				break
			}
		}
		var lost []*move
		for part := range slices.Chunk(todo, movesAtOnce) {
			var again []*move
			if again, err = c.adoptMoves(ctx, o, part); err != nil {
				break
			}
			lost = append(lost, again...)
		}
		todo = lost
	}
	c.left += uint32(len(todo))
	return errors.Join(err, o.finish(ctx))
}

// readFrames reads the frames of runs, in large ranges, and verifies them (I10).
func (c *compaction) readFrames(ctx context.Context, batch []*move) error {
	limit := uint64(min(maxRange, c.memory/(4*readsAtOnce)))
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(readsAtOnce)
	for len(batch) > 0 {
		n, from, to, used := 0, batch[0].ref.GetOffset(), batch[0].ref.GetOffset(), uint64(0)
		for _, m := range batch {
			end := m.ref.GetOffset() + m.ref.GetLength()
			if n > 0 && (m.ref.GetOffset() < to || m.ref.GetOffset()-to >= readAlong || end-from > limit) {
				break
			}
			n, to, used = n+1, end, used+m.ref.GetLength()
		}
		part := batch[:n]
		batch = batch[n:]
		group.Go(func() error { return c.readPart(gctx, part, from, to, used < (to-from)/2) })
	}
	return group.Wait()
}

// readPart reads the frames of runs that lie side by side. Of a sparse range what was
// read along is not kept.
func (c *compaction) readPart(ctx context.Context, part []*move, from, to uint64, sparse bool) error {
	all, err := c.readRun(ctx, &indexpb.Ref{Object: c.key, Offset: from, Length: to - from})
	if err != nil {
		return err
	}
	for _, m := range part {
		var own []byte
		if end := m.ref.GetOffset() - from + m.ref.GetLength(); end <= uint64(len(all)) {
			own = all[m.ref.GetOffset()-from : end : end]
		}
		if sparse {
			own = bytes.Clone(own)
		}
		if m.frames, err = framesOf(own, m.id, m.ref, 0); err != nil {
			m.frames, err = c.oldFrames(ctx, m.id, m.ref, 0) // it may have been damaged on its way
		}
		if err != nil {
			return fmt.Errorf("run %d of stream %s: %w", m.ref.GetRun(), m.id, err)
		}
	}
	return nil
}

// copies makes the object of runs that were read.
func (c *compaction) copies(ctx context.Context, batch []*move) (*object, error) {
	size := 0
	for _, m := range batch {
		size += int(m.ref.GetLength())
	}
	b := settled.NewBuilder()
	b.Grow(size)
	for _, m := range batch {
		b.Begin(m.id)
		for _, f := range m.frames {
			h, _, err := chunk.ParseHeader(f)
			if err != nil {
				return nil, err
			}
			if err := b.Add(f, &h); err != nil {
				return nil, err
			}
		}
		m.frames = nil
	}
	body, runs := b.Finish()
	o, err := c.makeRuns(ctx, body, runs)
	if err != nil {
		return nil, err
	}
	for i, m := range batch {
		m.to = &placed{object: o, run: uint32(i), of: runs[i], generation: m.ref.GetGeneration()}
		o.placed = append(o.placed, m.to)
	}
	return o, nil
}

// adoptMoves is step 4 for some runs, and returns those whose heads were changed by
// others meanwhile.
func (c *compaction) adoptMoves(ctx context.Context, o *object, part []*move) (again []*move, err error) {
	plans := make([]*plan, len(part))
	quarantined := make([]bool, len(part))
	failed := errs{}
	each := make([]int, len(part))
	for i := range each {
		each[i] = i
	}
	gather(headsAtOnce, each, func(i int) {
		m := part[i]
		run := m.ref.GetRun()
		h, version, err := c.find(ctx, m, run)
		switch {
		case err != nil:
			failed.add(fmt.Errorf("stream %s: %w", m.id, err))
		case m.ref == nil:
		case h.GetQuarantine() != "":
			quarantined[i] = true
		default:
			plans[i] = &plan{work: &work{id: m.id}, head: h, version: version, move: m.ref, placed: []*placed{m.to}}
		}
	})
	if err := failed.first(); err != nil {
		return nil, err
	}
	if err := o.touch(ctx); err != nil {
		return nil, err
	}
	if o.isCondemned() {
		return nil, fmt.Errorf("object %s was judged before heads name it: %w", o.key, errMoved)
	}
	done := make([]bool, len(part))
	gather(headsAtOnce, each, func(i int) {
		if plans[i] == nil {
			return
		}
		var err error
		if done[i], err = c.adoptHead(ctx, plans[i]); err != nil {
			failed.add(fmt.Errorf("stream %s: %w", part[i].id, err))
		}
	})
	for i, m := range part {
		switch {
		case quarantined[i]:
			c.kept++
		case plans[i] == nil:
		case done[i]:
			c.moved++
			c.bytes += m.ref.GetLength()
		default:
			again = append(again, m)
		}
	}
	return again, failed.first()
}

// moved has the head that is to be name the copy of a run, and returns what it does not
// name any more: the run, and the pages by way of which it did, each alone.
func (p *plan) moved(ctx context.Context, s *span, next *indexpb.Head) ([]*indexpb.Ref, error) {
	p.pages = nil
	pages, err := history.Replace(ctx, s.loader(p.id), next, p.move, p.placed[0].ref(), func(ctx context.Context, body *indexpb.RefPageBody) (string, uint32, error) {
		o, err := s.makePage(ctx, body)
		if err != nil {
			return "", 0, err
		}
		p.pages = append(p.pages, o)
		return o.key, uint32(o.row.GetSize()), nil
	})
	if err != nil {
		return nil, err
	}
	dead := []*indexpb.Ref{p.move}
	for _, page := range pages {
		dead = append(dead, &indexpb.Ref{Object: page.GetObject(), FirstSeq: page.GetFirstSeq(), NextSeq: page.GetNextSeq()})
	}
	return dead, nil
}
