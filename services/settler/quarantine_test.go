package settler

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/chain"
	metafault "github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// quarantine records it in the head, as a leader does.
func (l *log) quarantine(slot stream.Slot, c *written) {
	l.w.t.Helper()
	h, err := l.w.catalog().TouchHead(l.w.ctx, l.id, uint64(l.w.leaders[l.shard].epoch))
	if err == nil {
		err = l.w.catalog().QuarantineHead(l.w.ctx, h, "test", []*indexpb.Pin{{ChainId: c.id.String(), From: uint64(slot), To: uint64(slot + 1)}})
	}
	if err != nil {
		l.w.t.Fatal(err)
	}
	l.broken = true
}

func wantPins(t *testing.T, c *written, want ...*indexpb.ChainPin) {
	t.Helper()
	got := c.record().GetPins()
	if !proto.Equal(&indexpb.Chain{Pins: got}, &indexpb.Chain{Pins: want}) {
		t.Errorf("pins %v, want %v", got, want)
	}
}

// What is above a quarantined head stays, and nobody else waits for it.
func TestQuarantinedStreamKeepsItsSlots(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		bad, good := w.open("first"), w.open("first")
		bad.append(1, 10)
		good.append(1, 10)
		c.absorb()
		p := w.process(Config{})
		p.must(w)
		wantPins(t, c)
		for range 3 {
			good.append(1, 10)
			bad.append(1, 10)
			c.land()
			good.append(1, 10)
			c.land()
		}
		c.absorb()
		bad.quarantine(1, c)
		p.must(w)
		pin := func(from, to uint64) *indexpb.ChainPin {
			return &indexpb.ChainPin{StreamId: bad.id.String(), From: from, To: to}
		}
		wantPins(t, c, pin(1, 2), pin(3, 4), pin(5, 6))
		// What lies side by side is joined.
		bad.append(1, 10)
		bad.token("")
		c.absorb()
		p.must(w)
		wantPins(t, c, pin(1, 2), pin(3, 4), pin(5, 6), pin(7, 8))
		bad.token("")
		c.absorb()
		p.must(w)
		wantPins(t, c, pin(1, 2), pin(3, 4), pin(5, 6), pin(7, 9))
	})
}

// An old read that says quarantined keeps nobody from folding (I2).
func TestLiftedQuarantineIsFolded(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		l := w.open("first")
		l.append(2, 10)
		c.absorb()
		l.quarantine(0, c)
		h, version, err := w.catalog().GetHead(t.Context(), l.id)
		if err != nil {
			t.Fatal(err)
		}
		h.Quarantine, h.Pins = "", nil
		if _, err := w.catalog().PutHead(t.Context(), h, version); err != nil {
			t.Fatal(err)
		}
		l.broken = false
		p := w.process(Config{})
		p.rows.Script(metafault.Rule{Op: metafault.Get, Prefix: "head/", Nth: 1, Do: metafault.Stale})
		p.must(w)
		wantPins(t, c)
	})
}

// More pins than the record of a chain holds stop it, loudly.
func TestTooManyPinsStopTheChain(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		var logs []*log
		for range maxChainPins + 1 {
			l := w.open("first")
			l.append(1, 1)
			l.quarantine(0, c)
			logs = append(logs, l)
		}
		c.absorb()
		p := w.process(Config{})
		_, err := p.settle(t.Context(), c.id)
		wantBlocked(t, err, "quarantined streams")
		if n := c.record().GetSettledTo(); n != 0 {
			t.Errorf("settled to %d", n)
		}
		if err := w.catalog().DeleteBrokenHead(t.Context(), logs[0].id); err != nil {
			t.Fatal(err)
		}
		p.must(w)
		if n := len(c.record().GetPins()); n != maxChainPins {
			t.Errorf("%d pins", n)
		}
	})
}

func TestPinsOfOneStreamAreJoinedWhenThereAreMany(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		bad, good := w.open("first"), w.open("first")
		bad.append(1, 1)
		c.absorb()
		bad.quarantine(0, c)
		for range maxChainPins + 6 {
			good.append(1, 1)
			c.land()
			bad.append(1, 1)
			c.land()
		}
		c.absorb()
		w.process(Config{}).must(w)
		wantPins(t, c, &indexpb.ChainPin{StreamId: bad.id.String(), From: 0, To: uint64(c.next)})
	})
}

// damage flips a bit of a stream's last entry in a slot, or of its block of the
// directory.
func (w *world) damage(key string, at int) {
	w.t.Helper()
	o, err := w.objects.Get(w.ctx, key)
	if err != nil {
		w.t.Fatal(err)
	}
	o.Body[at] ^= 1
	if _, err := w.objects.PutIfMatch(w.ctx, key, o.Body, o.ETag); err != nil {
		w.t.Fatal(err)
	}
}

// I2, I10: damage to what one stream has quarantines that stream, and no other.
func TestDamageIsOfOneStream(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(w *world, c *written, bad *log)
		pins [2]uint64 // kept
	}{
		{"a chunk in its slot", func(w *world, c *written, bad *log) {
			found, err := w.store.Lookup(w.ctx, c.id, bad.shard, []stream.ID{bad.id}, 0, c.next)
			if err != nil {
				w.t.Fatal(err)
			}
			w.damage(chain.SlotKey(c.id, found[1].At.Slot), int(found[1].At.Offset+found[1].At.Length)-8)
		}, [2]uint64{0, 3}},
		{"its block of a directory", func(w *world, c *written, bad *log) {
			row, err := w.catalog().GetDirectory(w.ctx, c.id.String(), 0)
			if err != nil {
				w.t.Fatal(err)
			}
			o, err := w.objects.Get(w.ctx, row.GetObject())
			if err != nil {
				w.t.Fatal(err)
			}
			// The chunk's header in the block names the stream.
			w.damage(row.GetObject(), strings.Index(string(o.Body), "NVCK"+string([]byte{1}))+17)
		}, [2]uint64{0, 3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			one(t, func(t *testing.T, w *world, ch *written) {
				bad := w.open("first") // the lowest id: its block is the first
				good := w.open("first")
				for range 3 {
					bad.append(1, 100)
					good.append(1, 100)
					ch.land()
				}
				ch.absorb()
				c.do(w, ch, bad)
				victim := bad
				p := w.process(Config{})
				if err := p.settleAll(t.Context(), w); err != nil {
					t.Fatal(err)
				}
				for _, l := range []*log{bad, good} {
					if l.head().GetQuarantine() != "" {
						victim = l
					}
				}
				victim.broken = true
				if victim.head().GetQuarantine() == "" || len(victim.head().GetPins()) == 0 {
					t.Errorf("head %v", victim.head())
				}
				w.wantSettled()
				w.check()
				wantPins(t, ch, &indexpb.ChainPin{StreamId: victim.id.String(), From: c.pins[0], To: c.pins[1]})
				if !strings.Contains(p.logged.String(), "stream quarantined") {
					t.Error("it was not said")
				}
			})
		})
	}
}

// Bytes that are damaged on their way, however often within one try, are no damage
// to the stream (I2).
func TestDamageOnTheWayQuarantinesNobody(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		l := w.open("first")
		l.append(1, 1000)
		c.absorb()
		p := w.process(Config{})
		p.objects.Script(fault.Rule{Op: fault.GetRange, Prefix: "chain/", Nth: 1, Times: 2, Do: fault.Corrupt})
		p.must(w)
		if n := p.objects.Counts()[fault.GetRange].Calls; n != 3 {
			t.Errorf("%d reads", n)
		}
	})
}

// I1: a log with a gap is quarantined, and nothing is folded over it.
func TestGapIsQuarantined(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		bad, good := w.open("first"), w.open("first")
		bad.append(1, 1)
		good.append(1, 1)
		c.absorb()
		p := w.process(Config{})
		p.must(w)
		was := bad.state
		bad.append(1, 1)
		c.b = nil // its flight is lost
		w.leaders[bad.shard].next--
		bad.append(1, 1)
		good.append(1, 1)
		c.absorb()
		bad.broken = true
		p.must(w)
		h := bad.head()
		if h.GetQuarantine() == "" || h.GetTail() != uint64(was.Tail) {
			t.Errorf("head %v", h)
		}
		wantPins(t, c, &indexpb.ChainPin{StreamId: bad.id.String(), From: 1, To: 2})
	})
}
