package reader

import (
	"fmt"
	"math"

	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// Bounds of one message to a client, in bytes of records with what encoding
// adds: a page stays under 3 MiB, a subscription's message under 1 MiB unless
// one record is larger.
const (
	pageBytes    = 2900 << 10
	messageBytes = 1 << 20
	recordCost   = 40
	headerCost   = 12
)

// limits are what a request allows; they shrink as records are taken.
type limits struct {
	count, bytes *uint64
	until        *int64
}

// exhausted reports whether nothing more may be taken.
func (l *limits) exhausted() bool {
	return l.count != nil && *l.count == 0 || l.bytes != nil && *l.bytes == 0
}

// records returns how many records may be taken at most.
func (l *limits) records() uint64 {
	if l.count != nil {
		return *l.count
	}
	return math.MaxUint64
}

func (l *limits) take(size uint64) {
	if l.count != nil {
		*l.count--
	}
	if l.bytes != nil {
		*l.bytes -= min(*l.bytes, size)
	}
}

// cursor is where a read is.
type cursor struct {
	next stream.Seq
	// from skips records before a time, until the first that is not.
	from *stream.Millis
	limits
	end   *stream.Seq // no record from it on; nil: no end
	taken bool        // a record was returned already
	done  bool        // a limit was reached

	after stream.Hash // content hash before next; valid when taken
}

// demand returns what a fetch for the cursor may get, of size bytes.
func (c *cursor) demand(size int) demand {
	if c.bytes != nil {
		size = int(min(uint64(size), max(1, *c.bytes)))
	}
	return demand{size: size, records: c.records(), skip: c.from != nil}
}

// page is a run of records for one message.
type page struct {
	records       []*novapb.Record
	before, after stream.Hash
	size          int    // bytes, as encoded
	recordsSize   uint64 // bytes of headers and bodies
	scratch       []byte
}

// fill takes records from chunks until a limit or the size of a message is
// reached; it returns whether the message is full. The chunks are continuous, and
// the first holds next; an error says that they do not follow what was taken.
func (c *cursor) fill(p *page, chunks []decoded, size int) (full bool, err error) {
	for i := range chunks {
		d := &chunks[i]
		for j := range d.records {
			r := &d.records[j]
			if r.Seq < c.next {
				continue
			}
			if c.end != nil && r.Seq >= *c.end {
				return true, nil
			}
			if c.from != nil {
				if r.Timestamp < *c.from {
					c.next = r.Seq + 1
					continue
				}
				c.from = nil
			}
			if c.exhausted() || c.until != nil && int64(r.Timestamp) >= *c.until {
				c.done = true
				return true, nil
			}
			n := uint64(r.Size())
			if c.bytes != nil && n > *c.bytes && c.taken {
				c.done = true
				return true, nil
			}
			cost := int(n) + recordCost + len(r.Headers)*headerCost
			if len(p.records) > 0 && p.size+cost > size {
				return true, nil
			}
			if err := c.follows(p, d, j); err != nil {
				return false, err
			}
			p.add(d, j, cost)
			c.after = p.after
			p.recordsSize += n
			c.take(n)
			c.taken = true
			c.next = r.Seq + 1
		}
	}
	// Without this, a reader at its limit would be told to read on.
	c.done = c.done || c.exhausted()
	return false, nil
}

// follows checks that record j of a chunk continues what was taken in an earlier
// fetch or message; within one, fetch did.
func (c *cursor) follows(p *page, d *decoded, j int) error {
	if !c.taken || len(p.records) > 0 && j > 0 {
		return nil
	}
	if before := hashAt(d, j, &p.scratch); before != c.after {
		return d.damaged(fmt.Sprintf("content hash %016x does not continue %016x", before, c.after))
	}
	return nil
}

// add appends record j of a chunk and keeps the content hashes around the page.
func (p *page) add(d *decoded, j, cost int) {
	if len(p.records) == 0 {
		p.before = hashAt(d, j, &p.scratch)
		p.after = p.before
	}
	r := &d.records[j]
	if j == len(d.records)-1 {
		p.after = d.header.HashAfter
	} else {
		p.after, p.scratch = chunk.HashRecord(p.after, r, p.scratch)
	}
	p.size += cost
	p.records = append(p.records, message(r))
}

// hashAt returns the content hash before record j of a chunk.
func hashAt(d *decoded, j int, scratch *[]byte) stream.Hash {
	h := d.header.HashBefore
	for i := range j {
		h, *scratch = chunk.HashRecord(h, &d.records[i], *scratch)
	}
	return h
}

func message(r *stream.Record) *novapb.Record {
	m := &novapb.Record{Seq: uint64(r.Seq), Timestamp: int64(r.Timestamp), Body: r.Body}
	if len(r.Headers) > 0 {
		m.Headers = make([]*novapb.Header, len(r.Headers))
		for i := range r.Headers {
			m.Headers[i] = &novapb.Header{Name: r.Headers[i].Name, Value: r.Headers[i].Value}
		}
	}
	return m
}
