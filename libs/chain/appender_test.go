package chain_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

func (w *world) appender(p *process, cfg chain.AppenderConfig) *chain.Appender {
	cfg.Chain, cfg.Writer = w.chain, stream.NewLifeID()
	a := p.NewAppender(cfg)
	w.t.Cleanup(a.Close)
	return a
}

func wantOutcomes(t *testing.T, got []outcome, want ...error) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d outcomes, want %d: %v", len(got), len(want), got)
	}
	for i, o := range got {
		if o.slot != stream.Slot(i) || !errors.Is(o.err, want[i]) {
			t.Errorf("outcome %d: slot %d, %v; want %v", i, o.slot, o.err, want[i])
		}
	}
}

// Case C1: the PUT landed, its reply was lost, the retry meets 412.
func TestLostReplyIsRecognisedAsOwn(t *testing.T) {
	w := newWorld(t)
	p := w.process()
	p.objects.Script(fault.Rule{Op: fault.PutIfAbsent, Prefix: "chain/", Nth: 2, Do: fault.LoseReply})
	a := w.appender(p, chain.AppenderConfig{})
	wantOutcomes(t, w.fly(a, 0, 3), nil, nil, nil)
	if got := w.keys("chain/"); len(got) != 3 {
		t.Errorf("slots: %v, want three", got)
	}
	if r := w.record(); r.GetState() != indexpb.ChainState_CHAIN_STATE_OPEN {
		t.Errorf("the chain was ended: %v", r)
	}
}

// Case C2: 409 ConditionalRequestConflict settles nothing.
func TestConflictIsTriedAgainInTheSameSlot(t *testing.T) {
	for name, do := range map[string]fault.Action{"409": fault.Conflict, "503": fault.Throttle, "silence": fault.FailBefore} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			p := w.process()
			p.objects.Script(fault.Rule{Op: fault.PutIfAbsent, Prefix: "chain/", Nth: 1, Times: 3, Do: do})
			wantOutcomes(t, w.fly(w.appender(p, chain.AppenderConfig{}), 0, 2), nil, nil)
			if got, want := w.keys("chain/"), []string{chain.SlotKey(w.chain, 0), chain.SlotKey(w.chain, 1)}; !slices.Equal(got, want) {
				t.Errorf("slots: %v, want %v", got, want)
			}
			// And each flight is in its own: a slot holds the entry launched into it.
			if _, err := p.Seal(p.ctx, w.chain, stream.NewLifeID()); err != nil {
				t.Fatal(err)
			}
			for i, l := range w.verify()[w.streams[0]] {
				if l.At.Slot != stream.Slot(i) || l.EntryNo != stream.EntryNo(i) {
					t.Errorf("entry %d is in slot %d", l.EntryNo, l.At.Slot)
				}
			}
		})
	}
}

func TestCommitsAreReleasedInSlotOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.process()
		p.objects.Script(fault.Rule{Op: fault.PutIfAbsent, Prefix: chain.SlotKey(w.chain, 0), Do: fault.Delay, Delay: time.Second})
		a := w.appender(p, chain.AppenderConfig{HedgeAfter: -1})
		start := time.Now()
		wantOutcomes(t, w.fly(a, 0, 4), nil, nil, nil, nil)
		if took := time.Since(start); took < time.Second || took > 1500*time.Millisecond {
			t.Errorf("four flights took %v: they wait for slot 0, and only for it", took)
		}
		a.Close()
	})
}

func TestSlowPutIsHedged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.process()
		puts := p.objects.Script(fault.Rule{Op: fault.PutIfAbsent, Prefix: "chain/", Nth: 1, Do: fault.HangAfter})
		start := time.Now()
		a := w.appender(p, chain.AppenderConfig{HedgeAfter: 100 * time.Millisecond})
		wantOutcomes(t, w.fly(a, 0, 1), nil)
		if took := time.Since(start); took > 200*time.Millisecond {
			t.Errorf("took %v, want the hedge after 100 ms", took)
		}
		if puts.Matched() != 2 {
			t.Errorf("%d PUTs, want two of the same bytes", puts.Matched())
		}
		a.Close()
	})
}

// Case C19: the store takes connections and never answers. The writer ends its
// chain, and once the store is back learns that a hung PUT had landed.
func TestSilentStoreEndsTheChainTruthfully(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.process()
		p.objects.Script(fault.Rule{Op: fault.PutIfAbsent, Prefix: chain.SlotKey(w.chain, 0), Do: fault.HangAfter})
		p.objects.Script(fault.Rule{Op: fault.Any, Do: fault.Hang})
		a := w.appender(p, chain.AppenderConfig{Lanes: 2})
		time.AfterFunc(5*time.Minute, p.objects.Clear)
		start := time.Now()
		wantOutcomes(t, w.fly(a, 0, 2), nil, chain.ErrCut)
		if took := time.Since(start); took < 5*time.Minute || took > 6*time.Minute {
			t.Errorf("decided after %v", took)
		}
		<-a.Done()
		if cut, err := a.Cut(); cut != 1 || err != nil {
			t.Errorf("cut %d, %v, want 1", cut, err)
		}
		a.Close()
	})
}

// afterLaunch has the PUT of a slot wait until that of the next one is under way:
// what becomes of it does not keep the next flight from being launched.
func (w *world) afterLaunch(p *process, slot stream.Slot, do fault.Action) {
	launched := make(chan struct{})
	p.objects.Script(fault.Rule{Op: fault.PutIfAbsent, Prefix: chain.SlotKey(w.chain, slot), Nth: 1, Do: do, Hook: func(ctx context.Context, _ fault.Op, _ string) error {
		select {
		case <-launched:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}})
	p.objects.Script(fault.Rule{Op: fault.PutIfAbsent, Prefix: chain.SlotKey(w.chain, slot+1), Nth: 1, Hook: func(context.Context, fault.Op, string) error {
		close(launched)
		return nil
	}})
}

func TestPermanentRefusalEndsTheChain(t *testing.T) {
	w := newWorld(t)
	p := w.process()
	w.afterLaunch(p, 1, fault.Permanent)
	a := w.appender(p, chain.AppenderConfig{HedgeAfter: -1})
	wantOutcomes(t, w.fly(a, 0, 3), nil, chain.ErrCut, chain.ErrCut)
	if err := a.Lane(t.Context()); !errors.Is(err, chain.ErrStopped) {
		t.Errorf("a lane after the end: %v", err)
	}
	if got := w.verify()[w.streams[0]]; len(got) != 1 {
		t.Errorf("%d entries, want the one of slot 0", len(got))
	}
}

func TestForeignBytesStopTheWriter(t *testing.T) {
	w := newWorld(t)
	w.put(1, w.entry(1, 1, 0))
	p := w.process()
	w.afterLaunch(p, 1, fault.Pass)
	a := w.appender(p, chain.AppenderConfig{HedgeAfter: -1})
	// Slot 2 may be in the chain, but nothing of it is acknowledged any more.
	wantOutcomes(t, w.fly(a, 0, 3), nil, chain.ErrStopped, chain.ErrStopped)
}

// Case C3: a writer freezes with PUTs on the wire; meanwhile its chain is
// sealed, absorbed and reclaimed. Then the PUTs arrive, and it goes on.
func TestFrozenWriterAcknowledgesNothing(t *testing.T) {
	w := newWorld(t)
	p, other := w.process(), w.process()
	frozen := make(chan struct{})
	p.objects.Script(fault.Rule{Op: fault.PutIfAbsent, Prefix: chain.SlotKey(w.chain, 0), Do: fault.Pass})
	others := p.objects.Script(fault.Rule{Op: fault.Any, Prefix: "chain/", Hook: func(ctx context.Context, _ fault.Op, _ string) error {
		select {
		case <-frozen:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}})
	a := w.appender(p, chain.AppenderConfig{HedgeAfter: -1})
	var got []outcome
	done := make(chan struct{})
	go func() {
		defer close(done)
		got = w.fly(a, 0, 3)
	}()
	eventually(t, "slot 0 lands, and the others are under way", func() bool { return len(w.keys("chain/")) == 1 && others.Acted() >= 2 })
	if cut, err := other.Seal(t.Context(), w.chain, stream.NewLifeID()); cut != 1 || err != nil {
		t.Fatalf("cut %d, %v", cut, err)
	}
	w.verify()
	w.delete(0) // reclaimed; the SEAL at the cut stays
	close(frozen)
	<-done
	wantOutcomes(t, got, nil, chain.ErrCut, chain.ErrCut)
	<-a.Done()
	w.verify()
	// What landed above the cut is where the retiring chain deletes once more.
	for _, key := range w.keys("chain/") {
		if key > chain.SlotKey(w.chain, 1+4) {
			t.Errorf("%s lies beyond cut + lanes", key)
		}
	}
}

// The flight of a slot below the cut is the one that was committed there, so
// saying so is the truth, also when its slot was reclaimed and it lands again.
func TestFlightThatLandsAgainBelowTheCutIsCommitted(t *testing.T) {
	w := newWorld(t)
	p, other := w.process(), w.process()
	p.objects.Script(fault.Rule{Op: fault.PutIfAbsent, Prefix: "chain/", Nth: 1, Do: fault.LoseReply})
	p.objects.Script(fault.Rule{Op: fault.PutIfAbsent, Prefix: "chain/", Nth: 2, Hook: func(ctx context.Context, _ fault.Op, _ string) error {
		_, err := other.Seal(ctx, w.chain, stream.NewLifeID())
		w.verify()
		w.delete(0)
		return err
	}})
	a := w.appender(p, chain.AppenderConfig{Lanes: 1, HedgeAfter: -1})
	wantOutcomes(t, w.fly(a, 0, 2), nil, chain.ErrCut)
	if got := w.verify()[w.streams[0]]; len(got) != 1 {
		t.Errorf("%d entries, want 1", len(got))
	}
}

// A SEAL says nothing by itself: a sealer with an old record may have put it
// into a reclaimed slot, and the flight that was there is committed.
func TestSealInAReclaimedSlotIsNoVerdict(t *testing.T) {
	w := newWorld(t)
	p, other := w.process(), w.process()
	p.objects.Script(fault.Rule{Op: fault.PutIfAbsent, Prefix: "chain/", Nth: 1, Do: fault.LoseReply})
	p.objects.Script(fault.Rule{Op: fault.PutIfAbsent, Prefix: "chain/", Nth: 2, Hook: func(ctx context.Context, _ fault.Op, _ string) error {
		_, err := other.Absorb(ctx, w.chain)
		w.delete(0)
		w.putSeal(0)
		return err
	}})
	a := w.appender(p, chain.AppenderConfig{Lanes: 1, HedgeAfter: -1})
	wantOutcomes(t, w.fly(a, 0, 1), nil)
	<-a.Done()
	if cut, err := a.Cut(); cut != 1 || err != nil {
		t.Errorf("cut %d, %v, want 1", cut, err)
	}
}

func TestEndSealsAfterWhatIsInTheAir(t *testing.T) {
	w := newWorld(t)
	p := w.process()
	hold := make(chan struct{})
	p.objects.Script(fault.Rule{Op: fault.PutIfAbsent, Prefix: chain.SlotKey(w.chain, 0), Hook: func(context.Context, fault.Op, string) error {
		<-hold
		return nil
	}})
	a := w.appender(p, chain.AppenderConfig{HedgeAfter: -1})
	var wg sync.WaitGroup
	var got []outcome
	wg.Go(func() { got = w.fly(a, 0, 2) })
	eventually(t, "slot 1 lands", func() bool { return len(w.keys("chain/")) == 1 })
	a.End()
	close(hold)
	wg.Wait()
	wantOutcomes(t, got, nil, nil)
	<-a.Done()
	if cut, err := a.Cut(); cut != 2 || err != nil {
		t.Errorf("cut %d, %v, want 2", cut, err)
	}
}

func TestCloseLeavesTheOutcomeOpen(t *testing.T) {
	w := newWorld(t)
	p := w.process()
	p.objects.Script(fault.Rule{Op: fault.PutIfAbsent, Prefix: "chain/", Do: fault.HangAfter})
	a := w.appender(p, chain.AppenderConfig{})
	var wg sync.WaitGroup
	var got []outcome
	wg.Go(func() { got = w.fly(a, 0, 2) })
	eventually(t, "both land", func() bool { return len(w.keys("chain/")) == 2 })
	a.Close()
	wg.Wait()
	wantOutcomes(t, got, chain.ErrStopped, chain.ErrStopped)
	if _, err := a.Cut(); !errors.Is(err, chain.ErrStopped) {
		t.Errorf("cut: %v", err)
	}
	if r := w.record(); r.GetState() != indexpb.ChainState_CHAIN_STATE_OPEN {
		t.Errorf("closing ended the chain: %v", r)
	}
}
