package chain

import (
	"context"
	"errors"
	"fmt"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// Seal ends a chain and returns its cut. Anyone may call it, any number at
// once, beside a living writer; all get the same cut. Steps:
//
//  1. from absorbed_to upwards, put a SEAL into each slot unless something is
//     there: a bundle is committed, go on; a SEAL, own or another's, is the
//     candidate cut. A crash leaves a SEAL that the next sealer finds.
//  2. record the cut by compare-and-set. After a lost one, read again: SEALED
//     has the cut; OPEN means walk again from its absorbed_to, because an old
//     candidate proves nothing.
func Seal(ctx context.Context, objects objectstore.Store, index Index, c stream.ChainID, sealer stream.LifeID) (stream.Slot, error) {
	for {
		r, version, err := index.GetChain(ctx, c.String())
		if err != nil {
			return 0, fmt.Errorf("seal chain %s: %w", c, err)
		}
		if r.GetState() != indexpb.ChainState_CHAIN_STATE_OPEN {
			return stream.Slot(r.GetCut()), nil
		}
		cut, err := candidate(ctx, objects, c, stream.Slot(r.GetAbsorbedTo()), sealer)
		if err != nil {
			return 0, fmt.Errorf("seal chain %s: %w", c, err)
		}
		r.State, r.Cut = indexpb.ChainState_CHAIN_STATE_SEALED, uint64(cut)
		_, err = index.PutChain(ctx, r, version)
		if err == nil {
			return cut, nil
		}
		if !catalog.IsConflict(err) {
			return 0, fmt.Errorf("seal chain %s: record cut %d: %w", c, cut, err)
		}
	}
}

// candidate walks up to the first slot that holds a SEAL, putting one into the
// first that is empty.
func candidate(ctx context.Context, objects objectstore.Store, c stream.ChainID, from stream.Slot, sealer stream.LifeID) (stream.Slot, error) {
	attempt := stream.NewAttemptID()
	for slot := from; ; {
		body := bundle.EncodeSeal(bundle.Seal{Chain: c, Slot: slot, Sealer: sealer, Attempt: attempt})
		_, err := objects.PutIfAbsent(ctx, SlotKey(c, slot), body)
		if err == nil {
			return slot, nil
		}
		if !errors.Is(err, objectstore.ErrExists) {
			// Undecided, or refused; the next call of Seal goes on from here.
			return 0, fmt.Errorf("slot %d: %w", slot, err)
		}
		what, _, err := identify(ctx, objects, c, slot)
		switch {
		case err != nil:
			return 0, err
		case what == holdsSeal:
			return slot, nil
		case what == holdsBundle:
			slot++
		}
		// empty: reclaimed between the two calls, so absorbed_to has moved; the
		// walk from an old one would seal a slot that was committed.
		if what == empty {
			return 0, fmt.Errorf("slot %d was reclaimed meanwhile: %w", slot, objectstore.ErrUnavailable)
		}
	}
}
