package integration

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// httpStatuses is the table of the contract.
var httpStatuses = map[codes.Code]int{
	codes.InvalidArgument: http.StatusBadRequest, codes.NotFound: http.StatusNotFound, codes.Aborted: http.StatusConflict,
	codes.OutOfRange: http.StatusRequestedRangeNotSatisfiable, codes.Unimplemented: http.StatusNotImplemented,
}

// refusedJSON sends the JSON form of a request that gRPC refused.
func (w *fieldWorld) refusedJSON(ctx context.Context, t *testing.T, m methodFields, req proto.Message, want badValue) {
	t.Helper()
	status := httpStatuses[want.code]
	if want.code == codes.FailedPrecondition {
		status = http.StatusConflict
		if want.reason == "SEQ_MISMATCH" {
			status = http.StatusPreconditionFailed
		}
	}
	got, code := w.send(ctx, t, jsonForm(ctx, t, w.http, m, req.ProtoReflect()))
	if code != status || got["code"] != wireName(want.code) || got["reason"] != string(want.reason) {
		t.Fatalf("HTTP %d %v, want %d %s %q", code, got, status, wireName(want.code), want.reason)
	}
	message, _ := got["message"].(string)
	details, ok := got["details"].(map[string]any)
	if !ok || message == "" {
		t.Fatalf("%v lacks a message or details", got)
	}
	if want.field == "wait_ms" {
		want.field = "wait"
	}
	if want.field != "" && details["field"] != want.field {
		t.Errorf("HTTP names field %v, want %q", details["field"], want.field)
	}
	if !strings.Contains(message, want.limit) {
		t.Errorf("HTTP says %q, not %q", message, want.limit)
	}
}

// send returns a JSON answer and its status.
func (w *fieldWorld) send(_ context.Context, t *testing.T, req *http.Request) (map[string]any, int) {
	t.Helper()
	res, err := http.DefaultTransport.RoundTrip(req) // follows no redirect
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]any{}
	if err := json.Unmarshal(body, &out); err != nil || res.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("%s %s: %s %q: %.200s", req.Method, req.URL, res.Status, res.Header.Get("Content-Type"), body)
	}
	return out, res.StatusCode
}

// jsonForm writes a request as the contract says: what the path does not say
// is in the query, or in a JSON body.
func jsonForm(ctx context.Context, t *testing.T, base string, m methodFields, req protoreflect.Message) *http.Request {
	t.Helper()
	rest, path := jsonOf(req), m.path
	for _, name := range []string{"bucket", "stream"} {
		if strings.Contains(path, "{"+name+"}") {
			path = strings.Replace(path, "{"+name+"}", escaped(fmt.Sprint(rest[name])), 1)
			delete(rest, name)
		}
	}
	var body io.Reader
	if m.verb == http.MethodGet || m.verb == http.MethodDelete {
		query := url.Values{}
		for name, v := range rest {
			query.Set(strings.TrimSuffix(name, "_ms"), fmt.Sprint(v))
		}
		path += "?" + query.Encode()
	} else {
		b, err := json.Marshal(rest)
		if err != nil {
			t.Fatal(err)
		}
		body = bytes.NewReader(b)
	}
	out, err := http.NewRequestWithContext(ctx, m.verb, base+path, body)
	if err != nil {
		t.Fatal(err)
	}
	out.Header.Set("Content-Type", "application/json")
	return out
}

// escaped makes a name one segment of a path, also "." and "..".
func escaped(name string) string {
	return strings.ReplaceAll(url.PathEscape(name), ".", "%2E")
}

func jsonOf(m protoreflect.Message) map[string]any {
	out := map[string]any{}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		out[string(fd.Name())] = jsonValue(fd, v)
		return true
	})
	return out
}

func jsonValue(fd protoreflect.FieldDescriptor, v protoreflect.Value) any {
	switch {
	case fd.IsList():
		out := []any{}
		for i := range v.List().Len() {
			out = append(out, jsonRecord(v.List().Get(i).Message().Interface()))
		}
		return out
	case fd.Message() != nil:
		return jsonOf(v.Message())
	case fd.Enum() != nil:
		name := fmt.Sprint(v.Enum())
		if known := fd.Enum().Values().ByNumber(v.Enum()); known != nil {
			name = string(known.Name())
		}
		for _, prefix := range []string{"STORAGE_PROFILE_", "TIMESTAMPING_MODE_"} {
			name = strings.TrimPrefix(name, prefix)
		}
		return strings.ToLower(name)
	}
	return v.Interface()
}

func jsonRecord(m proto.Message) any {
	r := m.(*novapb.AppendRecord)
	plain := utf8.Valid(r.GetBody())
	for _, h := range r.GetHeaders() {
		plain = plain && utf8.Valid(h.GetName()) && utf8.Valid(h.GetValue())
	}
	out, text := map[string]any{}, func(b []byte) string { return string(b) }
	if !plain {
		out["encoding"], text = "base64", base64.StdEncoding.EncodeToString
	}
	headers := [][]string{}
	for _, h := range r.GetHeaders() {
		headers = append(headers, []string{text(h.GetName()), text(h.GetValue())})
	}
	out["headers"], out["body"] = headers, text(r.GetBody())
	if r.HasTimestamp() {
		out["timestamp"] = r.GetTimestamp()
	}
	return out
}

// wireName is the name of google.rpc.Code.
func wireName(c codes.Code) string {
	var out strings.Builder
	for i, r := range c.String() {
		if i > 0 && r >= 'A' && r <= 'Z' {
			out.WriteByte('_')
		}
		out.WriteRune(r)
	}
	return strings.ToUpper(out.String())
}
