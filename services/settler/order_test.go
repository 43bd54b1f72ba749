package settler

import (
	"errors"
	"strings"
	"testing"

	metafault "github.com/nova-stream/nova/libs/metastore/fault"
)

func wantBlocked(t *testing.T, err error, why string) {
	t.Helper()
	var b errBlocked
	if !errors.As(err, &b) || !strings.Contains(b.why, why) {
		t.Errorf("%v, want it to wait since %q", err, why)
	}
}

// I1, I2: entries of a shard are folded in the order of its chains.
func TestLowerChainIsSettledFirst(t *testing.T) {
	for _, by := range []int{shardsByOne, 0} { // records of shards that are read one by one, and that are listed
		lowerChainIsSettledFirst(t, by)
	}
}

func lowerChainIsSettledFirst(t *testing.T, shardsByOne int) {
	t.Helper()
	run(t, func(t *testing.T, w *world) {
		a, b := w.newChain(), w.newChain()
		w.lead(0, a)
		w.lead(1, b)
		l, other := w.open("first", 0), w.open("first", 1)
		l.append(3, 10)
		a.absorb()
		other.append(1, 1)
		b.absorb()
		w.lead(0, b)
		l.append(2, 10)
		other.append(1, 1)
		b.absorb()
		w.lead(0, a)
		l.append(1, 10)
		a.absorb()
		p := w.process(Config{})
		p.listFrom = shardsByOne
		// What does not wait for a is settled, up to the directory that does.
		if to, err := p.settle(t.Context(), b.id); err != nil || to != 1 {
			t.Errorf("settled to %d, %v", to, err)
		}
		_, err := p.settle(t.Context(), b.id)
		wantBlocked(t, err, "is settled to 0 of")
		w.check()
		// a itself ends where b comes between.
		if to, err := p.settle(t.Context(), a.id); err != nil || uint64(to) != a.record().GetSettledTo() || to >= a.next {
			t.Errorf("settled to %d, %v", to, err)
		}
		_, err = p.settle(t.Context(), a.id)
		wantBlocked(t, err, b.id.String())
		if _, err := p.settle(t.Context(), b.id); err != nil {
			t.Error(err)
		}
		if _, err := p.settle(t.Context(), a.id); err != nil {
			t.Error(err)
		}
		w.wantSettled()
		w.check()
	})
}

// A shard's record that does not know of the epoch, or of the chain, is an old one.
func TestOldShardRecordDecidesNothing(t *testing.T) {
	for _, by := range []int{shardsByOne, 0} {
		oldShardRecordDecidesNothing(t, by)
	}
}

func oldShardRecordDecidesNothing(t *testing.T, shardsByOne int) {
	t.Helper()
	run(t, func(t *testing.T, w *world) {
		a, b := w.newChain(), w.newChain()
		w.lead(0, a)
		l := w.open("first", 0)
		l.append(1, 1)
		w.lead(0, b)
		l.append(1, 1)
		b.absorb()
		p := w.process(Config{})
		p.listFrom = shardsByOne
		for back, why := range map[int]string{1: "old read", 2: "old read", 3: "old read"} {
			p.rows.Clear()
			p.rows.Script(metafault.Rule{Op: metafault.Read, Prefix: "shard/", Do: metafault.Stale, Back: back})
			_, err := p.settle(t.Context(), b.id)
			wantBlocked(t, err, why)
		}
		p.rows.Clear()
		p.must(w)
	})
	// One that does not know yet that the shard was in another chain between.
	run(t, func(t *testing.T, w *world) {
		a, b := w.newChain(), w.newChain()
		w.lead(0, a)
		l := w.open("first", 0)
		l.append(1, 1)
		a.absorb()
		p := w.process(Config{})
		p.listFrom = shardsByOne
		p.must(w)
		w.lead(0, b)
		l.append(1, 1)
		b.absorb()
		w.lead(0, a)
		l.append(1, 1)
		a.absorb()
		for range 2 { // to the end of the fence, and beyond
			p.rows.Clear()
			p.rows.Script(metafault.Rule{Op: metafault.Read, Prefix: "shard/", Do: metafault.Stale, Back: 4})
			before := a.record().GetSettledTo()
			_, err := p.settle(t.Context(), a.id)
			if before == 2 {
				wantBlocked(t, err, "old read")
			}
		}
		p.rows.Clear()
		p.must(w)
	})
}

// A directory that was written before its row told its bytes is measured.
func TestOldDirectoryRowIsMeasured(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		w.open("first").append(1, 5000)
		c.absorb()
		s := &span{engine: w.process(Config{}).engine, chain: c.id, name: c.id.String()}
		if err := s.choose(t.Context()); err != nil {
			t.Fatal(err)
		}
		told := s.bytes
		s.bytes = 0
		s.windows[0].row.EntryBytes, s.windows[0].row.AbsorbedAt = 0, 0
		s.measure()
		if s.bytes == 0 || told > 0 && s.bytes != told {
			t.Errorf("measured %d bytes, the row says %d", s.bytes, told)
		}
	})
}
