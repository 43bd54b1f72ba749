package chunk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/nova-stream/nova/libs/stream"
)

// Input is what Encode makes a chunk of. Records carry their numbers and
// timestamps, which follow each other over all batches.
type Input struct {
	StreamID   stream.ID
	BaseSeq    stream.Seq
	HashBefore stream.Hash
	Batches    []InputBatch
}

// InputBatch is one append batch.
type InputBatch struct {
	Records  []stream.Record
	Producer stream.Producer
	Seal     bool
}

// Compression pays when it saves this share of a payload of at least this size.
const (
	compressMin   = 256 // bytes
	compressSaves = 10  // percent
)

// zstd's EncodeAll and DecodeAll are safe for concurrent use; one of each
// serves the process.
var (
	encoder = sync.OnceValue(func() *zstd.Encoder {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(false), zstd.WithWindowSize(1<<20))
		if err != nil {
			panic(err) // constant options
		}
		return e
	})
	decoder = sync.OnceValue(func() *zstd.Decoder {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(MaxRawBytes))
		if err != nil {
			panic(err) // constant options
		}
		return d
	})
	scratch = sync.Pool{New: func() any { return new([]byte) }}
)

// Encode appends a chunk to dst. It fails for input that is empty, out of
// order, or larger than MaxRawBytes.
func Encode(dst []byte, in Input) ([]byte, Header, error) {
	h := Header{Encoding: EncodingRecords, StreamID: in.StreamID, BaseSeq: in.BaseSeq, HashBefore: in.HashBefore}
	buf := scratch.Get().(*[]byte)
	hashBuf := scratch.Get().(*[]byte)
	defer func() {
		scratch.Put(buf)
		scratch.Put(hashBuf)
	}()
	raw := (*buf)[:0]
	hash, seq := in.HashBefore, in.BaseSeq
	var last stream.Millis
	h.Batches = make([]Batch, 0, len(in.Batches))
	for i := range in.Batches {
		b := &in.Batches[i]
		if len(b.Records) == 0 {
			return nil, Header{}, fmt.Errorf("encode chunk: batch %d is empty", i)
		}
		if len(b.Producer.ID) > stream.MaxTokenBytes {
			return nil, Header{}, fmt.Errorf("encode chunk: producer id of %d bytes, the limit is %d", len(b.Producer.ID), stream.MaxTokenBytes)
		}
		for j := range b.Records {
			r := &b.Records[j]
			if seq == in.BaseSeq {
				h.FirstTimestamp, last = r.Timestamp, r.Timestamp
			}
			if r.Seq != seq || r.Timestamp < last {
				return nil, Header{}, fmt.Errorf("encode chunk: record %d at %d ms does not follow %d at %d ms", r.Seq, r.Timestamp, seq-1, last)
			}
			raw = appendRecord(raw, r, last)
			hash, *hashBuf = HashRecord(hash, r, *hashBuf)
			last = r.Timestamp
			seq++
		}
		h.Batches = append(h.Batches, Batch{
			Count: uint32(len(b.Records)), Producer: b.Producer, Seal: b.Seal,
			FirstTimestamp: b.Records[0].Timestamp, LastTimestamp: last, HashAfter: hash,
		})
	}
	*buf = raw
	if len(h.Batches) == 0 || len(raw) > MaxRawBytes {
		return nil, Header{}, fmt.Errorf("encode chunk: %d batches of %d bytes, want 1.. of at most %d", len(h.Batches), len(raw), MaxRawBytes)
	}
	h.Count, h.LastTimestamp, h.HashAfter = uint32(seq-in.BaseSeq), last, hash
	h.RawLength = uint32(len(raw))

	payload := raw
	if len(raw) >= compressMin {
		out := scratch.Get().(*[]byte)
		defer scratch.Put(out)
		*out = encoder().EncodeAll(raw, (*out)[:0])
		if len(*out) <= len(raw)-len(raw)*compressSaves/100 {
			h.Compression, payload = CompressionZstd, *out
		}
	}
	h.PayloadLength, h.PayloadCRC = uint32(len(payload)), crc32.Checksum(payload, castagnoli)
	if dst == nil {
		dst = make([]byte, 0, fixedHeader+crcBytes+len(payload)+len(h.Batches)*128)
	}
	return append(appendHeader(dst, &h), payload...), h, nil
}

func appendRecord(dst []byte, r *stream.Record, last stream.Millis) []byte {
	dst = binary.AppendUvarint(dst, uint64(r.Timestamp-last))
	dst = binary.AppendUvarint(dst, uint64(len(r.Headers)))
	for i := range r.Headers {
		dst = binary.AppendUvarint(dst, uint64(len(r.Headers[i].Name)))
		dst = append(dst, r.Headers[i].Name...)
		dst = binary.AppendUvarint(dst, uint64(len(r.Headers[i].Value)))
		dst = append(dst, r.Headers[i].Value...)
	}
	dst = binary.AppendUvarint(dst, uint64(len(r.Body)))
	return append(dst, r.Body...)
}

// Check verifies the checksums and lengths of a whole chunk, without decoding
// its payload: what every hand-over does (I10).
func Check(b []byte) (Header, error) {
	h, _, err := split(b)
	return h, err
}

func split(b []byte) (Header, []byte, error) {
	h, n, err := ParseHeader(b)
	if err != nil {
		return Header{}, nil, err
	}
	payload := b[n:]
	if len(payload) != int(h.PayloadLength) {
		return Header{}, nil, fmt.Errorf("%w: payload of %d bytes, the header says %d", ErrCorrupt, len(payload), h.PayloadLength)
	}
	if crc := crc32.Checksum(payload, castagnoli); crc != h.PayloadCRC {
		return Header{}, nil, fmt.Errorf("%w: payload checksum %08x, want %08x", ErrCorrupt, crc, h.PayloadCRC)
	}
	return h, payload, nil
}

// Decode verifies and decodes a whole chunk. The records alias b or one buffer
// of their own; neither may be changed.
func Decode(b []byte) (Header, []stream.Record, error) {
	h, payload, err := split(b)
	if err != nil {
		return Header{}, nil, err
	}
	if h.Encoding != EncodingRecords {
		return Header{}, nil, fmt.Errorf("%w: payload encoding %d", ErrCorrupt, h.Encoding)
	}
	raw, err := decompress(&h, payload)
	if err != nil {
		return Header{}, nil, err
	}
	// A record takes at least 3 bytes, so a count cannot make this too large.
	if uint64(h.Count)*3 > uint64(len(raw)) {
		return Header{}, nil, fmt.Errorf("%w: %d records in %d bytes", ErrCorrupt, h.Count, len(raw))
	}
	records := make([]stream.Record, h.Count)
	c := cursor{b: raw}
	ts := h.FirstTimestamp
	for i := range records {
		ts += stream.Millis(c.uvarint())
		records[i].Seq = h.BaseSeq + stream.Seq(i)
		records[i].Timestamp = ts
		if n := c.uvarint(); n > 0 {
			if n > uint64(len(c.b)) {
				c.bad = true
				break
			}
			records[i].Headers = make([]stream.Header, n)
			for j := range records[i].Headers {
				records[i].Headers[j] = stream.Header{Name: c.bytes(c.uvarint()), Value: c.bytes(c.uvarint())}
			}
		}
		records[i].Body = c.bytes(c.uvarint())
		if c.bad {
			break
		}
	}
	if c.bad || len(c.b) != 0 || ts != h.LastTimestamp {
		return Header{}, nil, fmt.Errorf("%w: records do not fill the payload", ErrCorrupt)
	}
	return h, records, nil
}

func decompress(h *Header, payload []byte) ([]byte, error) {
	switch h.Compression {
	case CompressionNone:
		if h.RawLength != h.PayloadLength {
			return nil, fmt.Errorf("%w: %d raw bytes stored as %d", ErrCorrupt, h.RawLength, h.PayloadLength)
		}
		return payload, nil
	case CompressionZstd:
		raw, err := decoder().DecodeAll(payload, make([]byte, 0, h.RawLength))
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		if len(raw) != int(h.RawLength) {
			return nil, fmt.Errorf("%w: payload of %d bytes, the header says %d", ErrCorrupt, len(raw), h.RawLength)
		}
		return raw, nil
	}
	return nil, fmt.Errorf("%w: compression %d", ErrCorrupt, h.Compression)
}

// VerifyHash decodes nothing again: it hashes records and compares with the
// header's hashes, batch by batch.
func VerifyHash(h *Header, records []stream.Record) error {
	hash := h.HashBefore
	for i := range h.Batches {
		n := int(h.Batches[i].Count)
		if n > len(records) {
			return errors.Join(ErrCorrupt, fmt.Errorf("batch %d: %d records of %d", i, len(records), n))
		}
		hash = HashRecords(hash, records[:n])
		if hash != h.Batches[i].HashAfter {
			return fmt.Errorf("%w: content hash %016x after batch %d, want %016x", ErrCorrupt, hash, i, h.Batches[i].HashAfter)
		}
		records = records[n:]
	}
	return nil
}
