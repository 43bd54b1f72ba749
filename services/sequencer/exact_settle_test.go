package sequencer

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/head"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// Heads are settled, up to some entry, at any time beside leaders that open
// streams, let them go, lose their chains and die. A producer's batches get their
// first numbers whatever comes together (I1, I5).
func TestHeadsAreSettledBesideLeaders(t *testing.T) {
	for seed := range uint64(10) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { besideLeaders(t, rand.New(rand.NewPCG(seed, 7))) })
		})
	}
}

func besideLeaders(t *testing.T, r *rand.Rand) {
	w := newWorld(t)
	l := w.lead(Config{IdleStream: time.Microsecond})
	d := w.stream(nil)
	var bodies []string
	lives, batches := 1, uint64(0)
	for range 80 {
		switch r.IntN(10) {
		default:
			n := uint64(len(bodies))
			body := fmt.Sprint(batches)
			l.append(produced(d, batches, body), n, n+1)
			bodies = append(bodies, body)
			batches++
		case 0:
			n := uint64(len(bodies))
			l.append(batch(d, "other"), n, n+1)
			bodies = append(bodies, "other")
		case 1, 2:
			if batches == 0 {
				continue
			}
			b := batches - 1 - r.Uint64N(min(batches, head.MaxBatches))
			res, err := l.Append(t.Context(), produced(d, b, fmt.Sprint(b)))
			if err != nil || !sameAck(res.GetAck(), w.firstAck(d, b)) {
				t.Fatalf("batch %d again: %v, %v; first stored as %v", b, res.GetAck(), err, w.firstAck(d, b))
			}
		case 3, 4:
			w.settlePart(d, r)
		case 5:
			l.evict()
		case 6:
			epoch := l.epoch()
			w.writer.disconnect()
			l.later(epoch)
		case 7:
			epoch := l.epoch()
			if err := w.writer.end(t.Context()); err != nil {
				t.Fatal(err)
			}
			l.later(epoch)
		case 8:
			if lives < 5 {
				old := l
				l = l.die()
				old.stop()
				lives++
			}
		}
	}
	w.wantStored(d, bodies...)
	l.stop()
}

// settlePart folds the log up to some entry into the stream's head.
func (w *world) settlePart(d *indexpb.StreamDescriptor, r *rand.Rand) {
	w.t.Helper()
	log := w.entriesOf(d)
	h, err := w.index.GetHead(w.t.Context(), &indexpb.GetHeadRequest{StreamId: d.GetStreamId()})
	if err != nil {
		w.t.Fatal(err)
	}
	w.foldInto(h.GetHead(), log[:r.IntN(len(log)+1)])
	h.Head.Attempt = stream.NewAttemptID().String()
	// A leader may have touched it meanwhile; then it is settled another time.
	_, err = w.index.PutHead(w.t.Context(), &indexpb.PutHeadRequest{Head: h.GetHead(), ExpectedVersion: h.GetVersion()})
	if err != nil && !catalog.IsConflict(err) {
		w.t.Fatal(err)
	}
}
