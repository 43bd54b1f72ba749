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
	"time"

	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// webClient speaks the JSON form of one node.
type webClient struct{ streams string }

// startWeb starts a node and returns both of its public forms.
func startWeb(t *testing.T) (*client, webClient) {
	t.Helper()
	node := startNode(t, newStorage().config(t))
	t.Cleanup(func() { stopNode(t, node) })
	awaitReady(t, node)
	return dial(t, node.Addr()), webClient{"http://" + node.HTTPAddr() + "/v1/buckets/" + bucket + "/streams/"}
}

// call sends a body and decodes the answer into out.
func (w webClient) call(t *testing.T, method, path, kind string, body io.Reader, out any) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, w.streams+path, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", kind)
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, out); err != nil {
		t.Fatalf("%s %s: %s %s: %v", method, path, res.Status, b, err)
	}
	return res.StatusCode
}

type webAck struct {
	Records     uint64 `json:"records"`
	FirstSeq    uint64 `json:"first_seq"`
	NextSeq     uint64 `json:"next_seq"`
	Tail        uint64 `json:"tail"`
	ContentHash string `json:"content_hash"`
	StreamID    string `json:"stream_id"`
}

type webPage struct {
	Records []struct {
		Seq      uint64      `json:"seq"`
		Headers  [][2]string `json:"headers"`
		Body     string      `json:"body"`
		Encoding string      `json:"encoding"`
	} `json:"records"`
	NextSeq   uint64 `json:"next_seq"`
	Tail      uint64 `json:"tail"`
	HashAfter string `json:"hash_after"`
}

func (p webPage) bodies(t *testing.T) (out []string) {
	t.Helper()
	for _, r := range p.Records {
		b := []byte(r.Body)
		if r.Encoding == "base64" {
			var err error
			if b, err = base64.StdEncoding.DecodeString(r.Body); err != nil {
				t.Fatal(err)
			}
		}
		out = append(out, string(b))
	}
	return out
}

// What is appended in one form is read in the other, byte for byte, in a stream
// whose name needs escapes.
func TestBothFormsSeeTheSameRecords(t *testing.T) {
	c, w := startWeb(t)
	const name = "a/b é %2F .."
	var created struct {
		Name, State string
		StreamID    string `json:"stream_id"`
	}
	path := url.PathEscape(name)
	if code := w.call(t, "PUT", path, "", nil, &created); code != http.StatusOK || created.Name != name || created.State != "active" {
		t.Fatalf("%d %+v", code, created)
	}
	want := []string{"text", "\xff\x00\xfe", "", "raw\r\n\x00\xff", "from gRPC \xff"}
	var ack webAck
	body, err := json.Marshal(map[string]any{"match_seq": 0, "records": []any{
		map[string]any{"body": want[0]},
		map[string]any{"body": []byte(want[1]), "encoding": "base64"},
		map[string]any{"headers": [][]string{{"n", "v"}, {"n", ""}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if code := w.call(t, "POST", path+"/records", "application/json", bytes.NewReader(body), &ack); code != http.StatusOK || ack.NextSeq != 3 || ack.StreamID != created.StreamID {
		t.Fatalf("%d %+v", code, ack)
	}
	if code := w.call(t, "POST", path+"/records", "application/octet-stream", strings.NewReader(want[3]), &ack); code != http.StatusOK || ack.FirstSeq != 3 {
		t.Fatalf("%d %+v", code, ack)
	}
	c.append(t, 4, name, want[4])
	c.expect(t, name, 0, want...)
	var page webPage
	if code := w.call(t, "GET", path+"/records?seq=0", "", nil, &page); code != http.StatusOK || page.NextSeq != 5 || page.Tail != 5 {
		t.Fatalf("%d %+v", code, page)
	}
	if got := page.bodies(t); fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
		t.Errorf("read %q, want %q", got, want)
	}
	if h := page.Records[2].Headers; len(h) != 2 || h[0] != [2]string{"n", "v"} || h[1] != [2]string{"n", ""} {
		t.Errorf("headers %q", h)
	}
	if want := fmt.Sprintf("%016x", c.tail(t, name).GetContentHash()); page.HashAfter != want {
		t.Errorf("content hash %s, of gRPC %s", page.HashAfter, want)
	}
	c.mustVerify(t)
}

// More lines than a batch holds are stored in order and told in one summary;
// the records before a bad line stay.
func TestLinesOverHTTP(t *testing.T) {
	c, w := startWeb(t)
	c.create(t, "s", nil)
	const n = 3*stream.MaxBatchRecords + 1
	var lines strings.Builder
	var want []string
	for i := range n {
		want = append(want, fmt.Sprint("line ", i))
		fmt.Fprintf(&lines, "{\"body\":%q}\n", want[i])
	}
	var ack webAck
	if code := w.call(t, "POST", "s/records", "application/x-ndjson", strings.NewReader(lines.String()), &ack); code != http.StatusOK || ack.Records != n || ack.FirstSeq != 0 || ack.NextSeq != n || ack.Tail != n {
		t.Fatalf("%d %+v", code, ack)
	}
	if h := fmt.Sprintf("%016x", c.tail(t, "s").GetContentHash()); ack.ContentHash != h {
		t.Errorf("the summary has content hash %s, the tail %s", ack.ContentHash, h)
	}
	var refused struct {
		Code, Message string
		Details       map[string]string
	}
	code := w.call(t, "POST", "s/records", "application/x-ndjson", strings.NewReader("{\"body\":\"one more\"}\n{\"headers\":[[\"\",\"v\"]]}\n{}\n"), &refused)
	if code != http.StatusBadRequest || refused.Details["field"] != "line 2.headers[0].name" || !strings.Contains(refused.Message, fmt.Sprintf("1 records were stored before, seq %d..%d", n, n)) {
		t.Errorf("%d %+v", code, refused)
	}
	c.expect(t, "s", 0, append(want, "one more")...)
}

// A sealed stream says so with its final tail, in each form of an append.
func TestAppendToASealedStreamOverHTTP(t *testing.T) {
	c, w := startWeb(t)
	c.create(t, "s", nil)
	c.append(t, 0, "s", "a", "b")
	var sealed struct{ Tail uint64 }
	if code := w.call(t, "POST", "s/seal", "", nil, &sealed); code != http.StatusOK || sealed.Tail != 2 {
		t.Fatalf("%d %+v", code, sealed)
	}
	for kind, body := range map[string]string{"application/json": `{"records":[{}]}`, "application/octet-stream": "x", "application/x-ndjson": "{}\n"} {
		var e struct {
			Reason  string
			Details map[string]string
		}
		if code := w.call(t, "POST", "s/records", kind, strings.NewReader(body), &e); code != http.StatusConflict || e.Reason != "STREAM_SEALED" || e.Details["tail"] != "2" || e.Details["outcome"] != "NOT_COMMITTED" {
			t.Errorf("%s: %d %+v", kind, code, e)
		}
	}
	c.expect(t, "s", 0, "a", "b")
}

// A read that waits is answered by the next append; one at the tail that does
// not wait is empty at once.
func TestReadWaitsOverHTTP(t *testing.T) {
	c, w := startWeb(t)
	c.create(t, "s", nil)
	var page webPage
	if code := w.call(t, "GET", "s/records?seq=0", "", nil, &page); code != http.StatusOK || page.Records == nil || len(page.Records) != 0 || page.NextSeq != 0 {
		t.Fatalf("%d %+v", code, page)
	}
	answered := make(chan webPage, 1)
	go func() {
		var page webPage
		defer func() { answered <- page }()
		w.call(t, "GET", "s/records?seq=0&wait=60000", "", nil, &page)
	}()
	select {
	case page := <-answered:
		t.Fatalf("answered before there was a record: %+v", page)
	case <-time.After(100 * time.Millisecond):
	}
	c.append(t, 0, "s", "a")
	if page := <-answered; len(page.Records) != 1 || page.Records[0].Body != "a" {
		t.Fatalf("%+v", page)
	}
}

// A start outside of the stream is 416 with the number that helps.
func TestReadOutsideOverHTTP(t *testing.T) {
	c, w := startWeb(t)
	c.create(t, "s", nil)
	c.append(t, 0, "s", "a", "b", "c")
	if _, err := c.appends.Trim(t.Context(), &novapb.TrimRequest{Bucket: bucket, Stream: "s", Seq: 2}); err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string][3]string{"seq=1": {"TRIMMED", "first_seq", "2"}, "seq=4": {"BEYOND_TAIL", "tail", "3"}} {
		var e struct {
			Reason  string
			Details map[string]string
		}
		if code := w.call(t, "GET", "s/records?"+query, "", nil, &e); code != http.StatusRequestedRangeNotSatisfiable || e.Reason != want[0] || e.Details[want[1]] != want[2] {
			t.Errorf("%s: %d %+v", query, code, e)
		}
		var page webPage
		if code := w.call(t, "GET", "s/records?clamp&"+query, "", nil, &page); code != http.StatusOK {
			t.Errorf("%s, clamped: %d", query, code)
		}
	}
}
