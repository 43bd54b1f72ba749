package chain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// errMoved means that the record this work started from is an old one.
var errMoved = errors.New("the chain's record has moved on")

// Seal ends a chain and returns its cut: one more than its last committed slot.
// Anyone may call it, any number at once, beside a living writer and absorbers;
// all get the same cut. After an error it may be called again, by anyone. Steps:
//
//  1. read the record. SEALED: its cut is the answer.
//  2. walk from absorbed_to upwards: a bundle is committed, go on; into the first
//     slot that is empty put a SEAL, unless a bundle further above than a writer
//     can be ahead proves that the slot was written and lost; a SEAL, own or
//     another's, is the candidate. A crash leaves a SEAL, which the next sealer
//     finds.
//  3. record the candidate by compare-and-set. After a lost one, begin again: an
//     old candidate proves nothing. A crash leaves either state.
func (s *Store) Seal(ctx context.Context, c stream.ChainID, sealer stream.LifeID) (stream.Slot, error) {
	fail := func(err error) (stream.Slot, error) { return 0, fmt.Errorf("seal chain %s: %w", c, err) }
	for n := 0; ; n++ {
		r, version, err := s.index.GetChain(ctx, c.String())
		if err != nil {
			return fail(err)
		}
		if r.GetState() != indexpb.ChainState_CHAIN_STATE_OPEN {
			return stream.Slot(r.GetCut()), nil
		}
		cut, err := s.candidate(ctx, c, stream.Slot(r.GetAbsorbedTo()), lanesOf(r), sealer)
		switch {
		case err == nil:
			err = s.record(ctx, r, version, cut)
		case errors.Is(err, ErrBroken):
			// A slot that is gone was reclaimed, and the record read is old; or it was
			// lost. A change of the record tells: it fails if it is old.
			if _, cerr := s.index.PutChain(ctx, r, version); cerr != nil {
				err = cerr
			}
		}
		if err == nil {
			return cut, nil
		}
		if !errors.Is(err, errMoved) && !catalog.IsConflict(err) {
			return fail(err)
		}
		if err := sleep(ctx, backoff(n, time.Second)); err != nil {
			return fail(err)
		}
	}
}

// record is step 3.
func (s *Store) record(ctx context.Context, r *indexpb.Chain, version int64, cut stream.Slot) error {
	claimed := r.GetAbsorbingTo()
	r.State, r.Cut, r.AbsorbingTo = indexpb.ChainState_CHAIN_STATE_SEALED, uint64(cut), min(claimed, uint64(cut))
	if _, err := s.index.PutChain(ctx, r, version); err != nil {
		return err
	}
	if claimed > uint64(cut) {
		// Only committed slots are claimed, so a claim beyond the cut means that
		// slots were lost. The part below the cut can still be absorbed.
		s.cfg.Log.ErrorContext(ctx, "slots that were claimed as committed are not there; the claim is clipped at the cut",
			"chain", r.GetChainId(), "absorbing_to", claimed, "cut", uint64(cut))
	}
	return nil
}

// walkAtOnce is how many slots a sealer looks at in parallel.
const walkAtOnce = 16

// candidate walks up to the first slot that holds a SEAL, putting one into the
// first that is empty.
func (s *Store) candidate(ctx context.Context, c stream.ChainID, from, lanes stream.Slot, sealer stream.LifeID) (stream.Slot, error) {
	attempt := stream.NewAttemptID()
	for slot := from; ; {
		n, err := s.bundles(ctx, c, slot)
		if err != nil {
			return 0, err
		}
		if slot += stream.Slot(n); n == walkAtOnce {
			continue
		}
		switch filled, err := s.lost(ctx, c, slot, lanes); {
		case err != nil:
			return 0, err
		case filled:
			continue // its writer is at work
		}
		body := bundle.EncodeSeal(bundle.Seal{Chain: c, Slot: slot, Sealer: sealer, Attempt: attempt})
		_, err = s.again(ctx, func() error { return s.reg.Put(ctx, c, slot, body) })
		if err == nil {
			return slot, nil
		}
		if !errors.Is(err, objectstore.ErrExists) {
			return 0, fmt.Errorf("put SEAL into slot %d: %w", slot, err)
		}
		what, err := s.identify(ctx, c, slot)
		switch {
		case err != nil:
			return 0, err
		case what == holdsSeal:
			return slot, nil
		case what == holdsNothing:
			// Reclaimed between the two calls, so absorbed_to lies above. The walk
			// from an old one would put SEALs into slots that were committed.
			return 0, errMoved
		}
		slot++
	}
}

// lanesOf returns how far a chain's writer can be ahead of an empty slot: it
// launches a flight when the one so many slots below is committed.
func lanesOf(r *indexpb.Chain) stream.Slot {
	if n := r.GetLanes(); n > 0 {
		return stream.Slot(n)
	}
	return MaxLanes
}

// lost returns ErrBroken if an empty slot cannot be the end of its chain: a
// committed flight was there, and is gone, which it may be below absorbed_to. A SEAL in its place would make what
// lies above nobody's, and its numbers would be given again (I1, I2). filled: a
// bundle is in the slot by now.
func (s *Store) lost(ctx context.Context, c stream.ChainID, gap, lanes stream.Slot) (filled bool, err error) {
	above, errs := s.look(ctx, c, gap+lanes)
	if err := errors.Join(errs[:]...); err != nil {
		return false, err
	}
	i := slices.Index(above[:], holdsBundle)
	if i < 0 {
		return false, nil
	}
	// A living writer may have filled it meanwhile. Only what is still empty, after
	// the one above was seen, was lost.
	what, err := s.identify(ctx, c, gap)
	if err != nil || what != holdsNothing {
		return what == holdsBundle, err // a SEAL is met by the PUT
	}
	return false, fmt.Errorf("slot %d is not there and slot %d is, which cannot be while it was never written: %w", gap, gap+lanes+stream.Slot(i), ErrBroken)
}

// bundles returns how many slots from one on hold bundles, without a gap, at
// most walkAtOnce. What lies above a gap is nobody's business.
func (s *Store) bundles(ctx context.Context, c stream.ChainID, from stream.Slot) (int, error) {
	found, errs := s.look(ctx, c, from)
	for i, what := range found {
		if errs[i] != nil || what != holdsBundle {
			return i, errs[i]
		}
	}
	return walkAtOnce, nil
}

// look returns what the slots from one on hold.
func (s *Store) look(ctx context.Context, c stream.ChainID, from stream.Slot) (found [walkAtOnce]content, errs [walkAtOnce]error) {
	var group sync.WaitGroup
	for i := range found {
		group.Go(func() { found[i], errs[i] = s.identify(ctx, c, from+stream.Slot(i)) })
	}
	group.Wait()
	return found, errs
}

func (s *Store) identify(ctx context.Context, c stream.ChainID, slot stream.Slot) (what content, err error) {
	_, err = s.again(ctx, func() (err error) {
		if what, err = identify(ctx, s.reg, c, slot); isDamage(err) {
			_, what, err = s.rebuild(ctx, c, slot, err)
		}
		return err
	})
	return what, err
}
