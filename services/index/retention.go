package index

import (
	"context"
	"time"

	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// QueueRetention holds a marker per stream that has a limit of age or bytes, or is
// deleted when it is empty: stream_id, bucket, bucket_id and name. Which shard the
// stream is in, the descriptor tells.
//
// A stream that has a limit has its marker, always: the descriptor names it
// (retention_marker), and the change that puts the limit puts the name, with a
// marker that was armed before. A marker that the descriptor does not name is none:
// of a change that failed, of one that never came, or of limits that were lifted and
// put again.
//
// So whoever works on a marker drops it if the descriptor has no limits or names
// another, after it has changed the descriptor (GetDescriptor with fresh): a change
// that read the descriptor before, and would name the marker, fails then and arms
// another. A descriptor that is unfinished says nothing yet. So of each stream one
// marker stays, and each other goes when it is first due.
const QueueRetention = "retention"

// retentionAfter is when a marker that was armed is due first.
const retentionAfter = time.Minute

// limited reports whether a stream has something to be looked after.
func limited(c *novapb.StreamConfig) bool {
	return c.GetRetentionAgeMs() > 0 || c.GetRetentionBytes() > 0 || c.GetDeleteOnEmptyMs() > 0
}

// armRetention arms a marker and names it in a descriptor that is about to be put
// with limits. Every try of a change MUST arm one of its own: that of a try that
// failed may be gone.
func (s *Service) armRetention(ctx context.Context, d *indexpb.StreamDescriptor) error {
	due := &indexpb.Due{
		DueId: stream.NewID().String(), Queue: QueueRetention, At: s.now().Add(retentionAfter).UnixMilli(),
		Bucket: d.GetBucket(), BucketId: d.GetBucketId(), Name: d.GetName(), StreamId: d.GetStreamId(), Attempt: stream.NewAttemptID().String(),
	}
	if _, err := s.put(ctx, dueKey(due.GetQueue(), due.GetAt(), due.GetDueId()), due, metastore.Absent); err != nil {
		return err
	}
	d.RetentionMarker = due.GetDueId()
	return nil
}
