package gateway

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/rpc/wire"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/reader/v1"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// Service is one gateway: all public services.
type Service struct {
	novapb.UnimplementedBucketServiceServer
	novapb.UnimplementedStreamServiceServer
	novapb.UnimplementedAppendServiceServer
	novapb.UnimplementedReadServiceServer
	novapb.UnimplementedAdminServiceServer

	cfg      Config
	index    indexpb.IndexServiceClient
	names    *catalog.Names
	router   Router
	leaders  novapb.AppendServiceClient
	read     novapb.ReadServiceClient
	readers  readerpb.ReaderServiceClient
	registry Registry
	nodes    Nodes
	conns    Connections
	log      *slog.Logger
	delivery *wire.Budget

	running context.Context // ends when a stop begins: see stop.go
	stop    context.CancelFunc

	draining atomic.Bool
}

// New returns a gateway.
func New(cfg Config, deps Deps) (*Service, error) {
	if deps.Index == nil || deps.Router == nil || deps.Readers == nil || deps.Registry == nil || deps.Nodes == nil || deps.Conns == nil {
		return nil, errors.New("gateway: index, router, readers, registry, nodes and connections are needed")
	}
	if cfg.Patience == 0 {
		cfg.Patience = 45 * time.Second
	}
	if cfg.Shards == 0 {
		cfg.Shards = 256
	}
	if cfg.DeliveryBytes == 0 {
		cfg.DeliveryBytes = 256 << 20
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	s := &Service{
		cfg: cfg, index: deps.Index, names: catalog.NewNames(catalog.New(deps.Index)), router: deps.Router,
		read: novapb.NewReadServiceClient(deps.Readers), readers: readerpb.NewReaderServiceClient(deps.Readers),
		registry: deps.Registry, nodes: deps.Nodes, conns: deps.Conns, log: deps.Log,
	}
	if err := s.measure(deps.Meter); err != nil {
		return nil, err
	}
	s.leaders = novapb.NewAppendServiceClient(deps.Router.Leaders(s.names))
	s.running, s.stop = context.WithCancel(context.Background())
	return s, nil
}

// Register adds the public services.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	novapb.RegisterBucketServiceServer(r, s)
	novapb.RegisterStreamServiceServer(r, s)
	novapb.RegisterAppendServiceServer(r, s)
	novapb.RegisterReadServiceServer(r, s)
	novapb.RegisterAdminServiceServer(r, s)
}

// Ready returns nil unless the gateway is draining: it holds nothing that it
// must first find.
func (s *Service) Ready() error {
	if s.draining.Load() {
		return errors.New("gateway: draining; it serves who calls, but load balancers should use others")
	}
	return nil
}

// SetDraining lets load balancers, which look at readiness, use other gateways.
func (s *Service) SetDraining(draining bool) { s.draining.Store(draining) }

// Run waits for ctx, and then ends the calls that would not end by themselves.
func (s *Service) Run(ctx context.Context) error {
	<-ctx.Done()
	s.stop()
	return nil
}

// bounded gives a call without a deadline the gateway's patience.
func (s *Service) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, s.cfg.Patience)
}

// sequencerOf calls f with the sequencer that leads a shard; f may run again.
func (s *Service) sequencerOf(ctx context.Context, shard uint32, f func(sequencerpb.SequencerServiceClient) error) error {
	return s.router.DoIdempotent(ctx, stream.Shard(shard), func(conn grpc.ClientConnInterface) error {
		return f(sequencerpb.NewSequencerServiceClient(conn))
	})
}
