package chain_test

import (
	"context"
	"testing"

	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/stream"
)

// A candidate that was found from an old record is never recorded: here it is a
// SEAL in slot 0, which was absorbed and reclaimed before the sealer read it (I2).
func TestOldCandidateIsNeverRecorded(t *testing.T) {
	w := newWorld(t)
	w.store(0, 3)
	p, other := w.process(), w.process()
	p.objects.Script(fault.Rule{Op: fault.Read, Prefix: chain.SlotKey(w.chain, 0), Nth: 1, Hook: func(ctx context.Context, _ fault.Op, _ string) error {
		_, err := other.Absorb(ctx, w.chain)
		w.delete(0, 1, 2)
		return err
	}})
	if cut, err := p.Seal(p.ctx, w.chain, stream.NewLifeID()); err != nil || cut != 3 {
		t.Fatalf("cut %d, %v, want 3: slots 0..2 were committed", cut, err)
	}
	if r := w.record(); r.GetCut() != 3 {
		t.Errorf("record: %v", r)
	}
}
