package gateway

import (
	"context"

	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// pageLimit is the size of a page where the caller names none.
const pageLimit = 1000

func limitOf(n uint32) uint32 {
	if n == 0 {
		return pageLimit
	}
	return n
}

func bucketOf(r *indexpb.BucketRecord) *novapb.Bucket {
	return &novapb.Bucket{Name: r.GetName(), State: r.GetState(), CreatedAt: r.GetCreatedAt(), Config: r.GetConfig()}
}

// CreateBucket creates a bucket.
func (s *Service) CreateBucket(ctx context.Context, req *novapb.CreateBucketRequest) (*novapb.CreateBucketResponse, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	res, err := s.index.CreateBucket(ctx, &indexpb.CreateBucketRequest{Bucket: req.GetBucket(), Config: req.GetConfig(), RequestToken: req.GetRequestToken()})
	if err != nil {
		return nil, err
	}
	return &novapb.CreateBucketResponse{Bucket: bucketOf(res.GetBucket())}, nil
}

// GetBucket returns one bucket.
func (s *Service) GetBucket(ctx context.Context, req *novapb.GetBucketRequest) (*novapb.GetBucketResponse, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	res, err := s.index.GetBucket(ctx, &indexpb.GetBucketRequest{Bucket: req.GetBucket()})
	if err != nil {
		return nil, err
	}
	return &novapb.GetBucketResponse{Bucket: bucketOf(res.GetBucket())}, nil
}

// ListBuckets returns a page of buckets.
func (s *Service) ListBuckets(ctx context.Context, req *novapb.ListBucketsRequest) (*novapb.ListBucketsResponse, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	res, err := s.index.ListBuckets(ctx, &indexpb.ListBucketsRequest{Prefix: req.GetPrefix(), StartAfter: req.GetStartAfter(), Limit: limitOf(req.GetLimit())})
	if err != nil {
		return nil, err
	}
	out := &novapb.ListBucketsResponse{HasMore: res.GetHasMore()}
	for _, b := range res.GetBuckets() {
		out.Buckets = append(out.Buckets, bucketOf(b))
	}
	return out, nil
}

// UpdateBucket changes settings.
func (s *Service) UpdateBucket(ctx context.Context, req *novapb.UpdateBucketRequest) (*novapb.UpdateBucketResponse, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	res, err := s.index.UpdateBucket(ctx, &indexpb.UpdateBucketRequest{Bucket: req.GetBucket(), Config: req.GetConfig()})
	if err != nil {
		return nil, err
	}
	return &novapb.UpdateBucketResponse{Bucket: bucketOf(res.GetBucket())}, nil
}

// DeleteBucket marks the bucket DELETING, so that nothing is created in it,
// deletes its streams if forced, then removes it. A crash in between leaves it
// DELETING: forced, the reaper goes on; unforced, a repeat finishes or reverts.
func (s *Service) DeleteBucket(ctx context.Context, req *novapb.DeleteBucketRequest) (*novapb.DeleteBucketResponse, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	begun, err := s.index.BeginDeleteBucket(ctx, &indexpb.BeginDeleteBucketRequest{Bucket: req.GetBucket(), Force: req.GetForce()})
	if err != nil {
		return nil, err
	}
	for req.GetForce() {
		page, err := s.index.ListStreams(ctx, &indexpb.ListStreamsRequest{Bucket: req.GetBucket(), Limit: 100})
		if err != nil {
			return nil, err
		}
		if len(page.GetStreams()) == 0 {
			break
		}
		for _, d := range page.GetStreams() {
			if err := s.deleteStream(ctx, d); err != nil {
				return nil, err
			}
		}
	}
	_, err = s.index.FinishDeleteBucket(ctx, &indexpb.FinishDeleteBucketRequest{
		Bucket: req.GetBucket(), BucketId: begun.GetBucket().GetBucketId(), Force: req.GetForce(),
	})
	if err != nil {
		return nil, err
	}
	return &novapb.DeleteBucketResponse{}, nil
}
