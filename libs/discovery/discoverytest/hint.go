package discoverytest

import (
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/nova-stream/nova/libs/discovery"
)

func hint(shard uint32, epoch uint64, address string) discovery.Hint {
	return discovery.Hint{Shard: shard, Epoch: epoch, Address: address}
}

func putHint(t *testing.T, e env, r discovery.Registry, h discovery.Hint) {
	t.Helper()
	if err := r.PutHint(e.ctx, h); err != nil {
		t.Fatalf("PutHint(%+v): %v", h, err)
	}
}

// wantHints receives until the hints seen are the wanted ones, and fails when an
// epoch goes back.
func wantHints(t *testing.T, ch <-chan []discovery.Hint, seen map[uint32]discovery.Hint, want ...discovery.Hint) {
	t.Helper()
	wanted := make(map[uint32]discovery.Hint)
	for _, h := range want {
		wanted[h.Shard] = h
	}
	patience := time.NewTimer(Patience)
	defer patience.Stop()
	for !maps.Equal(seen, wanted) {
		select {
		case hints, ok := <-ch:
			if !ok {
				t.Fatal("hint watch closed")
			}
			for _, h := range hints {
				if h.Epoch < seen[h.Shard].Epoch {
					t.Fatalf("hint %+v after %+v", h, seen[h.Shard])
				}
				seen[h.Shard] = h
			}
		case <-patience.C:
			t.Fatalf("hints seen %v, want %v", seen, wanted)
		}
	}
}

func hintsSeen(t *testing.T, e env) {
	other := e.join()
	putHint(t, e, e.r, hint(7, 1, "a:1"))
	putHint(t, e, e.r, hint(300, 4, "b:1"))
	ch, err := other.WatchHints(e.ctx)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[uint32]discovery.Hint{}
	wantHints(t, ch, seen, hint(7, 1, "a:1"), hint(300, 4, "b:1"))
	putHint(t, e, e.r, hint(7, 2, "b:1"))
	putHint(t, e, other, hint(0, 1, "c:1"))
	wantHints(t, ch, seen, hint(7, 2, "b:1"), hint(300, 4, "b:1"), hint(0, 1, "c:1"))
}

func hintEpochs(t *testing.T, e env) {
	ch, err := e.r.WatchHints(e.ctx)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[uint32]discovery.Hint{}
	putHint(t, e, e.r, hint(1, 5, "new:1"))
	putHint(t, e, e.r, hint(1, 4, "old:1")) // no error: it is only a hint
	putHint(t, e, e.r, hint(2, 1, "end:1"))
	wantHints(t, ch, seen, hint(1, 5, "new:1"), hint(2, 1, "end:1"))
	putHint(t, e, e.r, hint(1, 5, "moved:1")) // the same epoch may correct itself
	wantHints(t, ch, seen, hint(1, 5, "moved:1"), hint(2, 1, "end:1"))
}

func hintRace(t *testing.T, e env) {
	others := []discovery.Registry{e.r, e.join(), e.join()}
	var wg sync.WaitGroup
	errs := make([]error, 24)
	for i := range errs {
		wg.Go(func() {
			epoch := uint64(i*7%len(errs) + 1)
			errs[i] = others[i%len(others)].PutHint(e.ctx, hint(3, epoch, fmt.Sprintf("n:%d", epoch)))
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	ch, err := e.join().WatchHints(e.ctx)
	if err != nil {
		t.Fatal(err)
	}
	wantHints(t, ch, map[uint32]discovery.Hint{}, hint(3, uint64(len(errs)), fmt.Sprintf("n:%d", len(errs))))
}

// hintMerge lets changes of several shards pile up behind a slow receiver: none
// may be lost to those of another shard.
func hintMerge(t *testing.T, e env) {
	slow, err := e.r.WatchHints(e.ctx)
	if err != nil {
		t.Fatal(err)
	}
	quick, err := e.r.WatchHints(e.ctx)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[uint32]discovery.Hint{}
	var want []discovery.Hint
	for shard := range uint32(6) {
		h := hint(shard, uint64(shard)+1, "n:1")
		putHint(t, e, e.r, h)
		want = append(want, h)
		wantHints(t, quick, seen, want...) // each one a change of its own
	}
	wantHints(t, slow, map[uint32]discovery.Hint{}, want...)
}
