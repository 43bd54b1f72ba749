package telemetry

import (
	"context"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// One number for each name, whatever its labels, and never more than asked for.
func TestFigures(t *testing.T) {
	tel, err := Setup(t.Context(), Config{Program: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tel.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	meter := tel.Meter.Meter("test")
	counter, err := meter.Int64Counter("nova.test.calls")
	if err != nil {
		t.Fatal(err)
	}
	took, err := meter.Float64Histogram("nova.test.duration", metric.WithUnit("s"))
	if err != nil {
		t.Fatal(err)
	}
	for i, method := range []string{"a", "b", "b"} {
		with := metric.WithAttributes(attribute.String("method", method))
		counter.Add(t.Context(), int64(i+1), with)
		took.Record(t.Context(), 0.5, with)
	}
	got, err := tel.Figures(1000)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]float64{"nova_test_calls_total": 6, "nova_test_duration_seconds_count": 3, "nova_test_duration_seconds_sum": 1.5} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	if got["go_goroutines"] < 1 {
		t.Error("nothing of the runtime")
	}
	few, err := tel.Figures(3)
	if err != nil || len(few) != 3 {
		t.Errorf("%d figures, %v; want 3", len(few), err)
	}
}
