package index

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/export"
	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

const (
	// exportPage is how many rows are read at once: of heads, at most 6 MiB.
	exportPage = 100
	// exportsAtOnce is how many streams are read in parallel.
	exportsAtOnce = 8
)

// write is steps 3 and 4.
func (x *exportRun) write(ctx context.Context) (*indexpb.ExportManifest, error) {
	if err := x.fence(ctx); err != nil {
		return nil, err
	}
	c := &indexpb.Constellation{}
	if _, err := x.read(ctx, constellationKey(), c); err != nil {
		return nil, err
	}
	x.out = export.NewWriter(x.objects, &indexpb.ExportManifest{
		ExportId: x.id, Number: x.number, ConstellationId: c.GetId(), Incarnation: c.GetIncarnation(), BegunAt: x.began.UnixMilli(),
	})
	if err := x.out.Add(ctx, &indexpb.ExportRecord{Row: &indexpb.ExportRecord_Constellation{Constellation: c}}); err != nil {
		return nil, err
	}
	for _, part := range []struct {
		what  string
		write func(context.Context) error
	}{{"chains", x.chains}, {"shards", x.shards}, {"buckets", x.buckets}, {"deletions", x.deletions}} {
		if err := part.write(ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", part.what, err)
		}
	}
	if err := x.keep(ctx); err != nil {
		return nil, err
	}
	return x.out.Finish(ctx, x.now())
}

// scan calls f with the rows of a range, a page at a time, at the pace that the
// rate allows.
func (x *exportRun) scan(ctx context.Context, partition, from, to string, f func([]metastore.Row) error) error {
	for {
		rows, err := x.store.Range(ctx, partition, from, to, exportPage)
		if err != nil {
			return storeError(err)
		}
		if err := f(rows); err != nil {
			return err
		}
		if err := x.pace(ctx, len(rows)); err != nil {
			return err
		}
		if len(rows) < exportPage {
			return nil
		}
		from = rows[len(rows)-1].Path + "\x20"
	}
}

// pace waits until rows more fit the rate, and keeps the lease.
func (x *exportRun) pace(ctx context.Context, rows int) error {
	now := time.Now()
	if x.paced.Before(now) {
		x.paced = now
	}
	x.paced = x.paced.Add(time.Duration(rows) * time.Second / time.Duration(x.cfg.Rate))
	if wait := x.paced.Sub(now); wait > 10*time.Millisecond {
		select {
		case <-ctx.Done():
			return reason.New(reason.Code(ctx.Err()), "", ctx.Err().Error())
		case <-time.After(wait):
		}
	}
	return x.keep(ctx)
}

func (x *exportRun) chains(ctx context.Context) error {
	return x.scan(ctx, partChains, "chain/", "chain/"+after, func(rows []metastore.Row) error {
		for _, row := range rows {
			c := &indexpb.Chain{}
			if err := decode(row.Path, row.Value, c); err != nil {
				return err
			}
			if err := x.chain(ctx, c); err != nil {
				return fmt.Errorf("chain %s: %w", c.GetChainId(), err)
			}
		}
		return nil
	})
}

// chain writes a chain's record and its directories, which lead from a slot that is
// settled to absorbed_to. The directories are read after the record: some of those
// that are settled may be gone.
func (x *exportRun) chain(ctx context.Context, c *indexpb.Chain) error {
	for range 8 {
		directories, from, err := x.directories(ctx, c)
		if err != nil {
			return err
		}
		if from > c.GetSettledTo() {
			// More is settled, and reclaimed, by now.
			c = &indexpb.Chain{ChainId: c.GetChainId()}
			if _, err := x.read(ctx, chainKey(c.GetChainId()), c); err != nil {
				return err
			}
			continue
		}
		// A restore puts directories before the record.
		for _, d := range directories {
			if err := x.out.Add(ctx, &indexpb.ExportRecord{Row: &indexpb.ExportRecord_Directory{Directory: d}}); err != nil {
				return err
			}
		}
		return x.out.Add(ctx, &indexpb.ExportRecord{Row: &indexpb.ExportRecord_Chain{Chain: c}})
	}
	return errors.New("its directories have a gap")
}

// directories returns those of a chain that are not reclaimed, or have slots that a pin
// keeps, and are below absorbed_to, and from which slot on they have no gap up to there.
func (x *exportRun) directories(ctx context.Context, c *indexpb.Chain) (out []*indexpb.Directory, from uint64, err error) {
	if c.GetState() == indexpb.ChainState_CHAIN_STATE_RETIRED {
		return nil, c.GetSettledTo(), nil
	}
	id := c.GetChainId()
	first := c.GetReclaimedTo()
	for _, p := range c.GetPins() {
		first = min(first, p.GetFrom()) // a repair needs those of slots that are kept
	}
	first -= min(first, chain.Window-1) // one may begin below it
	err = x.scan(ctx, id, directoryKey(id, first).Path, directoryKey(id, c.GetAbsorbedTo()).Path, func(rows []metastore.Row) error {
		for _, row := range rows {
			d := &indexpb.Directory{}
			if err := decode(row.Path, row.Value, d); err != nil {
				return err
			}
			out = append(out, d)
		}
		return nil
	})
	from = c.GetAbsorbedTo()
	for i := len(out) - 1; i >= 0 && out[i].GetTo() == from; i-- {
		from = out[i].GetFrom()
	}
	return out, from, err
}

func (x *exportRun) shards(ctx context.Context) error {
	return x.scan(ctx, partShards, "shard/", "shard/"+after, func(rows []metastore.Row) error {
		for _, row := range rows {
			r := &indexpb.Shard{}
			if err := decode(row.Path, row.Value, r); err != nil {
				return err
			}
			if err := x.out.Add(ctx, &indexpb.ExportRecord{Row: &indexpb.ExportRecord_Shard{Shard: r}}); err != nil {
				return err
			}
		}
		return nil
	})
}

// buckets writes every bucket with its streams.
func (x *exportRun) buckets(ctx context.Context) error {
	return x.scan(ctx, partBuckets, "bucket/", "bucket/"+after, func(rows []metastore.Row) error {
		for _, row := range rows {
			b := &indexpb.BucketRecord{}
			if err := decode(row.Path, row.Value, b); err != nil {
				return err
			}
			if err := x.out.Add(ctx, &indexpb.ExportRecord{Row: &indexpb.ExportRecord_Bucket{Bucket: b}}); err != nil {
				return err
			}
			prefix := "name/" + b.GetName() + "/"
			if err := x.scan(ctx, partNamesBase+b.GetName(), prefix, prefix+after, x.names(ctx)); err != nil {
				return fmt.Errorf("bucket %s: %w", b.GetName(), err)
			}
		}
		return nil
	})
}

// names writes a page of names with the streams that they lead to. A name that
// leads to none is left out: its stream is being deleted, or was never made.
func (x *exportRun) names(ctx context.Context) func([]metastore.Row) error {
	return func(rows []metastore.Row) error {
		type found struct {
			name       *indexpb.NameRecord
			descriptor *indexpb.StreamDescriptor
			head       *indexpb.Head
		}
		all := make([]found, len(rows))
		group, gctx := errgroup.WithContext(ctx)
		group.SetLimit(exportsAtOnce)
		for i, row := range rows {
			n := &indexpb.NameRecord{}
			if err := decode(row.Path, row.Value, n); err != nil {
				_ = group.Wait()
				return err
			}
			if isProbe(n) {
				continue
			}
			group.Go(func() error {
				d, _, err := x.descriptor(gctx, n.GetStreamId())
				if reason.Is(err, reason.RowNotFound) {
					return nil
				}
				if err != nil {
					return err
				}
				h, err := x.anyHead(gctx, n.GetStreamId())
				if err == nil && h != nil {
					all[i] = found{n, d, h}
				}
				return err
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
		for _, f := range all {
			if f.name == nil {
				continue
			}
			for _, r := range []*indexpb.ExportRecord{
				{Row: &indexpb.ExportRecord_Descriptor_{Descriptor_: f.descriptor}},
				{Row: &indexpb.ExportRecord_Head{Head: f.head}},
				{Row: &indexpb.ExportRecord_Name{Name: f.name}},
			} {
				if err := x.out.Add(ctx, r); err != nil {
					return err
				}
			}
		}
		return x.pace(ctx, 2*len(rows))
	}
}

// anyHead returns a stream's head; nil if it is proven that there is none.
func (x *exportRun) anyHead(ctx context.Context, id string) (*indexpb.Head, error) {
	h, _, err := x.head(ctx, id)
	if reason.Is(err, reason.RowNotFound) {
		h, _, err = x.provenHead(ctx, id)
	}
	if reason.Is(err, reason.RowNotFound) {
		return nil, nil
	}
	return h, err
}

// queueDelete holds the markers of streams that are being deleted. In the queues
// with deadPrefix are those that the reaper has set aside.
const queueDelete, deadPrefix = "delete", "dead-"

// deletions writes the markers of buckets and streams that are being deleted, and
// the heads of those streams: no name may lead there any more. A bucket that is
// DELETING without a marker is one whose delete was not forced: nobody goes on.
func (x *exportRun) deletions(ctx context.Context) error {
	for _, queue := range []string{QueueBucket, deadPrefix + QueueBucket, queueDelete, deadPrefix + queueDelete} {
		prefix := "due/" + queue + "/"
		err := x.scan(ctx, "due/"+queue, prefix, prefix+after, func(rows []metastore.Row) error {
			for _, row := range rows {
				d := &indexpb.Due{}
				if err := decode(row.Path, row.Value, d); err != nil {
					return err
				}
				d.Queue = strings.TrimPrefix(queue, deadPrefix)
				if err := x.deletion(ctx, d); err != nil {
					return err
				}
			}
			return x.pace(ctx, len(rows))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (x *exportRun) deletion(ctx context.Context, d *indexpb.Due) error {
	if d.GetQueue() == queueDelete {
		h, err := x.anyHead(ctx, d.GetStreamId())
		if err != nil || h == nil {
			return err // the stream is gone
		}
		if err := x.out.Add(ctx, &indexpb.ExportRecord{Row: &indexpb.ExportRecord_Head{Head: h}}); err != nil {
			return err
		}
	}
	return x.out.Add(ctx, &indexpb.ExportRecord{Row: &indexpb.ExportRecord_Due{Due: d}})
}
