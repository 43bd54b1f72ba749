package reaper

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/history"
	"github.com/nova-stream/nova/libs/settled"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// queueSettled holds markers of objects of runs, and of pages: object. They are
// armed before the object's row is put, and before it is CONDEMNED. since is when
// the object was deleted first; 0: it was not. export is which export of the
// metadata shows that no head names it.
const queueSettled = "settled"

// judgeSettled decides over an object that its maker may not have finished, and
// removes one that nothing names:
//
//  1. no row: put one that is CONDEMNED without a live run, so that a maker that is
//     slow fails; go on with 4. A row that is ADOPTED and has a live run: bump it,
//     so that whoever is about to condemn it fails and arms again; done.
//  2. ADOPTING: make it CONDEMNED. From then on its maker, which touches the row as
//     ADOPTING after it read a head and before it changes that head, changes no head
//     any more that it reads later.
//  3. per run that is live, bump the head, so that a change by what was read before
//     fails too, and look whether it names the run. Clear the bits of those that are
//     not named. If some are named the object is ADOPTED; done. A head that does not
//     name the run now never will.
//  4. none is named: wait until no export that is kept names it. It may have been
//     named, and dropped since.
//  5. delete the object. Days later delete it once more, since its PUT may still have
//     been under way, and remove the row.
//
// A crash anywhere leaves a row that the next try goes on from.
func (s *Service) judgeSettled(ctx context.Context, m catalog.Marker) error {
	key := m.Due.GetObject()
	for {
		row, version, err := s.index.GetSettled(ctx, key)
		switch {
		case catalog.IsNotFound(err):
			var placed bool
			if version, placed, err = s.place(ctx, key); err != nil {
				return err
			} else if !placed {
				continue
			}
			row = &indexpb.SettledObject{Object: key, State: indexpb.SettledState_SETTLED_STATE_CONDEMNED}
		case err != nil:
			return err
		}
		err = s.judge(ctx, m, row, version)
		if catalog.IsConflict(err) && ctx.Err() == nil {
			continue // judged again by what it is now
		}
		return err
	}
}

// judge is steps 1 to 5 of what is there; a conflict says that it has changed.
func (s *Service) judge(ctx context.Context, m catalog.Marker, row *indexpb.SettledObject, version int64) error {
	switch row.GetState() {
	case indexpb.SettledState_SETTLED_STATE_ADOPTED:
		if settled.Live(row.GetLive()).Any() {
			_, err := s.index.PutSettled(ctx, row, version)
			return err
		}
		fallthrough
	case indexpb.SettledState_SETTLED_STATE_ADOPTING:
		row.State = indexpb.SettledState_SETTLED_STATE_CONDEMNED
		var err error
		if version, err = s.index.PutSettled(ctx, row, version); err != nil {
			return err
		}
		m.Due.Since, m.Due.Export = 0, 0
	default:
	}
	if settled.Live(row.GetLive()).Any() {
		m.Due.Export = 0
		var err error
		if version, err = s.lookForRuns(ctx, row, version); err != nil {
			return err
		}
		if row.GetState() == indexpb.SettledState_SETTLED_STATE_ADOPTED {
			return nil
		}
	}
	return s.removeDead(ctx, m, row, version)
}

// removeDead is steps 4 and 5. m.Due.Since, which stays with the marker, tells how far
// it is.
func (s *Service) removeDead(ctx context.Context, m catalog.Marker, row *indexpb.SettledObject, version int64) error {
	o := []object{{row.GetObject(), row.GetSize()}}
	since := m.Due.GetSince()
	if since == 0 {
		if err := s.unneeded(ctx, m); err != nil {
			return err
		}
		if err := s.remove(ctx, queueSettled, o); err != nil {
			return err
		}
		m.Due.Since = s.now().UnixMilli()
		return later{s.cfg.LateAfter, "a late PUT may bring the object back"}
	}
	if wait := time.UnixMilli(since).Add(s.cfg.LateAfter).Sub(s.now()); wait > 0 {
		return later{wait, "a late PUT may bring the object back"}
	}
	o[0].size = 0 // counted before
	if err := s.remove(ctx, queueSettled, o); err != nil {
		return err
	}
	return s.index.DeleteSettled(ctx, row.GetObject(), version)
}

// looksAtOnce is how many runs are looked for between two changes of the row, which
// keep what was found.
const looksAtOnce = 512

// lookForRuns is step 3: it changes row and returns its new version.
func (s *Service) lookForRuns(ctx context.Context, row *indexpb.SettledObject, version int64) (int64, error) {
	c, live, err := s.runsOf(ctx, row)
	if err != nil {
		return 0, err
	}
	for len(live) > 0 {
		if s.nearlyOver(ctx) {
			return 0, s.more("more runs than fit in a turn")
		}
		part := live[:min(len(live), looksAtOnce)]
		live = live[len(part):]
		next := proto.CloneOf(row)
		var mu sync.Mutex
		workers, wctx := errgroup.WithContext(ctx)
		workers.SetLimit(atOnce)
		for _, run := range part {
			workers.Go(func() error {
				is, err := c.named(wctx, run)
				if err != nil {
					return fmt.Errorf("look for run %d of %s: %w", run, row.GetObject(), err)
				}
				if !is {
					mu.Lock()
					defer mu.Unlock()
					catalog.ClearRun(next, run, c.bytes(run))
				}
				return nil
			})
		}
		if err := workers.Wait(); err != nil {
			return 0, err
		}
		if len(live) == 0 && settled.Live(next.GetLive()).Any() {
			next.State = indexpb.SettledState_SETTLED_STATE_ADOPTED
		}
		if proto.Equal(row, next) {
			continue
		}
		if err := s.armCompact(ctx, row, next); err != nil {
			return 0, err
		}
		if version, err = s.index.PutSettled(ctx, next, version); err != nil {
			return 0, err
		}
		proto.Reset(row)
		proto.Merge(row, next)
	}
	return version, nil
}

// content is what an object holds.
type content struct {
	// named looks for a run: by a bump of its stream's head, then by a walk of what
	// that names.
	named func(ctx context.Context, run uint32) (bool, error)
	// bytes is what a run takes; 0: it is not known.
	bytes func(run uint32) uint64
}

// runsOf returns what an object holds, and which runs of it are live. Of one that does
// not exist no run is named: its maker puts it before it touches the row, and whoever
// deletes it knows that none is.
func (s *Service) runsOf(ctx context.Context, row *indexpb.SettledObject) (c *content, live []uint32, err error) {
	for run := range row.GetRuns() {
		if settled.Live(row.GetLive()).Has(run) {
			live = append(live, run)
		}
	}
	if row.GetStreamId() != "" {
		c, err = s.pageOf(ctx, row)
	} else {
		c, err = s.footerOf(ctx, row)
	}
	if c == nil {
		c = &content{named: func(context.Context, uint32) (bool, error) { return false, nil }}
	}
	if c.bytes == nil {
		c.bytes = func(uint32) uint64 { return 0 }
	}
	return c, live, err
}

func (s *Service) pageOf(ctx context.Context, row *indexpb.SettledObject) (*content, error) {
	id, err := stream.ParseID(row.GetStreamId())
	if err != nil {
		return nil, err
	}
	body, err := s.readPage(ctx, row.GetObject(), id)
	if err != nil || body == nil {
		return nil, err
	}
	p := history.PageOf(body, row.GetObject(), uint32(row.GetSize()))
	return &content{named: func(ctx context.Context, _ uint32) (bool, error) {
		h, _, err := s.index.BumpHead(ctx, id)
		if catalog.IsNotFound(err) {
			h = noHead(id)
		} else if err != nil {
			return false, err
		}
		d := dropping{Service: s, queue: queueSettled, id: id, head: h}
		if d.trimmed(p.GetNextSeq()) {
			// The marker of the trim, if it is still to come, would find the page gone.
			return false, d.dropBelow(ctx, p)
		}
		is, err := history.NamesPage(ctx, s.load(id), h, p)
		return is, tornDown(err)
	}}, nil
}

// absent makes a proof that there is no head no error: it names nothing.
func absent(err error) error {
	if catalog.IsNotFound(err) {
		return nil
	}
	return err
}

func (s *Service) footerOf(ctx context.Context, row *indexpb.SettledObject) (*content, error) {
	key := row.GetObject()
	_, size, gone, err := s.read(ctx, key, 0, 1)
	if err != nil || gone {
		return nil, err
	}
	vanished := false
	runs, err := settled.Footer(int64(size), func(offset, length int64) ([]byte, error) {
		var all []byte
		for length > 0 {
			b, _, gone, err := s.read(ctx, key, uint64(offset), uint64(min(length, readAtOnce)))
			if vanished = gone; err != nil || gone {
				return nil, err
			}
			if len(b) == 0 {
				return nil, fmt.Errorf("%s ends before its size: %w", key, settled.ErrCorrupt)
			}
			all = append(all, b...)
			offset, length = offset+int64(len(b)), length-int64(len(b))
		}
		return all, nil
	})
	switch {
	case vanished:
		return nil, nil //nolint:nilerr // what a reader of nothing says is no news
	case err != nil:
		return nil, fmt.Errorf("footer of %s: %w", key, err)
	case len(runs) != int(row.GetRuns()):
		return nil, fmt.Errorf("%s has %d runs, its row says %d: %w", key, len(runs), row.GetRuns(), settled.ErrCorrupt)
	}
	named := func(ctx context.Context, run uint32) (bool, error) {
		r := runs[run]
		h, _, err := s.index.BumpHead(ctx, r.StreamID)
		if err != nil {
			return false, absent(err)
		}
		is, err := history.Names(ctx, s.load(r.StreamID), h, &indexpb.Ref{
			Object: key, Run: run, FirstSeq: uint64(r.First), NextSeq: uint64(r.Next),
		})
		return is, tornDown(err)
	}
	return &content{named: named, bytes: func(run uint32) uint64 { return runs[run].Bytes() }}, nil
}
