package sequencer

import (
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// A chain-writer that takes no chain, as one whose store refuses everything, is
// passed over.
func TestAWriterWithoutAChainIsPassedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l, out := w.leadOver(Config{})
		d := w.stream(nil)
		l.append(batch(d, "a"), 0, 1)
		other := w.another("writer2")
		var asked atomic.Int64
		out.follow(func(method string) meeting {
			if method == "OpenChain" && asked.Add(1) == 1 {
				return fails
			}
			return passes
		})
		if err := w.writer.end(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.append(batch(d, "b"), 1, 2)
		if asked.Load() < 2 || l.writesTo() == "" {
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

// A sequencer that is alone has no reason to move to a writer that is idle.
func TestALoneSequencerStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l, _ := w.leadOver(Config{LeaseTTL: time.Second})
		d := w.stream(nil)
		l.append(batch(d, "a"), 0, 1)
		w.another("writer2")
		epoch := l.epoch()
		time.Sleep(10 * time.Minute)
		if l.epoch() != epoch {
			t.Errorf("it moved: epoch %d follows %d", l.epoch(), epoch)
		}
		l.stop()
	})
}

// Once a shard has left a link that goes on, no commit that came over it is taken
// any more, nor is one being taken: recovery answers in its place, in order.
func TestALeftLinkDeliversNothing(t *testing.T) {
	l := &link{left: map[stream.Shard]stream.Epoch{}}
	var order []string
	var leaving sync.WaitGroup
	l.deliver(1, 5, func() {
		leaving.Go(func() {
			l.leave(1, 5)
			order = append(order, "left")
		})
		for range 1000 {
			runtime.Gosched() // it would leave by now
		}
		order = append(order, "taken")
	})
	leaving.Wait()
	if want := []string{"taken", "left"}; !slices.Equal(order, want) {
		t.Errorf("the order is %v, want %v", order, want)
	}
	got := map[string]bool{}
	for name, at := range map[string]struct {
		shard stream.Shard
		epoch stream.Epoch
	}{"before": {1, 4}, "the epoch that left": {1, 5}, "the next epoch": {1, 6}, "another shard": {2, 5}} {
		l.deliver(at.shard, at.epoch, func() { got[name] = true })
	}
	if want := map[string]bool{"the next epoch": true, "another shard": true}; !maps.Equal(got, want) {
		t.Errorf("delivered: %v, want %v", got, want)
	}
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
