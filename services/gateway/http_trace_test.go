package gateway

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	"github.com/nova-stream/nova/libs/reason"
)

// traced notes the span that calls are made under.
type traced struct {
	grpc.ClientConnInterface
	span trace.SpanContext
}

func (c *traced) Invoke(ctx context.Context, _ string, _, _ any, _ ...grpc.CallOption) error {
	c.span = trace.SpanContextFromContext(ctx)
	return reason.Missing("answers")
}

// A caller of the JSON form that traces finds its request in its trace.
func TestRequestsJoinTheTraceOfTheirCaller(t *testing.T) {
	const id, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	for _, c := range []struct {
		name, header string
		want         bool
		sampled      bool
	}{
		{"sampled", "00-" + id + "-" + span + "-01", true, true},
		{"not sampled", "00-" + id + "-" + span + "-00", true, false},
		{"none", "", false, false},
		{"no trace", "00-00000000000000000000000000000000-" + span + "-01", false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn := &traced{}
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/buckets/abc", nil)
			if c.header != "" {
				r.Header.Set("traceparent", c.header)
				r.Header.Set("tracestate", "vendor=1")
			}
			Handler(conn).ServeHTTP(httptest.NewRecorder(), r)
			if got := conn.span; got.IsValid() != c.want || c.want && (got.TraceID().String() != id || got.SpanID().String() != span || got.IsSampled() != c.sampled || !got.IsRemote()) {
				t.Errorf("called under %v", got)
			}
		})
	}
}
