package catalog

import (
	"context"
	"time"

	"github.com/oklog/ulid/v2"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// Marker is a due marker that was armed.
type Marker struct {
	Due     *indexpb.Due
	Version int64
}

// ArmDue writes a due marker with a fresh id.
func (c *Client) ArmDue(ctx context.Context, d *indexpb.Due) (Marker, error) {
	d = proto.CloneOf(d)
	d.DueId = stream.NewID().String()
	return c.putDue(ctx, d, Absent)
}

// ArmDueAs writes a due marker whose id is given: what names it is there already.
// IsConflict: it is there.
func (c *Client) ArmDueAs(ctx context.Context, d *indexpb.Due) (Marker, error) {
	return c.putDue(ctx, proto.CloneOf(d), Absent)
}

func (c *Client) putDue(ctx context.Context, d *indexpb.Due, expected int64) (Marker, error) {
	d.Attempt = newAttempt()
	res, err := again(ctx, func() (*indexpb.PutDueResponse, error) {
		return c.index.PutDue(ctx, &indexpb.PutDueRequest{Due: d, ExpectedVersion: expected})
	})
	return Marker{Due: d, Version: res.GetVersion()}, err
}

// ClaimDue keeps other workers from a marker until a time, and counts the try.
// IsConflict: another has it, or it is gone.
func (c *Client) ClaimDue(ctx context.Context, m Marker, until time.Time) (Marker, error) {
	d := proto.CloneOf(m.Due)
	d.LeasedUntil = until.UnixMilli()
	d.Attempts++
	return c.putDue(ctx, d, m.Version)
}

// MoveDue gives a claimed marker another time or queue, and ends the claim: it is
// written there first, then removed here, so that it is never nowhere. If another
// worker has claimed it since, it stays with that one.
func (c *Client) MoveDue(ctx context.Context, m Marker, queue string, at time.Time) error {
	d := proto.CloneOf(m.Due)
	d.Queue, d.At, d.LeasedUntil = queue, at.UnixMilli(), 0
	moved, err := c.putDue(ctx, d, Absent)
	if err != nil && !IsConflict(err) {
		return err
	}
	wrote := err == nil
	if err := c.dropDue(ctx, m); !IsConflict(err) {
		return err
	}
	if wrote {
		return c.DropDue(ctx, moved) // else every such race would double the marker
	}
	return nil
}

// DropDue removes a marker. One that is gone, or that was changed since, is
// left to whoever did that.
func (c *Client) DropDue(ctx context.Context, m Marker) error {
	err := c.dropDue(ctx, m)
	if IsConflict(err) {
		return nil
	}
	return err
}

func (c *Client) dropDue(ctx context.Context, m Marker) error {
	_, err := again(ctx, func() (*indexpb.DeleteDueResponse, error) {
		return c.index.DeleteDue(ctx, &indexpb.DeleteDueRequest{
			Queue: m.Due.GetQueue(), At: m.Due.GetAt(), DueId: m.Due.GetDueId(), ExpectedVersion: m.Version,
		})
	})
	return err
}

// Armed is when the marker was made; zero if its id does not tell.
func (m Marker) Armed() time.Time {
	id, err := ulid.ParseStrict(m.Due.GetDueId())
	if err != nil {
		return time.Time{}
	}
	return ulid.Time(id.Time())
}

// ListDue returns up to limit markers of a queue that are due, by time, claimed
// ones among them.
func (c *Client) ListDue(ctx context.Context, queue string, until time.Time, limit uint32) ([]Marker, error) {
	out, _, err := c.listDue(ctx, &indexpb.ListDueRequest{Queue: queue, Until: until.UnixMilli(), Limit: limit})
	return out, err
}

func (c *Client) listDue(ctx context.Context, req *indexpb.ListDueRequest) (_ []Marker, more bool, err error) {
	res, err := again(ctx, func() (*indexpb.ListDueResponse, error) { return c.index.ListDue(ctx, req) })
	if err != nil {
		return nil, false, err
	}
	out := make([]Marker, 0, len(res.GetDue()))
	for _, v := range res.GetDue() {
		out = append(out, Marker{Due: v.GetDue(), Version: v.GetVersion()})
	}
	return out, res.GetHasMore(), nil
}

// EachDue calls f with every marker of a queue that is due, by time, until f returns
// false. They are listed by pages that fit into a message. One that is moved
// meanwhile may come twice; it is missed if it is moved to a time that was passed.
func (c *Client) EachDue(ctx context.Context, queue string, until time.Time, f func(Marker) (bool, error)) error {
	req := &indexpb.ListDueRequest{Queue: queue, Until: until.UnixMilli(), Limit: ListAtOnce(queue)}
	for {
		page, more, err := c.listDue(ctx, req)
		if err != nil {
			return err
		}
		for _, m := range page {
			if on, err := f(m); err != nil || !on {
				return err
			}
		}
		if !more || len(page) == 0 {
			return nil
		}
		last := page[len(page)-1].Due
		req = proto.CloneOf(req)
		req.AfterAt, req.AfterDueId = last.GetAt(), last.GetDueId()
	}
}
