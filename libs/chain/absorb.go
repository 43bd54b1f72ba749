package chain

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/directory"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

const (
	// Window is how many slots one directory covers at most.
	Window = 64
	// footersAtOnce is how many footers are read in parallel.
	footersAtOnce = 16
	// QueueDirectory holds the markers of directories that may not have got
	// their row.
	QueueDirectory = "directory"
	// judgeAfter is when such a directory is looked at.
	judgeAfter = 10 * time.Minute
)

// ErrBroken means that a committed chain holds an entry that breaks the order
// of its shard's entry numbers.
var ErrBroken = errors.New("chain is broken")

// Absorb absorbs committed slots of a chain below to into directories, or all
// that are committed with to = 0, and returns absorbed_to. Any number may work
// on one chain: the claim decides the window, and whoever comes finishes it.
// Steps per window, and what a crash leaves after each:
//
//  1. find slots that are committed: nothing.
//  2. claim them: compare-and-set of absorbing_to. The next absorber does the
//     same window.
//  3. arm a due marker for the directory object: the marker.
//  4. put the object under a key of its own: an object that nothing names; the
//     marker leads to it.
//  5. put the directory's row, once per window: the row counts, whoever wrote
//     it; the next absorber adopts it.
//  6. compare-and-set of absorbed_to, with the fences met. Then drop the marker.
func Absorb(ctx context.Context, objects objectstore.Store, index Index, c stream.ChainID, to stream.Slot, now func() time.Time) (stream.Slot, error) {
	for {
		r, version, err := index.GetChain(ctx, c.String())
		if err != nil {
			return 0, fmt.Errorf("absorb chain %s: %w", c, err)
		}
		from := stream.Slot(r.GetAbsorbedTo())
		if to > 0 && from >= to {
			return from, nil
		}
		a := absorber{objects: objects, index: index, chain: c, record: r, now: now}
		if r.GetAbsorbingTo() == r.GetAbsorbedTo() {
			end, err := a.committed(ctx, from)
			if err != nil {
				return from, fmt.Errorf("absorb chain %s: %w", c, err)
			}
			if end == from {
				if to > 0 {
					return from, fmt.Errorf("absorb chain %s: slot %d is not committed: %w", c, from, objectstore.ErrUnavailable)
				}
				return from, nil
			}
			r.AbsorbingTo = uint64(end)
			if version, err = index.PutChain(ctx, r, version); err != nil {
				if catalog.IsConflict(err) {
					continue
				}
				return from, fmt.Errorf("absorb chain %s: claim: %w", c, err)
			}
		}
		if err := a.window(ctx, version); err != nil && !catalog.IsConflict(err) && !errors.Is(err, errMoved) {
			return from, fmt.Errorf("absorb chain %s: %w", c, err)
		}
	}
}

// errMoved means that the window was absorbed by another meanwhile.
var errMoved = errors.New("the window was absorbed by another")

type absorber struct {
	objects objectstore.Store
	index   Index
	chain   stream.ChainID
	record  *indexpb.Chain
	now     func() time.Time
	footers []bundle.Footer // of the window, if committed read them already
}

// committed returns the end of the committed slots from one on, at most a
// window of them, and keeps their footers. With one register a slot that is
// there, and all below it, is committed for good.
func (a *absorber) committed(ctx context.Context, from stream.Slot) (stream.Slot, error) {
	limit := from + Window
	if a.record.GetState() != indexpb.ChainState_CHAIN_STATE_OPEN {
		limit = min(limit, stream.Slot(a.record.GetCut()))
	}
	// The usual idle chain: one read that finds nothing.
	first, ok, err := readFooter(ctx, a.objects, a.chain, from)
	if err != nil || !ok {
		return from, err
	}
	found := make([]bundle.Footer, limit-from)
	present := make([]bool, limit-from)
	found[0], present[0] = first, true
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(footersAtOnce)
	for i := 1; i < len(found); i++ {
		group.Go(func() error {
			var err error
			found[i], present[i], err = readFooter(ctx, a.objects, a.chain, from+stream.Slot(i))
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return from, err
	}
	n := 0
	for n < len(found) && present[n] {
		n++
	}
	a.footers = found[:n]
	return from + stream.Slot(n), nil
}

// readFooter reads the footer of a slot; false if it is empty or a SEAL.
func readFooter(ctx context.Context, objects objectstore.Store, c stream.ChainID, s stream.Slot) (bundle.Footer, bool, error) {
	key := SlotKey(c, s)
	wrap := func(err error) error { return fmt.Errorf("footer of slot %d of chain %s: %w", s, c, err) }
	tail, err := objects.GetRange(ctx, key, objectstore.Range{Offset: -bundle.TailBytes})
	if errors.Is(err, objectstore.ErrNotFound) {
		return bundle.Footer{}, false, nil
	}
	if err != nil {
		return bundle.Footer{}, false, wrap(err)
	}
	start := tail.Body
	if int64(len(tail.Body)) < tail.Size {
		o, err := objects.GetRange(ctx, key, objectstore.Range{Length: bundle.IdentBytes})
		if err != nil {
			return bundle.Footer{}, false, wrap(err)
		}
		start = o.Body
	}
	f, need, err := bundle.ParseTail(start, tail.Body, tail.Size)
	if err == nil && need > 0 {
		o, rerr := objects.GetRange(ctx, key, objectstore.Range{Offset: -need})
		if rerr != nil {
			return bundle.Footer{}, false, wrap(rerr)
		}
		f, _, err = bundle.ParseTail(start, o.Body, o.Size)
	}
	if err != nil {
		return bundle.Footer{}, false, wrap(err)
	}
	if f.Chain != c || f.Slot != s {
		return bundle.Footer{}, false, wrap(ErrForeign)
	}
	return f, !f.IsSeal, nil
}

// window does steps 3 to 6 for the claimed window.
func (a *absorber) window(ctx context.Context, version int64) error {
	from, to := stream.Slot(a.record.GetAbsorbedTo()), stream.Slot(a.record.GetAbsorbingTo())
	if stream.Slot(len(a.footers)) != to-from {
		if err := a.readWindow(ctx, from, to); err != nil {
			return err
		}
	}
	b := directory.NewBuilder(a.chain, from)
	progress, err := a.accept(b, from)
	if err != nil {
		return err
	}
	body := b.Finish(to)
	d := &indexpb.Directory{
		ChainId: a.chain.String(), From: uint64(from), To: uint64(to), Size: uint64(len(body)),
		Object: DirectoryKey(a.chain, from, stream.NewAttemptID()),
	}
	for _, n := range b.Shards() {
		d.Shards = append(d.Shards, uint32(n))
	}
	marker, err := a.index.ArmDue(ctx, &indexpb.Due{
		Queue: QueueDirectory, At: a.now().Add(judgeAfter).UnixMilli(), ChainId: d.GetChainId(), Object: d.GetObject(), Number: uint64(from),
	})
	if err != nil {
		return fmt.Errorf("arm marker: %w", err)
	}
	if _, err := a.objects.PutIfAbsent(ctx, d.GetObject(), body); err != nil && !errors.Is(err, objectstore.ErrExists) {
		// The key is this attempt's own, so what exists under it is this body.
		return fmt.Errorf("put directory: %w", err)
	}
	if err := a.index.PutDirectory(ctx, d); err != nil {
		if !catalog.IsConflict(err) {
			return fmt.Errorf("put directory's row: %w", err)
		}
		// Another absorber's row counts. It names the same window, because claims
		// are not replaced; the own object is nobody's.
		other, err := a.index.GetDirectory(ctx, d.GetChainId(), uint64(from))
		if err != nil {
			return fmt.Errorf("read directory's row: %w", err)
		}
		if other.GetTo() != uint64(to) {
			return fmt.Errorf("directory [%d, %d) of chain %s has the end %d: %w", from, to, a.chain, other.GetTo(), ErrBroken)
		}
		if other.GetObject() != d.GetObject() && a.objects.Delete(ctx, d.GetObject()) != nil {
			marker.Due = nil // the marker leads the reaper to it
		}
	}
	a.record.AbsorbedTo = uint64(to)
	a.record.Progress = progress
	if _, err := a.index.PutChain(ctx, a.record, version); err != nil {
		return err
	}
	if marker.Due != nil {
		_ = a.index.DropDue(ctx, marker) // else the reaper finds the row and drops it
	}
	return nil
}

// readWindow reads the footers of a window that another claimed.
func (a *absorber) readWindow(ctx context.Context, from, to stream.Slot) error {
	a.footers = make([]bundle.Footer, to-from)
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(footersAtOnce)
	for i := range a.footers {
		group.Go(func() error {
			f, ok, err := readFooter(gctx, a.objects, a.chain, from+stream.Slot(i))
			if err == nil && !ok {
				err = errMoved
			}
			a.footers[i] = f
			return err
		})
	}
	err := group.Wait()
	if !errors.Is(err, errMoved) {
		return err
	}
	// A committed slot that is not there was reclaimed, after absorbed_to passed it.
	r, _, gerr := a.index.GetChain(ctx, a.chain.String())
	if gerr != nil {
		return gerr
	}
	if r.GetAbsorbedTo() <= uint64(from) {
		return fmt.Errorf("a slot of the claimed window [%d, %d) is not there: %w", from, to, ErrBroken)
	}
	return errMoved
}

// accept adds the entries that count to the directory: of each shard, those of
// an epoch that no earlier entry ended, in the order of their numbers.
func (a *absorber) accept(b *directory.Builder, from stream.Slot) ([]*indexpb.ShardProgress, error) {
	progress := map[stream.Shard]*indexpb.ShardProgress{}
	for _, p := range a.record.GetProgress() {
		progress[stream.Shard(p.GetShard())] = &indexpb.ShardProgress{Shard: p.GetShard(), Epoch: p.GetEpoch(), NextEntry: p.GetNextEntry()}
	}
	for i := range a.footers {
		slot := from + stream.Slot(i)
		for j := range a.footers[i].Entries {
			e := &a.footers[i].Entries[j]
			p := progress[e.Shard]
			if p == nil {
				p = &indexpb.ShardProgress{Shard: uint32(e.Shard)}
				progress[e.Shard] = p
			}
			if uint64(e.Epoch) < p.GetEpoch() {
				continue // a higher epoch began before it
			}
			if uint64(e.Epoch) > p.GetEpoch() {
				p.Epoch, p.NextEntry = uint64(e.Epoch), 0
			}
			if e.Kind != bundle.KindFence {
				if uint64(e.EntryNo) != p.GetNextEntry() {
					return nil, fmt.Errorf("slot %d: shard %d epoch %d has entry %d, expected %d: %w", slot, e.Shard, e.Epoch, e.EntryNo, p.GetNextEntry(), ErrBroken)
				}
				p.NextEntry++
			}
			b.Add(slot, e)
		}
	}
	out := make([]*indexpb.ShardProgress, 0, len(progress))
	for _, p := range progress {
		out = append(out, p)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].GetShard() < out[j].GetShard() })
	return out, nil
}
