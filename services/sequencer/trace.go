package sequencer

import (
	"context"

	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/telemetry"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

const scope = "github.com/nova-stream/nova/services/sequencer"

// startAppend starts the span of one append below that of its call; nil if that
// is not sampled. endAppend MUST follow.
func startAppend(ctx context.Context, bucket, stream string) (context.Context, trace.Span) {
	call := trace.SpanFromContext(ctx)
	if !call.IsRecording() {
		return ctx, nil
	}
	//nolint:spancheck // endAppend ends it.
	return call.TracerProvider().Tracer(scope).Start(ctx, "sequencer.Append",
		trace.WithAttributes(telemetry.AttrBucket.String(bucket), telemetry.AttrStream.String(stream)))
}

func endAppend(span trace.Span, records int, ack *novapb.AppendAck, err error) {
	if span == nil {
		return
	}
	span.SetAttributes(telemetry.AttrRecords.Int(records))
	if err != nil {
		span.SetAttributes(telemetry.AttrReason.String(string(reason.Of(err))), telemetry.AttrOutcome.String(string(reason.OutcomeOf(err))))
		span.SetStatus(otelcodes.Error, err.Error())
	} else if ack != nil {
		span.SetAttributes(telemetry.AttrSeq.Int64(int64(ack.GetFirstSeq())))
	}
	span.End()
}

// spansOf returns the spans of the requests that an entry carries, in order and
// bounded; a refusal that only waits for its commit is none of them.
func spansOf(waits []waiter) [][]byte {
	var spans [][]byte
	for i := range waits {
		if w := &waits[i]; w.req.span != nil && w.refusal == nil && len(spans) < telemetry.MaxSpans {
			spans = append(spans, w.req.span)
		}
	}
	return spans
}
