// Package validate checks requests of the public API once, at the edge: the
// answer to a bad one is INVALID_ARGUMENT with the field's path and the limit.
// What comes after it may rely on every rule here.
package validate

import (
	"fmt"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// Limits of the public API beside those of libs/stream.
const (
	MinBucketName = 3
	MaxBucketName = 63
	MaxListLimit  = 1000
	MaxWaitMillis = 60_000
	MinHeartbeat  = 100 // milliseconds
	// MaxTimestamp is the end of the year 9999, in milliseconds: every timestamp
	// can be written as RFC 3339.
	MaxTimestamp = 253_402_300_799_999
	// MaxNodeID limits node and token ids, and names of queues, in bytes.
	MaxNodeID = 255
	// MaxScopes limits each list of a token's scope.
	MaxScopes = 100
)

// Request returns nil, or what is wrong with a request of package nova.v1. A
// message of another package is not looked at. Of a write the refusal says that
// nothing was stored.
func Request(m proto.Message) error {
	err := check(m)
	switch m.(type) {
	case *novapb.AppendRequest, *novapb.AppendSessionRequest, *novapb.TrimRequest, *novapb.SealStreamRequest, *novapb.SetFencingTokenRequest:
		return reason.WithOutcome(err, reason.NotCommitted)
	}
	return err
}

func check(m proto.Message) error {
	switch r := m.(type) {
	case *novapb.CreateBucketRequest:
		return first(bucket(r.GetBucket()), token("request_token", r.GetRequestToken()), bucketConfig("config", r.GetConfig(), true))
	case *novapb.GetBucketRequest:
		return bucket(r.GetBucket())
	case *novapb.ListBucketsRequest:
		return list(r, MaxBucketName)
	case *novapb.UpdateBucketRequest:
		return first(bucket(r.GetBucket()), present("config", r.GetConfig() != nil), bucketConfig("config", r.GetConfig(), false))
	case *novapb.DeleteBucketRequest:
		return bucket(r.GetBucket())
	case *novapb.CreateStreamRequest:
		return first(named(r), token("request_token", r.GetRequestToken()), streamConfig("config", r.GetConfig(), true))
	case *novapb.GetStreamRequest:
		return named(r)
	case *novapb.ListStreamsRequest:
		return first(bucket(r.GetBucket()), list(r, stream.MaxStreamName))
	case *novapb.UpdateStreamRequest:
		return first(identified(r), present("config", r.GetConfig() != nil), streamConfig("config", r.GetConfig(), false))
	case *novapb.DeleteStreamRequest:
		return identified(r)
	case *novapb.AppendRequest:
		return first(identified(r), batch("", r), producer("", r.GetProducerId(), r.GetProducerEpoch(), r.GetBatchSeq()))
	case *novapb.AppendSessionRequest:
		return session(r)
	case *novapb.TrimRequest:
		return first(identified(r), token("fencing_token", r.GetFencingToken()))
	case *novapb.SealStreamRequest:
		return first(identified(r), token("fencing_token", r.GetFencingToken()))
	case *novapb.SetFencingTokenRequest:
		return first(identified(r), token("token", r.GetToken()), token("fencing_token", r.GetFencingToken()))
	case *novapb.ReadRequest:
		return first(identified(r), timestamps(r.GetTimestamp(), r.GetUntil()), atMost("wait_ms", uint64(r.GetWaitMs()), MaxWaitMillis))
	case *novapb.SubscribeRequest:
		return first(identified(r), timestamps(r.GetTimestamp(), r.GetUntil()), heartbeat(r.GetHeartbeatMs()))
	case *novapb.CheckTailRequest:
		return identified(r)
	case *novapb.PlanReadRequest:
		return first(identified(r), atMost("limit", uint64(r.GetLimit()), MaxListLimit))
	}
	return admin(m)
}

func admin(m proto.Message) error {
	switch r := m.(type) {
	case *novapb.GetNodeStatsRequest:
		return id("node_id", r.GetNodeId())
	case *novapb.DrainNodeRequest:
		return id("node_id", r.GetNodeId())
	case *novapb.UndrainNodeRequest:
		return id("node_id", r.GetNodeId())
	case *novapb.ListShardsRequest:
		return atMost("limit", uint64(r.GetLimit()), MaxListLimit)
	case *novapb.ListChainsRequest:
		return first(ulid("start_after", r.GetStartAfter()), atMost("limit", uint64(r.GetLimit()), MaxListLimit))
	case *novapb.VerifyRequest:
		return verify(r)
	case *novapb.MintTokenRequest:
		return first(scopes("operations", r.GetOperations()), scopes("buckets", r.GetBuckets()), scopes("streams", r.GetStreams()), notNegative("ttl_ms", r.GetTtlMs()))
	case *novapb.ListTokensRequest:
		return first(maxBytes("start_after", r.GetStartAfter(), MaxNodeID), atMost("limit", uint64(r.GetLimit()), MaxListLimit))
	case *novapb.RevokeTokenRequest:
		return id("token_id", r.GetTokenId())
	case *novapb.GetBackgroundRequest:
		return first(ulid("start_after", r.GetStartAfter()), atMost("limit", uint64(r.GetLimit()), MaxListLimit))
	case *novapb.ListDeadLettersRequest:
		return first(maxBytes("queue", r.GetQueue(), MaxNodeID), text("queue", r.GetQueue()), atMost("limit", uint64(r.GetLimit()), MaxListLimit))
	case *novapb.ReviveDeadLetterRequest:
		return first(id("queue", r.GetQueue()), ulid("due_id", r.GetDueId()))
	}
	return nil
}

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func bucket(name string) error { return Bucket("bucket", name) }

// Record checks one record to append; path names it in the answer.
func Record(path string, r *novapb.AppendRecord) error {
	_, err := record(func() string { return path }, r)
	return err
}

// Bucket checks a bucket's name: a DNS label of 3..63 characters.
func Bucket(path, name string) error {
	if n := len(name); n < MinBucketName || n > MaxBucketName {
		return reason.Field(path, fmt.Sprintf("must be %d..%d characters, is %d", MinBucketName, MaxBucketName, n))
	}
	for i := range len(name) {
		c := name[i]
		letter := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if !letter && (c != '-' || i == 0 || i == len(name)-1) {
			return reason.Field(path, "must be a DNS label: a-z, 0-9 and '-', which may not be at the ends")
		}
	}
	return nil
}

// StreamName checks a stream's name.
func StreamName(path, name string) error {
	if n := len(name); n < 1 || n > stream.MaxStreamName {
		return reason.Field(path, fmt.Sprintf("must be 1..%d bytes, is %d", stream.MaxStreamName, n))
	}
	if err := text(path, name); err != nil {
		return err
	}
	if name == "." || name == ".." {
		return reason.Field(path, `must not be "." or ".."`)
	}
	return nil
}

// text wants UTF-8 without control characters.
func text(path, s string) error {
	if !utf8.ValidString(s) {
		return reason.Field(path, "must be valid UTF-8")
	}
	for _, r := range s {
		if unicode.IsControl(r) {
			return reason.Field(path, fmt.Sprintf("must not hold control characters, holds U+%04X", r))
		}
	}
	return nil
}

type nameFields interface {
	GetBucket() string
	GetStream() string
}

func named(r nameFields) error {
	return first(bucket(r.GetBucket()), StreamName("stream", r.GetStream()))
}

func identified(r interface {
	nameFields
	GetStreamId() string
}) error {
	return first(named(r), ulid("stream_id", r.GetStreamId()))
}

func ulid(path, s string) error {
	if s == "" {
		return nil
	}
	if _, err := stream.ParseID(s); err != nil {
		return reason.Field(path, fmt.Sprintf("must be a ULID of 26 characters, is %d bytes", len(s)))
	}
	return nil
}

func list(r interface {
	GetPrefix() string
	GetStartAfter() string
	GetLimit() uint32
}, longest int) error {
	return first(
		maxBytes("prefix", r.GetPrefix(), longest), utf8Text("prefix", r.GetPrefix()),
		maxBytes("start_after", r.GetStartAfter(), longest), utf8Text("start_after", r.GetStartAfter()),
		atMost("limit", uint64(r.GetLimit()), MaxListLimit))
}

func utf8Text(path, s string) error {
	if !utf8.ValidString(s) {
		return reason.Field(path, "must be valid UTF-8")
	}
	return nil
}

func present(path string, is bool) error {
	if !is {
		return reason.Field(path, "must name at least one setting")
	}
	return nil
}

func maxBytes(path, s string, n int) error {
	if len(s) > n {
		return reason.Field(path, fmt.Sprintf("must be at most %d bytes, is %d", n, len(s)))
	}
	return nil
}

func atMost(path string, v, limit uint64) error {
	if v > limit {
		return reason.Field(path, fmt.Sprintf("must be at most %d, is %d", limit, v))
	}
	return nil
}

func notNegative(path string, v int64) error {
	if v < 0 {
		return reason.Field(path, fmt.Sprintf("must not be negative, is %d", v))
	}
	return nil
}

func token(path, s string) error {
	return first(maxBytes(path, s, stream.MaxTokenBytes), text(path, s))
}

func id(path, s string) error {
	if s == "" {
		return reason.Field(path, "must not be empty")
	}
	return first(maxBytes(path, s, MaxNodeID), text(path, s))
}

func timestamps(start, until int64) error {
	return first(timestamp("timestamp", start), timestamp("until", until))
}

func timestamp(path string, ms int64) error {
	if ms < 0 || ms > MaxTimestamp {
		return reason.Field(path, fmt.Sprintf("must be 0..%d milliseconds since 1970, is %d", int64(MaxTimestamp), ms))
	}
	return nil
}

func heartbeat(ms uint32) error {
	if ms != 0 && (ms < MinHeartbeat || ms > MaxWaitMillis) {
		return reason.Field("heartbeat_ms", fmt.Sprintf("must be 0 or %d..%d, is %d", MinHeartbeat, MaxWaitMillis, ms))
	}
	return nil
}

func bucketConfig(path string, c *novapb.BucketConfig, creating bool) error {
	if d := c.GetDefaultStreamConfig(); d != nil {
		// A default profile is a setting of streams to come and may change.
		return streamConfig(path+".default_stream_config", d, true)
	}
	if !creating && c != nil && !c.HasCreateStreamOnAppend() && !c.HasCreateStreamOnRead() {
		return present(path, false)
	}
	return nil
}

func streamConfig(path string, c *novapb.StreamConfig, creating bool) error {
	if c == nil {
		return nil
	}
	if _, ok := novapb.StorageProfile_name[int32(c.GetProfile())]; !ok {
		return reason.Field(path+".profile", fmt.Sprintf("unknown profile %d", c.GetProfile()))
	}
	if _, ok := novapb.TimestampingMode_name[int32(c.GetTimestamping())]; !ok {
		return reason.Field(path+".timestamping", fmt.Sprintf("unknown mode %d", c.GetTimestamping()))
	}
	if !creating {
		if c.GetProfile() != novapb.StorageProfile_STORAGE_PROFILE_UNSPECIFIED {
			return reason.Field(path+".profile", "cannot be changed after creation")
		}
		if proto.Equal(c, &novapb.StreamConfig{}) {
			return present(path, false)
		}
	}
	return first(
		notNegative(path+".retention_age_ms", c.GetRetentionAgeMs()),
		atMost(path+".retention_age_ms", uint64(c.GetRetentionAgeMs()), MaxTimestamp),
		notNegative(path+".delete_on_empty_ms", c.GetDeleteOnEmptyMs()),
		atMost(path+".delete_on_empty_ms", uint64(c.GetDeleteOnEmptyMs()), MaxTimestamp))
}

func verify(r *novapb.VerifyRequest) error {
	if r.GetAll() {
		if r.GetBucket() != "" || r.GetStream() != "" {
			return reason.Field("all", "must not be set together with bucket or stream")
		}
		return nil
	}
	if r.GetStream() == "" {
		return bucket(r.GetBucket())
	}
	return named(r)
}

func scopes(path string, list []string) error {
	if len(list) > MaxScopes {
		return reason.Field(path, fmt.Sprintf("must hold at most %d, holds %d", MaxScopes, len(list)))
	}
	for i, s := range list {
		if err := first(maxBytes(fmt.Sprintf("%s[%d]", path, i), s, stream.MaxStreamName+1), text(fmt.Sprintf("%s[%d]", path, i), s)); err != nil {
			return err
		}
	}
	return nil
}
