package reader

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/reader/v1"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// VerifyStream reads every retained chunk of a stream from storage itself, not
// from a cache or window, and checks what it finds against the leader's state; of
// what is settled also the head's refs, their pages, and what the objects say of
// their runs.
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
			svc: s, id: id, key: key, next: stream.Seq(end.GetTrim()), first: true, patience: s.cfg.Patience,
			out: &novapb.VerifyResponse{Bucket: req.GetBucket(), Stream: req.GetStream(), StreamId: id.String()},
		}
		for uint64(v.next) < end.GetTail() {
			if err := v.page(ctx); err != nil {
				return err
			}
			if err := srv.Send(&readerpb.VerifyStreamResponse{Progress: v.report(false)}); err != nil {
				return err
			}
		}
		if v.next == stream.Seq(end.GetTail()) && v.known && v.hash != stream.Hash(end.GetContentHash()) {
			v.find("content_hash", fmt.Sprintf("content hash at the tail is %016x, the leader says %016x", v.hash, end.GetContentHash()), v.next, v.next)
		}
		return srv.Send(&readerpb.VerifyStreamResponse{Progress: v.report(true)})
	})
}

// verification is how far a stream was checked.
type verification struct {
	svc  *Service
	id   stream.ID
	key  *sequencerpb.StreamKey
	next stream.Seq
	hash stream.Hash // content hash before next, if known
	// known is false after what could not be checked.
	known bool
	first bool // the first chunk may begin below next, where a trim is
	last  stream.Millis
	out   *novapb.VerifyResponse

	// gone is what was not there, and may have moved; patience is how much longer
	// such things are looked for, all together.
	gone     place
	patience time.Duration
}

// errAgain means that the leader is to be asked again from next on.
var errAgain = errors.New("ask again")

func (v *verification) find(kind, message string, first, next stream.Seq) {
	v.out.Findings = append(v.out.Findings, &novapb.VerifyFinding{Kind: kind, Message: message, FirstSeq: uint64(first), NextSeq: uint64(next)})
}

// skip goes on after what could not be checked.
func (v *verification) skip(next stream.Seq) { v.next, v.known = max(v.next, next), false }

// stays reports whether what is not there was missed before, and long enough.
func (v *verification) stays(at place) bool {
	if v.gone != at {
		v.gone = at
		return false
	}
	return v.patience <= 0
}

// report returns a message of its own: what was sent must not change.
func (v *verification) report(done bool) *novapb.VerifyResponse {
	out := &novapb.VerifyResponse{
		Bucket: v.out.GetBucket(), Stream: v.out.GetStream(), StreamId: v.out.GetStreamId(),
		Records: v.out.GetRecords(), Bytes: v.out.GetBytes(), SettledRecords: v.out.GetSettledRecords(), Findings: v.out.GetFindings(), Done: done,
	}
	v.out.Findings = nil
	return out
}

// page checks some of what follows.
func (v *verification) page(ctx context.Context) error {
	res, err := v.svc.ask(ctx, &sequencerpb.FetchRequest{
		Stream: v.key, Start: &sequencerpb.FetchRequest_Seq{Seq: uint64(v.next)}, Clamp: true, MaxBytes: pageBytes,
	})
	if err != nil {
		return err
	}
	if start := stream.Seq(res.GetStartSeq()); start > v.next {
		// A trim passed it.
		v.skip(start)
		v.first = true
	}
	if settled := stream.Seq(res.GetSettledTo()); v.next < settled {
		err = v.settled(ctx, settled)
	} else {
		err = v.pieces(ctx, res)
	}
	if !errors.Is(err, errAgain) {
		return err
	}
	v.patience -= v.svc.retry
	select {
	case <-ctx.Done():
		return ended(ctx, "verify")
	case <-time.After(v.svc.retry):
		return nil
	}
}

func (v *verification) pieces(ctx context.Context, res *sequencerpb.FetchResponse) error {
	pieces, err := piecesOf(res.GetPieces())
	if err != nil {
		return err
	}
	if tail := stream.Seq(res.GetState().GetTail()); len(pieces) == 0 {
		v.find("gap", fmt.Sprintf("no chunk holds record %d", v.next), v.next, tail)
		v.skip(tail)
	}
	for i := range pieces {
		if err := v.piece(ctx, &pieces[i]); err != nil {
			return err
		}
	}
	return nil
}

// piece checks a chunk.
func (v *verification) piece(ctx context.Context, p *piece) error {
	d, err := parsed(ctx, p.at, v.svc.direct, func(b []byte) (decoded, error) { return p.parse(b, v.id) })
	if gone(err) && !v.stays(p.at) {
		return errAgain
	}
	if p.at.first != v.next && (!v.first || p.at.first > v.next) {
		v.find("gap", fmt.Sprintf("chunk starts at %d, %d is expected", p.at.first, v.next), v.next, p.at.first)
		v.known = false
	}
	v.first = false
	switch {
	case gone(err):
		v.find("missing", p.at.String()+" is not there", p.at.first, p.next)
	case errors.Is(err, errOther) && !p.slot:
		v.find("ref", p.at.String()+": "+err.Error(), p.at.first, p.next)
	case errors.Is(err, errDamaged):
		v.find("checksum", p.at.String()+": "+err.Error(), p.at.first, p.next)
	}
	switch {
	case gone(err), errors.Is(err, errDamaged):
		v.skip(p.next)
		return nil
	case err != nil:
		return err
	}
	v.chunk(&d, !p.slot)
	return nil
}

// chunk checks what intact bytes hold.
func (v *verification) chunk(d *decoded, settled bool) {
	first, next := d.header.BaseSeq, d.header.Next()
	if v.known && d.header.HashBefore != v.hash {
		v.find("content_hash", fmt.Sprintf("%s: content hash before %d is %016x, the records before it give %016x", d.at, first, d.header.HashBefore, v.hash), first, next)
	}
	if err := chunk.VerifyHash(&d.header, d.records); err != nil {
		v.find("content_hash", d.at.String()+": "+err.Error(), first, next)
	}
	for i := range d.records {
		r := &d.records[i]
		if r.Timestamp < v.last {
			v.find("timestamp", fmt.Sprintf("record %d at %d ms is before %d ms", r.Seq, r.Timestamp, v.last), r.Seq, r.Seq+1)
		}
		v.last = r.Timestamp
		if r.Seq < v.next {
			continue
		}
		v.out.Records++
		v.out.Bytes += uint64(r.Size())
		if settled {
			v.out.SettledRecords++
		}
	}
	v.next = max(v.next, next)
	v.hash, v.known = d.header.HashAfter, true
}
