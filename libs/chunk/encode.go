package chunk

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"

	"github.com/klauspost/compress"
	"github.com/klauspost/compress/zstd"

	"github.com/nova-stream/nova/libs/stream"
)

const (
	// compressFrom is the payload size from which compression is tried.
	compressFrom = 256
	// sampleFrom is the payload size from which samples decide whether it is.
	sampleFrom, samples, sampleBytes = 32 << 10, 4, 1 << 10
	// promise is the least estimate of a sample that may be worth compressing;
	// random bytes have some hundredths, text several tenths.
	promise = 0.1
	// pooledBytes limits the buffers that are kept between calls: chunks of the
	// largest batches use them again, what is beyond is rare.
	pooledBytes = 5 << 20
)

// encoder is shared: EncodeAll is safe for concurrent use and starts nothing.
// The payload's CRC32C makes the frame's own checksum superfluous.
var encoder = sync.OnceValue(func() *zstd.Encoder {
	e, err := zstd.NewWriter(nil,
		zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(false), zstd.WithLowerEncoderMem(true))
	if err != nil {
		panic(err) // only options out of range, and they are constants
	}
	return e
})

type buffers struct{ raw, packed, hash, head []byte }

var pool = sync.Pool{New: func() any { return new(buffers) }}

func (b *buffers) free() {
	if cap(b.raw) <= pooledBytes && cap(b.packed) <= pooledBytes && cap(b.hash) <= pooledBytes {
		pool.Put(b)
	}
}

// Encode appends the chunk of in to dst and returns it with its header. The
// input is only read and nothing of it is referred to afterwards. Encode is
// safe for concurrent use.
//
// Errors wrap ErrInput: no records, a limit of libs/stream or of this package,
// numbers with a gap, decreasing timestamps. dst is then returned unchanged.
func Encode(dst []byte, in Input) ([]byte, Header, error) {
	buf := pool.Get().(*buffers)
	defer buf.free()
	h := Header{
		StreamID: in.StreamID, BaseSeq: in.BaseSeq, HashBefore: in.HashBefore,
		Encoding: EncodingRecords, Batches: make([]Batch, len(in.Batches)),
	}
	if len(in.Batches) == 0 || len(in.Batches) > MaxBatches {
		return dst, Header{}, fmt.Errorf("encode chunk: %d batches: %w", len(in.Batches), ErrInput)
	}
	if err := buf.records(&in, &h); err != nil {
		return dst, Header{}, fmt.Errorf("encode chunk: %w: %w", err, ErrInput)
	}
	payload := buf.raw
	if len(buf.raw) >= compressFrom && buf.promising() {
		buf.packed = encoder().EncodeAll(buf.raw, buf.packed[:0])
		if len(buf.packed) <= len(buf.raw)/10*9 {
			h.Compression, payload = CompressionZstd, buf.packed
		}
	}
	h.RawLength, h.PayloadLength = uint32(len(buf.raw)), uint32(len(payload))
	h.PayloadCRC = crc32.Checksum(payload, castagnoli)
	if err := h.derive(); err != nil {
		return dst, Header{}, fmt.Errorf("encode chunk: %w: %w", err, ErrInput)
	}
	if cap(dst)-len(dst) < headerSize(&h)+len(payload) {
		// Memory of just this size, that is not cleared before it is written.
		buf.head = appendHeader(buf.head[:0], &h)
		return bytes.Join([][]byte{dst, buf.head, payload}, nil), h, nil
	}
	dst = appendHeader(dst, &h)
	return append(dst, payload...), h, nil
}

// promising reports whether the raw payload may be worth compressing: of a large
// one, whether any sample of it looks so. Data that is compressed already costs
// little more than its copy then.
func (b *buffers) promising() bool {
	if len(b.raw) < sampleFrom {
		return true
	}
	for i := range samples {
		at := i * (len(b.raw) - sampleBytes) / (samples - 1)
		if compress.Estimate(b.raw[at:at+sampleBytes]) >= promise {
			return true
		}
	}
	return false
}

// RawBound returns at least as many bytes as the records take in a chunk before
// compression. Whoever gathers batches keeps its sum below MaxRawBytes; it also
// counts records and headers that have no bytes of their own, so that it bounds
// what a reader's memory must hold. A batch within the limits of libs/stream is
// below MaxRawBytes by itself.
func RawBound(records []stream.Record) int {
	n := 0
	for i := range records {
		r := &records[i]
		n += maxRecordOverhead + len(r.Headers)*maxHeaderOverhead + r.Size()
	}
	return n
}

const (
	maxRecordOverhead = binary.MaxVarintLen64 + 1 + 3 // later, header count, body length
	maxHeaderOverhead = 2 + 3                         // name length, value length
)

// records encodes the records into raw and fills the header's batches.
func (b *buffers) records(in *Input, h *Header) error {
	bound := 0
	for i := range in.Batches {
		bound += RawBound(in.Batches[i].Records)
	}
	// What is beyond the limit is refused below.
	b.raw = slices.Grow(b.raw[:0], min(bound, MaxRawBytes))
	seq, hash := in.BaseSeq, in.HashBefore
	var last stream.Millis
	for i := range in.Batches {
		from, to := &in.Batches[i], &h.Batches[i]
		n := len(from.Records)
		if n == 0 || n > stream.MaxBatchRecords {
			return fmt.Errorf("batch %d has %d records", i, n)
		}
		if len(from.Producer.ID) > stream.MaxTokenBytes {
			return fmt.Errorf("batch %d: producer id of %d bytes", i, len(from.Producer.ID))
		}
		if i == 0 {
			last = from.Records[0].Timestamp
		}
		for k := range from.Records {
			r := &from.Records[k]
			if r.Seq != seq || r.Timestamp < last {
				return fmt.Errorf("batch %d: record %d at %d follows %d at %d", i, r.Seq, r.Timestamp, seq, last)
			}
			if err := b.record(r, uint64(r.Timestamp-last)); err != nil {
				return fmt.Errorf("record %d: %w", r.Seq, err)
			}
			hash, b.hash = HashRecord(hash, r, b.hash)
			last = r.Timestamp
			seq++
		}
		*to = Batch{
			Count: uint32(n), Producer: from.Producer, Seal: from.Seal,
			FirstTimestamp: from.Records[0].Timestamp, LastTimestamp: last, HashAfter: hash,
		}
		if from.Producer.ID == "" {
			to.Producer = stream.Producer{}
		}
	}
	return nil
}

// record appends one record; later is how long after the one before it.
func (b *buffers) record(r *stream.Record, later uint64) error {
	if len(r.Headers) > stream.MaxHeaders {
		return fmt.Errorf("%d headers", len(r.Headers))
	}
	if n := r.Size(); n > stream.MaxRecordBytes {
		return fmt.Errorf("%d bytes", n)
	}
	raw := binary.AppendUvarint(b.raw, later)
	raw = binary.AppendUvarint(raw, uint64(len(r.Headers)))
	for i := range r.Headers {
		f := &r.Headers[i]
		if len(f.Name) > stream.MaxHeaderName || len(f.Value) > stream.MaxHeaderValue {
			return fmt.Errorf("header %d has %d bytes of name and %d of value", i, len(f.Name), len(f.Value))
		}
		raw = binary.AppendUvarint(raw, uint64(len(f.Name)))
		raw = append(raw, f.Name...)
		raw = binary.AppendUvarint(raw, uint64(len(f.Value)))
		raw = append(raw, f.Value...)
	}
	raw = binary.AppendUvarint(raw, uint64(len(r.Body)))
	b.raw = append(raw, r.Body...)
	if len(b.raw) > MaxRawBytes {
		return fmt.Errorf("the payload passes %d bytes", MaxRawBytes)
	}
	return nil
}
