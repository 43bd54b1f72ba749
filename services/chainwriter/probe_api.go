package chainwriter

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
)

// probePatience is how long another chain-writer may take to say that it lives.
const probePatience = 2 * time.Second

// Probe tells which life answers here, or at another chain-writer's address.
func (s *Service) Probe(ctx context.Context, req *chainwriterpb.ProbeRequest) (*chainwriterpb.ProbeResponse, error) {
	if a := req.GetAddress(); a != "" && a != s.cfg.Address {
		return s.probe(ctx, a)
	}
	return &chainwriterpb.ProbeResponse{Reached: true, WriterLife: s.life.String(), Senders: uint32(s.senders.Load())}, nil
}

// probe asks another. That it is not reached is an answer; any other failure
// tells nothing about it.
func (s *Service) probe(ctx context.Context, address string) (*chainwriterpb.ProbeResponse, error) {
	other, err := s.other(address)
	if err != nil {
		return nil, err
	}
	asking, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	res, err := other.Probe(asking, &chainwriterpb.ProbeRequest{})
	switch code := reason.Code(err); {
	case err == nil:
		return res, nil
	case ctx.Err() != nil:
		return nil, reason.New(reason.Code(ctx.Err()), "", ctx.Err().Error())
	case code == codes.Unavailable, code == codes.DeadlineExceeded:
		return &chainwriterpb.ProbeResponse{}, nil
	}
	return nil, err
}

// other returns a client of another chain-writer.
func (s *Service) other(address string) (chainwriterpb.ChainWriterServiceClient, error) {
	if s.conns == nil {
		return nil, reason.New(codes.FailedPrecondition, "", "this chain-writer reaches no others")
	}
	conn, err := s.conns.Address(address)
	if err != nil {
		return nil, reason.New(codes.FailedPrecondition, "", err.Error())
	}
	return chainwriterpb.NewChainWriterServiceClient(conn), nil
}
