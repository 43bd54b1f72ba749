package chunk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/nova-stream/nova/libs/stream"
)

// ErrCorrupt means that bytes are damaged, cut short, or no chunk at all.
var ErrCorrupt = errors.New("corrupt chunk")

// Version is the format version that Encode writes.
const Version = 1

// Encoding says what a payload holds.
type Encoding uint8

// EncodingRecords: Nova's own records (docs/formats.md).
const EncodingRecords Encoding = 1

// Compression says how a payload is compressed.
type Compression uint8

// The compressions.
const (
	CompressionNone Compression = 0
	CompressionZstd Compression = 1
)

// Limits of a chunk.
const (
	// MaxRawBytes limits the payload before compression.
	MaxRawBytes = 8 << 20
	// MaxBatches limits the batches.
	MaxBatches = 1 << 16
	// MaxHeaderBytes limits the encoded header.
	MaxHeaderBytes = 16 << 20
)

// Header says what a chunk holds.
type Header struct {
	Encoding       Encoding
	Compression    Compression
	StreamID       stream.ID
	BaseSeq        stream.Seq
	Count          uint32 // records, at least 1
	FirstTimestamp stream.Millis
	LastTimestamp  stream.Millis
	HashBefore     stream.Hash
	HashAfter      stream.Hash
	RawLength      uint32 // bytes of the payload before compression
	PayloadLength  uint32 // bytes of the payload as stored
	PayloadCRC     uint32 // CRC32C of the payload as stored
	Batches        []Batch
}

// Batch is one append batch of a chunk: enough to answer a resend of it.
type Batch struct {
	Count          uint32 // records, at least 1
	Producer       stream.Producer
	Seal           bool // the stream is closed with this batch
	FirstTimestamp stream.Millis
	LastTimestamp  stream.Millis
	HashAfter      stream.Hash
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const (
	magic       = "NvC"
	fixedHeader = 3 + 1 + 4 + 1 + 1 + 16 + 8 + 4 + 8 + 8 + 8 + 8 + 4 + 4 + 4 + 4
	crcBytes    = 4

	flagSeal     = 1
	flagProducer = 2
)

// appendHeader encodes a header, with its checksum.
func appendHeader(dst []byte, h *Header) []byte {
	le := binary.LittleEndian
	start := len(dst)
	dst = append(dst, magic...)
	dst = append(dst, Version)
	dst = le.AppendUint32(dst, 0) // length, below
	dst = append(dst, byte(h.Encoding), byte(h.Compression))
	dst = append(dst, h.StreamID[:]...)
	dst = le.AppendUint64(dst, uint64(h.BaseSeq))
	dst = le.AppendUint32(dst, h.Count)
	dst = le.AppendUint64(dst, uint64(h.FirstTimestamp))
	dst = le.AppendUint64(dst, uint64(h.LastTimestamp))
	dst = le.AppendUint64(dst, uint64(h.HashBefore))
	dst = le.AppendUint64(dst, uint64(h.HashAfter))
	dst = le.AppendUint32(dst, h.RawLength)
	dst = le.AppendUint32(dst, h.PayloadLength)
	dst = le.AppendUint32(dst, h.PayloadCRC)
	dst = le.AppendUint32(dst, uint32(len(h.Batches)))
	for i := range h.Batches {
		b := &h.Batches[i]
		var flags byte
		if b.Seal {
			flags |= flagSeal
		}
		if b.Producer.ID != "" {
			flags |= flagProducer
		}
		dst = append(dst, flags)
		dst = binary.AppendUvarint(dst, uint64(b.Count))
		dst = binary.AppendVarint(dst, int64(b.FirstTimestamp-h.FirstTimestamp))
		dst = binary.AppendVarint(dst, int64(b.LastTimestamp-b.FirstTimestamp))
		dst = le.AppendUint64(dst, uint64(b.HashAfter))
		if flags&flagProducer != 0 {
			dst = append(dst, byte(len(b.Producer.ID)))
			dst = append(dst, b.Producer.ID...)
			dst = binary.AppendUvarint(dst, b.Producer.Epoch)
			dst = binary.AppendUvarint(dst, b.Producer.Batch)
		}
	}
	le.PutUint32(dst[start+4:], uint32(len(dst)-start+crcBytes))
	return le.AppendUint32(dst, crc32.Checksum(dst[start:], castagnoli))
}

// ParseHeader decodes the header at the start of b and returns its length.
// What follows it is not looked at.
func ParseHeader(b []byte) (Header, int, error) {
	le := binary.LittleEndian
	if len(b) < fixedHeader+crcBytes {
		return Header{}, 0, fmt.Errorf("%w: %d bytes are no header", ErrCorrupt, len(b))
	}
	if string(b[:3]) != magic {
		return Header{}, 0, fmt.Errorf("%w: magic %x", ErrCorrupt, b[:3])
	}
	if b[3] != Version {
		return Header{}, 0, fmt.Errorf("%w: format version %d, this program reads %d", ErrCorrupt, b[3], Version)
	}
	n := int(le.Uint32(b[4:]))
	if n < fixedHeader+crcBytes || n > MaxHeaderBytes || n > len(b) {
		return Header{}, 0, fmt.Errorf("%w: header of %d bytes in %d", ErrCorrupt, n, len(b))
	}
	body := b[:n-crcBytes]
	if got, want := crc32.Checksum(body, castagnoli), le.Uint32(b[n-crcBytes:]); got != want {
		return Header{}, 0, fmt.Errorf("%w: header checksum %08x, want %08x", ErrCorrupt, got, want)
	}
	h := Header{
		Encoding: Encoding(b[8]), Compression: Compression(b[9]), StreamID: stream.ID(b[10:26]),
		BaseSeq: stream.Seq(le.Uint64(b[26:])), Count: le.Uint32(b[34:]),
		FirstTimestamp: stream.Millis(le.Uint64(b[38:])), LastTimestamp: stream.Millis(le.Uint64(b[46:])),
		HashBefore: stream.Hash(le.Uint64(b[54:])), HashAfter: stream.Hash(le.Uint64(b[62:])),
		RawLength: le.Uint32(b[70:]), PayloadLength: le.Uint32(b[74:]), PayloadCRC: le.Uint32(b[78:]),
	}
	r := cursor{b: body[fixedHeader:]}
	batches := le.Uint32(b[82:])
	if batches == 0 || batches > MaxBatches || int(batches) > len(r.b) {
		return Header{}, 0, fmt.Errorf("%w: %d batches", ErrCorrupt, batches)
	}
	h.Batches = make([]Batch, batches)
	for i := range h.Batches {
		r.batch(&h, &h.Batches[i])
	}
	if r.bad || len(r.b) != 0 {
		return Header{}, 0, fmt.Errorf("%w: batches do not fill the header", ErrCorrupt)
	}
	return h, n, h.check()
}

// check tests what the checksum cannot: that the fields agree.
func (h *Header) check() error {
	var count uint64
	for i := range h.Batches {
		if h.Batches[i].Count == 0 {
			return fmt.Errorf("%w: batch %d is empty", ErrCorrupt, i)
		}
		count += uint64(h.Batches[i].Count)
	}
	switch {
	case count != uint64(h.Count):
		return fmt.Errorf("%w: batches hold %d records, the header says %d", ErrCorrupt, count, h.Count)
	case h.Batches[len(h.Batches)-1].HashAfter != h.HashAfter:
		return fmt.Errorf("%w: the last batch's hash is not the chunk's", ErrCorrupt)
	case h.LastTimestamp < h.FirstTimestamp:
		return fmt.Errorf("%w: timestamps go back", ErrCorrupt)
	case uint64(h.BaseSeq) > math.MaxUint64-count:
		return fmt.Errorf("%w: numbers overflow", ErrCorrupt)
	case h.RawLength > MaxRawBytes || h.PayloadLength > MaxRawBytes:
		return fmt.Errorf("%w: payload of %d bytes, %d stored; the limit is %d", ErrCorrupt, h.RawLength, h.PayloadLength, MaxRawBytes)
	}
	return nil
}

// cursor reads fields off a slice; bad is set at the first that is not there.
type cursor struct {
	b   []byte
	bad bool
}

func (c *cursor) uvarint() uint64 {
	v, n := binary.Uvarint(c.b)
	if n <= 0 {
		c.bad, c.b = true, nil
		return 0
	}
	c.b = c.b[n:]
	return v
}

func (c *cursor) varint() int64 {
	v, n := binary.Varint(c.b)
	if n <= 0 {
		c.bad, c.b = true, nil
		return 0
	}
	c.b = c.b[n:]
	return v
}

// bytes returns the next n bytes, aliasing the input.
func (c *cursor) bytes(n uint64) []byte {
	if n > uint64(len(c.b)) {
		c.bad, c.b = true, nil
		return nil
	}
	v := c.b[:n:n]
	c.b = c.b[n:]
	return v
}

func (c *cursor) byte() byte {
	if b := c.bytes(1); len(b) == 1 {
		return b[0]
	}
	return 0
}

func (c *cursor) uint64() uint64 {
	if b := c.bytes(8); len(b) == 8 {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (c *cursor) batch(h *Header, b *Batch) {
	flags := c.byte()
	if flags&^(flagSeal|flagProducer) != 0 {
		c.bad = true
	}
	b.Seal = flags&flagSeal != 0
	count := c.uvarint()
	if count > math.MaxUint32 {
		c.bad = true
	}
	b.Count = uint32(count)
	b.FirstTimestamp = h.FirstTimestamp + stream.Millis(c.varint())
	b.LastTimestamp = b.FirstTimestamp + stream.Millis(c.varint())
	b.HashAfter = stream.Hash(c.uint64())
	if flags&flagProducer != 0 {
		b.Producer.ID = string(c.bytes(uint64(c.byte())))
		if b.Producer.ID == "" {
			c.bad = true
		}
		b.Producer.Epoch = c.uvarint()
		b.Producer.Batch = c.uvarint()
	}
}
