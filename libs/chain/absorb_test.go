package chain_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/chain"
	metafault "github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/stream"
)

func TestAbsorbTakesWindows(t *testing.T) {
	w := newWorld(t)
	w.store(0, 150)
	p := w.process()
	if to, err := p.Absorb(p.ctx, w.chain); to != 150 || err != nil {
		t.Fatalf("absorbed to %d, %v, want 150", to, err)
	}
	rows, err := p.index.Directories(p.ctx, w.chain.String(), 0, 0)
	if err != nil || len(rows) != 3 {
		t.Errorf("%d directories, %v, want 64 + 64 + 22 slots", len(rows), err)
	}
	// A handful of metastore operations per window, whatever is in it.
	writes := p.rows.Counts()[metafault.Put].Calls
	if want := 3 * 4; writes > want {
		t.Errorf("%d metastore writes for three windows, want at most %d", writes, want)
	}
	if _, err := p.Seal(p.ctx, w.chain, stream.NewLifeID()); err != nil {
		t.Fatal(err)
	}
	if got := w.verify()[w.streams[0]]; len(got) != 150 {
		t.Errorf("%d entries, want 150", len(got))
	}
	if got := len(w.keys("directory/")); got != 3 {
		t.Errorf("%d objects, want 3", got)
	}
}

func TestAbsorbingAnIdleChainIsOneRead(t *testing.T) {
	w := newWorld(t)
	w.store(0, 2)
	if _, err := w.process().Absorb(t.Context(), w.chain); err != nil {
		t.Fatal(err)
	}
	p := w.process()
	if to, err := p.Absorb(p.ctx, w.chain); to != 2 || err != nil {
		t.Fatal(to, err)
	}
	counts := p.objects.Counts()
	if n := counts[fault.GetRange].Calls; n != 1 || len(counts) != 1 {
		t.Errorf("object store calls: %v, want one ranged read", counts)
	}
	if n := p.rows.Counts()[metafault.Put].Calls; n != 0 {
		t.Errorf("%d metastore writes", n)
	}
}

func TestAbsorbToWhatIsNotCommitted(t *testing.T) {
	w := newWorld(t)
	w.store(0, 2)
	w.store(3, 1) // above a gap: not committed
	p := w.process()
	if to, err := p.AbsorbTo(p.ctx, w.chain, 4); to != 2 || !errors.Is(err, objectstore.ErrUnavailable) {
		t.Errorf("absorbed to %d, %v, want 2 and ErrUnavailable", to, err)
	}
	if cut, err := p.Seal(p.ctx, w.chain, stream.NewLifeID()); cut != 2 || err != nil {
		t.Errorf("cut %d, %v", cut, err)
	}
	if _, err := p.AbsorbTo(p.ctx, w.chain, 4); !errors.Is(err, chain.ErrBroken) {
		t.Errorf("beyond the cut: %v, want ErrBroken", err)
	}
}

func TestFencesDecideWhatCounts(t *testing.T) {
	w := newWorld(t)
	fence := bundle.Entry{Kind: bundle.KindFence, Shard: 0, Epoch: 2}
	w.put(0, w.entry(0, 1, 0), w.entry(1, 1, 0))
	w.put(1, w.entry(0, 1, 1), fence, w.entry(0, 1, 2), w.entry(1, 1, 1))
	p := w.process()
	if to, err := p.Absorb(p.ctx, w.chain); to != 2 || err != nil {
		t.Fatal(to, err)
	}
	// The record carries the fence into the next window.
	w.put(2, w.entry(0, 1, 2), w.entry(0, 2, 0), w.entry(1, 1, 2))
	w.put(3, w.entry(0, 3, 0), w.entry(0, 2, 1))
	if _, err := p.Seal(p.ctx, w.chain, stream.NewLifeID()); err != nil {
		t.Fatal(err)
	}
	got := w.verify()
	var texts [][]byte
	for _, l := range got[w.streams[0]] {
		texts = append(texts, l.Header)
	}
	want := "shard 0 epoch 1 entry 0|shard 0 epoch 1 entry 1|shard 0 epoch 2 entry 0|shard 0 epoch 3 entry 0"
	if s := string(bytes.Join(texts, []byte("|"))); s != want {
		t.Errorf("shard 0: %s\nwant     %s", s, want)
	}
	if n := len(got[w.streams[1]]); n != 3 {
		t.Errorf("shard 1 has %d entries: the fence is not its", n)
	}
}

func TestGapsAndDuplicatesAreAnAlarm(t *testing.T) {
	for name, second := range map[string]stream.EntryNo{"gap": 2, "duplicate": 0} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.put(0, w.entry(0, 1, 0))
			w.put(1, w.entry(0, 1, second))
			p := w.process()
			if to, err := p.Absorb(p.ctx, w.chain); to != 0 || !errors.Is(err, chain.ErrBroken) {
				t.Errorf("absorbed to %d, %v, want ErrBroken", to, err)
			}
		})
	}
}

// A claim is finished by whoever comes, though more was committed since.
func TestClaimIsFinishedNotReplaced(t *testing.T) {
	w := newWorld(t)
	w.store(0, 3)
	p := w.process()
	// It dies at the directory's object: the claim and its marker, which go at
	// once, are both there by then.
	p.objects.Script(fault.Rule{Op: fault.PutIfAbsent, Hook: func(context.Context, fault.Op, string) error {
		p.objects.KillAt(1, fault.Before)
		return fault.ErrKilled
	}})
	p.mortal()
	if _, err := p.Absorb(p.ctx, w.chain); err == nil {
		t.Fatal("the absorber lives")
	}
	if r := w.record(); r.GetAbsorbingTo() != 3 || r.GetAbsorbedTo() != 0 {
		t.Fatalf("claim: %v", r)
	}
	w.store(3, 5)
	q := w.process()
	if to, err := q.AbsorbTo(q.ctx, w.chain, 8); to != 8 || err != nil {
		t.Fatalf("absorbed to %d, %v", to, err)
	}
	rows, err := q.index.Directories(q.ctx, w.chain.String(), 0, 0)
	if err != nil || len(rows) != 2 || rows[0].GetTo() != 3 {
		t.Errorf("directories: %v, %v", rows, err)
	}
}

// A stale read shows a claim that was finished, settled and reclaimed long ago:
// slots that are gone are no corruption then.
func TestStaleClaimIsNoAlarm(t *testing.T) {
	w := newWorld(t)
	w.store(0, 3)
	p := w.process()
	if _, err := p.Absorb(p.ctx, w.chain); err != nil {
		t.Fatal(err)
	}
	w.delete(0, 1, 2)
	w.store(3, 1)
	q := w.process()
	q.rows.Script(metafault.Rule{Op: metafault.Get, Prefix: "chain/", Nth: 1, Times: 2, Do: metafault.Stale, Back: 1})
	if to, err := q.AbsorbTo(q.ctx, w.chain, 4); to != 4 || err != nil {
		t.Errorf("absorbed to %d, %v, want 4", to, err)
	}
	// Without a stale read it is one.
	w.store(4, 2)
	r := w.process()
	record, version, err := r.index.GetChain(r.ctx, w.chain.String())
	if err != nil {
		t.Fatal(err)
	}
	record.AbsorbingTo = 6
	if _, err := r.index.PutChain(r.ctx, record, version); err != nil {
		t.Fatal(err)
	}
	w.delete(5)
	if _, err := r.Absorb(r.ctx, w.chain); !errors.Is(err, chain.ErrBroken) {
		t.Errorf("a claimed slot is gone: %v, want ErrBroken", err)
	}
}

func TestAbsorbSurvivesADeathAtEveryCall(t *testing.T) {
	everyKill(t, func(w *world, p *process) {
		w.store(0, 70)
		_, _ = p.Absorb(p.ctx, w.chain)
	}, func(t *testing.T, w *world) {
		var wg sync.WaitGroup
		for range 2 {
			p := w.process()
			wg.Go(func() {
				if to, err := p.AbsorbTo(p.ctx, w.chain, 70); to != 70 || err != nil {
					t.Errorf("absorbed to %d, %v", to, err)
				}
			})
		}
		wg.Wait()
		p := w.process()
		if _, err := p.Seal(p.ctx, w.chain, stream.NewLifeID()); err != nil {
			t.Error(err)
		}
		if got := w.verify()[w.streams[0]]; len(got) != 70 {
			t.Errorf("%d entries, want 70", len(got))
		}
	})
}

func TestLookup(t *testing.T) {
	w := newWorld(t)
	w.store(0, 100)
	p := w.process()
	if _, err := p.Absorb(p.ctx, w.chain); err != nil {
		t.Fatal(err)
	}
	lookup := func(from, to stream.Slot) (int, error) {
		got, err := p.Lookup(p.ctx, w.chain, 0, []stream.ID{stream.NewID(), w.streams[0]}, from, to)
		for i, l := range got {
			if l.At.Slot != from+stream.Slot(i) {
				t.Errorf("[%d, %d): entry %d is in slot %d", from, to, i, l.At.Slot)
			}
			o, gerr := w.objects.GetRange(p.ctx, chain.SlotKey(w.chain, l.At.Slot), objectstore.Range{Offset: int64(l.At.Offset), Length: int64(l.At.Length)})
			if gerr != nil {
				t.Fatal(gerr)
			}
			if e, perr := bundle.ParseEntry(o.Body); perr != nil || e.EntryNo != l.EntryNo {
				t.Errorf("coordinates lead to %v, %v", e, perr)
			}
		}
		return len(got), err
	}
	for _, r := range [][2]stream.Slot{{0, 100}, {0, 1}, {63, 65}, {70, 100}, {99, 100}, {5, 5}} {
		if n, err := lookup(r[0], r[1]); err != nil || n != int(r[1]-r[0]) {
			t.Errorf("%v: %d entries, %v", r, n, err)
		}
	}
	if _, err := lookup(0, 101); !errors.Is(err, chain.ErrVanished) {
		t.Errorf("beyond absorbed_to: %v", err)
	}
	if n := p.objects.Counts()[fault.Get].Calls; n != 2 {
		t.Errorf("%d reads of two directories", n)
	}
	// Another process, after the first directory was deleted.
	rows, err := p.index.Directories(p.ctx, w.chain.String(), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.objects.Delete(p.ctx, rows[0].GetObject()); err != nil {
		t.Fatal(err)
	}
	q := w.process()
	if _, err := q.Lookup(q.ctx, w.chain, 0, w.streams[:1], 0, 100); !errors.Is(err, chain.ErrVanished) || !errors.Is(err, objectstore.ErrUnavailable) {
		t.Errorf("a vanished directory: %v", err)
	}
	if got, err := q.Lookup(q.ctx, w.chain, 1, w.streams[:1], 0, 100); err != nil || len(got) != 0 {
		t.Errorf("a shard without entries needs no directory: %v, %v", got, err)
	}
}
