package sequencer

import (
	"context"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/optional"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/libs/telemetry"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// Stream control is written among the appends, so its order is the chain's.

// Trim makes records below a number invisible.
func (s *Service) Trim(ctx context.Context, req *novapb.TrimRequest) (*novapb.TrimResponse, error) {
	r := newRequest(bundle.KindTrim)
	r.trim, r.token = stream.Seq(req.GetSeq()), optional.Of(req.HasFencingToken(), req.GetFencingToken())
	res, err := s.control(ctx, req, r)
	if err != nil {
		return nil, err
	}
	return &novapb.TrimResponse{FirstSeq: uint64(res.trim), Tail: uint64(res.tail)}, nil
}

// TrimStream is Trim by the stream's id; beyond the tail it is the tail.
func (s *Service) TrimStream(ctx context.Context, req *sequencerpb.TrimStreamRequest) (*sequencerpb.TrimStreamResponse, error) {
	id, err := stream.ParseID(req.GetStream().GetStreamId())
	if err != nil {
		return nil, reason.Field("stream.stream_id", err.Error())
	}
	st, err := s.openByID(ctx, id, stream.Shard(req.GetStream().GetShard()))
	if err != nil {
		return nil, err
	}
	r := newRequest(bundle.KindTrim)
	r.trim, r.clamp = stream.Seq(req.GetTo()), true
	res, err := s.write(ctx, st, r)
	if err != nil {
		return nil, err
	}
	return &sequencerpb.TrimStreamResponse{Trim: uint64(res.trim)}, nil
}

// SealStream closes a stream for appends.
func (s *Service) SealStream(ctx context.Context, req *novapb.SealStreamRequest) (*novapb.SealStreamResponse, error) {
	r := newRequest(bundle.KindSeal)
	r.match, r.token = optional.Of(req.HasMatchSeq(), req.GetMatchSeq()), optional.Of(req.HasFencingToken(), req.GetFencingToken())
	res, err := s.control(ctx, req, r)
	if err != nil {
		return nil, err
	}
	return &novapb.SealStreamResponse{Tail: uint64(res.tail)}, nil
}

// SetFencingToken sets or clears the stream's token.
func (s *Service) SetFencingToken(ctx context.Context, req *novapb.SetFencingTokenRequest) (*novapb.SetFencingTokenResponse, error) {
	r := newRequest(bundle.KindToken)
	r.setToken, r.token = req.GetToken(), optional.Of(req.HasFencingToken(), req.GetFencingToken())
	res, err := s.control(ctx, req, r)
	if err != nil {
		return nil, err
	}
	return &novapb.SetFencingTokenResponse{Tail: uint64(res.tail)}, nil
}

func (s *Service) control(ctx context.Context, t target, r *request) (result, error) {
	st, err := s.openNamed(ctx, t)
	if err != nil {
		return result{}, reason.WithOutcome(err, reason.NotCommitted)
	}
	return s.write(ctx, st, r)
}

// write queues a control request and waits for its commit.
func (s *Service) write(ctx context.Context, st *openStream, r *request) (result, error) {
	if err := s.reserve(ctx, r); err != nil {
		return result{}, err
	}
	r.span = telemetry.PackSpan(ctx)
	st.enqueue(r)
	res := r.wait(ctx, s.cfg.AppendTimeout)
	return res, res.err
}
