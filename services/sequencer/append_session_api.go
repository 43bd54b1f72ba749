package sequencer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nova-stream/nova/libs/head"
	"github.com/nova-stream/nova/libs/optional"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/libs/telemetry"
	"github.com/nova-stream/nova/libs/validate"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// sessionPipeline is how many batches of a session are under way: a producer
// may send again what is remembered of it, no more.
const sessionPipeline = head.MaxBatches

// sessionBatch is a batch on its way: its request, or why it never became one.
type sessionBatch struct {
	req     *request
	err     error
	started time.Time
	span    trace.Span // nil: not traced
}

// session is what the requests of one session share. It belongs to the pump of
// their stream.
type session struct {
	failed bool
}

// AppendSession stores batches one after another, pipelined. The receiving
// side queues batches in order; the answering side waits for them in order.
func (s *Service) AppendSession(srv novapb.AppendService_AppendSessionServer) error {
	if n := s.sessions.Add(1); n > int64(s.cfg.MaxSessions) {
		s.sessions.Add(-1)
		s.metrics.refused(srv.Context(), "sessions")
		return reason.WithOutcome(reason.Over("sessions", fmt.Sprintf("%d append sessions are open, the limit", s.cfg.MaxSessions), time.Second), reason.NotCommitted)
	}
	defer s.sessions.Add(-1)
	first, err := s.firstOf(srv)
	if err != nil {
		return err
	}
	if err := validate.Request(first); err != nil {
		return reason.WithOutcome(err, reason.NotCommitted)
	}
	open := first.GetOpen()
	if open == nil {
		return reason.WithOutcome(reason.Field("open", "must be the first message of a session"), reason.NotCommitted)
	}
	opening, opened := s.whileAdmitting(srv.Context())
	st, err := s.openNamed(opening, open)
	opened()
	switch {
	case s.admitting.Err() != nil:
		return errStopping()
	case err != nil:
		return reason.WithOutcome(err, reason.NotCommitted)
	}
	if err := srv.Send(&novapb.AppendSessionResponse{Message: &novapb.AppendSessionResponse_Opened{
		Opened: &novapb.AppendSessionOpened{StreamId: st.id.String(), Tail: uint64(st.committedTail())},
	}}); err != nil {
		return err
	}
	// The receiving side ends when this call returns, since that ends its Recv;
	// it is never waited for, here or in Run.
	ctx := srv.Context()
	batches, in := make(chan sessionBatch, sessionPipeline), &intake{}
	go func() {
		defer close(batches)
		s.takeBatches(ctx, srv, st, open, batches, in)
	}()
	return s.answerBatches(ctx, srv, batches, in)
}

// firstOf receives the first message of a session, unless a stop begins before
// it comes.
func (s *Service) firstOf(srv novapb.AppendService_AppendSessionServer) (*novapb.AppendSessionRequest, error) {
	type received struct {
		msg *novapb.AppendSessionRequest
		err error
	}
	got := make(chan received, 1)
	go func() { // ends with the call, at the latest
		msg, err := srv.Recv()
		got <- received{msg, err}
	}()
	select {
	case r := <-got:
		if errors.Is(r.err, io.EOF) {
			return nil, reason.WithOutcome(reason.Field("open", "must be the first message of a session; the session ended before it"), reason.NotCommitted)
		}
		return r.msg, r.err
	case <-s.admitting.Done():
		return nil, errStopping()
	}
}

func (s *Service) takeBatches(
	ctx context.Context, srv novapb.AppendService_AppendSessionServer, st *openStream, open *novapb.AppendSessionOpen, batches chan<- sessionBatch, in *intake,
) {
	session, failed := &session{}, false
	for {
		msg, err := srv.Recv()
		if reason.Code(err) == codes.InvalidArgument && in.enter() {
			// It came and cannot be read; nothing behind it can be, either.
			select {
			case batches <- sessionBatch{err: reason.WithOutcome(err, reason.NotCommitted)}:
			case <-ctx.Done():
			}
		}
		if err != nil {
			return // half-closed, or gone: what was queued is answered
		}
		if !in.enter() {
			return // the call ends, saying that this batch was not taken
		}
		batch := msg.GetBatch()
		var out sessionBatch
		invalid := validate.Request(msg)
		switch {
		case invalid != nil:
			out.err = reason.WithOutcome(invalid, reason.NotCommitted)
		case batch == nil:
			out.err = reason.WithOutcome(reason.Field("message", "must be a batch after open"), reason.NotCommitted)
		case batch.GetBatchSeq() != 0 && open.GetProducerId() == "":
			out.err = reason.WithOutcome(reason.Field("batch.batch_seq", "needs a producer_id in open"), reason.NotCommitted)
		case failed:
			out.err = errSessionFailed(reason.NotCommitted)
		default:
			// A stream that is idle leaves memory, with nothing under way: a session
			// goes on with it. If it left otherwise, batches of this session may be
			// lost, and none behind them may be stored.
			if !st.use() && st.leftAtRest() {
				st, out.err = s.openAgain(ctx, st)
			}
			if out.err == nil {
				out = s.queueBatch(ctx, st, session, open, batch)
			}
		}
		failed = failed || out.err != nil
		select {
		case batches <- out:
		case <-ctx.Done():
			endAppend(out.span, len(batch.GetRecords()), nil, ctx.Err())
			return
		}
	}
}

func (s *Service) openAgain(ctx context.Context, left *openStream) (*openStream, error) {
	ctx, opened := s.whileAdmitting(ctx)
	defer opened()
	st, err := s.openByID(ctx, left.id, left.shard.number)
	switch {
	case s.admitting.Err() != nil:
		return left, errStopping()
	case err != nil:
		return left, reason.WithOutcome(err, reason.NotCommitted)
	}
	return st, nil
}

func (s *Service) queueBatch(ctx context.Context, st *openStream, session *session, open *novapb.AppendSessionOpen, b *novapb.AppendSessionBatch) sessionBatch {
	ctx, span := startAppend(ctx, open.GetBucket(), open.GetStream())
	r := appendRequest(batchFields{
		records: b.GetRecords(), match: optional.Of(b.HasMatchSeq(), b.GetMatchSeq()), token: optional.Of(b.HasFencingToken(), b.GetFencingToken()), seal: b.GetSeal(),
		producer: stream.Producer{ID: open.GetProducerId(), Epoch: open.GetProducerEpoch(), Batch: b.GetBatchSeq()},
	})
	r.session, r.span = session, telemetry.PackSpan(ctx)
	if err := s.reserve(ctx, r); err != nil {
		endAppend(span, len(b.GetRecords()), nil, err)
		return sessionBatch{err: err}
	}
	out := sessionBatch{req: r, started: s.now(), span: span}
	st.enqueue(r)
	return out
}

// failureGrace is how long a failed session goes on answering batches that were
// on their way, each with its failure; the client ends it sooner by half-closing.
const failureGrace = time.Second

// answerBatches answers in order. The first failure fails everything after it:
// a batch that was queued behind it may still be stored, and is told UNKNOWN
// unless its own answer says better.
//
// When a stop begins, it answers what is queued; then the session ends.
func (s *Service) answerBatches(ctx context.Context, srv novapb.AppendService_AppendSessionServer, batches <-chan sessionBatch, in *intake) error {
	var failure error
	var over <-chan time.Time // set by the failure
	index := uint64(0)
	for {
		b, ok := sessionBatch{}, false
		select {
		case b, ok = <-batches:
		case <-over:
			return failure
		case <-s.admitting.Done():
			if in.close(index) {
				return errStopping()
			}
			// A batch is queued, or about to be.
			b, ok = <-batches
		}
		if !ok {
			return failure
		}
		res := result{err: b.err}
		if b.req != nil {
			limit := s.cfg.AppendTimeout
			if failure != nil {
				limit = time.Second
			}
			res = b.req.wait(ctx, limit)
			s.metrics.appended(ctx, b.req, s.now().Sub(b.started), res.err)
			endAppend(b.span, len(b.req.records), res.ack, res.err)
		}
		if failure != nil && res.err == nil {
			// Stored although an earlier batch failed; the client hears that it
			// cannot rely on it.
			res.err = errSessionFailed(reason.Unknown)
		}
		answer := &novapb.AppendSessionResponse{BatchIndex: index}
		index++
		if res.err == nil {
			answer.Message = &novapb.AppendSessionResponse_Ack{Ack: ackOf(res)}
		} else {
			answer.Message = &novapb.AppendSessionResponse_Failure{Failure: sessionFailure(res.err)}
			if failure == nil {
				failure, over = res.err, time.After(failureGrace)
			}
		}
		if err := srv.Send(answer); err != nil {
			return err
		}
	}
}

// errSessionFailed is for a batch behind one that failed: NOT_COMMITTED if it was
// never numbered, UNKNOWN if it was.
func errSessionFailed(o reason.Outcome) error {
	return reason.WithOutcome(status.Error(codes.Aborted, "an earlier batch of the session failed"), o)
}

func sessionFailure(err error) *novapb.AppendSessionFailure {
	outcome := novapb.Outcome_OUTCOME_UNKNOWN
	if reason.OutcomeOf(err) == reason.NotCommitted {
		outcome = novapb.Outcome_OUTCOME_NOT_COMMITTED
	}
	return &novapb.AppendSessionFailure{
		Code: int32(reason.Code(err)), Reason: string(reason.Of(err)), Message: status.Convert(err).Message(), Outcome: outcome,
	}
}

func (st *openStream) committedTail() stream.Seq {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.tail
}
