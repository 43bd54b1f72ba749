package index

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"google.golang.org/grpc"

	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// Service is one index: it holds nothing durable, any number may run.
type Service struct {
	indexpb.UnimplementedIndexServiceServer

	cfg   Config
	store metastore.Store
	log   *slog.Logger
	now   func() time.Time
	meter metric.Meter

	mu sync.Mutex
	// touches shares one compare-and-set of a bucket among its creations.
	touches map[string]*touch
	// constellation never changes in what matters here; read once.
	constellation *indexpb.Constellation
}

// New returns an index over a metastore.
func New(cfg Config, deps Deps) (*Service, error) {
	if deps.Store == nil {
		return nil, errors.New("index: a metastore is needed")
	}
	if cfg.OrphanAfter == 0 {
		cfg.OrphanAfter = time.Minute
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	if deps.Meter == nil {
		deps.Meter = noop.Meter{}
	}
	return &Service{cfg: cfg, store: deps.Store, log: deps.Log, now: deps.Now, meter: deps.Meter, touches: map[string]*touch{}}, nil
}

// Register adds the service's RPCs.
func (s *Service) Register(r grpc.ServiceRegistrar) { indexpb.RegisterIndexServiceServer(r, s) }

// Ready returns nil: whether the metastore answers is told by its own health.
func (s *Service) Ready() error { return nil }

// Run waits for ctx: an index does nothing by itself.
func (s *Service) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// writeVersion is the format version of a new constellation.
const writeVersion = 1

// maxShards limits the number of shards.
const maxShards = 65536

// OpenConstellation returns the constellation, making it at the first call.
func (s *Service) OpenConstellation(ctx context.Context, req *indexpb.OpenConstellationRequest) (*indexpb.OpenConstellationResponse, error) {
	s.mu.Lock()
	known := s.constellation
	s.mu.Unlock()
	if known != nil {
		return &indexpb.OpenConstellationResponse{Constellation: known}, nil
	}
	var c indexpb.Constellation
	_, err := s.read(ctx, constellationKey(), &c)
	if reason.Is(err, reason.RowNotFound) {
		if n := req.GetShardCount(); n < 1 || n > maxShards {
			return nil, reason.Field("shard_count", "must be 1..65536")
		}
		c.Reset()
		c.Id, c.ShardCount, c.WriteVersion, c.Attempt = stream.NewID().String(), req.GetShardCount(), writeVersion, stream.NewAttemptID().String()
		_, err = s.put(ctx, constellationKey(), &c, metastore.Absent)
		if reason.Is(err, reason.VersionConflict) {
			// Another made it first.
			c.Reset()
			_, err = s.read(ctx, constellationKey(), &c)
		}
	}
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.constellation = &c
	s.mu.Unlock()
	return &indexpb.OpenConstellationResponse{Constellation: &c}, nil
}
