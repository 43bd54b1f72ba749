package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// A stream's name is one percent-encoded segment, whatever it holds.
func TestNamesAreOneEscapedSegment(t *testing.T) {
	w := newWeb(t)
	long := strings.Repeat("é", stream.MaxStreamName/2)
	for segment, name := range map[string]string{
		"s": "s", "a%2Fb": "a/b", "a%2fb": "a/b", "%2F": "/", "%2F%2F": "//", "a%2F..%2Fb": "a/../b", "a%2F": "a/",
		"a%252Fb": "a%2Fb", "a%20b": "a b", "a+b": "a+b", "%3Fseq=1%23": "?seq=1#", "é": "é", "%C3%A9": "é", "%F0%9F%98%80": "\U0001f600",
		"...": "...", "%2E%2E%2E": "...", "a:b;c=d,e": "a:b;c=d,e", "records": "records", url.PathEscape(long): long,
	} {
		t.Run(name, func(t *testing.T) {
			w.set(&novapb.CheckTailResponse{}, nil)
			if a := w.json(t, "GET", "/v1/buckets/bucket/streams/"+segment+"/tail", ""); a.status != http.StatusOK {
				t.Fatalf("%d %s", a.status, a.body)
			}
			w.want(t, &novapb.CheckTailRequest{Bucket: "bucket", Stream: name})
		})
	}
}

func TestBadNamesAreRefused(t *testing.T) {
	w := newWeb(t)
	for segment, says := range map[string]string{
		"%2E": `"."`, "%2e%2E": `".."`, "%00": "U+0000", "a%0Ab": "U+000A", "%7F": "U+007F", "%FF": "UTF-8", "a%C3": "UTF-8",
		strings.Repeat("x", stream.MaxStreamName+1): "1..512", strings.Repeat("%2F", stream.MaxStreamName+1): "1..512",
	} {
		for _, form := range []struct{ method, end, kind string }{
			{"PUT", "", ""}, {"GET", "", ""}, {"DELETE", "", ""}, {"GET", "/records", ""}, {"GET", "/tail", ""}, {"POST", "/seal", ""},
			{"POST", "/records", "application/octet-stream"}, {"POST", "/records", "application/x-ndjson"},
		} {
			t.Run(fmt.Sprint(form.method, form.end, form.kind, " ", segment), func(t *testing.T) {
				w.set(nil, nil)
				d := w.send(t, form.method, "/v1/buckets/bucket/streams/"+segment+form.end, form.kind, nil).bad(t, "stream")
				if !strings.Contains(d["message"], says) {
					t.Errorf("%q does not say %s", d["message"], says)
				}
				w.none(t)
			})
		}
	}
}

// raw sends a request line as it stands: clients clean paths.
func (w *web) raw(t *testing.T, line string) (int, http.Header) {
	t.Helper()
	address := strings.TrimPrefix(w.base, "http://")
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := fmt.Fprintf(c, "%s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", line, address); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	return res.StatusCode, res.Header
}

// A path is never redirected: a client that follows would delete the bucket
// for a stream named "..".
func TestUncleanPathsAreRefused(t *testing.T) {
	w := newWeb(t)
	for _, line := range []string{
		"DELETE /v1/buckets/bucket/streams/..", "DELETE /v1/buckets/bucket/streams/.", "GET /v1/buckets/bucket/streams/../streams/s/tail",
		"GET /v1/buckets//streams/s/tail", "GET /v1//buckets/bucket", "GET //v1/buckets", "PUT /v1/buckets/bucket/streams//records", "GET /v1/buckets/a/./streams/a%2Fb",
	} {
		t.Run(line, func(t *testing.T) {
			w.set(nil, nil)
			if code, header := w.raw(t, line); code != http.StatusBadRequest || header.Get("Location") != "" {
				t.Errorf("status %d, location %q", code, header.Get("Location"))
			}
			w.none(t)
		})
	}
}

func TestUnknownPathsAreNotFound(t *testing.T) {
	w := newWeb(t)
	for _, path := range []string{
		"/", "/v1", "/v1/", "/v2/buckets", "/v1/buckets/", "/v1/buckets/bucket/", "/v1/buckets/bucket/streams/", "/v1/buckets/bucket/streams/s/",
		"/v1/buckets/bucket/streams/s/record", "/v1/buckets/bucket/streams/a/b/records", "/v1/buckets/bucket/streams/s/records/0",
	} {
		w.set(nil, nil)
		w.json(t, "GET", path, "").refused(t, http.StatusNotFound, "NOT_FOUND", "", "")
		w.none(t)
	}
}

func TestMethodsThatAPathDoesNotHave(t *testing.T) {
	w := newWeb(t)
	const s = "/v1/buckets/bucket/streams/s"
	for _, c := range []struct{ method, path, allow string }{
		{"DELETE", "/v1/buckets", "GET, HEAD, POST"},
		{"POST", "/v1/buckets/bucket", "PUT, GET, HEAD, PATCH, DELETE"},
		{"PUT", "/v1/buckets/bucket/streams", "GET, HEAD, POST"},
		{"POST", s, "PUT, GET, HEAD, PATCH, DELETE"},
		{"OPTIONS", s, "PUT, GET, HEAD, PATCH, DELETE"},
		{"PUT", s + "/records", "GET, HEAD, POST"},
		{"DELETE", s + "/records", "GET, HEAD, POST"},
		{"POST", s + "/tail", "GET, HEAD"},
		{"GET", s + "/trim", "POST"},
		{"HEAD", s + "/seal", "POST"},
		{"POST", s + "/fence", "PUT"},
		{"POST", "/openapi.yaml", "GET, HEAD"},
	} {
		t.Run(c.method+" "+c.path, func(t *testing.T) {
			w.set(nil, nil)
			a := w.json(t, c.method, c.path, "")
			if got := a.header.Get("Allow"); got != c.allow {
				t.Errorf("Allow is %q, want %q", got, c.allow)
			}
			if c.method == "HEAD" {
				if a.status != http.StatusMethodNotAllowed || a.body != "" {
					t.Errorf("%d %q", a.status, a.body)
				}
			} else {
				a.refused(t, http.StatusMethodNotAllowed, "INVALID_ARGUMENT", "", "")
			}
			w.none(t)
		})
	}
}

// HEAD asks the same as GET and gets no body.
func TestHead(t *testing.T) {
	w := newWeb(t)
	w.set(&novapb.CheckTailResponse{Tail: 7}, nil)
	a := w.json(t, "HEAD", "/v1/buckets/bucket/streams/s/tail", "")
	if a.status != http.StatusOK || a.body != "" || a.header.Get("Content-Type") != jsonKind {
		t.Errorf("%d %q %v", a.status, a.body, a.header)
	}
	w.want(t, &novapb.CheckTailRequest{Bucket: "bucket", Stream: "s"})
	if a := w.json(t, "HEAD", "/v1/buckets/b", ""); a.status != http.StatusBadRequest || a.body != "" {
		t.Errorf("a bad name: %d %q", a.status, a.body)
	}
}

// What is not there yet says what it is.
func TestMissingFeaturesAreNamed(t *testing.T) {
	w := newWeb(t)
	req, err := http.NewRequestWithContext(t.Context(), "GET", w.base+recordsPath, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	res, err := w.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	answer{res.StatusCode, res.Header, string(b), res.Close}.refused(t, http.StatusNotImplemented, "UNIMPLEMENTED", "feature", "server-sent events")
	w.json(t, "GET", "/openapi.yaml", "").refused(t, http.StatusNotImplemented, "UNIMPLEMENTED", "feature", "the OpenAPI description")
}
