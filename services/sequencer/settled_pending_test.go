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
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// What was settled while it was pending is acknowledged with its first numbers,
// wherever in a recovery that happens (I1, I2).
func TestPendingThatIsSettledIsAcknowledged(t *testing.T) {
	for what, step := range settleSteps {
		for _, upTo := range []uint64{2, 3, 1 << 40} {
			t.Run(fmt.Sprintf("%s up to %d", what, upTo), func(t *testing.T) {
				for nth, met := 0, ""; nth == 0 || met != ""; nth++ {
					synctest.Test(t, func(t *testing.T) { met = settlePending(t, step, upTo, nth) })
					if t.Failed() {
						t.Fatalf("it was before call %d, %s", nth, met)
					}
					if met == "" && nth < 8 {
						t.Fatalf("a recovery has only %d calls", nth-1)
					}
				}
			})
		}
	}
}

// settlePending settles pending entries before the n-th call of a recovery, or
// before it begins.
func settlePending(t *testing.T, step func(*span), upTo uint64, nth int) (met string) {
	w := newWorld(t)
	l, out := w.leadOver(Config{SettledEvery: time.Hour})
	d, other := w.stream(nil), w.stream(nil)
	l.append(produced(d, 0, "0"), 0, 1)
	w.writer.script(always(unheard))
	pending := []<-chan answer{l.pending(produced(d, 1, "1")), l.pending(batch(other, "x")), l.pending(produced(d, 2, "2"))}
	synctest.Wait()
	w.writer.script(always(lose))
	lost := l.pending(produced(d, 3, "3"))
	synctest.Wait()
	w.writer.script(nil)
	chain := w.writer.chainID()
	if nth == 0 {
		met = "none"
		step(w.span(chain, upTo))
	}
	var n atomic.Int64
	out.follow(func(method string) meeting {
		if (slices.Contains(recoveryCalls, method) || slices.Contains(openingCalls, method)) && n.Add(1) == int64(nth) {
			met = method
			if s := w.span(chain, upTo); s != nil {
				step(s)
			}
		}
		return passes
	})
	w.writer.disconnect()
	wantAck(t, receive(t, pending[0]), 1, 2)
	wantAck(t, receive(t, pending[1]), 0, 1)
	wantAck(t, receive(t, pending[2]), 2, 3)
	wantAck(t, receive(t, lost), 3, 4)
	out.follow(nil)
	l.append(produced(d, 4, "4"), 4, 5)
	w.wantStored(d, "0", "1", "2", "3", "4")
	w.wantStored(other, "x")
	l.wantReadable(d, 0, 5)
	l.followSettled(t.Context())
	l.wantReadable(d, 0, 5)
	l.wantReadable(other, 0, 1)
	l.stop()
	return met
}

// A stream whose log is damaged does not hold up its shard: what it sent and nobody
// can tell of is UNKNOWN; what the others sent is decided (I2).
func TestADamagedPendingStreamHoldsUpNobody(t *testing.T) {
	for what, damage := range map[string]func(w *world, d *indexpb.StreamDescriptor){
		"a damaged block": func(w *world, d *indexpb.StreamDescriptor) {
			w.writer.spoil(d, func(*lookupRequest, *lookupResponse) error { return errDirectory() })
		},
		"quarantined while it was settled": func(w *world, d *indexpb.StreamDescriptor) {
			w.head(d, func(h *indexpb.Head) {
				h.Quarantine, h.Pins = "damaged", []*indexpb.Pin{{ChainId: w.writer.chainID(), From: 1, To: 2}}
			})
			s := w.span(w.writer.chainID(), 1<<40)
			if _, err := w.writer.index.UpdateChain(w.t.Context(), s.chain.id.String(), func(r *indexpb.Chain) (bool, error) {
				r.SettledTo, r.Pins = s.to, []*indexpb.ChainPin{{StreamId: d.GetStreamId(), From: 1, To: 2}}
				return true, nil
			}); err != nil {
				w.t.Fatal(err)
			}
			s.fold() // but for d
			s.discard()
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				l := w.lead(Config{SettledEvery: time.Hour})
				d, other := w.stream(nil), w.stream(nil)
				l.append(batch(other, "0"), 0, 1)
				w.writer.script(always(unheard))
				a, b := l.pending(batch(d, "a")), l.pending(batch(other, "1"))
				synctest.Wait()
				w.writer.script(always(lose))
				c := l.pending(batch(other, "2"))
				synctest.Wait()
				w.writer.script(nil)
				damage(w, d)
				epoch := l.epoch()
				w.writer.disconnect()
				wantFailure(t, receive(t, a).err, "", reason.Unknown)
				wantAck(t, receive(t, b), 1, 2)
				wantAck(t, receive(t, c), 2, 3)
				l.later(epoch)
				l.append(batch(other, "3"), 3, 4)
				w.wantStored(other, "0", "1", "2", "3")
				_, err := l.Append(t.Context(), batch(d, "x"))
				wantRefusal(t, err, "")
				if reason.Code(err) != codes.DataLoss {
					t.Errorf("it is served: %v", err)
				}
				l.stop()
			})
		})
	}
}
