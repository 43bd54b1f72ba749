package chainwriter

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/nova-stream/nova/libs/telemetry"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
)

// attrUnlinked counts the sampled requests of a flight beyond the bound of links.
const attrUnlinked = attribute.Key("nova.unlinked")

// spansOf returns the spans that an entry names, bounded whatever its sender does.
func spansOf(e *chainwriterpb.Entry) [][]byte {
	spans := e.GetSpans()
	return spans[:min(len(spans), telemetry.MaxSpans)]
}

// startFlight starts the span of a flight below the first sampled request in it,
// so that one trace leads to the PUT, with links to the others; nil if none is
// sampled. endFlight MUST follow.
func (w *writer) startFlight(ctx context.Context, items []*item) (context.Context, trace.Span) {
	var parent trace.SpanContext
	var links []trace.Link
	unlinked := 0
	for _, it := range items {
		for _, b := range it.spans {
			sc, ok := telemetry.UnpackSpan(b)
			switch {
			case !ok:
			case !parent.IsValid():
				parent = sc
			case len(links) == telemetry.MaxSpans-1:
				unlinked++
			default:
				links = append(links, trace.Link{SpanContext: sc})
			}
		}
	}
	if !parent.IsValid() {
		return ctx, nil
	}
	ctx, span := w.tracer.Start(trace.ContextWithRemoteSpanContext(ctx, parent), "chainwriter.Flight", trace.WithLinks(links...),
		trace.WithAttributes(telemetry.AttrChain.String(w.id.String()), telemetry.AttrEntries.Int(len(items))))
	if unlinked > 0 {
		span.SetAttributes(attrUnlinked.Int(unlinked))
	}
	return ctx, span
}

func endFlight(span trace.Span, err error) {
	if span == nil {
		return
	}
	if err != nil {
		span.SetStatus(otelcodes.Error, err.Error())
	}
	span.End()
}
