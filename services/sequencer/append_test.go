package sequencer

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/head"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

func TestAppendIsNumberedAndAcknowledged(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{})
	d := w.stream(nil)
	first := l.append(batch(d, "a", "b"), 0, 2)
	second := l.append(batch(d, "c"), 2, 3)
	if first.GetTail() < 2 || second.GetTail() != 3 || second.GetFirstTimestamp() < first.GetLastTimestamp() || first.GetContentHash() == second.GetContentHash() {
		t.Errorf("acks %v, %v", first, second)
	}
	w.wantStored(d, "a", "b", "c")
	state := l.state(d)
	if state.GetTail() != 3 || state.GetContentHash() != second.GetContentHash() || state.GetEpoch() != uint64(l.epoch()) {
		t.Errorf("state %v", state)
	}
}

// Nothing uncommitted is shown to anybody (I3), and who waits at the tail is
// woken by the commit.
func TestReadersSeeOnlyWhatIsCommitted(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{})
	d := w.stream(nil)
	l.append(batch(d, "a"), 0, 1)
	w.writer.script(always(hold))
	pending := l.pending(batch(d, "b"))
	if tail := l.state(d).GetTail(); tail != 1 {
		t.Fatalf("tail %d while number 1 is under way", tail)
	}
	fetched := make(chan *sequencerpb.FetchResponse, 1)
	go func() {
		res, err := l.Fetch(t.Context(), &sequencerpb.FetchRequest{Stream: key(d), Start: &sequencerpb.FetchRequest_Seq{Seq: 1}, WaitMs: 60_000, MaxBytes: 1 << 20})
		if err != nil {
			t.Error(err)
		}
		fetched <- res
	}()
	eventually(t, "a reader waits", func() bool {
		st := l.open(d)
		st.mu.Lock()
		defer st.mu.Unlock()
		return st.changed != nil || len(fetched) > 0
	})
	silent(t, "the reader", fetched)
	w.writer.release()
	wantAck(t, receive(t, pending), 1, 2)
	if res := receive(t, fetched); len(res.GetPieces()) != 1 || res.GetPieces()[0].GetBaseSeq() != 1 || len(res.GetPieces()[0].GetChunk()) == 0 {
		t.Fatalf("fetched %v", res)
	}
}

// A refusal is a promise, so it waits until the state that it saw is committed.
func TestRefusalIsHeldBack(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{})
	d := w.stream(nil)
	w.writer.script(always(hold))
	first := l.pending(batch(d, "a"))
	wrong := batch(d, "x")
	wrong.SetMatchSeq(0)
	refused := l.begin(t.Context(), wrong)
	eventually(t, "the refusal waits", func() bool { _, waits := l.inflight(d); return waits == 2 || len(refused) > 0 })
	silent(t, "what may still come true", refused)
	// The next number is 1, for all who come now.
	right := batch(d, "b")
	right.SetMatchSeq(1)
	second := l.pending(right)
	w.writer.release()
	wantAck(t, receive(t, first), 0, 1)
	err := receive(t, refused).err
	wantRefusal(t, err, reason.SeqMismatch)
	if tail, ok := reason.Number(err, reason.KeyTail); !ok || tail != 1 {
		t.Errorf("the refusal says tail %d: %v", tail, err)
	}
	wantAck(t, receive(t, second), 1, 2)
	w.wantStored(d, "a", "b")
}

// If what a refusal saw is not committed from here, the refusal is not given.
func TestHeldRefusalIsDroppedWithTheLeadership(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{})
	d := w.stream(nil)
	w.writer.script(always(lose))
	first := l.pending(batch(d, "a"))
	wrong := batch(d, "x")
	wrong.SetMatchSeq(0)
	refused := l.begin(t.Context(), wrong)
	eventually(t, "the refusal waits", func() bool { _, waits := l.inflight(d); return waits == 2 || len(refused) > 0 })
	silent(t, "what may still come true", refused)
	l.depose()
	wantFailure(t, receive(t, first).err, "", reason.Unknown)
	if err := receive(t, refused).err; reason.Is(err, reason.SeqMismatch) || reason.OutcomeOf(err) != reason.NotCommitted {
		t.Errorf("a refusal without a promise: %v", err)
	}
}

func TestTokenHoldsFromItsEntryOn(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{})
	d := w.stream(nil)
	l.append(batch(d, "a"), 0, 1)
	w.writer.script(always(hold))
	set := make(chan error, 1)
	go func() {
		_, err := l.SetFencingToken(t.Context(), &novapb.SetFencingTokenRequest{Bucket: "bucket", Stream: d.GetName(), Token: "new"})
		set <- err
	}()
	eventually(t, "the token is under way", func() bool { n, _ := l.inflight(d); return n == 1 })
	with := func(token, body string) *novapb.AppendRequest {
		req := batch(d, body)
		req.SetFencingToken(token)
		return req
	}
	old := l.begin(t.Context(), with("", "x"))
	eventually(t, "the refusal waits", func() bool { _, waits := l.inflight(d); return waits == 2 || len(old) > 0 })
	silent(t, "a holder of the old token", old)
	fresh := l.pending(with("new", "b"))
	w.writer.release()
	if err := receive(t, set); err != nil {
		t.Fatal(err)
	}
	wantRefusal(t, receive(t, old).err, reason.Fenced)
	wantAck(t, receive(t, fresh), 1, 2)
	l.append(batch(d, "c"), 2, 3) // without a token nothing is checked
	w.wantStored(d, "a", "b", "c")
}

// A batch that comes again is stored once and gets its first ack (I5), whether
// the first is committed or under way.
func TestRepeatedBatchJoinsTheFirst(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{})
	d := w.stream(nil)
	req := func(epoch, n uint64, body string) *novapb.AppendRequest {
		r := batch(d, body)
		r.ProducerId, r.ProducerEpoch, r.BatchSeq = "p", epoch, n
		return r
	}
	l.append(req(1, 0, "a"), 0, 1)
	w.writer.script(always(hold))
	first := l.pending(req(1, 1, "b"))
	again := l.begin(t.Context(), req(1, 1, "b"))
	eventually(t, "the repeat waits", func() bool { _, waits := l.inflight(d); return waits == 2 || len(again) > 0 })
	silent(t, "the repeat", again)
	if ack := l.append(req(1, 0, "a"), 0, 1); !ack.GetDuplicate() {
		t.Errorf("of a committed batch: %v", ack)
	}
	w.writer.release()
	a, b := receive(t, first), receive(t, again)
	wantAck(t, a, 1, 2)
	wantAck(t, b, 1, 2)
	if a.ack.GetDuplicate() || !b.ack.GetDuplicate() || a.ack.GetContentHash() != b.ack.GetContentHash() {
		t.Errorf("acks %v, %v", a.ack, b.ack)
	}
	_, err := l.Append(t.Context(), req(1, 3, "x"))
	wantRefusal(t, err, reason.ProducerGap)
	if due, _ := reason.Number(err, reason.KeyExpectedBatchSeq); due != 2 {
		t.Errorf("batch %d is said to be due: %v", due, err)
	}
	l.append(req(2, 0, "c"), 2, 3)
	_, err = l.Append(t.Context(), req(1, 2, "x"))
	// It may have been stored before the fence.
	wantFailure(t, err, reason.ProducerFenced, reason.Unknown)
	// So may a batch from before what is remembered.
	for n := range uint64(head.MaxBatches + 1) {
		l.append(req(2, n+1, "d"), n+3, n+4)
	}
	_, err = l.Append(t.Context(), req(2, 0, "c"))
	wantFailure(t, err, reason.ProducerGap, reason.Unknown)
	w.wantStored(d, append([]string{"a", "b", "c"}, slices.Repeat([]string{"d"}, head.MaxBatches+1)...)...)
}

// Room is taken before numbers are given: what finds none is refused, and the
// numbers go on without a gap (I1, I8).
func TestAppendWithoutRoomIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := w.lead(Config{PoolBytes: 4000})
		d := w.stream(nil)
		body := strings.Repeat("x", 1000)
		w.writer.script(always(hold))
		first, second := l.pending(batch(d, body)), l.pending(batch(d, body))
		_, err := l.Append(t.Context(), batch(d, body))
		wantRefusal(t, err, reason.OverBudget)
		if reason.Code(err) != codes.ResourceExhausted {
			t.Errorf("code %v", reason.Code(err))
		}
		w.writer.release()
		wantAck(t, receive(t, first), 0, 1)
		wantAck(t, receive(t, second), 1, 2)
		l.append(batch(d, "after"), 2, 3) // there is room again
		w.wantStored(d, body, body, "after")
		l.stop()
	})
}

// The chain-writer's credit holds entries back, not the numbering.
func TestCreditHoldsEntriesBack(t *testing.T) {
	w := newWorld(t)
	w.writer.credit = 1
	l := w.lead(Config{})
	d := w.stream(nil)
	w.writer.script(always(hold))
	var answers []<-chan answer
	for i := range 3 {
		answers = append(answers, l.pending(batch(d, fmt.Sprint(i))))
	}
	eventually(t, "the first entry arrives", func() bool { return w.writer.held() > 0 })
	for range 3 {
		if n := w.writer.held(); n != 1 {
			t.Fatalf("%d entries were sent with credit for one", n)
		}
		w.writer.releaseHeld()
		answers = answers[1:]
		if len(answers) > 0 {
			eventually(t, "the next entry arrives", func() bool { return w.writer.held() > 0 })
		}
	}
	w.wantStored(d, "0", "1", "2")
}

// A caller that goes away does not take its numbers along (I1).
func TestNumbersOfACallerThatLeftAreUsed(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{})
	d := w.stream(nil)
	w.writer.script(always(hold))
	ctx, cancel := context.WithCancel(t.Context())
	left := l.begin(ctx, batch(d, "a"))
	eventually(t, "it is numbered", func() bool { n, _ := l.inflight(d); return n == 1 })
	cancel()
	wantFailure(t, receive(t, left).err, "", reason.Unknown)
	next := l.pending(batch(d, "b"))
	w.writer.release()
	wantAck(t, receive(t, next), 1, 2)
	w.wantStored(d, "a", "b")
}

// What was never numbered is not committed, and is not numbered later.
func TestRequestThatWasNotNumberedIsGone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := newRequest(bundle.KindChunk)
	wantFailure(t, r.wait(ctx, time.Minute).err, "", reason.NotCommitted)
	if r.take() {
		t.Error("it was numbered after its caller heard that it was not")
	}
	r = newRequest(bundle.KindChunk)
	if !r.take() {
		t.Fatal("it cannot be numbered")
	}
	wantFailure(t, r.wait(ctx, time.Minute).err, "", reason.Unknown)
	wantFailure(t, r.wait(t.Context(), time.Nanosecond).err, reason.StorageDown, reason.Unknown)
}

// Timestamps never decrease, which beats everything else (I9).
func TestTimestampsNeverDecrease(t *testing.T) {
	const arrival, prefer = novapb.TimestampingMode_TIMESTAMPING_MODE_ARRIVAL, novapb.TimestampingMode_TIMESTAMPING_MODE_CLIENT_PREFER
	for _, c := range []struct {
		what                string
		mode                novapb.TimestampingMode
		uncapped            bool
		client, last, wants stream.Millis
	}{
		{"none given", prefer, false, noTimestamp, 50, 100},
		{"the client's", prefer, false, 70, 50, 70},
		{"the client's, ignored", arrival, false, 70, 50, 100},
		{"the client's goes back", prefer, false, 40, 50, 50},
		{"the client's is in the future", prefer, false, 170, 50, 100},
		{"the client's may be in the future", prefer, true, 170, 50, 170},
		{"the clock was set back", prefer, false, noTimestamp, 130, 130},
		{"the clock was set back, by arrival", arrival, false, 120, 130, 130},
		{"behind what was in the future", prefer, true, 120, 170, 170},
	} {
		n := numbering{mode: c.mode, uncapped: c.uncapped, arrival: 100, lastTS: c.last}
		if got := n.timestamp(c.client); got != c.wants {
			t.Errorf("%s: %d, want %d", c.what, got, c.wants)
		}
	}
	w := newWorld(t)
	l := w.lead(Config{})
	d := w.stream(&novapb.StreamConfig{Timestamping: novapb.TimestampingMode_TIMESTAMPING_MODE_CLIENT_REQUIRE})
	req := batch(d, "a", "b")
	req.Records[0].SetTimestamp(2000)
	req.Records[1].SetTimestamp(1000)
	if ack := l.append(req, 0, 2); ack.GetFirstTimestamp() != 2000 || ack.GetLastTimestamp() != 2000 {
		t.Errorf("ack %v", ack)
	}
	_, err := l.Append(t.Context(), batch(d, "x"))
	wantRefusal(t, err, "")
	req = batch(d, "c")
	req.Records[0].SetTimestamp(1500)
	if ack := l.append(req, 2, 3); ack.GetFirstTimestamp() != 2000 {
		t.Errorf("ack %v", ack)
	}
	w.wantStored(d, "a", "b", "c")
}

// Requests that come while the pump works share the next chunk; each has its
// own numbers.
func TestRequestsShareAChunk(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{})
	d := w.stream(nil)
	l.append(batch(d, "first"), 0, 1)
	st := l.open(d)
	holdPump(t, st)
	var answers []<-chan answer
	for i := range 5 {
		answers = append(answers, l.begin(t.Context(), batch(d, fmt.Sprint(i))))
		eventually(t, "it is in line", func() bool {
			st.mu.Lock()
			defer st.mu.Unlock()
			return len(st.queue) == i+1
		})
	}
	st.pump()
	for i, a := range answers {
		wantAck(t, receive(t, a), uint64(i+1), uint64(i+2))
	}
	chunks := 0
	for _, e := range w.writer.landed() {
		if e.GetKind() == chainwriterpb.EntryKind_ENTRY_KIND_CHUNK {
			chunks++
		}
	}
	if chunks != 2 {
		t.Errorf("%d chunks, want the first and one for five requests", chunks)
	}
	w.wantStored(d, "first", "0", "1", "2", "3", "4")
}
