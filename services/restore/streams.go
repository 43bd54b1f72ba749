package restore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/export"
	"github.com/nova-stream/nova/libs/head"
	"github.com/nova-stream/nova/libs/history"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
	"github.com/nova-stream/nova/services/index"
)

func profileOf(s *indexpb.Shard) novapb.StorageProfile {
	if p := s.GetProfile(); p != novapb.StorageProfile_STORAGE_PROFILE_UNSPECIFIED {
		return p
	}
	return novapb.StorageProfile_STORAGE_PROFILE_STANDARD
}

// rowsAtOnce is how many rows are written in parallel.
const rowsAtOnce = 16

// named is which objects of settled records heads name.
type named struct {
	mu      sync.Mutex
	objects map[string]*object
	unsure  bool // the history of some head could not be read
}

type object struct {
	live []byte // a bit per run; as long as the highest run needs
	page string // the stream, of a page
}

func (n *named) add(key string, run uint32, page string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	o := n.objects[key]
	if o == nil {
		o = &object{page: page}
		n.objects[key] = o
	}
	for int(run/8) >= len(o.live) {
		o.live = append(o.live, 0)
	}
	o.live[run/8] |= 1 << (run % 8)
}

// putStreams is stepStreams.
func (r *restore) putStreams(ctx context.Context) error {
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(rowsAtOnce)
	put := func(m proto.Message) { group.Go(func() error { return r.rows.Put(gctx, m) }) }
	err := export.Each(gctx, getter{r}, r.source.manifest, func(row *indexpb.ExportRecord) error {
		switch row := row.GetRow().(type) {
		case *indexpb.ExportRecord_Bucket:
			put(row.Bucket)
		case *indexpb.ExportRecord_Descriptor_:
			return r.putDescriptor(gctx, row.Descriptor_, put)
		case *indexpb.ExportRecord_Head:
			// One of a stream that is being deleted may be there twice: the last counts.
			if id := row.Head.GetStreamId(); r.source.again[id] > 0 {
				r.source.again[id]--
				return nil
			}
			group.Go(func() error { return r.putHead(gctx, row.Head) })
		case *indexpb.ExportRecord_Name:
			if !r.isDeleted(row.Name.GetStreamId()) {
				put(row.Name)
			}
		case *indexpb.ExportRecord_Due:
			row.Due.LeasedUntil = 0
			put(row.Due)
		}
		return gctx.Err()
	})
	if werr := group.Wait(); werr != nil {
		return werr
	}
	if err != nil {
		return err
	}
	return r.putUnknown(ctx)
}

// isDeleted reports whether the DELETE entry of a stream that the export knows is
// committed: its name is free.
func (r *restore) isDeleted(id string) bool {
	parsed, err := stream.ParseID(id)
	return err == nil && (r.source.streams[parsed].deleted || r.scan.deletes[parsed])
}

func (r *restore) putDescriptor(ctx context.Context, d *indexpb.StreamDescriptor, put func(proto.Message)) error {
	due := &indexpb.Due{StreamId: d.GetStreamId(), Bucket: d.GetBucket(), Name: d.GetName()}
	if r.isDeleted(d.GetStreamId()) {
		r.report.Deleted++
		due.Queue, due.Number = "delete", uint64(d.GetShard())
		return r.due(ctx, d.GetStreamId(), due)
	}
	if !d.GetUnfinished() {
		d.RetentionMarker = d.GetStreamId() // see below
	}
	put(d)
	if d.GetUnfinished() {
		due.Queue = index.QueueCreate
		return r.due(ctx, d.GetStreamId(), due)
	}
	if c := d.GetConfig(); c.GetRetentionAgeMs() > 0 || c.GetRetentionBytes() > 0 || c.GetDeleteOnEmptyMs() > 0 {
		due.Queue = "retention"
		return r.due(ctx, d.GetStreamId(), due)
	}
	return nil
}

// putHead puts a head and notes which objects it names.
func (r *restore) putHead(ctx context.Context, h *indexpb.Head) error {
	id, err := stream.ParseID(h.GetStreamId())
	if err != nil {
		return err
	}
	load := func(ctx context.Context, p *indexpb.RefPage) (*indexpb.RefPageBody, error) {
		r.named.add(p.GetObject(), 0, h.GetStreamId())
		o, err := r.get(ctx, p.GetObject())
		if errors.Is(err, objectstore.ErrNotFound) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		return history.DecodePage(o.Body, id)
	}
	err = history.Walk(ctx, load, h, 0, func(ref *indexpb.Ref) (bool, error) {
		r.named.add(ref.GetObject(), ref.GetRun(), "")
		return true, nil
	})
	if errors.Is(err, objectstore.ErrUnavailable) || errors.Is(err, objectstore.ErrThrottled) || ctx.Err() != nil {
		return fmt.Errorf("stream %s: %w", id, err)
	}
	if err != nil {
		r.named.mu.Lock()
		r.named.unsure = true
		r.named.mu.Unlock()
		r.damaged(ctx, "the settled history of a stream cannot be read", "stream", id.String(), "err", err)
	}
	return r.rows.Put(ctx, h)
}

// putUnknown puts streams that the export does not know. One that begins with its
// first record was made after the export began. Of one that does not, the rest was
// settled and reclaimed before that, so it was there, and no name led to it any
// more: it was deleted, and its last entries are to be passed over. So are those of
// one whose DELETE is found.
func (r *restore) putUnknown(ctx context.Context) error {
	if len(r.scan.unknown) == 0 {
		return nil
	}
	// A repeat finds the bucket that was made before.
	bucket := r.source.lost
	if bucket == nil {
		bucket = &indexpb.BucketRecord{Name: LostAndFound}
		there, err := r.rows.Get(ctx, bucket)
		if err != nil {
			return err
		}
		if !there {
			bucket = index.LostBucket(LostAndFound, r.now())
			if err := r.rows.Put(ctx, bucket); err != nil {
				return err
			}
		}
	}
	for id, entries := range r.scan.unknown {
		if r.scan.hurt[id] {
			entries = nil // nobody can tell what it is
		}
		if err := r.putOne(ctx, id, entries, bucket); err != nil {
			return fmt.Errorf("stream %s: %w", id, err)
		}
	}
	return nil
}

func (r *restore) putOne(ctx context.Context, id stream.ID, entries []entry, bucket *indexpb.BucketRecord) error {
	slices.SortFunc(entries, func(a, b entry) int {
		if a.Position.Less(b.Position) {
			return -1
		}
		return 1
	})
	var s head.State
	var last entry
	deleted, broken := false, error(nil)
	for _, e := range entries {
		if last = e; e.Kind == bundle.KindDelete {
			deleted = true
			break
		}
		if _, err := s.Fold(e.Entry); err != nil && broken == nil {
			broken = err
		}
	}
	d, h, n := index.LostStream(id, bucket, r.shardsOf(), time.UnixMilli(r.at))
	// Fixed, so that a repeat finds the rows as they are.
	attempt := r.source.manifest.GetExportId()
	d.Attempt, h.Attempt, n.Attempt = attempt, attempt, attempt
	began := len(entries) == 0 || entries[0].Kind != bundle.KindChunk || entries[0].Chunk.BaseSeq == 0
	if deleted || broken != nil && !began {
		if deleted {
			r.report.Deleted++
		} else {
			r.report.Remnants++
			r.log.WarnContext(ctx, "the last records of a stream that was deleted before the export are dropped", "stream", id.String(), "entries", len(entries))
		}
		h.State = indexpb.HeadState_HEAD_STATE_DELETED
		h.FoldedEpoch, h.FoldedEntry = uint64(last.Position.Epoch), uint64(last.Position.Entry)
		h.DeletedChain, h.DeletedSlot = last.chain, last.slot
		if err := r.rows.Put(ctx, h); err != nil {
			return err
		}
		return r.due(ctx, id.String(), &indexpb.Due{
			Queue: "delete", StreamId: id.String(), Bucket: d.GetBucket(), Name: d.GetName(), Number: uint64(d.GetShard()),
		})
	}
	// One that does not fold is quarantined when it is opened.
	r.report.Found++
	r.log.WarnContext(ctx, "a stream that the export does not know", "stream", id.String(), "bucket", LostAndFound, "records", uint64(s.Tail), "err", broken)
	for _, m := range []proto.Message{d, h, n} {
		if err := r.rows.Put(ctx, m); err != nil {
			return err
		}
	}
	return nil
}
