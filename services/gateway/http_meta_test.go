package gateway

import (
	"net/http"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

var (
	aConfig = &novapb.StreamConfig{
		Profile: novapb.StorageProfile_STORAGE_PROFILE_STANDARD, RetentionAgeMsPresence: &novapb.StreamConfig_RetentionAgeMs{RetentionAgeMs: 1}, RetentionBytesPresence: &novapb.StreamConfig_RetentionBytes{RetentionBytes: 1<<64 - 1},
		Timestamping: novapb.TimestampingMode_TIMESTAMPING_MODE_CLIENT_REQUIRE, UncappedTimestampsPresence: &novapb.StreamConfig_UncappedTimestamps{UncappedTimestamps: false}, DeleteOnEmptyMsPresence: &novapb.StreamConfig_DeleteOnEmptyMs{DeleteOnEmptyMs: 0},
	}
	aStream = &novapb.Stream{
		Bucket: "bucket", Name: "a/\u00e9", StreamId: ulidText, State: novapb.StreamState_STREAM_STATE_SEALED, CreatedAt: 5, Config: aConfig, Shard: 3,
	}
	aBucket = &novapb.Bucket{Name: "bucket", State: novapb.BucketState_BUCKET_STATE_ACTIVE, CreatedAt: 5, Config: &novapb.BucketConfig{
		CreateStreamOnAppendPresence: &novapb.BucketConfig_CreateStreamOnAppend{CreateStreamOnAppend: true}, CreateStreamOnReadPresence: &novapb.BucketConfig_CreateStreamOnRead{CreateStreamOnRead: false}, DefaultStreamConfig: aConfig,
	}}
)

// Settings that are off are there, and so is what is 0.
const (
	aConfigJSON = `{"profile":"standard","retention_age_ms":1,"retention_bytes":18446744073709551615,"timestamping":"client_require",
		"uncapped_timestamps":false,"delete_on_empty_ms":0}`
	aStreamJSON = `{"bucket":"bucket","name":"a/\u00e9","stream_id":"` + ulidText + `","state":"sealed","created_at":5,"config":` + aConfigJSON + `}`
	aBucketJSON = `{"name":"bucket","state":"active","created_at":5,"config":{"create_stream_on_append":true,"create_stream_on_read":false,
		"default_stream_config":` + aConfigJSON + `}}`
)

type metaCase struct {
	what, method, path, body string
	answer, want             proto.Message
	json                     string
}

func (w *web) meta(t *testing.T, cases []metaCase) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.what, func(t *testing.T) {
			w.set(c.answer, nil)
			w.json(t, c.method, c.path, c.body).ok(t, c.json)
			w.want(t, c.want)
		})
	}
}

func TestBuckets(t *testing.T) {
	w := newWeb(t)
	const b = "/v1/buckets/bucket"
	created := &novapb.CreateBucketResponse{Bucket: aBucket}
	w.meta(t, []metaCase{
		{"create", "PUT", b, ``, created, &novapb.CreateBucketRequest{Bucket: "bucket"}, aBucketJSON},
		{"create with its name twice", "PUT", b, `{"name":"bucket"}`, created, &novapb.CreateBucketRequest{Bucket: "bucket"}, aBucketJSON},
		{
			"create by POST", "POST", "/v1/buckets", `{"name":"bucket","request_token":"t","config":{"create_stream_on_append":true,
				"create_stream_on_read":false,"default_stream_config":` + aConfigJSON + `}}`,
			created, &novapb.CreateBucketRequest{Bucket: "bucket", RequestToken: "t", Config: aBucket.GetConfig()}, aBucketJSON,
		},
		{"get", "GET", b, ``, &novapb.GetBucketResponse{Bucket: aBucket}, &novapb.GetBucketRequest{Bucket: "bucket"}, aBucketJSON},
		{
			"update", "PATCH", b, `{"config":{"default_stream_config":{"retention_bytes":0}}}`, &novapb.UpdateBucketResponse{Bucket: aBucket},
			&novapb.UpdateBucketRequest{Bucket: "bucket", Config: &novapb.BucketConfig{DefaultStreamConfig: &novapb.StreamConfig{RetentionBytesPresence: &novapb.StreamConfig_RetentionBytes{RetentionBytes: 0}}}}, aBucketJSON,
		},
		{"delete", "DELETE", b, ``, nil, &novapb.DeleteBucketRequest{Bucket: "bucket"}, `{}`},
		{"delete by force", "DELETE", b + "?force", ``, nil, &novapb.DeleteBucketRequest{Bucket: "bucket", Force: true}, `{}`},
		{"delete by no force", "DELETE", b + "?force=false", ``, nil, &novapb.DeleteBucketRequest{Bucket: "bucket"}, `{}`},
		{"list nothing", "GET", "/v1/buckets", ``, nil, &novapb.ListBucketsRequest{}, `{"buckets":[],"has_more":false}`},
		{
			"list", "GET", "/v1/buckets?prefix=b&start_after=a&limit=1", ``, &novapb.ListBucketsResponse{Buckets: []*novapb.Bucket{aBucket}, HasMore: true},
			&novapb.ListBucketsRequest{Prefix: "b", StartAfter: "a", Limit: 1}, `{"buckets":[` + aBucketJSON + `],"has_more":true}`,
		},
	})
}

func TestStreams(t *testing.T) {
	w := newWeb(t)
	const all = "/v1/buckets/bucket/streams"
	const s, name = all + "/a%2F%C3%A9", "a/\u00e9"
	created := &novapb.CreateStreamResponse{Stream: aStream}
	w.meta(t, []metaCase{
		{"create", "PUT", s, ``, created, &novapb.CreateStreamRequest{Bucket: "bucket", Stream: name}, aStreamJSON},
		{
			"create by POST", "POST", all, `{"name":"a/\u00e9","request_token":"t","config":` + aConfigJSON + `}`, created,
			&novapb.CreateStreamRequest{Bucket: "bucket", Stream: name, RequestToken: "t", Config: aConfig}, aStreamJSON,
		},
		{
			"get", "GET", s, ``, &novapb.GetStreamResponse{Stream: aStream, Extent: &novapb.StreamExtent{FirstSeq: 1, Tail: 1<<53 + 1, StoredBytes: 3, LastTimestamp: 4, ContentHash: 5, Leader: "inside:1", Epoch: 6}},
			&novapb.GetStreamRequest{Bucket: "bucket", Stream: name},
			aStreamJSON[:len(aStreamJSON)-1] + `,"extent":{"first_seq":1,"tail":9007199254740993,"stored_bytes":3,"last_timestamp":4,"content_hash":"0000000000000005"}}`,
		},
		{
			"update", "PATCH", s, `{"config":{"timestamping":"arrival"},"stream_id":"` + ulidText + `"}`, &novapb.UpdateStreamResponse{Stream: aStream},
			&novapb.UpdateStreamRequest{Bucket: "bucket", Stream: name, StreamId: ulidText, Config: &novapb.StreamConfig{Timestamping: novapb.TimestampingMode_TIMESTAMPING_MODE_ARRIVAL}},
			aStreamJSON,
		},
		{"delete", "DELETE", s, ``, nil, &novapb.DeleteStreamRequest{Bucket: "bucket", Stream: name}, `{}`},
		{"delete one", "DELETE", s + "?stream_id=" + ulidText, ``, nil, &novapb.DeleteStreamRequest{Bucket: "bucket", Stream: name, StreamId: ulidText}, `{}`},
		{
			"list", "GET", all + "?prefix=a%2F&start_after=%C3%A9&limit=1000", ``, &novapb.ListStreamsResponse{Streams: []*novapb.Stream{aStream}},
			&novapb.ListStreamsRequest{Bucket: "bucket", Prefix: "a/", StartAfter: "\u00e9", Limit: 1000}, `{"streams":[` + aStreamJSON + `],"has_more":false}`,
		},
		{"list nothing", "GET", all, ``, nil, &novapb.ListStreamsRequest{Bucket: "bucket"}, `{"streams":[],"has_more":false}`},
	})
}

func TestSettingsThatAreRefused(t *testing.T) {
	w := newWeb(t)
	const b, s = "/v1/buckets/bucket", "/v1/buckets/bucket/streams/s"
	for _, c := range []struct{ what, method, path, body, field string }{
		{"no name", "POST", "/v1/buckets", `{}`, "bucket"},
		{"another name than the path's", "PUT", b, `{"name":"other"}`, "name"},
		{"an unknown key", "PUT", b, `{"configs":{}}`, "configs"},
		{"an unknown setting", "PUT", s, `{"config":{"retention":1}}`, "retention"},
		{"an unknown profile", "PUT", s, `{"config":{"profile":"STANDARD!"}}`, "config.profile"},
		{"a profile by number", "PUT", s, `{"config":{"profile":1}}`, "config.profile"},
		{"no profile by name", "PUT", s, `{"config":{"profile":"unspecified"}}`, "config.profile"},
		{"a bucket's unknown mode", "PUT", b, `{"config":{"default_stream_config":{"timestamping":"server"}}}`, "config.default_stream_config.timestamping"},
		{"a number in quotes", "PATCH", s, `{"config":{"retention_age_ms":"1"}}`, "config.retention_age_ms"},
		{"a number with a unit", "PATCH", s, `{"config":{"retention_age_ms":1d}}`, "body"},
		{"no setting", "PATCH", s, `{"config":{}}`, "config"},
		{"no settings", "PATCH", b, ``, "config"},
		{"settings outside config", "PATCH", s, `{"retention_age_ms":1}`, "retention_age_ms"},
		// Not heeded, they would delete another stream, or not by force.
		{"a body of a delete", "DELETE", s, `{"stream_id":"` + ulidText + `"}`, "body"},
		{"a body of a bucket's delete", "DELETE", b, `{"force":true}`, "body"},
	} {
		t.Run(c.what, func(t *testing.T) {
			w.set(nil, nil)
			w.json(t, c.method, c.path, c.body).bad(t, c.field)
			w.none(t)
		})
	}
}

// Names of enums are read in any case, as gRPC's JSON writes them.
func TestEnumNamesInAnyCase(t *testing.T) {
	w := newWeb(t)
	w.set(nil, nil)
	if a := w.json(t, "PUT", "/v1/buckets/bucket/streams/s", `{"config":{"profile":"Express","timestamping":"ARRIVAL"}}`); a.status != http.StatusOK {
		t.Fatalf("%d %s", a.status, a.body)
	}
	w.want(t, &novapb.CreateStreamRequest{Bucket: "bucket", Stream: "s", Config: &novapb.StreamConfig{
		Profile: novapb.StorageProfile_STORAGE_PROFILE_EXPRESS, Timestamping: novapb.TimestampingMode_TIMESTAMPING_MODE_ARRIVAL,
	}})
}
