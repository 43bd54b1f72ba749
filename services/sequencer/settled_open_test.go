package sequencer

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/reason"
)

// openingCalls are the calls that an opening consists of.
var openingCalls = []string{"GetChain", "AbsorbTo", "GetHead", "PutHead", "LookupEntries", "GetDescriptor"}

// settleSteps are what may come between two calls of others.
var settleSteps = map[string]func(*span){
	"is folded":           (*span).fold,
	"is settled":          func(s *span) { s.fold(); s.advance() },
	"is settled and gone": (*span).settle,
}

// A stream is opened while what it consists of is settled, wholly or in part, at
// any point of the opening: it gets all its records, and no number twice (I1, I2).
func TestOpeningBesideSettling(t *testing.T) {
	for what, step := range settleSteps {
		for _, upTo := range []uint64{2, 1 << 40} {
			for _, warm := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s up to %d, known chain %v", what, upTo, warm), func(t *testing.T) {
					for nth, met := 1, ""; nth == 1 || met != ""; nth++ {
						synctest.Test(t, func(t *testing.T) { met = openBeside(t, step, upTo, warm, nth) })
						if t.Failed() {
							t.Fatalf("it was before call %d, %s", nth, met)
						}
						if met == "" && nth < 5 {
							t.Fatalf("an opening has only %d calls", nth-1)
						}
					}
				})
			}
		}
	}
}

// openBeside settles before the n-th call of an opening, and returns which call
// that was; none if there were fewer.
func openBeside(t *testing.T, step func(*span), upTo uint64, warm bool, nth int) (met string) {
	w := newWorld(t)
	l, out := w.leadOver(Config{IdleStream: time.Microsecond, SettledEvery: time.Hour})
	d, other := w.stream(nil), w.stream(nil)
	for i := range uint64(3) {
		l.append(batch(d, fmt.Sprint(i)), i, i+1)
		l.append(batch(other, fmt.Sprint(i)), i, i+1)
	}
	l.evict()
	if warm { // the chain's record is known as it was before
		l.append(batch(other, "3"), 3, 4)
		l.evict()
	}
	var n atomic.Int64
	chain := w.writer.chainID()
	out.follow(func(method string) meeting {
		if slices.Contains(openingCalls, method) && n.Add(1) == int64(nth) {
			met = method
			step(w.span(chain, upTo))
		}
		return passes
	})
	l.append(batch(d, "3"), 3, 4)
	out.follow(nil)
	w.wantStored(d, "0", "1", "2", "3")
	l.wantReadable(d, 0, 4)
	l.followSettled(t.Context())
	l.wantReadable(d, 0, 4)
	// Once more, now that it is settled.
	l.evict()
	l.append(batch(d, "4"), 4, 5)
	l.wantReadable(d, 0, 5)
	l.stop()
	return met
}

// Directories that are gone again and again, because the chain's record that is
// read is old, end an opening as something that passes.
func TestOpeningOverGoneDirectoriesEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := w.lead(Config{IdleStream: time.Microsecond, SettledEvery: time.Hour})
		d := w.stream(nil)
		l.append(batch(d, "a"), 0, 1)
		l.evict()
		s := w.span(w.writer.chainID(), 1<<40)
		s.fold()
		s.discard() // and settled_to seems not to have moved
		_, err := l.Append(t.Context(), batch(d, "b"))
		wantRefusal(t, err, "")
		if reason.Code(err) != codes.Unavailable {
			t.Errorf("got %v", err)
		}
		s.advance()
		l.append(batch(d, "b"), 1, 2)
		w.wantStored(d, "a", "b")
		l.stop()
	})
}

// Damage in a directory that was settled before anybody noticed hurts nobody.
func TestDamageInWhatIsSettledQuarantinesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := w.lead(Config{IdleStream: time.Microsecond, SettledEvery: time.Hour})
		d := w.stream(nil)
		l.append(batch(d, "a"), 0, 1)
		l.evict()
		l.state(d) // so that the chain's record is known
		l.evict()
		s := w.span(w.writer.chainID(), 1<<40)
		s.fold()
		s.advance()
		w.writer.spoil(d, func(req *lookupRequest, _ *lookupResponse) error {
			if req.GetFrom() == 0 {
				return errDirectory()
			}
			return nil
		})
		l.append(batch(d, "b"), 1, 2)
		w.wantStored(d, "a", "b")
		l.stop()
	})
}
