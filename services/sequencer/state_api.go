package sequencer

import (
	"context"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/history"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
)

// headReads is how often a head is read that is older than what is known of it.
const headReads = 3

// GetState returns the present extent of a stream. The bytes that are settled are
// counted if they are asked for.
func (s *Service) GetState(ctx context.Context, req *sequencerpb.GetStateRequest) (*sequencerpb.GetStateResponse, error) {
	st, err := s.openKey(ctx, req.GetStream())
	if err != nil {
		return nil, err
	}
	for tries := 1; ; tries++ {
		var h *indexpb.Head
		if req.GetStoredBytes() {
			// Before the state, so that what is settled in between is counted as it was.
			h, _, err = s.index.GetHead(ctx, st.id)
			if err != nil && !catalog.IsNotFound(err) {
				return nil, err
			}
		}
		st.mu.Lock()
		state, err := st.stateLocked()
		known := stream.Seq(h.GetTail()) >= st.settledTo
		if err == nil && h != nil {
			state.StoredBytes = history.Stored(h) + st.storedFromLocked(stream.Seq(h.GetTail()))
		}
		st.mu.Unlock()
		switch {
		case err != nil:
			return nil, err
		case !req.GetStoredBytes() || h != nil && known:
			return &sequencerpb.GetStateResponse{State: state}, s.strong()
		case tries == headReads:
			return nil, reason.New(codes.Unavailable, "", "the stream's head was read as it was before more was settled")
		}
	}
}

// storedFromLocked returns the bytes of the pieces from a number on.
func (st *openStream) storedFromLocked(seq stream.Seq) (n uint64) {
	for i := range st.pieces {
		if st.pieces[i].base >= seq {
			n += uint64(st.pieces[i].length)
		}
	}
	return n
}

func (s *Service) openKey(ctx context.Context, key *sequencerpb.StreamKey) (*openStream, error) {
	id, err := stream.ParseID(key.GetStreamId())
	if err != nil {
		return nil, reason.Field("stream.stream_id", err.Error())
	}
	sh, err := s.shardOf(ctx, stream.Shard(key.GetShard()))
	if err != nil {
		return nil, err
	}
	if st := sh.inMemory(id); st != nil {
		return st, nil
	}
	return s.openByID(ctx, id, stream.Shard(key.GetShard()))
}

// inMemory returns a sound stream that this life has open, nil if there is none. While
// the shard recovers, its chain lost, what was committed is still so: nobody else
// commits before the life is over, and the lease, which is looked at after the
// state, says that it is not.
func (sh *shard) inMemory(id stream.ID) *openStream {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if st := sh.streams[id]; sh.held && st != nil && st.broken == nil {
		return st
	}
	return nil
}

// strong returns nil if what was read before the call may be answered: the
// lease is looked at after the state.
func (s *Service) strong() error {
	if s.lease.valid() {
		return nil
	}
	return errNoLease()
}

// stateLocked returns the committed state, or why the stream has none.
func (st *openStream) stateLocked() (*sequencerpb.StreamState, error) {
	if st.gone != nil {
		return nil, st.gone
	}
	if st.deleted {
		return nil, errDeleted()
	}
	st.used = st.shard.svc.now()
	return &sequencerpb.StreamState{
		Trim: uint64(st.trim), Tail: uint64(st.tail), LastTimestamp: int64(st.lastTS), ContentHash: uint64(st.hash),
		Sealed: st.sealed, Epoch: uint64(st.shard.currentEpoch()), StoredBytes: st.stored, Leader: st.shard.svc.cfg.Address,
	}, nil
}

func (sh *shard) currentEpoch() stream.Epoch {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.epoch
}
