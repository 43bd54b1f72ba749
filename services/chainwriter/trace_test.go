package chainwriter

import (
	"context"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/nova-stream/nova/libs/telemetry"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
)

// spanRecorder notes the last span that was started, and what was set on it.
type spanRecorder struct {
	noop.Tracer
	noop.Span

	started int
	parent  trace.SpanContext
	links   []trace.Link
	attrs   map[attribute.Key]attribute.Value
}

func (r *spanRecorder) Start(ctx context.Context, _ string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	cfg := trace.NewSpanStartConfig(opts...)
	r.started++
	r.parent, r.links, r.attrs = trace.SpanContextFromContext(ctx), cfg.Links(), map[attribute.Key]attribute.Value{}
	r.SetAttributes(cfg.Attributes()...)
	return ctx, r
}

func (r *spanRecorder) SetAttributes(attrs ...attribute.KeyValue) {
	for _, a := range attrs {
		r.attrs[a.Key] = a.Value
	}
}

// sampledSpan is the n-th of the spans that requests have in these tests.
func sampledSpan(n int) trace.SpanContext {
	return trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{byte(n >> 8), byte(n), 1}, SpanID: trace.SpanID{byte(n >> 8), byte(n), 2}, TraceFlags: trace.FlagsSampled, Remote: true,
	})
}

func packed(n int) []byte {
	return telemetry.PackSpan(trace.ContextWithSpanContext(context.Background(), sampledSpan(n)))
}

// A flight is below its first sampled request and linked to the others.
func TestFlightNamesItsRequests(t *testing.T) {
	r := &spanRecorder{}
	w := &writer{tracer: r}
	ctx, span := w.startFlight(t.Context(), []*item{{}, {spans: [][]byte{packed(1), packed(2)}}, {spans: [][]byte{[]byte("damaged"), packed(3)}}})
	if span == nil || r.started != 1 {
		t.Fatalf("%d spans started", r.started)
	}
	if !r.parent.Equal(sampledSpan(1)) || len(r.links) != 2 || !r.links[0].SpanContext.Equal(sampledSpan(2)) || !r.links[1].SpanContext.Equal(sampledSpan(3)) {
		t.Errorf("parent %v, links %v", r.parent, r.links)
	}
	if n := r.attrs[telemetry.AttrEntries].AsInt64(); n != 3 {
		t.Errorf("the span says %d entries, want 3", n)
	}
	if _, ok := r.attrs[attrUnlinked]; ok {
		t.Error("it says that something has no link")
	}
	endFlight(span, ctx.Err())

	if got, span := w.startFlight(t.Context(), []*item{{}, {spans: [][]byte{[]byte("damaged")}}}); span != nil || got != t.Context() || r.started != 1 {
		t.Error("a flight without a sampled request has a span")
	}
	endFlight(nil, nil)
}

// However many requests are sampled, a flight's span names telemetry.MaxSpans,
// and says how many it leaves out.
func TestFlightBoundsItsLinks(t *testing.T) {
	r := &spanRecorder{}
	w := &writer{tracer: r}
	const extra = 7
	many := &chainwriterpb.Entry{}
	for n := range telemetry.MaxSpans + 50 {
		many.Spans = append(many.Spans, packed(1000+n))
	}
	items := []*item{{spans: [][]byte{packed(1)}}, {spans: spansOf(many)}}
	for n := range extra - 1 {
		items = append(items, &item{spans: [][]byte{packed(2 + n)}})
	}
	_, span := w.startFlight(t.Context(), items)
	endFlight(span, nil)
	if len(r.links) != telemetry.MaxSpans-1 || !r.links[0].SpanContext.Equal(sampledSpan(1000)) {
		t.Errorf("%d links, want %d", len(r.links), telemetry.MaxSpans-1)
	}
	// What an entry names beyond the bound is dropped on arrival.
	if n := r.attrs[attrUnlinked].AsInt64(); n != extra {
		t.Errorf("the span leaves out %d, want %d", n, extra)
	}
}

// Whoever is not traced pays nothing.
func TestUntracedFlightAllocatesNothing(t *testing.T) {
	w := &writer{tracer: &spanRecorder{}}
	items := []*item{{}, {}, {}}
	ctx := context.Background()
	if n := testing.AllocsPerRun(100, func() {
		_, span := w.startFlight(ctx, items)
		endFlight(span, nil)
		_ = spansOf(&chainwriterpb.Entry{})
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
