package sequencer

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/optional"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
)

// deletePatience is when a delete that was begun is looked after by the
// reaper, should this call die half-way.
const deletePatience = time.Minute

// DeleteStream deletes a stream. In order:
//
//  1. arm a due marker, unless the caller's own leads back here. A crash after
//     it: the reaper calls this again.
//  2. write the DELETE entry and wait for its commit: from then on the stream
//     is gone for everyone. A crash after it: likewise.
//  3. free the name if it still means this stream. The marker stays: it leads to
//     what the stream leaves behind.
//
// A name is never free while its stream may still accept records: that the
// stream is gone already is taken from its log, or from the proof that it has no
// head, and never from a plain read.
//
// With if_empty_at the marker, which leads to a delete without conditions, is
// armed only when the DELETE entry is committed. A crash in between: whoever asked
// asks again, as it MUST, and finds the stream deleted.
func (s *Service) DeleteStream(ctx context.Context, req *sequencerpb.DeleteStreamRequest) (*sequencerpb.DeleteStreamResponse, error) {
	id, err := stream.ParseID(req.GetStream().GetStreamId())
	if err != nil {
		return nil, reason.Field("stream.stream_id", err.Error())
	}
	entry := newRequest(bundle.KindDelete)
	entry.match = optional.Of(req.GetIfEmptyAtPresence() != nil, req.GetIfEmptyAt())
	if entry.match == nil {
		if err := s.armDelete(ctx, req); err != nil {
			return nil, err
		}
	}
	st, err := s.openByID(ctx, id, stream.Shard(req.GetStream().GetShard()))
	switch {
	case err == nil:
		_, err = s.write(ctx, st, entry)
	case entry.match == nil && reason.Is(err, reason.StreamQuarantine):
		err = s.deleteQuarantined(ctx, id, stream.Shard(req.GetStream().GetShard()))
	}
	if err != nil && !reason.Is(err, reason.StreamNotFound) {
		return nil, err
	}
	if entry.match != nil {
		if err := s.armDelete(ctx, req); err != nil {
			return nil, err
		}
	}
	if err := s.index.FreeName(ctx, req.GetBucket(), req.GetName(), id); err != nil {
		return nil, err
	}
	s.names.Invalidate(req.GetBucket(), req.GetName(), id)
	return &sequencerpb.DeleteStreamResponse{}, nil
}

func (s *Service) armDelete(ctx context.Context, req *sequencerpb.DeleteStreamRequest) error {
	if req.GetArmed() {
		return nil
	}
	_, err := s.index.ArmDue(ctx, &indexpb.Due{
		Queue: "delete", At: s.now().Add(deletePatience).UnixMilli(),
		Bucket: req.GetBucket(), Name: req.GetName(), StreamId: req.GetStream().GetStreamId(), Number: uint64(req.GetStream().GetShard()),
	})
	return err
}

// RefreshStream reads the stream's settings again.
func (s *Service) RefreshStream(ctx context.Context, req *sequencerpb.RefreshStreamRequest) (*sequencerpb.RefreshStreamResponse, error) {
	id, err := stream.ParseID(req.GetStream().GetStreamId())
	if err != nil {
		return nil, reason.Field("stream.stream_id", err.Error())
	}
	st, err := s.openByID(ctx, id, stream.Shard(req.GetStream().GetShard()))
	if err != nil {
		return nil, err
	}
	// A plain read may be from before the change that this call is about.
	descriptor, err := s.index.FreshDescriptor(ctx, id)
	switch {
	case catalog.IsNotFound(err) && st.isDeleted():
		return nil, errDeleted()
	case catalog.IsNotFound(err):
		return nil, reason.New(codes.Unavailable, "", "the stream's settings were not found; they may be on their way")
	case err != nil:
		return nil, err
	}
	st.mu.Lock()
	st.descriptor = descriptor
	st.mu.Unlock()
	return &sequencerpb.RefreshStreamResponse{}, nil
}
