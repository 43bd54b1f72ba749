package s3_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/objectstore/s3"
)

// scripted is a server that answers what a test says.
func scripted(t *testing.T, handler http.HandlerFunc, change ...func(*s3.Config)) *s3.Store {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	c := s3.Config{
		Bucket: "b", Endpoint: server.URL, PathStyle: true, RetryPause: time.Millisecond,
		Credentials: credentials.NewStaticCredentialsProvider("id", "secret", ""),
	}
	for _, f := range change {
		f(&c)
	}
	return mustOpen(t, c)
}

func refuse(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	if code != "" {
		_, _ = fmt.Fprintf(w, `<?xml version="1.0" encoding="UTF-8"?><Error><Code>%s</Code><Message>as scripted</Message><RequestId>1</RequestId></Error>`, code)
	}
}

// call runs one operation by name.
func call(ctx context.Context, s *s3.Store, op string) error {
	var err error
	switch op {
	case "PutIfAbsent":
		_, err = s.PutIfAbsent(ctx, "k/1", []byte("body"))
	case "PutIfMatch":
		_, err = s.PutIfMatch(ctx, "k/1", []byte("body"), `"e"`)
	case "Get":
		_, err = s.Get(ctx, "k/1")
	case "GetRange":
		_, err = s.GetRange(ctx, "k/1", objectstore.Range{Offset: 1})
	case "Delete":
		err = s.Delete(ctx, "k/1", "k/2")
	case "List":
		_, err = s.List(ctx, "k/1", "", 10)
	}
	return err
}

var all = []string{"PutIfAbsent", "PutIfMatch", "Get", "GetRange", "Delete", "List"}

func TestAnswersAreJudgedByCodeFirst(t *testing.T) {
	notFound, exists, mismatch := objectstore.ErrNotFound, objectstore.ErrExists, objectstore.ErrMismatch
	unavailable, throttled := objectstore.ErrUnavailable, objectstore.ErrThrottled
	permanent, outside := objectstore.ErrPermanent, objectstore.ErrRange
	for _, c := range []struct {
		status int
		code   string
		ops    []string
		want   error
		says   string
	}{
		{412, "PreconditionFailed", []string{"PutIfAbsent"}, exists, ""},
		{412, "", []string{"PutIfAbsent"}, exists, ""},
		{412, "PreconditionFailed", []string{"PutIfMatch"}, mismatch, ""},
		{404, "NoSuchKey", []string{"PutIfMatch"}, mismatch, ""},
		{404, "NoSuchKey", []string{"Get", "GetRange"}, notFound, ""},
		{416, "InvalidRange", []string{"GetRange"}, outside, ""},
		{409, "ConditionalRequestConflict", []string{"PutIfAbsent", "PutIfMatch"}, unavailable, "ConditionalRequestConflict"},
		{409, "OperationAborted", all, unavailable, ""},
		{409, "", []string{"PutIfAbsent"}, unavailable, ""},
		{409, "ExistingObjectIsDirectory", []string{"PutIfAbsent"}, unavailable, "ExistingObjectIsDirectory"},
		{409, "ObjectParentIsFile", []string{"PutIfAbsent"}, permanent, ""},
		{400, "RequestTimeout", all, unavailable, "RequestTimeout"}, // C20
		{400, "IncompleteBody", []string{"PutIfAbsent"}, unavailable, ""},
		{400, "BadDigest", []string{"PutIfAbsent"}, unavailable, ""},
		{400, "ExpiredToken", all, unavailable, ""},
		{403, "RequestTimeTooSkewed", []string{"PutIfAbsent"}, unavailable, "correct ours"},
		{408, "", []string{"Get"}, unavailable, ""},
		{500, "InternalError", all, unavailable, ""},
		{500, "", all, unavailable, ""},
		{502, "", all, unavailable, ""},
		{504, "", all, unavailable, ""},
		{503, "SlowDown", all, throttled, "SlowDown"},
		{503, "", all, throttled, ""},
		{503, "ServiceUnavailable", all, throttled, ""},
		{400, "SlowDown", all, throttled, ""},
		{429, "", all, throttled, ""},
		{404, "NoSuchBucket", all, permanent, "bucket b"},
		{404, "NoSuchBucket", all, permanent, "--s3-bucket"},
		{404, "", all, permanent, "--s3-endpoint"},
		{404, "Whatever", []string{"Get", "PutIfMatch"}, permanent, "Whatever"},
		{403, "AccessDenied", all, permanent, "let them get, put, delete and list"},
		{403, "InvalidAccessKeyId", all, permanent, "AWS_ACCESS_KEY_ID"},
		{403, "SignatureDoesNotMatch", all, permanent, "check the credentials"},
		{403, "", all, permanent, ""},
		{301, "PermanentRedirect", all, permanent, "--s3-region"},
		{400, "AuthorizationHeaderMalformed", all, permanent, "--s3-region"},
		{400, "InvalidRequest", all, permanent, "InvalidRequest"},
		{501, "NotImplemented", all, permanent, "NotImplemented"},
		{405, "", []string{"PutIfAbsent"}, permanent, ""},
	} {
		for _, op := range c.ops {
			s := scripted(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				refuse(w, c.status, c.code)
			})
			err := call(t.Context(), s, op)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), op) || !strings.Contains(err.Error(), "k/1") {
				t.Errorf("%s answered by %d %s: %v; want %v saying %q", op, c.status, c.code, err, c.want, c.says)
			}
			for _, other := range []error{notFound, exists, mismatch, unavailable, throttled, permanent, outside, context.Canceled, context.DeadlineExceeded} {
				if !errors.Is(other, c.want) && errors.Is(err, other) {
					t.Errorf("%s answered by %d %s: %v is also %v", op, c.status, c.code, err, other)
				}
			}
		}
	}
}

// Requests carry the condition, and a put is sent once whatever the answer:
// whoever sends it again must know that it did.
func TestPutIsOneAttempt(t *testing.T) {
	for _, answer := range []struct {
		status int
		code   string
	}{{503, "SlowDown"}, {500, "InternalError"}, {409, "ConditionalRequestConflict"}, {412, "PreconditionFailed"}, {400, "RequestTimeout"}} {
		var n atomic.Int64
		s := scripted(t, func(w http.ResponseWriter, r *http.Request) {
			n.Add(1)
			if r.Method != http.MethodPut || r.URL.Path != "/b/p/k/1" {
				t.Errorf("%s %s", r.Method, r.URL.Path)
			}
			if r.Header.Get("If-None-Match") != "*" && r.Header.Get("If-Match") != `"e"` {
				t.Errorf("an unconditional put: %v", r.Header)
			}
			refuse(w, answer.status, answer.code)
		}, func(c *s3.Config) { c.Prefix = "p/" })
		for i, op := range []string{"PutIfAbsent", "PutIfMatch"} {
			if err := call(t.Context(), s, op); err == nil {
				t.Errorf("%s: no error", op)
			}
			if got := n.Load(); got != int64(i+1) {
				t.Errorf("%s answered by %s was sent %d times", op, answer.code, got-int64(i))
			}
		}
	}
}

func TestEmptyOrStarEtagIsNeverSent(t *testing.T) {
	s := scripted(t, func(http.ResponseWriter, *http.Request) { t.Error("a request") })
	for _, etag := range []objectstore.ETag{"", "*"} {
		if _, err := s.PutIfMatch(t.Context(), "k", nil, etag); !errors.Is(err, objectstore.ErrMismatch) {
			t.Errorf("PutIfMatch(%q): %v", etag, err)
		}
	}
}

// hedges is how many more requests four tries of a read may make, on a machine
// so busy that they are late.
const hedges = 4

func TestReadsDeletesAndListsAreRepeated(t *testing.T) {
	for _, op := range []string{"Get", "GetRange", "Delete", "List"} {
		var n atomic.Int64
		s := scripted(t, func(w http.ResponseWriter, r *http.Request) {
			if n.Add(1) < 4 {
				refuse(w, 503, "SlowDown")
				return
			}
			switch op {
			case "GetRange":
				w.Header().Set("Content-Range", "bytes 1-3/4")
				w.WriteHeader(206)
				_, _ = io.WriteString(w, "ody")
			case "Get":
				_, _ = io.WriteString(w, "body")
			case "Delete":
				_, _ = io.WriteString(w, `<DeleteResult></DeleteResult>`)
			case "List":
				_, _ = io.WriteString(w, `<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>`)
			}
		})
		if err := call(t.Context(), s, op); err != nil || n.Load() < 4 || n.Load() > 4+hedges {
			t.Errorf("%s: %v after %d requests", op, err, n.Load())
		}
	}
}

// A connection that is cut within a body, at any place, is never a short success.
func TestCutBody(t *testing.T) {
	body := "0123456789"
	for at := range len(body) {
		var n atomic.Int64
		cut := func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Range") != "" {
				w.Header().Set("Content-Range", "bytes 0-9/10")
			}
			w.Header().Set("Content-Length", strconv.Itoa(len(body)))
			n.Add(1)
			if r.Header.Get("Range") != "" {
				w.WriteHeader(206)
			}
			_, _ = io.WriteString(w, body[:at])
			panic(http.ErrAbortHandler)
		}
		s := scripted(t, cut)
		o, err := s.Get(t.Context(), "k")
		if !errors.Is(err, objectstore.ErrUnavailable) || o.Body != nil {
			t.Errorf("Get cut after %d bytes: %q, %v", at, o.Body, err)
		}
		if n.Load() < 4 || n.Load() > 4+hedges {
			t.Errorf("Get cut after %d bytes was tried %d times", at, n.Load())
		}
		if at%4 == 0 {
			if o, err := s.GetRange(t.Context(), "k", objectstore.Range{}); !errors.Is(err, objectstore.ErrUnavailable) || o.Body != nil {
				t.Errorf("GetRange cut after %d bytes: %q, %v", at, o.Body, err)
			}
		}
	}
}

func TestConnectionCutBeforeTheAnswer(t *testing.T) {
	s := scripted(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	for _, op := range all {
		if err := call(t.Context(), s, op); !errors.Is(err, objectstore.ErrUnavailable) {
			t.Errorf("%s: %v", op, err)
		}
	}
}

func TestNobodyListens(t *testing.T) {
	s := scripted(t, nil, func(c *s3.Config) { c.Endpoint = "http://127.0.0.1:1" })
	for _, op := range []string{"PutIfAbsent", "Get"} {
		if err := call(t.Context(), s, op); !errors.Is(err, objectstore.ErrUnavailable) {
			t.Errorf("%s: %v", op, err)
		}
	}
}

// A store that takes connections and says nothing costs an error, in bounded
// time, that is not taken for the caller's own deadline (C19).
func TestSilentStore(t *testing.T) {
	silent := make(chan struct{})
	defer close(silent)
	never := func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-silent:
		case <-r.Context().Done():
		}
	}
	impatient := scripted(t, never, func(c *s3.Config) { c.Silence = 30 * time.Millisecond })
	s := scripted(t, never)
	for _, op := range all {
		err := call(t.Context(), impatient, op)
		if !errors.Is(err, objectstore.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "sent nothing for") {
			t.Errorf("%s: %v", op, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		if err := call(ctx, s, op); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, objectstore.ErrUnavailable) {
			t.Errorf("%s with a deadline of its own: %v", op, err)
		}
		cancel()
	}
}

// A body that stops coming is given up too; one that comes slowly is not.
func TestSilenceWithinABody(t *testing.T) {
	stall := make(chan struct{})
	defer close(stall)
	s := scripted(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "12")
		for i := range 12 {
			_, _ = io.WriteString(w, strconv.Itoa(i%10))
			_ = http.NewResponseController(w).Flush()
			if strings.HasSuffix(r.URL.Path, "stalls") && i == 2 {
				select {
				case <-stall:
				case <-r.Context().Done():
				}
				return
			}
			time.Sleep(50 * time.Millisecond) // the store's pace, not a wait for something
		}
	}, func(c *s3.Config) { c.Silence = 400 * time.Millisecond })
	if o, err := s.Get(t.Context(), "slow"); err != nil || string(o.Body) != "012345678901" {
		t.Errorf("a slow body: %q, %v", o.Body, err)
	}
	if o, err := s.Get(t.Context(), "stalls"); !errors.Is(err, objectstore.ErrUnavailable) || !strings.Contains(err.Error(), "sent nothing for") {
		t.Errorf("a body that stalls: %q, %v", o.Body, err)
	}
}

// After a put has returned nothing reads the caller's slice, though the request
// was under way; the race detector watches.
func TestPutGivesTheBodyBack(t *testing.T) {
	begun := make(chan struct{})
	s := scripted(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.CopyN(io.Discard, r.Body, 64<<10)
		begun <- struct{}{}
		_, _ = io.Copy(io.Discard, r.Body)
	})
	body := make([]byte, 8<<20)
	for range 5 {
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-begun; cancel() }()
		_, err := s.PutIfAbsent(ctx, "k", body)
		for j := range body {
			body[j]++
		}
		if err == nil {
			t.Error("no error")
		}
		cancel()
	}
}

func TestDeleteErrorsPerKey(t *testing.T) {
	var n atomic.Int64
	perKey := func(codes ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			request, _ := io.ReadAll(r.Body)
			i := n.Add(1)
			_, _ = io.WriteString(w, `<DeleteResult>`)
			if int(i) <= len(codes) && codes[i-1] != "" {
				_, _ = fmt.Fprintf(w, `<Error><Key>p/b</Key><Code>%s</Code><Message>as scripted</Message></Error>`, codes[i-1])
			}
			_, _ = io.WriteString(w, `</DeleteResult>`)
			// Only what failed is sent again: alone it is a plain DELETE.
			if i == 1 && strings.Count(string(request), "<Key>") != 3 || i > 1 && r.Method != http.MethodDelete {
				t.Errorf("request %d: %s %s %s", i, r.Method, r.URL, request)
			}
		}
	}
	prefix := func(c *s3.Config) { c.Prefix = "p/" }
	for _, c := range []struct {
		codes    []string
		want     error
		requests int64
	}{
		{[]string{""}, nil, 1},
		{[]string{"NoSuchKey"}, nil, 1},
		{[]string{"InternalError"}, nil, 2},
		{[]string{"SlowDown"}, nil, 2},
		{[]string{"AccessDenied"}, objectstore.ErrPermanent, 1},
	} {
		n.Store(0)
		s := scripted(t, perKey(c.codes...), prefix)
		err := s.Delete(t.Context(), "a", "b", "c")
		if !errors.Is(err, c.want) || n.Load() != c.requests {
			t.Errorf("%q: %v after %d requests; want %v after %d", c.codes, err, n.Load(), c.want, c.requests)
		}
		if err != nil && (!strings.Contains(err.Error(), `"b"`) || !strings.Contains(err.Error(), "bucket b")) {
			t.Errorf("%q: the error does not name the key: %v", c.codes, err)
		}
	}
}

// A key that the store refuses to delete is told, after all others were deleted,
// also those that needed a second try and those of later requests; and an answer
// that names a key that was not asked for leaves none out.
func TestDeleteGoesOnBehindARefusedKey(t *testing.T) {
	var mu sync.Mutex
	var deleted []string
	answers := []string{
		`<Error><Key>k0001</Key><Code>AccessDenied</Code></Error><Error><Key>k0002</Key><Code>SlowDown</Code></Error><Error><Key>k0003</Key><Code>SlowDown</Code></Error>`,
		`<Error><Key></Key><Code>InternalError</Code></Error>`,
		``, // k0002 and k0003, once more
		`<Error><Key>k1000</Key><Code>InternalError</Code></Error><Error><Key>k1001</Key><Code>NoSuchKey</Code></Error>`,
	}
	key := regexp.MustCompile("<Key>(.*?)</Key>")
	s := scripted(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if r.Method == http.MethodDelete {
			deleted = append(deleted, path.Base(r.URL.Path))
			w.WriteHeader(http.StatusNoContent)
			return
		}
		request, _ := io.ReadAll(r.Body)
		answer := answers[0]
		answers = answers[1:]
		for _, k := range key.FindAllStringSubmatch(string(request), -1) {
			if !strings.Contains(answer, k[1]) && !strings.Contains(answer, "<Key></Key>") || strings.Contains(answer, k[1]+"</Key><Code>NoSuchKey") {
				deleted = append(deleted, k[1])
			}
		}
		_, _ = io.WriteString(w, `<DeleteResult>`+answer+`</DeleteResult>`)
	})
	var keys []string
	for i := range 1010 {
		keys = append(keys, fmt.Sprintf("k%04d", i))
	}
	err := s.Delete(t.Context(), keys...)
	if !errors.Is(err, objectstore.ErrPermanent) || !strings.Contains(err.Error(), "k0001") {
		t.Errorf("Delete: %v, want ErrPermanent of k0001", err)
	}
	slices.Sort(deleted)
	if want := slices.Delete(slices.Clone(keys), 1, 2); !slices.Equal(deleted, want) || len(answers) != 0 {
		t.Errorf("%d keys were deleted, want all but one: %d; %d answers are left", len(deleted), len(want), len(answers))
	}
}

// Servers may ignore a range, answer with another, or without a length.
func TestOddRangeAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		header map[string]string
		status int
		body   string
		r      objectstore.Range
		want   string
		err    error
	}{
		"ignored":       {nil, 200, "0123456789", objectstore.Range{Offset: 3, Length: 2}, "34", nil},
		"ignored, past": {nil, 200, "0123456789", objectstore.Range{Offset: 10}, "", objectstore.ErrRange},
		"another":       {map[string]string{"Content-Range": "bytes 0-1/10"}, 206, "01", objectstore.Range{Offset: 3, Length: 2}, "", objectstore.ErrUnavailable},
		"shorter":       {map[string]string{"Content-Range": "bytes 3-3/10"}, 206, "3", objectstore.Range{Offset: 3, Length: 2}, "", objectstore.ErrUnavailable},
		"nonsense":      {map[string]string{"Content-Range": "3-4"}, 206, "34", objectstore.Range{Offset: 3, Length: 2}, "", objectstore.ErrPermanent},
		"no length":     {map[string]string{"Transfer-Encoding": "chunked"}, 200, "0123456789", objectstore.Range{Offset: 3, Length: 2}, "", objectstore.ErrPermanent},
	} {
		s := scripted(t, func(w http.ResponseWriter, _ *http.Request) {
			for k, v := range c.header {
				w.Header().Set(k, v)
			}
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body)
		})
		o, err := s.GetRange(t.Context(), "k", c.r)
		if !errors.Is(err, c.err) || string(o.Body) != c.want {
			t.Errorf("%s: %q, %v; want %q, %v", name, o.Body, err, c.want, c.err)
		}
	}
}

func TestShortListPagesAreNotTheEnd(t *testing.T) {
	var asked []string
	s := scripted(t, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		asked = append(asked, q.Get("start-after")+" "+q.Get("max-keys"))
		key, more := len(asked), len(asked) < 3
		_, _ = fmt.Fprintf(w, `<ListBucketResult><IsTruncated>%v</IsTruncated><Contents><Key>p/k%d</Key><Size>7</Size></Contents></ListBucketResult>`, more, key)
	}, func(c *s3.Config) { c.Prefix = "p/" })
	infos, err := s.List(t.Context(), "k", "k0", 10)
	if err != nil || fmt.Sprint(infos) != "[{k1 7} {k2 7} {k3 7}]" || fmt.Sprint(asked) != "[p/k0 10 p/k1 9 p/k2 8]" {
		t.Errorf("List: %v, %v; asked %v", infos, err, asked)
	}
}

func TestCallsAfterCloseAreRefused(t *testing.T) {
	s := scripted(t, func(http.ResponseWriter, *http.Request) { t.Error("a request") })
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, op := range all {
		if err := call(t.Context(), s, op); !errors.Is(err, objectstore.ErrPermanent) {
			t.Errorf("%s: %v", op, err)
		}
	}
}
