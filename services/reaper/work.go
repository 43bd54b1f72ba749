package reaper

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/cache/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
)

// errLater means that it is too early to tell what is to be done.
var errLater = errors.New("too early to tell")

// orphan removes what a creation left that never got its name.
func (s *Service) orphan(ctx context.Context, d *indexpb.Due) error {
	_, err := s.raw.RemoveOrphan(ctx, &indexpb.RemoveOrphanRequest{Bucket: d.GetBucket(), Stream: d.GetName(), StreamId: d.GetStreamId()})
	return err
}

// deleteStream finishes a delete that was begun. It names the stream by id, so
// a name that was created again meanwhile is not touched.
func (s *Service) deleteStream(ctx context.Context, d *indexpb.Due) error {
	id, err := stream.ParseID(d.GetStreamId())
	if err != nil {
		return err
	}
	if _, err := s.index.GetDescriptor(ctx, id); catalog.IsNotFound(err) {
		return s.index.FreeName(ctx, d.GetBucket(), d.GetName(), id)
	} else if err != nil {
		return err
	}
	return s.delete(ctx, d.GetBucket(), d.GetName(), d.GetStreamId(), uint32(d.GetNumber()))
}

func (s *Service) delete(ctx context.Context, bucket, name, id string, shard uint32) error {
	return s.router.DoIdempotent(ctx, stream.Shard(shard), func(conn grpc.ClientConnInterface) error {
		_, err := sequencerpb.NewSequencerServiceClient(conn).DeleteStream(ctx, &sequencerpb.DeleteStreamRequest{
			Stream: &sequencerpb.StreamKey{StreamId: id, Shard: shard}, Bucket: bucket, Name: name,
		})
		return err
	})
}

// deleteBucket finishes the forced delete of a bucket, if it is the one that
// the marker means.
func (s *Service) deleteBucket(ctx context.Context, d *indexpb.Due) error {
	got, err := s.raw.GetBucket(ctx, &indexpb.GetBucketRequest{Bucket: d.GetBucket()})
	if reason.Is(err, reason.BucketNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if got.GetBucket().GetBucketId() != d.GetBucketId() {
		return nil
	}
	if _, err := s.raw.BeginDeleteBucket(ctx, &indexpb.BeginDeleteBucketRequest{Bucket: d.GetBucket()}); err != nil {
		return err
	}
	for deleted := 0; ; {
		streams, err := s.raw.ListStreams(ctx, &indexpb.ListStreamsRequest{Bucket: d.GetBucket(), Limit: page})
		if err != nil {
			return err
		}
		if len(streams.GetStreams()) == 0 {
			break
		}
		for _, st := range streams.GetStreams() {
			if err := s.delete(ctx, d.GetBucket(), st.GetName(), st.GetStreamId(), st.GetShard()); err != nil {
				if deleted > 0 {
					// Many streams take longer than one turn: that is no failure.
					return fmt.Errorf("%w, after %d streams: %w", errLater, deleted, err)
				}
				return err
			}
			deleted++
		}
	}
	_, err = s.raw.FinishDeleteBucket(ctx, &indexpb.FinishDeleteBucketRequest{Bucket: d.GetBucket(), BucketId: d.GetBucketId(), Force: true})
	return err
}

// judgeDirectory deletes a directory object that did not become its window's.
// While the window has no row yet, its absorber may still write it.
func (s *Service) judgeDirectory(ctx context.Context, d *indexpb.Due) error {
	row, err := s.index.GetDirectory(ctx, d.GetChainId(), d.GetNumber())
	if catalog.IsNotFound(err) {
		return errLater
	}
	if err != nil {
		return err
	}
	if row.GetObject() == d.GetObject() {
		return nil
	}
	// Rows are written once: this one will never name the object.
	_, err = s.cache.DeleteObjects(ctx, &cachepb.DeleteObjectsRequest{Objects: []string{d.GetObject()}})
	return err
}

// lookAfterChain keeps the marker of a chain until the chain retires; sealing
// and retiring chains that nobody is bound to comes with settling.
func (s *Service) lookAfterChain(ctx context.Context, d *indexpb.Due) error {
	r, _, err := s.index.GetChain(ctx, d.GetChainId())
	if catalog.IsNotFound(err) || err == nil && r.GetState() == indexpb.ChainState_CHAIN_STATE_RETIRED {
		return nil
	}
	if err != nil {
		return err
	}
	return errLater
}
