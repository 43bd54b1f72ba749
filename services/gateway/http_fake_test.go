package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/discovery/local"
	"github.com/nova-stream/nova/libs/rpc"
	"github.com/nova-stream/nova/libs/validate"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// fake is the public services behind the JSON form. It keeps what it was asked
// and answers what a test says.
type fake struct {
	novapb.UnimplementedBucketServiceServer
	novapb.UnimplementedStreamServiceServer
	novapb.UnimplementedAppendServiceServer
	novapb.UnimplementedReadServiceServer

	mu      sync.Mutex
	asked   []proto.Message
	answer  proto.Message
	failure error
	session func(novapb.AppendService_AppendSessionServer) error
}

// set says what the next calls are answered, and forgets what was asked.
func (f *fake) set(answer proto.Message, failure error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer, f.failure, f.asked = answer, failure, nil
}

// one returns the only request since set.
func (f *fake) one(t *testing.T) proto.Message {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.asked) != 1 {
		t.Fatalf("asked %d times, want once: %v", len(f.asked), f.asked)
	}
	return f.asked[0]
}

// none checks that no request came through.
func (f *fake) none(t *testing.T) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.asked) != 0 {
		t.Errorf("asked %v, want nothing", f.asked)
	}
}

func reply[Res proto.Message](f *fake, req proto.Message) (Res, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, req)
	var none Res
	if f.failure != nil {
		return none, f.failure
	}
	if f.answer != nil {
		return f.answer.(Res), nil
	}
	return none.ProtoReflect().New().Interface().(Res), nil
}

func (f *fake) CreateBucket(_ context.Context, r *novapb.CreateBucketRequest) (*novapb.CreateBucketResponse, error) {
	return reply[*novapb.CreateBucketResponse](f, r)
}

func (f *fake) GetBucket(_ context.Context, r *novapb.GetBucketRequest) (*novapb.GetBucketResponse, error) {
	return reply[*novapb.GetBucketResponse](f, r)
}

func (f *fake) ListBuckets(_ context.Context, r *novapb.ListBucketsRequest) (*novapb.ListBucketsResponse, error) {
	return reply[*novapb.ListBucketsResponse](f, r)
}

func (f *fake) UpdateBucket(_ context.Context, r *novapb.UpdateBucketRequest) (*novapb.UpdateBucketResponse, error) {
	return reply[*novapb.UpdateBucketResponse](f, r)
}

func (f *fake) DeleteBucket(_ context.Context, r *novapb.DeleteBucketRequest) (*novapb.DeleteBucketResponse, error) {
	return reply[*novapb.DeleteBucketResponse](f, r)
}

func (f *fake) CreateStream(_ context.Context, r *novapb.CreateStreamRequest) (*novapb.CreateStreamResponse, error) {
	return reply[*novapb.CreateStreamResponse](f, r)
}

func (f *fake) GetStream(_ context.Context, r *novapb.GetStreamRequest) (*novapb.GetStreamResponse, error) {
	return reply[*novapb.GetStreamResponse](f, r)
}

func (f *fake) ListStreams(_ context.Context, r *novapb.ListStreamsRequest) (*novapb.ListStreamsResponse, error) {
	return reply[*novapb.ListStreamsResponse](f, r)
}

func (f *fake) UpdateStream(_ context.Context, r *novapb.UpdateStreamRequest) (*novapb.UpdateStreamResponse, error) {
	return reply[*novapb.UpdateStreamResponse](f, r)
}

func (f *fake) DeleteStream(_ context.Context, r *novapb.DeleteStreamRequest) (*novapb.DeleteStreamResponse, error) {
	return reply[*novapb.DeleteStreamResponse](f, r)
}

func (f *fake) Append(_ context.Context, r *novapb.AppendRequest) (*novapb.AppendResponse, error) {
	return reply[*novapb.AppendResponse](f, r)
}

func (f *fake) AppendSession(srv novapb.AppendService_AppendSessionServer) error {
	return f.session(srv)
}

func (f *fake) Trim(_ context.Context, r *novapb.TrimRequest) (*novapb.TrimResponse, error) {
	return reply[*novapb.TrimResponse](f, r)
}

func (f *fake) SealStream(_ context.Context, r *novapb.SealStreamRequest) (*novapb.SealStreamResponse, error) {
	return reply[*novapb.SealStreamResponse](f, r)
}

func (f *fake) SetFencingToken(_ context.Context, r *novapb.SetFencingTokenRequest) (*novapb.SetFencingTokenResponse, error) {
	return reply[*novapb.SetFencingTokenResponse](f, r)
}

func (f *fake) Read(_ context.Context, r *novapb.ReadRequest) (*novapb.ReadResponse, error) {
	return reply[*novapb.ReadResponse](f, r)
}

func (f *fake) CheckTail(_ context.Context, r *novapb.CheckTailRequest) (*novapb.CheckTailResponse, error) {
	return reply[*novapb.CheckTailResponse](f, r)
}

// web is the JSON form over a fake, on a real listener.
type web struct {
	*fake
	base   string
	client *http.Client
}

func newWeb(t *testing.T) *web {
	t.Helper()
	f := &fake{}
	inproc := rpc.NewInproc(rpc.Options{Validate: func(m proto.Message) error {
		if _, ok := m.(*novapb.AppendSessionRequest); ok {
			return nil // the session's to check
		}
		return validate.Request(m)
	}})
	services, err := inproc.Server("fake")
	if err != nil {
		t.Fatal(err)
	}
	novapb.RegisterBucketServiceServer(services, f)
	novapb.RegisterStreamServiceServer(services, f)
	novapb.RegisterAppendServiceServer(services, f)
	novapb.RegisterReadServiceServer(services, f)
	services.Start()
	t.Cleanup(func() { services.Stop(context.Background()) })
	pool, err := rpc.NewPool(rpc.PoolConfig{Inproc: inproc, Registry: local.New()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pool.Close() })
	conn, err := pool.Address(services.Address())
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(Handler(conn))
	t.Cleanup(server.Close)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &web{fake: f, base: server.URL, client: &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   string
	last   bool // of its connection
}

// send sends a request; kind is its content type.
func (w *web) send(t *testing.T, method, path, kind string, body io.Reader) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, w.base+path, body)
	if err != nil {
		t.Fatal(err)
	}
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	res, err := w.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, string(b), res.Close}
}

const jsonKind = "application/json"

// json sends a JSON body, none if it is empty.
func (w *web) json(t *testing.T, method, path, body string) answer {
	t.Helper()
	if body == "" {
		return w.send(t, method, path, "", nil)
	}
	return w.send(t, method, path, jsonKind, strings.NewReader(body))
}

// ok checks a success and its exact JSON, in any order of keys.
func (a answer) ok(t *testing.T, want string) {
	t.Helper()
	if a.status != http.StatusOK || a.header.Get("Content-Type") != jsonKind {
		t.Fatalf("%d %s: %s", a.status, a.header.Get("Content-Type"), a.body)
	}
	if canonical(t, a.body) != canonical(t, want) {
		t.Errorf("answer %s\nwant %s", a.body, want)
	}
}

// canonical sorts the keys; numbers keep their digits.
func canonical(t *testing.T, s string) string {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader([]byte(s)))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("%v in %s", err, s)
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// refused checks an error: status, code, and the field or another detail.
func (a answer) refused(t *testing.T, status int, code, key, value string) map[string]string {
	t.Helper()
	var body map[string]json.RawMessage
	var e struct {
		Code, Reason, Message string
		Details               map[string]string
	}
	if err := json.Unmarshal([]byte(a.body), &body); err != nil {
		t.Fatalf("%d %s: %v", a.status, a.body, err)
	}
	if err := json.Unmarshal([]byte(a.body), &e); err != nil {
		t.Fatal(err)
	}
	if a.status != status || e.Code != code || e.Message == "" || a.header.Get("Content-Type") != jsonKind {
		t.Fatalf("%d %s %s, want %d %s with a message", a.status, a.header.Get("Content-Type"), a.body, status, code)
	}
	for _, name := range []string{"code", "reason", "message", "details"} {
		if _, ok := body[name]; !ok || len(body) != 4 {
			t.Errorf("%s: want exactly code, reason, message and details", a.body)
			break
		}
	}
	if key != "" && e.Details[key] != value {
		t.Errorf("%s: detail %s is %q, want %q", a.body, key, e.Details[key], value)
	}
	e.Details["reason"], e.Details["message"] = e.Reason, e.Message
	return e.Details
}

// bad checks a 400 that names a field.
func (a answer) bad(t *testing.T, field string) map[string]string {
	t.Helper()
	return a.refused(t, http.StatusBadRequest, "INVALID_ARGUMENT", "field", field)
}

// want compares the request that came through.
func (w *web) want(t *testing.T, m proto.Message) {
	t.Helper()
	if got := w.one(t); !proto.Equal(got, m) {
		t.Errorf("asked %T{%v}\nwant %T{%v}", got, got, m, m)
	}
}
