package integration

import (
	"context"
	"encoding/hex"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"

	"go.opentelemetry.io/otel/trace"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"

	"github.com/nova-stream/nova/libs/telemetry"
)

// collector takes the spans that processes export over OTLP, as an
// OpenTelemetry collector does.
type collector struct {
	collectorpb.UnimplementedTraceServiceServer

	mu    sync.Mutex
	spans map[string]span // by id
}

// span is one span and the program that made it.
type span struct {
	*tracepb.Span
	program string
}

// newCollector starts one and points the environment at it.
func newCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{spans: map[string]span{}}
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	collectorpb.RegisterTraceServiceServer(server, c)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(lis)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+lis.Addr().String())
	t.Setenv("OTEL_METRICS_EXPORTER", "none")
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "20") // milliseconds
	// Nothing is dropped, however slow the machine.
	t.Setenv("OTEL_BSP_MAX_QUEUE_SIZE", "100000")
	return c
}

// Export implements the collector's service.
func (c *collector) Export(_ context.Context, req *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range req.GetResourceSpans() {
		program := text(r.GetResource().GetAttributes(), "service.name")
		for _, scope := range r.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				c.spans[id(s.GetSpanId())] = span{s, program}
			}
		}
	}
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

// all returns what has come so far, by id.
func (c *collector) all() map[string]span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.spans)
}

// of returns the spans of one trace, by id.
func (c *collector) of(id trace.TraceID) map[string]span {
	out := c.all()
	maps.DeleteFunc(out, func(_ string, s span) bool { return trace.TraceID(s.GetTraceId()) != id })
	return out
}

// named returns those with a name.
func named(spans map[string]span, name string) []span {
	return slices.Collect(func(yield func(span) bool) {
		for _, s := range spans {
			if s.GetName() == name && !yield(s) {
				return
			}
		}
	})
}

// path is the way from a root to a span: program, kind and name of each.
func path(spans map[string]span, s span) []string {
	var out []string
	for ok := true; ok; s, ok = spans[id(s.GetParentSpanId())] {
		out = append(out, s.program+" "+s.GetKind().String()[len("SPAN_KIND_"):]+" "+s.GetName())
	}
	slices.Reverse(out)
	return out
}

func id(b []byte) string { return hex.EncodeToString(b) }

func text(attrs []*commonpb.KeyValue, key string) string {
	for _, a := range attrs {
		if a.GetKey() == key {
			return a.GetValue().GetStringValue()
		}
	}
	return ""
}

// tracedClient is a program of its own that traces; flush sends what it holds.
func tracedClient(t *testing.T) *telemetry.Telemetry {
	t.Helper()
	tel, err := telemetry.Setup(context.Background(), telemetry.Config{Program: "client", Level: "error"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tel.Shutdown(context.Background()) })
	return tel
}
