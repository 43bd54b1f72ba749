package settled

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// What the runs of an object take is all of it but its ends.
func TestRunsTakeAllOfAnObject(t *testing.T) {
	body, runs := build(t)
	n := uint64(preamble + trailer)
	for i := range runs {
		n += runs[i].Bytes()
	}
	if n != uint64(len(body)) {
		t.Errorf("%d bytes, the runs and the ends take %d", len(body), n)
	}
}

// The bits say the same as a set of runs from which some are taken, and no others
// change; a run that the object does not have is never live.
func TestLiveIsASetOfRuns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		runs := rapid.IntRange(0, 40).Draw(t, "runs")
		set := rapid.SliceOfN(rapid.Bool(), runs, runs).Draw(t, "live")
		l := NewLive(runs, func(run int) bool { return set[run] })
		for _, run := range rapid.SliceOfN(rapid.Uint32Range(0, 60), 0, 20).Draw(t, "cleared") {
			l.Clear(run)
			if int(run) < runs {
				set[run] = false
			}
		}
		count := 0
		for run := range uint32(64) {
			want := int(run) < runs && set[run]
			if want {
				count++
			}
			if l.Has(run) != want {
				t.Fatalf("run %d of %08b: live %v, want %v", run, l, l.Has(run), want)
			}
		}
		if len(l) != (runs+7)/8 || l.Count() != count || l.Any() != (count > 0) {
			t.Fatalf("%08b has %d live runs, any %v; want %d", l, l.Count(), l.Any(), count)
		}
	})
}

// Bits that are gathered one by one are those of NewLive, as far as they reach.
func TestLiveGrows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		set := map[uint32]bool{}
		most := -1
		var l Live
		for _, run := range rapid.SliceOf(rapid.Uint32Range(0, 40)).Draw(t, "runs") {
			l.Set(run)
			set[run] = true
			most = max(most, int(run))
		}
		if want := NewLive(most+1, func(run int) bool { return set[uint32(run)] }); !slices.Equal(l, want) {
			t.Fatalf("%08b, want %08b", l, want)
		}
	})
}

// The layout is in rows that exist.
func TestLiveBeginsWithTheLowestBit(t *testing.T) {
	l := NewLive(10, func(run int) bool { return run == 1 || run == 8 })
	if !slices.Equal(l, Live{0b10, 0b1}) {
		t.Fatalf("%08b", l)
	}
}
