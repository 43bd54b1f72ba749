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
		if err == nil && !st.isDeleted() {
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
	for {
		// One that was idle may leave memory in this very moment.
		st, err := sh.open(ctx, id)
		if err != nil || st.use() {
			return st, err
		}
	}
}

func (st *openStream) isDeleted() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.deleted
}

// use notes that the stream is in use, before room is sought that its own eviction
// could make; false: it has left memory.
func (st *openStream) use() bool {
	now := st.shard.svc.now()
	st.mu.Lock()
	defer st.mu.Unlock()
	st.used = now
	return st.gone == nil
}
