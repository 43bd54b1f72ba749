package gateway

import (
	"context"

	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

func streamOf(d *indexpb.StreamDescriptor) *novapb.Stream {
	return &novapb.Stream{
		Bucket: d.GetBucket(), Name: d.GetName(), StreamId: d.GetStreamId(), State: novapb.StreamState_STREAM_STATE_ACTIVE,
		CreatedAt: d.GetCreatedAt(), Config: d.GetConfig(), Shard: d.GetShard(),
	}
}

func keyOf(d *indexpb.StreamDescriptor) *sequencerpb.StreamKey {
	return &sequencerpb.StreamKey{StreamId: d.GetStreamId(), Shard: d.GetShard()}
}

// CreateStream creates a stream.
func (s *Service) CreateStream(ctx context.Context, req *novapb.CreateStreamRequest) (*novapb.CreateStreamResponse, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	res, err := s.index.CreateStream(ctx, &indexpb.CreateStreamRequest{
		Bucket: req.GetBucket(), Stream: req.GetStream(), Config: req.GetConfig(), RequestToken: req.GetRequestToken(),
	})
	if err != nil {
		return nil, err
	}
	return &novapb.CreateStreamResponse{Stream: streamOf(res.GetStream())}, nil
}

// resolve reads what a name means now, not what it meant when it was cached.
func (s *Service) resolve(ctx context.Context, bucket, name string) (*indexpb.StreamDescriptor, error) {
	res, err := s.index.ResolveStream(ctx, &indexpb.ResolveStreamRequest{Bucket: bucket, Stream: name})
	return res.GetStream(), err
}

// GetStream returns a stream's settings and its present extent.
func (s *Service) GetStream(ctx context.Context, req *novapb.GetStreamRequest) (*novapb.GetStreamResponse, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	d, err := s.resolve(ctx, req.GetBucket(), req.GetStream())
	if err != nil {
		return nil, err
	}
	var state *sequencerpb.StreamState
	err = s.sequencerOf(ctx, d.GetShard(), func(c sequencerpb.SequencerServiceClient) error {
		res, err := c.GetState(ctx, &sequencerpb.GetStateRequest{Stream: keyOf(d), StoredBytes: true})
		state = res.GetState()
		return err
	})
	if err != nil {
		return nil, err
	}
	out := streamOf(d)
	if state.GetSealed() {
		out.State = novapb.StreamState_STREAM_STATE_SEALED
	}
	return &novapb.GetStreamResponse{Stream: out, Extent: &novapb.StreamExtent{
		FirstSeq: state.GetTrim(), Tail: state.GetTail(), StoredBytes: state.GetStoredBytes(), LastTimestamp: state.GetLastTimestamp(),
		ContentHash: state.GetContentHash(), Leader: state.GetLeader(), Epoch: state.GetEpoch(),
	}}, nil
}

// ListStreams returns a page of streams.
func (s *Service) ListStreams(ctx context.Context, req *novapb.ListStreamsRequest) (*novapb.ListStreamsResponse, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	res, err := s.index.ListStreams(ctx, &indexpb.ListStreamsRequest{
		Bucket: req.GetBucket(), Prefix: req.GetPrefix(), StartAfter: req.GetStartAfter(), Limit: limitOf(req.GetLimit()),
	})
	if err != nil {
		return nil, err
	}
	out := &novapb.ListStreamsResponse{HasMore: res.GetHasMore()}
	for _, d := range res.GetStreams() {
		out.Streams = append(out.Streams, streamOf(d))
	}
	return out, nil
}

// UpdateStream changes settings. It returns once the stream's leader uses
// them; if that fails, a repeat does no harm.
func (s *Service) UpdateStream(ctx context.Context, req *novapb.UpdateStreamRequest) (*novapb.UpdateStreamResponse, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	res, err := s.index.UpdateStream(ctx, &indexpb.UpdateStreamRequest{
		Bucket: req.GetBucket(), Stream: req.GetStream(), Config: req.GetConfig(), StreamId: req.GetStreamId(),
	})
	if err != nil {
		return nil, err
	}
	d := res.GetStream()
	err = s.sequencerOf(ctx, d.GetShard(), func(c sequencerpb.SequencerServiceClient) error {
		_, err := c.RefreshStream(ctx, &sequencerpb.RefreshStreamRequest{Stream: keyOf(d)})
		return err
	})
	if err != nil {
		return nil, err
	}
	return &novapb.UpdateStreamResponse{Stream: streamOf(d)}, nil
}

// DeleteStream deletes a stream.
func (s *Service) DeleteStream(ctx context.Context, req *novapb.DeleteStreamRequest) (*novapb.DeleteStreamResponse, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	d, err := s.resolve(ctx, req.GetBucket(), req.GetStream())
	if err != nil {
		return nil, err
	}
	if want := req.GetStreamId(); want != "" && want != d.GetStreamId() {
		return nil, errOtherStream(want)
	}
	if err := s.deleteStream(ctx, d); err != nil {
		return nil, err
	}
	return &novapb.DeleteStreamResponse{}, nil
}

func (s *Service) deleteStream(ctx context.Context, d *indexpb.StreamDescriptor) error {
	err := s.sequencerOf(ctx, d.GetShard(), func(c sequencerpb.SequencerServiceClient) error {
		_, err := c.DeleteStream(ctx, &sequencerpb.DeleteStreamRequest{Stream: keyOf(d), Bucket: d.GetBucket(), Name: d.GetName()})
		return err
	})
	if id, perr := stream.ParseID(d.GetStreamId()); perr == nil {
		s.names.Invalidate(d.GetBucket(), d.GetName(), id)
	}
	return err
}
