package settler

import (
	"testing"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// Where a stream was deleted is told, once, also when it was quarantined and its
// head deleted before the entry is met.
func TestDeletedStreams(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		folded, broken, later := w.open("first"), w.open("first"), w.open("first")
		for _, l := range []*log{folded, broken, later} {
			l.append(2, 1000)
		}
		c.land()
		folded.delete()
		broken.delete()
		later.append(1, 1)
		c.absorb()
		broken.quarantine(0, c)
		if err := w.catalog().DeleteBrokenHead(t.Context(), broken.id); err != nil {
			t.Fatal(err)
		}
		p := w.process(Config{})
		p.must(w)
		wantPins(t, c)
		for i, l := range []*log{folded, broken} {
			h := l.head()
			if h.GetState() != indexpb.HeadState_HEAD_STATE_DELETED || h.GetDeletedChain() != c.id.String() || h.GetDeletedSlot() != 1 || len(h.GetRefs()) != 0 {
				t.Errorf("stream %d: %v", i, h)
			}
		}
		later.delete()
		folded.write(bundle.KindDelete, nil, nil) // again, by the next leader
		c.absorb()
		p.must(w)
		if h := later.head(); h.GetDeletedSlot() != 2 || len(h.GetRefs()) != 1 {
			t.Errorf("what is settled stays until the teardown: %v", h)
		}
		if h := folded.head(); h.GetDeletedSlot() != 1 {
			t.Errorf("deleted at %d", h.GetDeletedSlot())
		}
	})
}

// tearDown removes a DELETED head.
func (l *log) tearDown() {
	l.w.t.Helper()
	h, version, err := l.w.catalog().GetHead(l.w.ctx, l.id)
	if err != nil {
		l.w.t.Fatal(err)
	}
	h.Refs, h.Pages = nil, nil
	if version, err = l.w.catalog().PutHead(l.w.ctx, h, version); err == nil {
		err = l.w.catalog().DeleteHead(l.w.ctx, l.id, version)
	}
	if err != nil {
		l.w.t.Fatal(err)
	}
	l.broken = true
}

// A head that is gone was torn down, if another settled the span; else the chain
// waits: nothing is passed over on the word of one row.
func TestAbsentHead(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		l, other := w.open("first"), w.open("first")
		l.append(1, 1)
		other.append(1, 1)
		c.land()
		l.delete()
		c.absorb()
		slow := &span{engine: w.process(Config{}).engine, chain: c.id, name: c.id.String()}
		if err := slow.choose(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.process(Config{}).must(w)
		l.tearDown()
		w.logs = []*log{other}
		if err := slow.settle(t.Context()); err != nil {
			t.Errorf("a span that another settled: %v", err)
		}
		// Its DELETE again is nothing.
		l.write(bundle.KindDelete, nil, nil)
		c.absorb()
		w.process(Config{}).must(w)
		l.write(bundle.KindToken, []byte("t"), nil)
		c.absorb()
		_, err := w.process(Config{}).settle(t.Context(), c.id)
		wantBlocked(t, err, "has no head")
	})
}
