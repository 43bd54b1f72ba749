package settler

import (
	"context"
	"fmt"
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

	// SettleAge is how long what was absorbed waits at most before it is settled,
	// default 10 min.
	SettleAge time.Duration
	// SettleBytes is how many bytes of entries of one chain are settled at once,
	// without waiting; it also limits what is settled in one go; default 1 GiB.
	SettleBytes int64
	// SettleMemory limits the bytes that settling holds, all chains together,
	// default 256 MiB, at least MinSettleMemory.
	SettleMemory int64
	// SettleRate limits the bytes of slots that are read per second; 0: no limit.
	SettleRate int64
	// RewriteRuns is how many small runs of a stream become one, default 16;
	// below 2: none do.
	RewriteRuns int
	// ReadGrace is how long a reader may need what is replaced, default 10 min.
	ReadGrace time.Duration
}

// MinSettleMemory is the least that settling works with, in bytes: the largest
// chunk, and what is made of it, for each chain that is settled at the same time.
const MinSettleMemory = 64 << 20

// maxSpanTime is how long the bytes of one span may take at the limited rate:
// well below what objects may wait for heads that name them.
const maxSpanTime = 30 * time.Minute

// Check refuses settings that make no sense, by the names of their flags.
func (c Config) Check() error {
	const (
		maxBytes, minBytes = 4 << 30, 1 << 20
		maxAge, maxGrace   = 24 * time.Hour, 24 * time.Hour
		minGrace           = time.Second
	)
	switch {
	case c.SettleAge <= 0 || c.SettleAge > maxAge:
		return fmt.Errorf("--settle-age must be above 0 and at most %s", maxAge)
	case c.SettleBytes < minBytes || c.SettleBytes > maxBytes:
		return fmt.Errorf("--settle-mib must be %d to %d", minBytes>>20, maxBytes>>20)
	case c.SettleMemory < MinSettleMemory:
		return fmt.Errorf("--settle-memory-mib must be at least %d", MinSettleMemory>>20)
	case c.SettleRate < 0 || c.SettleRate > 0 && c.SettleBytes/c.SettleRate > int64(maxSpanTime/time.Second):
		return fmt.Errorf("--settle-rate-mib is so low that --settle-mib takes longer than %s", maxSpanTime)
	case c.ReadGrace < minGrace || c.ReadGrace > maxGrace:
		return fmt.Errorf("--read-grace must be %s to %s", minGrace, maxGrace)
	}
	return nil
}

func (c Config) withDefaults() Config {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&c.Interval, 5*time.Second)
	set(&c.Probe, min(time.Second, c.Interval))
	set(&c.SettleAge, 10*time.Minute)
	set(&c.ReadGrace, 10*time.Minute)
	if c.Workers == 0 {
		c.Workers = 8
	}
	if c.RewriteRuns == 0 {
		c.RewriteRuns = 16
	}
	if c.SettleBytes == 0 {
		c.SettleBytes = 1 << 30
	}
	if c.SettleMemory == 0 {
		c.SettleMemory = 256 << 20
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
