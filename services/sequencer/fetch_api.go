package sequencer

import (
	"context"
	"fmt"
	"sort"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
)

// Limits of one Fetch.
const (
	maxFetchBytes  = 4 << 20
	maxFetchPieces = 256
	maxFetchWait   = time.Minute
)

// Fetch resolves a start position and returns committed chunks from there, or says
// that the records there are settled. At the tail it waits as long as it is told.
func (s *Service) Fetch(ctx context.Context, req *sequencerpb.FetchRequest) (*sequencerpb.FetchResponse, error) {
	st, err := s.openKey(ctx, req.GetStream())
	if err != nil {
		return nil, err
	}
	// A start that is relative is resolved once: while waiting at the tail, it
	// stays where it was.
	var wait *time.Timer
	var fixed *stream.Seq
	for {
		res, start, changed, err := st.fetch(req, fixed)
		// That a position is beyond the tail is an answer from memory, too.
		if err == nil || reason.Is(err, reason.BeyondTail) {
			if err := s.strong(); err != nil {
				return nil, err
			}
		}
		if err != nil {
			return nil, err
		}
		settled := res.GetStartSeq() < res.GetSettledTo()
		if len(res.GetPieces()) > 0 || settled || res.GetState().GetSealed() || req.GetWaitMs() == 0 {
			return res, nil
		}
		if _, byTime := req.GetStart().(*sequencerpb.FetchRequest_Timestamp); !byTime {
			fixed = &start
		}
		if wait == nil {
			wait = time.NewTimer(min(time.Duration(req.GetWaitMs())*time.Millisecond, maxFetchWait))
			defer wait.Stop()
		}
		st.addWaiters(1)
		over := false
		select {
		case <-changed:
		case <-wait.C:
			over = true
		case <-ctx.Done():
			err = reason.New(reason.Code(ctx.Err()), "", "fetch: "+ctx.Err().Error())
		case <-s.running.Done():
			err = errNoLeader(st.shard.number)
		}
		st.addWaiters(-1)
		if err != nil {
			return nil, err
		}
		if over {
			return res, nil
		}
	}
}

// fetch answers from the committed state. changed is closed when that changes.
func (st *openStream) fetch(req *sequencerpb.FetchRequest, fixed *stream.Seq) (*sequencerpb.FetchResponse, stream.Seq, <-chan struct{}, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	state, err := st.stateLocked()
	if err != nil {
		return nil, 0, nil, err
	}
	start, err := st.startLocked(req, fixed)
	if err != nil {
		return nil, 0, nil, err
	}
	res := &sequencerpb.FetchResponse{State: state, StartSeq: uint64(start), SettledTo: uint64(st.settledTo)}
	if start < st.settledTo {
		_, byTime := req.GetStart().(*sequencerpb.FetchRequest_Timestamp)
		res.SeekSettled = byTime && fixed == nil
		return res, start, nil, nil
	}
	budget := int64(min(req.GetMaxBytes(), maxFetchBytes))
	i := sort.Search(len(st.pieces), func(i int) bool { return st.pieces[i].next() > start })
	for ; i < len(st.pieces) && len(res.GetPieces()) < maxFetchPieces; i++ {
		p := &st.pieces[i]
		if len(res.GetPieces()) > 0 && budget < int64(p.length) {
			break
		}
		budget -= int64(p.length)
		res.Pieces = append(res.Pieces, p.message())
	}
	if len(res.GetPieces()) == 0 && req.GetWaitMs() > 0 {
		return res, start, st.waitLocked(), nil
	}
	return res, start, nil, nil
}

func (p *piece) message() *sequencerpb.Piece {
	return &sequencerpb.Piece{
		BaseSeq: uint64(p.base), Count: p.count, Chunk: p.window.load(),
		At: &chainwriterpb.Coordinates{ChainId: p.chain[:], Slot: uint64(p.slot), Offset: p.offset, Length: p.length},
	}
}

// startLocked resolves where to start. A time that settled records may have comes
// out as the first record, which is one of them: who asks looks for it from there.
func (st *openStream) startLocked(req *sequencerpb.FetchRequest, fixed *stream.Seq) (stream.Seq, error) {
	if fixed != nil {
		return max(*fixed, st.trim), st.trimmedWhileWaiting(*fixed, req.GetClamp())
	}
	switch at := req.GetStart().(type) {
	case *sequencerpb.FetchRequest_Seq:
		seq := stream.Seq(at.Seq)
		switch {
		case req.GetClamp():
			return min(max(seq, st.trim), st.tail), nil
		case seq < st.trim:
			return 0, errTrimmed(seq, st.trim)
		case seq > st.tail:
			return 0, reason.New(codes.OutOfRange, reason.BeyondTail,
				fmt.Sprintf("seq %d is beyond the tail %d", seq, st.tail), reason.KeyTail, reason.Text(st.tail))
		}
		return seq, nil
	case *sequencerpb.FetchRequest_Timestamp:
		ts := stream.Millis(at.Timestamp)
		if st.trim < st.settledTo && ts <= st.settledTS {
			return st.trim, nil
		}
		i := sort.Search(len(st.pieces), func(i int) bool { return st.pieces[i].lastTS >= ts })
		if i == len(st.pieces) {
			return st.tail, nil
		}
		return max(st.pieces[i].base, st.trim), nil
	case *sequencerpb.FetchRequest_TailOffset:
		if at.TailOffset >= uint64(st.tail-st.trim) {
			return st.trim, nil
		}
		return st.tail - stream.Seq(at.TailOffset), nil
	}
	return st.trim, nil
}

// trimmedWhileWaiting tells a waiter that what it waits for was trimmed away.
func (st *openStream) trimmedWhileWaiting(start stream.Seq, clamp bool) error {
	if start >= st.trim || clamp {
		return nil
	}
	return errTrimmed(start, st.trim)
}

func errTrimmed(seq, first stream.Seq) error {
	return reason.New(codes.OutOfRange, reason.Trimmed,
		fmt.Sprintf("seq %d is below the first retained record %d", seq, first), reason.KeyFirstSeq, reason.Text(first))
}
