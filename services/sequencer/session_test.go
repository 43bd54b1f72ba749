package sequencer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// sender is one append session; what it is told comes in order.
type sender struct {
	t    testing.TB
	call novapb.AppendService_AppendSessionClient
	told chan *novapb.AppendSessionResponse
	end  chan error // how the call ended
}

func (l *leader) session(d *indexpb.StreamDescriptor, producer string) *sender {
	l.w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l.w.t.Cleanup(cancel)
	call, err := l.appends.AppendSession(ctx)
	if err != nil {
		l.w.t.Fatal(err)
	}
	s := &sender{t: l.w.t, call: call, told: make(chan *novapb.AppendSessionResponse, 100), end: make(chan error, 1)}
	s.send(&novapb.AppendSessionRequest{Message: &novapb.AppendSessionRequest_Open{
		Open: &novapb.AppendSessionOpen{Bucket: "bucket", Stream: d.GetName(), ProducerId: producer},
	}})
	go func() {
		for {
			m, err := call.Recv()
			if err != nil {
				s.end <- err
				return
			}
			s.told <- m
		}
	}()
	if opened := receive(l.w.t, s.told).GetOpened(); opened.GetStreamId() != d.GetStreamId() {
		l.w.t.Fatalf("opened %v", opened)
	}
	return s
}

func (s *sender) send(m *novapb.AppendSessionRequest) {
	s.t.Helper()
	if err := s.call.Send(m); err != nil {
		s.t.Fatal(err)
	}
}

func (s *sender) batch(b *novapb.AppendSessionBatch) {
	s.t.Helper()
	s.send(&novapb.AppendSessionRequest{Message: &novapb.AppendSessionRequest_Batch{Batch: b}})
}

// acked wants the next answer to be the ack of a batch.
func (s *sender) acked(index, first, next uint64) *novapb.AppendAck {
	s.t.Helper()
	m := receive(s.t, s.told)
	if ack := m.GetAck(); ack == nil || m.GetBatchIndex() != index || ack.GetFirstSeq() != first || ack.GetNextSeq() != next {
		s.t.Fatalf("answer %v, want the ack of batch %d with numbers [%d, %d)", m, index, first, next)
	}
	return m.GetAck()
}

func TestSessionIsAnsweredInOrder(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{})
	d := w.stream(nil)
	s := l.session(d, "")
	w.writer.script(always(hold))
	for i := range 10 {
		s.batch(&novapb.AppendSessionBatch{Records: records(fmt.Sprint(i))})
	}
	eventually(t, "they are under way", func() bool { n, _ := l.inflight(d); return n > 0 })
	silent(t, "a batch that is not committed", s.told)
	w.writer.release()
	var want []string
	for i := range uint64(10) {
		s.acked(i, i, i+1)
		want = append(want, fmt.Sprint(i))
	}
	if err := s.call.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, s.end); !errors.Is(err, io.EOF) {
		t.Errorf("the session ended with %v", err)
	}
	w.wantStored(d, want...)
}

// A session is a sequence: behind a batch that failed nothing is stored.
func TestSessionStoresNothingBehindAFailure(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{})
	d := w.stream(nil)
	s := l.session(d, "")
	w.writer.script(always(hold))
	s.batch(&novapb.AppendSessionBatch{Records: records("a")})
	eventually(t, "it is under way", func() bool { n, _ := l.inflight(d); return n == 1 })
	s.batch(&novapb.AppendSessionBatch{Records: records("x"), MatchSeqPresence: &novapb.AppendSessionBatch_MatchSeq{MatchSeq: 7}})
	s.batch(&novapb.AppendSessionBatch{Records: records("y")})
	eventually(t, "both wait", func() bool { _, waits := l.inflight(d); return waits == 3 })
	// Others are not held up.
	other := l.pending(batch(d, "b"))
	w.writer.release()
	s.acked(0, 0, 1)
	for i := uint64(1); i <= 2; i++ {
		m := receive(t, s.told)
		if f := m.GetFailure(); m.GetBatchIndex() != i || f.GetOutcome() != novapb.Outcome_OUTCOME_NOT_COMMITTED || (f.GetReason() == string(reason.SeqMismatch)) != (i == 1) {
			t.Errorf("answer %v", m)
		}
	}
	if err := receive(t, s.end); !reason.Is(err, reason.SeqMismatch) {
		t.Errorf("the session ended with %v", err)
	}
	wantAck(t, receive(t, other), 1, 2)
	w.wantStored(d, "a", "b")
}

// A producer whose session broke sends again what it has no ack of (I5).
func TestSessionSendsAgain(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{})
	d := w.stream(nil)
	w.writer.script(always(hold))
	s := l.session(d, "p")
	for i := range uint64(3) {
		s.batch(&novapb.AppendSessionBatch{Records: records(fmt.Sprint(i)), BatchSeq: i})
	}
	eventually(t, "all are numbered", func() bool { _, waits := l.inflight(d); return waits == 3 })
	again := l.session(d, "p")
	for i := range uint64(4) {
		again.batch(&novapb.AppendSessionBatch{Records: records(fmt.Sprint(i)), BatchSeq: i})
	}
	eventually(t, "the repeats wait", func() bool { _, waits := l.inflight(d); return waits == 7 })
	w.writer.release()
	for i := range uint64(4) {
		if ack := again.acked(i, i, i+1); ack.GetDuplicate() != (i < 3) {
			t.Errorf("batch %d: %v", i, ack)
		}
	}
	w.wantStored(d, "0", "1", "2", "3")
}

func TestSessionsHaveALimit(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{MaxSessions: 1})
	d := w.stream(nil)
	s := l.session(d, "")
	call, err := l.appends.AppendSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = call.Recv()
	wantRefusal(t, err, reason.OverBudget)
	if err := s.call.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, s.end); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	l.session(d, "")
}

// A batch that was on its way when another failed gets its failure too, and the
// session ends as soon as the client has nothing more to send.
func TestSessionAnswersWhatComesAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // such a session goes on for a second
		w := newWorld(t)
		l := w.lead(Config{})
		d := w.stream(nil)
		s := l.session(d, "")
		s.batch(&novapb.AppendSessionBatch{}) // no record
		for i := range uint64(3) {
			m := receive(t, s.told)
			if f := m.GetFailure(); m.GetBatchIndex() != i || f.GetOutcome() != novapb.Outcome_OUTCOME_NOT_COMMITTED {
				t.Fatalf("answer %v, want the failure of batch %d", m, i)
			}
			if i < 2 {
				s.batch(&novapb.AppendSessionBatch{Records: records("late")})
			}
		}
		if err := s.call.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if err := receive(t, s.end); reason.OutcomeOf(err) != reason.NotCommitted {
			t.Errorf("the end: %v", err)
		}
		l.stop()
		w.wantStored(d)
	})
}

// A batch that is stored behind one whose outcome nobody knows is not told that
// it is not: NOT_COMMITTED invites a resend that would be stored twice (I5).
func TestBatchStoredBehindAnUnknownOneIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := w.lead(Config{AppendTimeout: 3 * time.Second})
		d := w.stream(nil)
		s := l.session(d, "")
		w.writer.script(always(hold))
		s.batch(&novapb.AppendSessionBatch{Records: records("a")})
		synctest.Wait()
		s.batch(&novapb.AppendSessionBatch{Records: records("b")})
		synctest.Wait()
		time.Sleep(3*time.Second + 500*time.Millisecond)
		w.writer.release() // within the second that the other one has
		for i := range uint64(2) {
			m := receive(t, s.told)
			if f := m.GetFailure(); m.GetBatchIndex() != i || f.GetOutcome() != novapb.Outcome_OUTCOME_UNKNOWN {
				t.Errorf("answer %v, want batch %d with an unknown outcome", m, i)
			}
		}
		w.wantStored(d, "a", "b")
		l.stop()
	})
}

// A session may be silent for longer than its stream stays in memory.
func TestSessionGoesOnWithAStreamThatLeft(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{IdleStream: time.Microsecond})
	d := w.stream(nil)
	s := l.session(d, "p")
	for i := range uint64(3) {
		s.batch(&novapb.AppendSessionBatch{Records: records(fmt.Sprint(i)), BatchSeq: i})
		s.acked(i, i, i+1)
		eventually(t, "it leaves", func() bool { l.evict(); return l.open(d) == nil })
	}
	again := l.session(d, "p")
	again.batch(&novapb.AppendSessionBatch{Records: records("2"), BatchSeq: 2})
	if ack := again.acked(0, 2, 3); !ack.GetDuplicate() {
		t.Errorf("ack %v", ack)
	}
	// Deleted meanwhile, it is no more.
	if err := l.delete(d); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it leaves", func() bool { l.evict(); return l.open(d) == nil })
	s.batch(&novapb.AppendSessionBatch{Records: records("x"), BatchSeq: 3})
	if f := receive(t, s.told).GetFailure(); f.GetReason() != string(reason.StreamNotFound) || f.GetOutcome() != novapb.Outcome_OUTCOME_NOT_COMMITTED {
		t.Errorf("answer %v", f)
	}
	w.wantStored(d, "0", "1", "2")
}

// A stream that left while a batch was under way takes its sessions along, also
// where the same leader serves it again: nothing behind a lost batch is stored.
func TestSessionEndsWithABatchThatWasLost(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{StopTimeout: time.Millisecond}) // what is lost stays under way
	d := w.stream(nil)
	s := l.session(d, "")
	s.batch(&novapb.AppendSessionBatch{Records: records("a")})
	s.acked(0, 0, 1)
	w.writer.script(always(lose))
	s.batch(&novapb.AppendSessionBatch{Records: records("lost")})
	eventually(t, "it is sent", func() bool { return w.writer.total() == 2 })
	st, sh := l.open(d), l.shard()
	sh.mu.Lock()
	delete(sh.streams, st.id)
	sh.mu.Unlock()
	st.leave(errNoLeader(0))
	s.batch(&novapb.AppendSessionBatch{Records: records("behind it")})
	for i, want := range []novapb.Outcome{novapb.Outcome_OUTCOME_UNKNOWN, novapb.Outcome_OUTCOME_NOT_COMMITTED} {
		if m := receive(t, s.told); m.GetBatchIndex() != uint64(i+1) || m.GetFailure().GetOutcome() != want {
			t.Errorf("answer %v, want %v", m, want)
		}
	}
	w.writer.script(nil)
	w.wantStored(d, "a")
}
