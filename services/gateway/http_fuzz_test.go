package gateway

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// Any record goes through its JSON form unchanged.
func FuzzRecordThroughJSON(f *testing.F) {
	for _, of := range bytesOf {
		f.Add([]byte("n"), []byte(of.bytes), []byte(of.bytes))
	}
	f.Fuzz(func(t *testing.T, name, value, body []byte) {
		in := &novapb.Record{Seq: 1, Timestamp: 2, Headers: []*novapb.Header{{Name: name, Value: value}}, Body: body}
		form := fromRecord(in)
		form.Seq = nil // a stream's to give
		text, err := json.Marshal(form)
		if err != nil {
			t.Fatal(err)
		}
		var back recordJSON
		if err := decodeJSON(text, &back); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		out, err := back.toRecord("record")
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		h := out.GetHeaders()
		if len(h) != 1 || !bytes.Equal(h[0].GetName(), name) || !bytes.Equal(h[0].GetValue(), value) || !bytes.Equal(out.GetBody(), body) || out.GetTimestamp() != 2 {
			t.Fatalf("%v became %v", in, out)
		}
	})
}

// Text that is accepted holds no replacement character that was not sent.
func FuzzJSONWithoutReplacements(f *testing.F) {
	for _, s := range []string{
		`{"body":"\ud83d\ude00"}`, `{"body":"\ud83d"}`, `{"body":"\\ud83d"}`, `{"body":"\\\ud83d"}`, `{"body":"\ufffd"}`, "{\"body\":\"\ufffd\"}", "{\"body\":\"\xff\"}",
		`{"headers":[["\udfff","\ud800\ud800"]]}`, `{"body":"\ud83d\\ude00"}`, `{"body":"\uD83D\u0041"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var r recordJSON
		if decodeJSON(text, &r) != nil {
			return
		}
		all := r.Body
		for _, h := range r.Headers {
			all += strings.Join(h, "")
		}
		const replacement = "\ufffd"
		sent := strings.Count(string(text), replacement) + strings.Count(strings.ToLower(string(text)), `\ufffd`)
		if got := strings.Count(all, replacement); got > sent {
			t.Fatalf("%q has %d replacement characters, %d were sent in %q", all, got, sent, text)
		}
	})
}
