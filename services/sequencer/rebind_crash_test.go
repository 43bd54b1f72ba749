package sequencer

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// recoveryCalls are the calls that the steps of a recovery consist of.
var recoveryCalls = []string{
	"GetShard", "PutShard", "GetChain", "Probe", "OpenChain", "WriteEntries", "Fence", "Seal", "AbsorbTo", "LookupEntries",
}

// rebinding is a leader that has to leave its chain-writer, with three batches of
// one producer: the first is acknowledged, the second lies below the cut and
// nobody heard of it, the third never reached the chain.
type rebinding struct {
	w       *world
	l       *leader
	cable   *cable
	d       *indexpb.StreamDescriptor
	pending []<-chan answer
	leave   func() // makes it necessary
}

func producerBatch(d *indexpb.StreamDescriptor, no uint64, body string) *novapb.AppendRequest {
	req := batch(d, body)
	req.ProducerId, req.ProducerEpoch, req.BatchSeq = "p", 1, no
	return req
}

var rebindReasons = []string{"its writer dies", "its writer drains", "its chain is sealed", "its connection breaks"}

func newRebinding(t *testing.T, why string) *rebinding {
	w := newWorld(t)
	l, out := w.leadOver(Config{})
	r := &rebinding{w: w, l: l, cable: out, d: w.stream(nil)}
	l.append(producerBatch(r.d, 0, "a"), 0, 1)
	for i, f := range []fate{unheard, lose} {
		w.writer.script(always(f))
		r.pending = append(r.pending, l.pending(producerBatch(r.d, uint64(i+1), string("bc"[i]))))
		synctest.Wait()
	}
	w.writer.script(nil)
	if n := w.writer.total(); n != 3 {
		t.Fatalf("%d entries were sent, want 3", n)
	}
	other := w.another("writer2")
	r.leave = map[string]func(){
		"its writer dies": func() {
			other.reaches(w.writer.address, nil)
			out.sever(w.writer.address, true)
		},
		"its writer drains": func() { w.announce("writer", w.writer, map[string]string{"draining": "yes"}) },
		"its chain is sealed": func() {
			if err := w.writer.end(t.Context()); err != nil {
				t.Fatal(err)
			}
		},
		"its connection breaks": w.writer.disconnect,
	}[why]
	return r
}

// Every call of every step of a rebind fails, or loses its reply, once each, and
// the leader dies at each. Whatever happens: what lies below the cut is
// acknowledged with its first numbers, the rest is sent again with the same ones,
// nothing is stored twice and nothing is lost (I1, I2, I5).
func TestRebindAtEveryCall(t *testing.T) {
	for _, why := range rebindReasons {
		for _, does := range []meeting{fails, unasked, dies, diesLate} {
			t.Run(why+" and a call "+does.String(), func(t *testing.T) {
				t.Parallel()
				for nth, met := 1, ""; nth == 1 || met != ""; nth++ {
					synctest.Test(t, func(t *testing.T) { met = rebind(t, why, does, nth) })
					if t.Failed() {
						t.Fatalf("it was call %d, %s", nth, met)
					}
					if met == "" && nth < 8 {
						t.Fatalf("a rebind has only %d calls", nth-1)
					}
				}
			})
		}
	}
}

// rebind has the n-th call of a rebind meet what it does, and returns which call
// that was; none if there were fewer.
func rebind(t *testing.T, why string, does meeting, nth int) (met string) {
	r := newRebinding(t, why)
	w, l := r.w, r.l
	var n atomic.Int64
	r.cable.follow(func(method string) meeting {
		if slices.Contains(recoveryCalls, method) && n.Add(1) == int64(nth) {
			met = method
			return does
		}
		return passes
	})
	before := l.epoch()
	r.leave()
	leader := l
	if does == dies || does == diesLate {
		eventually(t, "it dies, or leads again", func() bool {
			return r.cable.isDead() || l.epoch() > before && l.shard().serving.Load()
		})
		synctest.Wait()
	}
	if r.cable.isDead() {
		next, out := w.startOver(Config{FormerLivesDead: true})
		out.sever(w.writer.address, why == "its writer dies")
		eventually(t, "its successor leads", func() bool { return next.shard() != nil && next.shard().serving.Load() })
		l.stop()
		for i, p := range r.pending {
			if a := receive(t, p); a.err == nil {
				wantAck(t, a, uint64(i+1), uint64(i+2))
			} else {
				wantFailure(t, a.err, "", reason.Unknown)
			}
		}
		// Nobody knows what became of them, so their producer sends them again.
		for i := range r.pending {
			next.append(producerBatch(r.d, uint64(i+1), string("bc"[i])), uint64(i+1), uint64(i+2))
		}
		leader = next
	} else {
		for i, p := range r.pending {
			wantAck(t, receive(t, p), uint64(i+1), uint64(i+2))
		}
	}
	leader.append(producerBatch(r.d, 3, "e"), 3, 4)
	w.wantStored(r.d, "a", "b", "c", "e")
	if why == "its writer drains" {
		eventually(t, "it writes to the other", func() bool { return leader.writesTo() == "inproc:writer2" })
	}
	leader.stop()
	l.stop()
	return met
}

// At every call of a rebind another life takes the shard. What this one sent is
// UNKNOWN, unless it had the answer before; the other one goes on behind what was
// committed, and stores what is repeated once (I1, I2, I4, I5).
func TestRebindLosesTheShardAtEveryCall(t *testing.T) {
	for _, why := range rebindReasons {
		t.Run(why, func(t *testing.T) {
			t.Parallel()
			for nth, met := 1, ""; nth == 1 || met != ""; nth++ {
				synctest.Test(t, func(t *testing.T) { met = rebindLost(t, why, nth) })
				if t.Failed() {
					t.Fatalf("it was call %d, %s", nth, met)
				}
			}
		})
	}
}

func rebindLost(t *testing.T, why string, nth int) (met string) {
	r := newRebinding(t, why)
	w, l := r.w, r.l
	var next *leader
	var n atomic.Int64
	taken := make(chan struct{})
	r.cable.follow(func(method string) meeting {
		if slices.Contains(recoveryCalls, method) && n.Add(1) == int64(nth) {
			defer close(taken)
			met = method
			var out *cable
			next, out = w.startOver(Config{FormerLivesDead: true})
			out.sever(w.writer.address, why == "its writer dies")
			eventually(t, "another leads", func() bool { return next.shard() != nil && next.shard().serving.Load() })
		}
		return passes
	})
	before := l.epoch()
	r.leave()
	eventually(t, "another takes the shard, or it leads again", func() bool {
		select {
		case <-taken:
			return true
		default:
			return l.epoch() > before && l.shard().serving.Load()
		}
	})
	if next == nil {
		l.stop()
		return ""
	}
	for i, p := range r.pending {
		if a := receive(t, p); a.err == nil {
			wantAck(t, a, uint64(i+1), uint64(i+2))
		} else {
			wantFailure(t, a.err, "", reason.Unknown)
		}
	}
	for i := range r.pending {
		next.append(producerBatch(r.d, uint64(i+1), string("bc"[i])), uint64(i+1), uint64(i+2))
	}
	next.append(producerBatch(r.d, 3, "e"), 3, 4)
	w.wantStored(r.d, "a", "b", "c", "e")
	l.stop()
	next.stop()
	return met
}

// The last compare-and-set of a rebind is lost to another life: what was sent is
// UNKNOWN, also what was found below the cut, since it is the other's by then (I4).
func TestRebindThatIsLostAtTheEndAcknowledgesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRebinding(t, "its chain is sealed")
		var puts atomic.Int64
		var next *leader
		r.cable.follow(func(method string) meeting {
			if method == "PutShard" && puts.Add(1) == 2 {
				next, _ = r.w.startOver(Config{FormerLivesDead: true})
				eventually(t, "another leads", func() bool { return next.shard() != nil && next.shard().serving.Load() })
			}
			return passes
		})
		r.leave()
		for _, p := range r.pending {
			wantFailure(t, receive(t, p).err, "", reason.Unknown)
		}
		r.w.wantStored(r.d, "a", "b")
		r.l.stop()
		next.stop()
	})
}

func (w *cable) isDead() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dead
}
