// Package chunk is the format of a chunk: one or more whole append batches of
// one stream, encoded and checksummed once, by the sequencer, and carried
// unchanged through bundles, caches and settled objects to the reader.
//
// A chunk is a header and a payload. The header has a checksum of its own, so
// that its bytes can stand in the footer of a bundle and in a directory without
// the payload; it says everything that recovery needs to know of the chunk.
// The bytes are specified in docs/formats.md.
//
// Invariants:
//   - A chunk holds at least one batch and each batch at least one record;
//     numbers are contiguous from BaseSeq (I1) and timestamps never decrease (I9).
//   - No change of a bit and no truncation passes Check or Decode (I10).
//   - Nothing is allocated on the word of bytes that no checksum covers, and
//     never more than MaxRawBytes for a payload, however well it is compressed.
//   - Encoding the same input twice gives headers that differ at most in the
//     payload's fields.
package chunk

import (
	"errors"

	"github.com/nova-stream/nova/libs/stream"
)

// Version is the version of the format that is written.
const Version = 1

// Limits of one chunk.
const (
	// MaxRawBytes limits the payload before compression.
	MaxRawBytes = 8 << 20
	// MaxBatches limits the batches.
	MaxBatches = 4096
)

// ErrCorrupt means that bytes are not what was written: truncated, changed, or
// no chunk at all.
var ErrCorrupt = errors.New("chunk is corrupt")

// ErrVersion means that intact bytes have a version, encoding or compression
// that this program does not know: a newer one wrote them.
var ErrVersion = errors.New("chunk has an unknown version")

// ErrInput means that Encode was given what a chunk cannot hold.
var ErrInput = errors.New("chunk cannot hold this")

// Encoding says what the payload is once it is decompressed.
type Encoding uint8

// EncodingRecords is the encoding of records that docs/formats.md specifies.
const EncodingRecords Encoding = 1

// Compression says how the payload is compressed.
type Compression uint8

// The compressions.
const (
	CompressionNone Compression = 0
	// CompressionZstd is one Zstandard frame (RFC 8878).
	CompressionZstd Compression = 1
)

// Header is all that a chunk says of its records but the records.
type Header struct {
	StreamID stream.ID
	// BaseSeq is the number of the first record, Count how many there are (> 0).
	BaseSeq stream.Seq
	Count   uint32
	// FirstTimestamp and LastTimestamp are those of the first and last record.
	FirstTimestamp, LastTimestamp stream.Millis
	// HashBefore and HashAfter are the stream's content hash before the first
	// and after the last record.
	HashBefore, HashAfter stream.Hash
	Batches               []Batch

	Encoding    Encoding
	Compression Compression
	// RawLength and PayloadLength are the payload's bytes before and after
	// compression; PayloadCRC is the CRC32C of what is stored.
	RawLength, PayloadLength uint32
	PayloadCRC               uint32
}

// Next returns the number after the last record.
func (h *Header) Next() stream.Seq { return h.BaseSeq + stream.Seq(h.Count) }

// Batch is one append batch of a chunk.
type Batch struct {
	Count    uint32 // records, > 0
	Producer stream.Producer
	// Seal says that the append closed the stream: no batch follows it.
	Seal                          bool
	FirstTimestamp, LastTimestamp stream.Millis
	HashAfter                     stream.Hash
}

// Input is what Encode makes a chunk of.
type Input struct {
	StreamID   stream.ID
	BaseSeq    stream.Seq
	HashBefore stream.Hash
	Batches    []InputBatch
}

// InputBatch is one append batch. The records carry the numbers that follow
// BaseSeq without gaps, and timestamps that never decrease.
type InputBatch struct {
	Records  []stream.Record
	Producer stream.Producer
	Seal     bool
}
