package chain

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	// QueueDirectory holds the markers of directory objects: chain_id, object, and
	// in number the slot that the directory starts from. An object that the row
	// from that slot names stays; else, once absorbed_to has passed the slot, it is
	// deleted.
	QueueDirectory = "directory"
	// judgeAfter is when such an object is looked at.
	judgeAfter = 10 * time.Minute
)

// finish is steps 3 to 7.
func (w *window) finish(ctx context.Context) error {
	b := directory.NewBuilder(w.chain, w.from)
	progress, size, err := w.accept(b)
	if err != nil {
		return err
	}
	if err := w.arm(ctx); err != nil {
		return err
	}
	named, err := w.putDirectory(ctx, b, size)
	if err != nil {
		return err
	}
	var dropping errgroup.Group
	if named {
		dropping.Go(func() error { return w.index.DropDue(ctx, *w.marker) })
	}
	w.record.AbsorbedTo, w.record.Progress = uint64(w.to), progress
	_, err = w.index.PutChain(ctx, w.record, w.version)
	_ = dropping.Wait() // one that stays finds nothing to do
	if err != nil {
		return fmt.Errorf("record absorbed_to %d: %w", w.to, err)
	}
	return nil
}

// arm is step 3, once.
func (w *window) arm(ctx context.Context) error {
	if w.marker != nil {
		return nil
	}
	m, err := w.index.ArmDue(ctx, &indexpb.Due{
		Queue: QueueDirectory, At: w.cfg.Now().Add(judgeAfter).UnixMilli(), ChainId: w.chain.String(),
		Object: DirectoryKey(w.chain, w.from, stream.NewAttemptID()), Number: uint64(w.from),
	})
	if err != nil {
		return fmt.Errorf("arm the directory's marker: %w", err)
	}
	w.marker = &m
	return nil
}

// accept adds the entries that count to the directory: of each shard, those of
// an epoch that no earlier entry ended, in the order of their numbers. It returns
// how far each shard is then, and how many bytes the entries have in their slots.
func (w *window) accept(b *directory.Builder) (out []*indexpb.ShardProgress, size uint64, err error) {
	progress := map[uint32]*indexpb.ShardProgress{}
	for _, p := range w.record.GetProgress() {
		progress[p.GetShard()] = &indexpb.ShardProgress{Shard: p.GetShard(), Epoch: p.GetEpoch(), NextEntry: p.GetNextEntry()}
	}
	for i := range w.footers {
		slot := w.from + stream.Slot(i)
		for j := range w.footers[i].Entries {
			e := &w.footers[i].Entries[j]
			p := progress[uint32(e.Shard)]
			if p == nil {
				p = &indexpb.ShardProgress{Shard: uint32(e.Shard)}
				progress[p.GetShard()] = p
			}
			if uint64(e.Epoch) < p.GetEpoch() {
				continue // a higher epoch began before it
			}
			if uint64(e.Epoch) > p.GetEpoch() {
				p.Epoch, p.NextEntry = uint64(e.Epoch), 0
			}
			if e.Kind != bundle.KindFence {
				if uint64(e.EntryNo) != p.GetNextEntry() {
					return nil, 0, fmt.Errorf("slot %d holds entry %d of shard %d epoch %d, where %d is next: %w",
						slot, e.EntryNo, e.Shard, e.Epoch, p.GetNextEntry(), ErrBroken)
				}
				p.NextEntry++
			}
			b.Add(slot, e)
			size += uint64(e.Length)
		}
	}
	for _, p := range progress {
		out = append(out, p)
	}
	slices.SortFunc(out, func(x, y *indexpb.ShardProgress) int { return int(int64(x.GetShard()) - int64(y.GetShard())) })
	return out, size, nil
}

// putDirectory is steps 4 and 5. It succeeds when the window has its row, and
// reports whether the marker has led to its end: the row names the object, or that
// is certainly gone.
func (w *window) putDirectory(ctx context.Context, b *directory.Builder, entryBytes uint64) (bool, error) {
	body := b.Finish(w.to)
	d := &indexpb.Directory{
		ChainId: w.chain.String(), From: uint64(w.from), To: uint64(w.to), Size: uint64(len(body)),
		Object: w.marker.Due.GetObject(), EntryBytes: entryBytes, AbsorbedAt: w.cfg.Now().UnixMilli(),
	}
	for _, n := range b.Shards() {
		d.Shards = append(d.Shards, uint32(n))
	}
	tries, err := w.again(ctx, func() error {
		_, err := limited(ctx, w.cfg.CallTimeout, func(ctx context.Context) (objectstore.ETag, error) {
			return w.objects.PutIfAbsent(ctx, d.GetObject(), body)
		})
		return err
	})
	// The key is this attempt's own: what is there is this body.
	if err != nil && !errors.Is(err, objectstore.ErrExists) {
		return false, fmt.Errorf("put directory: %w", err)
	}
	err = w.index.PutDirectory(ctx, d)
	if catalog.IsConflict(err) {
		return w.adopt(ctx, d, tries > 1)
	}
	if err != nil {
		return false, fmt.Errorf("put the directory's row: %w", err)
	}
	return true, nil
}

// adopt takes over the row that another absorber wrote for this window, and
// deletes the own object. It reports whether that is certainly gone: one of
// several PUTs may still be under way.
func (w *window) adopt(ctx context.Context, own *indexpb.Directory, uncertain bool) (bool, error) {
	row, err := w.index.GetDirectory(ctx, own.GetChainId(), own.GetFrom())
	if catalog.IsNotFound(err) {
		return false, errMoved // a read that is old, or the row was settled
	}
	if err != nil {
		return false, fmt.Errorf("read the directory's row: %w", err)
	}
	if row.GetObject() == own.GetObject() {
		return true, nil
	}
	if row.GetTo() != own.GetTo() {
		return false, fmt.Errorf("the directory from slot %d ends at %d, the claim at %d: %w", own.GetFrom(), row.GetTo(), own.GetTo(), ErrBroken)
	}
	_, err = limited(ctx, w.cfg.CallTimeout, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, w.objects.Delete(ctx, own.GetObject())
	})
	return err == nil && !uncertain, nil
}
