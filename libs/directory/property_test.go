package directory

import (
	"errors"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/stream"
)

// Whatever order streams and shards come in, each stream gets back its entries
// in chain order, and each shard's epochs their bounds.
func TestAnyWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		from := stream.Slot(rapid.Uint64Range(0, 1<<40).Draw(t, "from"))
		b := NewBuilder(testChain, from)
		want := map[stream.ID][]Located{}
		epochs := map[stream.Shard][]ShardEpoch{}
		slots := rapid.IntRange(1, 5).Draw(t, "slots")
		for s := range slots {
			slot, offset := from+stream.Slot(s), uint32(52)
			for range rapid.IntRange(0, 12).Draw(t, "entries") {
				shard := stream.Shard(rapid.IntRange(0, 3).Draw(t, "shard"))
				es := epochs[shard]
				if len(es) == 0 || rapid.IntRange(0, 5).Draw(t, "fence") == 0 {
					next := ShardEpoch{Shard: shard, Epoch: 1, Slot: slot, Offset: offset}
					if n := len(es); n > 0 {
						next.Epoch = es[n-1].Epoch + stream.Epoch(rapid.IntRange(1, 3).Draw(t, "later"))
					}
					es = append(es, next)
					if rapid.Bool().Draw(t, "with fence") {
						b.Add(slot, &bundle.FooterEntry{Kind: bundle.KindFence, Shard: shard, Epoch: next.Epoch, Offset: offset, Length: 54})
						offset += 54
					}
				}
				last := &es[len(es)-1]
				// A stream is of one shard only.
				id := stream.ID{1 + byte(shard), rapid.Byte().Draw(t, "stream") % 3}
				e := bundle.FooterEntry{
					Kind: bundle.KindToken, Shard: shard, Epoch: last.Epoch, EntryNo: last.Next, StreamID: id, Offset: offset, Length: 60,
					Header: rapid.SliceOfN(rapid.Byte(), 1, 20).Draw(t, "token"),
				}
				last.Next++
				epochs[shard] = es
				b.Add(slot, &e)
				offset += e.Length
				want[id] = append(want[id], Located{
					Kind: e.Kind, Shard: shard, Epoch: e.Epoch, EntryNo: e.EntryNo, StreamID: id, Header: e.Header,
					At: stream.Coordinates{Chain: testChain, Slot: slot, Offset: e.Offset, Length: e.Length},
				})
			}
		}
		r, err := Parse(b.Finish(from + stream.Slot(slots)))
		if err != nil {
			t.Fatal(err)
		}
		if r.Len() != len(want) {
			t.Fatalf("%d streams, want %d", r.Len(), len(want))
		}
		for id, w := range want {
			got, err := r.Stream(id)
			if err != nil || !reflect.DeepEqual(got, w) {
				t.Fatalf("stream %s: %+v, want %+v, %v", id, got, w, err)
			}
		}
		var all []ShardEpoch
		for shard := stream.Shard(0); shard < 4; shard++ {
			all = append(all, epochs[shard]...)
		}
		if len(all)+len(r.Epochs()) > 0 && !reflect.DeepEqual(r.Epochs(), all) {
			t.Fatalf("epochs %+v, want %+v", r.Epochs(), all)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add(build(f))
	f.Add(NewBuilder(testChain, 1).Finish(2))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := Parse(b); err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
			t.Fatalf("untyped error: %v", err)
		}
	})
}

// FuzzLocated looks behind the checksum of a stream's entries.
func FuzzLocated(f *testing.F) {
	r, err := Parse(build(f))
	if err != nil {
		f.Fatal(err)
	}
	b := build(f)
	f.Add(b[preamble : len(b)-trailer])
	f.Fuzz(func(t *testing.T, b []byte) {
		var l Located
		if n, err := r.parse(&l, idOf(1), b); err == nil && n > len(b) {
			t.Fatalf("%d bytes of %d", n, len(b))
		}
	})
}

func BenchmarkStream(b *testing.B) {
	r, err := Parse(large(b, 20000))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		if _, err := r.Stream(idOf(n % 20000)); err != nil {
			b.Fatal(err)
		}
	}
}
