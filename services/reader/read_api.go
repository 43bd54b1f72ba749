package reader

import (
	"context"

	"github.com/nova-stream/nova/libs/optional"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// Read returns one page.
func (s *Service) Read(ctx context.Context, req *novapb.ReadRequest) (*novapb.ReadResponse, error) {
	var out *novapb.ReadResponse
	page := func(ctx context.Context) error {
		return s.withStream(ctx, req, func(id stream.ID, key *sequencerpb.StreamKey) error {
			var err error
			out, err = s.read(ctx, id, key, req)
			return err
		})
	}
	var err error
	if req.GetWaitMs() == 0 {
		err = page(ctx)
	} else {
		// A stop does not wait for what may never come.
		err = s.whileRunning(ctx, page)
	}
	return out, err
}

func (s *Service) read(ctx context.Context, id stream.ID, key *sequencerpb.StreamKey, req *novapb.ReadRequest) (*novapb.ReadResponse, error) {
	fetch := &sequencerpb.FetchRequest{Stream: key, Clamp: req.GetClamp(), MaxBytes: pageBytes, WaitMs: req.GetWaitMs()}
	c := cursor{limits: limitsOf(req)}
	switch at := req.GetStart().(type) {
	case *novapb.ReadRequest_Seq:
		fetch.Start = &sequencerpb.FetchRequest_Seq{Seq: at.Seq}
	case *novapb.ReadRequest_Timestamp:
		fetch.Start = &sequencerpb.FetchRequest_Timestamp{Timestamp: at.Timestamp}
		from := stream.Millis(at.Timestamp)
		c.from = &from
	case *novapb.ReadRequest_TailOffset:
		fetch.Start = &sequencerpb.FetchRequest_TailOffset{TailOffset: at.TailOffset}
	}
	limit := pageBytes
	if c.exhausted() {
		// Reads nothing, successfully: but the start must still be a good one.
		fetch.WaitMs, fetch.MaxBytes, limit = 0, 1, 1
	}
	memory := s.share(pageBytes)
	defer memory.release()
	var p page
	var out *novapb.ReadResponse
	// The answer is of the moment of the first fetch, whatever is trimmed and
	// appended until the last: what was there then does not change.
	var state *sequencerpb.StreamState
	for {
		want := c.demand(limit - p.size)
		if req.GetChunks() && c.from == nil && len(p.records) == 0 {
			want = c.demand(packedBytes/2 - p.decoded)
			want.whole = limit - p.size
		}
		f, err := s.fetch(ctx, id, fetch, memory, want)
		if err != nil && out != nil {
			// What is gathered is a page, whatever became of what follows: a trim may
			// have passed it, or the leader moved.
			break
		}
		if err != nil {
			return nil, err
		}
		if out == nil {
			c.next, state = f.start, f.state
			end := stream.Seq(state.GetTail())
			c.end = &end
		}
		full, err := c.page(&p, f.chunks, want.whole > 0)
		if err != nil {
			return nil, s.misfit(ctx, id, err)
		}
		out = &novapb.ReadResponse{
			Records: p.records, Chunks: p.chunks, NextSeq: uint64(c.next), Tail: state.GetTail(), FirstSeq: state.GetTrim(), StreamId: id.String(),
			HashBefore: uint64(p.before), HashAfter: uint64(p.after), LimitReached: c.done,
			EndOfStream: state.GetSealed() && uint64(c.next) == state.GetTail(),
		}
		// Chunks are small where appends are: gather until the page is worth it.
		if full || c.done || len(f.chunks) == 0 || uint64(c.next) >= state.GetTail() || p.size > pageBytes/2 || p.decoded > packedBytes/4 {
			break
		}
		fetch = &sequencerpb.FetchRequest{Stream: key, Start: &sequencerpb.FetchRequest_Seq{Seq: uint64(c.next)}, MaxBytes: pageBytes}
	}
	s.records.Add(ctx, int64(p.count))
	s.bytes.Add(ctx, int64(p.recordsSize))
	return out, nil
}

// limited is a read or a subscription.
type limited interface {
	HasCount() bool
	GetCount() uint64
	HasBytes() bool
	GetBytes() uint64
	HasUntil() bool
	GetUntil() int64
}

func limitsOf(r limited) limits {
	return limits{
		count: optional.Of(r.HasCount(), r.GetCount()), bytes: optional.Of(r.HasBytes(), r.GetBytes()),
		until: optional.Of(r.HasUntil(), r.GetUntil()),
	}
}
