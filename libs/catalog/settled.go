package catalog

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// GetHead returns a stream's head, which the caller may change, and its version.
// It may be an old read, also that there is none (IsNotFound).
func (c *Client) GetHead(ctx context.Context, id stream.ID) (*indexpb.Head, int64, error) {
	return c.getHead(ctx, id, false)
}

// ProvenHead is GetHead, and IsNotFound is proven: there is no such stream any
// more.
func (c *Client) ProvenHead(ctx context.Context, id stream.ID) (*indexpb.Head, int64, error) {
	return c.getHead(ctx, id, true)
}

func (c *Client) getHead(ctx context.Context, id stream.ID, prove bool) (*indexpb.Head, int64, error) {
	res, err := again(ctx, func() (*indexpb.GetHeadResponse, error) {
		return c.index.GetHead(ctx, &indexpb.GetHeadRequest{StreamId: id.String(), ProveAbsence: prove})
	})
	if err != nil {
		return nil, 0, err
	}
	return proto.CloneOf(res.GetHead()), res.GetVersion(), nil
}

// PutHead changes a stream's head and returns its new version.
func (c *Client) PutHead(ctx context.Context, h *indexpb.Head, expected int64) (int64, error) {
	h = proto.CloneOf(h)
	h.Attempt = newAttempt()
	res, err := again(ctx, func() (*indexpb.PutHeadResponse, error) {
		return c.index.PutHead(ctx, &indexpb.PutHeadRequest{Head: h, ExpectedVersion: expected})
	})
	return res.GetVersion(), err
}

// BumpHead changes nothing of a head but its version, and returns it: that the
// change succeeded proves that it was no old read, and whoever is about to change
// what was read before fails. IsNotFound is proven.
func (c *Client) BumpHead(ctx context.Context, id stream.ID) (*indexpb.Head, int64, error) {
	for t := (tries{}); ; {
		h, version, err := c.ProvenHead(ctx, id)
		if err != nil {
			return nil, 0, err
		}
		version, err = c.PutHead(ctx, h, version)
		if err == nil {
			return h, version, nil
		}
		if !IsConflict(err) {
			return nil, 0, err
		}
		if err := t.again(ctx); err != nil {
			return nil, 0, err
		}
	}
}

// DeleteHead removes a DELETED head that names nothing, and its descriptor.
func (c *Client) DeleteHead(ctx context.Context, id stream.ID, expected int64) error {
	_, err := again(ctx, func() (*indexpb.DeleteHeadResponse, error) {
		return c.index.DeleteHead(ctx, &indexpb.DeleteHeadRequest{StreamId: id.String(), ExpectedVersion: expected})
	})
	return err
}

// BumpChain is BumpHead of a chain's record.
func (c *Client) BumpChain(ctx context.Context, id string) (*indexpb.Chain, error) {
	return c.UpdateChain(ctx, id, func(*indexpb.Chain) (bool, error) { return true, nil })
}

// DeleteDirectory removes the row of a directory below settled_to.
func (c *Client) DeleteDirectory(ctx context.Context, chain string, from uint64) error {
	_, err := again(ctx, func() (*indexpb.DeleteDirectoryResponse, error) {
		return c.index.DeleteDirectory(ctx, &indexpb.DeleteDirectoryRequest{ChainId: chain, From: from})
	})
	return err
}

// GetSettled returns the row of a settled object, which the caller may change.
func (c *Client) GetSettled(ctx context.Context, object string) (*indexpb.SettledObject, int64, error) {
	res, err := again(ctx, func() (*indexpb.GetSettledObjectResponse, error) {
		return c.index.GetSettledObject(ctx, &indexpb.GetSettledObjectRequest{Object: object})
	})
	if err != nil {
		return nil, 0, err
	}
	return proto.CloneOf(res.GetObject()), res.GetVersion(), nil
}

// PutSettled changes the row of a settled object and returns its new version.
func (c *Client) PutSettled(ctx context.Context, r *indexpb.SettledObject, expected int64) (int64, error) {
	r = proto.CloneOf(r)
	r.Attempt = newAttempt()
	res, err := again(ctx, func() (*indexpb.PutSettledObjectResponse, error) {
		return c.index.PutSettledObject(ctx, &indexpb.PutSettledObjectRequest{Object: r, ExpectedVersion: expected})
	})
	return res.GetVersion(), err
}

// UpdateSettled reads the row, lets f change it, and writes it, again when another
// change came between. f returning false leaves the row as it is.
func (c *Client) UpdateSettled(ctx context.Context, object string, f func(*indexpb.SettledObject) (bool, error)) (*indexpb.SettledObject, int64, error) {
	for t := (tries{}); ; {
		r, version, err := c.GetSettled(ctx, object)
		if err != nil {
			return nil, 0, err
		}
		change, err := f(r)
		if err != nil || !change {
			return r, version, err
		}
		version, err = c.PutSettled(ctx, r, version)
		if err == nil {
			return r, version, nil
		}
		if !IsConflict(err) {
			return nil, 0, err
		}
		if err := t.again(ctx); err != nil {
			return nil, 0, err
		}
	}
}

// DeleteSettled removes a CONDEMNED row.
func (c *Client) DeleteSettled(ctx context.Context, object string, expected int64) error {
	_, err := again(ctx, func() (*indexpb.DeleteSettledObjectResponse, error) {
		return c.index.DeleteSettledObject(ctx, &indexpb.DeleteSettledObjectRequest{Object: object, ExpectedVersion: expected})
	})
	return err
}
