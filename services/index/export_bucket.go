package index

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/export"
	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// CheckBucket refuses a metastore and a bucket that do not belong together, before
// anything is written to either. With another bucket, or another part of it, a
// constellation would give numbers again that it has given; with another metastore,
// or one that lost its rows, it would begin anew beside records and hide them. where
// names the bucket for people. A metastore that cannot be read is no reason to
// refuse: whoever needs it tells.
//
// It looks for the newest exports, and lists only what may be refused.
func CheckBucket(ctx context.Context, store metastore.Store, objects objectstore.Store, where string) error {
	known, err := has(ctx, store, constellationKey())
	if err != nil {
		return nil //nolint:nilerr // told by whoever needs the row
	}
	if known {
		return checkOwn(ctx, store, objects, where)
	}
	records, err := holdsAny(ctx, objects, "chain/", "settled/")
	if err != nil {
		return fmt.Errorf("look for records in %s: %w", where, err)
	}
	if !records {
		return nil
	}
	// Another process may have begun it meanwhile, and the first look may be old.
	if known, err = has(ctx, store, constellationKey()); err != nil || known {
		return nil //nolint:nilerr // as above
	}
	return fmt.Errorf("%s holds records, and the metastore is empty: name the metastore that belongs to it, or another bucket or prefix; "+
		"if its rows are lost, run novad restore; it will not start without, since that would begin anew and hide the records", where)
}

// checkOwn refuses a bucket without any of the exports that a constellation's row
// says are complete, unless what else is there says that only they were removed.
func checkOwn(ctx context.Context, store metastore.Store, objects objectstore.Store, where string) error {
	row, err := store.Get(ctx, exportKey())
	if err != nil {
		return nil //nolint:nilerr // none was made, or told by whoever needs the row
	}
	var st indexpb.ExportState
	if err := proto.Unmarshal(row.Value, &st); err != nil {
		return fmt.Errorf("the row of exports: %w", err)
	}
	made := 0
	for _, e := range st.GetExports() {
		if !e.GetComplete() || e.GetRemoved() {
			continue
		}
		made++
		_, err := objects.GetRange(ctx, export.ManifestKey(e.GetExportId()), objectstore.Range{Length: 1})
		if err == nil {
			return nil
		}
		if !errors.Is(err, objectstore.ErrNotFound) {
			return fmt.Errorf("look for the constellation's exports in %s: %w", where, err)
		}
	}
	if made == 0 {
		return nil
	}
	records, err := holdsAny(ctx, objects, "chain/", "settled/")
	if err != nil {
		return fmt.Errorf("look for records in %s: %w", where, err)
	}
	others, err := holdsAny(ctx, objects, export.Prefix)
	if err != nil {
		return fmt.Errorf("look for exports in %s: %w", where, err)
	}
	if records && !others {
		return nil
	}
	return fmt.Errorf("%s does not hold the records of this metastore's constellation: none of its %d exports is there; "+
		"name the bucket and prefix that belong to it, or put the objects back; it will not start without, since that would give numbers twice", where, made)
}

// holdsAny is whether there is an object with one of the prefixes.
func holdsAny(ctx context.Context, objects objectstore.Store, prefixes ...string) (bool, error) {
	for _, prefix := range prefixes {
		found, err := objects.List(ctx, prefix, "", 1)
		if err != nil || len(found) > 0 {
			return len(found) > 0, err
		}
	}
	return false, nil
}

// has is whether there is a row.
func has(ctx context.Context, store metastore.Store, key metastore.Key) (bool, error) {
	_, err := store.Get(ctx, key)
	if errors.Is(err, metastore.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}
