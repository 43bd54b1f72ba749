package settler

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/chain"
	metafault "github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/settler/v1"
)

// repair repairs a stream, once.
func (p *process) repair(ctx context.Context, w *world, l *log) error {
	p.chains = w.store
	r := &repair{engine: p.engine, id: l.id, name: l.id.String()}
	err := r.run(ctx)
	if err == nil {
		l.broken = false
	}
	return err
}

// slotAt returns the key of the slot that holds a stream's entry, and the last bytes
// of its chunk there.
func (l *log) slotAt(c *written, n int) (key string, at int) {
	l.w.t.Helper()
	found, err := l.w.store.Lookup(l.w.ctx, c.id, l.shard, []stream.ID{l.id}, 0, c.next)
	if err != nil {
		l.w.t.Fatal(err)
	}
	e := found[n]
	return chain.SlotKey(c.id, e.At.Slot), int(e.At.Offset+e.At.Length) - 8
}

// wantRepaired sees that nothing keeps a stream from being served, and that what was
// pinned for it is reclaimed.
func (w *world) wantRepaired(l *log) {
	w.t.Helper()
	h := l.head()
	if h.GetQuarantine() != "" || len(h.GetPins()) > 0 {
		w.t.Errorf("quarantined: %s, pins %v", h.GetQuarantine(), h.GetPins())
	}
	for _, c := range w.chains {
		for _, p := range c.record().GetPins() {
			if p.GetStreamId() == l.id.String() {
				w.t.Errorf("pinned still: %v", p)
			}
		}
	}
}

// twoChains is a stream whose second chunk is damaged in its slot, with more of it in
// another chain; settled as far as that can be. mend undoes the damage.
func (w *world) twoChains() (bad *log, mend func()) {
	w.t.Helper()
	a, b := w.newChain(), w.newChain()
	for n := range stream.Shard(shards) {
		w.lead(n, a)
	}
	bad = w.open("first", 0)
	good := w.open("first", 0)
	for range 3 {
		bad.append(2, 100)
		good.append(1, 100)
		a.land()
	}
	bad.trim(1)
	a.absorb()
	key, at := bad.slotAt(a, 1)
	w.damage(key, at)
	bad.broken = true
	p := w.process(Config{})
	w.settleAll(p)
	w.lead(0, b)
	bad.append(1, 50)
	bad.token("t")
	good.append(1, 50)
	b.absorb()
	bad.append(2, 10)
	b.absorb()
	a.seal()
	w.settleAll(p)
	if len(a.record().GetPins()) == 0 || len(b.record().GetPins()) == 0 {
		w.t.Fatal("nothing is pinned")
	}
	return bad, func() { w.damage(key, at) }
}

func (w *world) settleAll(p *process) {
	w.t.Helper()
	if err := p.settleAll(w.ctx, w); err != nil {
		w.t.Fatal(err)
	}
}

// I1, I2: what was pinned is folded by the change that lifts the quarantine, in order
// of positions over all chains; then the pins go, each behind a marker.
func TestRepairFoldsWhatIsPinned(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		bad, mend := w.twoChains()
		mend()
		before := len(w.due(queueReclaim))
		pins := 0
		for _, c := range w.chains {
			pins += len(c.record().GetPins())
		}
		p := w.process(Config{})
		if err := p.repair(t.Context(), w, bad); err != nil {
			t.Fatal(err)
		}
		w.wantRepaired(bad)
		w.check()
		if n := len(w.due(queueReclaim)) - before; n != pins {
			t.Errorf("%d markers, of %d pins", n, pins)
		}
		// Again: nothing is left to do.
		h := bad.head()
		if err := p.repair(t.Context(), w, bad); err != nil {
			t.Fatal(err)
		}
		now := bad.head()
		now.Attempt = h.GetAttempt()
		if !proto.Equal(h, now) || len(w.due(queueReclaim))-before != pins {
			t.Error("the second repair changed something")
		}
	})
}

// A stream whose log does not fold stays as it is, and it is said where.
func TestRepairThatCannotFoldChangesNothing(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(w *world, bad *log)
		why  string
	}{
		{"damaged still", func(*world, *log) {}, "chunk at 2 in slot 1"},
		{"its slot is gone", func(w *world, _ *log) {
			if err := w.objects.Delete(w.ctx, chain.SlotKey(w.chains[0].id, 1)); err != nil {
				w.t.Fatal(err)
			}
		}, "slot 1 of chain"},
		{"a directory is gone", func(w *world, _ *log) {
			row, err := w.catalog().GetDirectory(w.ctx, w.chains[0].id.String(), 0)
			if err == nil {
				err = w.objects.Delete(w.ctx, row.GetObject())
			}
			if err != nil {
				w.t.Fatal(err)
			}
		}, "directory"},
		{"a directory is damaged", func(w *world, _ *log) {
			row, err := w.catalog().GetDirectory(w.ctx, w.chains[0].id.String(), 0)
			if err != nil {
				w.t.Fatal(err)
			}
			w.damage(row.GetObject(), int(row.GetSize())-20)
		}, "directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			run(t, func(t *testing.T, w *world) {
				bad, _ := w.twoChains()
				c.do(w, bad)
				h := bad.head()
				var pins []*indexpb.ChainPin
				for _, c := range w.chains {
					pins = append(pins, c.record().GetPins()...)
				}
				err := w.process(Config{}).repair(t.Context(), w, bad)
				if _, is := err.(*errRepair); !is || !strings.Contains(err.Error(), c.why) { //nolint:errorlint // exactly it
					t.Errorf("error %v, want %q", err, c.why)
				}
				now := bad.head()
				now.Attempt = h.GetAttempt()
				if !proto.Equal(h, now) {
					t.Errorf("head %v, was %v", now, h)
				}
				var left []*indexpb.ChainPin
				for _, c := range w.chains {
					left = append(left, c.record().GetPins()...)
				}
				if !proto.Equal(&indexpb.Chain{Pins: pins}, &indexpb.Chain{Pins: left}) {
					t.Errorf("pins %v, were %v", left, pins)
				}
			})
		})
	}
}

// A block of a directory that is damaged is made again from the slots, if they prove
// it: no entry that did not count is taken for one that did (I1).
func TestRepairMakesABlockAgain(t *testing.T) {
	for _, intact := range []bool{true, false} {
		t.Run(fmt.Sprintf("slots intact: %v", intact), func(t *testing.T) {
			one(t, func(t *testing.T, w *world, c *written) {
				bad, good := w.open("first"), w.open("first")
				for range 3 {
					bad.append(1, 100)
					good.append(1, 100)
					c.land()
				}
				c.absorb()
				row, err := w.catalog().GetDirectory(w.ctx, c.id.String(), 0)
				if err != nil {
					t.Fatal(err)
				}
				o, err := w.objects.Get(w.ctx, row.GetObject())
				if err != nil {
					t.Fatal(err)
				}
				w.damage(row.GetObject(), strings.Index(string(o.Body), "NVCK"+string([]byte{1}))+17)
				if err := w.process(Config{}).settleAll(t.Context(), w); err != nil {
					t.Fatal(err)
				}
				victim := w.logs[slices.IndexFunc(w.logs, func(l *log) bool { return l.head().GetQuarantine() != "" })]
				victim.broken = true
				if !intact {
					if err := w.objects.Delete(w.ctx, chain.SlotKey(c.id, 2)); err != nil {
						t.Fatal(err)
					}
				}
				err = w.process(Config{}).repair(t.Context(), w, victim)
				if !intact {
					if err == nil || !strings.Contains(err.Error(), "cannot be made again") || victim.head().GetQuarantine() == "" {
						t.Errorf("error %v, head %v", err, victim.head())
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				w.wantRepaired(victim)
				w.check()
			})
		})
	}
}

// I2, I6, I11: whatever a repair leaves when it dies, the next one finishes; and a
// call that fails, in whatever way, is no harm.
func TestRepairDiesAnywhere(t *testing.T) {
	var rows, objects int
	in(t, "clean", func(w *world) {
		bad, mend := w.twoChains()
		mend()
		p := w.process(Config{})
		if err := p.repair(w.ctx, w, bad); err != nil {
			t.Fatal(err)
		}
		rows, objects = p.calls()
	})
	one := func(what string, script func(p *process)) {
		in(t, what, func(w *world) {
			bad, mend := w.twoChains()
			mend()
			p := w.process(Config{})
			script(p)
			p.die(w.ctx, func(ctx context.Context) { _ = p.repair(ctx, w, bad) })
			// Meanwhile it is settled on.
			bad.append(1, 7)
			w.chains[1].absorb()
			q := w.process(Config{})
			w.settleAll(q)
			if err := q.repair(w.ctx, w, bad); err != nil {
				w.t.Errorf("the next repair: %v", err)
			}
			w.settleAll(q)
			w.wantRepaired(bad)
			w.wantSettled()
			w.check()
		})
	}
	for n := 1; n <= rows && !t.Failed(); n++ {
		for _, when := range []metafault.When{metafault.Before, metafault.After} {
			one(fmt.Sprintf("killed at metastore call %d of %d, %v", n, rows, when), func(p *process) { p.rows.KillAt(n, when) })
		}
		for _, do := range []metafault.Action{metafault.FailBefore, metafault.LoseReply, metafault.OwnConflict, metafault.Stale} {
			one(fmt.Sprintf("metastore call %d of %d, %v", n, rows, do), func(p *process) { p.rows.Script(metafault.Rule{Nth: n, Do: do}) })
		}
	}
	for n := 1; n <= objects && !t.Failed(); n++ {
		for _, when := range []fault.When{fault.Before, fault.After} {
			one(fmt.Sprintf("killed at object call %d of %d, %v", n, objects, when), func(p *process) { p.objects.KillAt(n, when) })
		}
		for _, do := range []fault.Action{fault.FailBefore, fault.LoseReply, fault.Corrupt, fault.Truncate} {
			one(fmt.Sprintf("object call %d of %d, %v", n, objects, do), func(p *process) { p.objects.Script(fault.Rule{Nth: n, Do: do}) })
		}
	}
}

// wantFolded sees that a stream that is not quarantined lacks nothing that is pinned for it.
func (w *world) wantFolded(l *log) {
	w.t.Helper()
	if l.head().GetQuarantine() != "" {
		return
	}
	for _, c := range w.chains {
		for _, p := range c.record().GetPins() {
			found, err := w.store.Lookup(w.ctx, c.id, l.shard, []stream.ID{l.id}, stream.Slot(p.GetFrom()), stream.Slot(p.GetTo()))
			if err != nil {
				w.t.Fatal(err)
			}
			h := l.head()
			at := stream.Position{Epoch: stream.Epoch(h.GetFoldedEpoch()), Entry: stream.EntryNo(h.GetFoldedEntry())}
			for _, e := range found {
				if at.Less(stream.Position{Epoch: e.Epoch, Entry: e.EntryNo}) {
					w.t.Errorf("not quarantined, folded to %v, and epoch %d entry %d is pinned", at, e.Epoch, e.EntryNo)
				}
			}
		}
	}
}

// I2: a settler, or another repair, does its work between any two calls of a repair,
// and a repair between any two calls of a settler: no pin is missed. No stream that is
// not quarantined lacks what is pinned for it.
func TestRepairBesideSettlersAndRepairs(t *testing.T) {
	// what is above the pins is absorbed and not settled.
	begin := func(w *world) *log {
		bad, mend := w.twoChains()
		mend()
		for range 2 {
			bad.append(1, 9)
			bad.token("u")
			w.chains[1].absorb()
		}
		return bad
	}
	settle := func(w *world, p *process, _ *log) { _ = p.settleAll(w.ctx, w) }
	repair := func(w *world, p *process, l *log) { _ = p.repair(w.ctx, w, l) }
	type act func(w *world, p *process, l *log)
	for _, c := range []struct {
		name          string
		first, second act
	}{{"a repair within a settler", settle, repair}, {"a settler within a repair", repair, settle}, {"two repairs", repair, repair}} {
		t.Run(c.name, func(t *testing.T) {
			var calls int
			in(t, "clean", func(w *world) {
				l := begin(w)
				p := w.process(Config{})
				c.first(w, p, l)
				calls, _ = p.calls()
			})
			for n := 1; n <= calls && !t.Failed(); n++ {
				in(t, fmt.Sprintf("at call %d of %d", n, calls), func(w *world) {
					l := begin(w)
					p, q := w.process(Config{}), w.process(Config{})
					p.rows.Script(metafault.Rule{Nth: n, Do: metafault.Pass, Hook: func(context.Context, metafault.Op, string) error {
						c.second(w, q, l)
						w.wantFolded(l)
						return nil
					}})
					c.first(w, p, l)
					w.wantFolded(l)
					w.settleAll(q)
					if err := q.repair(w.ctx, w, l); err != nil {
						w.t.Errorf("the last repair: %v", err)
					}
					w.settleAll(q)
					w.wantRepaired(l)
					w.wantSettled()
					w.check()
				})
			}
		})
	}
}

// I2: nor is one missed when a settler is held up just before it records what it pins,
// from any call of a repair until the quarantine is lifted.
func TestRepairBesideASettlerThatIsHeldUp(t *testing.T) {
	begin := func(w *world) *log {
		bad, mend := w.twoChains()
		mend()
		bad.append(1, 9)
		bad.token("u")
		w.chains[1].absorb()
		return bad
	}
	var calls int
	in(t, "clean", func(w *world) {
		l := begin(w)
		p := w.process(Config{})
		if err := p.repair(w.ctx, w, l); err != nil {
			t.Fatal(err)
		}
		calls, _ = p.calls()
	})
	for n := 1; n <= calls && !t.Failed(); n++ {
		in(t, fmt.Sprintf("from call %d of %d", n, calls), func(w *world) {
			l := begin(w)
			p, q := w.process(Config{}), w.process(Config{})
			release, released := make(chan struct{}), false
			q.rows.Script(metafault.Rule{Op: metafault.Put, Prefix: "chain/", Do: metafault.Pass, Hook: func(context.Context, metafault.Op, string) error {
				<-release
				return nil
			}})
			var work sync.WaitGroup
			call := 0
			p.rows.Script(metafault.Rule{Do: metafault.Pass, Hook: func(context.Context, metafault.Op, string) error {
				switch call++; {
				case call == n:
					work.Go(func() { _ = q.settleAll(w.ctx, w) })
					time.Sleep(time.Second) // until it is held up
				case call > n && !released && l.head().GetQuarantine() == "":
					released = true
					close(release)
					time.Sleep(time.Second) // until its change was made, or has failed
				}
				w.wantFolded(l)
				return nil
			}})
			if err := p.repair(w.ctx, w, l); err != nil {
				w.t.Errorf("the repair: %v", err)
			}
			if !released {
				close(release)
			}
			work.Wait()
			w.wantFolded(l)
			w.settleAll(q)
			w.wantRepaired(l)
			w.wantSettled()
			w.check()
		})
	}
}

// The RPC settles what is absorbed first, so that a quarantine that the leader found
// is repaired at once; a stream that is gone, deleted or sound has nothing to repair.
func TestRepairStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t.Context(), t)
		defer w.close()
		c := w.newChain()
		for n := range stream.Shard(shards) {
			w.lead(n, c)
		}
		l, sound, deleted := w.open("first"), w.open("first"), w.open("first")
		for _, l := range []*log{l, sound, deleted} {
			l.append(2, 10)
		}
		c.absorb()
		l.quarantine(0, c)
		deleted.quarantine(0, c)
		if err := w.catalog().DeleteBrokenHead(t.Context(), deleted.id); err != nil {
			t.Fatal(err)
		}
		s, err := New(Config{NodeID: "s"}, Deps{Objects: w.objects, Index: w.index, Registry: w.nodes, Now: time.Now})
		if err != nil {
			t.Fatal(err)
		}
		defer s.chains.Close()
		for _, id := range []string{l.id.String(), sound.id.String(), deleted.id.String(), stream.NewID().String()} {
			res, err := s.RepairStream(t.Context(), &settlerpb.RepairStreamRequest{StreamId: id})
			if err != nil || !res.GetRepaired() {
				t.Errorf("stream %s: %v, %v", id, res, err)
			}
			if id == l.id.String() && res.GetEntries() != 1 {
				t.Errorf("%d entries", res.GetEntries())
			}
		}
		l.broken = false
		w.wantRepaired(l)
		w.wantSettled()
		l.check(0)
		if _, err := s.RepairStream(t.Context(), &settlerpb.RepairStreamRequest{StreamId: "x"}); reason.Code(err) != codes.InvalidArgument {
			t.Errorf("no id: %v", err)
		}
	})
}
