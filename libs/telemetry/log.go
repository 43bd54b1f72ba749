package telemetry

import (
	"context"
	"log/slog"
	"os"

	"go.opentelemetry.io/otel/trace"
)

func newLogger(cfg Config, level slog.Level) *slog.Logger {
	if cfg.Output == nil {
		cfg.Output = os.Stderr
	}
	opts := &slog.HandlerOptions{Level: level}
	var h slog.Handler = slog.NewTextHandler(cfg.Output, opts)
	if cfg.JSON {
		h = slog.NewJSONHandler(cfg.Output, opts)
	}
	log := slog.New(traced{h})
	if cfg.Node != "" {
		log = log.With("node", cfg.Node)
	}
	return log
}

// traced adds the ids of the context's span.
type traced struct{ slog.Handler }

func (h traced) Handle(ctx context.Context, r slog.Record) error {
	if sc := trace.SpanContextFromContext(ctx); sc.IsValid() {
		r.AddAttrs(slog.String("trace_id", sc.TraceID().String()), slog.String("span_id", sc.SpanID().String()))
	}
	return h.Handler.Handle(ctx, r)
}

func (h traced) WithAttrs(attrs []slog.Attr) slog.Handler { return traced{h.Handler.WithAttrs(attrs)} }
func (h traced) WithGroup(name string) slog.Handler       { return traced{h.Handler.WithGroup(name)} }
