package sequencer

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
)

// A lease holds from the send time of its renewal until its length less the
// margin has passed, and not on a clock that was set back.
func TestLeaseEndsBeforeOthersMayTakeOver(t *testing.T) {
	sent := time.UnixMilli(1_000_000)
	now := sent
	l := newLease(10*time.Second, false, func() time.Time { return now })
	if l.valid() {
		t.Error("valid before it was ever renewed")
	}
	l.renewed(sent)
	for after, want := range map[time.Duration]bool{
		0: true, 9499 * time.Millisecond: true, 9500 * time.Millisecond: false, time.Hour: false, -time.Second: true, -9500 * time.Millisecond: false, -time.Hour: false,
	} {
		if now = sent.Add(after); l.valid() != want {
			t.Errorf("%v after its renewal: valid %v", after, !want)
		}
	}
	now = sent
	l.end()
	if l.valid() {
		t.Error("valid after its end")
	}
	// Of a life that is alone nobody takes over.
	l = newLease(10*time.Second, true, func() time.Time { return now })
	if l.valid() {
		t.Error("valid before it was ever renewed, alone")
	}
	l.renewed(sent)
	if now = sent.Add(time.Hour); !l.valid() {
		t.Error("run out, alone")
	}
	if l.end(); l.valid() {
		t.Error("valid after its end, alone")
	}
}

// Without a lease nothing is answered from memory, since another may lead by
// now; appends go on, since fences protect them (I4).
func TestNothingIsAnsweredFromMemoryWithoutALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := w.lead(Config{})
		d := w.stream(nil)
		req := batch(d, "a")
		req.ProducerId = "p"
		l.append(req, 0, 1)
		l.rows.Script(fault.Rule{Op: fault.Put, Prefix: "life/", Do: fault.FailBefore})
		time.Sleep(10 * time.Second)
		wrong := batch(d, "x")
		wrong.SetMatchSeq(7)
		_, err := l.Append(t.Context(), wrong)
		wantRefusal(t, err, reason.NoLeader)
		if _, err := l.GetState(t.Context(), &sequencerpb.GetStateRequest{Stream: key(d)}); !reason.Is(err, reason.NoLeader) {
			t.Errorf("state: %v", err)
		}
		if res, err := l.Fetch(t.Context(), &sequencerpb.FetchRequest{Stream: key(d), MaxBytes: 1 << 20}); !reason.Is(err, reason.NoLeader) {
			t.Errorf("fetched %v, %v", res, err)
		}
		beyond := &sequencerpb.FetchRequest{Stream: key(d), MaxBytes: 1 << 20, Start: &sequencerpb.FetchRequest_Seq{Seq: 7}}
		if _, err := l.Fetch(t.Context(), beyond); !reason.Is(err, reason.NoLeader) {
			t.Errorf("beyond the tail: %v", err)
		}
		if _, err := l.trim(d, 0); !reason.Is(err, reason.NoLeader) {
			t.Errorf("a trim that changes nothing: %v", err)
		}
		w.writer.script(always(hold))
		pending := l.pending(batch(d, "b"))
		held := l.begin(t.Context(), wrong)
		synctest.Wait()
		silent(t, "a refusal", held)
		w.writer.release()
		wantAck(t, receive(t, pending), 1, 2)
		wantRefusal(t, receive(t, held).err, reason.NoLeader)
		l.rows.Clear()
		time.Sleep(10 * time.Second)
		if st := l.state(d); st.GetTail() != 2 {
			t.Errorf("state %v", st)
		}
		_, err = l.Append(t.Context(), wrong)
		wantRefusal(t, err, reason.SeqMismatch)
		w.wantStored(d, "a", "b")
		l.stop()
	})
}

// Whoever takes over has waited until nobody answers from memory any more; the
// one before finds out, and what it is told meanwhile is not lost (I2, I4).
func TestTwoLeadersNeverAnswerFromMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := w.lead(Config{})
		d := w.stream(nil)
		l.append(batch(d, "a"), 0, 1)
		next := w.start(Config{})
		next.SetDraining(true) // it is no successor while the leader lives
		time.Sleep(time.Minute)
		if next.shard().serving.Load() || l.strong() != nil {
			t.Fatal("a shard was taken from a leader that renews its lease")
		}
		cut := time.Now()
		l.rows.SetOutage(true)
		for !next.shard().serving.Load() {
			if time.Since(cut) > 2*time.Minute {
				t.Fatal("nobody takes over")
			}
			time.Sleep(10 * time.Millisecond)
			if next.holds() && l.strong() == nil {
				t.Fatalf("after %v two leaders answer from memory", time.Since(cut))
			}
		}
		next.append(batch(d, "b"), 1, 2)
		late := l.begin(t.Context(), batch(d, "x"))
		time.Sleep(time.Minute)
		wantFailure(t, receive(t, late).err, "", reason.Unknown)
		l.rows.SetOutage(false)
		time.Sleep(time.Minute)
		receive(t, l.ended)
		if l.err == nil {
			t.Error("a life that was declared dead goes on")
		}
		w.wantStored(d, "a", "b")
		next.stop()
		l.stop()
	})
}

// A leader that stops says so: its successor need not wait for the lease.
func TestReleasedLifeIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := w.lead(Config{LeaseTTL: time.Hour})
		d := w.stream(nil)
		l.append(batch(d, "a"), 0, 1)
		next := w.start(Config{})
		next.SetDraining(true) // it is no successor while the leader lives
		time.Sleep(time.Minute)
		if next.shard().serving.Load() {
			t.Fatal("a shard was taken from a leader that holds its lease")
		}
		l.stop()
		time.Sleep(10 * time.Second)
		next.append(batch(d, "b"), 1, 2)
		if l.epoch() >= next.epoch() || l.err != nil {
			t.Errorf("epochs %d, %d; %v", l.epoch(), next.epoch(), l.err)
		}
		w.wantStored(d, "a", "b")
		next.stop()
	})
}

// An append is answered by its leader alone, whatever the epoch of another.
func TestCommitOfAnotherEpochIsNotTaken(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{})
	d := w.stream(nil)
	w.writer.script(always(lose))
	pending := l.pending(batch(d, "a"))
	sh := l.shard()
	sh.mu.Lock()
	link, epoch := sh.link, sh.epoch
	sh.mu.Unlock()
	for _, c := range []struct {
		epoch stream.Epoch
		no    uint64
	}{{epoch - 1, 0}, {epoch + 1, 0}, {epoch, 1}} {
		sh.committed(link, commitOf(c.epoch, c.no))
	}
	sh.committed(nil, commitOf(epoch, 0))
	if n, _ := l.inflight(d); n != 1 || l.state(d).GetTail() != 0 {
		t.Error("what was not committed counts")
	}
	sh.committed(link, commitOf(epoch, 0))
	wantAck(t, receive(t, pending), 0, 1)
}

func commitOf(epoch stream.Epoch, no uint64) *chainwriterpb.Commit {
	return &chainwriterpb.Commit{Epoch: uint64(epoch), EntryNo: no, At: &chainwriterpb.Coordinates{ChainId: make([]byte, 16)}}
}

// While the metastore is down nobody can renew, and nobody has watched: when it is
// back, everybody gets a whole lease before anyone is declared dead.
func TestAnOutageOfTheMetastoreKillsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.lead(Config{})
		b := w.start(Config{})
		b.SetDraining(true)
		time.Sleep(time.Minute)
		epoch := a.epoch()
		for range 5 {
			a.rows.SetOutage(true)
			b.rows.SetOutage(true)
			time.Sleep(90 * time.Second)
			b.rows.SetOutage(false) // that the other is a little later must not matter
			time.Sleep(time.Second)
			a.rows.SetOutage(false)
			time.Sleep(30 * time.Second)
		}
		if !serves(a)() || a.epoch() != epoch || a.strong() != nil {
			t.Errorf("the leader was deposed: epoch %d, then %d", epoch, a.epoch())
		}
		a.stop()
		b.stop()
	})
}
