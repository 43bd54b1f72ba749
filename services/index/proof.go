package index

import (
	"context"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// Plain reads may be old. Where something is decided by them, they are proven by
// a change: a row that is there by a touch, one that is not there by putting a
// place-holder where there must be none, which is removed at once. Whoever meets
// a place-holder of another that died removes it; to everybody else it is no row.

func isPlaceHolder(h *indexpb.Head) bool { return h.GetStreamId() == "" }

// head returns a stream's head. With "not found" comes the version of a
// place-holder, or Absent.
func (s *Service) head(ctx context.Context, id string) (*indexpb.Head, metastore.Version, error) {
	var h indexpb.Head
	v, err := s.read(ctx, headKey(id), &h)
	switch {
	case err != nil:
		return nil, metastore.Absent, err
	case isPlaceHolder(&h):
		return nil, v, errNoHead(id)
	}
	return &h, v, nil
}

func errNoHead(id string) error {
	return reason.New(codes.NotFound, reason.RowNotFound, "stream "+id+" has no head")
}

// provenHead is head; that there is none is proven. The head of a stream that a
// name leads to was put before the name, so a place-holder is in no creator's way.
func (s *Service) provenHead(ctx context.Context, id string) (h *indexpb.Head, v metastore.Version, err error) {
	absent := false
	err = retry(ctx, func() (err error) {
		h, v, err = s.head(ctx, id)
		if !reason.Is(err, reason.RowNotFound) {
			return err
		}
		if v == metastore.Absent {
			v, err = s.put(ctx, headKey(id), &indexpb.Head{Attempt: stream.NewAttemptID().String()}, metastore.Absent)
			if err != nil {
				return err // a conflict: there is one
			}
		}
		if err := s.remove(ctx, headKey(id), v); err != nil {
			return err
		}
		absent = true
		return nil
	})
	if err == nil && absent {
		return nil, 0, errNoHead(id)
	}
	return h, v, err
}

// freshDescriptor is descriptor; that it is no old read is proven. One that is
// unfinished is left to those who create it.
func (s *Service) freshDescriptor(ctx context.Context, id string) (d *indexpb.StreamDescriptor, err error) {
	err = retry(ctx, func() error {
		var v metastore.Version
		d, v, err = s.descriptor(ctx, id)
		if err != nil || d.GetUnfinished() {
			return err
		}
		d.Attempt = stream.NewAttemptID().String()
		_, err = s.put(ctx, descriptorKey(id), d, v)
		return err
	})
	return d, err
}
