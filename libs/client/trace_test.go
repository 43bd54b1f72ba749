package client_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/libs/client/clienttest"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// headers are the traceparents that a server saw, by method.
type headers struct {
	mu   sync.Mutex
	seen map[string][]string
}

func (h *headers) note(ctx context.Context, method string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen[method] = metadata.ValueFromIncomingContext(ctx, "traceparent")
}

func (h *headers) of(method string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.seen[method]
}

// serveTraced is a server that notes traceparents.
func serveTraced(t *testing.T) (string, *headers) {
	t.Helper()
	h := &headers{seen: map[string][]string{}}
	s := clienttest.New()
	s.Create(bucket, name)
	g := grpc.NewServer(
		grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			h.note(ctx, info.FullMethod)
			return next(ctx, req)
		}),
		grpc.StreamInterceptor(func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			h.note(ss.Context(), info.FullMethod)
			return next(srv, ss)
		}))
	s.Register(g)
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.Serve(l)
	}()
	t.Cleanup(func() {
		g.Stop()
		<-done
	})
	return l.Addr().String(), h
}

func traceparent(sc trace.SpanContext) string {
	return fmt.Sprintf("00-%s-%s-%s", sc.TraceID(), sc.SpanID(), sc.TraceFlags())
}

const (
	checkTail = "/nova.v1.ReadService/CheckTail"
	session   = "/nova.v1.AppendService/AppendSession"
)

// calls makes a unary call and a session that ends.
func calls(ctx context.Context, t *testing.T, address string, o client.Options) {
	t.Helper()
	c, err := client.Dial(address, o)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Reads.CheckTail(ctx, &novapb.CheckTailRequest{Bucket: bucket, Stream: name}); err != nil {
		t.Fatal(err)
	}
	s := c.OpenSession(ctx, client.SessionConfig{Bucket: bucket, Stream: name})
	if err := s.Send(ctx, batchOf("a")); err != nil {
		t.Error(err)
	}
	if _, err := s.Close(ctx); err != nil {
		t.Error(err)
	}
}

func TestCallsJoinTheCallersTrace(t *testing.T) {
	address, seen := serveTraced(t)
	ctx, span := sdktrace.NewTracerProvider().Tracer("").Start(limit(t), "caller")
	defer span.End()
	calls(ctx, t, address, client.Options{})
	for _, method := range []string{checkTail, session} {
		if got, want := seen.of(method), []string{traceparent(span.SpanContext())}; !slices.Equal(got, want) {
			t.Errorf("%s has traceparent %q, want %q", method, got, want)
		}
	}
	calls(limit(t), t, address, client.Options{})
	for _, method := range []string{checkTail, session} {
		if got := seen.of(method); len(got) != 0 {
			t.Errorf("%s without a span has traceparent %q", method, got)
		}
	}
}

func TestCallsAreSpansOfATracer(t *testing.T) {
	address, seen := serveTraced(t)
	spans := tracetest.NewSpanRecorder()
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	ctx, parent := tracers.Tracer("").Start(limit(t), "caller")
	defer parent.End()
	calls(ctx, t, address, client.Options{Tracer: tracers})
	// The spans of a session end with its call, which may be after Close.
	for until := time.Now().Add(30 * time.Second); len(spans.Ended()) < 2 && time.Now().Before(until); {
		time.Sleep(time.Millisecond)
	}
	got := map[string]trace.SpanContext{}
	for _, s := range spans.Ended() {
		got["/"+s.Name()] = s.SpanContext()
		if s.Parent().SpanID() != parent.SpanContext().SpanID() || s.SpanKind() != trace.SpanKindClient {
			t.Errorf("%s is of kind %v and below %v", s.Name(), s.SpanKind(), s.Parent().SpanID())
		}
	}
	if len(spans.Ended()) != 2 {
		t.Errorf("%d spans ended, want 2", len(spans.Ended()))
	}
	for _, method := range []string{checkTail, session} {
		if h, want := seen.of(method), []string{traceparent(got[method])}; !slices.Equal(h, want) {
			t.Errorf("%s has traceparent %q, its span is %q", method, h, want)
		}
	}
}
