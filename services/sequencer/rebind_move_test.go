package sequencer

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/metastore/mem"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// newWideWorld is a world of many shards.
func newWideWorld(t *testing.T, shards uint32) *world {
	t.Helper()
	w := newWorld(t)
	w.rows = fault.New(mem.New())
	w.index = w.newIndex(w.rows)
	if _, err := w.index.OpenConstellation(t.Context(), &indexpb.OpenConstellationRequest{ShardCount: shards}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.index.CreateBucket(t.Context(), &indexpb.CreateBucketRequest{Bucket: "bucket"}); err != nil {
		t.Fatal(err)
	}
	w.writer.index = catalog.New(w.index)
	return w
}

// at returns how many shards serve and send to an address, and how many do not
// serve.
func (l *leader) at(address string) (sending, waiting int) {
	for _, sh := range l.shards {
		sh.mu.Lock()
		switch {
		case !sh.serving.Load():
			waiting++
		case sh.link.address == address:
			sending++
		}
		sh.mu.Unlock()
	}
	return sending, waiting
}

// wide starts a leader of all shards of a wide world.
func (w *world) wide(cfg Config) (*leader, *cable) {
	l, out := w.startOver(cfg)
	eventually(w.t, "it leads every shard", func() bool {
		if l.shard() == nil {
			return false
		}
		n, _ := l.at(w.writer.address)
		return n == len(l.shards)
	})
	return l, out
}

// load appends to streams of many shards until it is ended; then it returns what
// each stream has to hold.
type load struct {
	streams []*indexpb.StreamDescriptor
	bodies  [][]string
	over    atomic.Bool
	running sync.WaitGroup
}

func (l *leader) load(t *testing.T, streams int) *load {
	out := &load{bodies: make([][]string, streams)}
	for i := range streams {
		d := l.w.stream(nil)
		out.streams = append(out.streams, d)
		out.running.Go(func() {
			for n := uint64(0); !out.over.Load(); n++ {
				body := fmt.Sprint(i, "/", n)
				res, err := l.Append(t.Context(), batch(d, body))
				if err != nil || res.GetAck().GetFirstSeq() != n {
					t.Errorf("append %d to stream %d: %v, %v", n, i, res, err)
					return
				}
				out.bodies[i] = append(out.bodies[i], body)
				time.Sleep(20 * time.Millisecond) // the pace
			}
		})
	}
	return out
}

func (ld *load) end(w *world) {
	w.t.Helper()
	ld.over.Store(true)
	ld.running.Wait()
	for i, d := range ld.streams {
		if got := w.inOrder(d); !slices.Equal(got, ld.bodies[i]) {
			w.t.Errorf("stream %d: stored %q, want %q", i, got, ld.bodies[i])
		}
	}
}

// inOrder returns the bodies of a stream in the order of epochs and entries: a
// shard that came back to a chain has later entries in an earlier chain.
func (w *world) inOrder(d *indexpb.StreamDescriptor) []string {
	w.t.Helper()
	id := streamID(d)
	entries := slices.DeleteFunc(w.writer.landed(), func(e *chainwriterpb.Entry) bool { return !slices.Equal(e.GetStreamId(), id[:]) })
	slices.SortFunc(entries, func(a, b *chainwriterpb.Entry) int {
		return cmp.Or(cmp.Compare(a.GetEpoch(), b.GetEpoch()), cmp.Compare(a.GetEntryNo(), b.GetEntryNo()))
	})
	var out []string
	for _, e := range entries {
		h, recs, err := chunk.Decode(e.GetBody())
		if err != nil {
			w.t.Fatal(err)
		}
		if h.BaseSeq != stream.Seq(len(out)) {
			w.t.Fatalf("a chunk begins at %d, want %d", h.BaseSeq, len(out))
		}
		for _, r := range recs {
			out = append(out, string(r.Body))
		}
	}
	return out
}

// The shards of a sequencer leave a chain-writer that drains, a few at a time,
// while appends go on: none fails, and each is stored once at its number (I1, I2).
func TestShardsLeaveADrainingWriterUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWideWorld(t, 40)
		l, out := w.wide(Config{})
		ld := l.load(t, 60)
		time.Sleep(100 * time.Millisecond)
		other := w.another("writer2")
		var most atomic.Int64
		out.follow(func(method string) meeting {
			if method == "PutShard" || method == "Fence" {
				if _, waiting := l.at(""); int64(waiting) > most.Load() {
					most.Store(int64(waiting))
				}
				time.Sleep(3 * time.Millisecond) // as over a network
			}
			return passes
		})
		w.announce("writer", w.writer, map[string]string{"draining": "yes"})
		eventually(t, "all shards have left", func() bool { n, _ := l.at(other.address); return n == len(l.shards) })
		time.Sleep(100 * time.Millisecond)
		if res, err := w.writer.Probe(t.Context(), nil); err != nil || res.GetSenders() != 0 {
			t.Errorf("the link that was left is still there: %v, %v", res, err)
		}
		if n := most.Load(); n == 0 || n > movesAtOnce {
			t.Errorf("%d shards did not serve at a time, want 1..%d", n, movesAtOnce)
		}
		// Back again, as after a restart.
		w.announce("writer", w.writer, nil)
		w.announce("writer2", other, map[string]string{"draining": "yes"})
		eventually(t, "all shards have come back", func() bool { n, _ := l.at(w.writer.address); return n == len(l.shards) })
		time.Sleep(100 * time.Millisecond)
		ld.end(w)
		if seals := w.writer.noted("seal") + other.noted("seal"); seals != 0 {
			t.Errorf("%d seals of chains that work", seals)
		}
		l.stop()
	})
}

// A shard that cannot leave keeps neither the others nor its own entries for ever.
func TestAShardThatCannotLeaveKeepsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWideWorld(t, 20)
		l, _ := w.wide(Config{AppendTimeout: time.Hour, AdmissionTimeout: time.Hour})
		ld := l.load(t, 40)
		time.Sleep(100 * time.Millisecond)
		other := w.another("writer2")
		stuck := func(is bool) {
			w.writer.mu.Lock()
			defer w.writer.mu.Unlock()
			w.writer.unfenced = map[uint32]bool{3: is}
		}
		stuck(true)
		w.announce("writer", w.writer, map[string]string{"draining": "yes"})
		time.Sleep(2 * movePatience)
		if n, waiting := l.at(other.address); n != len(l.shards)-1 || waiting != 1 {
			t.Errorf("%d shards have left, %d wait; want all but one", n, waiting)
		}
		stuck(false)
		eventually(t, "all shards have left", func() bool { n, _ := l.at(other.address); return n == len(l.shards) })
		time.Sleep(5 * time.Second)
		if res, err := w.writer.Probe(t.Context(), nil); err != nil || res.GetSenders() != 0 {
			t.Errorf("the link that was left is still there: %v, %v", res, err)
		}
		ld.end(w)
		l.stop()
	})
}

// Whichever of the two links breaks while shards move, every shard goes on.
func TestALinkThatBreaksDuringAMove(t *testing.T) {
	for _, which := range []string{"the old", "the new"} {
		t.Run(which, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWideWorld(t, 40)
				l, out := w.wide(Config{})
				ld := l.load(t, 60)
				time.Sleep(100 * time.Millisecond)
				other := w.another("writer2")
				broken := map[string]*writer{"the old": w.writer, "the new": other}[which]
				var puts atomic.Int64
				out.follow(func(method string) meeting {
					if method == "PutShard" && puts.Add(1) == 30 {
						broken.disconnect()
					}
					return passes
				})
				w.announce("writer", w.writer, map[string]string{"draining": "yes"})
				eventually(t, "all shards have left", func() bool { n, _ := l.at(other.address); return n == len(l.shards) })
				time.Sleep(100 * time.Millisecond)
				ld.end(w)
				l.stop()
			})
		})
	}
}

// A dead writer's chain is sealed for all shards together, not once for each.
func TestOneSealServesAllShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWideWorld(t, 64)
		l, out := w.wide(Config{})
		ld := l.load(t, 64)
		time.Sleep(100 * time.Millisecond)
		other := w.another("writer2")
		other.reaches(w.writer.address, nil)
		var asked atomic.Int64
		out.follow(func(method string) meeting {
			if method == "Probe" {
				asked.Add(1)
			}
			return passes
		})
		out.sever(w.writer.address, true)
		eventually(t, "all shards have left", func() bool { n, _ := l.at(other.address); return n == len(l.shards) })
		time.Sleep(100 * time.Millisecond)
		ld.end(w)
		if seals, n := other.noted("seal"), asked.Load(); seals == 0 || seals > 8 || n > 64 {
			t.Errorf("%d seals and %d questions for 64 shards", seals, n)
		}
		l.stop()
	})
}
