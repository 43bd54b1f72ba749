package sequencer

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nova-stream/nova/libs/head"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// A batch that was stored is answered with its first ack before anything else is
// looked at: the number, the token and the state that it was right about then
// are others now, some by its own doing (I5).
func TestDuplicateIsJudgedBeforePreconditions(t *testing.T) {
	synctest.Test(t, duplicateIsJudgedBeforePreconditions)
}

func duplicateIsJudgedBeforePreconditions(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{})
	d := w.stream(nil)
	set := func(token string) {
		t.Helper()
		if _, err := l.SetFencingToken(t.Context(), &novapb.SetFencingTokenRequest{Bucket: "bucket", Stream: d.GetName(), Token: token}); err != nil {
			t.Fatal(err)
		}
	}
	set("t")
	req := produced(d, 0, "a", "b")
	req.SetMatchSeq(0)
	req.SetFencingToken("t")
	w.writer.script(always(hold))
	pending := l.pending(req)
	again := l.begin(t.Context(), req) // its number is taken, by itself
	eventually(t, "the repeat waits", func() bool { _, waits := l.inflight(d); return waits == 2 || len(again) > 0 })
	silent(t, "the repeat", again)
	w.writer.release()
	wantAck(t, receive(t, pending), 0, 2)
	a := receive(t, again)
	wantAck(t, a, 0, 2)
	set("another")
	if _, err := l.seal(d); err != nil {
		t.Fatal(err)
	}
	if ack := l.append(req, 0, 2); !sameAck(ack, a.ack) || !ack.GetDuplicate() {
		t.Errorf("ack %v, the first was %v", ack, a.ack)
	}
	next := l.die()
	if ack := next.append(req, 0, 2); !sameAck(ack, a.ack) {
		t.Errorf("the successor's ack %v, the first was %v", ack, a.ack)
	}
	w.wantStored(d, "a", "b")
	next.stop()
	l.stop()
}

// Without a producer a resend of an append whose reply was lost meets its own
// record: SEQ_MISMATCH says that this call stored nothing, and where the stream
// ends. Nothing is stored twice.
func TestResendWithoutProducerMeetsItsOwnRecord(t *testing.T) {
	synctest.Test(t, resendWithoutProducerMeetsItsOwnRecord)
}

func resendWithoutProducerMeetsItsOwnRecord(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{})
	d := w.stream(nil)
	req := batch(d, "a")
	req.SetMatchSeq(0)
	w.writer.script(always(unheard))
	first := l.pending(req)
	eventually(t, "it is sent", func() bool { return w.writer.total() == 1 })
	w.writer.script(nil)
	next := l.die()
	wantFailure(t, receive(t, first).err, "", reason.Unknown)
	_, err := next.Append(t.Context(), req)
	wantRefusal(t, err, reason.SeqMismatch)
	if tail, _ := reason.Number(err, reason.KeyTail); tail != 1 {
		t.Errorf("the refusal says tail %d", tail)
	}
	w.wantStored(d, "a")
	next.stop()
	l.stop()
}

// A zombie of a producer is fenced by the higher epoch for ever: after a
// failover, an eviction, and from the settled head alone (I5).
func TestZombieProducerStaysFenced(t *testing.T) { synctest.Test(t, zombieProducerStaysFenced) }

func zombieProducerStaysFenced(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{IdleStream: time.Microsecond})
	d := w.stream(nil)
	req := func(epoch, n uint64) *novapb.AppendRequest {
		r := produced(d, n, "x")
		r.ProducerEpoch = epoch
		return r
	}
	l.append(req(1, 0), 0, 1)
	l.append(req(1, 1), 1, 2)
	_, err := l.Append(t.Context(), req(2, 1)) // a higher epoch begins at 0
	wantRefusal(t, err, reason.ProducerGap)
	l.append(req(2, 0), 2, 3)
	fenced := func(l *leader) {
		t.Helper()
		for _, n := range []uint64{1, 2} {
			_, err := l.Append(t.Context(), req(1, n))
			wantFailure(t, err, reason.ProducerFenced, reason.Unknown)
			if epoch, _ := reason.Number(err, reason.KeyExpectedEpoch); epoch != 2 {
				t.Errorf("fenced by epoch %d", epoch)
			}
		}
		if ack := l.append(req(2, 0), 2, 3); !ack.GetDuplicate() {
			t.Errorf("ack %v", ack)
		}
	}
	fenced(l)
	l.evict()
	fenced(l)
	l = l.die()
	fenced(l)
	w.settle(d)
	l = l.die()
	fenced(l)
	w.wantStored(d, "x", "x", "x")
}

// What was forgotten stays refused, whoever leads and from wherever the stream
// was read (I5).
func TestForgottenProducerStaysRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := w.lead(Config{})
		d := w.stream(nil)
		ids := make([]string, head.MaxProducers+1)
		for i := range ids {
			ids[i] = stream.NewID().String()
			time.Sleep(time.Millisecond)
			req := batch(d, "x")
			req.ProducerId = ids[i]
			l.append(req, uint64(i), uint64(i+1))
		}
		check := func(l *leader) {
			t.Helper()
			req := batch(d, "x")
			req.ProducerId = ids[0]
			_, err := l.Append(t.Context(), req)
			wantFailure(t, err, reason.ProducerGap, reason.Unknown)
			req.ProducerId = ids[1]
			l.append(req, 1, 2)
		}
		check(l)
		next := l.die()
		check(next)
		w.settle(d)
		third := next.die()
		check(third)
		for _, l := range []*leader{third, next, l} {
			l.stop()
		}
	})
}

// The horizon is told by the log, through failovers and settled heads: a table of
// plain ids is full until they were silent for seven days, and no longer,
// whatever timestamps clients give (I5, I8).
func TestHorizonOutlivesLeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const day = 24 * time.Hour
		w := newWorld(t)
		slow := Config{FormerLivesDead: true, LeaseTTL: day, SettledEvery: day} // little happens in many days
		l := w.lead(slow)
		d := w.stream(&novapb.StreamConfig{UncappedTimestampsPresence: &novapb.StreamConfig_UncappedTimestamps{UncappedTimestamps: true}})
		n := uint64(0)
		add := func(l *leader, id string) {
			t.Helper()
			req := batch(d, "x")
			req.ProducerId = id
			req.Records[0].SetTimestamp(time.Now().Add(1000 * day).UnixMilli())
			l.append(req, n, n+1)
			n++
		}
		for i := range head.MaxProducers {
			add(l, string(rune('a'+i)))
		}
		full := func(l *leader) {
			t.Helper()
			req := batch(d, "x")
			req.ProducerId = "one more"
			_, err := l.Append(t.Context(), req)
			wantRefusal(t, err, reason.OverBudget)
		}
		full(l)
		time.Sleep(4 * day)
		l.stop()
		next := w.lead(slow)
		full(next)
		w.settle(d)
		time.Sleep(2 * day)
		next.stop()
		third := w.lead(slow)
		full(third)
		time.Sleep(day + time.Hour)
		add(third, "one more")
		third.stop()
	})
}

// A producer's batches may be sent again as long as its pipeline may be, to every
// leader that follows (I5).
func TestWholePipelineIsRemembered(t *testing.T) { synctest.Test(t, wholePipelineIsRemembered) }

func wholePipelineIsRemembered(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{})
	d := w.stream(nil)
	for i := range uint64(2 * head.MaxBatches) {
		l.append(produced(d, i, "x"), i, i+1)
	}
	w.settle(d)
	next := l.die()
	for i := range uint64(2 * head.MaxBatches) {
		if i < head.MaxBatches {
			_, err := next.Append(t.Context(), produced(d, i, "x"))
			wantFailure(t, err, reason.ProducerGap, reason.Unknown)
			continue
		}
		if ack := next.append(produced(d, i, "x"), i, i+1); !sameAck(ack, w.firstAck(d, i)) {
			t.Errorf("batch %d: %v, first stored as %v", i, ack, w.firstAck(d, i))
		}
	}
}
