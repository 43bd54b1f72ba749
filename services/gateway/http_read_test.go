package gateway

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

func setText(m protoreflect.Message, name, value string) {
	m.Set(m.Descriptor().Fields().ByName(protoreflect.Name(name)), protoreflect.ValueOf(value))
}

func TestReadParameters(t *testing.T) {
	w := newWeb(t)
	for query, want := range map[string]*novapb.ReadRequest{
		"":                            {},
		"?":                           {},
		"?seq=0":                      {Start: &novapb.ReadRequest_Seq{Seq: 0}},
		"?seq=18446744073709551615":   {Start: &novapb.ReadRequest_Seq{Seq: 1<<64 - 1}},
		"?timestamp=0":                {Start: &novapb.ReadRequest_Timestamp{Timestamp: 0}},
		"?timestamp=253402300799999":  {Start: &novapb.ReadRequest_Timestamp{Timestamp: 253402300799999}},
		"?tail_offset=10":             {Start: &novapb.ReadRequest_TailOffset{TailOffset: 10}},
		"?count=0":                    {CountPresence: &novapb.ReadRequest_Count{Count: 0}},
		"?bytes=0&count=7":            {BytesPresence: &novapb.ReadRequest_Bytes{Bytes: 0}, CountPresence: &novapb.ReadRequest_Count{Count: 7}},
		"?until=5":                    {UntilPresence: &novapb.ReadRequest_Until{Until: 5}},
		"?wait=60000":                 {WaitMs: 60000},
		"?clamp":                      {Clamp: true},
		"?clamp=true":                 {Clamp: true},
		"?clamp=false":                {},
		"?stream_id=" + ulidText:      {StreamId: ulidText},
		"?seq=&timestamp=&count=":     {},
		"?%73eq=%33":                  {Start: &novapb.ReadRequest_Seq{Seq: 3}},
		"?seq=1&count=2&wait=3&clamp": {Start: &novapb.ReadRequest_Seq{Seq: 1}, CountPresence: &novapb.ReadRequest_Count{Count: 2}, WaitMs: 3, Clamp: true},
	} {
		t.Run(query, func(t *testing.T) {
			w.set(nil, nil)
			if a := w.json(t, "GET", recordsPath+query, ""); a.status != http.StatusOK {
				t.Fatalf("%d %s", a.status, a.body)
			}
			want.Bucket, want.Stream = "bucket", "s"
			w.want(t, want)
		})
	}
}

func TestBadParameters(t *testing.T) {
	w := newWeb(t)
	const s = "/v1/buckets/bucket/streams/s"
	for _, c := range []struct{ method, path, field, says string }{
		{"GET", s + "/records?seq=-1", "seq", "from 0"},
		{"GET", s + "/records?seq=x", "seq", "from 0"},
		{"GET", s + "/records?seq=1.5", "seq", "from 0"},
		{"GET", s + "/records?seq=1e3", "seq", "from 0"},
		{"GET", s + "/records?seq=%2B1", "seq", "from 0"},
		{"GET", s + "/records?seq=18446744073709551616", "seq", "from 0"},
		{"GET", s + "/records?seq=1&seq=2", "seq", "once"},
		{"GET", s + "/records?seq=1&timestamp=2", "seq", "only one"},
		{"GET", s + "/records?timestamp=1&tail_offset=2", "seq", "only one"},
		{"GET", s + "/records?timestamp=now", "timestamp", "milliseconds"},
		{"GET", s + "/records?timestamp=-1", "timestamp", "253402300799999"},
		{"GET", s + "/records?until=253402300800000", "until", "253402300799999"},
		{"GET", s + "/records?count=ten", "count", "from 0"},
		{"GET", s + "/records?bytes=1k", "bytes", "from 0"},
		{"GET", s + "/records?wait=60001", "wait", "60000"},
		{"GET", s + "/records?wait=4294967297", "wait", "60000"},
		{"GET", s + "/records?wait=1s", "wait", "from 0"},
		{"GET", s + "/records?clamp=maybe", "clamp", "true or false"},
		{"GET", s + "/records?stream_id=x", "stream_id", "26"},
		{"GET", s + "/records?Seq=1", "Seq", "not a parameter"},
		{"GET", s + "/records?from=1", "from", "not a parameter"},
		{"GET", s + "/records?seq=%zz", "query", "parsed"},
		{"GET", s + "/records?seq=1;count=2", "query", "parsed"},
		{"GET", s + "/tail?seq=1", "seq", "not a parameter"},
		{"GET", s + "/tail?stream_id=x", "stream_id", "26"},
		{"GET", s + "?stream_id=" + ulidText, "stream_id", "not a parameter"},
		{"DELETE", s + "?id=x", "id", "not a parameter"},
		{"DELETE", s + "?stream_id=x", "stream_id", "26"},
		{"GET", "/v1/buckets?limit=1001", "limit", "1000"},
		{"GET", "/v1/buckets?limit=4294967297", "limit", "1000"},
		{"GET", "/v1/buckets?prefix=" + strings.Repeat("x", 64), "prefix", "63"},
		{"GET", "/v1/buckets?prefix=%ff", "prefix", "UTF-8"},
		{"GET", "/v1/buckets/bucket/streams?limit=all", "limit", "from 0"},
		{"GET", "/v1/buckets/bucket/streams?start-after=s", "start-after", "not a parameter"},
		{"GET", "/v1/buckets/bucket?force=1", "force", "not a parameter"},
		{"DELETE", "/v1/buckets/bucket?force=yes", "force", "true or false"},
		{"PUT", s + "?profile=standard", "profile", "not a parameter"},
	} {
		t.Run(c.method+" "+c.path, func(t *testing.T) {
			w.set(nil, nil)
			if d := w.json(t, c.method, c.path, "").bad(t, c.field); !strings.Contains(d["message"], c.says) {
				t.Errorf("%q does not say %q", d["message"], c.says)
			}
			w.none(t)
		})
	}
}

func TestReadAnswers(t *testing.T) {
	w := newWeb(t)
	w.set(&novapb.ReadResponse{
		Records: []*novapb.Record{
			{Seq: 1<<53 + 1, Timestamp: 1, Body: []byte("a<b")},
			{Seq: 1<<53 + 2, Timestamp: 1, Headers: []*novapb.Header{{Name: []byte("n"), Value: []byte("v")}, {Name: []byte("n")}}, Body: []byte{0xff}},
		},
		NextSeq: 1<<53 + 3, Tail: 1<<64 - 1, FirstSeq: 4, StreamId: ulidText, HashBefore: 1, HashAfter: 0xfedcba9876543210, EndOfStream: true,
	}, nil)
	w.json(t, "GET", recordsPath, "").ok(t, `{"records":[
		{"seq":9007199254740993,"timestamp":1,"headers":[],"body":"a<b"},
		{"seq":9007199254740994,"timestamp":1,"headers":[["bg==","dg=="],["bg==",""]],"body":"/w==","encoding":"base64"}],
		"next_seq":9007199254740995,"tail":18446744073709551615,"first_seq":4,"stream_id":"`+ulidText+`",
		"hash_before":"0000000000000001","hash_after":"fedcba9876543210","end_of_stream":true}`)
}

// A page without records has an empty list, not null, and says where it is.
func TestEmptyPage(t *testing.T) {
	w := newWeb(t)
	w.set(&novapb.ReadResponse{NextSeq: 7, Tail: 7, FirstSeq: 7, StreamId: ulidText}, nil)
	w.json(t, "GET", recordsPath+"?seq=7", "").ok(t, `{"records":[],"next_seq":7,"tail":7,"first_seq":7,"stream_id":"`+ulidText+`",
		"hash_before":"0000000000000000","hash_after":"0000000000000000"}`)
}

func TestTailAnswer(t *testing.T) {
	w := newWeb(t)
	w.set(&novapb.CheckTailResponse{Tail: 9, LastTimestamp: 5, ContentHash: 1, FirstSeq: 2, StreamId: ulidText, Sealed: true}, nil)
	w.json(t, "GET", "/v1/buckets/bucket/streams/s/tail?stream_id="+ulidText, "").ok(t, fmt.Sprintf(
		`{"tail":9,"last_timestamp":5,"content_hash":"%016x","first_seq":2,"stream_id":%q,"sealed":true}`, 1, ulidText))
	w.want(t, &novapb.CheckTailRequest{Bucket: "bucket", Stream: "s", StreamId: ulidText})
}
