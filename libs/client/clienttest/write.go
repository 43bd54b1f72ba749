package clienttest

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nova-stream/nova/libs/optional"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

type appendService struct {
	novapb.UnimplementedAppendServiceServer

	s *Server
}

func (a appendService) Append(ctx context.Context, r *novapb.AppendRequest) (*novapb.AppendResponse, error) {
	if err := check(r); err != nil {
		return nil, reason.WithOutcome(err, reason.NotCommitted)
	}
	st, err := a.s.find(ctx, r)
	if err != nil {
		return nil, reason.WithOutcome(err, reason.NotCommitted)
	}
	ack, err := a.s.accept(r, batch{
		records: r.GetRecords(), match: optional.Of(r.HasMatchSeq(), r.GetMatchSeq()), token: optional.Of(r.HasFencingToken(), r.GetFencingToken()), seal: r.GetSeal(),
		producer: stream.Producer{ID: r.GetProducerId(), Epoch: r.GetProducerEpoch(), Batch: r.GetBatchSeq()},
	})
	if err != nil {
		return nil, err
	}
	return &novapb.AppendResponse{Ack: ack, StreamId: st.info.GetStreamId()}, nil
}

type answer struct {
	ack *novapb.AppendAck
	err error
}

func (a appendService) AppendSession(srv novapb.AppendService_AppendSessionServer) error {
	first, err := srv.Recv()
	if err != nil {
		return err
	}
	open := first.GetOpen()
	if err := a.s.at(Opening); err != nil {
		return outcome(err, reason.NotCommitted)
	}
	if err := check(first); err != nil {
		return reason.WithOutcome(err, reason.NotCommitted)
	}
	st, err := a.s.find(srv.Context(), open)
	if err != nil {
		return reason.WithOutcome(err, reason.NotCommitted)
	}
	a.s.mu.Lock()
	a.s.Opened++
	opened := &novapb.AppendSessionOpened{StreamId: st.info.GetStreamId(), Tail: st.tail()}
	a.s.mu.Unlock()
	if err := srv.Send(&novapb.AppendSessionResponse{Message: &novapb.AppendSessionResponse_Opened{Opened: opened}}); err != nil {
		return err
	}
	const pipeline = 16
	answers := make(chan answer, pipeline)
	// It ends with the call, whose end ends its Recv.
	go a.receive(srv, &novapb.AppendSessionOpen{
		Bucket: open.GetBucket(), Stream: open.GetStream(), StreamId: opened.GetStreamId(), ProducerId: open.GetProducerId(), ProducerEpoch: open.GetProducerEpoch(),
	}, answers)
	var failure error
	index := uint64(0)
	for got := range answers {
		if err := a.s.at(Acking); err != nil {
			return err
		}
		if got.err == Cut { //nolint:errorlint // told apart by identity
			return got.err
		}
		res := &novapb.AppendSessionResponse{BatchIndex: index, Message: &novapb.AppendSessionResponse_Ack{Ack: got.ack}}
		index++
		if got.err != nil {
			res.Message = &novapb.AppendSessionResponse_Failure{Failure: failureOf(got.err)}
			if failure == nil {
				failure = got.err
			}
		}
		if err := srv.Send(res); err != nil {
			return err
		}
		if failure != nil && len(answers) == 0 {
			return failure
		}
	}
	return failure
}

func (a appendService) receive(srv novapb.AppendService_AppendSessionServer, open *novapb.AppendSessionOpen, answers chan<- answer) {
	defer close(answers)
	failed := false
	for {
		m, err := srv.Recv()
		if err != nil {
			return
		}
		var got answer
		b := m.GetBatch()
		if failed {
			got.err = reason.WithOutcome(status.Error(codes.Aborted, "an earlier batch of the session failed"), reason.NotCommitted)
		} else if got.err = reason.WithOutcome(check(m), reason.NotCommitted); got.err == nil {
			got.ack, got.err = a.s.accept(open, batch{
				records: b.GetRecords(), match: optional.Of(b.HasMatchSeq(), b.GetMatchSeq()), token: optional.Of(b.HasFencingToken(), b.GetFencingToken()), seal: b.GetSeal(),
				producer: stream.Producer{ID: open.GetProducerId(), Epoch: open.GetProducerEpoch(), Batch: b.GetBatchSeq()},
			})
		}
		failed = failed || got.err != nil
		select {
		case answers <- got:
		case <-srv.Context().Done():
			return
		}
	}
}

func failureOf(err error) *novapb.AppendSessionFailure {
	o := novapb.Outcome_OUTCOME_UNKNOWN
	if reason.OutcomeOf(err) == reason.NotCommitted {
		o = novapb.Outcome_OUTCOME_NOT_COMMITTED
	}
	return &novapb.AppendSessionFailure{Code: int32(reason.Code(err)), Reason: string(reason.Of(err)), Message: status.Convert(err).Message(), Outcome: o}
}

// guarded names a stream, and perhaps the token it must have.
type guarded interface {
	named
	HasFencingToken() bool
	GetFencingToken() string
}

// write finds a stream and runs f on it.
func (a appendService) write(ctx context.Context, r guarded, f func(*state) error) error {
	if err := a.s.at(Calling); err != nil {
		return err
	}
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	a.s.heardLocked(ctx)
	st, err := a.s.findLocked(r)
	if err != nil {
		return err
	}
	if r.HasFencingToken() && r.GetFencingToken() != st.token {
		return reason.New(codes.Aborted, reason.Fenced, "fencing_token is not the stream's token")
	}
	defer a.s.notifyLocked()
	return f(st)
}

func (a appendService) Trim(ctx context.Context, r *novapb.TrimRequest) (*novapb.TrimResponse, error) {
	out := &novapb.TrimResponse{}
	return out, a.write(ctx, r, func(st *state) error {
		if r.GetSeq() > st.tail() {
			return reason.New(codes.OutOfRange, reason.BeyondTail, "seq is beyond the tail", reason.KeyTail, reason.Text(st.tail()))
		}
		st.trim = max(st.trim, r.GetSeq())
		out.FirstSeq, out.Tail = st.trim, st.tail()
		return nil
	})
}

func (a appendService) SealStream(ctx context.Context, r *novapb.SealStreamRequest) (*novapb.SealStreamResponse, error) {
	out := &novapb.SealStreamResponse{}
	return out, a.write(ctx, r, func(st *state) error {
		st.sealed, out.Tail = true, st.tail()
		return nil
	})
}

func (a appendService) SetFencingToken(ctx context.Context, r *novapb.SetFencingTokenRequest) (*novapb.SetFencingTokenResponse, error) {
	out := &novapb.SetFencingTokenResponse{}
	return out, a.write(ctx, r, func(st *state) error {
		st.token, out.Tail = r.GetToken(), st.tail()
		return nil
	})
}

// heardLocked notes the credentials of a call.
func (s *Server) heardLocked(ctx context.Context) {
	md, _ := metadata.FromIncomingContext(ctx)
	s.Authorization = ""
	if v := md.Get("authorization"); len(v) > 0 {
		s.Authorization = v[0]
	}
}
