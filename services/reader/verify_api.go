package reader

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"

	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/reader/v1"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// VerifyStream reads every retained chunk of a stream from storage itself, not
// from a cache or window, and checks what it finds against the leader's state.
func (s *Service) VerifyStream(req *readerpb.VerifyStreamRequest, srv readerpb.ReaderService_VerifyStreamServer) error {
	return s.whileRunning(srv.Context(), func(ctx context.Context) error { return s.verify(ctx, req, srv) })
}

func (s *Service) verify(ctx context.Context, req *readerpb.VerifyStreamRequest, srv readerpb.ReaderService_VerifyStreamServer) error {
	t := &novapb.CheckTailRequest{Bucket: req.GetBucket(), Stream: req.GetStream()}
	return s.withStream(ctx, t, func(id stream.ID, key *sequencerpb.StreamKey) error {
		end, err := s.state(ctx, key)
		if err != nil {
			return err
		}
		v := verification{
			next: stream.Seq(end.GetTrim()), first: true,
			out: &novapb.VerifyResponse{Bucket: req.GetBucket(), Stream: req.GetStream(), StreamId: id.String()},
		}
		for uint64(v.next) < end.GetTail() {
			if err := s.verifyPage(ctx, id, key, &v); err != nil {
				return err
			}
			if err := srv.Send(&readerpb.VerifyStreamResponse{Progress: v.report(false)}); err != nil {
				return err
			}
		}
		if v.next == stream.Seq(end.GetTail()) && v.known && v.hash != stream.Hash(end.GetContentHash()) {
			v.find("content_hash", fmt.Sprintf("content hash at the tail is %016x, the leader says %016x", v.hash, end.GetContentHash()), end.GetTail(), end.GetTail())
		}
		return srv.Send(&readerpb.VerifyStreamResponse{Progress: v.report(true)})
	})
}

// verification is how far a stream was checked.
type verification struct {
	next  stream.Seq
	hash  stream.Hash // content hash before next, if known
	known bool
	first bool // the first chunk may begin below the trim point
	last  stream.Millis
	out   *novapb.VerifyResponse
}

func (v *verification) find(kind, message string, first, next uint64) {
	v.out.Findings = append(v.out.Findings, &novapb.VerifyFinding{Kind: kind, Message: message, FirstSeq: first, NextSeq: next})
}

// report returns a message of its own: what was sent must not change.
func (v *verification) report(done bool) *novapb.VerifyResponse {
	out := &novapb.VerifyResponse{
		Bucket: v.out.GetBucket(), Stream: v.out.GetStream(), StreamId: v.out.GetStreamId(),
		Records: v.out.GetRecords(), Bytes: v.out.GetBytes(), Findings: v.out.GetFindings(), Done: done,
	}
	v.out.Findings = nil
	return out
}

func (s *Service) verifyPage(ctx context.Context, id stream.ID, key *sequencerpb.StreamKey, v *verification) error {
	var res *sequencerpb.FetchResponse
	err := s.router.DoIdempotent(ctx, stream.Shard(key.GetShard()), func(conn grpc.ClientConnInterface) error {
		var err error
		res, err = sequencerpb.NewSequencerServiceClient(conn).Fetch(ctx, &sequencerpb.FetchRequest{
			Stream: key, Start: &sequencerpb.FetchRequest_Seq{Seq: uint64(v.next)}, Clamp: true, MaxBytes: pageBytes,
		})
		return err
	})
	if err != nil {
		return err
	}
	if len(res.GetPieces()) == 0 {
		v.find("gap", fmt.Sprintf("no chunk holds record %d", v.next), uint64(v.next), res.GetState().GetTail())
		v.next = stream.Seq(res.GetState().GetTail())
		return nil
	}
	for _, p := range res.GetPieces() {
		if err := s.verifyPiece(ctx, id, p, v); err != nil {
			return err
		}
	}
	return nil
}

func (s *Service) verifyPiece(ctx context.Context, id stream.ID, p *sequencerpb.Piece, v *verification) error {
	next := p.GetBaseSeq() + uint64(p.GetCount())
	if stream.Seq(p.GetBaseSeq()) != v.next && !(v.first && stream.Seq(p.GetBaseSeq()) < v.next) {
		v.find("gap", fmt.Sprintf("chunk starts at %d, %d is expected", p.GetBaseSeq(), v.next), uint64(v.next), p.GetBaseSeq())
	}
	v.first = false
	defer func() { v.next = stream.Seq(next) }()
	object, at, err := location(p.GetAt())
	if err != nil {
		return err
	}
	d, err := stored(id, p, func() ([]byte, error) { return s.direct(ctx, object, at) })
	where := fmt.Sprintf("%s bytes %d..%d", object, at.GetOffset(), at.GetOffset()+at.GetLength())
	switch {
	case reason.Is(err, reason.ObjectNotFound):
		v.find("missing", where+" is not there", p.GetBaseSeq(), next)
		v.known = false
		return nil
	case errors.Is(err, errDamaged):
		v.find("checksum", where+": "+err.Error(), p.GetBaseSeq(), next)
		v.known = false
		return nil
	case err != nil:
		return err
	}
	if v.known && d.header.HashBefore != v.hash {
		v.find("content_hash", fmt.Sprintf("%s: content hash before %d is %016x, the records before it give %016x", where, p.GetBaseSeq(), d.header.HashBefore, v.hash), p.GetBaseSeq(), next)
	}
	if err := chunk.VerifyHash(&d.header, d.records); err != nil {
		v.find("content_hash", where+": "+err.Error(), p.GetBaseSeq(), next)
	}
	for i := range d.records {
		r := &d.records[i]
		if r.Timestamp < v.last {
			v.find("timestamp", fmt.Sprintf("record %d at %d ms is before %d ms", r.Seq, r.Timestamp, v.last), uint64(r.Seq), uint64(r.Seq)+1)
		}
		v.last = r.Timestamp
		if r.Seq >= v.next {
			v.out.Records++
			v.out.Bytes += uint64(r.Size())
		}
	}
	v.hash, v.known = d.header.HashAfter, true
	return nil
}
