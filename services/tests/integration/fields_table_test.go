package integration

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/libs/validate"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

func x(n int) string { return strings.Repeat("x", n) }

// numbered is a name of so many bytes, in few digits.
func numbered(n, size int) string {
	digits := strconv.FormatInt(int64(n), 36)
	return strings.Repeat("0", size-len(digits)) + digits
}

// no is a field every value of which is good.
func no(why string) field { return field{free: why} }

var (
	anyBool = no("either value is good")
	anySize = no("every number is a size")

	// Names that are unique among the targets.
	shortBucket = func(n int) any { return numbered(n, validate.MinBucketName) }
	longBucket  = func(n int) any { return numbered(n, validate.MaxBucketName) }

	oddBucket = func(n int) any { return fmt.Sprintf("0--%d-a", n) }

	bucketName = field{
		bad: []badValue{
			{what: "absent", value: "", limit: "3..63", path: true},
			{what: "short", value: "ab", limit: "3..63"},
			{what: "long", value: x(validate.MaxBucketName + 1), limit: "3..63"},
			{what: "upper case", value: "aBc", limit: "DNS label"},
			{what: "dot", value: "a.c", limit: "DNS label"},
			{what: "slash", value: "a/c", limit: "DNS label"},
			{what: "hyphen first", value: "-bc", limit: "DNS label"},
			{what: "hyphen last", value: "ab-", limit: "DNS label"},
			{what: "not ASCII", value: "äbc", limit: "DNS label"},
		},
		good: []any{shortBucket, longBucket, oddBucket},
	}
	streamName = field{
		bad: []badValue{
			{what: "absent", value: "", limit: "1..512", path: true},
			{what: "long", value: x(stream.MaxStreamName + 1), limit: "1..512"},
			{what: "long in bytes", value: strings.Repeat("é", stream.MaxStreamName/2) + "x", limit: "1..512"},
			{what: "dot", value: ".", limit: `"."`},
			{what: "two dots", value: "..", limit: `".."`},
			{what: "NUL", value: "a\x00", limit: "U+0000"},
			{what: "line feed", value: "a\nb", limit: "U+000A"},
			{what: "DEL", value: "\x7f", limit: "U+007F"},
			{what: "C1", value: "\u0085", limit: "U+0085"},
		},
		good: []any{"s", x(stream.MaxStreamName), strings.Repeat("é", stream.MaxStreamName/2), "a/../b//", "...", "\U0001f600 %2F?#"},
	}
	streamID = field{bad: []badValue{
		{what: "short", value: "x", limit: "26"},
		{what: "long", value: otherID + "0", limit: "26"},
		{what: "not base 32", value: strings.Repeat("U", 26), limit: "26"},
		{what: "another stream's", value: otherID, code: codes.NotFound, reason: reason.StreamNotFound},
	}}
	listLimit = field{bad: []badValue{{what: "large", value: validate.MaxListLimit + 1, limit: "1000"}}, good: []any{1, validate.MaxListLimit}}
	// A token that is refused for its form; bytes that are not UTF-8 cannot be sent.
	newToken = field{
		bad: []badValue{
			{what: "long", value: x(stream.MaxTokenBytes + 1), limit: "64"},
			{what: "line feed", value: "a\n", limit: "U+000A"},
		},
		good: []any{"t", x(stream.MaxTokenBytes), ""},
	}
	fencingToken = field{
		bad:  append([]badValue{{what: "not the stream's", value: "other", code: codes.Aborted, reason: reason.Fenced}}, newToken.bad...),
		good: []any{""},
	}
	matchSeq = field{
		bad: []badValue{
			{what: "0", value: 0, code: codes.FailedPrecondition, reason: reason.SeqMismatch, limit: "3"},
			{what: "below", value: 2, code: codes.FailedPrecondition, reason: reason.SeqMismatch, limit: "3"},
			{what: "above", value: 4, code: codes.FailedPrecondition, reason: reason.SeqMismatch, limit: "3"},
		},
		good: []any{3},
	}
	timestamp = field{
		bad: []badValue{
			{what: "negative", value: -1, limit: "0..253402300799999"},
			{what: "after the year 9999", value: validate.MaxTimestamp + 1, limit: "0..253402300799999"},
		},
		good: []any{0, validate.MaxTimestamp},
	}
	duration = field{
		bad: []badValue{
			{what: "negative", value: -1, limit: "negative"},
			{what: "long", value: validate.MaxTimestamp + 1, limit: "253402300799999"},
		},
		good: []any{0, validate.MaxTimestamp},
	}
	timestamping = field{bad: []badValue{{what: "unknown", value: 99}}, good: []any{1, 2, 3}}
	profile      = field{
		bad: []badValue{
			{what: "unknown", value: 99},
			{what: "not there yet", value: int(novapb.StorageProfile_STORAGE_PROFILE_EXPRESS), code: codes.Unimplemented, reason: reason.Unimplemented, limit: "express storage"},
		},
		good: []any{int(novapb.StorageProfile_STORAGE_PROFILE_STANDARD)},
	}
	nodeID = field{
		bad: []badValue{
			{what: "absent", value: "", limit: "empty"},
			{what: "long", value: x(validate.MaxNodeID + 1), limit: "255"},
			{what: "NUL", value: "a\x00", limit: "U+0000"},
		},
		good: []any{x(validate.MaxNodeID)},
	}
	// An id that something may have, or not.
	afterID = field{bad: []badValue{{what: "not a ULID", value: "x", limit: "26"}, {what: "not base 32", value: strings.Repeat("U", 26), limit: "26"}}, good: []any{otherID, ""}}
	// The name of a queue of due markers.
	queueName = field{
		bad: []badValue{
			{what: "absent", value: "", limit: "empty"},
			{what: "long", value: x(validate.MaxNodeID + 1), limit: "255"},
			{what: "NUL", value: "a\x00", limit: "U+0000"},
			{what: "unknown", value: "dead-reclaim", limit: "reclaim, retention"},
		},
		good: []any{"bucket", "unref"},
	}
)

// otherID is no stream's.
const otherID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"

// fields are those of some tables, and more of them or others instead.
func fields(more map[string]field, of ...map[string]field) map[string]field {
	out := map[string]field{}
	for _, m := range append(slices.Clone(of), more) {
		for path, f := range m {
			out[path] = f
		}
	}
	return out
}

// under are fields of a message in a field.
func under(prefix string, of map[string]field) map[string]field {
	out := map[string]field{}
	for path, f := range of {
		out[prefix+path] = f
	}
	return out
}

var (
	byName       = map[string]field{"bucket": bucketName, "stream": streamName}
	byID         = fields(map[string]field{"stream_id": streamID}, byName)
	streamConfig = map[string]field{
		"profile": profile, "retention_age_ms": duration, "retention_bytes": anySize, "timestamping": timestamping,
		"uncapped_timestamps": anyBool, "delete_on_empty_ms": duration,
	}
	bucketConfig = fields(map[string]field{"create_stream_on_append": anyBool, "create_stream_on_read": anyBool}, under("default_stream_config.", streamConfig))
)

func listOf(longest int) map[string]field {
	text := field{bad: []badValue{{what: "long", value: x(longest + 1), limit: fmt.Sprint(longest)}}, good: []any{x(longest), ""}}
	return map[string]field{"prefix": text, "start_after": text, "limit": listLimit}
}

const (
	bucketPath = "/v1/buckets/{bucket}"
	streamPath = bucketPath + "/streams/{stream}"
)

// fieldTable is all that is known of the requests, by service and method.
var fieldTable = map[string]methodFields{
	"BucketService/CreateBucket": {
		verb: "PUT", path: bucketPath, creates: true,
		base: func(at target, _ string) proto.Message {
			return &novapb.CreateBucketRequest{Bucket: at.bucket + "-new"}
		},
		fields: fields(map[string]field{"bucket": bucketName, "request_token": newToken}, under("config.", bucketConfig)),
	},
	"BucketService/GetBucket": {
		verb: "GET", path: bucketPath,
		base:   func(at target, _ string) proto.Message { return &novapb.GetBucketRequest{Bucket: at.bucket} },
		fields: map[string]field{"bucket": bucketName},
	},
	"BucketService/ListBuckets": {
		verb: "GET", path: "/v1/buckets",
		base:   func(target, string) proto.Message { return &novapb.ListBucketsRequest{} },
		fields: listOf(validate.MaxBucketName),
	},
	"BucketService/UpdateBucket": {
		verb: "PATCH", path: bucketPath,
		base: func(at target, _ string) proto.Message {
			return &novapb.UpdateBucketRequest{Bucket: at.bucket, Config: &novapb.BucketConfig{CreateStreamOnReadPresence: &novapb.BucketConfig_CreateStreamOnRead{CreateStreamOnRead: true}}}
		},
		fields: fields(map[string]field{
			"bucket": bucketName,
			"config": {bad: []badValue{{what: "absent", limit: "at least one"}, {what: "empty", value: &novapb.BucketConfig{}, limit: "at least one"}}},
		}, under("config.", bucketConfig)),
	},
	"BucketService/DeleteBucket": {
		verb: "DELETE", path: bucketPath,
		base: func(at target, _ string) proto.Message {
			return &novapb.DeleteBucketRequest{Bucket: at.bucket, Force: true}
		},
		fields: map[string]field{"bucket": bucketName, "force": {bad: []badValue{{what: "absent, of a bucket that is not empty", value: false, code: codes.FailedPrecondition, reason: reason.BucketNotEmpty}}}},
	},
	"StreamService/CreateStream": {
		verb: "PUT", path: streamPath, creates: true,
		base: func(at target, _ string) proto.Message {
			return &novapb.CreateStreamRequest{Bucket: at.bucket, Stream: at.stream + "-new"}
		},
		fields: fields(map[string]field{"request_token": newToken, "bucket": {bad: bucketName.bad}}, under("config.", streamConfig), map[string]field{"stream": streamName}),
	},
	"StreamService/GetStream": {
		verb: "GET", path: streamPath,
		base: func(at target, _ string) proto.Message {
			return &novapb.GetStreamRequest{Bucket: at.bucket, Stream: at.stream}
		},
		fields: byName,
	},
	"StreamService/ListStreams": {
		verb: "GET", path: bucketPath + "/streams",
		base:   func(at target, _ string) proto.Message { return &novapb.ListStreamsRequest{Bucket: at.bucket} },
		fields: fields(map[string]field{"bucket": bucketName}, listOf(stream.MaxStreamName)),
	},
	"StreamService/UpdateStream": {
		verb: "PATCH", path: streamPath,
		base: func(at target, _ string) proto.Message {
			return &novapb.UpdateStreamRequest{Bucket: at.bucket, Stream: at.stream, StreamId: at.id, Config: &novapb.StreamConfig{RetentionBytesPresence: &novapb.StreamConfig_RetentionBytes{RetentionBytes: 1 << 20}}}
		},
		fields: fields(map[string]field{
			"config": {bad: []badValue{{what: "absent", limit: "at least one"}, {what: "empty", value: &novapb.StreamConfig{}, limit: "at least one"}}},
			"config.profile": {bad: []badValue{
				{what: "unknown", value: 99},
				{what: "of a stream that exists", value: int(novapb.StorageProfile_STORAGE_PROFILE_STANDARD), limit: "cannot be changed"},
			}},
		}, byID, under("config.", streamConfig)),
	},
	"StreamService/DeleteStream": {
		verb: "DELETE", path: streamPath,
		base: func(at target, _ string) proto.Message {
			return &novapb.DeleteStreamRequest{Bucket: at.bucket, Stream: at.stream, StreamId: at.id}
		},
		fields: byID,
	},
	"AdminService/GetFleet": {base: func(target, string) proto.Message { return &novapb.GetFleetRequest{} }},
	"AdminService/GetNodeStats": {
		absent: reason.NodeNotFound,
		base:   func(target, string) proto.Message { return &novapb.GetNodeStatsRequest{NodeId: "node"} },
		fields: map[string]field{"node_id": nodeID},
	},
	"AdminService/DrainNode": {
		absent: reason.NodeNotFound,
		base:   func(target, string) proto.Message { return &novapb.DrainNodeRequest{NodeId: "node"} },
		fields: map[string]field{"node_id": nodeID},
	},
	"AdminService/UndrainNode": {
		absent: reason.NodeNotFound,
		base:   func(target, string) proto.Message { return &novapb.UndrainNodeRequest{NodeId: "node"} },
		fields: map[string]field{"node_id": nodeID},
	},
	"AdminService/ListShards": {
		base:   func(target, string) proto.Message { return &novapb.ListShardsRequest{} },
		fields: map[string]field{"start": no("above the last shard the page is empty"), "limit": listLimit},
	},
	"AdminService/ListChains": {
		base: func(target, string) proto.Message { return &novapb.ListChainsRequest{} },
		fields: map[string]field{
			"start_after": afterID, "limit": listLimit,
		},
	},
	"AdminService/Verify": {
		base: func(at target, _ string) proto.Message {
			return &novapb.VerifyRequest{Bucket: at.bucket, Stream: at.stream}
		},
		fields: map[string]field{
			"bucket": bucketName,
			"stream": {bad: streamName.bad[1:], good: append([]any{""}, streamName.good...)},
			"all":    {bad: []badValue{{what: "beside a stream", value: true, limit: "bucket or stream"}}},
			"repair": no("either is right"),
		},
	},
	"AdminService/MintToken": {
		missing: "tokens",
		base: func(target, string) proto.Message {
			return &novapb.MintTokenRequest{Operations: []string{"read"}, Buckets: []string{"*"}, Streams: []string{"*"}, TtlMs: 1}
		},
		fields: map[string]field{
			"operations": scopes, "buckets": scopes, "streams": scopes,
			"operations[0]": scope, "buckets[0]": scope, "streams[0]": scope,
			"ttl_ms": {bad: []badValue{{what: "negative", value: -1, limit: "negative"}}, good: []any{0}},
		},
	},
	"AdminService/ListTokens": {
		missing: "tokens",
		base:    func(target, string) proto.Message { return &novapb.ListTokensRequest{} },
		fields: map[string]field{
			"start_after": {bad: []badValue{{what: "long", value: x(validate.MaxNodeID + 1), limit: "255"}}, good: []any{x(validate.MaxNodeID)}},
			"limit":       listLimit,
		},
	},
	"AdminService/RevokeToken": {
		missing: "tokens",
		base:    func(target, string) proto.Message { return &novapb.RevokeTokenRequest{TokenId: "t"} },
		fields:  map[string]field{"token_id": nodeID},
	},
	"AdminService/GetBackground": {
		base:   func(target, string) proto.Message { return &novapb.GetBackgroundRequest{} },
		fields: map[string]field{"start_after": afterID, "limit": listLimit},
	},
	"AdminService/ListDeadLetters": {
		base:   func(target, string) proto.Message { return &novapb.ListDeadLettersRequest{} },
		fields: map[string]field{"queue": {bad: queueName.bad[1:], good: append([]any{""}, queueName.good...)}, "limit": listLimit},
	},
	"AdminService/ReviveDeadLetter": {
		base:   func(target, string) proto.Message { return &novapb.ReviveDeadLetterRequest{Queue: "reclaim"} },
		fields: map[string]field{"queue": queueName, "due_id": afterID},
	},
}

var (
	scopes = field{
		bad:  []badValue{{what: "many", value: strings.Split(x(validate.MaxScopes+1), ""), limit: "100"}},
		good: []any{strings.Split(x(validate.MaxScopes), "")},
	}
	scope = field{
		bad:  []badValue{{what: "long", value: x(stream.MaxStreamName + 2), limit: "513"}, {what: "NUL", value: "\x00", limit: "U+0000"}},
		good: []any{x(stream.MaxStreamName + 1)},
	}
)
