package index

import (
	"context"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
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

// bury frees a name that leads to no stream, at a version: to no descriptor
// (Absent), or to one of a version that is unfinished or a grave.
// VERSION_CONFLICT: the name or the descriptor means something else by now. A
// marker leads the reaper to the grave if the caller dies.
func (s *Service) bury(ctx context.Context, n *indexpb.NameRecord, v, descriptor metastore.Version) error {
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
	graveVersion, err := s.put(ctx, key, grave, descriptor)
	if reason.Is(err, reason.VersionConflict) {
		// Another's grave, which also an old read may tell; or the name leads to a
		// stream after all.
		var found indexpb.StreamDescriptor
		graveVersion, err = s.read(ctx, key, &found)
		if err == nil && !isGrave(&found) || reason.Is(err, reason.RowNotFound) {
			err = errAgain
		}
	}
	if err != nil {
		return err
	}
	if err := s.remove(ctx, nameKey(n.GetBucket(), n.GetName()), v); err != nil {
		return err
	}
	if err := s.remove(ctx, key, graveVersion); err != nil {
		if reason.Is(err, reason.VersionConflict) {
			return nil // another's grave by now, with a marker of its own
		}
		return err
	}
	if err := s.removeUntouched(ctx, n.GetStreamId()); err != nil {
		return err
	}
	_ = s.remove(ctx, dueKey(due.GetQueue(), due.GetAt(), due.GetDueId()), dueVersion) // else the reaper drops it
	return nil
}

// A read that a name does not mean a stream may be an old one. It is proven by
// a change: of the row, which stays what it is, or, where there seems to be
// none, by putting a probe, a name without a stream, which is removed at once.
// Whoever meets a probe removes it.

func isProbe(n *indexpb.NameRecord) bool { return n.GetStreamId() == "" }

// holds reports whether a name means the stream, with its row. "No" is proven.
func (s *Service) holds(ctx context.Context, bucket, name, id string) (*indexpb.NameRecord, metastore.Version, bool, error) {
	var n *indexpb.NameRecord
	var version metastore.Version
	holds := false
	key := nameKey(bucket, name)
	err := retry(ctx, func() error {
		n = &indexpb.NameRecord{}
		v, err := s.read(ctx, key, n)
		absent := reason.Is(err, reason.RowNotFound)
		switch {
		case err != nil && !absent:
			return err
		case !absent && n.GetStreamId() == id:
			version, holds = v, true
			return nil
		case !absent && isProbe(n):
			if err := s.remove(ctx, key, v); err != nil {
				return err
			}
			return errAgain
		case !absent:
			n.Attempt = stream.NewAttemptID().String()
			_, err := s.put(ctx, key, n, v)
			return err
		}
		n = &indexpb.NameRecord{Bucket: bucket, Name: name, Attempt: stream.NewAttemptID().String()}
		if v, err = s.put(ctx, key, n, metastore.Absent); err != nil {
			return err
		}
		if err := s.remove(ctx, key, v); !reason.Is(err, reason.VersionConflict) {
			return err
		}
		return nil // another removed it
	})
	return n, version, holds, err
}
