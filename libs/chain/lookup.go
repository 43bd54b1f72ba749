package chain

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/nova-stream/nova/libs/directory"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

const (
	// directoryBytes limits what is kept of directories, in bytes.
	directoryBytes = 64 << 20
	// wholeBytes is how large a directory is read at once and kept whole; of a
	// larger one the index is kept.
	wholeBytes = 256 << 10
	// directoriesAtOnce is how many directories are read in parallel for one lookup.
	directoriesAtOnce = 16
	// blocksAtOnce is how many streams are looked up in parallel.
	blocksAtOnce = 16
)

// openDirectory is a directory that is kept, and its bytes in memory.
type openDirectory struct {
	*directory.Reader
	weight uint32
}

// ErrVanished means that directories of the range are gone, or not there yet:
// what they held is in heads by now, so the caller starts again from the
// chain's record. It wraps objectstore.ErrUnavailable.
var ErrVanished = fmt.Errorf("a directory is not there: %w", objectstore.ErrUnavailable)

// Lookup returns the entries of the streams, all of one shard, in slots
// [from, to) of a chain; those of one stream are in chain order. All of the
// range must be absorbed and none of it settled, else ErrVanished: pass the
// settled_to of a record that was read before the heads.
func (s *Store) Lookup(ctx context.Context, c stream.ChainID, shard stream.Shard, ids []stream.ID, from, to stream.Slot) ([]directory.Located, error) {
	fail := func(err error) ([]directory.Located, error) {
		return nil, fmt.Errorf("look up chain %s [%d, %d): %w", c, from, to, err)
	}
	if from >= to {
		return nil, nil
	}
	// The directory that holds from may begin up to a window earlier.
	first := from - min(from, Window-1)
	rows, err := s.index.Directories(ctx, c.String(), uint64(first), uint64(to))
	if err != nil {
		return fail(err)
	}
	var of []*indexpb.Directory
	covered := from
	for _, row := range rows {
		if row.GetTo() <= uint64(covered) {
			continue
		}
		if row.GetFrom() > uint64(covered) {
			break
		}
		covered = stream.Slot(row.GetTo())
		if slices.Contains(row.GetShards(), uint32(shard)) {
			of = append(of, row)
		}
	}
	if covered < to {
		return fail(fmt.Errorf("slot %d: %w", covered, ErrVanished))
	}
	found := make([][]directory.Located, len(of))
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(directoriesAtOnce)
	for i, row := range of {
		group.Go(func() (err error) {
			found[i], err = s.lookupIn(gctx, row, ids)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return fail(err)
	}
	outside := func(e directory.Located) bool { return e.At.Slot < from || e.At.Slot >= to }
	return slices.DeleteFunc(slices.Concat(found...), outside), nil
}

func (s *Store) lookupIn(ctx context.Context, row *indexpb.Directory, ids []stream.ID) ([]directory.Located, error) {
	d, err := s.openDirectory(ctx, row)
	if err != nil {
		return nil, fmt.Errorf("open directory %s: %w", row.GetObject(), vanished(err))
	}
	blocks := make([][]directory.Located, len(ids))
	var group errgroup.Group
	group.SetLimit(blocksAtOnce)
	for i, id := range ids {
		group.Go(func() error {
			var err error
			if blocks[i], err = d.Stream(id); err != nil {
				return fmt.Errorf("stream %s in directory %s: %w", id, row.GetObject(), vanished(err))
			}
			return ctx.Err()
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return slices.Concat(blocks...), nil
}

func (s *Store) openDirectory(ctx context.Context, row *indexpb.Directory) (*openDirectory, error) {
	if d, ok := s.readers.GetIfPresent(row.GetObject()); ok {
		return d, nil
	}
	const perStream, base = 32, 256 // bytes of an index
	d := &openDirectory{}
	var err error
	if size := int64(row.GetSize()); size <= wholeBytes {
		var o objectstore.Object
		_, err = s.again(ctx, func() (err error) {
			o, err = limited(ctx, s.cfg.CallTimeout, func(ctx context.Context) (objectstore.Object, error) {
				return s.objects.Get(ctx, row.GetObject())
			})
			return err
		})
		if err == nil {
			d.Reader, err = directory.InMemory(o.Body)
			d.weight = uint32(base + len(o.Body))
		}
	} else if d.Reader, err = directory.Open(size, s.blockReader(row.GetObject())); err == nil {
		d.weight = uint32(base + d.Len()*perStream)
	}
	if err != nil {
		return nil, err
	}
	if d.Chain.String() != row.GetChainId() || uint64(d.From) != row.GetFrom() || uint64(d.To) != row.GetTo() {
		return nil, fmt.Errorf("%w: it is of [%d, %d) of chain %s", directory.ErrCorrupt, d.From, d.To, d.Chain)
	}
	s.readers.Set(row.GetObject(), d)
	return d, nil
}

// blockReader reads parts of a directory. It outlives the call that opened the
// directory, so its calls end by their own time.
func (s *Store) blockReader(object string) func(offset, length int64) ([]byte, error) {
	return func(offset, length int64) ([]byte, error) {
		var o objectstore.Object
		_, err := s.again(context.Background(), func() (err error) {
			o, err = limited(context.Background(), s.cfg.CallTimeout, func(ctx context.Context) (objectstore.Object, error) {
				return s.objects.GetRange(ctx, object, objectstore.Range{Offset: offset, Length: length})
			})
			return err
		})
		return o.Body, err
	}
}

// vanished names a directory that is gone.
func vanished(err error) error {
	if errors.Is(err, objectstore.ErrNotFound) {
		return fmt.Errorf("%w: %w", ErrVanished, err)
	}
	return err
}
