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

// A PUT without an answer may have landed, so its flight goes nowhere else (I2).
func TestFlightKeepsItsSlot(t *testing.T) {
	for name, do := range map[string]fault.Action{"409": fault.Conflict, "503": fault.Throttle, "silence": fault.FailBefore, "a lost reply": fault.LoseReply} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			p := w.process()
			p.objects.Script(fault.Rule{Op: fault.PutIfAbsent, Prefix: "chain/", Nth: 1, Times: 2, Do: do})
			wantOutcomes(t, w.fly(w.appender(p, chain.AppenderConfig{Lanes: 1, HedgeAfter: -1}), 0, 1), nil)
			if got := w.keys("chain/"); len(got) != 1 || got[0] != chain.SlotKey(w.chain, 0) {
				t.Errorf("objects %v, want slot 0 alone", got)
			}
		})
	}
}
