package validate

import (
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// field returns the path that a refusal names; "" for nil.
func field(t *testing.T, err error) string {
	t.Helper()
	if err == nil {
		return ""
	}
	s := status.Convert(err)
	if s.Code() != codes.InvalidArgument {
		t.Fatalf("got %v, want INVALID_ARGUMENT", err)
	}
	for _, d := range s.Details() {
		if bad, ok := d.(*errdetails.BadRequest); ok && len(bad.GetFieldViolations()) == 1 {
			return bad.GetFieldViolations()[0].GetField()
		}
	}
	t.Fatalf("%v names no field", err)
	return ""
}

type row struct {
	what string
	m    proto.Message
	want string // the field that is refused; "": accepted
}

func run(t *testing.T, rows []row) {
	t.Helper()
	for _, c := range rows {
		t.Run(c.what, func(t *testing.T) {
			err := Request(c.m)
			if got := field(t, err); got != c.want {
				t.Errorf("refused field %q (%v), want %q", got, err, c.want)
			}
		})
	}
}

func x(n int) string { return strings.Repeat("x", n) }

const ulidText = "01ARZ3NDEKTSV4RRFFQ69G5FAV"

func TestBucketNamesAreDNSLabels(t *testing.T) {
	for name, ok := range map[string]bool{
		"abc": true, "a-c": true, "000": true, "a--b": true, x(MaxBucketName): true,
		"": false, "ab": false, x(MaxBucketName + 1): false, "-bc": false, "ab-": false, "aBc": false, "a.c": false, "a_c": false, "a/c": false, "äbc": false, "a c": false,
	} {
		want := "bucket"
		if ok {
			want = ""
		}
		run(t, []row{
			{"get " + name, &novapb.GetBucketRequest{Bucket: name}, want},
			{"create " + name, &novapb.CreateBucketRequest{Bucket: name}, want},
			{"delete " + name, &novapb.DeleteBucketRequest{Bucket: name}, want},
			{"a stream in " + name, &novapb.GetStreamRequest{Bucket: name, Stream: "s"}, want},
			{"list " + name, &novapb.ListStreamsRequest{Bucket: name}, want},
		})
	}
}

func TestStreamNamesAreTextOfLimitedLength(t *testing.T) {
	for name, ok := range map[string]bool{
		"s": true, "a/b/c": true, "/": true, "a b": true, "é": true, "\U0001f600": true, "...": true, "a/../b": true,
		x(stream.MaxStreamName): true, strings.Repeat("é", stream.MaxStreamName/2): true,
		"": false, x(stream.MaxStreamName + 1): false, strings.Repeat("é", stream.MaxStreamName/2) + "x": false,
		".": false, "..": false, "a\x00": false, "a\nb": false, "\x7f": false, "\u0085": false, "\xff": false, "a\xc3": false,
	} {
		want := "stream"
		if ok {
			want = ""
		}
		const b = "bucket"
		run(t, []row{
			{"create", &novapb.CreateStreamRequest{Bucket: b, Stream: name}, want},
			{"get", &novapb.GetStreamRequest{Bucket: b, Stream: name}, want},
			{"update", &novapb.UpdateStreamRequest{Bucket: b, Stream: name, Config: &novapb.StreamConfig{RetentionBytesPresence: &novapb.StreamConfig_RetentionBytes{RetentionBytes: 1}}}, want},
			{"delete", &novapb.DeleteStreamRequest{Bucket: b, Stream: name}, want},
			{"append", &novapb.AppendRequest{Bucket: b, Stream: name, Records: make([]*novapb.AppendRecord, 0), Seal: true}, want},
			{"trim", &novapb.TrimRequest{Bucket: b, Stream: name}, want},
			{"seal", &novapb.SealStreamRequest{Bucket: b, Stream: name}, want},
			{"token", &novapb.SetFencingTokenRequest{Bucket: b, Stream: name}, want},
			{"read", &novapb.ReadRequest{Bucket: b, Stream: name}, want},
			{"subscribe", &novapb.SubscribeRequest{Bucket: b, Stream: name}, want},
			{"tail", &novapb.CheckTailRequest{Bucket: b, Stream: name}, want},
			{"plan", &novapb.PlanReadRequest{Bucket: b, Stream: name}, want},
		})
	}
}

func TestIDsAreULIDsOrAbsent(t *testing.T) {
	for id, want := range map[string]string{"": "", ulidText: "", "x": "stream_id", ulidText + "0": "stream_id", x(25) + "!": "stream_id"} {
		run(t, []row{
			{"read " + id, &novapb.ReadRequest{Bucket: "bucket", Stream: "s", StreamId: id}, want},
			{"append " + id, &novapb.AppendRequest{Bucket: "bucket", Stream: "s", StreamId: id, Seal: true}, want},
			{"delete " + id, &novapb.DeleteStreamRequest{Bucket: "bucket", Stream: "s", StreamId: id}, want},
		})
	}
	open := &novapb.AppendSessionOpen{Bucket: "bucket", Stream: "s", StreamId: "x"}
	run(t, []row{
		{"session", &novapb.AppendSessionRequest{Message: &novapb.AppendSessionRequest_Open{Open: open}}, "open.stream_id"},
		{"chains", &novapb.ListChainsRequest{StartAfter: "x"}, "start_after"},
		{"chains from the first", &novapb.ListChainsRequest{}, ""},
	})
}

func TestListsAndWaitsHaveLimits(t *testing.T) {
	b, s := "bucket", "s"
	run(t, []row{
		{"limit", &novapb.ListStreamsRequest{Bucket: b, Limit: MaxListLimit}, ""},
		{"limit above", &novapb.ListStreamsRequest{Bucket: b, Limit: MaxListLimit + 1}, "limit"},
		{"prefix", &novapb.ListStreamsRequest{Bucket: b, Prefix: x(stream.MaxStreamName)}, ""},
		{"prefix above", &novapb.ListStreamsRequest{Bucket: b, Prefix: x(stream.MaxStreamName + 1)}, "prefix"},
		{"prefix that is no text", &novapb.ListStreamsRequest{Bucket: b, Prefix: "\xff"}, "prefix"},
		{"start_after above", &novapb.ListStreamsRequest{Bucket: b, StartAfter: x(stream.MaxStreamName + 1)}, "start_after"},
		{"start_after that is no text", &novapb.ListStreamsRequest{Bucket: b, StartAfter: "\xff"}, "start_after"},
		{"buckets", &novapb.ListBucketsRequest{Prefix: x(MaxBucketName), StartAfter: x(MaxBucketName), Limit: MaxListLimit}, ""},
		{"buckets' prefix above", &novapb.ListBucketsRequest{Prefix: x(MaxBucketName + 1)}, "prefix"},
		{"wait", &novapb.ReadRequest{Bucket: b, Stream: s, WaitMs: MaxWaitMillis}, ""},
		{"wait above", &novapb.ReadRequest{Bucket: b, Stream: s, WaitMs: MaxWaitMillis + 1}, "wait_ms"},
		{"no heartbeat", &novapb.SubscribeRequest{Bucket: b, Stream: s}, ""},
		{"heartbeat least", &novapb.SubscribeRequest{Bucket: b, Stream: s, HeartbeatMs: MinHeartbeat}, ""},
		{"heartbeat below", &novapb.SubscribeRequest{Bucket: b, Stream: s, HeartbeatMs: MinHeartbeat - 1}, "heartbeat_ms"},
		{"heartbeat most", &novapb.SubscribeRequest{Bucket: b, Stream: s, HeartbeatMs: MaxWaitMillis}, ""},
		{"heartbeat above", &novapb.SubscribeRequest{Bucket: b, Stream: s, HeartbeatMs: MaxWaitMillis + 1}, "heartbeat_ms"},
		{"timestamp most", &novapb.ReadRequest{Bucket: b, Stream: s, Start: &novapb.ReadRequest_Timestamp{Timestamp: MaxTimestamp}}, ""},
		{"timestamp above", &novapb.ReadRequest{Bucket: b, Stream: s, Start: &novapb.ReadRequest_Timestamp{Timestamp: MaxTimestamp + 1}}, "timestamp"},
		{"timestamp below", &novapb.SubscribeRequest{Bucket: b, Stream: s, Start: &novapb.SubscribeRequest_Timestamp{Timestamp: -1}}, "timestamp"},
		{"until most", &novapb.ReadRequest{Bucket: b, Stream: s, UntilPresence: &novapb.ReadRequest_Until{Until: MaxTimestamp}}, ""},
		{"until above", &novapb.ReadRequest{Bucket: b, Stream: s, UntilPresence: &novapb.ReadRequest_Until{Until: MaxTimestamp + 1}}, "until"},
		{"until below", &novapb.SubscribeRequest{Bucket: b, Stream: s, UntilPresence: &novapb.SubscribeRequest_Until{Until: -1}}, "until"},
		{"plan limit", &novapb.PlanReadRequest{Bucket: b, Stream: s, Limit: MaxListLimit}, ""},
		{"plan limit above", &novapb.PlanReadRequest{Bucket: b, Stream: s, Limit: MaxListLimit + 1}, "limit"},
	})
}

func TestTokensHaveLimits(t *testing.T) {
	b, s := "bucket", "s"
	for token, ok := range map[string]bool{"": true, "t": true, x(stream.MaxTokenBytes): true, x(stream.MaxTokenBytes + 1): false, "a\n": false, "\xff": false} {
		want := func(path string) string {
			if ok {
				return ""
			}
			return path
		}
		run(t, []row{
			{"create bucket", &novapb.CreateBucketRequest{Bucket: b, RequestToken: token}, want("request_token")},
			{"create stream", &novapb.CreateStreamRequest{Bucket: b, Stream: s, RequestToken: token}, want("request_token")},
			{"append", &novapb.AppendRequest{Bucket: b, Stream: s, Seal: true, FencingTokenPresence: &novapb.AppendRequest_FencingToken{FencingToken: token}}, want("fencing_token")},
			{"producer", &novapb.AppendRequest{Bucket: b, Stream: s, Seal: true, ProducerId: token}, want("producer_id")},
			{"trim", &novapb.TrimRequest{Bucket: b, Stream: s, FencingTokenPresence: &novapb.TrimRequest_FencingToken{FencingToken: token}}, want("fencing_token")},
			{"seal", &novapb.SealStreamRequest{Bucket: b, Stream: s, FencingTokenPresence: &novapb.SealStreamRequest_FencingToken{FencingToken: token}}, want("fencing_token")},
			{"set", &novapb.SetFencingTokenRequest{Bucket: b, Stream: s, Token: token}, want("token")},
			{"set under", &novapb.SetFencingTokenRequest{Bucket: b, Stream: s, FencingTokenPresence: &novapb.SetFencingTokenRequest_FencingToken{FencingToken: token}}, want("fencing_token")},
		})
	}
	run(t, []row{
		{"epoch without a producer", &novapb.AppendRequest{Bucket: b, Stream: s, Seal: true, ProducerEpoch: 1}, "producer_epoch"},
		{"batch_seq without a producer", &novapb.AppendRequest{Bucket: b, Stream: s, Seal: true, BatchSeq: 1}, "batch_seq"},
		{"a producer's batch", &novapb.AppendRequest{Bucket: b, Stream: s, Seal: true, ProducerId: "p", ProducerEpoch: 1, BatchSeq: 1}, ""},
	})
}

func TestSettings(t *testing.T) {
	b, s := "bucket", "s"
	create := func(c *novapb.StreamConfig) proto.Message {
		return &novapb.CreateStreamRequest{Bucket: b, Stream: s, Config: c}
	}
	update := func(c *novapb.StreamConfig) proto.Message {
		return &novapb.UpdateStreamRequest{Bucket: b, Stream: s, Config: c}
	}
	standard := novapb.StorageProfile_STORAGE_PROFILE_STANDARD
	run(t, []row{
		{"create without", create(nil), ""},
		{"create with none", create(&novapb.StreamConfig{}), ""},
		{"create with a profile", create(&novapb.StreamConfig{Profile: standard}), ""},
		{"unknown profile", create(&novapb.StreamConfig{Profile: 99}), "config.profile"},
		{"unknown timestamping", create(&novapb.StreamConfig{Timestamping: 99}), "config.timestamping"},
		{"age most", create(&novapb.StreamConfig{RetentionAgeMsPresence: &novapb.StreamConfig_RetentionAgeMs{RetentionAgeMs: MaxTimestamp}}), ""},
		{"age above", create(&novapb.StreamConfig{RetentionAgeMsPresence: &novapb.StreamConfig_RetentionAgeMs{RetentionAgeMs: MaxTimestamp + 1}}), "config.retention_age_ms"},
		{"age below", create(&novapb.StreamConfig{RetentionAgeMsPresence: &novapb.StreamConfig_RetentionAgeMs{RetentionAgeMs: -1}}), "config.retention_age_ms"},
		{"delete on empty most", create(&novapb.StreamConfig{DeleteOnEmptyMsPresence: &novapb.StreamConfig_DeleteOnEmptyMs{DeleteOnEmptyMs: MaxTimestamp}}), ""},
		{"delete on empty above", create(&novapb.StreamConfig{DeleteOnEmptyMsPresence: &novapb.StreamConfig_DeleteOnEmptyMs{DeleteOnEmptyMs: MaxTimestamp + 1}}), "config.delete_on_empty_ms"},
		{"delete on empty below", create(&novapb.StreamConfig{DeleteOnEmptyMsPresence: &novapb.StreamConfig_DeleteOnEmptyMs{DeleteOnEmptyMs: -1}}), "config.delete_on_empty_ms"},
		{"update without", update(nil), "config"},
		{"update of nothing", update(&novapb.StreamConfig{}), "config"},
		{"update of the profile", update(&novapb.StreamConfig{Profile: standard}), "config.profile"},
		{"update to 0", update(&novapb.StreamConfig{RetentionAgeMsPresence: &novapb.StreamConfig_RetentionAgeMs{RetentionAgeMs: 0}}), ""},
		{"bucket update without", &novapb.UpdateBucketRequest{Bucket: b}, "config"},
		{"bucket update of nothing", &novapb.UpdateBucketRequest{Bucket: b, Config: &novapb.BucketConfig{}}, "config"},
		{"bucket update to false", &novapb.UpdateBucketRequest{Bucket: b, Config: &novapb.BucketConfig{CreateStreamOnReadPresence: &novapb.BucketConfig_CreateStreamOnRead{CreateStreamOnRead: false}}}, ""},
		{"bucket's default profile", &novapb.UpdateBucketRequest{Bucket: b, Config: &novapb.BucketConfig{DefaultStreamConfig: &novapb.StreamConfig{Profile: standard}}}, ""},
		{"bucket's default profile unknown", &novapb.CreateBucketRequest{Bucket: b, Config: &novapb.BucketConfig{DefaultStreamConfig: &novapb.StreamConfig{Profile: 99}}}, "config.default_stream_config.profile"},
	})
}

func TestAdminRequests(t *testing.T) {
	many := func(n int) []string { return strings.Split(strings.Repeat("a,", n-1)+"a", ",") }
	run(t, []row{
		{"node", &novapb.GetNodeStatsRequest{NodeId: x(MaxNodeID)}, ""},
		{"node above", &novapb.DrainNodeRequest{NodeId: x(MaxNodeID + 1)}, "node_id"},
		{"no node", &novapb.UndrainNodeRequest{}, "node_id"},
		{"node with control characters", &novapb.DrainNodeRequest{NodeId: "a\x00"}, "node_id"},
		{"shards", &novapb.ListShardsRequest{Limit: MaxListLimit + 1}, "limit"},
		{"verify all", &novapb.VerifyRequest{All: true}, ""},
		{"verify all and a bucket", &novapb.VerifyRequest{All: true, Bucket: "bucket"}, "all"},
		{"verify a bucket", &novapb.VerifyRequest{Bucket: "bucket"}, ""},
		{"verify a stream", &novapb.VerifyRequest{Bucket: "bucket", Stream: "s"}, ""},
		{"verify nothing", &novapb.VerifyRequest{}, "bucket"},
		{"verify a stream of no bucket", &novapb.VerifyRequest{Stream: "s"}, "bucket"},
		{"mint", &novapb.MintTokenRequest{Operations: many(MaxScopes), TtlMs: 1}, ""},
		{"mint too many operations", &novapb.MintTokenRequest{Operations: many(MaxScopes + 1)}, "operations"},
		{"mint a long stream scope", &novapb.MintTokenRequest{Streams: []string{"a", x(stream.MaxStreamName + 2)}}, "streams[1]"},
		{"mint for a negative time", &novapb.MintTokenRequest{TtlMs: -1}, "ttl_ms"},
		{"tokens", &novapb.ListTokensRequest{Limit: MaxListLimit + 1}, "limit"},
		{"revoke nothing", &novapb.RevokeTokenRequest{}, "token_id"},
	})
}
