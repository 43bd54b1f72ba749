package rpc_test

import (
	"context"
	"testing"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	novapb "github.com/nova-stream/nova/proto/gen/nova/v1"
)

// sum adds up a counter, or the count of a histogram.
func sum(t *testing.T, r *sdkmetric.ManualReader, name string) int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := r.Collect(context.Background(), &all); err != nil {
		t.Fatal(err)
	}
	total := int64(0)
	for _, s := range all.ScopeMetrics {
		for _, m := range s.Metrics {
			if m.Name != name {
				continue
			}
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					total += p.Value
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					total += int64(p.Count)
				}
			}
		}
	}
	return total
}

func TestMetrics(t *testing.T) {
	svc := &service{append: func(context.Context, *novapb.AppendRequest) (*novapb.AppendResponse, error) {
		return &novapb.AppendResponse{}, nil
	}}
	inShapes(t, svc, nil, func(t *testing.T, s *shape) {
		for range 3 {
			if _, err := s.append().Append(within(t), &novapb.AppendRequest{}); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "three calls counted", func() bool { return sum(t, s.metrics, "rpc.server.call.duration") == 3 })
		eventually(t, "none under way", func() bool { return sum(t, s.metrics, "nova.rpc.server.active") == 0 })
	})
}
