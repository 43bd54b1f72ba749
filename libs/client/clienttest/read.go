package clienttest

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/optional"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

type readService struct {
	novapb.UnimplementedReadServiceServer

	s *Server
}

// cursor is a read under way.
type cursor struct {
	next         uint64
	from         *int64 // pass over records before it
	count, bytes *uint64
	until        *int64
	taken, done  bool
}

// place finds the start; offset and at are given or nil.
func (c *cursor) place(st *state, seq *uint64, at *int64, offset *uint64, clamp bool) error {
	switch {
	case seq != nil:
		c.next = *seq
		if clamp {
			c.next = min(max(c.next, st.trim), st.tail())
		}
	case offset != nil:
		c.next = max(st.trim, st.tail()-min(st.tail(), *offset))
	default:
		c.next, c.from = st.trim, at
	}
	return c.check(st)
}

func (c *cursor) check(st *state) error {
	switch {
	case c.next < st.trim:
		return reason.New(codes.OutOfRange, reason.Trimmed, fmt.Sprintf("record %d is trimmed, the first is %d", c.next, st.trim), reason.KeyFirstSeq, reason.Text(st.trim))
	case c.next > st.tail():
		return reason.New(codes.OutOfRange, reason.BeyondTail, fmt.Sprintf("record %d is beyond the tail %d", c.next, st.tail()), reason.KeyTail, reason.Text(st.tail()))
	}
	return nil
}

// fill takes what fits into one message.
func (c *cursor) fill(st *state, most int) (out []*novapb.Record) {
	const messageBytes = 2900 << 10
	size := 0
	for c.next < st.tail() {
		r := st.records[c.next]
		if c.from != nil && r.GetTimestamp() < *c.from {
			c.next++
			continue
		}
		n := uint64(len(r.GetBody()))
		for _, h := range r.GetHeaders() {
			n += uint64(len(h.GetName()) + len(h.GetValue()))
		}
		switch {
		case c.exhausted(), c.until != nil && r.GetTimestamp() >= *c.until, c.bytes != nil && n > *c.bytes && c.taken:
			c.done = true
			return out
		case len(out) > 0 && size+int(n) > messageBytes, most > 0 && len(out) == most:
			return out
		}
		c.from, c.taken = nil, true
		size += int(n)
		out = append(out, r)
		c.next++
		if c.count != nil {
			*c.count--
		}
		if c.bytes != nil {
			*c.bytes -= min(*c.bytes, n)
		}
	}
	return out
}

func (c *cursor) exhausted() bool {
	return c.count != nil && *c.count == 0 || c.bytes != nil && *c.bytes == 0
}

func limitsOf(r interface {
	HasCount() bool
	GetCount() uint64
	HasBytes() bool
	GetBytes() uint64
	HasUntil() bool
	GetUntil() int64
}) cursor {
	return cursor{
		count: optional.Of(r.HasCount(), r.GetCount()), bytes: optional.Of(r.HasBytes(), r.GetBytes()),
		until: optional.Of(r.HasUntil(), r.GetUntil()),
	}
}

func (st *state) around(records []*novapb.Record) (before, after uint64) {
	if len(records) == 0 {
		return 0, 0
	}
	first := records[0].GetSeq()
	return uint64(st.hash(first)), uint64(st.hash(first + uint64(len(records))))
}

func (rs readService) Read(ctx context.Context, r *novapb.ReadRequest) (*novapb.ReadResponse, error) {
	if err := check(r); err != nil {
		return nil, err
	}
	if err := rs.s.at(Paging); err != nil {
		return nil, err
	}
	st, err := rs.s.find(ctx, r)
	if err != nil {
		return nil, err
	}
	rs.s.mu.Lock()
	defer rs.s.mu.Unlock()
	c := limitsOf(r)
	var seq, offset *uint64
	var at *int64
	switch v := r.GetStart().(type) {
	case *novapb.ReadRequest_Seq:
		seq = &v.Seq
	case *novapb.ReadRequest_Timestamp:
		at = &v.Timestamp
	case *novapb.ReadRequest_TailOffset:
		offset = &v.TailOffset
	}
	if err := c.place(st, seq, at, offset, r.GetClamp()); err != nil {
		return nil, err
	}
	records := c.fill(st, rs.s.MaxPage)
	before, after := st.around(records)
	page := &novapb.ReadResponse{
		Records: records, NextSeq: c.next, Tail: st.tail(), FirstSeq: st.trim, StreamId: st.info.GetStreamId(),
		HashBefore: before, HashAfter: after, LimitReached: c.done, EndOfStream: st.sealed && c.next == st.tail(),
	}
	if r.GetChunks() && rs.s.Chunks != nil && len(records) > 0 {
		for i := range records {
			c, err := st.chunk(records[i])
			if err != nil {
				return nil, err
			}
			rs.s.Chunks(c)
			page.Chunks = append(page.Chunks, c)
		}
		page.Records = nil
	}
	return page, nil
}

// chunk encodes a record.
func (st *state) chunk(r *novapb.Record) (*novapb.Chunk, error) {
	id, err := stream.ParseID(st.info.GetStreamId())
	if err != nil {
		return nil, err
	}
	rec := stream.Record{Seq: stream.Seq(r.GetSeq()), Timestamp: stream.Millis(r.GetTimestamp()), Body: r.GetBody()}
	for _, h := range r.GetHeaders() {
		rec.Headers = append(rec.Headers, stream.Header{Name: h.GetName(), Value: h.GetValue()})
	}
	b, _, err := chunk.Encode(nil, chunk.Input{
		StreamID: id, BaseSeq: rec.Seq, HashBefore: st.hash(r.GetSeq()), Batches: []chunk.InputBatch{{Records: []stream.Record{rec}}},
	})
	if err != nil {
		return nil, err
	}
	_, n, err := chunk.ParseHeader(b)
	return &novapb.Chunk{Header: b[:n], Payload: b[n:]}, err
}

func (rs readService) Subscribe(r *novapb.SubscribeRequest, srv novapb.ReadService_SubscribeServer) error {
	if err := check(r); err != nil {
		return err
	}
	if _, err := rs.s.find(srv.Context(), r); err != nil {
		return err
	}
	c := limitsOf(r)
	var seq, offset *uint64
	var at *int64
	switch v := r.GetStart().(type) {
	case *novapb.SubscribeRequest_Seq:
		seq = &v.Seq
	case *novapb.SubscribeRequest_Timestamp:
		at = &v.Timestamp
	case *novapb.SubscribeRequest_TailOffset:
		offset = &v.TailOffset
	}
	beat := time.NewTicker(time.Duration(max(r.GetHeartbeatMs(), 1)) * time.Millisecond)
	defer beat.Stop()
	for first := true; ; first = false {
		rs.s.mu.Lock()
		st, err := rs.s.findLocked(r)
		if err == nil && first {
			err = c.place(st, seq, at, offset, r.GetClamp())
		} else if err == nil {
			err = c.check(st)
		}
		if err != nil {
			rs.s.mu.Unlock()
			return err
		}
		start := c.next
		records := c.fill(st, rs.s.MaxPage)
		m := &novapb.SubscribeResponse{Records: records, NextSeq: c.next, Tail: st.tail(), StreamId: st.info.GetStreamId()}
		m.HashBefore, m.HashAfter = st.around(records)
		sealed, changed := st.sealed && c.next == st.tail(), rs.s.changed
		rs.s.mu.Unlock()
		if first || c.next > start {
			if err := rs.send(srv, m); err != nil {
				return err
			}
			if !c.done && !c.exhausted() && !sealed {
				continue
			}
		}
		if c.done || c.exhausted() || sealed {
			return nil
		}
		select {
		case <-changed:
		case <-beat.C:
			if err := rs.send(srv, &novapb.SubscribeResponse{NextSeq: c.next, Tail: m.GetTail(), StreamId: m.GetStreamId()}); err != nil {
				return err
			}
		case <-srv.Context().Done():
			return srv.Context().Err()
		}
	}
}

func (rs readService) send(srv novapb.ReadService_SubscribeServer, m *novapb.SubscribeResponse) error {
	if err := rs.s.at(Messages); err != nil {
		return err
	}
	return srv.Send(m)
}

func (rs readService) CheckTail(ctx context.Context, r *novapb.CheckTailRequest) (*novapb.CheckTailResponse, error) {
	st, err := rs.s.find(ctx, r)
	if err != nil {
		return nil, err
	}
	rs.s.mu.Lock()
	defer rs.s.mu.Unlock()
	out := &novapb.CheckTailResponse{Tail: st.tail(), FirstSeq: st.trim, ContentHash: uint64(st.hash(st.tail())), StreamId: st.info.GetStreamId(), Sealed: st.sealed}
	if st.tail() > 0 {
		out.LastTimestamp = st.records[st.tail()-1].GetTimestamp()
	}
	return out, nil
}
