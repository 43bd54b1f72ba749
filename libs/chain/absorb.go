package chain

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// Window is how many slots one directory covers at most.
const Window = 64

// ErrBroken means that a committed chain holds what it must not: an entry out of
// the order of its shard's numbers, or a slot that is gone. Work on it stops.
var ErrBroken = errors.New("chain is broken")

// Absorb absorbs what a chain has committed now into directories and returns
// absorbed_to. A chain that is found with a SEAL but OPEN is sealed first.
func (s *Store) Absorb(ctx context.Context, c stream.ChainID) (stream.Slot, error) {
	return s.AbsorbTo(ctx, c, 0)
}

// AbsorbTo absorbs committed slots until absorbed_to has reached to, and returns
// it. Slots below to that are not committed yet are an ErrUnavailable; to = 0
// means whatever is committed now. Any number may work on one chain, beside its
// writer and sealers: a claim decides the window, and whoever comes finishes it.
// A window's steps, and what a crash after each leaves:
//
//  1. find slots that are committed: nothing.
//  2. claim them, by compare-and-set of absorbing_to: the next absorber does the
//     same window.
//  3. arm a due marker for the directory's object: a marker, of no object.
//  4. put the object, under a key of its own: an object that no row names; the
//     marker leads to it.
//  5. put the directory's row, once per window: the row counts, whoever wrote it;
//     the next absorber adopts it.
//  6. compare-and-set of absorbed_to, with how far each shard is.
//  7. drop the marker. A marker whose object has the row is dropped by the reaper.
//
// Steps 2 and 3, and 6 and 7, go at once: a takeover waits for all of them.
func (s *Store) AbsorbTo(ctx context.Context, c stream.ChainID, to stream.Slot) (stream.Slot, error) {
	var from stream.Slot
	for n := 0; ; n++ {
		w := window{Store: s, chain: c, target: to}
		err := w.read(ctx)
		from = max(from, w.from)
		if err == nil {
			if to > 0 && from >= to || w.isEnd() {
				break
			}
			err = w.absorb(ctx)
		}
		switch {
		case errors.Is(err, errNothing) && to == 0:
			return from, nil
		case errors.Is(err, errMoved), catalog.IsConflict(err):
			if err := sleep(ctx, backoff(n, time.Second)); err != nil {
				return from, fmt.Errorf("absorb chain %s: %w", c, err)
			}
		case err != nil:
			return from, fmt.Errorf("absorb chain %s: %w", c, err)
		default:
			n, from = 0, w.to
			// A short window was all there was: a busy chain gets its next one later.
			if to == 0 && !w.inherited && w.to-w.from < Window {
				return from, nil
			}
		}
	}
	if from < to {
		return from, fmt.Errorf("absorb chain %s to slot %d: %w: it ends at %d", c, to, ErrBroken, from)
	}
	return from, nil
}

// Holds reports whether anything is in a slot: the cheapest question about an
// idle chain, one small read.
func (s *Store) Holds(ctx context.Context, c stream.ChainID, slot stream.Slot) (bool, error) {
	_, err := s.reg.Read(ctx, c, slot, objectstore.Range{Length: 1})
	if errors.Is(err, objectstore.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("slot %d of chain %s: %w", slot, c, err)
	}
	return true, nil
}

// errNothing means that the next slot is not committed.
var errNothing = fmt.Errorf("the next slot is not committed: %w", objectstore.ErrUnavailable)

// window is one try at the next window of a chain.
type window struct {
	*Store

	chain     stream.ChainID
	target    stream.Slot // that somebody waits for; 0: nobody does
	record    *indexpb.Chain
	version   int64
	from, to  stream.Slot     // to is 0 until the window is claimed
	inherited bool            // another claimed it
	marker    *catalog.Marker // of the directory's object; nil until it is armed
	footers   []bundle.Footer
}

func (w *window) read(ctx context.Context) (err error) {
	w.record, w.version, err = w.index.GetChain(ctx, w.chain.String())
	w.from = stream.Slot(w.record.GetAbsorbedTo())
	return err
}

func (w *window) open() bool { return w.record.GetState() == indexpb.ChainState_CHAIN_STATE_OPEN }

// isEnd reports that everything is absorbed and nothing will be added.
func (w *window) isEnd() bool { return !w.open() && uint64(w.from) >= w.record.GetCut() }

func (w *window) absorb(ctx context.Context) error {
	if end := stream.Slot(w.record.GetAbsorbingTo()); end > w.from {
		w.to, w.inherited = end, true
		if err := w.readAll(ctx); err != nil {
			return err
		}
	} else if err := w.claim(ctx); err != nil {
		return err
	}
	return w.finish(ctx)
}

// claim is steps 1 and 2.
func (w *window) claim(ctx context.Context) error {
	met, err := w.find(ctx)
	if err != nil {
		return err
	}
	if len(w.footers) == 0 {
		if met == holdsSeal && w.open() {
			// Whoever meets a SEAL finishes the seal. It is there already, so it does
			// not matter on whose behalf.
			if _, err := w.Seal(ctx, w.chain, stream.LifeID{}); err != nil {
				return err
			}
			return errMoved
		}
		return errNothing
	}
	w.to = w.from + stream.Slot(len(w.footers))
	w.record.AbsorbingTo = uint64(w.to)
	var arming errgroup.Group
	arming.Go(func() error { return w.arm(ctx) })
	w.version, err = w.index.PutChain(ctx, w.record, w.version)
	armed := arming.Wait()
	if err != nil {
		if armed == nil {
			_ = w.index.DropDue(ctx, *w.marker) // one that stays finds nothing to do
		}
		return fmt.Errorf("claim [%d, %d): %w", w.from, w.to, err)
	}
	return armed
}

// find reads the footers of the committed slots, and tells what ends them, if
// not the window. An idle chain costs one read that finds nothing; the more is
// there, the more is asked at once. Up to a slot that somebody waits for, and
// knows to be committed, all are asked at once, and none above it.
func (w *window) find(ctx context.Context) (content, error) {
	limit := w.from + Window
	if !w.open() {
		limit = min(limit, stream.Slot(w.record.GetCut()))
	}
	n := stream.Slot(1)
	if w.target > w.from {
		n, limit = w.target-w.from, min(limit, w.target)
	}
	for slot := w.from; slot < limit; n *= 4 {
		end := min(slot+n, limit)
		found, err := w.readFooters(ctx, slot, end)
		if err != nil {
			return holdsNothing, err
		}
		for _, f := range found {
			if f.damage != nil && len(w.footers) > 0 {
				return holdsNothing, nil // the next window meets it; who needs only this one goes on
			}
			if f.damage != nil || f.held != holdsBundle {
				return f.held, f.damage
			}
			w.footers = append(w.footers, f.Footer)
		}
		slot = end
	}
	return holdsBundle, nil
}

// footersAtOnce is how many footers are read in parallel.
const footersAtOnce = 16

// found is what a slot was found to hold.
type found struct {
	bundle.Footer

	held   content
	damage error // what it holds cannot be told
}

func (w *window) readFooters(ctx context.Context, from, to stream.Slot) ([]found, error) {
	out := make([]found, to-from)
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(footersAtOnce)
	for i := range out {
		f, slot := &out[i], from+stream.Slot(i)
		group.Go(func() error {
			_, err := w.again(gctx, func() (err error) {
				if f.Footer, f.held, err = readFooter(gctx, w.reg, w.chain, slot); isDamage(err) {
					f.Footer, f.held, err = w.rebuild(gctx, w.chain, slot, err)
				}
				return err
			})
			if isDamage(err) || errors.Is(err, ErrForeign) {
				f.damage, err = err, nil
			}
			return err
		})
	}
	return out, group.Wait()
}

// readAll reads the footers of a window that another claimed.
func (w *window) readAll(ctx context.Context) error {
	found, err := w.readFooters(ctx, w.from, w.to)
	if err != nil {
		return err
	}
	for i, f := range found {
		if f.damage != nil {
			return f.damage
		}
		if f.held == holdsBundle {
			w.footers = append(w.footers, f.Footer)
			continue
		}
		// A committed slot that is gone was reclaimed, and the record read is old; or
		// the chain is broken. A change of the record tells: it fails if it is old.
		if _, err := w.index.PutChain(ctx, w.record, w.version); err != nil {
			return err
		}
		return fmt.Errorf("slot %d of the claimed window [%d, %d) holds no bundle: %w", w.from+stream.Slot(i), w.from, w.to, ErrBroken)
	}
	return nil
}
