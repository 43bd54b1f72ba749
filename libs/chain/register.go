package chain

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// SlotKey is the object key of a slot.
func SlotKey(c stream.ChainID, s stream.Slot) string {
	return fmt.Sprintf("chain/%s/%016x", c, uint64(s))
}

// DirectoryKey is the object key of one attempt at a directory.
func DirectoryKey(c stream.ChainID, from stream.Slot, a stream.AttemptID) string {
	return fmt.Sprintf("directory/%s/%016x-%s", c, uint64(from), a)
}

// ErrForeign means that a slot holds what nobody should have put there: the
// chain is damaged, and work on it stops.
var ErrForeign = errors.New("slot holds foreign bytes")

// Index is what this package needs of the index.
type Index interface {
	GetChain(ctx context.Context, id string) (*indexpb.Chain, int64, error)
	PutChain(ctx context.Context, r *indexpb.Chain, expected int64) (int64, error)
	PutDirectory(ctx context.Context, d *indexpb.Directory) error
	GetDirectory(ctx context.Context, chain string, from uint64) (*indexpb.Directory, error)
	Directories(ctx context.Context, chain string, from, to uint64) ([]*indexpb.Directory, error)
	ArmDue(ctx context.Context, d *indexpb.Due) (catalog.Marker, error)
	DropDue(ctx context.Context, m catalog.Marker) error
}

var _ Index = (*catalog.Client)(nil)

// content is what a slot holds.
type content uint8

const (
	empty content = iota
	holdsSeal
	holdsBundle
)

// identify reads the start of a slot.
func identify(ctx context.Context, objects objectstore.Store, c stream.ChainID, s stream.Slot) (content, bundle.Ident, error) {
	o, err := objects.GetRange(ctx, SlotKey(c, s), objectstore.Range{Length: bundle.IdentBytes})
	if errors.Is(err, objectstore.ErrNotFound) {
		return empty, bundle.Ident{}, nil
	}
	if err != nil {
		return empty, bundle.Ident{}, fmt.Errorf("read slot %d of chain %s: %w", s, c, err)
	}
	id, err := bundle.Identify(o.Body)
	if err != nil {
		return empty, bundle.Ident{}, fmt.Errorf("slot %d of chain %s: %w: %w", s, c, ErrForeign, err)
	}
	if id.Chain != c || id.Slot != s {
		return empty, bundle.Ident{}, fmt.Errorf("slot %d of chain %s holds slot %d of chain %s: %w", s, c, id.Slot, id.Chain, ErrForeign)
	}
	if id.IsSeal {
		return holdsSeal, id, nil
	}
	return holdsBundle, id, nil
}

// backoff is the jittered pause before try n, from 0, of an undecided call.
func backoff(n int) time.Duration {
	d := min(10*time.Millisecond<<min(n, 8), time.Second)
	return d/2 + rand.N(d)
}

// sleep pauses, or returns early with the context's error.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
