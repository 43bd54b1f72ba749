package gateway

import (
	"net/http"
	"slices"
	"strings"

	"github.com/nova-stream/nova/libs/optional"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/validate"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// streamConfigJSON holds a stream's settings; absent ones are not changed.
type streamConfigJSON struct {
	Profile            string  `json:"profile,omitempty"`
	RetentionAgeMs     *int64  `json:"retention_age_ms,omitempty"`
	RetentionBytes     *uint64 `json:"retention_bytes,omitempty"`
	Timestamping       string  `json:"timestamping,omitempty"`
	UncappedTimestamps *bool   `json:"uncapped_timestamps,omitempty"`
	DeleteOnEmptyMs    *int64  `json:"delete_on_empty_ms,omitempty"`
}

// bucketConfigJSON holds a bucket's settings; absent ones are not changed.
type bucketConfigJSON struct {
	CreateStreamOnAppend *bool             `json:"create_stream_on_append,omitempty"`
	CreateStreamOnRead   *bool             `json:"create_stream_on_read,omitempty"`
	DefaultStreamConfig  *streamConfigJSON `json:"default_stream_config,omitempty"`
}

const (
	profilePrefix = "STORAGE_PROFILE_"
	modePrefix    = "TIMESTAMPING_MODE_"
)

// enumNumber finds a value by the lower-case end of its name; "" is 0.
func enumNumber(values map[string]int32, prefix, path, s string) (int32, error) {
	if s == "" {
		return 0, nil
	}
	if v, ok := values[prefix+strings.ToUpper(s)]; ok && v != 0 {
		return v, nil
	}
	var names []string
	for name, v := range values {
		if v != 0 {
			names = append(names, strings.ToLower(strings.TrimPrefix(name, prefix)))
		}
	}
	return 0, reason.Field(path, "must be one of "+strings.Join(slices.Sorted(slices.Values(names)), ", "))
}

func enumName(name, prefix string) string { return strings.ToLower(strings.TrimPrefix(name, prefix)) }

func (c *streamConfigJSON) proto(path string) (*novapb.StreamConfig, error) {
	if c == nil {
		return nil, nil //nolint:nilnil // absent stays absent
	}
	profile, err := enumNumber(novapb.StorageProfile_value, profilePrefix, path+".profile", c.Profile)
	if err != nil {
		return nil, err
	}
	mode, err := enumNumber(novapb.TimestampingMode_value, modePrefix, path+".timestamping", c.Timestamping)
	if err != nil {
		return nil, err
	}
	return novapb.StreamConfig_builder{
		Profile: novapb.StorageProfile(profile), RetentionAgeMs: c.RetentionAgeMs, RetentionBytes: c.RetentionBytes,
		Timestamping: novapb.TimestampingMode(mode), UncappedTimestamps: c.UncappedTimestamps, DeleteOnEmptyMs: c.DeleteOnEmptyMs,
	}.Build(), nil
}

func fromStreamConfig(c *novapb.StreamConfig) *streamConfigJSON {
	if c == nil {
		return nil
	}
	return &streamConfigJSON{
		Profile: enumName(c.GetProfile().String(), profilePrefix), Timestamping: enumName(c.GetTimestamping().String(), modePrefix),
		RetentionAgeMs:     optional.Of(c.HasRetentionAgeMs(), c.GetRetentionAgeMs()),
		RetentionBytes:     optional.Of(c.HasRetentionBytes(), c.GetRetentionBytes()),
		UncappedTimestamps: optional.Of(c.HasUncappedTimestamps(), c.GetUncappedTimestamps()),
		DeleteOnEmptyMs:    optional.Of(c.HasDeleteOnEmptyMs(), c.GetDeleteOnEmptyMs()),
	}
}

func (c *bucketConfigJSON) proto() (*novapb.BucketConfig, error) {
	if c == nil {
		return nil, nil //nolint:nilnil // absent stays absent
	}
	defaults, err := c.DefaultStreamConfig.proto("config.default_stream_config")
	if err != nil {
		return nil, err
	}
	return novapb.BucketConfig_builder{CreateStreamOnAppend: c.CreateStreamOnAppend, CreateStreamOnRead: c.CreateStreamOnRead, DefaultStreamConfig: defaults}.Build(), nil
}

// bucketJSON is a bucket.
type bucketJSON struct {
	Name      string            `json:"name"`
	State     string            `json:"state"`
	CreatedAt int64             `json:"created_at"`
	Config    *bucketConfigJSON `json:"config"`
}

func fromBucket(b *novapb.Bucket) bucketJSON {
	c := b.GetConfig()
	return bucketJSON{
		Name: b.GetName(), State: enumName(b.GetState().String(), "BUCKET_STATE_"), CreatedAt: b.GetCreatedAt(),
		Config: &bucketConfigJSON{
			CreateStreamOnAppend: optional.Of(c.HasCreateStreamOnAppend(), c.GetCreateStreamOnAppend()),
			CreateStreamOnRead:   optional.Of(c.HasCreateStreamOnRead(), c.GetCreateStreamOnRead()),
			DefaultStreamConfig:  fromStreamConfig(c.GetDefaultStreamConfig()),
		},
	}
}

// streamJSON is a stream; the extent is in the answer to GET of one stream only.
type streamJSON struct {
	Bucket    string            `json:"bucket"`
	Name      string            `json:"name"`
	StreamID  string            `json:"stream_id"`
	State     string            `json:"state"`
	CreatedAt int64             `json:"created_at"`
	Config    *streamConfigJSON `json:"config"`
	Extent    *extentJSON       `json:"extent,omitempty"`
}

type extentJSON struct {
	FirstSeq      uint64 `json:"first_seq"`
	Tail          uint64 `json:"tail"`
	StoredBytes   uint64 `json:"stored_bytes"`
	LastTimestamp int64  `json:"last_timestamp"`
	ContentHash   string `json:"content_hash"`
}

func fromStream(s *novapb.Stream) streamJSON {
	return streamJSON{
		Bucket: s.GetBucket(), Name: s.GetName(), StreamID: s.GetStreamId(), State: enumName(s.GetState().String(), "STREAM_STATE_"),
		CreatedAt: s.GetCreatedAt(), Config: fromStreamConfig(s.GetConfig()),
	}
}

// named takes a name from the path or, for POST to a collection, the body.
func named(r *http.Request, part, body string) (string, error) {
	path := r.PathValue(part)
	if path != "" && body != "" && path != body {
		return "", reason.Field("name", "is not the name in the path")
	}
	if path == "" {
		return body, nil
	}
	return path, nil
}

func (a *httpAPI) createBucket(r *http.Request) (any, error) {
	var in struct {
		Name         string            `json:"name"`
		Config       *bucketConfigJSON `json:"config"`
		RequestToken string            `json:"request_token"`
	}
	if err := decodeBody(r, &in); err != nil {
		return nil, err
	}
	name, err := named(r, "bucket", in.Name)
	if err != nil {
		return nil, err
	}
	config, err := in.Config.proto()
	if err != nil {
		return nil, err
	}
	res, err := a.buckets.CreateBucket(r.Context(), &novapb.CreateBucketRequest{Bucket: name, Config: config, RequestToken: in.RequestToken})
	if err != nil {
		return nil, err
	}
	return fromBucket(res.GetBucket()), nil
}

func (a *httpAPI) getBucket(r *http.Request) (any, error) {
	if err := newQuery(r).done(); err != nil {
		return nil, err
	}
	res, err := a.buckets.GetBucket(r.Context(), &novapb.GetBucketRequest{Bucket: r.PathValue("bucket")})
	if err != nil {
		return nil, err
	}
	return fromBucket(res.GetBucket()), nil
}

func (a *httpAPI) listBuckets(r *http.Request) (any, error) {
	q := newQuery(r)
	req := &novapb.ListBucketsRequest{Prefix: q.text("prefix"), StartAfter: q.text("start_after"), Limit: q.upTo("limit", validate.MaxListLimit)}
	if err := q.done(); err != nil {
		return nil, err
	}
	res, err := a.buckets.ListBuckets(r.Context(), req)
	if err != nil {
		return nil, err
	}
	out := struct {
		Buckets []bucketJSON `json:"buckets"`
		HasMore bool         `json:"has_more"`
	}{Buckets: []bucketJSON{}, HasMore: res.GetHasMore()}
	for _, b := range res.GetBuckets() {
		out.Buckets = append(out.Buckets, fromBucket(b))
	}
	return out, nil
}

func (a *httpAPI) updateBucket(r *http.Request) (any, error) {
	var in struct {
		Config *bucketConfigJSON `json:"config"`
	}
	if err := decodeBody(r, &in); err != nil {
		return nil, err
	}
	config, err := in.Config.proto()
	if err != nil {
		return nil, err
	}
	res, err := a.buckets.UpdateBucket(r.Context(), &novapb.UpdateBucketRequest{Bucket: r.PathValue("bucket"), Config: config})
	if err != nil {
		return nil, err
	}
	return fromBucket(res.GetBucket()), nil
}

func (a *httpAPI) deleteBucket(r *http.Request) (any, error) {
	q := newQuery(r)
	req := &novapb.DeleteBucketRequest{Bucket: r.PathValue("bucket"), Force: q.bool("force")}
	if err := q.done(); err != nil {
		return nil, err
	}
	if err := noBody(r); err != nil {
		return nil, err
	}
	_, err := a.buckets.DeleteBucket(r.Context(), req)
	return struct{}{}, err
}

func (a *httpAPI) createStream(r *http.Request) (any, error) {
	var in struct {
		Name         string            `json:"name"`
		Config       *streamConfigJSON `json:"config"`
		RequestToken string            `json:"request_token"`
	}
	if err := decodeBody(r, &in); err != nil {
		return nil, err
	}
	name, err := named(r, "stream", in.Name)
	if err != nil {
		return nil, err
	}
	config, err := in.Config.proto("config")
	if err != nil {
		return nil, err
	}
	res, err := a.streams.CreateStream(r.Context(), &novapb.CreateStreamRequest{
		Bucket: r.PathValue("bucket"), Stream: name, Config: config, RequestToken: in.RequestToken,
	})
	if err != nil {
		return nil, err
	}
	return fromStream(res.GetStream()), nil
}

func (a *httpAPI) getStream(r *http.Request) (any, error) {
	if err := newQuery(r).done(); err != nil {
		return nil, err
	}
	res, err := a.streams.GetStream(r.Context(), &novapb.GetStreamRequest{Bucket: r.PathValue("bucket"), Stream: r.PathValue("stream")})
	if err != nil {
		return nil, err
	}
	out, e := fromStream(res.GetStream()), res.GetExtent()
	out.Extent = &extentJSON{
		FirstSeq: e.GetFirstSeq(), Tail: e.GetTail(), StoredBytes: e.GetStoredBytes(), LastTimestamp: e.GetLastTimestamp(), ContentHash: hashText(e.GetContentHash()),
	}
	return out, nil
}

func (a *httpAPI) listStreams(r *http.Request) (any, error) {
	q := newQuery(r)
	req := &novapb.ListStreamsRequest{
		Bucket: r.PathValue("bucket"), Prefix: q.text("prefix"), StartAfter: q.text("start_after"), Limit: q.upTo("limit", validate.MaxListLimit),
	}
	if err := q.done(); err != nil {
		return nil, err
	}
	res, err := a.streams.ListStreams(r.Context(), req)
	if err != nil {
		return nil, err
	}
	out := struct {
		Streams []streamJSON `json:"streams"`
		HasMore bool         `json:"has_more"`
	}{Streams: []streamJSON{}, HasMore: res.GetHasMore()}
	for _, s := range res.GetStreams() {
		out.Streams = append(out.Streams, fromStream(s))
	}
	return out, nil
}

func (a *httpAPI) updateStream(r *http.Request) (any, error) {
	var in struct {
		Config   *streamConfigJSON `json:"config"`
		StreamID string            `json:"stream_id"`
	}
	if err := decodeBody(r, &in); err != nil {
		return nil, err
	}
	config, err := in.Config.proto("config")
	if err != nil {
		return nil, err
	}
	res, err := a.streams.UpdateStream(r.Context(), &novapb.UpdateStreamRequest{
		Bucket: r.PathValue("bucket"), Stream: r.PathValue("stream"), Config: config, StreamId: in.StreamID,
	})
	if err != nil {
		return nil, err
	}
	return fromStream(res.GetStream()), nil
}

func (a *httpAPI) deleteStream(r *http.Request) (any, error) {
	q := newQuery(r)
	req := &novapb.DeleteStreamRequest{Bucket: r.PathValue("bucket"), Stream: r.PathValue("stream"), StreamId: q.text("stream_id")}
	if err := q.done(); err != nil {
		return nil, err
	}
	if err := noBody(r); err != nil {
		return nil, err
	}
	_, err := a.streams.DeleteStream(r.Context(), req)
	return struct{}{}, err
}
