package chain_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/chain"
	metafault "github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

func TestExpressIsRefused(t *testing.T) {
	_, err := chain.New(chain.Config{Profile: stream.ProfileExpress}, newWorld(t).objects, newWorld(t).process().index)
	if reason.Code(err) != codes.Unimplemented {
		t.Errorf("%v, want UNIMPLEMENTED", err)
	}
}

func TestSealersAgree(t *testing.T) {
	for _, slots := range []int{0, 1, 15, 16, 17, 40} {
		w := newWorld(t)
		w.store(0, slots)
		var wg sync.WaitGroup
		cuts := make([]stream.Slot, 4)
		for i := range cuts {
			p := w.process()
			wg.Go(func() {
				var err error
				if cuts[i], err = p.Seal(p.ctx, w.chain, stream.NewLifeID()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for _, cut := range cuts {
			if cut != stream.Slot(slots) {
				t.Errorf("%d slots: cuts %v", slots, cuts)
			}
		}
		if got := w.keys("chain/"); len(got) != slots+1 {
			t.Errorf("%d slots and a SEAL are %d objects", slots, len(got))
		}
		w.verify()
	}
}

func TestSealStartsAtAbsorbedTo(t *testing.T) {
	w := newWorld(t)
	w.store(0, 5)
	p := w.process()
	if to, err := p.Absorb(p.ctx, w.chain); to != 5 || err != nil {
		t.Fatal(to, err)
	}
	w.delete(0, 1, 2, 3, 4)
	if cut, err := p.Seal(p.ctx, w.chain, stream.NewLifeID()); cut != 5 || err != nil {
		t.Errorf("cut %d, %v, want 5", cut, err)
	}
	if r, err := p.Seal(p.ctx, w.chain, stream.NewLifeID()); r != 5 || err != nil {
		t.Errorf("again: %d, %v", r, err)
	}
}

// After a lost compare-and-set the old candidate proves nothing: here it is a
// SEAL in a slot that was written, absorbed and reclaimed after the sealer found
// it empty.
func TestSealerWalksAgainAfterALostCAS(t *testing.T) {
	w := newWorld(t)
	w.store(0, 3)
	p, other := w.process(), w.process()
	old := chain.SlotKey(w.chain, 3)
	seal := p.objects.Script(fault.Rule{Op: fault.PutIfAbsent, Prefix: old, Nth: 1, Hook: func(ctx context.Context, _ fault.Op, _ string) error {
		w.store(3, 1)
		_, err := other.Absorb(ctx, w.chain)
		w.delete(0, 1, 2, 3)
		return err
	}})
	cut, err := p.Seal(p.ctx, w.chain, stream.NewLifeID())
	if err != nil || cut != 4 {
		t.Fatalf("cut %d, %v, want 4: slots 0..3 were committed", cut, err)
	}
	if got, want := w.keys("chain/"), []string{old, chain.SlotKey(w.chain, 4)}; seal.Acted() != 1 || !slices.Equal(got, want) {
		t.Errorf("objects %v, want the SEALs %v", got, want)
	}
	if r := w.record(); r.GetCut() != 4 || r.GetAbsorbedTo() != 4 {
		t.Errorf("record: %v", r)
	}
}

func TestSealWithStaleReads(t *testing.T) {
	w := newWorld(t)
	w.store(0, 3)
	p := w.process()
	if _, err := p.Absorb(p.ctx, w.chain); err != nil {
		t.Fatal(err)
	}
	w.store(3, 2)
	p.rows.Script(metafault.Rule{Op: metafault.Get, Prefix: "chain/", Times: 3, Nth: 1, Do: metafault.Stale, Back: 2})
	if cut, err := p.Seal(p.ctx, w.chain, stream.NewLifeID()); cut != 5 || err != nil {
		t.Errorf("cut %d, %v, want 5", cut, err)
	}
	w.verify()
}

func TestSealSurvivesADeathAtEveryCall(t *testing.T) {
	everyKill(t, func(w *world, p *process) {
		w.store(0, 3)
		_, _ = p.Seal(p.ctx, w.chain, stream.NewLifeID())
	}, func(t *testing.T, w *world) {
		var wg sync.WaitGroup
		for range 2 {
			p := w.process()
			wg.Go(func() {
				if cut, err := p.Seal(p.ctx, w.chain, stream.NewLifeID()); cut != 3 || err != nil {
					t.Errorf("cut %d, %v, want 3", cut, err)
				}
			})
		}
		wg.Wait()
		w.verify()
	})
}

// Whoever meets a SEAL finishes the seal.
func TestAbsorberFinishesASeal(t *testing.T) {
	w := newWorld(t)
	w.store(0, 2)
	w.putSeal(2)
	p := w.process()
	if to, err := p.Absorb(p.ctx, w.chain); to != 2 || err != nil {
		t.Fatalf("absorbed to %d, %v", to, err)
	}
	if to, err := p.Absorb(p.ctx, w.chain); to != 2 || err != nil {
		t.Fatalf("absorbed to %d, %v", to, err)
	}
	if r := w.record(); r.GetState() != indexpb.ChainState_CHAIN_STATE_SEALED || r.GetCut() != 2 {
		t.Errorf("record: %v", r)
	}
}

// A slot that is gone, below more slots than a writer can be ahead, was written
// and acknowledged: the chain does not end there (I1, I2). One that was never
// written is where it ends, whatever landed above it.
func TestASlotThatIsGoneIsNoEnd(t *testing.T) {
	for _, c := range []struct {
		slots, gone, lanes int
		lost               bool
	}{
		{6, 2, 4, false}, // 5 may be in the air with 2
		{7, 2, 4, true},
		{30, 10, 4, true},
		{30, 29, 4, false}, // nothing tells
		{7, 2, 0, false},   // a writer that did not tell
		{70, 2, 0, true},
	} {
		w := newWorld(t)
		for i := range c.slots {
			w.put(stream.Slot(i), w.entry(0, 1, stream.EntryNo(i)))
		}
		p := w.process()
		r, version, err := p.index.GetChain(t.Context(), w.chain.String())
		if err != nil {
			t.Fatal(err)
		}
		r.Lanes = uint32(c.lanes)
		if _, err := p.index.PutChain(t.Context(), r, version); err != nil {
			t.Fatal(err)
		}
		w.delete(stream.Slot(c.gone))
		cut, err := p.Seal(t.Context(), w.chain, stream.NewLifeID())
		if c.lost && !errors.Is(err, chain.ErrBroken) || !c.lost && (err != nil || cut != stream.Slot(c.gone)) {
			t.Errorf("%d slots without %d, %d lanes: cut %d, %v", c.slots, c.gone, c.lanes, cut, err)
		}
		if n := len(w.keys("chain/")); c.lost && n != c.slots-1 {
			t.Errorf("%d slots without %d: %d now", c.slots, c.gone, n)
		}
	}
}

// A SEAL is the end, whatever lies above it.
func TestASealIsTheEndBelowAnything(t *testing.T) {
	w := newWorld(t)
	w.store(0, 3)
	w.putSeal(3)
	w.put(3+chain.MaxLanes, w.entry(0, 1, 3))
	if cut, err := w.process().Seal(t.Context(), w.chain, stream.NewLifeID()); err != nil || cut != 3 {
		t.Errorf("cut %d, %v", cut, err)
	}
}
