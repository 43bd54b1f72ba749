package sequencer

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/head"
	"github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// refused is a request that the stream of newRefuser refuses.
type refused struct {
	what    string
	call    func(l *leader, d *indexpb.StreamDescriptor) error
	code    codes.Code
	reason  reason.Reason
	outcome reason.Outcome
}

func appended(edit func(*novapb.AppendRequest)) func(*leader, *indexpb.StreamDescriptor) error {
	return func(l *leader, d *indexpb.StreamDescriptor) error {
		req := batch(d, "x")
		edit(req)
		_, err := l.Append(context.Background(), req)
		return err
	}
}

func by(id string, epoch, n uint64) func(*leader, *indexpb.StreamDescriptor) error {
	return appended(func(r *novapb.AppendRequest) { r.ProducerId, r.ProducerEpoch, r.BatchSeq = id, epoch, n })
}

// An outcome is about the very call; UNKNOWN where an earlier try of the same
// batch may have been stored.
var refusals = []refused{
	{"an old epoch of its producer", by("p", 4, 0), codes.FailedPrecondition, reason.ProducerFenced, reason.Unknown},
	{"a batch of before what is remembered", by("p", 5, 0), codes.FailedPrecondition, reason.ProducerGap, reason.Unknown},
	{"a gap", by("p", 5, 99), codes.FailedPrecondition, reason.ProducerGap, reason.NotCommitted},
	{"a gap of a new epoch", by("p", 6, 1), codes.FailedPrecondition, reason.ProducerGap, reason.NotCommitted},
	{"an unknown producer that does not begin", by("q", 0, 1), codes.FailedPrecondition, reason.ProducerGap, reason.NotCommitted},
	{"a ULID of long ago", by(stream.ID{}.String(), 0, 0), codes.FailedPrecondition, reason.ProducerGap, reason.NotCommitted},
	{"one producer too many", by("q", 0, 0), codes.ResourceExhausted, reason.OverBudget, reason.NotCommitted},
	{"a batch that was stored with other records", appended(func(r *novapb.AppendRequest) {
		r.ProducerId, r.ProducerEpoch, r.BatchSeq, r.Records = "p", 5, head.MaxBatches, records("x", "y")
	}), codes.InvalidArgument, "", reason.NotCommitted},
	{"another number", appended(func(r *novapb.AppendRequest) { r.SetMatchSeq(99_999) }), codes.FailedPrecondition, reason.SeqMismatch, reason.NotCommitted},
	{"another token", appended(func(r *novapb.AppendRequest) { r.SetFencingToken("other") }), codes.Aborted, reason.Fenced, reason.NotCommitted},
	{"no token", appended(func(r *novapb.AppendRequest) { r.SetFencingToken("") }), codes.Aborted, reason.Fenced, reason.NotCommitted},
	{"a trim beyond the tail", func(l *leader, d *indexpb.StreamDescriptor) error { _, err := l.trim(d, 99_999); return err }, codes.OutOfRange, reason.BeyondTail, reason.NotCommitted},
	{"a seal at another number", func(l *leader, d *indexpb.StreamDescriptor) error {
		_, err := l.SealStream(context.Background(), &novapb.SealStreamRequest{Bucket: "bucket", Stream: d.GetName(), MatchSeqPresence: &novapb.SealStreamRequest_MatchSeq{MatchSeq: 99_999}})
		return err
	}, codes.FailedPrecondition, reason.SeqMismatch, reason.NotCommitted},
	{"a new token without the old", func(l *leader, d *indexpb.StreamDescriptor) error {
		_, err := l.SetFencingToken(context.Background(), &novapb.SetFencingTokenRequest{
			Bucket: "bucket", Stream: d.GetName(), Token: "new", FencingTokenPresence: &novapb.SetFencingTokenRequest_FencingToken{FencingToken: "other"},
		})
		return err
	}, codes.Aborted, reason.Fenced, reason.NotCommitted},
}

// newRefuser makes a stream with a full table of producers, of which p has
// stored more batches than are remembered, and with a token.
func newRefuser(t *testing.T) (*world, *leader, *indexpb.StreamDescriptor, uint64) {
	t.Helper()
	w := newWorld(t)
	l := w.lead(Config{})
	d := w.stream(nil)
	n := uint64(0)
	add := func(id string, epoch, batchSeq uint64) {
		t.Helper()
		req := batch(d, "x")
		req.ProducerId, req.ProducerEpoch, req.BatchSeq = id, epoch, batchSeq
		l.append(req, n, n+1)
		n++
	}
	for i := range head.MaxProducers - 1 {
		add(fmt.Sprint("other", i), 0, 0)
	}
	for i := range uint64(head.MaxBatches + 1) {
		add("p", 5, i)
	}
	if _, err := l.SetFencingToken(t.Context(), &novapb.SetFencingTokenRequest{Bucket: "bucket", Stream: d.GetName(), Token: "t"}); err != nil {
		t.Fatal(err)
	}
	return w, l, d, n
}

func wantRefused(t *testing.T, c refused, err error, why reason.Reason) {
	t.Helper()
	if why == reason.NoLeader && reason.Is(err, reason.NotLeader) {
		why = reason.NotLeader // it knows who leads
	}
	if err == nil || reason.OutcomeOf(err) != c.outcome || why != c.reason && !reason.Is(err, why) || why == c.reason && (!reason.Is(err, c.reason) || reason.Code(err) != c.code) {
		t.Errorf("%s: %v with outcome %q; want %v, %s with %s", c.what, err, reason.OutcomeOf(err), c.code, why, c.outcome)
	}
}

// Every refusal says truthfully what became of the request: when it is given at
// once, when it waits for what it saw to be committed, when that is lost with
// the leadership, and when without a lease nobody may say so (I2, I4, I5).
func TestEveryRefusalSaysItsOutcome(t *testing.T) {
	type told = chan error
	ask := func(l *leader, d *indexpb.StreamDescriptor) []told {
		var out []told
		for _, c := range refusals {
			answer := make(told, 1)
			out = append(out, answer)
			go func() { answer <- c.call(l, d) }()
		}
		return out
	}
	for what, f := range map[string]func(t *testing.T, w *world, l *leader, d *indexpb.StreamDescriptor, n uint64){
		"at once": func(t *testing.T, _ *world, l *leader, d *indexpb.StreamDescriptor, _ uint64) {
			for i, a := range ask(l, d) {
				wantRefused(t, refusals[i], receive(t, a), refusals[i].reason)
			}
		},
		"once committed": func(t *testing.T, w *world, l *leader, d *indexpb.StreamDescriptor, n uint64) {
			w.writer.script(always(hold))
			under := l.pending(batch(d, "under way"))
			answers := ask(l, d)
			synctest.Wait()
			for i, a := range answers {
				silent(t, refusals[i].what, a)
			}
			w.writer.release()
			wantAck(t, receive(t, under), n, n+1)
			for i, a := range answers {
				wantRefused(t, refusals[i], receive(t, a), refusals[i].reason)
			}
		},
		"lost with the leadership": func(t *testing.T, w *world, l *leader, d *indexpb.StreamDescriptor, _ uint64) {
			w.writer.script(always(lose))
			under := l.pending(batch(d, "under way"))
			answers := ask(l, d)
			synctest.Wait()
			l.depose().stop()
			wantFailure(t, receive(t, under).err, "", reason.Unknown)
			for i, a := range answers {
				wantRefused(t, refusals[i], receive(t, a), reason.NoLeader)
			}
		},
		"without a lease": func(t *testing.T, w *world, l *leader, d *indexpb.StreamDescriptor, n uint64) {
			l.rows.Script(fault.Rule{Op: fault.Put, Prefix: "life/", Do: fault.FailBefore})
			time.Sleep(10 * time.Second)
			for i, a := range ask(l, d) {
				wantRefused(t, refusals[i], receive(t, a), reason.NoLeader)
			}
			// Appends go on, fences protect them; what they prove was true before.
			w.writer.script(always(hold))
			under := l.pending(batch(d, "under way"))
			answers := ask(l, d)
			synctest.Wait()
			w.writer.release()
			wantAck(t, receive(t, under), n, n+1)
			for i, a := range answers {
				wantRefused(t, refusals[i], receive(t, a), reason.NoLeader)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, l, d, n := newRefuser(t)
				f(t, w, l, d, n)
				l.stop()
			})
		})
	}
}

// What never reached the line of a stream is NOT_COMMITTED.
func TestWhatIsNotAdmittedIsNotCommitted(t *testing.T) {
	synctest.Test(t, notAdmitted)
}

func notAdmitted(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{})
	d := w.stream(nil)
	required := w.stream(&novapb.StreamConfig{Timestamping: novapb.TimestampingMode_TIMESTAMPING_MODE_CLIENT_REQUIRE})
	l.append(batch(d, "a"), 0, 1)
	none := batch(d, "x")
	none.Stream = "none"
	_, err := l.Append(t.Context(), none)
	wantRefusal(t, err, reason.StreamNotFound)
	other := batch(d, "x")
	other.StreamId = required.GetStreamId()
	_, err = l.Append(t.Context(), other)
	wantRefusal(t, err, reason.StreamNotFound)
	_, err = l.Append(t.Context(), batch(required, "x"))
	wantRefusal(t, err, "")
	if _, err := l.seal(d); err != nil {
		t.Fatal(err)
	}
	_, err = l.Append(t.Context(), batch(d, "x"))
	wantRefusal(t, err, reason.StreamSealed)
	if err := l.delete(required); err != nil {
		t.Fatal(err)
	}
	_, err = l.Append(t.Context(), batch(required, "x"))
	wantRefusal(t, err, reason.StreamNotFound)
	next := l.depose()
	_, err = l.Append(t.Context(), batch(d, "x"))
	wantRefusal(t, err, "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = next.Append(ctx, batch(d, "x"))
	if reason.OutcomeOf(err) == "" {
		t.Errorf("a caller that has left: %v", err)
	}
	w.wantStored(d, "a")
	next.stop()
	l.stop()
}
