package settler

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/history"
	metafault "github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/settled"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// one is a world with one chain that all shards are led with.
func one(t *testing.T, f func(t *testing.T, w *world, c *written)) {
	run(t, func(t *testing.T, w *world) {
		c := w.newChain()
		for n := range stream.Shard(shards) {
			w.lead(n, c)
		}
		f(t, w, c)
	})
}

// must settles all and sees that it worked.
func (p *process) must(w *world) {
	w.t.Helper()
	if err := p.settleAll(w.ctx, w); err != nil {
		w.t.Fatal(err)
	}
	w.wantSettled()
	w.check()
}

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

// The reply to the change of a head was lost, and what was read then did not show
// it: the run may be named, so its bit stays (I11).
func TestUncertainRunIsLeftToItsJudge(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		l, other := w.open("first"), w.open("first")
		l.append(1, 100)
		other.append(1, 100)
		c.absorb()
		p := w.process(Config{})
		prefix := "head/" + l.id.String()
		p.rows.Script(metafault.Rule{Op: metafault.Put, Prefix: prefix, Nth: 1, Do: metafault.OwnConflict})
		p.rows.Script(metafault.Rule{Op: metafault.Get, Prefix: prefix, Nth: 3, Do: metafault.Stale})
		p.must(w)
		due := w.due(queueSettled)
		if len(due) != 1 {
			t.Fatalf("markers %v", due)
		}
		w.judge(due[0].GetObject())
		w.check()
	})
}

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

// The judge of an object condemns it while its settler is about to change heads
// (I11).
func TestCondemnedObjectIsNotNamed(t *testing.T) {
	for _, at := range []int{1, 3, 5} {
		t.Run(fmt.Sprint("before head ", at), func(t *testing.T) {
			one(t, func(t *testing.T, w *world, c *written) {
				for range 5 {
					w.open("first").append(1, 100)
				}
				c.absorb()
				p := w.process(Config{})
				var once sync.Mutex
				condemned := ""
				p.rows.Script(metafault.Rule{Op: metafault.Put, Prefix: "head/", Nth: at, Times: 1, Hook: func(context.Context, metafault.Op, string) error {
					once.Lock()
					defer once.Unlock()
					condemned = w.due(queueSettled)[0].GetObject()
					w.judge(condemned)
					return nil
				}})
				p.must(w)
				r, _, err := w.catalog().GetSettled(t.Context(), condemned)
				if err != nil {
					t.Fatal(err)
				}
				runs := w.named()[condemned]
				if len(runs) > 0 != (r.GetState() == indexpb.SettledState_SETTLED_STATE_ADOPTED) {
					t.Errorf("%d runs are named and it is %s", len(runs), r.GetState())
				}
			})
		})
	}
}

// judge does what the judge of an object does.
func (w *world) judge(object string) {
	w.t.Helper()
	ix := w.catalog()
	_, _, err := ix.UpdateSettled(w.ctx, object, func(r *indexpb.SettledObject) (bool, error) {
		r.State = indexpb.SettledState_SETTLED_STATE_CONDEMNED
		return true, nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	o, err := w.objects.Get(w.ctx, object)
	if err != nil {
		w.t.Fatal(err)
	}
	runs, err := settled.Parse(o.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	live := make([]bool, len(runs))
	named := false
	for i, r := range runs {
		h, _, err := ix.BumpHead(w.ctx, r.StreamID)
		if err != nil {
			w.t.Fatal(err)
		}
		live[i], err = history.Names(w.ctx, w.load(r.StreamID), h, &indexpb.Ref{
			Object: object, Run: uint32(i), FirstSeq: uint64(r.First), NextSeq: uint64(r.Next),
		})
		if err != nil {
			w.t.Fatal(err)
		}
		named = named || live[i]
	}
	if !named {
		return // it would be deleted; the row stays
	}
	_, _, err = ix.UpdateSettled(w.ctx, object, func(r *indexpb.SettledObject) (bool, error) {
		r.State, r.Live = indexpb.SettledState_SETTLED_STATE_ADOPTED, settled.NewLive(len(runs), func(run int) bool { return live[run] })
		return true, nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// I1, I2: what a head says at the time of its change counts, not what it said
// when the objects were made.
func TestHeadThatMovedIsFoldedAnew(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		for range 4 {
			w.open("first").append(3, 100)
		}
		c.absorb()
		p, other := w.process(Config{}), w.process(Config{})
		p.rows.Script(metafault.Rule{Op: metafault.Put, Prefix: "head/", Nth: 1, Times: 1, Hook: func(context.Context, metafault.Op, string) error {
			// Another settles a part of what this one is about to.
			_, err := other.settle(context.Background(), c.id)
			return err
		}})
		p.must(w)
	})
	one(t, func(t *testing.T, w *world, c *written) {
		l := w.open("first")
		l.append(3, 100)
		c.absorb()
		p := w.process(Config{})
		p.rows.Script(metafault.Rule{Op: metafault.Put, Prefix: "head/", Nth: 1, Times: 1, Hook: func(context.Context, metafault.Op, string) error {
			_, err := w.catalog().TouchHead(context.Background(), l.id, 7)
			return err
		}})
		p.must(w)
		if l.head().GetOpenedEpoch() != 7 {
			t.Error("the leader's touch was undone")
		}
		if n := p.objects.Counts()[fault.PutIfAbsent].Calls; n != 1 {
			t.Errorf("%d objects for a head that a leader touched", n)
		}
	})
}

// What is trimmed is not written again.
func TestTrimmedChunksAreNotStored(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		whole, part := w.open("first"), w.open("first")
		for range 4 {
			whole.append(2, 1000)
			part.append(2, 1000)
			c.land()
		}
		whole.trim(8)
		part.trim(5)
		c.absorb()
		p := w.process(Config{})
		p.must(w)
		if h := whole.head(); len(h.GetRefs()) != 0 || h.GetDroppedTo() != 8 || h.GetTail() != 8 {
			t.Errorf("%v", h)
		}
		if h := part.head(); len(h.GetRefs()) != 1 || h.GetRefs()[0].GetFirstSeq() != 4 || h.GetDroppedTo() != 5 {
			t.Errorf("%v", h)
		}
		if n := p.objects.Counts()[fault.PutIfAbsent].Written; n > 6000 {
			t.Errorf("%d bytes written for 4 records of 1000", n)
		}
	})
}

// Refs that are trimmed go with a marker that leads to them.
func TestTrimDropsRefs(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		l := w.open("first")
		p := w.process(Config{})
		for range 5 {
			l.append(2, 100)
			c.absorb()
			p.must(w)
		}
		l.trim(5)
		c.absorb()
		p.must(w)
		if h := l.head(); len(h.GetRefs()) != 3 || h.GetDroppedTo() != 5 {
			t.Errorf("%v", h)
		}
		due := w.due(queueUnref)
		if len(due) != 1 || len(due[0].GetRefs()) != 2 || due[0].GetStreamId() != l.id.String() {
			t.Fatalf("markers %v", due)
		}
		if wait := time.Until(time.UnixMilli(due[0].GetAt())); wait < 10*time.Minute-time.Second {
			t.Errorf("what may be read still is dropped in %s", wait)
		}
	})
}

// I8: what a head names is bounded, over any number of spans, and all is found.
func TestHistoryOfManySpans(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		l := w.open("first")
		p := w.process(Config{RewriteRuns: -1})
		for i := range 1200 {
			l.append(1, 10)
			c.absorb()
			if _, err := p.settle(t.Context(), c.id); err != nil {
				t.Fatal(err)
			}
			if h := l.head(); proto.Size(h) > 32<<10 {
				t.Fatalf("span %d: a head of %d bytes", i, proto.Size(h))
			}
		}
		h := l.head()
		if n := len(h.GetPages()); n == 0 || h.GetPages()[0].GetLevel() < 2 {
			t.Errorf("pages %v", h.GetPages())
		}
		l.check(0)
		l.trim(1000)
		l.append(1, 10)
		c.absorb()
		if _, err := p.settle(t.Context(), c.id); err != nil {
			t.Fatal(err)
		}
		l.check(0)
		refs := 0
		for _, d := range w.due(queueUnref) {
			refs += len(d.GetRefs()) + len(d.GetPages())
		}
		if refs == 0 {
			t.Error("nothing was dropped")
		}
	})
}

// A stream that is larger than the memory is written in pieces, and its head
// changed once.
func TestStreamLargerThanMemory(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		large, small := w.open("first"), w.open("first")
		for range 40 {
			large.append(3, 100_000)
			small.append(1, 100)
			c.land()
		}
		c.absorb()
		const memory = 8 << 20 // of one span
		p := w.process(Config{SettleMemory: settlesAtOnce * memory})
		var mu sync.Mutex
		held, most := int64(0), int64(0) // read and not written yet
		p.objects.Script(fault.Rule{Op: fault.PutIfAbsent, Prefix: "settled/", Do: fault.Pass, Hook: func(context.Context, fault.Op, string) error {
			mu.Lock()
			defer mu.Unlock()
			counts := p.objects.Counts()
			held = counts[fault.GetRange].Read - counts[fault.PutIfAbsent].Written
			most = max(most, held)
			return nil
		}})
		p.must(w)
		if most > memory/2 {
			t.Errorf("%d bytes were held, of a memory of %d", most, memory)
		}
		counts := p.objects.Counts()
		if read, entries := counts[fault.GetRange].Read, int64(40*300_000); read > entries*105/100 {
			t.Errorf("%d bytes were read for %d of entries", read, entries)
		}
		if n := p.index.calls()["PutHead"]; n != 2 {
			t.Errorf("%d changes of 2 heads", n)
		}
		if n := len(large.head().GetRefs()); n < 5 || n > 8 {
			t.Errorf("%d refs", n)
		}
	})
}

// Many streams and little memory: several groups, each byte read once.
func TestGroupsWithinTheMemory(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		var logs []*log
		for range 40 {
			logs = append(logs, w.open("first"))
		}
		for range 10 {
			for _, l := range logs {
				l.append(1, 30_000)
			}
			c.land()
		}
		c.absorb()
		const memory = 8 << 20
		p := w.process(Config{SettleMemory: settlesAtOnce * memory})
		p.must(w)
		counts := p.objects.Counts()
		// Gaps that are short are read along; which there are depends on the streams' ids.
		if read, entries := counts[fault.GetRange].Read, int64(40*10*30_000); read > 2*entries {
			t.Errorf("%d bytes were read for %d of entries", read, entries)
		}
		if n := counts[fault.PutIfAbsent].Calls; n < 6 || n > 12 {
			t.Errorf("%d objects", n)
		}
		infos, err := w.objects.List(t.Context(), "settled/", "", 1000)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range infos {
			if o.Size > memory/4 {
				t.Errorf("an object of %d bytes", o.Size)
			}
		}
		if n := p.index.calls()["PutHead"]; n != 40 {
			t.Errorf("%d changes of 40 heads", n)
		}
	})
}

// Objects are shared within a bucket only.
func TestObjectsAreOfOneBucket(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		for i := range 20 {
			w.open([]string{"first", "second"}[i%2]).append(1, 100)
		}
		c.absorb()
		w.process(Config{}).must(w)
		buckets := map[string]string{}
		for _, l := range w.logs {
			for _, r := range l.head().GetRefs() {
				if b := buckets[r.GetObject()]; b != "" && b != l.bucket {
					t.Errorf("object %s is of %s and %s", r.GetObject(), b, l.bucket)
				}
				buckets[r.GetObject()] = l.bucket
			}
		}
		if len(buckets) != 2 {
			t.Errorf("%d objects, want one per bucket", len(buckets))
		}
	})
}

// A span reads the records of many shards at once, of few one by one (I7).
func TestRecordsOfManyShardsAreListed(t *testing.T) {
	for by, want := range map[int]map[string]int{shards: {"GetShard": shards}, shards - 1: {"ListShards": 1}} {
		one(t, func(t *testing.T, w *world, c *written) {
			for n := range stream.Shard(shards) {
				w.open("first", n).append(1, 100)
			}
			c.absorb()
			p := w.process(Config{})
			p.listFrom = by
			before := p.index.calls()
			p.must(w)
			after := p.index.calls()
			for _, method := range []string{"GetShard", "ListShards"} {
				if n := after[method] - before[method]; n != want[method] {
					t.Errorf("%d calls of %s, want %d", n, method, want[method])
				}
			}
		})
	}
}

// What a span costs: of each head one read and one change, and a few per object
// and span (I7).
func TestCostOfASpan(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		const streams = 50
		for range streams {
			w.open("first").append(2, 100)
		}
		c.absorb()
		p := w.process(Config{})
		if _, err := p.settle(t.Context(), c.id); err != nil {
			t.Fatal(err)
		}
		want := map[string]int{
			"GetHead": streams, "PutHead": streams,
			"GetDescriptor": streams, // once an hour
			"GetChain":      2, "PutChain": 1, "ListDirectories": 1, "GetShard": shards,
			"PutDue": 2, "DeleteDue": 1, // of the object and of what may be reclaimed
			"PutSettledObject": 3, // made, touched, adopted
		}
		got := p.index.calls()
		for method, n := range got {
			if want[method] != n {
				t.Errorf("%d calls of %s, want %d", n, method, want[method])
			}
		}
		objects := p.objects.Counts()
		if objects[fault.Get].Calls != 1 || objects[fault.GetRange].Calls != 1 || objects[fault.PutIfAbsent].Calls != 1 {
			t.Errorf("object calls %v", objects)
		}
		puts := 0
		for op, n := range p.rows.Counts() {
			if op == metafault.Put {
				puts = n.Calls
			}
		}
		if want := streams + 3 + 2 + 1; puts != want {
			t.Errorf("%d rows were written, want %d", puts, want)
		}
		// Once more costs little: nothing is to do.
		before := p.index.calls()["GetHead"]
		if _, err := p.settle(t.Context(), c.id); err != nil || p.index.calls()["GetHead"] != before {
			t.Errorf("a settled chain: %v", err)
		}
	})
}

// A span is limited, and settling goes on where it ended.
func TestSpanIsLimited(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		l := w.open("first")
		for range 6 {
			l.append(1, 100_000)
			c.absorb()
		}
		p := w.process(Config{SettleBytes: 250_000})
		for _, want := range []stream.Slot{2, 4, 6, 6} {
			if to, err := p.settle(t.Context(), c.id); err != nil || to != want {
				t.Errorf("settled to %d, %v, want %d", to, err, want)
			}
		}
		w.check()
		if got := p.metrics.settledBytes.Load(); got < 600_000 || got > 610_000 {
			t.Errorf("%d bytes settled", got)
		}
	})
}

func TestRateIsLimited(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		w.open("first").append(10, 90_000)
		c.absorb()
		p := w.process(Config{SettleRate: 100_000})
		start := time.Now()
		p.must(w)
		if d := time.Since(start); d < 7*time.Second || d > 12*time.Second {
			t.Errorf("900 KB at 100 KB/s took %s", d)
		}
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
