package metered_test

import (
	"errors"
	"testing"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"

	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/metastore/mem"
	"github.com/nova-stream/nova/libs/metastore/metastoretest"
	"github.com/nova-stream/nova/libs/metastore/metered"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func metre(t *testing.T, inner metastore.Store) (*metered.Store, *tracetest.SpanRecorder, *metric.ManualReader) {
	t.Helper()
	spans, reader := tracetest.NewSpanRecorder(), metric.NewManualReader()
	s, err := metered.New(inner,
		trace.NewTracerProvider(trace.WithSpanProcessor(spans)),
		metric.NewMeterProvider(metric.WithReader(reader)))
	if err != nil {
		t.Fatal(err)
	}
	return s, spans, reader
}

func TestContract(t *testing.T) {
	metastoretest.Run(t, func(t *testing.T) metastore.Store {
		s, _, _ := metre(t, mem.New())
		return s
	})
}

func TestCallsAreMeasuredByOperationAndClass(t *testing.T) {
	broken := fault.New(mem.New())
	broken.Script(fault.Rule{Op: fault.Delete, Do: fault.FailBefore})
	s, spans, reader := metre(t, broken)
	defer s.Close()
	k := metastore.Key{Partition: "p", Path: "row"}
	// A call of no trace makes no span.
	if _, err := s.Put(t.Context(), k, nil, metastore.Absent); err != nil {
		t.Fatal(err)
	}
	ctx, call := trace.NewTracerProvider().Tracer("test").Start(t.Context(), "call")
	defer call.End()
	for range 2 {
		if _, err := s.Put(ctx, k, nil, metastore.Absent); !errors.Is(err, metastore.ErrConflict) {
			t.Fatal(err)
		}
	}
	if err := s.Delete(ctx, k, 1); !errors.Is(err, metastore.ErrUnavailable) {
		t.Fatal(err)
	}

	var got metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &got); err != nil {
		t.Fatal(err)
	}
	calls, failures := map[string]uint64{}, map[string]int64{}
	for _, m := range got.ScopeMetrics[0].Metrics {
		switch data := m.Data.(type) {
		case metricdata.Histogram[float64]:
			if m.Unit != "s" {
				t.Errorf("unit of %s is %q", m.Name, m.Unit)
			}
			calls[m.Name] += data.DataPoints[0].Count
		case metricdata.Sum[int64]:
			for _, p := range data.DataPoints {
				class, _ := p.Attributes.Value("error.class")
				failures[m.Name+" "+class.AsString()] += p.Value
			}
		}
	}
	if calls["nova.metastore.put.duration"] != 3 || calls["nova.metastore.delete.duration"] != 1 || len(calls) != 2 {
		t.Errorf("calls = %v", calls)
	}
	if failures["nova.metastore.put.errors conflict"] != 2 || failures["nova.metastore.delete.errors unavailable"] != 1 || len(failures) != 2 {
		t.Errorf("failures = %v", failures)
	}

	ended := spans.Ended()
	var names []string
	for _, s := range ended {
		names = append(names, s.Name())
	}
	if len(ended) != 3 || ended[0].Name() != "metastore.Put" || ended[2].Name() != "metastore.Delete" {
		t.Fatalf("spans = %q", names)
	}
	if code := ended[1].Status().Code; code != codes.Unset {
		t.Errorf("a conflict marks its span %v", code)
	}
	if code := ended[2].Status().Code; code != codes.Error {
		t.Errorf("an outage marks its span %v", code)
	}
}
