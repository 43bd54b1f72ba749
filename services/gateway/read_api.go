package gateway

import (
	"context"
	"errors"
	"io"

	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// Read returns one page.
func (s *Service) Read(ctx context.Context, req *novapb.ReadRequest) (*novapb.ReadResponse, error) {
	caller := ctx
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	if req.GetWaitMs() == 0 {
		return s.read.Read(ctx, req)
	}
	// A stop does not wait for what may never come.
	ctx, forget := s.whileRunning(ctx)
	defer forget()
	res, err := s.read.Read(ctx, req)
	return res, s.ended(caller, err)
}

// CheckTail returns the next number.
func (s *Service) CheckTail(ctx context.Context, req *novapb.CheckTailRequest) (*novapb.CheckTailResponse, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	return s.read.CheckTail(ctx, req)
}

// PlanRead returns where records lie.
func (s *Service) PlanRead(ctx context.Context, req *novapb.PlanReadRequest) (*novapb.PlanReadResponse, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	return s.read.PlanRead(ctx, req)
}

// Subscribe follows a stream; one message at a time is under way, so a slow
// client slows only itself.
func (s *Service) Subscribe(req *novapb.SubscribeRequest, srv novapb.ReadService_SubscribeServer) error {
	ctx, cancel := s.whileRunning(srv.Context())
	defer cancel()
	up, err := s.read.Subscribe(ctx, req)
	if err != nil {
		return s.ended(srv.Context(), err)
	}
	for {
		msg, err := up.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return s.ended(srv.Context(), err)
		}
		if err := srv.Send(msg); err != nil {
			return err
		}
	}
}
