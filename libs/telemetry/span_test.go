package telemetry_test

import (
	"bytes"
	"context"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/nova-stream/nova/libs/telemetry"
)

func TestSpanIsPackedWhenSampled(t *testing.T) {
	start := func(s sdktrace.Sampler) context.Context {
		ctx, span := sdktrace.NewTracerProvider(sdktrace.WithSampler(s)).Tracer("").Start(context.Background(), "s")
		span.End()
		return ctx
	}
	ctx := start(sdktrace.AlwaysSample())
	want := trace.SpanContextFromContext(ctx).WithRemote(true)
	b := telemetry.PackSpan(ctx)
	if got, ok := telemetry.UnpackSpan(b); !ok || !got.Equal(want) {
		t.Errorf("unpacked %v (%v), want %v", got, ok, want)
	}
	for name, ctx := range map[string]context.Context{"no span": context.Background(), "not sampled": start(sdktrace.NeverSample())} {
		if b := telemetry.PackSpan(ctx); b != nil {
			t.Errorf("%s: %x", name, b)
		}
	}
	for name, b := range map[string][]byte{"nothing": nil, "short": b[:24], "long": append(bytes.Clone(b), 0), "zeros": make([]byte, 25)} {
		if sc, ok := telemetry.UnpackSpan(b); ok {
			t.Errorf("%s: taken for %v", name, sc)
		}
	}
}
