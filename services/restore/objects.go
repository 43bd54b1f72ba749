package restore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/settled"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// putObjects is stepObjects.
func (r *restore) putObjects(ctx context.Context) error {
	keys := slices.Sorted(maps.Keys(r.named.objects))
	r.report.Settled = len(keys)
	err := atOnce(ctx, rowsAtOnce, len(keys), func(ctx context.Context, i int) error {
		if err := r.putObject(ctx, keys[i], r.named.objects[keys[i]]); err != nil {
			return fmt.Errorf("%s: %w", keys[i], err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if r.named.unsure {
		r.log.ErrorContext(ctx, "since the settled history of some streams cannot be read, what seems to be unneeded stays in the bucket")
		return nil
	}
	return r.markUnneeded(ctx)
}

// putObject puts the row of an object that heads name.
func (r *restore) putObject(ctx context.Context, key string, o *object) error {
	size, there := r.bucket.objects[key]
	if !there {
		r.damaged(ctx, "an object that heads name is gone", "object", key)
		return nil
	}
	runs, found := uint32(1), []settled.Run(nil)
	if o.page == "" {
		var err error
		found, err = settled.Footer(size, func(offset, length int64) ([]byte, error) {
			var part objectstore.Object
			err := r.again(ctx, func() (err error) {
				part, err = r.objects.GetRange(ctx, key, objectstore.Range{Offset: offset, Length: length})
				return err
			})
			return part.Body, err
		})
		if errors.Is(err, objectstore.ErrUnavailable) || errors.Is(err, objectstore.ErrThrottled) || ctx.Err() != nil {
			return err
		}
		runs = uint32(len(found))
		if most := uint32(len(o.live) * 8); err != nil {
			runs = most // its frames may be intact
			r.damaged(ctx, "the footer of an object that heads name cannot be read", "object", key, "err", err)
		}
	}
	row := &indexpb.SettledObject{
		Object: key, State: indexpb.SettledState_SETTLED_STATE_ADOPTED, Runs: runs, Live: make([]byte, (runs+7)/8), Size: uint64(size),
		StreamId: o.page, CreatedAt: r.at, Attempt: r.source.manifest.GetExportId(),
	}
	if len(o.live) > len(row.GetLive()) {
		return fmt.Errorf("heads name runs that the object does not have: it has %d", runs)
	}
	copy(row.Live, o.live)
	if r.named.unsure {
		// Heads may name any run of it by refs that could not be read.
		row.Live = settled.NewLive(int(runs), func(int) bool { return true })
	}
	for i := range found {
		if settled.Live(row.GetLive()).Has(uint32(i)) {
			row.LiveBytes += found[i].Bytes()
		}
	}
	// Its marker was armed when it became so, and markers are not restored.
	if len(found) > 0 && catalog.MostlyDead(row) {
		if err := r.due(ctx, idIn(key), &indexpb.Due{Queue: catalog.QueueCompact, Object: key}); err != nil {
			return err
		}
	}
	return r.rows.Put(ctx, row)
}

// idIn returns the id that a key ends with.
func idIn(key string) string { return key[strings.LastIndexByte(key, '/')+1:] }

// markUnneeded arms markers of objects that nothing names: they were made after the
// export, by what is done again now, or before it by somebody who died.
func (r *restore) markUnneeded(ctx context.Context) error {
	for key := range r.bucket.objects {
		if r.named.objects[key] != nil {
			continue
		}
		r.report.Unneeded++
		if err := r.due(ctx, idIn(key), &indexpb.Due{Queue: "settled", Object: key}); err != nil {
			return err
		}
	}
	for chain, all := range r.bucket.directories {
		for key := range all {
			if r.scan.objects[key] {
				continue
			}
			from, id, ok := strings.Cut(strings.TrimPrefix(key, "directory/"+chain+"/"), "-")
			slot, err := strconv.ParseUint(from, 16, 64)
			if !ok || err != nil {
				continue
			}
			r.report.Unneeded++
			if err := r.due(ctx, id, &indexpb.Due{Queue: "directory", ChainId: chain, Object: key, Number: slot}); err != nil {
				return err
			}
		}
	}
	return nil
}
