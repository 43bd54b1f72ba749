package chain_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// damage changes what lies in a slot, as a disk does.
func (w *world) damage(slot stream.Slot, do func(b []byte) []byte) {
	w.t.Helper()
	key := chain.SlotKey(w.chain, slot)
	o, err := w.objects.Get(w.t.Context(), key)
	if err != nil {
		w.t.Fatal(err)
	}
	w.delete(slot)
	if _, err := w.objects.PutIfAbsent(w.t.Context(), key, do(bytes.Clone(o.Body))); err != nil {
		w.t.Fatal(err)
	}
}

func flip(at int) func([]byte) []byte {
	return func(b []byte) []byte {
		b[(at+len(b))%len(b)] ^= 4
		return b
	}
}

// slotsOfTwo stores slots of two shards' entries.
func (w *world) slotsOfTwo(n int) {
	for i := range n {
		w.put(stream.Slot(i), w.entry(0, 1, stream.EntryNo(i)), w.entry(1, 1, stream.EntryNo(i)))
	}
}

// Case C21: damage around the entries of a slot that is not absorbed yet stops
// nobody, for the entries say what was lost; none is left out (I1, I2).
func TestDamageAroundTheEntriesStopsNothing(t *testing.T) {
	for name, do := range map[string]func([]byte) []byte{
		"magic": flip(0), "version": flip(4), "chain": flip(9), "flight": flip(30), "slot": flip(41), "checksum of the start": flip(50),
		"footer": flip(-60), "trailer": flip(-20), "last byte": flip(-1),
		"the end is cut off": func(b []byte) []byte { return b[:len(b)-30] },
		"start and end":      func(b []byte) []byte { return flip(-1)(flip(12)(b)) },
		"the first sector":   func(b []byte) []byte { clear(b[:16]); return b },
	} {
		t.Run(name, func(t *testing.T) {
			for _, slot := range []stream.Slot{0, 1, 3} {
				w := newWorld(t)
				w.slotsOfTwo(4)
				w.damage(slot, do)
				p := w.process()
				if cut, err := p.Seal(p.ctx, w.chain, stream.NewLifeID()); cut != 4 || err != nil {
					t.Fatalf("slot %d: cut %d, %v, want 4", slot, cut, err)
				}
				if to, err := p.AbsorbTo(p.ctx, w.chain, 4); to != 4 || err != nil {
					t.Fatalf("slot %d: absorbed to %d, %v, want 4", slot, to, err)
				}
				for id, got := range w.verify() {
					if want := 4; id != w.streams[2] && len(got) != want {
						t.Errorf("slot %d: %d entries of stream %s, want %d", slot, len(got), id, want)
					}
					for _, l := range got {
						o, err := w.objects.GetRange(t.Context(), chain.SlotKey(w.chain, l.At.Slot), objectstore.Range{Offset: int64(l.At.Offset), Length: int64(l.At.Length)})
						if err != nil {
							t.Fatal(err)
						}
						if e, err := bundle.ParseEntry(o.Body); err != nil || e.EntryNo != l.EntryNo || e.StreamID != id {
							t.Errorf("coordinates lead to %v, %v", e, err)
						}
					}
				}
			}
		})
	}
}

// A window that another claimed is finished the same way.
func TestDamageAfterTheClaim(t *testing.T) {
	w := newWorld(t)
	w.slotsOfTwo(3)
	p := w.process()
	r, version, err := p.index.GetChain(p.ctx, w.chain.String())
	if err != nil {
		t.Fatal(err)
	}
	r.AbsorbingTo = 3
	if _, err := p.index.PutChain(p.ctx, r, version); err != nil {
		t.Fatal(err)
	}
	w.damage(1, flip(-1))
	if to, err := p.Absorb(p.ctx, w.chain); to != 3 || err != nil {
		t.Errorf("absorbed to %d, %v, want 3", to, err)
	}
}

// A slot that holds entries nobody can name may hold the last ones of any stream
// of any shard: the chain ends there in an alarm, rather than shorter (I1, I2).
func TestUnreadableSlotIsNeverPassedOver(t *testing.T) {
	for name, do := range map[string]func([]byte) []byte{
		"half is gone":                       func(b []byte) []byte { return b[:len(b)/2] },
		"all is gone":                        func([]byte) []byte { return nil },
		"zeros":                              func(b []byte) []byte { return make([]byte, len(b)) },
		"the last entry and the footer":      func(b []byte) []byte { return flip(-1)(flip(140)(b)) },
		"the footer is cut off":              func(b []byte) []byte { return b[:len(b)-24-2*(58+23)] },
		"start and slot are another chain's": func(b []byte) []byte { clear(b[8:48]); return b },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.slotsOfTwo(2)
			w.damage(1, do)
			p := w.process()
			damaged := func(err error) bool { return errors.Is(err, bundle.ErrCorrupt) || errors.Is(err, chain.ErrForeign) }
			// What lies below needs nothing of it.
			if to, err := p.AbsorbTo(p.ctx, w.chain, 1); to != 1 || err != nil {
				t.Errorf("absorbed to %d, %v, want 1", to, err)
			}
			if to, err := p.Absorb(p.ctx, w.chain); to != 1 || !damaged(err) {
				t.Errorf("absorbed to %d, %v, want 1 and an alarm", to, err)
			}
			// Its start may show that it is a bundle; then it lies below the cut.
			if cut, err := p.Seal(p.ctx, w.chain, stream.NewLifeID()); err == nil && cut != 2 || err != nil && !damaged(err) {
				t.Errorf("cut %d, %v, want 2 or an alarm", cut, err)
			}
			if to, err := p.AbsorbTo(p.ctx, w.chain, 2); to != 1 || !damaged(err) {
				t.Errorf("absorbed to %d, %v, want 1 and an alarm", to, err)
			}
		})
	}
}

// A damaged SEAL is one, if its bytes prove it; it is never taken for a bundle.
func TestDamagedSeal(t *testing.T) {
	for name, do := range map[string]func([]byte) []byte{"magic": flip(0), "chain": flip(9), "attempt": flip(30), "life": flip(60)} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.store(0, 2)
			w.putSeal(2)
			w.damage(2, do)
			p := w.process()
			if cut, err := p.Seal(p.ctx, w.chain, stream.NewLifeID()); cut != 2 || err != nil {
				t.Errorf("cut %d, %v, want 2", cut, err)
			}
		})
	}
	w := newWorld(t)
	w.store(0, 2)
	w.putSeal(2)
	w.damage(2, func(b []byte) []byte { return make([]byte, len(b)) })
	p := w.process()
	if cut, err := p.Seal(p.ctx, w.chain, stream.NewLifeID()); !errors.Is(err, chain.ErrForeign) {
		t.Errorf("cut %d, %v, want ErrForeign", cut, err)
	}
	if r := w.record(); r.GetState() != indexpb.ChainState_CHAIN_STATE_OPEN {
		t.Errorf("record: %v", r)
	}
}

// The writer itself is not so lenient: what it meets in its slot must be its
// flight, byte for byte, or nothing more is acknowledged (I2).
func TestWriterAcknowledgesNoDamagedFlight(t *testing.T) {
	w := newWorld(t)
	p := w.process()
	p.objects.Script(fault.Rule{Op: fault.PutIfAbsent, Prefix: chain.SlotKey(w.chain, 0), Nth: 1, Do: fault.LoseReply})
	p.objects.Script(fault.Rule{Op: fault.PutIfAbsent, Prefix: chain.SlotKey(w.chain, 0), Nth: 2, Hook: func(context.Context, fault.Op, string) error {
		w.damage(0, flip(30))
		return nil
	}})
	wantOutcomes(t, w.fly(w.appender(p, chain.AppenderConfig{Lanes: 1, HedgeAfter: -1}), 0, 1), chain.ErrStopped)
}
