package gateway

import (
	"context"
	"log/slog"
	"time"

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
}
