package gateway

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

const recordsPath = "/v1/buckets/bucket/streams/s/records"

// bytesOf are bodies that text formats get wrong; of those that are not UTF-8
// the JSON form is base64.
var bytesOf = []struct {
	what, bytes string
	base64      bool
}{
	{"empty", "", false}, {"text", "hello", false}, {"NUL", "a\x00b", false}, {"CR LF", "a\r\nb\n", false}, {"quotes", `"\/`, false},
	{"HTML", "<&>", false}, {"line separators", "\u2028\u2029", false}, {"an astral character", "\U0001f600", false},
	{"the replacement character itself", "\ufffd", false}, {"a BOM", "\ufeffx", false}, {"a noncharacter", "\uffff", false},
	{"not UTF-8", "\xff", true}, {"a cut character", "a\xc3", true}, {"an encoded surrogate", "\xed\xa0\x80", true},
	{"an overlong NUL", "\xc0\x80", true}, {"many bytes", manyBytes(), true},
}

func manyBytes() string {
	b := make([]byte, 250)
	for i := range b {
		b[i] = byte(255 - i)
	}
	return string(b)
}

// Every byte comes back as it was: text as text, and a record of which
// anything is not UTF-8 in base64.
func TestRecordsKeepTheirBytes(t *testing.T) {
	w := newWeb(t)
	type shape struct {
		what     string
		headers  []*novapb.Header
		body     string
		encoding string
	}
	var shapes []shape
	for _, of := range bytesOf {
		what, b, encoding := of.what, of.bytes, ""
		if of.base64 {
			encoding = "base64"
		}
		shapes = append(shapes,
			shape{what + " as body", nil, b, encoding},
			shape{what + " as a header's value", []*novapb.Header{{Name: []byte("n"), Value: []byte(b)}}, "body", encoding},
			shape{what + " as a header's name", []*novapb.Header{{Name: []byte("n" + b)}, {Name: []byte("n" + b)}}, "body", encoding})
	}
	for _, s := range shapes {
		t.Run(s.what, func(t *testing.T) {
			w.set(&novapb.ReadResponse{Records: []*novapb.Record{
				{Seq: 1, Timestamp: 2, Headers: s.headers, Body: []byte(s.body)},
				{Seq: 2, Timestamp: 2, Body: []byte("plain")},
			}}, nil)
			a := w.json(t, "GET", recordsPath, "")
			if strings.Contains(a.body, "\ufffd") && !strings.Contains(s.what, "replacement") {
				t.Fatalf("a replacement character in %s", a.body)
			}
			var page struct{ Records []json.RawMessage }
			if err := json.Unmarshal([]byte(a.body), &page); err != nil || len(page.Records) != 2 {
				t.Fatalf("%v: %s", err, a.body)
			}
			if strings.Contains(string(page.Records[1]), "encoding") {
				t.Errorf("the encoding is per record, and this is text: %s", page.Records[1])
			}
			// Sent as it came, but for its number, it is the same record.
			var got map[string]any
			if err := json.Unmarshal(page.Records[0], &got); err != nil {
				t.Fatal(err)
			}
			if e, _ := got["encoding"].(string); e != s.encoding {
				t.Errorf("encoding %q, want %q", e, s.encoding)
			}
			delete(got, "seq")
			again, err := json.Marshal(map[string]any{"records": []any{got}})
			if err != nil {
				t.Fatal(err)
			}
			w.set(nil, nil)
			if a := w.json(t, "POST", recordsPath, string(again)); a.status != http.StatusOK {
				t.Fatalf("%d %s", a.status, a.body)
			}
			w.want(t, &novapb.AppendRequest{Bucket: "bucket", Stream: "s", Records: []*novapb.AppendRecord{
				{TimestampPresence: &novapb.AppendRecord_Timestamp{Timestamp: 2}, Headers: s.headers, Body: []byte(s.body)},
			}})
		})
	}
}

func TestRecordsThatAreRefused(t *testing.T) {
	w := newWeb(t)
	for _, c := range []struct{ what, record, field, says string }{
		{"null", `null`, "records[1]", "null"},
		{"text", `"a"`, "records", "object"},
		{"an unknown key", `{"bdoy":"a"}`, "bdoy", "not a field"},
		{"a number of its own", `{"seq":3,"body":"a"}`, "records[1].seq", "match_seq"},
		{"body that is a number", `{"body":1}`, "records.body", "a string"},
		{"timestamp that is text", `{"timestamp":"1"}`, "records.timestamp", "whole number"},
		{"timestamp with a fraction", `{"timestamp":1.5}`, "records.timestamp", "whole number"},
		{"timestamp that is too large", `{"timestamp":9223372036854775808}`, "records.timestamp", "whole number"},
		{"timestamp below 0", `{"timestamp":-1}`, "records[1].timestamp", "253402300799999"},
		{"headers that are an object", `{"headers":{"n":"v"}}`, "records.headers", "a list"},
		{"a header without a value", `{"headers":[["a","b"],["n"]]}`, "records[1].headers[1]", "1 elements"},
		{"a header with more", `{"headers":[["n","v","w"]]}`, "records[1].headers[0]", "3 elements"},
		{"a header that is null", `{"headers":[null]}`, "records[1].headers[0]", "0 elements"},
		{"a header without a name", `{"headers":[["","v"]]}`, "records[1].headers[0].name", "1..255"},
		{"another encoding", `{"body":"a","encoding":"hex"}`, "records[1].encoding", "base64"},
		{"no base64", `{"body":"a?","encoding":"base64"}`, "records[1].body", "not base64"},
		{"base64 without padding", `{"body":"YQ","encoding":"base64"}`, "records[1].body", "not base64"},
		{"base64 of the web", `{"body":"_-8=","encoding":"base64"}`, "records[1].body", "not base64"},
		{"a header that is not base64", `{"headers":[["bg==","?"]],"encoding":"base64"}`, "records[1].headers[0]", "not base64"},
		{"half a surrogate pair", `{"body":"\ud83d"}`, "body", "surrogate"},
		{"a low surrogate first", `{"body":"\ude00\ud83d"}`, "body", "surrogate"},
		{"half a pair before an escape", `{"body":"\ud83d\n"}`, "body", "surrogate"},
		{"bytes that are not UTF-8", "{\"body\":\"\xff\"}", "body", "UTF-8"},
		{"too large", fmt.Sprintf(`{"body":%q}`, strings.Repeat("x", 1<<20+1)), "records[1]", "1048576"},
	} {
		t.Run(c.what, func(t *testing.T) {
			w.set(nil, nil)
			d := w.json(t, "POST", recordsPath, `{"records":[{"body":"good"},`+c.record+`]}`).bad(t, c.field)
			if !strings.Contains(d["message"], c.says) {
				t.Errorf("%q does not say %q", d["message"], c.says)
			}
			if strings.Contains(d["message"], "gateway.") {
				t.Errorf("%q speaks of Go types", d["message"])
			}
			w.none(t)
		})
	}
}

// Escapes that are fine are not taken for broken ones.
func TestEscapesInBodies(t *testing.T) {
	w := newWeb(t)
	for escaped, want := range map[string]string{
		`\ud83d\ude00`: "\U0001f600", `\uD83D\uDE00`: "\U0001f600", `\\ud83d`: `\ud83d`, `\u0000`: "\x00", `\ufffd`: "\ufffd", `\/`: "/",
	} {
		w.set(nil, nil)
		if a := w.json(t, "POST", recordsPath, `{"records":[{"body":"`+escaped+`"}]}`); a.status != http.StatusOK {
			t.Fatalf("%s: %d %s", escaped, a.status, a.body)
		}
		w.want(t, &novapb.AppendRequest{Bucket: "bucket", Stream: "s", Records: []*novapb.AppendRecord{{Body: []byte(want)}}})
	}
	// Base64 of text is text as well.
	w.set(nil, nil)
	w.json(t, "POST", recordsPath, `{"records":[{"headers":[["bg==",""]],"body":"`+base64.StdEncoding.EncodeToString([]byte("a"))+`","encoding":"base64"}]}`)
	w.want(t, &novapb.AppendRequest{Bucket: "bucket", Stream: "s", Records: []*novapb.AppendRecord{
		{Headers: []*novapb.Header{{Name: []byte("n")}}, Body: []byte("a")},
	}})
}
