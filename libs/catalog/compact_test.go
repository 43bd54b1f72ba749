package catalog

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/nova-stream/nova/libs/settled"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// I8: live_bytes are those of the bits, or not known; and the change that makes an
// object mostly dead is one before which a marker is armed.
func TestLiveBytesAreThoseOfTheBits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.Uint64Range(1, 100<<10), 1, 12).Draw(t, "bytes of the runs")
		r := &indexpb.SettledObject{Runs: uint32(len(sizes)), Size: 36, Live: settled.NewLive(len(sizes), func(int) bool { return true })}
		for _, n := range sizes {
			r.Size += n
		}
		known := rapid.Bool().Draw(t, "known")
		if known {
			r.LiveBytes = r.GetSize() - 36
		}
		armed := false
		for i, run := range rapid.SliceOf(rapid.Uint32Range(0, uint32(len(sizes)))).Draw(t, "cleared") {
			before := proto.CloneOf(r)
			switch {
			case int(run) >= len(sizes):
				ClearRun(r, run, 1)
			case rapid.IntRange(0, 20).Draw(t, "told") == 0:
				known = known && !settled.Live(r.GetLive()).Has(run)
				ClearRun(r, run, 0)
			default:
				ClearRun(r, run, sizes[run])
			}
			live := uint64(0)
			for k, n := range sizes {
				if settled.Live(r.GetLive()).Has(uint32(k)) {
					live += n
				}
			}
			if want := live; known && r.GetLiveBytes() != want || !known && r.GetLiveBytes() != 0 {
				t.Fatalf("step %d: live bytes %d, the bits say %d, known %v", i, r.GetLiveBytes(), want, known)
			}
			armed = armed || ToCompact(before, r)
			if dead := r.GetSize() - live; live > 0 && len(sizes) > 1 && 2*live < r.GetSize() && dead >= MinDead && !armed {
				t.Fatalf("step %d: %d of %d bytes are live, and no marker was armed", i, live, r.GetSize())
			}
		}
		if known && armed && r.GetLiveBytes() > 0 && 2*r.GetLiveBytes() >= r.GetSize() {
			t.Fatalf("a marker was armed, and %d of %d bytes are live", r.GetLiveBytes(), r.GetSize())
		}
	})
}

func TestMostlyDead(t *testing.T) {
	const size = 1 << 20
	for name, c := range map[string]struct {
		row  *indexpb.SettledObject
		want bool
	}{
		"half is live":      {&indexpb.SettledObject{Runs: 9, Size: size, LiveBytes: size / 2, Live: []byte{1, 0}}, false},
		"less is live":      {&indexpb.SettledObject{Runs: 9, Size: size, LiveBytes: size/2 - 1, Live: []byte{1, 0}}, true},
		"nothing is live":   {&indexpb.SettledObject{Runs: 9, Size: size, Live: []byte{0, 0}}, false},
		"not known":         {&indexpb.SettledObject{Runs: 9, Size: size, Live: []byte{0, 1}}, true},
		"one run":           {&indexpb.SettledObject{Runs: 1, Size: size, LiveBytes: 1, Live: []byte{1}}, false},
		"a page":            {&indexpb.SettledObject{Runs: 1, Size: 4000, Live: []byte{1}, StreamId: "s"}, false},
		"small":             {&indexpb.SettledObject{Runs: 9, Size: MinDead + 99, LiveBytes: 100, Live: []byte{1, 0}}, false},
		"just large enough": {&indexpb.SettledObject{Runs: 9, Size: MinDead + 100, LiveBytes: 100, Live: []byte{1, 0}}, true},
		"small, not known":  {&indexpb.SettledObject{Runs: 9, Size: MinDead - 1, Live: []byte{1, 0}}, false},
	} {
		if got := MostlyDead(c.row); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestClearRun(t *testing.T) {
	for name, c := range map[string]struct {
		before, run, bytes, want uint64
	}{
		"a run":                       {300, 1, 100, 200},
		"a run that is dead":          {300, 2, 100, 300},
		"a run that there is not":     {300, 9, 100, 300},
		"bytes are not told":          {300, 1, 0, 0},
		"bytes were not known":        {0, 1, 100, 0},
		"more bytes than can be true": {300, 1, 301, 0},
	} {
		r := &indexpb.SettledObject{Runs: 8, Size: 1000, LiveBytes: c.before, Live: []byte{0b1011}}
		ClearRun(r, uint32(c.run), c.bytes)
		if r.GetLiveBytes() != c.want {
			t.Errorf("%s: %d bytes are live, want %d", name, r.GetLiveBytes(), c.want)
		}
	}
	r := &indexpb.SettledObject{Runs: 8, Size: 1000, LiveBytes: 300, Live: []byte{1}}
	if ClearRun(r, 0, 100); r.GetLiveBytes() != 0 {
		t.Errorf("no run is live, and %d bytes", r.GetLiveBytes())
	}
}
