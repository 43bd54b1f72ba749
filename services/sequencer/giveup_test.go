package sequencer

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
)

// unreadable keeps a sequencer from absorbing anything.
func unreadable(c *cable) {
	c.follow(func(method string) meeting {
		if method == "AbsorbTo" {
			return fails
		}
		return passes
	})
}

// A shard that does not recover where it fell goes to another.
func TestAShardThatDoesNotRecoverIsGivenAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.lead(Config{})
		b, cb := w.startOver(Config{Weight: 1 << 30})
		eventually(t, "b lives", func() bool { return b.lease.valid() })
		c := w.start(Config{})
		eventually(t, "c lives", func() bool { return c.lease.valid() })
		unreadable(cb)
		d := w.stream(nil)
		a.append(batch(d, "a"), 0, 1)
		a.rows.SetOutage(true)
		eventually(t, "b claims it", b.holds)
		time.Sleep((stuckLeases + 1) * b.lease.ttl)
		if !serves(c)() {
			t.Fatal("it does not lead where it could")
		}
		c.append(batch(d, "b"), 1, 2)
		a.rows.SetOutage(false)
		a.stop()
		b.stop()
		c.stop()
	})
}

// Where it is the only one there is, a shard stays, however long it takes.
func TestAShardThatNobodyElseCanTakeStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l, c := w.leadOver(Config{})
		d := w.stream(nil)
		l.append(batch(d, "a"), 0, 1)
		unreadable(c)
		w.writer.disconnect()
		time.Sleep(10 * stuckLeases * l.lease.ttl)
		if !l.holds() {
			t.Error("it is given away, to nobody")
		}
		c.follow(nil)
		eventually(t, "it leads again", serves(l))
		l.append(batch(d, "b"), 1, 2)
		l.stop()
	})
}

// A node that takes shards and cannot recover them gets a few, not all.
func TestANodeThatRecoversNothingIsFoundOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWideWorld(t, 16)
		a, _ := w.wide(Config{Weight: 1})
		ds := a.load(t, 40)
		time.Sleep(2 * time.Second)
		ds.over.Store(true)
		ds.running.Wait()
		b, cb := w.startOver(Config{Weight: 1 << 30})
		unreadable(cb)
		eventually(t, "b knows the shards", func() bool { return b.shard() != nil })
		least := 16
		for began := time.Now(); time.Since(began) < 30*time.Minute; time.Sleep(time.Second) {
			na, _ := a.at(w.writer.address)
			nb, _ := b.at(w.writer.address)
			least = min(least, na+nb)
		}
		if least < 16-handoffsAtOnce {
			t.Errorf("%d of 16 shards were served at worst", least)
		}
		if na, _ := a.at(w.writer.address); na < 16-handoffsAtOnce {
			t.Errorf("half an hour later the healthy node serves %d of 16", na)
		}
		a.stop()
		b.stop()
	})
}

// slowHints is discovery that takes long to store a hint.
type slowHints struct {
	Registry
	slow atomic.Bool
}

func (s *slowHints) PutHint(ctx context.Context, h discovery.Hint) error {
	if s.slow.Load() {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		<-ctx.Done()
		return ctx.Err()
	}
	return s.Registry.PutHint(ctx, h)
}

// A hint that hangs keeps nobody from anything, and a successor that dies before
// it claims leaves a shard that its former holder takes back.
func TestSuccessorDiesWhileHintsHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		slow := &slowHints{Registry: w.registry}
		slow.slow.Store(true)
		w.discovery = slow
		l := w.start(Config{})
		w.discovery = nil
		eventually(t, "leads", serves(l))
		next := w.start(Config{})
		eventually(t, "the successor lives", func() bool { return next.lease.valid() })
		if err := l.Ready(); err != nil {
			t.Errorf("not ready: %v", err)
		}
		var met atomic.Bool
		lost := func(m string, after bool) error {
			if m == sequencerpb.SequencerService_TakeShard_FullMethodName {
				met.Store(true)
				next.rows.SetOutage(true)
				return reason.New(codes.Unavailable, "", "lost")
			}
			return nil
		}
		l.wire.onCall.Store(&lost)
		l.SetDraining(true)
		eventually(t, "the handoff is tried", met.Load)
		l.SetDraining(false)
		eventually(t, "the former holder leads again", serves(l))
		next.rows.SetOutage(false)
		l.stop()
		next.stop()
	})
}

// A stop waits for no takeover that storage holds up.
func TestStopDoesNotWaitForATakeover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWideWorld(t, 8)
		cfg := Config{LeaseTTL: 300 * time.Millisecond, StopTimeout: 2 * time.Second}
		l1, c1 := w.startOver(cfg)
		l2, c2 := w.startOver(cfg)
		eventually(t, "both lead", func() bool {
			if l1.shard() == nil || l2.shard() == nil {
				return false
			}
			a, _ := l1.at(w.writer.address)
			b, _ := l2.at(w.writer.address)
			return a+b == 8 && a > 0 && b > 0
		})
		hung := time.Minute
		c1.follow(func(method string) meeting {
			if method == "AbsorbTo" {
				time.Sleep(hung)
				return fails
			}
			return passes
		})
		c2.kill()
		l2.rows.SetOutage(true)
		w.writer.disconnect()
		time.Sleep(2 * time.Second)
		began := time.Now()
		l1.stop()
		if took := time.Since(began); took > 2*cfg.StopTimeout {
			t.Errorf("the stop took %v, it has %v", took, cfg.StopTimeout)
		}
		time.Sleep(hung) // what hung is over, too
		l2.rows.SetOutage(false)
		l2.stop()
	})
}

// Who said yes to a shard and then cannot take it sends those who ask on to who
// leads it.
func TestALifeThatCannotTakeSendsOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.lead(Config{})
		b, cb := w.startOver(Config{})
		eventually(t, "b lives", func() bool { return b.lease.valid() })
		d := w.stream(nil)
		a.append(batch(d, "a"), 0, 1)
		var once atomic.Bool
		sever := func(m string, after bool) error {
			if m == sequencerpb.SequencerService_TakeShard_FullMethodName && !after && once.CompareAndSwap(false, true) {
				cb.sever(w.writer.address, true)
				time.Sleep(10 * time.Millisecond)
			}
			return nil
		}
		a.wire.onCall.Store(&sever)
		a.SetDraining(true)
		eventually(t, "the handoff is tried", once.Load)
		a.SetDraining(false)
		eventually(t, "the former holder leads again", serves(a))
		began := time.Now()
		_, err := b.Append(t.Context(), batch(d, "c"))
		wantRefusal(t, err, reason.NotLeader)
		if took := time.Since(began); took > 2*strangerPatience {
			t.Errorf("told after %v", took)
		}
		cb.sever(w.writer.address, false)
		a.stop()
		b.stop()
	})
}

// A list of chain-writers that is empty, because discovery lost its state, is no
// reason to seal a chain whose writer answers.
func TestAnEmptyListOfWritersSealsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := w.lead(Config{})
		d := w.stream(nil)
		l.append(batch(d, "a"), 0, 1)
		chain := w.writer.chainID()
		next := w.start(Config{})
		eventually(t, "the successor has a link", func() bool {
			_, err := next.links.get(t.Context())
			return err == nil
		})
		if err := w.registry.Deregister(t.Context(), "writer"); err != nil {
			t.Fatal(err)
		}
		l.SetDraining(true)
		eventually(t, "the successor leads", serves(next))
		if state := w.chainState(chain); state != indexpb.ChainState_CHAIN_STATE_OPEN {
			t.Errorf("the chain is %v", state)
		}
		next.append(batch(d, "b"), 1, 2)
		l.stop()
		next.stop()
	})
}

// A stop is not ready again, whatever recovers meanwhile.
func TestAStopIsNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := w.lead(Config{})
		d := w.stream(nil)
		w.writer.script(always(hold))
		pending := l.pending(batch(d, "a"))
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			l.cancel()
			<-l.ended
		}()
		eventually(t, "it says so", func() bool { return l.Ready() != nil })
		l.reportReady()
		if l.Ready() == nil {
			t.Error("ready while it stops")
		}
		w.writer.release()
		receive(t, pending)
		<-stopped
	})
}

// A recovery that fails half way begins again with every binding.
func TestBindingsSurviveAFailedAbsorption(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{})
	c := catalog.New(w.index)
	chain := func(holds bool) string {
		id := stream.NewChainID().String()
		r := &indexpb.Chain{ChainId: id, WriterLife: stream.NewLifeID().String(), State: indexpb.ChainState_CHAIN_STATE_OPEN, AbsorbedTo: 5, AbsorbingTo: 5}
		if holds {
			r.Progress = []*indexpb.ShardProgress{{Shard: 0, Epoch: 1}}
		}
		if _, err := c.PutChain(t.Context(), r, catalog.Absent); err != nil {
			t.Fatal(err)
		}
		l.chains.mu.Lock()
		l.chains.absorbed[id] = 5
		l.chains.mu.Unlock()
		return id
	}
	var want []string
	r := &recovery{svc: l.Service, shard: l.shard(), next: l.shard().link, record: &indexpb.Shard{}}
	for _, id := range []string{chain(false), chain(true), stream.NewChainID().String()} {
		want = append(want, id)
		r.record.Bindings = append(r.record.Bindings, &indexpb.Binding{ChainId: id, Cut: 5, CutKnown: true})
	}
	if err := r.absorb(t.Context()); err == nil {
		t.Fatal("a chain without a record is absorbed")
	}
	for i, b := range r.record.GetBindings() {
		if b.GetChainId() != want[i] {
			t.Errorf("binding %d is of chain %s, not %s", i, b.GetChainId(), want[i])
		}
	}
}

// While a shard recovers because its chain is lost, what was committed is read
// from memory; before it is given away that ends (I4).
func TestReadsWhileAShardRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l, c := w.leadOver(Config{})
		next := w.start(Config{})
		next.SetDraining(true)
		eventually(t, "the other lives", func() bool { return next.lease.valid() })
		d := w.stream(nil)
		l.append(batch(d, "a"), 0, 1)
		st, _ := l.numbered(batch(d))
		var last error // what the stream's state was at the last change of the shard's row
		l.rows.Script(fault.Rule{Op: fault.Put, Prefix: "shard/", Hook: func(context.Context, fault.Op, string) error {
			st.mu.Lock()
			defer st.mu.Unlock()
			_, last = st.stateLocked()
			return nil
		}})
		unreadable(c)
		w.writer.disconnect()
		time.Sleep(l.lease.ttl)
		if serves(l)() {
			t.Fatal("it does not recover")
		}
		if st := l.state(d); st.GetTail() != 1 {
			t.Errorf("state %v", st)
		}
		next.SetDraining(false)
		time.Sleep(stuckLeases * l.lease.ttl)
		eventually(t, "the other leads", serves(next))
		if last == nil {
			t.Error("it still answered when it gave the shard away")
		}
		next.append(batch(d, "b"), 1, 2)
		l.stop()
		next.stop()
	})
}
