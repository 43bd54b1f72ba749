package cache

import (
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/nova-stream/nova/libs/objectstore"
)

// PageBytes is the size of a page: the unit of reading through and of eviction.
const PageBytes = 1 << 20

// MaxReadBytes is the longest range of one ReadRange.
const MaxReadBytes = 8 << 20

// Config holds a cache's settings. Zero values take the defaults.
type Config struct {
	// Bytes limits the pages held, default 256 MiB.
	Bytes int64
	// LoadTimeout ends a read of the store, default 30 s.
	LoadTimeout time.Duration
	// Loads limits the pages that are being read from the store, default 128.
	// Those beyond it wait.
	Loads int64
}

func (c Config) withDefaults() Config {
	if c.Bytes == 0 {
		c.Bytes = 256 << 20
	}
	if c.LoadTimeout == 0 {
		c.LoadTimeout = 30 * time.Second
	}
	if c.Loads == 0 {
		c.Loads = 128
	}
	return c
}

// Deps are what a cache works with.
type Deps struct {
	Objects objectstore.Store
	Log     *slog.Logger
	Meter   metric.Meter
}
