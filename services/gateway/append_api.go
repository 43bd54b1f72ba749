package gateway

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/routing"
	"github.com/nova-stream/nova/libs/validate"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

func errOtherStream(want string) error {
	return reason.New(codes.NotFound, reason.StreamNotFound, "the name does not mean stream "+want+" any more")
}

// Append stores one batch.
func (s *Service) Append(ctx context.Context, req *novapb.AppendRequest) (*novapb.AppendResponse, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	return s.leaders.Append(ctx, req)
}

// Trim makes records below a number invisible.
func (s *Service) Trim(ctx context.Context, req *novapb.TrimRequest) (*novapb.TrimResponse, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	return s.leaders.Trim(ctx, req)
}

// SealStream closes a stream for appends.
func (s *Service) SealStream(ctx context.Context, req *novapb.SealStreamRequest) (*novapb.SealStreamResponse, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	return s.leaders.SealStream(ctx, req)
}

// SetFencingToken sets or clears the stream's fencing token.
func (s *Service) SetFencingToken(ctx context.Context, req *novapb.SetFencingTokenRequest) (*novapb.SetFencingTokenResponse, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	return s.leaders.SetFencingToken(ctx, req)
}

// AppendSession carries a session to the stream's leader and its answers back.
// Redirects are followed while it opens, before any batch was sent.
//
// When a stop begins, nothing more is carried to the leader; what it has, it
// answers, and the session ends with errStopping: NOT_COMMITTED is then true of
// every batch without an answer.
func (s *Service) AppendSession(srv novapb.AppendService_AppendSessionServer) error {
	first, err := s.firstOf(srv)
	if err != nil {
		return err
	}
	if err := validate.Request(first); err != nil {
		return reason.WithOutcome(err, reason.NotCommitted)
	}
	if first.GetOpen() == nil {
		return reason.WithOutcome(reason.Field("open", "must be the first message of a session"), reason.NotCommitted)
	}
	ctx, cancel := context.WithCancel(srv.Context())
	defer cancel()
	up, opened, err := s.openSession(ctx, first)
	if err != nil {
		return reason.WithOutcome(s.ended(srv.Context(), err), reason.NotCommitted)
	}
	if err := srv.Send(opened); err != nil {
		return err
	}
	// The forwarding side ends when this call returns, which ends its Recv and
	// its Send; it is not waited for.
	side := &upward{to: up}
	defer context.AfterFunc(s.running, func() { side.close(true) })()
	go func() {
		for {
			msg, err := srv.Recv()
			if reason.Code(err) == codes.InvalidArgument {
				side.refuse(err)
				return
			}
			if err != nil {
				side.close(false)
				return
			}
			if !side.send(msg) {
				return
			}
		}
	}()
	for {
		res, err := up.Recv()
		switch {
		case errors.Is(err, io.EOF) && side.wasCut():
			return reason.WithOutcome(errStopping(), reason.NotCommitted)
		case errors.Is(err, io.EOF):
			// What came before is answered; of what cannot be read nothing was done.
			return reason.WithOutcome(side.refusal(), reason.NotCommitted)
		case err != nil:
			return routing.Outward(err)
		}
		if err := srv.Send(outward(res)); err != nil {
			return err
		}
	}
}

// outward makes of the failure of a batch what routing.Outward makes of an error.
func outward(res *novapb.AppendSessionResponse) *novapb.AppendSessionResponse {
	f := res.GetFailure()
	if f.GetReason() != string(reason.NotLeader) {
		return res
	}
	return &novapb.AppendSessionResponse{BatchIndex: res.GetBatchIndex(), Message: &novapb.AppendSessionResponse_Failure{
		Failure: &novapb.AppendSessionFailure{
			Code: int32(codes.Unavailable), Reason: string(reason.NoLeader), Message: "the stream's leader is changing", Outcome: f.GetOutcome(),
		},
	}}
}

// openSession opens a session at the leader; it lasts as long as ctx, but a
// stop ends the opening.
func (s *Service) openSession(ctx context.Context, first *novapb.AppendSessionRequest) (
	up novapb.AppendService_AppendSessionClient, opened *novapb.AppendSessionResponse, err error,
) {
	call, cancel := context.WithCancel(ctx)
	keep := context.AfterFunc(s.running, cancel)
	if up, err = s.leaders.AppendSession(call); err == nil {
		if err = up.Send(first); err == nil || errors.Is(err, io.EOF) {
			opened, err = up.Recv() // also has the reason of a failed Send
		}
	}
	if err == nil && !keep() {
		err = errStopping() // the stop canceled the call
	}
	if err != nil {
		cancel()
	}
	return up, opened, err
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
	case <-s.running.Done():
		return nil, reason.WithOutcome(errStopping(), reason.NotCommitted)
	}
}
