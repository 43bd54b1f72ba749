package reader

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"
	"google.golang.org/grpc"

	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/cache/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// Config holds a reader's settings. Zero values take the defaults.
type Config struct {
	// FetchAhead is how many chunks a page reads from storage at once, default 4.
	FetchAhead int
	// Patience is how long a read looks for a chunk that is not where the leader
	// said, and a subscription for a leader, default 10 s.
	Patience time.Duration
	// MemoryBytes limits what is being fetched and decoded for all calls, default
	// 256 MiB. A call that waits for room longer than Patience is refused.
	MemoryBytes int64
	// MaxSubscriptions limits the open subscriptions, default 4096.
	MaxSubscriptions int
	// DeliveryBytes limits the messages of all subscriptions that are fetched, or
	// sent and not taken yet, default 256 MiB. Half of it is there for the smallest
	// messages: 32 KiB for each subscription.
	DeliveryBytes int64
	// HistoryBytes limits what is remembered of where settled records are: heads
	// for about a second, pages of refs, indexes of runs. Default 64 MiB.
	HistoryBytes int64
	// Young is the age up to which verification takes objects that no row leads to
	// for under way, default 1 h.
	Young time.Duration
}

func (c Config) withDefaults() Config {
	if c.FetchAhead == 0 {
		c.FetchAhead = 4
	}
	if c.Patience == 0 {
		c.Patience = 10 * time.Second
	}
	if c.MemoryBytes == 0 {
		c.MemoryBytes = 256 << 20
	}
	if c.DeliveryBytes == 0 {
		c.DeliveryBytes = 256 << 20
	}
	if c.MaxSubscriptions == 0 {
		c.MaxSubscriptions = 4096
	}
	if c.HistoryBytes == 0 {
		c.HistoryBytes = 64 << 20
	}
	if c.Young == 0 {
		c.Young = time.Hour
	}
	return c
}

// MinDeliveryBytes is the least of DeliveryBytes.
const MinDeliveryBytes = 32 << 20

// Check validates what people set.
func (c *Config) Check() error {
	if c.DeliveryBytes < MinDeliveryBytes {
		return fmt.Errorf("--delivery-mib must be at least %d", MinDeliveryBytes>>20)
	}
	return nil
}

// Router reaches the sequencer that leads a shard.
type Router interface {
	// DoIdempotent calls f with the leader's connection, again after a redirect
	// or a passing failure.
	DoIdempotent(ctx context.Context, shard stream.Shard, f func(grpc.ClientConnInterface) error) error
}

// Deps are what a reader works with.
type Deps struct {
	Index  indexpb.IndexServiceClient
	Router Router
	Cache  cachepb.CacheServiceClient
	// Objects is read when the cache fails, and by verification.
	Objects objectstore.Store
	Log     *slog.Logger
	Meter   metric.Meter
}
