package reader

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

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

// fetch asks the leader and gets chunks until they decode to about limit bytes:
// a prefix of what it may answer with, and not nothing.
//
// A chunk that is not where the leader said, or not what it said, may have moved
// since: the leader is asked again. Only the same damage in the same place is
// DATA_LOSS; and only what is gone for Patience makes the read UNAVAILABLE.
func (s *Service) fetch(ctx context.Context, id stream.ID, req *sequencerpb.FetchRequest, memory *share, limit int) (fetched, error) {
	deadline := time.Now().Add(s.cfg.Patience)
	var before *damage
	for {
		var res *sequencerpb.FetchResponse
		err := s.router.DoIdempotent(ctx, stream.Shard(req.GetStream().GetShard()), func(conn grpc.ClientConnInterface) error {
			var err error
			res, err = sequencerpb.NewSequencerServiceClient(conn).Fetch(ctx, req)
			return err
		})
		if err != nil {
			return fetched{}, err
		}
		if len(res.GetPieces()) > 0 {
			if err := memory.take(ctx); err != nil {
				return fetched{}, err
			}
		}
		chunks, err := s.chunks(ctx, id, res.GetPieces(), limit)
		if err == nil {
			err = continuous(chunks, stream.Seq(res.GetStartSeq()))
		}
		var damaged *damage
		switch {
		case err == nil:
			return fetched{state: res.GetState(), start: stream.Seq(res.GetStartSeq()), chunks: chunks}, nil
		case errors.As(err, &damaged):
			if before != nil && *before == *damaged || time.Now().After(deadline) {
				return fetched{}, s.lost(ctx, id, damaged)
			}
			before = damaged
		case !reason.Is(err, reason.ObjectNotFound):
			return fetched{}, err
		case time.Now().After(deadline):
			s.log.ErrorContext(ctx, "a committed chunk is not in storage", "stream", id.String(), "err", err)
			return fetched{}, reason.New(codes.Unavailable, reason.StorageDown, "committed records are not where the leader says")
		}
		select {
		case <-ctx.Done():
			return fetched{}, ended(ctx, "read")
		case <-time.After(retryDelay):
		}
	}
}

// damage says what is damaged; it never leaves the trust domain.
type damage struct {
	first          stream.Seq
	object         string
	offset, length uint32
	what           string
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
