package reader

import (
	"fmt"
	"math"
	"slices"
	"sort"

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
	// Of a chunk that is passed on whole: what its header and encoding add, without
	// batches, and per batch.
	chunkCost = 100
	batchCost = 29
	// packedBytes bounds what the chunks of a page decode to, with recordCost; what
	// is fetched for a page stops at half of it.
	packedBytes = chunk.MaxRawBytes
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

// page is a run of records for one message: as records, or as whole chunks.
type page struct {
	records       []*novapb.Record
	chunks        []*novapb.Chunk
	before, after stream.Hash
	size          int    // bytes, as encoded
	decoded       int    // bytes that the chunks decode to, about
	count         int    // records
	recordsSize   uint64 // bytes of headers and bodies
	slab          []novapb.Record
	scratch       []byte
}

// fill takes records from chunks until a limit or the size of a message is
// reached; it returns whether the message is full. The chunks are continuous, and
// the first holds next; an error says that they do not follow what was taken.
func (c *cursor) fill(p *page, chunks []decoded, size int) (full bool, err error) {
	for i := range chunks {
		d := &chunks[i]
		from, to, full := c.part(p, d, size)
		if from < to {
			if err := c.follows(p, d, from); err != nil {
				return false, err
			}
			p.add(d, from, to)
			c.after = p.after
			c.taken = true
		}
		if full {
			return true, nil
		}
	}
	// Without this, a reader at its limit would be told to read on.
	c.done = c.done || c.exhausted()
	return false, nil
}

// part takes the records from..to of a chunk: up to a limit, or until the message
// is full.
func (c *cursor) part(p *page, d *decoded, size int) (from, to int, full bool) {
	from = sort.Search(len(d.records), func(j int) bool { return d.records[j].Seq >= c.next })
	for to = from; to < len(d.records); to++ {
		r := &d.records[to]
		if c.end != nil && r.Seq >= *c.end {
			return from, to, true
		}
		if c.from != nil {
			if r.Timestamp < *c.from {
				c.next, from = r.Seq+1, to+1
				continue
			}
			c.from = nil
		}
		if c.exhausted() || c.until != nil && int64(r.Timestamp) >= *c.until {
			c.done = true
			return from, to, true
		}
		n := uint64(r.Size())
		if c.bytes != nil && n > *c.bytes && (c.taken || from < to) {
			c.done = true
			return from, to, true
		}
		cost := int(n) + recordCost + len(r.Headers)*headerCost
		if (len(p.records) > 0 || from < to) && p.size+cost > size {
			return from, to, true
		}
		p.size += cost
		p.recordsSize += n
		c.take(n)
		c.next = r.Seq + 1
	}
	return from, to, false
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

// add appends records from..to of a chunk and keeps the content hashes around the
// page.
func (p *page) add(d *decoded, from, to int) {
	if len(p.records) == 0 {
		p.before = hashAt(d, from, &p.scratch)
	}
	p.after = hashAt(d, to, &p.scratch)
	p.records = slices.Grow(p.records, to-from)
	p.count += to - from
	for j := from; j < to; j++ {
		if len(p.slab) == 0 {
			p.slab = make([]novapb.Record, min(to-j, slabRecords))
		}
		p.records = append(p.records, message(&p.slab[0], &d.records[j]))
		p.slab = p.slab[1:]
	}
}

// slabRecords share one allocation.
const slabRecords = 128

// hashAt returns the content hash before record j of a chunk. The header knows it
// between batches.
func hashAt(d *decoded, j int, scratch *[]byte) stream.Hash {
	h, at := d.header.HashBefore, 0
	for i := range d.header.Batches {
		b := &d.header.Batches[i]
		if at+int(b.Count) > j {
			break
		}
		h, at = b.HashAfter, at+int(b.Count)
	}
	for ; at < j; at++ {
		h, *scratch = chunk.HashRecord(h, &d.records[at], *scratch)
	}
	return h
}

// message makes r into m.
func message(m *novapb.Record, r *stream.Record) *novapb.Record {
	m.Seq, m.Timestamp, m.Body = uint64(r.Seq), int64(r.Timestamp), r.Body
	if len(r.Headers) > 0 {
		m.Headers = make([]*novapb.Header, len(r.Headers))
		for i := range r.Headers {
			m.Headers[i] = &novapb.Header{Name: r.Headers[i].Name, Value: r.Headers[i].Value}
		}
	}
	return m
}

// page fills a page, or packs it if the chunks are whole and fit. What does not
// fit is at an end of what is wanted: one chunk of it is given as records, so that
// the next page has chunks again.
func (c *cursor) page(p *page, chunks []decoded, whole bool) (full bool, err error) {
	if !whole || len(chunks) == 0 {
		return c.fill(p, chunks, pageBytes)
	}
	if len(p.chunks) > 0 || c.fits(p, &chunks[0]) {
		return c.pack(p, chunks)
	}
	if err := chunks[0].open(); err != nil {
		return false, err
	}
	_, err = c.fill(p, chunks[:1], pageBytes)
	return true, err
}

// pack takes whole chunks until one does not fit or the message is full, like
// fill. None may fit.
func (c *cursor) pack(p *page, chunks []decoded) (full bool, err error) {
	for i := range chunks {
		d := &chunks[i]
		if c.exhausted() {
			c.done = true
			return true, nil
		}
		if !c.fits(p, d) {
			return true, nil
		}
		h := &d.header
		if c.taken && h.HashBefore != c.after {
			return false, d.damaged(fmt.Sprintf("content hash %016x does not continue %016x", h.HashBefore, c.after))
		}
		if len(p.chunks) == 0 {
			p.before = h.HashBefore
		}
		m := &novapb.Chunk{Header: h.Anonymous(), Payload: d.payload}
		p.chunks = append(p.chunks, m)
		p.size += len(m.Header) + len(m.Payload) + chunkCost
		p.decoded += d.size
		p.count += int(h.Count)
		p.recordsSize += uint64(h.RawLength)
		p.after, c.after, c.taken, c.next = h.HashAfter, h.HashAfter, true, h.Next()
		if c.count != nil {
			*c.count -= uint64(h.Count)
		}
		if c.bytes != nil {
			*c.bytes -= uint64(h.RawLength)
		}
	}
	c.done = c.done || c.exhausted()
	return false, nil
}

// fits reports whether a chunk may be taken as a whole: all its records are
// wanted, whatever they are, and there is room for them.
func (c *cursor) fits(p *page, d *decoded) bool {
	h := &d.header
	switch {
	case h.BaseSeq != c.next, c.from != nil, c.end != nil && h.Next() > *c.end:
		return false
	case c.count != nil && uint64(h.Count) > *c.count, c.until != nil && int64(h.LastTimestamp) >= *c.until:
		return false
	case c.bytes != nil && uint64(h.RawLength) >= *c.bytes:
		// Encoded records are larger: what is left then is less than what is, and not
		// nothing.
		return false
	}
	header := len(h.Batches) * batchCost
	return p.size+header+len(d.payload)+2*chunkCost <= pageBytes && p.decoded+d.size <= packedBytes
}
