package reader

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
)

// fetched is a Fetch with its chunks.
type fetched struct {
	state  *sequencerpb.StreamState
	start  stream.Seq
	chunks []decoded
}

// demand is what a call may take.
type demand struct {
	size    int    // bytes, decoded
	records uint64 // from the start on
	// skip: the start is looked for by time, so that the records of the first chunk
	// may be passed over.
	skip bool
	// whole: chunks are to be passed on as they are, up to so many bytes as stored;
	// 0: they are to be decoded.
	whole int
}

// pass returns of the pieces those that may be passed on whole, and marks them: as
// many as there is room for. If the first is wanted in part, it is all there is.
func (d *demand) pass(pieces []piece, start stream.Seq) []piece {
	left := d.whole
	for i := range pieces {
		p := &pieces[i]
		if left -= int(min(p.at.length, maxPart)); i > 0 && (left < 0 || pieces[0].at.first != start) {
			return pieces[:i]
		}
		p.whole = true
	}
	return pieces
}

// until returns where what is wanted ends, if it begins at start in the piece
// first.
func (d *demand) until(start stream.Seq, first *piece) stream.Seq {
	if d.skip {
		start = first.next
	}
	return start + stream.Seq(min(d.records, uint64(math.MaxUint64-start)))
}

// fetch asks the leader and gets chunks until they decode to about what is
// wanted: a prefix of what it may answer with, and not nothing.
//
// A chunk that is not where the leader or the head said, or not what they said,
// may have moved since: both are asked again. Only the same damage in the same
// place is DATA_LOSS; and only what is gone for Patience makes the read
// UNAVAILABLE.
func (s *Service) fetch(ctx context.Context, id stream.ID, req *sequencerpb.FetchRequest, memory *share, want demand) (fetched, error) {
	deadline := time.Now().Add(s.cfg.Patience)
	var before *damage
	var sought *uint64 // up to where nothing settled was found at or after the time
	for {
		res, err := s.ask(ctx, req)
		if err != nil {
			return fetched{}, err
		}
		if len(res.GetPieces()) > 0 || res.GetStartSeq() < res.GetSettledTo() {
			if err := memory.take(ctx); err != nil {
				return fetched{}, err
			}
		}
		f, found, err := s.gather(ctx, id, req, res, want)
		if err == nil && !found {
			// All that is settled is before the time. The leader may have learned so
			// meanwhile; if not, records are looked at one by one from there on.
			if c := res.GetSettledTo(); sought != nil && *sought == c {
				req = proto.CloneOf(req)
				req.Start, req.Clamp = &sequencerpb.FetchRequest_Seq{Seq: c}, true
			} else {
				sought = &c
			}
			continue
		}
		var damaged *damage
		switch {
		case err == nil:
			return f, nil
		case errors.As(err, &damaged):
			// Where another's bytes stand, nothing is for now: as if gone.
			same := before != nil && *before == *damaged && !damaged.foreign
			if same || time.Now().After(deadline) {
				return fetched{}, s.lost(ctx, id, damaged)
			}
			before = damaged
		case !gone(err):
			return fetched{}, err
		case time.Now().After(deadline):
			s.log.ErrorContext(ctx, "committed records are not in storage", "stream", id.String(), "err", err)
			return fetched{}, reason.New(codes.Unavailable, reason.StorageDown, "committed records are not where the leader says")
		}
		s.known.heads.Invalidate(id)
		select {
		case <-ctx.Done():
			return fetched{}, ended(ctx, "read")
		case <-time.After(s.retry):
		}
	}
}

// ask asks the leader.
func (s *Service) ask(ctx context.Context, req *sequencerpb.FetchRequest) (*sequencerpb.FetchResponse, error) {
	var res *sequencerpb.FetchResponse
	err := s.router.DoIdempotent(ctx, stream.Shard(req.GetStream().GetShard()), func(conn grpc.ClientConnInterface) error {
		var err error
		res, err = sequencerpb.NewSequencerServiceClient(conn).Fetch(ctx, req)
		return err
	})
	return res, err
}

// gather gets the chunks that an answer of the leader leads to: settled ones, or
// its pieces. found is false if the time that is looked for is not among the
// settled records.
func (s *Service) gather(ctx context.Context, id stream.ID, req *sequencerpb.FetchRequest, res *sequencerpb.FetchResponse, want demand) (f fetched, found bool, err error) {
	start, to := stream.Seq(res.GetStartSeq()), stream.Seq(res.GetSettledTo())
	if res.GetSeekSettled() && start < to {
		at := stream.Millis(req.GetTimestamp())
		if start, found, err = s.seek(ctx, id, start, to, at); err != nil || !found {
			return fetched{}, false, err
		}
	}
	var pieces []piece
	if start < to {
		pieces, err = s.settled(ctx, id, start, to, &want, int64(req.GetMaxBytes()))
	} else {
		pieces, err = piecesOf(res.GetPieces())
	}
	if err != nil {
		return fetched{}, true, err
	}
	if n := slices.IndexFunc(pieces, func(p piece) bool { return p.at.first >= want.until(start, &pieces[0]) }); n > 0 {
		pieces = pieces[:n]
	}
	part := pieces
	if want.whole > 0 {
		part = want.pass(pieces, start)
	}
	if n := s.cfg.FetchAhead; len(part) > n && want.size >= aheadFrom {
		// Those that are not fetched at once; many are in one step, so that fetching
		// alone would load one step after another.
		s.ahead.of(part[n:])
	}
	chunks, err := s.chunks(ctx, id, part, want.size)
	if err == nil {
		err = continuous(chunks, start)
	}
	if err != nil {
		return fetched{}, true, err
	}
	f = fetched{state: res.GetState(), start: start, chunks: chunks}
	if start < to {
		if f.size() >= aheadFrom {
			s.ahead.of(pieces[len(chunks):])
		}
	}
	return f, true, nil
}

// size returns to how many bytes what was fetched decodes.
func (f *fetched) size() (n int) {
	for i := range f.chunks {
		n += f.chunks[i].size
	}
	return n
}

// reach moves the tail of an answer up to the end of its chunks: a head may know
// of records that were committed since the leader answered.
func (f *fetched) reach() {
	if len(f.chunks) == 0 {
		return
	}
	if next := uint64(f.chunks[len(f.chunks)-1].header.Next()); next > f.state.GetTail() {
		f.state = proto.CloneOf(f.state)
		f.state.Tail = next
	}
}

// damage says what is damaged; it never leaves the trust domain.
type damage struct {
	place
	what    string
	foreign bool // another's bytes stand in the slot
}

func (d *damage) Error() string { return "damaged: " + d.what }

// lost notes where the damage is and returns what the caller may know.
func (s *Service) lost(ctx context.Context, id stream.ID, d *damage) error {
	s.log.ErrorContext(ctx, "stored records are damaged", "stream", id.String(), "object", d.object,
		"offset", d.offset, "length", d.length, "first_seq", uint64(d.first), "err", d.what)
	return reason.New(codes.DataLoss, reason.ChecksumMismatch, fmt.Sprintf("records from %d on are damaged in storage", d.first))
}

// continuous checks that the first chunk holds start, and that each continues
// the one before, in numbers and in content (I1, I10).
func continuous(chunks []decoded, start stream.Seq) error {
	for i := range chunks {
		h := &chunks[i].header
		var what string
		switch {
		case i == 0 && (h.BaseSeq > start || h.Next() <= start):
			what = fmt.Sprintf("records %d..%d where %d is due", h.BaseSeq, h.Next(), start)
		case i > 0 && h.BaseSeq != chunks[i-1].header.Next():
			what = fmt.Sprintf("record %d where %d is due", h.BaseSeq, chunks[i-1].header.Next())
		case i > 0 && h.HashBefore != chunks[i-1].header.HashAfter:
			what = fmt.Sprintf("content hash %016x does not continue %016x", h.HashBefore, chunks[i-1].header.HashAfter)
		default:
			continue
		}
		return chunks[i].damaged(what)
	}
	return nil
}

// misfit is lost for an error of fill.
func (s *Service) misfit(ctx context.Context, id stream.ID, err error) error {
	var damaged *damage
	if errors.As(err, &damaged) {
		return s.lost(ctx, id, damaged)
	}
	return err
}
