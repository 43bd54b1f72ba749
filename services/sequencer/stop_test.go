package sequencer

import (
	"fmt"
	"testing"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// When a stop begins, nothing new is taken, and what was taken is answered
// first: the end of a session is true of every batch without an answer (I2).
func TestStopAnswersWhatSessionsQueued(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{})
	d := w.stream(nil)
	s := l.session(d, "")
	w.writer.script(always(hold))
	for i := range 5 {
		s.batch(&novapb.AppendSessionBatch{Records: records(fmt.Sprint(i))})
	}
	taken := func() (n int) {
		st := l.open(d)
		st.mu.Lock()
		defer st.mu.Unlock()
		for _, e := range st.inflight { // an entry may carry several batches
			n += len(e.waits)
		}
		return n
	}
	eventually(t, "the session's are taken", func() bool { return taken() == 5 })
	unary := l.pending(batch(d, "one more"))
	eventually(t, "all are taken", func() bool { return taken() == 6 })
	l.endAdmitting() // as Run does

	_, err := l.Append(t.Context(), batch(d, "too late"))
	wantRefusal(t, err, reason.NoLeader)
	_, err = l.Trim(t.Context(), &novapb.TrimRequest{Bucket: "bucket", Stream: d.GetName(), Seq: 0})
	wantRefusal(t, err, reason.NoLeader)
	s.batch(&novapb.AppendSessionBatch{Records: records("too late")})
	silent(t, "what is not committed", s.told)

	w.writer.release()
	for i := range uint64(5) {
		s.acked(i, i, i+1)
	}
	wantAck(t, receive(t, unary), 5, 6)
	if end := receive(t, s.end); len(s.told) > 0 {
		// The late batch came before the session had closed its intake.
		f := receive(t, s.told).GetFailure()
		if f.GetOutcome() != novapb.Outcome_OUTCOME_NOT_COMMITTED || f.GetReason() != string(reason.NoLeader) {
			t.Errorf("the late batch: %v", f)
		}
	} else {
		wantRefusal(t, end, reason.NoLeader)
	}
	l.stop()
	w.wantStored(d, "0", "1", "2", "3", "4", "one more")
}

// Sessions that say nothing, not even which stream they are for, do not hold up
// a stop; nor the end of a life that was deposed.
func TestIdleSessionsEndWithTheLife(t *testing.T) {
	for name, end := range map[string]func(l *leader){
		"stop":    func(l *leader) { l.stop() },
		"deposed": func(l *leader) { l.depose() },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			l := w.lead(Config{})
			d := w.stream(nil)
			s := l.session(d, "")
			s.batch(&novapb.AppendSessionBatch{Records: records("a")})
			s.acked(0, 0, 1)
			mute, err := l.appends.AppendSession(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			end(l)
			wantRefusal(t, receive(t, s.end), reason.NoLeader)
			_, err = mute.Recv()
			wantRefusal(t, err, reason.NoLeader)
			receive(t, l.ended)
		})
	}
}

// Whoever waits for room when a stop begins is refused at once.
func TestStopRefusesWhoWaitsForRoom(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{PoolBytes: 4 << 20})
	d := w.stream(nil)
	l.append(batch(d, "a"), 0, 1)
	if !l.pool.TryAcquire(4 << 20) {
		t.Fatal("something is reserved")
	}
	got := l.begin(t.Context(), batch(d, "b"))
	silent(t, "an append without room", got)
	l.endAdmitting()
	wantRefusal(t, receive(t, got).err, reason.NoLeader)
	l.pool.Release(4 << 20)
}
