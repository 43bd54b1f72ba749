package index

import (
	"context"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// A creator that is slower than OrphanAfter puts its name when the reaper has
// removed its descriptor already. It notices at step 5; if it dies before, the
// name leads nowhere, and so does a put of the name that arrives late. Whoever
// meets such a name buries it.
//
// That the descriptor is gone may be an old read. It is proven by putting a
// grave, a descriptor without settings, where there must be no row. Ids are
// never given twice and a descriptor comes before its name, so behind a grave
// no stream can come back; a creator still at work fails at it in step 5.

func isGrave(d *indexpb.StreamDescriptor) bool { return d.GetConfig() == nil }

// descriptor returns a stream's descriptor; a grave is none.
func (s *Service) descriptor(ctx context.Context, id string) (*indexpb.StreamDescriptor, metastore.Version, error) {
	var d indexpb.StreamDescriptor
	v, err := s.read(ctx, descriptorKey(id), &d)
	if err != nil {
		return nil, 0, err
	}
	if isGrave(&d) {
		return nil, 0, reason.New(codes.NotFound, reason.RowNotFound, "stream "+id+" was never finished")
	}
	return &d, v, nil
}

// bury frees a name that leads nowhere, at a version. VERSION_CONFLICT: the name
// means something else by now. A marker leads the reaper to the grave if the
// caller dies.
func (s *Service) bury(ctx context.Context, n *indexpb.NameRecord, v metastore.Version) error {
	attempt := stream.NewAttemptID().String()
	due := &indexpb.Due{
		DueId: stream.NewID().String(), Queue: QueueCreate, At: s.now().Add(s.cfg.OrphanAfter).UnixMilli(),
		Bucket: n.GetBucket(), Name: n.GetName(), StreamId: n.GetStreamId(), Attempt: attempt,
	}
	dueVersion, err := s.put(ctx, dueKey(due.GetQueue(), due.GetAt(), due.GetDueId()), due, metastore.Absent)
	if err != nil {
		return err
	}
	key := descriptorKey(n.GetStreamId())
	grave := &indexpb.StreamDescriptor{StreamId: n.GetStreamId(), Bucket: n.GetBucket(), Name: n.GetName(), Attempt: attempt}
	graveVersion, err := s.put(ctx, key, grave, metastore.Absent)
	if reason.Is(err, reason.VersionConflict) {
		// Another's grave, or the read was an old one.
		graveVersion, err = s.read(ctx, key, grave)
		if err == nil && !isGrave(grave) || reason.Is(err, reason.RowNotFound) {
			err = reason.New(codes.Unavailable, "", "stream "+n.GetStreamId()+" is changing; try again")
		}
	}
	if err != nil {
		return err
	}
	if err := s.remove(ctx, nameKey(n.GetBucket(), n.GetName()), v); err != nil {
		return err
	}
	if err := s.remove(ctx, key, graveVersion); err != nil && !reason.Is(err, reason.VersionConflict) {
		return err
	}
	_ = s.remove(ctx, dueKey(due.GetQueue(), due.GetAt(), due.GetDueId()), dueVersion) // else the reaper drops it
	return nil
}

// adopt sees to a stream whose creator died before step 6 of CreateStream, when
// its bucket was deleted before its name was there: the stream is in no bucket.
// A bucket is made for it that is being deleted, with force, and the reaper
// deletes both. That the row must be absent proves that there is no bucket; if
// there is one, also a later one of the name, the stream is in that.
func (s *Service) adopt(ctx context.Context, n *indexpb.NameRecord) error {
	if _, _, err := s.bucket(ctx, n.GetBucket()); !reason.Is(err, reason.BucketNotFound) {
		return err
	}
	r := &indexpb.BucketRecord{
		Name: n.GetBucket(), BucketId: stream.NewID().String(), State: novapb.BucketState_BUCKET_STATE_DELETING,
		CreatedAt: s.now().UnixMilli(), Config: bucketDefaults(nil), Attempt: stream.NewAttemptID().String(),
	}
	due := &indexpb.Due{
		DueId: stream.NewID().String(), Queue: QueueBucket, At: s.now().UnixMilli(), Bucket: r.GetName(), BucketId: r.GetBucketId(), Attempt: r.GetAttempt(),
	}
	if _, err := s.put(ctx, dueKey(due.GetQueue(), due.GetAt(), due.GetDueId()), due, metastore.Absent); err != nil {
		return err
	}
	_, err := s.put(ctx, bucketKey(r.GetName()), r, metastore.Absent)
	if reason.Is(err, reason.VersionConflict) {
		return nil // it has a bucket; the marker means another
	}
	return err
}
