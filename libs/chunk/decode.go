package chunk

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/nova-stream/nova/libs/stream"
)

// decoder is shared: DecodeAll is safe for concurrent use and starts nothing.
// It writes no more than the capacity it is given, whatever a frame claims.
var decoder = sync.OnceValue(func() *zstd.Decoder {
	d, err := zstd.NewReader(nil,
		zstd.WithDecoderConcurrency(0), zstd.WithDecodeAllCapLimit(true),
		zstd.WithDecoderMaxMemory(MaxRawBytes), zstd.WithDecoderMaxWindow(MaxRawBytes))
	if err != nil {
		panic(err) // only options out of range, and they are constants
	}
	return d
})

// Check verifies both checksums of a whole chunk without decompressing it, and
// returns its header: what whoever hands a chunk on has to look at.
//
// Errors wrap ErrCorrupt or ErrVersion.
func Check(b []byte) (Header, error) {
	h, _, err := split(b)
	if err != nil {
		return Header{}, fmt.Errorf("check chunk: %w", err)
	}
	return h, nil
}

// Split is Check that also returns the payload as it is stored, perhaps
// compressed. It refers to b.
//
// Errors wrap ErrCorrupt or ErrVersion.
func Split(b []byte) (Header, []byte, error) {
	h, payload, err := split(b)
	if err != nil {
		return Header{}, nil, fmt.Errorf("split chunk: %w", err)
	}
	return h, payload, nil
}

// split verifies the checksums and returns header and stored payload.
func split(b []byte) (Header, []byte, error) {
	h, n, err := parseHeader(b)
	if err != nil {
		return h, nil, err
	}
	return h, b[n:], verify(&h, b[n:])
}

// verify compares a payload with what its header says of it.
func verify(h *Header, payload []byte) error {
	if uint64(len(payload)) != uint64(h.PayloadLength) {
		return fmt.Errorf("payload of %d bytes, the header says %d: %w", len(payload), h.PayloadLength, ErrCorrupt)
	}
	if got := crc32.Checksum(payload, castagnoli); got != h.PayloadCRC {
		return fmt.Errorf("payload checksum %08x, want %08x: %w", got, h.PayloadCRC, ErrCorrupt)
	}
	return nil
}

// Decode verifies a whole chunk and returns its header and records. The records
// refer to b, or to a buffer of their own if the payload was compressed: b must
// not change while they are in use. Empty names, values and bodies may be nil.
//
// Errors wrap ErrCorrupt or ErrVersion.
func Decode(b []byte) (Header, []stream.Record, error) { return DecodeFrom(b, 0) }

// DecodeFrom is Decode for a reader that wants only the records from a number
// on: it verifies as much, and keeps less. There may be none.
func DecodeFrom(b []byte, from stream.Seq) (Header, []stream.Record, error) {
	h, payload, err := split(b)
	var records []stream.Record
	if err == nil {
		records, err = open(&h, payload, from)
	}
	if err != nil {
		return Header{}, nil, fmt.Errorf("decode chunk: %w", err)
	}
	return h, records, nil
}

// Join is Decode of a chunk whose header and payload come apart. The records
// refer to the payload, as Decode's do to its bytes.
//
// Errors wrap ErrCorrupt or ErrVersion.
func Join(header, payload []byte) (Header, []stream.Record, error) {
	h, n, err := parseHeader(header)
	if err == nil && n != len(header) {
		err = fmt.Errorf("header of %d bytes in %d: %w", n, len(header), ErrCorrupt)
	}
	if err == nil {
		err = verify(&h, payload)
	}
	var records []stream.Record
	if err == nil {
		records, err = open(&h, payload, 0)
	}
	if err != nil {
		return Header{}, nil, fmt.Errorf("join chunk: %w", err)
	}
	return h, records, nil
}

// Open returns the records of a chunk that Split has verified.
//
// Errors wrap ErrCorrupt.
func Open(h *Header, payload []byte) ([]stream.Record, error) {
	records, err := open(h, payload, 0)
	if err != nil {
		return nil, fmt.Errorf("open chunk: %w", err)
	}
	return records, nil
}

func open(h *Header, payload []byte, from stream.Seq) ([]stream.Record, error) {
	raw, err := unpack(h, payload)
	if err != nil {
		return nil, err
	}
	return parseRecords(h, raw, from)
}

func unpack(h *Header, payload []byte) ([]byte, error) {
	if h.Compression == CompressionNone {
		return payload, nil
	}
	raw, err := decoder().DecodeAll(payload, make([]byte, 0, h.RawLength))
	if err != nil {
		return nil, fmt.Errorf("decompress: %w: %w", err, ErrCorrupt)
	}
	if uint64(len(raw)) != uint64(h.RawLength) {
		return nil, fmt.Errorf("decompressed to %d bytes, the header says %d: %w", len(raw), h.RawLength, ErrCorrupt)
	}
	return raw, nil
}

// minRecord is the least a record takes: later, header count, body length.
const minRecord = 3

func parseRecords(h *Header, raw []byte, from stream.Seq) ([]stream.Record, error) {
	if uint64(h.Count)*minRecord > uint64(len(raw)) {
		return nil, fmt.Errorf("%d records in %d bytes: %w", h.Count, len(raw), ErrCorrupt)
	}
	skip := uint32(min(uint64(max(from, h.BaseSeq)-h.BaseSeq), uint64(h.Count)))
	records := make([]stream.Record, h.Count-skip)
	var dropped stream.Record
	p := parser{rest: raw}
	at, last := uint32(0), h.FirstTimestamp
	for i := range h.Batches {
		b := &h.Batches[i]
		var first stream.Millis
		for k := range b.Count {
			r := &dropped
			if at >= skip {
				r = &records[at-skip]
			}
			r.Seq = h.BaseSeq + stream.Seq(at)
			r.Timestamp = last + stream.Millis(p.uvarint())
			p.record(r, at >= skip)
			// A sum beyond the last instant comes out below.
			if p.bad || r.Timestamp < last {
				return nil, fmt.Errorf("record %d does not parse: %w", r.Seq, ErrCorrupt)
			}
			if last = r.Timestamp; k == 0 {
				first = last
			}
			at++
		}
		if first != b.FirstTimestamp || last != b.LastTimestamp {
			return nil, fmt.Errorf("batch %d: timestamps %d..%d, the header says %d..%d: %w",
				i, first, last, b.FirstTimestamp, b.LastTimestamp, ErrCorrupt)
		}
	}
	if len(p.rest) != 0 {
		return nil, fmt.Errorf("%d bytes after the last record: %w", len(p.rest), ErrCorrupt)
	}
	return records, nil
}

// parser reads a raw payload. Once it is bad it stays so and returns zeros.
type parser struct {
	rest    []byte
	bad     bool
	headers []stream.Header // room for the headers of records to come
}

func (p *parser) uvarint() uint64 {
	// Most lengths have one byte.
	if len(p.rest) > 0 && p.rest[0] < 0x80 {
		v := p.rest[0]
		p.rest = p.rest[1:]
		return uint64(v)
	}
	v, n := binary.Uvarint(p.rest)
	if n <= 0 {
		p.fail()
		return 0
	}
	p.rest = p.rest[n:]
	return v
}

func (p *parser) bytes(limit int) []byte {
	n := p.uvarint()
	if n > uint64(limit) || n > uint64(len(p.rest)) {
		p.fail()
		return nil
	}
	// The capacity ends with the field: who appends to it copies it.
	b := p.rest[:n:n]
	p.rest = p.rest[n:]
	return b
}

func (p *parser) fail() { p.bad, p.rest = true, nil }

// record parses the rest of a record into r; its headers only if keep.
func (p *parser) record(r *stream.Record, keep bool) {
	n := p.uvarint()
	if n > stream.MaxHeaders {
		p.fail()
		return
	}
	if keep && n > 0 {
		r.Headers = p.room(int(n))
	}
	size := 0
	for i := range n {
		f := stream.Header{Name: p.bytes(stream.MaxHeaderName), Value: p.bytes(stream.MaxHeaderValue)}
		size += len(f.Name) + len(f.Value)
		if keep {
			r.Headers[i] = f
		}
	}
	r.Body = p.bytes(stream.MaxRecordBytes)
	if size+len(r.Body) > stream.MaxRecordBytes {
		p.fail()
	}
}

// room returns n headers, from one allocation for many records.
func (p *parser) room(n int) []stream.Header {
	if len(p.headers) < n {
		p.headers = make([]stream.Header, 4*stream.MaxHeaders)
	}
	h := p.headers[:n:n]
	p.headers = p.headers[n:]
	return h
}
