package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"
	"google.golang.org/grpc"

	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/routing"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/node/v1"
)

// Config holds a gateway's settings.
type Config struct {
	// Patience limits the internal calls of one request that sets no deadline of
	// its own, default 45 s: longer than what a sequencer gives an append, so that
	// its answer comes first.
	Patience time.Duration
	// Shards is the number of shards of a constellation that is new, default 256.
	Shards uint32
	// DeliveryBytes limits the records that are fetched for callers, or sent and
	// not taken yet, default 256 MiB. Half of it is there for the smallest messages
	// of subscriptions, 32 KiB for each: so at most 4096 are open by default.
	DeliveryBytes int64
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
	// Leaders calls the leaders of streams for appends. Only what was certainly
	// not done is tried again: a redirect, or a failure marked NOT_COMMITTED.
	Leaders(names routing.Names) grpc.ClientConnInterface
	// DoIdempotent calls f with the leader's connection; it also tries again what
	// may have been done.
	DoIdempotent(ctx context.Context, shard stream.Shard, f func(grpc.ClientConnInterface) error) error
}

// Registry is the part of discovery that a gateway shows.
type Registry interface {
	Nodes(ctx context.Context, s discovery.Service) ([]discovery.Node, error)
}

// Nodes reaches single nodes.
type Nodes interface {
	Node(n discovery.Node) (nodepb.NodeServiceClient, error)
}

// Connections reaches a node at its address.
type Connections interface {
	Address(address string) (grpc.ClientConnInterface, error)
}

// Deps are what a gateway works with.
type Deps struct {
	Index    indexpb.IndexServiceClient
	Router   Router
	Readers  grpc.ClientConnInterface
	Registry Registry
	Nodes    Nodes
	Conns    Connections
	Log      *slog.Logger
	Meter    metric.Meter
}
