package telemetry

import (
	"context"

	"go.opentelemetry.io/otel/trace"
)

// MaxSpans bounds the spans that one message names, and those that one span is
// made for: its parent and its links. SDKs keep as many links by default.
const MaxSpans = 128

// spanBytes are trace id, span id and flags.
const spanBytes = 16 + 8 + 1

// PackSpan returns the context's span in the bytes that messages name it by; nil
// unless it is sampled. The trace state stays behind.
func PackSpan(ctx context.Context) []byte {
	sc := trace.SpanContextFromContext(ctx)
	if !sc.IsValid() || !sc.IsSampled() {
		return nil
	}
	t, s := sc.TraceID(), sc.SpanID()
	b := make([]byte, 0, spanBytes)
	b = append(b, t[:]...)
	b = append(b, s[:]...)
	return append(b, byte(sc.TraceFlags()))
}

// UnpackSpan returns the span of another process that PackSpan made the bytes
// of; false: of anything else, which is no reason to refuse a message.
func UnpackSpan(b []byte) (trace.SpanContext, bool) {
	if len(b) != spanBytes {
		return trace.SpanContext{}, false
	}
	sc := trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID(b[:16]), SpanID: trace.SpanID(b[16:24]), TraceFlags: trace.TraceFlags(b[24]), Remote: true,
	})
	return sc, sc.IsValid()
}
