package chunk

import (
	"encoding/binary"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/nova-stream/nova/libs/stream"
)

// HashRecord returns the content hash of a stream after r, where prev is the
// hash before it: XXH3-64 with seed 0 over prev and the canonical record, both
// as docs/formats.md says. scratch is overwritten and returned, grown if need
// be, for the next call; nil is good.
//
// The hash is part of the public contract and does not depend on how chunks
// encode records.
func HashRecord(prev stream.Hash, r *stream.Record, scratch []byte) (stream.Hash, []byte) {
	le := binary.LittleEndian
	b := le.AppendUint64(scratch[:0], uint64(prev))
	b = le.AppendUint64(b, uint64(r.Seq))
	b = le.AppendUint64(b, uint64(r.Timestamp))
	b = le.AppendUint32(b, uint32(len(r.Headers)))
	for i := range r.Headers {
		h := &r.Headers[i]
		b = le.AppendUint32(b, uint32(len(h.Name)))
		b = append(b, h.Name...)
		b = le.AppendUint32(b, uint32(len(h.Value)))
		b = append(b, h.Value...)
	}
	b = le.AppendUint32(b, uint32(len(r.Body)))
	b = append(b, r.Body...)
	return stream.Hash(xxh3.Hash(b)), b
}

// HashRecords returns the content hash after the records, in their order.
func HashRecords(prev stream.Hash, records []stream.Record) stream.Hash {
	var scratch []byte
	for i := range records {
		prev, scratch = HashRecord(prev, &records[i], scratch)
	}
	return prev
}

// VerifyHash reports, as an error wrapping ErrCorrupt, whether the records are
// not those that the header's content hashes were made of. Decode does not do
// it: its checksums cover the bytes, this covers the writer too.
func VerifyHash(h *Header, records []stream.Record) error {
	if uint64(len(records)) != uint64(h.Count) {
		return fmt.Errorf("%d records, the header says %d: %w", len(records), h.Count, ErrCorrupt)
	}
	hash := h.HashBefore
	for i := range h.Batches {
		n := h.Batches[i].Count
		hash = HashRecords(hash, records[:n])
		records = records[n:]
		if hash != h.Batches[i].HashAfter {
			return fmt.Errorf("content hash after batch %d is %016x, the header says %016x: %w", i, hash, h.Batches[i].HashAfter, ErrCorrupt)
		}
	}
	return nil
}
