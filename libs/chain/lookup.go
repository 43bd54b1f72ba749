package chain

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/maypok86/otter/v2"

	"github.com/nova-stream/nova/libs/directory"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/stream"
)

// Lookup finds entries of streams in the absorbed part of chains. It keeps the
// indexes of the directories it used last. It is safe for concurrent use.
type Lookup struct {
	objects objectstore.Store
	index   Index
	readers *otter.Cache[string, *directory.Reader]
}

// indexBytes limits the directory indexes kept, in bytes.
const indexBytes = 64 << 20

// NewLookup returns a Lookup.
func NewLookup(objects objectstore.Store, index Index) *Lookup {
	const perStream, base = 32, 256 // bytes of a reader
	return &Lookup{objects: objects, index: index, readers: otter.Must(&otter.Options[string, *directory.Reader]{
		MaximumWeight: indexBytes,
		Weigher:       func(_ string, r *directory.Reader) uint32 { return uint32(base + r.Len()*perStream) },
	})}
}

// Close ends the cache's own work.
func (l *Lookup) Close() { l.readers.StopAllGoroutines() }

// Entries returns the entries of the streams, all of one shard, in slots
// [from, to) of a chain, stream by stream in chain order. A directory that
// vanishes meanwhile is ErrUnavailable: its entries are in heads now, and the
// caller starts again.
func (l *Lookup) Entries(ctx context.Context, c stream.ChainID, shard stream.Shard, ids []stream.ID, from, to stream.Slot) ([]directory.Located, error) {
	dirs, err := l.index.Directories(ctx, c.String(), 0, uint64(to))
	if err != nil {
		return nil, fmt.Errorf("look up chain %s: %w", c, err)
	}
	var out []directory.Located
	covered := stream.Slot(0)
	for _, d := range dirs {
		// Rows below the first may be gone, settled; between rows nothing may be.
		if covered != 0 && stream.Slot(d.GetFrom()) != covered {
			return nil, fmt.Errorf("look up chain %s: no directory covers slot %d: %w", c, covered, objectstore.ErrUnavailable)
		}
		covered = stream.Slot(d.GetTo())
		if covered <= from || !slices.Contains(d.GetShards(), uint32(shard)) {
			continue
		}
		r, err := l.reader(ctx, d.GetObject(), int64(d.GetSize()))
		if err != nil {
			return nil, fmt.Errorf("look up chain %s: %w", c, err)
		}
		for _, id := range ids {
			found, err := r.Stream(id)
			if err != nil {
				return nil, fmt.Errorf("look up stream %s in %s: %w", id, d.GetObject(), vanished(err))
			}
			for _, e := range found {
				if e.At.Slot >= from && e.At.Slot < to {
					out = append(out, e)
				}
			}
		}
	}
	if covered < to {
		return nil, fmt.Errorf("look up chain %s: directories end at slot %d, wanted %d: %w", c, covered, to, objectstore.ErrUnavailable)
	}
	return out, nil
}

func (l *Lookup) reader(ctx context.Context, object string, size int64) (*directory.Reader, error) {
	if r, ok := l.readers.GetIfPresent(object); ok {
		return r, nil
	}
	// A reader outlives the call that opened it.
	r, err := directory.Open(size, func(offset, length int64) ([]byte, error) {
		o, err := l.objects.GetRange(context.WithoutCancel(ctx), object, objectstore.Range{Offset: offset, Length: length})
		return o.Body, err
	})
	if err != nil {
		return nil, fmt.Errorf("open directory %s: %w", object, vanished(err))
	}
	l.readers.Set(object, r)
	return r, nil
}

// vanished makes a directory that is gone a passing fault.
func vanished(err error) error {
	if errors.Is(err, objectstore.ErrNotFound) {
		return fmt.Errorf("the directory is gone: %w", objectstore.ErrUnavailable)
	}
	return err
}
