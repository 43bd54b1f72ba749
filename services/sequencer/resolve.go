package sequencer

import (
	"context"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
)

// target is a stream as a request names it.
type target interface {
	GetBucket() string
	GetStream() string
	GetStreamId() string
}

// opened returns the open stream that a request names. The name's meaning is
// cached without limit of age: a leader knows that a stream is deleted, and
// then the name is resolved once more.
func (s *Service) openNamed(ctx context.Context, t target) (*openStream, error) {
	for again := false; ; again = true {
		named, err := s.names.Resolve(ctx, t.GetBucket(), t.GetStream(), t.GetStreamId(), catalog.ForAppend)
		if err != nil {
			return nil, err
		}
		st, err := s.openByID(ctx, named.ID, named.Shard)
		// Noted before room is sought, or its own eviction could make that room.
		if err == nil && !st.use() {
			return st, nil
		}
		if err == nil {
			err = errDeleted()
		}
		if again || !reason.Is(err, reason.StreamNotFound) {
			return nil, err
		}
		s.names.Invalidate(t.GetBucket(), t.GetStream(), named.ID)
	}
}

func (s *Service) openByID(ctx context.Context, id stream.ID, n stream.Shard) (*openStream, error) {
	sh, err := s.shardOf(ctx, n)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.AdmissionTimeout)
	defer cancel()
	return sh.open(ctx, id)
}

// use notes that the stream is in use, and reports whether it is deleted.
func (st *openStream) use() (deleted bool) {
	now := st.shard.svc.now()
	st.mu.Lock()
	defer st.mu.Unlock()
	st.used = now
	return st.deleted
}
