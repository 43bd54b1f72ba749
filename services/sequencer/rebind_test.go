package sequencer

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// chainState returns the state of a chain as its record says.
func (w *world) chainState(id string) indexpb.ChainState {
	w.t.Helper()
	res, err := w.index.GetChain(w.t.Context(), &indexpb.GetChainRequest{ChainId: id})
	if err != nil {
		w.t.Fatal(err)
	}
	return res.GetChain().GetState()
}

// chainID returns the id of the writer's present chain.
func (w *writer) chainID() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.chain.id.String()
}

// noted returns how many steps of a name the writer noted.
func (w *writer) noted(step string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, s := range w.steps {
		if s == step {
			n++
		}
	}
	return n
}

// A registered writer is gone when a second node does not reach it either. A
// sequencer that alone does not reach it fences through the second node, and the
// chain goes on for everybody else.
func TestASecondNodeDecidesWhetherAWriterIsGone(t *testing.T) {
	for name, c := range map[string]struct {
		second func(w *world, other *writer)
		sealed bool
	}{
		"it is reached": {func(*world, *writer) {}, false},
		"it is not":     {func(w *world, other *writer) { other.reaches(w.writer.address, nil) }, true},
		"the second cannot tell": {func(_ *world, other *writer) {
			other.mu.Lock()
			defer other.mu.Unlock()
			other.peers = nil
		}, true},
		"another life answers in its place": {func(w *world, other *writer) {
			other.reaches(w.writer.address, newWriter(w.writer.index, w.writer.address))
		}, true},
		"it is not registered any more": {func(w *world, _ *writer) {
			if err := w.registry.Deregister(w.t.Context(), "writer"); err != nil {
				w.t.Fatal(err)
			}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				l, out := w.leadOver(Config{})
				d := w.stream(nil)
				l.append(batch(d, "a"), 0, 1)
				w.writer.script(always(unheard))
				b := l.pending(batch(d, "b"))
				synctest.Wait()
				w.writer.script(nil)
				other := w.another("writer2")
				c.second(w, other)
				id := w.writer.chainID()
				out.sever(w.writer.address, true)
				wantAck(t, receive(t, b), 1, 2)
				l.append(batch(d, "c"), 2, 3)
				w.wantStored(d, "a", "b", "c")
				if at := l.writesTo(); at != other.address {
					t.Errorf("it writes to %s", at)
				}
				if sealed := w.chainState(id) == indexpb.ChainState_CHAIN_STATE_SEALED; sealed != c.sealed {
					t.Errorf("the chain is sealed: %v, want %v", sealed, c.sealed)
				}
				l.stop()
			})
		})
	}
}

// A sequencer that does not reach the writer, nor any second node that could
// tell, leaves the chain alone, however long that lasts and wherever in its
// recovery it began; then it goes on.
func TestACutOffSequencerSealsNothing(t *testing.T) {
	for _, after := range []string{"", "PutShard", "GetChain", "Probe"} {
		t.Run("from "+after, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				l, out := w.leadOver(Config{AppendTimeout: time.Hour})
				d := w.stream(nil)
				l.append(batch(d, "a"), 0, 1)
				w.writer.script(always(lose))
				b := l.pending(batch(d, "b"))
				synctest.Wait()
				w.writer.script(nil)
				other := w.another("writer2")
				id, epoch := w.writer.chainID(), l.recordEpoch(t)
				isolate := func(is bool) {
					out.sever(w.writer.address, is)
					out.sever(other.address, is)
				}
				if after == "" {
					isolate(true)
				} else {
					opened := false
					out.follow(func(method string) meeting {
						if opened = opened || method == "WriteEntries"; opened && method == after {
							isolate(true)
						}
						return passes
					})
					w.writer.disconnect()
				}
				time.Sleep(10 * time.Minute)
				silent(t, "what was sent", b)
				if now := l.recordEpoch(t); after == "" && now != epoch {
					t.Errorf("it claimed epoch %d after %d, and reached no writer", now, epoch)
				}
				if w.chainState(id) != indexpb.ChainState_CHAIN_STATE_OPEN || w.writer.noted("seal")+other.noted("seal") != 0 {
					t.Error("a healthy chain was sealed")
				}
				out.follow(nil)
				isolate(false)
				wantAck(t, receive(t, b), 1, 2)
				w.wantStored(d, "a", "b")
				if w.chainState(id) != indexpb.ChainState_CHAIN_STATE_OPEN {
					t.Error("a healthy chain was sealed")
				}
				l.stop()
			})
		})
	}
}

// recordEpoch returns the epoch in the shard's record.
func (l *leader) recordEpoch(t *testing.T) uint64 {
	t.Helper()
	r, _, err := l.w.writer.index.GetShard(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	return r.GetEpoch()
}

// Fences that fail say nothing about a writer that answers: it ends its chain
// itself if it cannot write.
func TestAWriterThatAnswersIsNotSealedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l, out := w.leadOver(Config{})
		d := w.stream(nil)
		l.append(batch(d, "a"), 0, 1)
		w.another("writer2")
		id := w.writer.chainID()
		out.follow(func(method string) meeting {
			if method == "Fence" {
				return fails
			}
			return passes
		})
		w.writer.disconnect()
		time.Sleep(10 * time.Minute)
		if w.chainState(id) != indexpb.ChainState_CHAIN_STATE_OPEN {
			t.Fatal("a chain whose writer answers was sealed")
		}
		out.follow(nil)
		l.append(batch(d, "b"), 1, 2)
		w.wantStored(d, "a", "b")
		l.stop()
	})
}

// A chain-writer that takes no chain, as one whose store refuses everything, is
// passed over.
func TestAWriterWithoutAChainIsPassedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l, out := w.leadOver(Config{})
		d := w.stream(nil)
		l.append(batch(d, "a"), 0, 1)
		other := w.another("writer2")
		first := true
		out.follow(func(method string) meeting {
			if method == "OpenChain" && first {
				first = false
				return fails
			}
			return passes
		})
		if err := w.writer.end(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.append(batch(d, "b"), 1, 2)
		if first || l.writesTo() == "" {
			t.Errorf("no other was tried: it writes to %q", l.writesTo())
		}
		w.wantStored(d, "a", "b")
		l.stop()
		other.release()
	})
}

// What is taken, among two or more.
func TestChoiceOfAChainWriter(t *testing.T) {
	node := func(id string) discovery.Node { return discovery.Node{ID: id} }
	best := []choice{ // each better than all behind it
		{Node: node("idle"), senders: 0, rank: 1},
		{Node: node("ranks higher"), senders: 1, rank: 9},
		{Node: node("ranks lower"), senders: 1, rank: 8},
		{Node: node("busy"), senders: 9, rank: 100},
		{Node: node("of another zone"), foreign: true},
		{Node: node("silent"), silent: true},
		{Node: node("draining"), draining: true},
		{Node: node("draining and silent"), draining: true, silent: true},
	}
	for i := range best {
		order := append(slices.Clone(best[i:]), best[:i]...)
		slices.SortFunc(order, choice.compare)
		for j := range order {
			if order[j].ID != best[j].ID {
				t.Fatalf("%s is in the place of %s", order[j].ID, best[j].ID)
			}
		}
	}
}

// A new link goes to a writer that does not drain, unless none is left.
func TestDrainingWritersAreTheLastResort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.announce("writer", w.writer, map[string]string{"draining": "yes"})
		l, _ := w.leadOver(Config{})
		d := w.stream(nil)
		l.append(batch(d, "a"), 0, 1)
		time.Sleep(time.Minute)
		if at := l.writesTo(); at != w.writer.address {
			t.Fatalf("it writes to %q", at)
		}
		other := w.another("writer2")
		w.announce("writer2", other, map[string]string{"draining": "yes"})
		epoch := l.epoch()
		time.Sleep(time.Minute)
		if l.epoch() != epoch {
			t.Error("it moved from one that drains to another")
		}
		w.announce("writer2", other, nil)
		eventually(t, "it moves", func() bool { return l.writesTo() == other.address })
		l.append(batch(d, "b"), 1, 2)
		w.wantStored(d, "a", "b")
		res, err := w.writer.Probe(t.Context(), nil)
		if err != nil || res.GetSenders() != 0 {
			t.Errorf("the link that was left is still there: %v, %v", res, err)
		}
		if w.chainState(w.writer.chainID()) != indexpb.ChainState_CHAIN_STATE_OPEN {
			t.Error("a chain that was only left was sealed")
		}
		l.stop()
	})
}

// Of two sequencers on one writer, one moves to a second writer that has nothing
// to do; then they stay.
func TestSequencersSpreadOverWriters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		cfg := Config{LeaseTTL: time.Second}
		l, _ := w.leadOver(cfg)
		more, _ := w.startOver(cfg)
		eventually(t, "it runs", func() bool { return more.shard() != nil })
		if _, err := more.links.get(t.Context()); err != nil {
			t.Fatal(err)
		}
		d := w.stream(nil)
		l.append(batch(d, "a"), 0, 1)
		other := w.another("writer2")
		addresses := func() []string {
			out := []string{l.links.present().address, more.links.present().address}
			slices.Sort(out)
			return out
		}
		time.Sleep(4 * time.Second) // less than settledLinks leases
		if at := addresses(); at[0] != at[1] {
			t.Errorf("they spread at once: %v", at)
		}
		time.Sleep(2 * time.Minute)
		want := []string{w.writer.address, other.address}
		if at := addresses(); !slices.Equal(at, want) {
			t.Fatalf("they write to %v, want %v", at, want)
		}
		epoch, chosen := l.epoch(), more.links.present()
		time.Sleep(10 * time.Minute)
		if l.epoch() != epoch || more.links.present() != chosen {
			t.Error("they moved again")
		}
		l.append(batch(d, "b"), 1, 2)
		w.wantStored(d, "a", "b")
		l.stop()
		more.stop()
	})
}

// One of the own zone is better than any other, also after it came back.
func TestTheOwnZoneIsComeBackTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l, _ := w.leadOver(Config{LeaseTTL: time.Second, Zone: "z"})
		d := w.stream(nil)
		l.append(batch(d, "a"), 0, 1)
		other := w.another("writer2")
		n := discovery.Node{ID: "writer2", Service: discovery.ChainWriter, Address: other.address, Zone: "z"}
		if err := w.registry.Register(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if at := l.writesTo(); at != other.address {
			t.Errorf("it writes to %q", at)
		}
		l.append(batch(d, "b"), 1, 2)
		w.wantStored(d, "a", "b")
		l.stop()
	})
}
