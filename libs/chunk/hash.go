package chunk

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"

	"github.com/nova-stream/nova/libs/stream"
)

// HashRecord returns the running content hash after a record:
// xxh3-64 of the previous hash (8 bytes little endian) and the record's
// canonical bytes (docs/formats.md). scratch is reused and returned.
func HashRecord(prev stream.Hash, r *stream.Record, scratch []byte) (stream.Hash, []byte) {
	le := binary.LittleEndian
	b := le.AppendUint64(scratch[:0], uint64(prev))
	b = le.AppendUint64(b, uint64(r.Seq))
	b = le.AppendUint64(b, uint64(r.Timestamp))
	b = le.AppendUint32(b, uint32(len(r.Headers)))
	for i := range r.Headers {
		b = le.AppendUint32(b, uint32(len(r.Headers[i].Name)))
		b = append(b, r.Headers[i].Name...)
		b = le.AppendUint32(b, uint32(len(r.Headers[i].Value)))
		b = append(b, r.Headers[i].Value...)
	}
	b = le.AppendUint32(b, uint32(len(r.Body)))
	b = append(b, r.Body...)
	return stream.Hash(xxh3.Hash(b)), b
}

// HashRecords returns the running content hash after all records.
func HashRecords(prev stream.Hash, records []stream.Record) stream.Hash {
	var scratch []byte
	for i := range records {
		prev, scratch = HashRecord(prev, &records[i], scratch)
	}
	return prev
}
