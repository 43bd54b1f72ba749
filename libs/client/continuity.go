package client

import (
	"fmt"

	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// continuity sees that records follow each other: their numbers, and the
// content hash over everything in them. The zero value expects nothing of the
// first record.
type continuity struct {
	placed bool // next is known
	next   uint64
	any    bool // a record was there: hash is known
	hash   uint64
}

// run is what one message says.
type run struct {
	records       []*novapb.Record
	before, after uint64 // content hashes
	next          uint64 // the number that follows
}

// expect says which number comes first.
func (c *continuity) expect(next uint64) { c.placed, c.next = true, next }

// limited is a request with limits.
type limited interface {
	HasCount() bool
	GetCount() uint64
	SetCount(uint64)
	HasBytes() bool
	GetBytes() uint64
	SetBytes(uint64)
}

// follow checks a run against what was before, and lowers what is left of the
// request's limits for another one. seeking: the server may pass over records until
// the first that it returns. It returns how many of the records are within the
// byte limit; a server cannot know of records it sent on another request.
func (c *continuity) follow(r run, seeking bool, req limited) (int, error) {
	if len(r.records) == 0 {
		if c.placed && r.next != c.next {
			return 0, fmt.Errorf("no record, and the next one is %d, want %d: %w", r.next, c.next, ErrBroken)
		}
		if !seeking {
			c.expect(r.next)
		}
		return 0, nil
	}
	first := r.records[0].GetSeq()
	if c.placed && first != c.next {
		return 0, fmt.Errorf("record %d, want %d: %w", first, c.next, ErrBroken)
	}
	if c.any && r.before != c.hash {
		return 0, fmt.Errorf("content hash %016x before record %d, want %016x: %w", r.before, first, c.hash, ErrBroken)
	}
	hash := stream.Hash(r.before)
	within, left := 0, req.GetBytes()
	var scratch []byte
	for i, pb := range r.records {
		if want := first + uint64(i); pb.GetSeq() != want {
			return 0, fmt.Errorf("record %d, want %d: %w", pb.GetSeq(), want, ErrBroken)
		}
		rec := stream.Record{Seq: stream.Seq(pb.GetSeq()), Timestamp: stream.Millis(pb.GetTimestamp()), Headers: headersOf(pb.GetHeaders()), Body: pb.GetBody()}
		hash, scratch = chunk.HashRecord(hash, &rec, scratch)
		size := uint64(rec.Size())
		if within < i || req.HasBytes() && size > left && (c.any || i > 0) {
			continue // beyond the limit
		}
		within++
		left -= min(left, size)
	}
	if uint64(hash) != r.after {
		return 0, fmt.Errorf("content hash %016x after record %d, want %016x: %w", r.after, first+uint64(len(r.records))-1, uint64(hash), ErrBroken)
	}
	c.expect(first + uint64(len(r.records)))
	if r.next != c.next {
		return 0, fmt.Errorf("the number after record %d is said to be %d: %w", c.next-1, r.next, ErrBroken)
	}
	c.any, c.hash = true, r.after
	if req.HasBytes() {
		req.SetBytes(left)
	}
	if req.HasCount() {
		req.SetCount(req.GetCount() - min(req.GetCount(), uint64(within)))
	}
	return within, nil
}
