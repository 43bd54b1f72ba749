package settler

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// oldBindings makes a shard's row what programs left that did not tell epochs: a
// chain that was bound again is there once, last.
func (w *world) oldBindings(n uint32) {
	key := metastore.Key{Partition: "shard", Path: fmt.Sprintf("shard/%08d", n)}
	row, err := w.rows.Get(w.ctx, key)
	if err != nil {
		w.t.Fatal(err)
	}
	r := &indexpb.Shard{}
	if err := proto.Unmarshal(row.Value, r); err != nil {
		w.t.Fatal(err)
	}
	var out []*indexpb.Binding
	for i, b := range r.GetBindings() {
		again := false
		for _, o := range r.GetBindings()[i+1:] {
			again = again || o.GetChainId() == b.GetChainId()
		}
		b.Epoch = 0
		if !again {
			out = append(out, b)
		}
	}
	r.Bindings = out
	v, err := proto.Marshal(r)
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.rows.Put(w.ctx, key, v, row.Version); err != nil {
		w.t.Fatal(err)
	}
}

// The order of bindings without epochs tells nothing: a shard that came back to its
// first chain has entries there before and after those in the other (I1, I2).
func TestBindingsWithoutEpochs(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		a, b := w.newChain(), w.newChain()
		w.lead(0, a)
		x, y := w.open("first", 0), w.open("first", 0)
		x.append(3, 10)
		y.append(3, 10)
		a.absorb()
		w.lead(0, b)
		x.append(3, 10)
		y.token("t")
		b.absorb()
		w.lead(0, a)
		x.append(3, 10)
		a.absorb()
		w.oldBindings(0)
		p := w.process(Config{})
		if err := p.settleAll(t.Context(), w); err != nil {
			t.Error(err)
		}
		w.wantSettled()
		w.check()
	})
}

// Two shards that swapped chains and came back: each chain waits for the other.
func TestBindingsWithoutEpochsThatSwapped(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		a, b := w.newChain(), w.newChain()
		w.lead(0, a)
		w.lead(1, b)
		x, y := w.open("first", 0), w.open("first", 1)
		x.append(3, 10)
		y.append(3, 10)
		a.absorb()
		b.absorb()
		w.lead(0, b)
		w.lead(1, a)
		x.append(3, 10)
		y.append(3, 10)
		a.absorb()
		b.absorb()
		w.lead(0, a)
		w.lead(1, b)
		x.append(3, 10)
		y.append(3, 10)
		a.absorb()
		b.absorb()
		w.oldBindings(0)
		w.oldBindings(1)
		p := w.process(Config{})
		if err := p.settleAll(t.Context(), w); err != nil {
			t.Error(err)
		}
		w.wantSettled()
		w.check()
	})
}

// A page that is lost keeps what it names for ever, and nothing else.
func TestPageThatIsLostStopsNoChain(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		a := w.newChain()
		w.lead(0, a)
		x, y := w.open("first", 0), w.open("first", 0)
		p := w.process(Config{RewriteRuns: 1})
		for range 70 {
			x.append(1, 10)
			a.absorb()
			if err := p.settleAll(t.Context(), w); err != nil {
				t.Fatal(err)
			}
		}
		pages := x.head().GetPages()
		if len(pages) == 0 {
			t.Fatal("no pages")
		}
		if err := w.objects.Delete(w.ctx, pages[0].GetObject()); err != nil {
			t.Fatal(err)
		}
		x.trim(5) // within the page
		y.append(3, 10)
		a.absorb()
		if err := p.settleAll(t.Context(), w); err != nil {
			t.Error(err)
		}
		if r := a.record(); r.GetSettledTo() != r.GetAbsorbedTo() {
			t.Errorf("the chain is settled to %d, absorbed to %d", r.GetSettledTo(), r.GetAbsorbedTo())
		}
	})
}
