package settled

import (
	"math/bits"
	"slices"
)

// RunBytes returns what a run takes in an object: its frames, its index, and its row
// in the footer.
func RunBytes(frames uint64, index uint32) uint64 { return frames + uint64(index) + runRow }

// Bytes returns what the run takes in its object.
func (r *Run) Bytes() uint64 { return RunBytes(r.Length, r.IndexLength) }

// Live is a bit per run of an object, the lowest of the first byte for run 0: some
// head may name the run. It is what indexpb.SettledObject.live holds. A run beyond the
// bits is not live. Of a row bits are only ever cleared.
type Live []byte

// NewLive returns the bits of an object: those of the runs for which is says so.
func NewLive(runs int, is func(run int) bool) Live {
	out := make(Live, (runs+7)/8)
	for i := range runs {
		if is(i) {
			out[i/8] |= 1 << (i % 8)
		}
	}
	return out
}

// Has reports whether a run is live.
func (l Live) Has(run uint32) bool {
	return uint64(run/8) < uint64(len(l)) && l[run/8]&(1<<(run%8)) != 0
}

// Set makes a run live, of bits that are gathered; they grow as need be.
func (l *Live) Set(run uint32) {
	for uint64(run/8) >= uint64(len(*l)) {
		*l = append(*l, 0)
	}
	(*l)[run/8] |= 1 << (run % 8)
}

// Clear clears the bit of a run, in place.
func (l Live) Clear(run uint32) {
	if uint64(run/8) < uint64(len(l)) {
		l[run/8] &^= 1 << (run % 8)
	}
}

// Any reports whether some run is live.
func (l Live) Any() bool { return slices.ContainsFunc(l, func(b byte) bool { return b != 0 }) }

// Count returns how many runs are live.
func (l Live) Count() int {
	n := 0
	for _, b := range l {
		n += bits.OnesCount8(b)
	}
	return n
}
