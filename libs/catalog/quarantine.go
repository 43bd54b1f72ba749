package catalog

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// QuarantineHead records why nothing more can be folded over a head, and the
// slots that are needed to judge and repair it. The head MUST be the one that
// TouchHead returned under the epoch: one that was changed since, by a later
// leader or a settler, may not be broken at all, and is a conflict.
func (c *Client) QuarantineHead(ctx context.Context, touched *indexpb.Head, why string, pins []*indexpb.Pin) error {
	id := touched.GetStreamId()
	res, err := again(ctx, func() (*indexpb.GetHeadResponse, error) {
		return c.index.GetHead(ctx, &indexpb.GetHeadRequest{StreamId: id})
	})
	if err != nil {
		return err
	}
	if res.GetHead().GetAttempt() != touched.GetAttempt() {
		return reason.New(codes.Aborted, reason.VersionConflict, "head of stream "+id+" was changed since, or the read is old")
	}
	h := proto.CloneOf(res.GetHead())
	h.Quarantine, h.Pins, h.Attempt = why, pins, newAttempt()
	_, err = again(ctx, func() (*indexpb.PutHeadResponse, error) {
		return c.index.PutHead(ctx, &indexpb.PutHeadRequest{Head: h, ExpectedVersion: res.GetVersion()})
	})
	return err
}

// DeleteBrokenHead makes a quarantined head DELETED, once the stream's DELETE
// entry is committed: nobody can fold up to it. A head whose quarantine was
// lifted is left to the fold.
func (c *Client) DeleteBrokenHead(ctx context.Context, id stream.ID) error {
	for t := (tries{}); ; {
		res, err := again(ctx, func() (*indexpb.GetHeadResponse, error) {
			return c.index.GetHead(ctx, &indexpb.GetHeadRequest{StreamId: id.String(), ProveAbsence: true})
		})
		if IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		h := proto.CloneOf(res.GetHead())
		h.Attempt = newAttempt() // also of one that is left: that it is so may be an old read
		if h.GetQuarantine() != "" {
			h.State = indexpb.HeadState_HEAD_STATE_DELETED
		}
		_, err = again(ctx, func() (*indexpb.PutHeadResponse, error) {
			return c.index.PutHead(ctx, &indexpb.PutHeadRequest{Head: h, ExpectedVersion: res.GetVersion()})
		})
		if !IsConflict(err) {
			return err
		}
		if err := t.again(ctx); err != nil {
			return err
		}
	}
}
