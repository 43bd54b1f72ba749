package settler

import (
	"context"
	"sync"
	"testing"
	"time"

	metafault "github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/stream"
)

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
