package chain_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/chain/chaintest"
	"github.com/nova-stream/nova/libs/directory"
	metafault "github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// settle does to the slots below to, which must be absorbed and the end of a
// directory, what settling and reclaiming them does, but for some that are kept.
func (w *world) settle(to stream.Slot, keep ...stream.Slot) {
	w.t.Helper()
	p := w.process()
	if _, err := p.index.UpdateChain(p.ctx, w.chain.String(), func(r *indexpb.Chain) (bool, error) {
		r.SettledTo = uint64(to)
		return true, nil
	}); err != nil {
		w.t.Fatal(err)
	}
	kept := map[stream.Slot]bool{}
	for _, s := range keep {
		kept[s] = true
	}
	for s := range to {
		if !kept[s] {
			w.delete(s)
		}
	}
	rows, err := p.index.Directories(p.ctx, w.chain.String(), 0, uint64(to))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, d := range rows {
		if err := w.objects.Delete(p.ctx, d.GetObject()); err != nil {
			w.t.Fatal(err)
		}
		if err := p.index.DeleteDirectory(p.ctx, d.GetChainId(), d.GetFrom()); err != nil {
			w.t.Fatal(err)
		}
	}
	if _, err := p.index.UpdateChain(p.ctx, w.chain.String(), func(r *indexpb.Chain) (bool, error) {
		r.ReclaimedTo = uint64(to)
		return true, nil
	}); err != nil {
		w.t.Fatal(err)
	}
}

// loud is a process whose alarms can be read.
func (w *world) loud() (*process, *bytes.Buffer) {
	w.t.Helper()
	alarms := &bytes.Buffer{}
	p := &process{objects: fault.New(w.objects), rows: w.rows.Fork(), ctx: w.t.Context()}
	p.index = catalog.New(chaintest.NewIndex(p.rows))
	var err error
	p.Store, err = chain.New(chain.Config{Log: slog.New(slog.NewTextHandler(alarms, &slog.HandlerOptions{Level: slog.LevelError}))}, p.objects, p.index)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(p.Close)
	return p, alarms
}

func (w *world) exists(s stream.Slot) bool {
	return slices.Contains(w.keys("chain/"), chain.SlotKey(w.chain, s))
}

// A directory's row says what settling goes by.
func TestDirectoryTellsItsSizeAndAge(t *testing.T) {
	w := newWorld(t)
	w.store(0, 3)
	w.put(3, w.entry(0, 1, 3), w.entry(1, 1, 0))
	now := time.UnixMilli(123456)
	p := &process{objects: fault.New(w.objects), rows: w.rows.Fork(), ctx: t.Context()}
	p.index = catalog.New(chaintest.NewIndex(p.rows))
	s, err := chain.New(chain.Config{Now: func() time.Time { return now }}, p.objects, p.index)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Absorb(t.Context(), w.chain); err != nil {
		t.Fatal(err)
	}
	rows, err := p.index.Directories(t.Context(), w.chain.String(), 0, 0)
	if err != nil || len(rows) != 1 {
		t.Fatal(rows, err)
	}
	want := uint64(0)
	for i, id := range w.streams {
		found, err := s.Lookup(t.Context(), w.chain, stream.Shard(i), []stream.ID{id}, 0, 4)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range found {
			want += uint64(l.At.Length)
		}
	}
	if d := rows[0]; d.GetEntryBytes() != want || want == 0 || d.GetAbsorbedAt() != now.UnixMilli() {
		t.Errorf("%d bytes, absorbed at %d; want %d and %d", d.GetEntryBytes(), d.GetAbsorbedAt(), want, now.UnixMilli())
	}
}

// What is settled can not be looked up any more; what lies above can, also from
// the middle of a directory.
func TestLookupAboveWhatIsSettled(t *testing.T) {
	w := newWorld(t)
	w.store(0, 150)
	p := w.process()
	if _, err := p.Absorb(p.ctx, w.chain); err != nil {
		t.Fatal(err)
	}
	w.settle(64)
	for _, q := range []*process{p, w.process()} {
		for _, from := range []stream.Slot{64, 65, 127, 128, 149} {
			found, err := q.Lookup(q.ctx, w.chain, 0, w.streams[:1], from, 150)
			if err != nil || len(found) != int(150-from) || found[0].At.Slot != from {
				t.Errorf("from %d: %d entries, %v", from, len(found), err)
			}
		}
		if _, err := q.Lookup(q.ctx, w.chain, 0, w.streams[:1], 63, 150); !errors.Is(err, chain.ErrVanished) {
			t.Errorf("settled slots: %v, want ErrVanished", err)
		}
	}
}

// pasts are the records of a chain that an old read may show, oldest last, and
// what the chain is by now: 8 slots, of which 6 are settled and reclaimed.
func pasts(t *testing.T, lanes uint32, claimed bool, keep ...stream.Slot) *world {
	t.Helper()
	w := newWorld(t)
	w.store(0, 3)
	p := w.process()
	// With one lane any bundle above a slot that is gone makes it look lost.
	if _, err := p.index.UpdateChain(p.ctx, w.chain.String(), func(r *indexpb.Chain) (bool, error) {
		r.Lanes = lanes
		return true, nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Absorb(p.ctx, w.chain); err != nil {
		t.Fatal(err)
	}
	w.store(3, 3)
	if _, err := p.Absorb(p.ctx, w.chain); err != nil {
		t.Fatal(err)
	}
	w.settle(6, keep...)
	w.store(6, 2)
	if claimed {
		r, version, err := p.index.GetChain(p.ctx, w.chain.String())
		if err != nil {
			t.Fatal(err)
		}
		r.AbsorbingTo = 8
		if _, err := p.index.PutChain(p.ctx, r, version); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// A record of any age, read any number of times, decides no cut below what is
// absorbed, breaks nothing and alarms nobody, though its slots are reclaimed, all
// of them or all but some (I1, I2).
func TestOldRecordOfAReclaimedChainIsHarmless(t *testing.T) {
	work := map[string]func(p *process, w *world) error{
		"seal": func(p *process, w *world) error {
			cut, err := p.Seal(p.ctx, w.chain, stream.NewLifeID())
			if err == nil && cut != 8 {
				w.t.Errorf("cut %d, want 8", cut)
			}
			return err
		},
		"absorb": func(p *process, w *world) error {
			to, err := p.Absorb(p.ctx, w.chain)
			if err == nil && to > 8 {
				w.t.Errorf("absorbed to %d", to)
			}
			return err
		},
		"absorb to": func(p *process, w *world) error {
			to, err := p.AbsorbTo(p.ctx, w.chain, 8)
			if errors.Is(err, objectstore.ErrUnavailable) {
				return nil // who needs it asks again
			}
			if err == nil && to != 8 {
				w.t.Errorf("absorbed to %d, want 8", to)
			}
			return err
		},
	}
	keeps := map[string][]stream.Slot{
		"all are gone": nil, "the first stays": {0}, "one in the middle stays": {4}, "the last stays": {5},
	}
	for name, f := range work {
		for what, keep := range keeps {
			for back := 1; back <= 6; back++ {
				if testing.Short() && back%2 == 1 {
					continue
				}
				for i := range 4 {
					w := pasts(t, uint32(i%2), i > 1, keep...)
					p, alarms := w.loud()
					p.rows.Script(metafault.Rule{Op: metafault.Get, Prefix: "chain/", Nth: 1, Times: 3, Do: metafault.Stale, Back: back})
					if err := f(p, w); err != nil {
						t.Errorf("%s, %s, %d back: %v", name, what, back, err)
					}
					if alarms.Len() > 0 {
						t.Errorf("%s, %s, %d back: an alarm: %s", name, what, back, alarms)
					}
					w.verifyRest(6)
				}
			}
		}
	}
}

// verifyRest seals the chain, absorbs it, and checks that it ends at slot 8 and
// that all entries from a slot on are there.
func (w *world) verifyRest(from stream.Slot) {
	w.t.Helper()
	p := w.process()
	cut, err := p.Seal(p.ctx, w.chain, stream.NewLifeID())
	if err != nil || cut != 8 {
		w.t.Fatalf("cut %d, %v, want 8", cut, err)
	}
	if to, err := p.Absorb(p.ctx, w.chain); err != nil || to != 8 {
		w.t.Fatalf("absorbed to %d, %v", to, err)
	}
	found, err := p.Lookup(p.ctx, w.chain, 0, w.streams[:1], from, cut)
	if err != nil || len(found) != int(cut-from) {
		w.t.Fatalf("%d entries, %v, want %d", len(found), err, cut-from)
	}
	w.inOrderFrom(stream.EntryNo(from), found)
}

func (w *world) inOrderFrom(no stream.EntryNo, found []directory.Located) {
	w.t.Helper()
	for i, l := range found {
		if l.EntryNo != no+stream.EntryNo(i) {
			w.t.Fatalf("entry %d where %d is next", l.EntryNo, no+stream.EntryNo(i))
		}
	}
}

// The SEAL that a sealer with an old record puts into a slot that was reclaimed
// stays there, and matters to nobody: not to absorbers and sealers, whatever
// record they read, nor to the chain's living writer.
func TestSealInAReclaimedSlotIsHarmless(t *testing.T) {
	for slot := range stream.Slot(6) {
		for _, back := range []int{0, 1, 2, 4, 6} {
			w := pasts(t, 1, false)
			w.putSeal(slot)
			p, alarms := w.loud()
			if back > 0 {
				p.rows.Script(metafault.Rule{Op: metafault.Get, Prefix: "chain/", Nth: 1, Times: 2, Do: metafault.Stale, Back: back})
			}
			if to, err := p.Absorb(p.ctx, w.chain); err != nil || to > 8 {
				t.Errorf("SEAL in slot %d, %d back: absorbed to %d, %v", slot, back, to, err)
			}
			if alarms.Len() > 0 {
				t.Errorf("SEAL in slot %d, %d back: an alarm: %s", slot, back, alarms)
			}
			w.verifyRest(6)
		}
	}
}

// Its writer, who lost the reply of a PUT, meets such a SEAL in the slot of a
// flight that was committed, settled and reclaimed meanwhile: it is acknowledged.
func TestWriterMeetsASealInItsReclaimedSlot(t *testing.T) {
	w := newWorld(t)
	p := w.process()
	slot := chain.SlotKey(w.chain, 1)
	p.objects.Script(fault.Rule{Op: fault.PutIfAbsent, Prefix: slot, Nth: 1, Do: fault.LoseReply})
	p.objects.Script(fault.Rule{Op: fault.PutIfAbsent, Prefix: slot, Nth: 2, Hook: func(ctx context.Context, _ fault.Op, _ string) error {
		if _, err := w.process().Absorb(ctx, w.chain); err != nil {
			return err
		}
		w.settle(2)
		w.putSeal(1)
		return nil
	}})
	wantOutcomes(t, w.fly(w.appender(p, chain.AppenderConfig{Lanes: 1, HedgeAfter: -1}), 0, 2), nil, nil)
	if r := w.record(); r.GetCut() != 2 || r.GetState() != indexpb.ChainState_CHAIN_STATE_SEALED {
		t.Errorf("record: %v, want the cut 2", r)
	}
}

// Case C3: a writer freezes before its PUTs; another seals and absorbs the chain,
// and all of it is settled, reclaimed and retired but for the SEAL at the cut. The
// writer wakes up and its PUTs succeed, where nothing is any more: it acknowledges
// none of them, and nobody ever reads them (I2, I3, I4).
func TestFrozenWriterWakesInARetiredChain(t *testing.T) {
	for landed := range 4 {
		w := newWorld(t)
		p := w.process()
		frozen, thaw := make(chan struct{}, 4), [4]chan struct{}{}
		for i := landed; i < 4; i++ {
			thaw[i] = make(chan struct{})
			p.objects.Script(fault.Rule{Op: fault.PutIfAbsent, Prefix: chain.SlotKey(w.chain, stream.Slot(i)), Nth: 1, Hook: func(context.Context, fault.Op, string) error {
				frozen <- struct{}{}
				<-thaw[i]
				return nil
			}})
		}
		a := w.appender(p, chain.AppenderConfig{Lanes: 4, HedgeAfter: -1})
		var flown []outcome
		var flying sync.WaitGroup
		flying.Go(func() { flown = w.fly(a, 0, 4) })
		for i := landed; i < 4; i++ {
			<-frozen
		}
		eventually(t, "what is not frozen lands", func() bool { return len(w.keys("chain/")) == landed })

		q := w.process()
		cut, err := q.Seal(q.ctx, w.chain, stream.NewLifeID())
		if err != nil || cut != stream.Slot(landed) {
			t.Fatalf("cut %d, %v, want %d", cut, err, landed)
		}
		if to, err := q.AbsorbTo(q.ctx, w.chain, cut); err != nil || to != cut {
			t.Fatal(to, err)
		}
		w.settle(cut)
		if _, err := q.index.UpdateChain(q.ctx, w.chain.String(), func(r *indexpb.Chain) (bool, error) {
			r.State = indexpb.ChainState_CHAIN_STATE_RETIRED
			return true, nil
		}); err != nil {
			t.Fatal(err)
		}
		for i := 3; i >= landed; i-- {
			close(thaw[i])
			eventually(t, "its PUT lands", func() bool { return i == landed || w.exists(stream.Slot(i)) })
		}
		flying.Wait()

		for _, o := range flown[landed:] {
			if !errors.Is(o.err, chain.ErrCut) {
				t.Errorf("%d landed before: the flight of slot %d was told %v, want ErrCut", landed, o.slot, o.err)
			}
		}
		if got, err := a.Cut(); err != nil || got != cut {
			t.Errorf("the writer believes in the cut %d, %v; it is %d", got, err, cut)
		}
		// What landed above the cut makes no difference.
		for _, r := range []*process{w.process(), w.process()} {
			if to, err := r.Absorb(r.ctx, w.chain); err != nil || to != cut {
				t.Errorf("absorbed to %d, %v", to, err)
			}
			if again, err := r.Seal(r.ctx, w.chain, stream.NewLifeID()); err != nil || again != cut {
				t.Errorf("cut %d, %v", again, err)
			}
			if _, err := r.Lookup(r.ctx, w.chain, 0, w.streams[:1], cut, cut+3); !errors.Is(err, chain.ErrVanished) {
				t.Errorf("a lookup above the cut: %v", err)
			}
		}
	}
}

// An absorber that comes late to its window, which is settled by now and has no
// row any more, does not put one again: no row would ever be removed (I11).
func TestLateAbsorberLeavesNoRow(t *testing.T) {
	w := newWorld(t)
	w.store(0, 3)
	late := w.process()
	late.objects.Script(fault.Rule{Op: fault.PutIfAbsent, Prefix: "directory/", Nth: 1, Hook: func(ctx context.Context, _ fault.Op, _ string) error {
		if _, err := w.process().Absorb(ctx, w.chain); err != nil {
			return err
		}
		w.settle(3)
		return nil
	}})
	if to, err := late.Absorb(late.ctx, w.chain); err != nil || to != 3 {
		t.Fatalf("absorbed to %d, %v", to, err)
	}
	rows, err := late.index.Directories(late.ctx, w.chain.String(), 0, 0)
	if err != nil || len(rows) != 0 {
		t.Errorf("rows below settled_to: %v, %v", rows, err)
	}
	// The object that it put has its marker.
	markers, err := late.index.ListDue(late.ctx, chain.QueueDirectory, time.Now().Add(time.Hour), 10)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range w.keys("directory/") {
		marked := false
		for _, m := range markers {
			marked = marked || m.Due.GetObject() == key
		}
		if !marked {
			t.Errorf("object %s leaks", key)
		}
	}
}
