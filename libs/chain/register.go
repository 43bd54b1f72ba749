package chain

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/stream"
)

// ErrForeign means that a slot holds what nobody should have put there, or
// damaged bytes: work on the chain stops, and somebody has to look.
var ErrForeign = errors.New("slot holds foreign bytes")

// Register is one zone's registers of all slots. A register is written once: of
// any number of Puts to one slot at most one succeeds, unless the slot is
// reclaimed, which happens only below settled_to.
type Register interface {
	// Put writes a slot unless something is there: objectstore.ErrExists, which
	// may be the caller's own bytes. After ErrUnavailable and ErrThrottled the
	// effect is unknown and the same bytes MUST be put again.
	Put(ctx context.Context, c stream.ChainID, s stream.Slot, body []byte) error
	// Read reads part of what a slot holds; objectstore.ErrNotFound if nothing.
	Read(ctx context.Context, c stream.ChainID, s stream.Slot, r objectstore.Range) (objectstore.Object, error)
}

// bucket is the registers of one bucket.
type bucket struct {
	objects objectstore.Store
	timeout time.Duration // of one call
}

var _ Register = bucket{}

// NewRegister returns the registers kept in an object store. A call that the
// store does not answer within timeout ends with ErrUnavailable.
func NewRegister(objects objectstore.Store, timeout time.Duration) Register {
	return bucket{objects: objects, timeout: timeout}
}

func (b bucket) Put(ctx context.Context, c stream.ChainID, s stream.Slot, body []byte) error {
	_, err := limited(ctx, b.timeout, func(ctx context.Context) (objectstore.ETag, error) {
		return b.objects.PutIfAbsent(ctx, SlotKey(c, s), body)
	})
	return err
}

func (b bucket) Read(ctx context.Context, c stream.ChainID, s stream.Slot, r objectstore.Range) (objectstore.Object, error) {
	o, err := limited(ctx, b.timeout, func(ctx context.Context) (objectstore.Object, error) {
		return b.objects.GetRange(ctx, SlotKey(c, s), r)
	})
	if errors.Is(err, objectstore.ErrRange) {
		// Every range asked for here lies in every bundle and SEAL.
		return o, fmt.Errorf("%w: the object is cut short: %w", ErrForeign, err)
	}
	return o, err
}

// content is what a slot holds.
type content uint8

const (
	holdsNothing content = iota
	holdsSeal
	holdsBundle
)

// identify reads the start of a slot.
func identify(ctx context.Context, reg Register, c stream.ChainID, s stream.Slot) (content, error) {
	o, err := reg.Read(ctx, c, s, objectstore.Range{Length: bundle.IdentBytes})
	if errors.Is(err, objectstore.ErrNotFound) {
		return holdsNothing, nil
	}
	if err != nil {
		return holdsNothing, fmt.Errorf("read slot %d: %w", s, err)
	}
	id, err := bundle.Identify(o.Body)
	if err != nil {
		return holdsNothing, fmt.Errorf("slot %d: %w: %w", s, ErrForeign, err)
	}
	if id.Chain != c || id.Slot != s {
		return holdsNothing, fmt.Errorf("slot %d holds slot %d of chain %s: %w", s, id.Slot, id.Chain, ErrForeign)
	}
	if id.IsSeal {
		return holdsSeal, nil
	}
	return holdsBundle, nil
}

// readFooter reads the footer of a slot; it is valid if the slot holds a bundle.
func readFooter(ctx context.Context, reg Register, c stream.ChainID, s stream.Slot) (bundle.Footer, content, error) {
	fail := func(err error) (bundle.Footer, content, error) {
		return bundle.Footer{}, holdsNothing, fmt.Errorf("footer of slot %d: %w", s, err)
	}
	tail, err := reg.Read(ctx, c, s, objectstore.Range{Offset: -bundle.TailBytes})
	if errors.Is(err, objectstore.ErrNotFound) {
		return bundle.Footer{}, holdsNothing, nil
	}
	if err != nil {
		return fail(err)
	}
	start := tail.Body
	if int64(len(tail.Body)) < tail.Size {
		o, err := reg.Read(ctx, c, s, objectstore.Range{Length: bundle.IdentBytes})
		if err != nil {
			return fail(err)
		}
		start = o.Body
	}
	f, need, err := bundle.ParseTail(start, tail.Body, tail.Size)
	if err == nil && need > 0 {
		o, rerr := reg.Read(ctx, c, s, objectstore.Range{Offset: -need})
		if rerr != nil {
			return fail(rerr)
		}
		f, _, err = bundle.ParseTail(start, o.Body, o.Size)
	}
	if err != nil {
		return fail(err)
	}
	if f.Chain != c || f.Slot != s {
		return fail(fmt.Errorf("it is of slot %d of chain %s: %w", f.Slot, f.Chain, ErrForeign))
	}
	if f.IsSeal {
		return f, holdsSeal, nil
	}
	return f, holdsBundle, nil
}
