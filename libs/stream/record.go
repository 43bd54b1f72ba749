package stream

// Limits of one record and one batch. They are part of the public contract
// (docs/api.md) and therefore constants, not settings.
const (
	// MaxRecordBytes limits headers and body of one record together.
	MaxRecordBytes = 1 << 20
	// MaxBatchRecords limits the records of one append batch.
	MaxBatchRecords = 1000
	// MaxBatchBytes limits the record bytes (headers and bodies) of one batch.
	MaxBatchBytes = 3 << 20
	// MaxHeaders limits the headers of one record.
	MaxHeaders = 64
	// MaxHeaderName limits a header's name, in bytes.
	MaxHeaderName = 255
	// MaxHeaderValue limits a header's value, in bytes.
	MaxHeaderValue = 64 << 10
	// MaxTokenBytes limits fencing tokens, producer ids and request tokens.
	MaxTokenBytes = 64
	// MaxStreamName limits a stream's name, in bytes of UTF-8.
	MaxStreamName = 512
)

// Header is one name/value pair of a record. Order and repetition are kept.
type Header struct {
	Name  []byte
	Value []byte
}

// Record is one record of a stream. Its slices are immutable once handed over.
type Record struct {
	Seq       Seq
	Timestamp Millis
	Headers   []Header
	Body      []byte
}

// Size returns the bytes that count against MaxRecordBytes and MaxBatchBytes:
// header names, header values and body.
func (r *Record) Size() int {
	n := len(r.Body)
	for i := range r.Headers {
		n += len(r.Headers[i].Name) + len(r.Headers[i].Value)
	}
	return n
}

// Position orders the entries of one shard: by epoch, then by entry number.
// An epoch is bound to one chain, so this order is the chain order.
type Position struct {
	Epoch Epoch
	Entry EntryNo
}

// Less reports whether p comes before q.
func (p Position) Less(q Position) bool {
	return p.Epoch < q.Epoch || p.Epoch == q.Epoch && p.Entry < q.Entry
}

// Coordinates say where a committed entry lies: a byte range of the bundle in
// a slot of a chain.
type Coordinates struct {
	Chain  ChainID
	Slot   Slot
	Offset uint32 // bytes from the start of the bundle
	Length uint32 // bytes
}

// Producer names one batch of a producer session, for exactly-once resend.
// A zero ID means the batch had no producer.
type Producer struct {
	ID    string // 1..64 bytes
	Epoch uint64 // the higher epoch fences the lower
	Batch uint64 // batch_seq: 0, 1, 2, ... within the epoch
}
