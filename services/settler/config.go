package settler

import (
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// Config holds a settler's settings. Zero values take the defaults.
type Config struct {
	// NodeID names the node, as discovery shows it.
	NodeID string
	// Interval is how long a committed slot waits at most before it is absorbed,
	// full window or not, and how often an idle chain is looked at; default 5 s.
	Interval time.Duration
	// Probe is how often a busy chain is looked at for a full window, default 1 s.
	Probe time.Duration
	// Workers is how many chains are worked on at once, default 8.
	Workers int
}

func (c Config) withDefaults() Config {
	if c.Interval == 0 {
		c.Interval = 5 * time.Second
	}
	if c.Probe == 0 {
		c.Probe = min(time.Second, c.Interval)
	}
	if c.Workers == 0 {
		c.Workers = 8
	}
	return c
}

// Registry is the part of discovery that a settler uses.
type Registry interface {
	Nodes(ctx context.Context, s discovery.Service) ([]discovery.Node, error)
}

// Deps are what a settler works with.
type Deps struct {
	Objects  objectstore.Store
	Index    indexpb.IndexServiceClient
	Registry Registry
	Log      *slog.Logger
	Meter    metric.Meter
	Now      func() time.Time // default time.Now
}
