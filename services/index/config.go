package index

import (
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/nova-stream/nova/libs/metastore"
)

// Config holds an index's settings.
type Config struct {
	// OrphanAfter is when a creation that did not finish is looked after, default
	// 1 min; it must be longer than any creation takes.
	OrphanAfter time.Duration
}

// Deps are what an index works with.
type Deps struct {
	Store metastore.Store
	Log   *slog.Logger
	Now   func() time.Time // default time.Now
	Meter metric.Meter     // default: none
}
