package metered_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/codes"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"

	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/objectstore/mem"
	"github.com/nova-stream/nova/libs/objectstore/metered"
	"github.com/nova-stream/nova/libs/objectstore/objectstoretest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestContract(t *testing.T) {
	objectstoretest.Run(t, func(t *testing.T) objectstore.Store {
		s, err := metered.New(mem.New(), tracenoop.NewTracerProvider(), metricnoop.NewMeterProvider())
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
}

func TestMetricsAndSpans(t *testing.T) {
	ctx := t.Context()
	reader := metric.NewManualReader()
	spans := tracetest.NewSpanRecorder()
	tracers := trace.NewTracerProvider(trace.WithSpanProcessor(spans))
	f := fault.New(mem.New())
	s, err := metered.New(f, tracers, metric.NewMeterProvider(metric.WithReader(reader)))
	if err != nil {
		t.Fatal(err)
	}
	f.Script(fault.Rule{Op: fault.Get, Nth: 2, Do: fault.Throttle})
	ctx, parent := tracers.Tracer("").Start(ctx, "parent")
	etag, _ := s.PutIfAbsent(ctx, "k", []byte("12345"))
	_, _ = s.PutIfAbsent(ctx, "k", []byte("12345"))
	_, _ = s.PutIfMatch(ctx, "k", []byte("123"), etag)
	_, _ = s.Get(ctx, "k")
	_, _ = s.Get(ctx, "k")
	_, _ = s.GetRange(ctx, "k", objectstore.Range{Length: 2})
	_, _ = s.List(ctx, "", "", 1)
	_ = s.Delete(ctx, "k", "l")

	var data metricdata.ResourceMetrics
	if err := reader.Collect(ctx, &data); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, m := range data.ScopeMetrics[0].Metrics {
		var points []string
		switch d := m.Data.(type) {
		case metricdata.Histogram[float64]:
			for _, p := range d.DataPoints {
				class, _ := p.Attributes.Value(metered.ClassAttr)
				points = append(points, fmt.Sprintf("%s %d", class.AsString(), p.Count))
			}
		case metricdata.Sum[int64]:
			for _, p := range d.DataPoints {
				class, _ := p.Attributes.Value(metered.ClassAttr)
				points = append(points, strings.TrimSpace(fmt.Sprintf("%s %d", class.AsString(), p.Value)))
			}
		}
		slices.Sort(points)
		got[m.Name+" "+m.Unit] = strings.Join(points, ", ")
	}
	want := map[string]string{
		"nova.objectstore.put.duration s":          "exists 1, ok 1",
		"nova.objectstore.put.bytes By":            "5",
		"nova.objectstore.put.errors {call}":       "exists 1",
		"nova.objectstore.put_if_match.duration s": "ok 1",
		"nova.objectstore.put_if_match.bytes By":   "3",
		"nova.objectstore.get.duration s":          "ok 1, throttled 1",
		"nova.objectstore.get.bytes By":            "3",
		"nova.objectstore.get.errors {call}":       "throttled 1",
		"nova.objectstore.get_range.duration s":    "ok 1",
		"nova.objectstore.get_range.bytes By":      "2",
		"nova.objectstore.list.duration s":         "ok 1",
		"nova.objectstore.delete.duration s":       "ok 1",
	}
	if !maps.Equal(got, want) {
		t.Errorf("metrics: %v\nwant: %v", got, want)
	}

	var names []string
	for _, span := range spans.Ended() {
		if span.Parent().SpanID() != parent.SpanContext().SpanID() {
			t.Errorf("%s has parent %v", span.Name(), span.Parent())
		}
		name := span.Name()
		for _, a := range span.Attributes() {
			if a.Key == metered.KeyAttr {
				name += " " + a.Value.AsString()
			}
		}
		if span.Status().Code == codes.Error {
			name += " failed"
		}
		names = append(names, name)
	}
	wantNames := []string{
		"objectstore.PUT k", "objectstore.PUT k", "objectstore.PUT k", "objectstore.GET k", "objectstore.GET k failed",
		"objectstore.GET k", "objectstore.LIST ", "objectstore.DELETE k",
	}
	if !slices.Equal(names, wantNames) {
		t.Errorf("spans: %q, want %q", names, wantNames)
	}
}

// A call outside of a sampled trace begins none.
func TestNoTraceOfItsOwn(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	tracers := trace.NewTracerProvider(trace.WithSpanProcessor(spans))
	s, err := metered.New(mem.New(), tracers, metricnoop.NewMeterProvider())
	if err != nil {
		t.Fatal(err)
	}
	unsampled, span := trace.NewTracerProvider(trace.WithSampler(trace.NeverSample())).Tracer("").Start(t.Context(), "parent")
	defer span.End()
	for _, ctx := range []context.Context{t.Context(), unsampled} {
		_, _ = s.Get(ctx, "k")
		_ = s.Delete(ctx, "k", "l")
	}
	if got := spans.Ended(); len(got) != 0 {
		t.Errorf("spans: %v", got)
	}
}
