package reaper

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/cache/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
)

// orphan sees to a creation that may not have finished.
func (s *Service) orphan(ctx context.Context, m catalog.Marker) error {
	_, err := s.raw.RemoveOrphan(ctx, &indexpb.RemoveOrphanRequest{Bucket: m.Due.GetBucket(), Stream: m.Due.GetName(), StreamId: m.Due.GetStreamId()})
	return err
}

// delete asks a stream's leader for its delete, which is idempotent.
func (s *Service) delete(ctx context.Context, req *sequencerpb.DeleteStreamRequest) error {
	return s.router.DoIdempotent(ctx, stream.Shard(req.GetStream().GetShard()), func(conn grpc.ClientConnInterface) error {
		_, err := sequencerpb.NewSequencerServiceClient(conn).DeleteStream(ctx, req)
		return err
	})
}

// deletes is how many streams of one bucket are deleted at once.
const deletes = 8

// deleteBucket finishes the forced delete of a bucket, if it was begun and the
// bucket is the one that the marker means.
func (s *Service) deleteBucket(ctx context.Context, m catalog.Marker) error {
	// A bucket that is ACTIVE is left alone: its delete was never begun, or was
	// taken back. The change proves that, and whoever is just about to begin
	// meets it and arms again.
	_, err := s.raw.UpdateBucket(ctx, &indexpb.UpdateBucketRequest{Bucket: m.Due.GetBucket()})
	if err == nil || reason.Is(err, reason.BucketNotFound) {
		return nil
	}
	if !reason.Is(err, reason.BucketDeleting) {
		return err
	}
	got, err := s.raw.GetBucket(ctx, &indexpb.GetBucketRequest{Bucket: m.Due.GetBucket()})
	if reason.Is(err, reason.BucketNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	switch id := got.GetBucket().GetBucketId(); {
	case id > m.Due.GetBucketId():
		return nil // a later bucket, with a marker of its own
	case id < m.Due.GetBucketId():
		return later{s.cfg.Retry, "an old read of the bucket's row"}
	}
	for deleted := 0; ; {
		streams, err := s.raw.ListStreams(ctx, &indexpb.ListStreamsRequest{Bucket: m.Due.GetBucket(), Limit: page})
		if err != nil {
			return err
		}
		if len(streams.GetStreams()) == 0 && !streams.GetHasMore() {
			break
		}
		n, err := s.deleteAll(ctx, m.Due.GetBucket(), streams.GetStreams())
		deleted += n
		if err != nil && deleted > 0 {
			// Many streams take longer than one turn: that is no failure.
			return later{s.cfg.Interval, fmt.Sprintf("after %d streams: %v", deleted, err)}
		}
		if err != nil {
			return err
		}
	}
	_, err = s.raw.FinishDeleteBucket(ctx, &indexpb.FinishDeleteBucketRequest{Bucket: m.Due.GetBucket(), BucketId: m.Due.GetBucketId(), Force: true})
	return err
}

// deleteAll deletes streams, several at once, and returns how many it deleted.
// One that cannot be deleted does not keep the others.
func (s *Service) deleteAll(ctx context.Context, bucket string, streams []*indexpb.StreamDescriptor) (int, error) {
	var deleted atomic.Int64
	var workers errgroup.Group
	workers.SetLimit(deletes)
	for _, st := range streams {
		workers.Go(func() error {
			// Not armed: the bucket's marker does not lead to what the stream leaves. The
			// leader's does, and one more for every try that fails does no harm.
			err := s.delete(ctx, &sequencerpb.DeleteStreamRequest{
				Stream: &sequencerpb.StreamKey{StreamId: st.GetStreamId(), Shard: st.GetShard()}, Bucket: bucket, Name: st.GetName(),
			})
			if err == nil {
				deleted.Add(1)
			}
			return err
		})
	}
	err := workers.Wait()
	return int(deleted.Load()), err
}

// How long an object that no row names is watched: longer than any PUT of it,
// and any old read of its row, can be under way.
const (
	settlesAfter = 3 * 24 * time.Hour
	lookAgain    = time.Hour
)

// judgeDirectory deletes a directory object that did not become its window's.
// While the window has no row, its absorber may still write one. A PUT that is
// under way may bring a deleted object back, so it is deleted twice, days apart.
func (s *Service) judgeDirectory(ctx context.Context, m catalog.Marker) error {
	old := s.now().Sub(m.Armed()) > settlesAfter
	row, err := s.index.GetDirectory(ctx, m.Due.GetChainId(), m.Due.GetNumber())
	switch {
	case err == nil && row.GetObject() == m.Due.GetObject():
		return nil
	case err == nil:
		// Rows are written once: this one will never name the object.
	case !catalog.IsNotFound(err):
		return err
	case !old:
		return later{lookAgain, "the window has no row yet"}
	default:
		// The row went when the window was settled, or the window was never
		// absorbed; its absorber may be alive only if the chain still waits.
		if passed, err := s.passed(ctx, m.Due.GetChainId(), m.Due.GetNumber()); err != nil {
			return err
		} else if !passed {
			return later{lookAgain, "the window is not absorbed yet"}
		}
	}
	if _, err = s.cache.DeleteObjects(ctx, &cachepb.DeleteObjectsRequest{Objects: []string{m.Due.GetObject()}}); err != nil {
		return err
	}
	if !old {
		return later{settlesAfter, "a late PUT may bring the object back"}
	}
	return nil
}

// passed reports whether a chain is absorbed beyond a slot.
func (s *Service) passed(ctx context.Context, chain string, slot uint64) (bool, error) {
	c, _, err := s.index.GetChain(ctx, chain)
	if catalog.IsNotFound(err) {
		return true, nil
	}
	return c.GetAbsorbedTo() > slot, err
}
