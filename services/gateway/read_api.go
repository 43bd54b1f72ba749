package gateway

import (
	"context"

	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// Read returns one page. While it waits for records it holds none of them.
func (s *Service) Read(ctx context.Context, req *novapb.ReadRequest) (*novapb.ReadResponse, error) {
	caller := ctx
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	if req.GetWaitMs() == 0 {
		return s.page(ctx, req)
	}
	// A stop does not wait for what may never come.
	ctx, forget := s.whileRunning(ctx)
	defer forget()
	res, err := s.waited(ctx, req)
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
