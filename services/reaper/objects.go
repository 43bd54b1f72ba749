package reaper

import (
	"context"
	"fmt"
	"slices"

	"github.com/nova-stream/nova/libs/history"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/cache/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

const (
	// deleteAtOnce and readAtOnce are what a cache takes in one call: objects, and
	// bytes.
	deleteAtOnce = 1000
	readAtOnce   = 8 << 20
)

// object is one to be deleted, with its bytes if a row tells.
type object struct {
	key  string
	size uint64
}

// remove deletes objects through the cache; those that are gone do no harm.
func (s *Service) remove(ctx context.Context, queue string, objects []object) error {
	for part := range slices.Chunk(objects, deleteAtOnce) {
		req := &cachepb.DeleteObjectsRequest{}
		bytes := uint64(0)
		for _, o := range part {
			req.Objects = append(req.Objects, o.key)
			bytes += o.size
		}
		if _, err := s.cache.DeleteObjects(ctx, req); err != nil {
			return errStorage{fmt.Errorf("delete %d objects, %s and on: %w", len(part), part[0].key, err)}
		}
		s.metrics.deleted(ctx, queue, len(part), bytes)
	}
	return nil
}

// read returns part of an object and the size of all of it; gone says that it does
// not exist.
func (s *Service) read(ctx context.Context, key string, offset, length uint64) (b []byte, size uint64, gone bool, err error) {
	res, err := s.cache.ReadRange(ctx, &cachepb.ReadRangeRequest{Object: key, Offset: offset, Length: length})
	switch {
	case reason.Is(err, reason.ObjectNotFound):
		return nil, 0, true, nil
	case err != nil:
		return nil, 0, false, errStorage{fmt.Errorf("read %s: %w", key, err)}
	}
	return res.GetData(), res.GetObjectSize(), false, nil
}

// load reads the pages of a stream.
func (s *Service) load(id stream.ID) history.Load {
	return func(ctx context.Context, p *indexpb.RefPage) (*indexpb.RefPageBody, error) {
		return s.readPage(ctx, p.GetObject(), id)
	}
}

// readPage returns what a page object holds; nil if it does not exist.
func (s *Service) readPage(ctx context.Context, key string, id stream.ID) (*indexpb.RefPageBody, error) {
	b, size, gone, err := s.read(ctx, key, 0, history.MaxPageBytes)
	if err != nil || gone {
		return nil, err
	}
	if size != uint64(len(b)) {
		return nil, fmt.Errorf("page %s has %d bytes: %w", key, size, history.ErrCorrupt)
	}
	body, err := history.DecodePage(b, id)
	if err != nil {
		return nil, fmt.Errorf("page %s: %w", key, err)
	}
	return body, nil
}
