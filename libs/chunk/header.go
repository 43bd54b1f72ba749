package chunk

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/nova-stream/nova/libs/stream"
)

// Layout of the header; docs/formats.md is its specification.
const (
	magic      = "NVCK"
	fixedBytes = 60 // up to the first batch
	batchBytes = 29 // of a batch without a producer
	crcBytes   = 4  // at the header's end
	minHeader  = fixedBytes + batchBytes + crcBytes
	maxHeader  = fixedBytes + MaxBatches*(batchBytes+1+stream.MaxTokenBytes+16) + crcBytes

	flagSeal     = 1 << 0
	flagProducer = 1 << 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// headerSize returns the bytes that appendHeader will write.
func headerSize(h *Header) int {
	n := fixedBytes + crcBytes
	for i := range h.Batches {
		n += batchBytes
		if id := h.Batches[i].Producer.ID; id != "" {
			n += 1 + len(id) + 16
		}
	}
	return n
}

func appendHeader(dst []byte, h *Header) []byte {
	le, start := binary.LittleEndian, len(dst)
	dst = append(dst, magic...)
	dst = append(dst, Version, byte(h.Encoding), byte(h.Compression), 0)
	dst = le.AppendUint32(dst, uint32(headerSize(h)))
	dst = le.AppendUint32(dst, uint32(len(h.Batches)))
	dst = append(dst, h.StreamID[:]...)
	dst = le.AppendUint64(dst, uint64(h.BaseSeq))
	dst = le.AppendUint64(dst, uint64(h.HashBefore))
	dst = le.AppendUint32(dst, h.RawLength)
	dst = le.AppendUint32(dst, h.PayloadLength)
	dst = le.AppendUint32(dst, h.PayloadCRC)
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
		dst = le.AppendUint32(dst, b.Count)
		dst = le.AppendUint64(dst, uint64(b.FirstTimestamp))
		dst = le.AppendUint64(dst, uint64(b.LastTimestamp))
		dst = le.AppendUint64(dst, uint64(b.HashAfter))
		if b.Producer.ID != "" {
			dst = append(dst, byte(len(b.Producer.ID)))
			dst = append(dst, b.Producer.ID...)
			dst = le.AppendUint64(dst, b.Producer.Epoch)
			dst = le.AppendUint64(dst, b.Producer.Batch)
		}
	}
	return le.AppendUint32(dst, crc32.Checksum(dst[start:], castagnoli))
}

// Anonymous returns the bytes of a header, with its checksum, that is like h but
// names no producers: who wrote is not for whoever reads.
func (h *Header) Anonymous() []byte {
	like := *h
	like.Batches = slices.Clone(h.Batches)
	for i := range like.Batches {
		like.Batches[i].Producer = stream.Producer{}
	}
	return appendHeader(make([]byte, 0, headerSize(&like)), &like)
}

// ParseHeader reads and verifies the header at the start of b and returns how
// many bytes it has. What follows is not looked at, so b may be a whole chunk
// or a header that was stored alone. Nothing in the result refers to b.
//
// Errors wrap ErrCorrupt or ErrVersion.
func ParseHeader(b []byte) (Header, int, error) {
	h, n, err := parseHeader(b)
	if err != nil {
		return Header{}, 0, fmt.Errorf("parse chunk header: %w", err)
	}
	return h, n, nil
}

func parseHeader(b []byte) (h Header, n int, err error) {
	le := binary.LittleEndian
	if len(b) < minHeader {
		return h, 0, fmt.Errorf("%d bytes: %w", len(b), ErrCorrupt)
	}
	if string(b[:4]) != magic {
		return h, 0, fmt.Errorf("no chunk starts with % x: %w", b[:4], ErrCorrupt)
	}
	length := le.Uint32(b[8:])
	if length < minHeader || length > maxHeader || uint64(length) > uint64(len(b)) {
		return h, 0, fmt.Errorf("header of %d bytes in %d: %w", length, len(b), ErrCorrupt)
	}
	n = int(length)
	end := n - crcBytes
	if got, want := crc32.Checksum(b[:end], castagnoli), le.Uint32(b[end:]); got != want {
		return h, 0, fmt.Errorf("header checksum %08x, want %08x: %w", got, want, ErrCorrupt)
	}
	// Length and checksum lie at the same place in every version, so what is
	// unknown from here on is new, not broken.
	h.Encoding, h.Compression = Encoding(b[5]), Compression(b[6])
	if b[4] != Version || h.Encoding != EncodingRecords || h.Compression > CompressionZstd || b[7] != 0 {
		return h, 0, fmt.Errorf("version %d, encoding %d, compression %d, flags %d: %w", b[4], b[5], b[6], b[7], ErrVersion)
	}
	copy(h.StreamID[:], b[16:])
	h.BaseSeq = stream.Seq(le.Uint64(b[32:]))
	h.HashBefore = stream.Hash(le.Uint64(b[40:]))
	h.RawLength = le.Uint32(b[48:])
	h.PayloadLength = le.Uint32(b[52:])
	h.PayloadCRC = le.Uint32(b[56:])
	batches := le.Uint32(b[12:])
	if batches == 0 || batches > MaxBatches || int(batches) > (end-fixedBytes)/batchBytes {
		return h, 0, fmt.Errorf("%d batches in a header of %d bytes: %w", batches, n, ErrCorrupt)
	}
	h.Batches = make([]Batch, batches)
	rest := b[fixedBytes:end]
	for i := range h.Batches {
		if rest, err = parseBatch(rest, &h.Batches[i]); err != nil {
			return h, 0, fmt.Errorf("batch %d: %w", i, err)
		}
	}
	if len(rest) != 0 {
		return h, 0, fmt.Errorf("%d bytes after the last batch: %w", len(rest), ErrCorrupt)
	}
	if err := h.derive(); err != nil {
		return h, 0, fmt.Errorf("%w: %w", err, ErrCorrupt)
	}
	return h, n, nil
}

func parseBatch(b []byte, batch *Batch) ([]byte, error) {
	le := binary.LittleEndian
	if len(b) < batchBytes {
		return nil, fmt.Errorf("%d bytes left: %w", len(b), ErrCorrupt)
	}
	flags := b[0]
	if flags&^(flagSeal|flagProducer) != 0 {
		return nil, fmt.Errorf("flags %02x: %w", flags, ErrVersion)
	}
	batch.Seal = flags&flagSeal != 0
	batch.Count = le.Uint32(b[1:])
	batch.FirstTimestamp = stream.Millis(le.Uint64(b[5:]))
	batch.LastTimestamp = stream.Millis(le.Uint64(b[13:]))
	batch.HashAfter = stream.Hash(le.Uint64(b[21:]))
	b = b[batchBytes:]
	if flags&flagProducer == 0 {
		return b, nil
	}
	if len(b) < 1 || len(b) < 1+int(b[0])+16 {
		return nil, fmt.Errorf("producer is cut off: %w", ErrCorrupt)
	}
	n := int(b[0])
	batch.Producer.ID = string(b[1 : 1+n])
	if n == 0 || n > stream.MaxTokenBytes {
		return nil, fmt.Errorf("producer id of %d bytes: %w", n, ErrCorrupt)
	}
	b = b[1+n:]
	batch.Producer.Epoch = le.Uint64(b)
	batch.Producer.Batch = le.Uint64(b[8:])
	return b[16:], nil
}

// derive fills what follows from the batches, and checks what must hold of any
// header. Writer and reader share it, so that nothing is written that cannot be
// read.
func (h *Header) derive() error {
	if h.RawLength == 0 || h.RawLength > MaxRawBytes || h.PayloadLength == 0 || h.PayloadLength > h.RawLength {
		return fmt.Errorf("payload of %d bytes, %d raw", h.PayloadLength, h.RawLength)
	}
	if h.Compression == CompressionNone && h.PayloadLength != h.RawLength {
		return fmt.Errorf("uncompressed payload of %d bytes, %d raw", h.PayloadLength, h.RawLength)
	}
	h.Count = 0
	h.FirstTimestamp = h.Batches[0].FirstTimestamp
	last := h.FirstTimestamp
	for i := range h.Batches {
		b := &h.Batches[i]
		switch {
		case b.Count == 0 || b.Count > stream.MaxBatchRecords:
			return fmt.Errorf("batch %d has %d records", i, b.Count)
		case b.FirstTimestamp < last || b.LastTimestamp < b.FirstTimestamp:
			return fmt.Errorf("batch %d: timestamps %d..%d after %d", i, b.FirstTimestamp, b.LastTimestamp, last)
		case b.Seal && i != len(h.Batches)-1:
			return fmt.Errorf("batch %d seals the stream and is not the last", i)
		}
		h.Count += b.Count
		last = b.LastTimestamp
		h.HashAfter = b.HashAfter
	}
	h.LastTimestamp = last
	if h.Next() < h.BaseSeq {
		return fmt.Errorf("%d records from %d", h.Count, h.BaseSeq)
	}
	return nil
}
