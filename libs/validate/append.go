package validate

import (
	"fmt"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

type batchFields interface {
	GetRecords() []*novapb.AppendRecord
	GetFencingToken() string
	GetSeal() bool
}

// batch checks one append batch; path is the prefix of its fields.
func batch(path string, b batchFields) error {
	if err := token(path+"fencing_token", b.GetFencingToken()); err != nil {
		return err
	}
	n := len(b.GetRecords())
	if n == 0 && !b.GetSeal() || n > stream.MaxBatchRecords {
		return reason.Field(path+"records", fmt.Sprintf("must hold 1..%d records, holds %d", stream.MaxBatchRecords, n))
	}
	total := 0
	for i, r := range b.GetRecords() {
		size, err := record(func() string { return fmt.Sprintf("%srecords[%d]", path, i) }, r)
		if err != nil {
			return err
		}
		total += size
	}
	if total > stream.MaxBatchBytes {
		return reason.Field(path+"records", fmt.Sprintf("must hold at most %d bytes of headers and bodies, hold %d", stream.MaxBatchBytes, total))
	}
	return nil
}

// record checks a record and returns its size. path names it; a good record does
// not need a name, and there are many.
func record(path func() string, r *novapb.AppendRecord) (int, error) {
	if timestamp("", r.GetTimestamp()) != nil {
		return 0, timestamp(path()+".timestamp", r.GetTimestamp())
	}
	if n := len(r.GetHeaders()); n > stream.MaxHeaders {
		return 0, reason.Field(path()+".headers", fmt.Sprintf("must be at most %d, are %d", stream.MaxHeaders, n))
	}
	size := len(r.GetBody())
	for i, h := range r.GetHeaders() {
		if n := len(h.GetName()); n < 1 || n > stream.MaxHeaderName {
			return 0, reason.Field(fmt.Sprintf("%s.headers[%d].name", path(), i), fmt.Sprintf("must be 1..%d bytes, is %d", stream.MaxHeaderName, n))
		}
		if n := len(h.GetValue()); n > stream.MaxHeaderValue {
			return 0, reason.Field(fmt.Sprintf("%s.headers[%d].value", path(), i), fmt.Sprintf("must be at most %d bytes, is %d", stream.MaxHeaderValue, n))
		}
		size += len(h.GetName()) + len(h.GetValue())
	}
	if size > stream.MaxRecordBytes {
		return 0, reason.Field(path(), fmt.Sprintf("headers and body must be at most %d bytes, are %d", stream.MaxRecordBytes, size))
	}
	return size, nil
}

func producer(path, id string, epoch, batchSeq uint64) error {
	if id == "" {
		if epoch != 0 {
			return reason.Field(path+"producer_epoch", "needs a producer_id")
		}
		if batchSeq != 0 {
			return reason.Field(path+"batch_seq", "needs a producer_id")
		}
		return nil
	}
	return token(path+"producer_id", id)
}

// session checks one message of an append session. That open comes first, and
// only first, is the session's to check.
func session(r *novapb.AppendSessionRequest) error {
	switch m := r.GetMessage().(type) {
	case *novapb.AppendSessionRequest_Open:
		return first(Bucket("open.bucket", m.Open.GetBucket()), StreamName("open.stream", m.Open.GetStream()), ulid("open.stream_id", m.Open.GetStreamId()),
			producer("open.", m.Open.GetProducerId(), m.Open.GetProducerEpoch(), 0))
	case *novapb.AppendSessionRequest_Batch:
		return batch("batch.", m.Batch)
	}
	return reason.Field("message", "must be open or batch")
}
