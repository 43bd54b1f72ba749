package reader

import (
	"context"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// Markers that lead to streams. They are armed before what they lead to is so, and
// stay until it is not. So a stream is without one only if it was seen to need it
// before the markers were read, and needs it still: both looks are changes of its
// rows, so neither was old.

// checkStreams judges the deleted streams that settled objects led to, and all streams
// that have names.
func (v *survey) checkStreams(ctx context.Context) error {
	for id := range v.deleted {
		if err := v.doubt(ctx, v.undeleted(id)); err != nil {
			return err
		}
	}
	return v.svc.index.EachStream(ctx, func(d *indexpb.StreamDescriptor) error {
		marker := d.GetRetentionMarker()
		// Without one are limits of an earlier version, which do not act until they are
		// put again; and what is not finished.
		if marker == "" || v.markers.limits[marker] {
			return nil
		}
		id, err := stream.ParseID(d.GetStreamId())
		if err != nil {
			return nil //nolint:nilerr // Its index refuses it, too.
		}
		return v.doubt(ctx, v.unlimited(id, marker))
	})
}

const deleted = indexpb.HeadState_HEAD_STATE_DELETED

// undeleted judges a stream that is deleted, and whose head is not removed.
func (v *survey) undeleted(id stream.ID) suspect {
	return func(ctx context.Context, m *markers) ([]*novapb.VerifyFinding, error) {
		if m.deletes[id.String()] || m.partial["delete"] {
			return nil, nil
		}
		h, _, err := v.svc.index.BumpHead(ctx, id)
		if err != nil || h.GetState() != deleted {
			return nil, ignoreNotFound(err)
		}
		return v.with(finding("marker", "stream %s is deleted, and no marker leads to what is left of it", id), v.removed(h)), nil
	}
}

// unlimited judges a stream whose settings name a marker that is not there.
func (v *survey) unlimited(id stream.ID, marker string) suspect {
	return func(ctx context.Context, m *markers) ([]*novapb.VerifyFinding, error) {
		if m.limits[marker] || m.partial["retention"] {
			return nil, nil
		}
		d, err := v.svc.index.FreshDescriptor(ctx, id)
		if err != nil || d.GetUnfinished() || !hasLimits(d.GetConfig()) || d.GetRetentionMarker() != marker {
			return nil, ignoreNotFound(err)
		}
		h, _, err := v.svc.index.BumpHead(ctx, id)
		if err != nil || h.GetState() == deleted {
			return nil, ignoreNotFound(err)
		}
		return v.with(finding("marker", "stream %s/%s, %s: it has limits, and no marker leads to what exceeds them", d.GetBucket(), d.GetName(), id), v.limitedAgain(d)), nil
	}
}

func hasLimits(c *novapb.StreamConfig) bool {
	return c.GetRetentionAgeMs() > 0 || c.GetRetentionBytes() > 0 || c.GetDeleteOnEmptyMs() > 0
}

// removed leads to what is left of a deleted stream. Its name was freed before its
// settings went. If they are gone, the marker's name means no stream.
func (v *survey) removed(h *indexpb.Head) remedy {
	return func(ctx context.Context) (string, error) {
		due := &indexpb.Due{Queue: "delete", StreamId: h.GetStreamId(), Number: uint64(h.GetShard()), Bucket: "deleted", Name: h.GetStreamId()}
		id, err := stream.ParseID(h.GetStreamId())
		if err != nil {
			return "", err
		}
		d, err := v.svc.index.GetDescriptor(ctx, id)
		switch {
		case err == nil:
			due.Bucket, due.Name = d.GetBucket(), d.GetName()
		case !catalog.IsNotFound(err):
			return "", err
		}
		return v.arm(ctx, due, "a marker leads to it now; it is removed when its chain is settled beyond the delete")
	}
}

// limitedAgain arms the marker that the settings name, at a time that its id tells: a
// repair at the same time meets it.
func (v *survey) limitedAgain(d *indexpb.StreamDescriptor) remedy {
	return func(ctx context.Context) (string, error) {
		due := &indexpb.Due{
			Queue: "retention", DueId: d.GetRetentionMarker(), StreamId: d.GetStreamId(),
			Bucket: d.GetBucket(), BucketId: d.GetBucketId(), Name: d.GetName(),
		}
		due.At = max(0, catalog.Marker{Due: due}.Armed().UnixMilli())
		if _, err := v.svc.index.ArmDueAs(ctx, due); err != nil && !catalog.IsConflict(err) {
			return "", err
		}
		return "the marker that its settings name is there again", nil
	}
}

// note remembers a stream that is deleted and that no marker is known to lead to.
func (v *survey) note(id stream.ID, h *indexpb.Head) {
	if h.GetState() == deleted && !v.markers.deletes[id.String()] && len(v.deleted) < maxSuspects {
		v.deleted[id] = true
	}
}
