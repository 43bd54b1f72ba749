package integration

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/libs/validate"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// The rows of the services that write and read.
func init() {
	for name, m := range map[string]methodFields{
		"AppendService/Append": {
			verb: "POST", path: streamPath + "/records",
			base: func(at target, _ string) proto.Message {
				return &novapb.AppendRequest{Bucket: at.bucket, Stream: at.stream, StreamId: at.id, Records: oneRecord()}
			},
			fields: fields(map[string]field{
				"producer_epoch": nobodys, "batch_seq": nobodys,
			}, byID, batchOf("", nil), map[string]field{"producer_id": newToken}),
		},
		"AppendService/AppendSession": {
			base: func(at target, path string) proto.Message {
				if path == "" || path[:len("open")] == "open" {
					open := &novapb.AppendSessionOpen{Bucket: at.bucket, Stream: at.stream, StreamId: at.id}
					return &novapb.AppendSessionRequest{Message: &novapb.AppendSessionRequest_Open{Open: open}}
				}
				return batch(&novapb.AppendSessionBatch{Records: oneRecord()})
			},
			fields: fields(batchOf("batch.", map[string]field{
				"batch_seq": {bad: []badValue{{what: "not the next", value: 1, code: codes.FailedPrecondition, reason: reason.ProducerGap, limit: "0"}}},
			}), under("open.", byID),
				map[string]field{"open.producer_id": newToken, "open.producer_epoch": nobodys}),
		},
		"AppendService/Trim": {
			verb: "POST", path: streamPath + "/trim",
			base: func(at target, _ string) proto.Message {
				return &novapb.TrimRequest{Bucket: at.bucket, Stream: at.stream, StreamId: at.id, Seq: 1}
			},
			fields: fields(map[string]field{
				"seq":           {bad: beyondTail, good: []any{0, 3}},
				"fencing_token": fencingToken,
			}, byID),
		},
		"AppendService/SealStream": {
			verb: "POST", path: streamPath + "/seal",
			base: func(at target, _ string) proto.Message {
				return &novapb.SealStreamRequest{Bucket: at.bucket, Stream: at.stream, StreamId: at.id}
			},
			fields: fields(map[string]field{"match_seq": matchSeq, "fencing_token": fencingToken}, byID),
		},
		"AppendService/SetFencingToken": {
			verb: "PUT", path: streamPath + "/fence",
			base: func(at target, _ string) proto.Message {
				return &novapb.SetFencingTokenRequest{Bucket: at.bucket, Stream: at.stream, StreamId: at.id, Token: "new"}
			},
			fields: fields(map[string]field{"token": newToken, "fencing_token": fencingToken}, byID),
		},
		"ReadService/Read": {
			verb: "GET", path: streamPath + "/records",
			base: func(at target, _ string) proto.Message {
				return &novapb.ReadRequest{Bucket: at.bucket, Stream: at.stream, StreamId: at.id}
			},
			fields: fields(map[string]field{
				"wait_ms":  {bad: []badValue{{what: "long", value: validate.MaxWaitMillis + 1, limit: "60000"}}, good: []any{validate.MaxWaitMillis}},
				"stale_ok": anyBool,
				"chunks":   anyBool,
			}, byID, positions),
		},
		"ReadService/Subscribe": {
			base: func(at target, _ string) proto.Message {
				return &novapb.SubscribeRequest{Bucket: at.bucket, Stream: at.stream, StreamId: at.id, CountPresence: &novapb.SubscribeRequest_Count{Count: 1}}
			},
			fields: fields(map[string]field{
				"heartbeat_ms": {
					bad: []badValue{
						{what: "short", value: validate.MinHeartbeat - 1, limit: "100..60000"},
						{what: "long", value: validate.MaxWaitMillis + 1, limit: "100..60000"},
					},
					good: []any{0, validate.MinHeartbeat, validate.MaxWaitMillis},
				},
				// Others would wait at the tail.
				"seq": {bad: beyondTail, good: []any{0, 2}}, "timestamp": {bad: timestamp.bad, good: []any{0}},
			}, byID, positions),
		},
		"ReadService/CheckTail": {
			verb: "GET", path: streamPath + "/tail",
			base: func(at target, _ string) proto.Message {
				return &novapb.CheckTailRequest{Bucket: at.bucket, Stream: at.stream, StreamId: at.id}
			},
			fields: byID,
		},
		"ReadService/PlanRead": {
			missing: "read plans",
			base: func(at target, _ string) proto.Message {
				return &novapb.PlanReadRequest{Bucket: at.bucket, Stream: at.stream, StreamId: at.id}
			},
			fields: map[string]field{
				"bucket": bucketName, "stream": streamName, "stream_id": {bad: streamID.bad[:3]}, "limit": listLimit,
				"seq": no("what is wrong with it is said once plans are made"),
			},
		},
	} {
		fieldTable[name] = m
	}
}

func oneRecord() []*novapb.AppendRecord {
	return []*novapb.AppendRecord{{Headers: []*novapb.Header{{Name: []byte("n"), Value: []byte("v")}}, Body: []byte("body")}}
}

func manyRecords(n, size int) []*novapb.AppendRecord {
	out := make([]*novapb.AppendRecord, n)
	for i := range out {
		out[i] = &novapb.AppendRecord{Body: []byte(x(size))}
	}
	return out
}

func manyHeaders(n int) []*novapb.Header {
	out := make([]*novapb.Header, n)
	for i := range out {
		out[i] = &novapb.Header{Name: []byte("n")}
	}
	return out
}

var (
	// nobodys are fields of a producer where the request names none.
	nobodys = field{bad: []badValue{{what: "of no producer", value: 1, limit: "producer_id"}}}

	beyondTail = []badValue{{what: "beyond the tail", value: 4, code: codes.OutOfRange, reason: reason.BeyondTail, limit: "3"}}

	positions = map[string]field{
		"seq":         {bad: beyondTail, good: []any{0, 3}},
		"timestamp":   timestamp,
		"tail_offset": no("above the number of records it is the first"),
		"clamp":       anyBool,
		"count":       anySize,
		"bytes":       anySize,
		"until":       {bad: timestamp.bad, good: timestamp.good[:1]},
	}
)

// batchOf are the fields of a batch; prefix is the field that it stands in.
func batchOf(prefix string, more map[string]field) map[string]field {
	const room = stream.MaxRecordBytes - len("n") - len("v")
	first := prefix + "records[0]"
	return under(prefix, fields(map[string]field{
		"records": {
			bad: []badValue{
				{what: "none", value: []*novapb.AppendRecord{}, limit: "1..1000"},
				{what: "many", value: manyRecords(stream.MaxBatchRecords+1, 1), limit: "1..1000"},
				{what: "large", value: append(manyRecords(3, stream.MaxRecordBytes), manyRecords(1, 1)...), limit: "3145728"},
			},
			good: []any{manyRecords(stream.MaxBatchRecords, 1), manyRecords(3, stream.MaxBatchBytes/3)},
		},
		"records[0].timestamp": timestamp,
		"records[0].headers": {
			bad:  []badValue{{what: "many", value: manyHeaders(stream.MaxHeaders + 1), limit: "64"}},
			good: []any{manyHeaders(stream.MaxHeaders), []*novapb.Header{}},
		},
		"records[0].headers[0].name": {
			bad:  []badValue{{what: "empty", value: []byte{}, limit: "1..255"}, {what: "long", value: []byte(x(stream.MaxHeaderName + 1)), limit: "1..255"}},
			good: []any{[]byte(x(stream.MaxHeaderName)), []byte{0xff}},
		},
		"records[0].headers[0].value": {
			bad:  []badValue{{what: "long", value: []byte(x(stream.MaxHeaderValue + 1)), limit: "65536"}},
			good: []any{[]byte(x(stream.MaxHeaderValue)), []byte{}, []byte{0xff}},
		},
		"records[0].body": {
			bad:  []badValue{{what: "large with its headers", value: []byte(x(room + 1)), limit: "1048576", field: first}},
			good: []any{[]byte(x(room)), []byte{}, []byte{0xff, 0}},
		},
		"match_seq": matchSeq, "fencing_token": fencingToken, "seal": anyBool,
	}, more))
}
