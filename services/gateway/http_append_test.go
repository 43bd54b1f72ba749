package gateway

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

const ulidText = "01ARZ3NDEKTSV4RRFFQ69G5FAV"

var acked = &novapb.AppendResponse{StreamId: ulidText, Ack: &novapb.AppendAck{
	FirstSeq: 1<<53 + 1, NextSeq: 1<<64 - 2, Tail: 1<<64 - 1, FirstTimestamp: 5, LastTimestamp: 6, ContentHash: 0x0123456789abcdef,
}}

// Numbers are JSON numbers with all their digits; a hash is text.
const ackedJSON = `{"first_seq":9007199254740993,"next_seq":18446744073709551614,"tail":18446744073709551615,
	"first_timestamp":5,"last_timestamp":6,"content_hash":"0123456789abcdef","stream_id":"` + ulidText + `"}`

func TestAppendOfJSON(t *testing.T) {
	w := newWeb(t)
	one := []*novapb.AppendRecord{{Body: []byte("a")}}
	for _, c := range []struct {
		what, body string
		want       *novapb.AppendRequest
	}{
		{"least", `{"records":[{"body":"a"}]}`, &novapb.AppendRequest{Records: one}},
		{
			"all", `{"records":[{"timestamp":0,"headers":[["n","1"],["m",""],["n","2"]],"body":"a"},{}],"match_seq":18446744073709551615,
				"fencing_token":"t","producer_id":"p","producer_epoch":2,"batch_seq":3,"seal":true,"stream_id":"` + ulidText + `"}`,
			&novapb.AppendRequest{
				StreamId: ulidText, MatchSeqPresence: &novapb.AppendRequest_MatchSeq{MatchSeq: 1<<64 - 1}, FencingTokenPresence: &novapb.AppendRequest_FencingToken{FencingToken: "t"}, ProducerId: "p", ProducerEpoch: 2, BatchSeq: 3, Seal: true,
				Records: []*novapb.AppendRecord{{TimestampPresence: &novapb.AppendRecord_Timestamp{Timestamp: 0}, Body: []byte("a"), Headers: []*novapb.Header{
					{Name: []byte("n"), Value: []byte("1")}, {Name: []byte("m")}, {Name: []byte("n"), Value: []byte("2")},
				}}, {}},
			},
		},
		{"0 is not absent", `{"records":[{"body":"a"}],"match_seq":0,"fencing_token":""}`, &novapb.AppendRequest{Records: one, MatchSeqPresence: &novapb.AppendRequest_MatchSeq{MatchSeq: 0}, FencingTokenPresence: &novapb.AppendRequest_FencingToken{FencingToken: ""}}},
		{"null is absent", `{"records":[{"body":"a","timestamp":null,"headers":null}],"match_seq":null,"fencing_token":null}`, &novapb.AppendRequest{Records: one}},
		{"only a seal", ` {"seal":true} `, &novapb.AppendRequest{Seal: true}},
	} {
		t.Run(c.what, func(t *testing.T) {
			w.set(acked, nil)
			w.json(t, "POST", recordsPath, c.body).ok(t, ackedJSON)
			c.want.Bucket, c.want.Stream = "bucket", "s"
			w.want(t, c.want)
		})
	}
}

func TestJSONThatIsRefused(t *testing.T) {
	w := newWeb(t)
	for _, c := range []struct{ what, method, path, body, field string }{
		{"no body", "POST", "records", ``, ""},
		{"nothing in it", "POST", "records", `{}`, "records"},
		{"no records", "POST", "records", `{"records":[]}`, "records"},
		{"records that are an object", "POST", "records", `{"records":{}}`, "records"},
		{"a list", "POST", "records", `[]`, "body"},
		{"an unknown key", "POST", "records", `{"records":[{}],"matchseq":1}`, "matchseq"},
		{"a number in quotes", "POST", "records", `{"records":[{}],"match_seq":"1"}`, "match_seq"},
		{"a number below 0", "POST", "records", `{"records":[{}],"match_seq":-1}`, "match_seq"},
		{"a number with a fraction", "POST", "records", `{"records":[{}],"match_seq":1.0}`, "match_seq"},
		{"a number above 64 bits", "POST", "records", `{"records":[{}],"match_seq":18446744073709551616}`, "match_seq"},
		{"a bool in quotes", "POST", "records", `{"records":[{}],"seal":"true"}`, "seal"},
		{"a second value", "POST", "records", `{"records":[{}]}{}`, "body"},
		{"a cut body", "POST", "records", `{"records":[{}`, "body"},
		{"a parameter", "POST", "records?match_seq=1", `{"records":[{}]}`, "match_seq"},
		{"too many records", "POST", "records", `{"records":[{}` + strings.Repeat(`,{}`, stream.MaxBatchRecords) + `]}`, "records"},
		{"a producer's field without one", "POST", "records", `{"records":[{}],"batch_seq":1}`, "batch_seq"},
		{"a trim to nowhere", "POST", "trim", `{}`, "seq"},
		{"a trim without a body", "POST", "trim", ``, "seq"},
		{"a trim by a parameter", "POST", "trim?seq=1", `{"seq":1}`, "seq"},
		{"a trim with an unknown key", "POST", "trim", `{"seq":1,"force":true}`, "force"},
		{"a seal that a parameter should guard", "POST", "seal?match_seq=1", ``, "match_seq"},
		{"a seal with an unknown key", "POST", "seal", `{"seq":1}`, "seq"},
		{"a fence without a token", "PUT", "fence", `{}`, "token"},
		{"a fence with a long token", "PUT", "fence", `{"token":"` + strings.Repeat("t", stream.MaxTokenBytes+1) + `"}`, "token"},
	} {
		t.Run(c.what, func(t *testing.T) {
			w.set(nil, nil)
			a := w.json(t, c.method, "/v1/buckets/bucket/streams/s/"+c.path, c.body)
			if c.what == "no body" {
				// Without a body there is no content type either.
				a.refused(t, http.StatusUnsupportedMediaType, "INVALID_ARGUMENT", "", "")
			} else {
				a.bad(t, c.field)
			}
			w.none(t)
		})
	}
}

// One body is one record, whatever bytes it holds.
func TestAppendOfBytes(t *testing.T) {
	w := newWeb(t)
	for what, body := range map[string]string{
		"text": "a\nb\n", "nothing": "", "all bytes": manyBytes(), "JSON": `{"records":[]}`, "the largest": strings.Repeat("\xff", stream.MaxRecordBytes),
	} {
		t.Run(what, func(t *testing.T) {
			w.set(acked, nil)
			w.send(t, "POST", recordsPath, "application/octet-stream", strings.NewReader(body)).ok(t, ackedJSON)
			w.want(t, &novapb.AppendRequest{Bucket: "bucket", Stream: "s", Records: []*novapb.AppendRecord{{Body: []byte(body)}}})
		})
	}
}

func TestContentTypes(t *testing.T) {
	w := newWeb(t)
	const s = "/v1/buckets/bucket/streams/s"
	for _, c := range []struct {
		method, path, kind string
		status             int
	}{
		{"POST", s + "/records", "application/json", 200},
		{"POST", s + "/records", "application/json; charset=utf-8", 200},
		{"POST", s + "/records", "Application/JSON", 200},
		{"POST", s + "/records", "", 415},
		{"POST", s + "/records", "text/plain", 415},
		{"POST", s + "/records", "application/x-www-form-urlencoded", 415},
		{"POST", s + "/records", "application/jsonp", 415},
		{"POST", s + "/records", "json", 415},
		{"POST", s + "/seal", "application/json", 200},
		{"POST", s + "/seal", "application/octet-stream", 415},
		{"POST", s + "/seal", "application/x-ndjson", 415},
		{"PUT", s, "text/plain", 415},
		{"PATCH", "/v1/buckets/bucket", "", 415},
	} {
		t.Run(fmt.Sprint(c.method, c.path, " ", c.kind), func(t *testing.T) {
			w.set(nil, nil)
			body := "{}"
			if strings.HasSuffix(c.path, "records") {
				body = `{"records":[{}]}`
			}
			a := w.send(t, c.method, c.path, c.kind, strings.NewReader(body))
			if c.status == http.StatusOK {
				if a.status != c.status {
					t.Errorf("%d %s", a.status, a.body)
				}
				return
			}
			if d := a.refused(t, c.status, "INVALID_ARGUMENT", "", ""); !strings.Contains(d["message"], "application/json") {
				t.Errorf("%q does not say what is wanted", d["message"])
			}
			w.none(t)
		})
	}
}

// unsized hides how long a body is.
type unsized struct{ *bytes.Reader }

func TestLargeBodies(t *testing.T) {
	w := newWeb(t)
	for _, c := range []struct {
		what, kind string
		size       int
		limit      string
	}{
		{"a record", "application/octet-stream", stream.MaxRecordBytes + 1, "1048576"},
		{"JSON", jsonKind, maxJSONBody + 1, "8388608"},
	} {
		body := bytes.Repeat([]byte(" "), c.size)
		for _, sized := range []bool{true, false} {
			t.Run(fmt.Sprint(c.what, sized), func(t *testing.T) {
				w.set(nil, nil)
				var a answer
				if sized {
					a = w.send(t, "POST", recordsPath, c.kind, bytes.NewReader(body))
				} else {
					a = w.send(t, "POST", recordsPath, c.kind, unsized{bytes.NewReader(body)})
				}
				if d := a.refused(t, http.StatusRequestEntityTooLarge, "INVALID_ARGUMENT", "", ""); !strings.Contains(d["message"], c.limit) {
					t.Errorf("%q does not say %s", d["message"], c.limit)
				}
				w.none(t)
			})
		}
	}
}

func TestTrimSealAndFence(t *testing.T) {
	w := newWeb(t)
	const s = "/v1/buckets/bucket/streams/s/"
	for _, c := range []struct {
		method, path, body string
		answer, want       proto.Message
		json               string
	}{
		{"POST", "trim", `{"seq":0}`, &novapb.TrimResponse{FirstSeq: 3, Tail: 9}, &novapb.TrimRequest{}, `{"first_seq":3,"tail":9}`},
		{
			"POST", "trim", `{"seq":5,"stream_id":"` + ulidText + `","fencing_token":""}`, &novapb.TrimResponse{},
			&novapb.TrimRequest{Seq: 5, StreamId: ulidText, FencingTokenPresence: &novapb.TrimRequest_FencingToken{FencingToken: ""}}, `{"first_seq":0,"tail":0}`,
		},
		{"POST", "seal", ``, &novapb.SealStreamResponse{Tail: 9}, &novapb.SealStreamRequest{}, `{"tail":9}`},
		{
			"POST", "seal", `{"match_seq":0,"stream_id":"` + ulidText + `","fencing_token":"t"}`, &novapb.SealStreamResponse{},
			&novapb.SealStreamRequest{MatchSeqPresence: &novapb.SealStreamRequest_MatchSeq{MatchSeq: 0}, StreamId: ulidText, FencingTokenPresence: &novapb.SealStreamRequest_FencingToken{FencingToken: "t"}}, `{"tail":0}`,
		},
		{"PUT", "fence", `{"token":""}`, &novapb.SetFencingTokenResponse{Tail: 9}, &novapb.SetFencingTokenRequest{}, `{"tail":9}`},
		{
			"PUT", "fence", `{"token":"new","stream_id":"` + ulidText + `","fencing_token":"old"}`, &novapb.SetFencingTokenResponse{},
			&novapb.SetFencingTokenRequest{Token: "new", StreamId: ulidText, FencingTokenPresence: &novapb.SetFencingTokenRequest_FencingToken{FencingToken: "old"}}, `{"tail":0}`,
		},
	} {
		t.Run(c.path+c.body, func(t *testing.T) {
			w.set(c.answer, nil)
			w.json(t, c.method, s+c.path, c.body).ok(t, c.json)
			m := c.want.ProtoReflect()
			for name, v := range map[string]string{"bucket": "bucket", "stream": "s"} {
				setText(m, name, v)
			}
			w.want(t, c.want)
		})
	}
}
