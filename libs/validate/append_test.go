package validate

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

func records(n, size int) []*novapb.AppendRecord {
	out := make([]*novapb.AppendRecord, n)
	for i := range out {
		out[i] = &novapb.AppendRecord{Body: make([]byte, size)}
	}
	return out
}

func headers(n, name, value int) []*novapb.AppendRecord {
	r := &novapb.AppendRecord{}
	for range n {
		r.Headers = append(r.Headers, &novapb.Header{Name: make([]byte, name), Value: make([]byte, value)})
	}
	return []*novapb.AppendRecord{r}
}

// Every limit of a batch is kept by the single append and by a session alike,
// and the largest that is allowed is accepted.
func TestBatchLimits(t *testing.T) {
	ts := func(ms int64) []*novapb.AppendRecord {
		return []*novapb.AppendRecord{{TimestampPresence: &novapb.AppendRecord_Timestamp{Timestamp: ms}}}
	}
	for _, c := range []struct {
		what    string
		records []*novapb.AppendRecord
		seal    bool
		want    string
	}{
		{"one empty record", records(1, 0), false, ""},
		{"most records", records(stream.MaxBatchRecords, 1), false, ""},
		{"too many records", records(stream.MaxBatchRecords+1, 1), false, "records"},
		{"no record", nil, false, "records"},
		{"no record, but a seal", nil, true, ""},
		{"too many records and a seal", records(stream.MaxBatchRecords+1, 0), true, "records"},
		{"largest record", records(1, stream.MaxRecordBytes), false, ""},
		{"record above", records(1, stream.MaxRecordBytes+1), false, "records[0]"},
		{"largest batch", records(3, stream.MaxBatchBytes/3), false, ""},
		{"batch above", append(records(3, stream.MaxBatchBytes/3), records(1, 1)...), false, "records"},
		{"most headers", headers(stream.MaxHeaders, 1, 0), false, ""},
		{"too many headers", headers(stream.MaxHeaders+1, 1, 0), false, "records[0].headers"},
		{"longest name", headers(1, stream.MaxHeaderName, 0), false, ""},
		{"name above", headers(1, stream.MaxHeaderName+1, 0), false, "records[0].headers[0].name"},
		{"no name", headers(1, 0, 1), false, "records[0].headers[0].name"},
		{"longest value", headers(1, 1, stream.MaxHeaderValue), false, ""},
		{"value above", headers(1, 1, stream.MaxHeaderValue+1), false, "records[0].headers[0].value"},
		{"headers count against the record", headers(17, 1, stream.MaxHeaderValue), false, "records[0]"},
		{"first timestamp", ts(0), false, ""},
		{"last timestamp", ts(MaxTimestamp), false, ""},
		{"timestamp above", ts(MaxTimestamp + 1), false, "records[0].timestamp"},
		{"timestamp below", ts(-1), false, "records[0].timestamp"},
	} {
		inSession := c.want
		if inSession != "" {
			inSession = "batch." + inSession
		}
		run(t, []row{
			{c.what, &novapb.AppendRequest{Bucket: "bucket", Stream: "s", Records: c.records, Seal: c.seal}, c.want},
			{c.what + ", in a session", &novapb.AppendSessionRequest{Message: &novapb.AppendSessionRequest_Batch{
				Batch: &novapb.AppendSessionBatch{Records: c.records, Seal: c.seal},
			}}, inSession},
		})
	}
}

// Who is refused here knows that nothing was stored, and need not look.
func TestRefusedWritesSayTheirOutcome(t *testing.T) {
	for _, m := range []proto.Message{
		&novapb.AppendRequest{}, &novapb.AppendSessionRequest{}, &novapb.TrimRequest{}, &novapb.SealStreamRequest{}, &novapb.SetFencingTokenRequest{},
	} {
		if err := Request(m); err == nil || reason.OutcomeOf(err) != reason.NotCommitted {
			t.Errorf("%T: %v has outcome %q, want %q", m, err, reason.OutcomeOf(err), reason.NotCommitted)
		}
	}
	if err := Request(&novapb.ReadRequest{}); err == nil || reason.OutcomeOf(err) != "" {
		t.Errorf("a read: %v has outcome %q, want none", err, reason.OutcomeOf(err))
	}
}

func TestSessionMessages(t *testing.T) {
	open := func(o *novapb.AppendSessionOpen) proto.Message {
		o.Stream = "s"
		return &novapb.AppendSessionRequest{Message: &novapb.AppendSessionRequest_Open{Open: o}}
	}
	run(t, []row{
		{"neither open nor batch", &novapb.AppendSessionRequest{}, "message"},
		{"open", open(&novapb.AppendSessionOpen{Bucket: "bucket"}), ""},
		{"open without a bucket", open(&novapb.AppendSessionOpen{}), "open.bucket"},
		{"open with a producer", open(&novapb.AppendSessionOpen{Bucket: "bucket", ProducerId: "p", ProducerEpoch: 3}), ""},
		{"open with a long producer", open(&novapb.AppendSessionOpen{Bucket: "bucket", ProducerId: strings.Repeat("p", stream.MaxTokenBytes+1)}), "open.producer_id"},
		{"open with an epoch of nobody", open(&novapb.AppendSessionOpen{Bucket: "bucket", ProducerEpoch: 3}), "open.producer_epoch"},
	})
}
