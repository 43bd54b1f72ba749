package chainwriter

import (
	"context"
	"sync"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
)

// session is one WriteEntries call: it gathers answers while one is being sent.
// What it holds is bounded by the sender's credit.
type session struct {
	mu   sync.Mutex
	wake chan struct{} // capacity 1
	out  *chainwriterpb.WriteEntriesResponse
}

func newSession() *session { return &session{wake: make(chan struct{}, 1)} }

func (s *session) add(f func(*chainwriterpb.WriteEntriesResponse)) {
	s.mu.Lock()
	if s.out == nil {
		s.out = &chainwriterpb.WriteEntriesResponse{}
	}
	f(s.out)
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *session) committed(e bundle.Entry, at stream.Coordinates) {
	s.add(func(r *chainwriterpb.WriteEntriesResponse) {
		r.Commits = append(r.Commits, &chainwriterpb.Commit{
			Shard: uint32(e.Shard), Epoch: uint64(e.Epoch), EntryNo: uint64(e.EntryNo),
			At: &chainwriterpb.Coordinates{ChainId: at.Chain[:], Slot: uint64(at.Slot), Offset: at.Offset, Length: at.Length},
		})
	})
}

func (s *session) refused(e bundle.Entry, r *refusal) {
	s.add(func(m *chainwriterpb.WriteEntriesResponse) {
		m.Refusals = append(m.Refusals, &chainwriterpb.Refusal{
			Shard: uint32(e.Shard), Epoch: uint64(e.Epoch), EntryNo: uint64(e.EntryNo), Reason: string(r.why),
		})
	})
}

// send sends answers until ctx ends or the chain does. The last answer says
// that the chain has ended; what was not committed before it is undecided.
func (s *session) send(ctx context.Context, ended <-chan struct{}, send func(*chainwriterpb.WriteEntriesResponse) error) error {
	for {
		select {
		case <-s.wake:
		case <-ended:
			// Everything that was committed is in out by now.
			last := s.take()
			if last == nil {
				last = &chainwriterpb.WriteEntriesResponse{}
			}
			last.ChainSealed = true
			return send(last)
		case <-ctx.Done():
			return ctx.Err()
		}
		if m := s.take(); m != nil {
			if err := send(m); err != nil {
				return err
			}
		}
	}
}

func (s *session) take() *chainwriterpb.WriteEntriesResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.out
	s.out = nil
	return m
}
