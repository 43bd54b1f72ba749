package sequencer

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// later waits until the shard serves under a later epoch.
func (l *leader) later(than stream.Epoch) {
	l.w.t.Helper()
	eventually(l.w.t, "it leads again", func() bool { return l.epoch() > than && l.shard().serving.Load() })
}

// When the connection to the writer breaks, what lies below the cut is
// acknowledged, and the rest is sent again with the same numbers (I1, I2).
func TestPendingIsAcknowledgedOrSentAgain(t *testing.T) {
	for landed := range 5 {
		t.Run(fmt.Sprint(landed, " of 4 landed"), func(t *testing.T) {
			w := newWorld(t)
			l := w.lead(Config{})
			d := w.stream(nil)
			var arrived atomic.Int64
			w.writer.script(func(*chainwriterpb.Entry) fate {
				if arrived.Add(1) <= int64(landed) {
					return unheard
				}
				return lose
			})
			epoch := l.epoch()
			var answers []<-chan answer
			for i := range 4 {
				answers = append(answers, l.pending(batch(d, fmt.Sprint(i))))
			}
			eventually(t, "all are sent", func() bool { return arrived.Load() == 4 })
			w.writer.script(nil)
			w.writer.disconnect()
			for i, a := range answers {
				wantAck(t, receive(t, a), uint64(i), uint64(i+1))
			}
			w.wantStored(d, "0", "1", "2", "3")
			l.later(epoch)
			for i, e := range w.writer.landed() {
				if again := e.GetEpoch() > uint64(epoch); again != (i >= landed) {
					t.Errorf("entry %d is of epoch %d", i, e.GetEpoch())
				}
			}
			l.append(batch(d, "4"), 4, 5)
		})
	}
}

// The chain ends: what was cut off goes into the next one, with the same numbers.
func TestWhatWasCutOffIsSentToTheNextChain(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{})
	d, other := w.stream(nil), w.stream(nil)
	l.append(batch(d, "a"), 0, 1)
	w.writer.script(always(hold))
	b, c := l.pending(batch(d, "b")), l.pending(batch(other, "x"))
	w.writer.script(nil)
	if err := w.writer.end(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantAck(t, receive(t, b), 1, 2)
	wantAck(t, receive(t, c), 0, 1)
	l.append(batch(d, "c"), 2, 3)
	w.wantStored(d, "a", "b", "c")
	w.wantStored(other, "x")
	if n := len(w.writer.chains); n != 2 {
		t.Errorf("%d chains", n)
	}
}

// That a number is taken proves nothing: it may be another record's. Here entry
// 0 of an earlier epoch is in the chain, and the pending entry 0 is not (I2).
func TestEntryOfAnotherEpochAcknowledgesNothing(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{})
	d := w.stream(nil)
	l.append(batch(d, "a"), 0, 1)
	epoch := l.epoch()
	w.writer.disconnect()
	l.later(epoch)
	epoch = l.epoch()
	w.writer.script(always(lose))
	b := l.pending(batch(d, "b"))
	eventually(t, "it is sent", func() bool { return w.writer.arrivals(epoch) == 1 })
	w.writer.script(nil)
	w.writer.disconnect()
	wantAck(t, receive(t, b), 1, 2)
	w.wantStored(d, "a", "b")
}

// Nothing is sent to a chain before the change of the shard's record that binds
// it is confirmed (I4).
func TestNothingIsSentBeforeTheBindingIsConfirmed(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{})
	d := w.stream(nil)
	l.append(batch(d, "a"), 0, 1)
	w.writer.script(always(lose))
	epoch := l.epoch()
	b := l.pending(batch(d, "b"))
	eventually(t, "it is sent", func() bool { return w.writer.arrivals(epoch) == 2 })
	w.writer.script(nil)
	binding, confirm := make(chan struct{}), make(chan struct{})
	goOn := sync.OnceFunc(func() { close(confirm) })
	defer goOn()
	l.rows.Script(fault.Rule{Op: fault.Put, Prefix: "shard/", Nth: 2, Hook: func(context.Context, fault.Op, string) error {
		close(binding)
		<-confirm
		return nil
	}})
	before := w.writer.total()
	w.writer.disconnect()
	receive(t, binding)
	if l.shard().serving.Load() || w.writer.total() != before {
		t.Errorf("serves %v, %d entries were sent before the binding was confirmed", l.shard().serving.Load(), w.writer.total()-before)
	}
	silent(t, "what was not found below the cut", b)
	goOn()
	wantAck(t, receive(t, b), 1, 2)
	w.wantStored(d, "a", "b")
}

// Another life takes the shard: what was sent is UNKNOWN, and its successor
// goes on behind it (I1, I4).
func TestSuccessorGoesOn(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{})
	d := w.stream(nil)
	l.append(batch(d, "a"), 0, 1)
	w.writer.script(always(unheard))
	b := l.pending(batch(d, "b"))
	eventually(t, "it is sent", func() bool { return w.writer.arrivals(l.epoch()) == 2 })
	w.writer.script(nil)
	epoch := l.epoch()
	next := l.depose()
	wantFailure(t, receive(t, b).err, "", reason.Unknown)
	if next.epoch() <= epoch {
		t.Errorf("epoch %d follows %d", next.epoch(), epoch)
	}
	next.append(batch(d, "c"), 2, 3)
	w.wantStored(d, "a", "b", "c")
	_, err := l.Append(t.Context(), batch(d, "x"))
	wantRefusal(t, err, "")
}

// A shard that was in several chains is taken over with all of them (I1, I2).
func TestTakeoverKeepsAllBindings(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{})
	d := w.stream(nil)
	for i := range uint64(3) {
		l.append(batch(d, fmt.Sprint(i)), i, i+1)
		epoch := l.epoch()
		if err := w.writer.end(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.later(epoch)
	}
	l.append(batch(d, "3"), 3, 4)
	next := l.depose()
	next.append(batch(d, "4"), 4, 5)
	w.wantStored(d, "0", "1", "2", "3", "4")
}

// What a stream remembers outlives its leader: producers (I5), trim, token, seal.
func TestSuccessorRemembersWhatTheStreamDoes(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{})
	d, closed := w.stream(nil), w.stream(nil)
	req := batch(d, "a")
	req.ProducerId, req.ProducerEpoch = "p", 1
	first := l.append(req, 0, 1)
	l.append(batch(d, "b"), 1, 2)
	if _, err := l.trim(d, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := l.SetFencingToken(t.Context(), &novapb.SetFencingTokenRequest{Bucket: "bucket", Stream: d.GetName(), Token: "t"}); err != nil {
		t.Fatal(err)
	}
	l.append(batch(closed, "x"), 0, 1)
	if _, err := l.seal(closed); err != nil {
		t.Fatal(err)
	}
	next := l.depose()
	if ack := next.append(req, 0, 1); !ack.GetDuplicate() || ack.GetContentHash() != first.GetContentHash() || ack.GetFirstTimestamp() != first.GetFirstTimestamp() {
		t.Errorf("the repeat: %v, the first was %v", ack, first)
	}
	req = batch(d, "x")
	req.SetFencingToken("")
	_, err := next.Append(t.Context(), req)
	wantRefusal(t, err, reason.Fenced)
	if st := next.state(d); st.GetTrim() != 1 || st.GetTail() != 2 {
		t.Errorf("state %v", st)
	}
	_, err = next.Append(t.Context(), batch(closed, "y"))
	wantRefusal(t, err, reason.StreamSealed)
	next.append(batch(d, "c"), 2, 3)
	w.wantStored(d, "a", "b", "c")
}

// A fence that ends the own epoch makes the leader go through recovery.
func TestFencedLeaderRecovers(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{})
	d := w.stream(nil)
	l.append(batch(d, "a"), 0, 1)
	epoch := l.epoch()
	var once atomic.Bool
	w.writer.script(func(*chainwriterpb.Entry) fate {
		if once.CompareAndSwap(false, true) {
			return fence
		}
		return land
	})
	l.append(batch(d, "b"), 1, 2)
	if l.epoch() <= epoch {
		t.Errorf("epoch %d follows %d", l.epoch(), epoch)
	}
	w.wantStored(d, "a", "b")
}

// Whatever the metastore does to each of the recovery's writes, it converges.
func TestRecoveryConvergesOverABadMetastore(t *testing.T) {
	for what, do := range map[string]fault.Action{"fails": fault.FailBefore, "loses the reply": fault.LoseReply, "reports its own write": fault.OwnConflict} {
		for nth := 1; nth <= 2; nth++ {
			t.Run(fmt.Sprint(what, " of write ", nth), func(t *testing.T) {
				w := newWorld(t)
				l := w.lead(Config{})
				d := w.stream(nil)
				w.writer.script(always(unheard))
				a := l.pending(batch(d, "a"))
				w.writer.script(always(lose))
				b := l.pending(batch(d, "b"))
				eventually(t, "both are sent", func() bool { return w.writer.arrivals(l.epoch()) == 2 })
				w.writer.script(nil)
				l.rows.Script(fault.Rule{Op: fault.Put, Prefix: "shard/", Nth: nth, Times: 2, Do: do})
				l.rows.Script(fault.Rule{Op: fault.Get, Prefix: "shard/", Nth: 1, Times: 1, Do: fault.Stale})
				w.writer.disconnect()
				wantAck(t, receive(t, a), 0, 1)
				wantAck(t, receive(t, b), 1, 2)
				w.wantStored(d, "a", "b")
			})
		}
	}
}

// An old read of the shard's record, which names another leader, may make this
// one let go; since the shard is its own, it comes back.
func TestShardLetGoByAnOldReadComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		first := w.lead(Config{})
		d := w.stream(nil)
		first.append(batch(d, "a"), 0, 1)
		l := first.depose()
		l.append(batch(d, "b"), 1, 2)
		epoch := l.epoch()
		// Back to before this one claimed it.
		stale := l.rows.Script(fault.Rule{Op: fault.Get, Prefix: "shard/", Nth: 1, Do: fault.Stale, Back: 2})
		w.writer.disconnect()
		time.Sleep(time.Minute)
		if stale.Acted() == 0 || l.epoch() <= epoch || !l.shard().serving.Load() {
			t.Fatalf("%d old reads; epoch %d after %d, it serves: %v", stale.Acted(), l.epoch(), epoch, l.shard().serving.Load())
		}
		l.append(batch(d, "c"), 2, 3)
		w.wantStored(d, "a", "b", "c")
		l.stop()
	})
}
