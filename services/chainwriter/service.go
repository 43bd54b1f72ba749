package chainwriter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
)

// Service is one chain-writer: one life.
type Service struct {
	chainwriterpb.UnimplementedChainWriterServiceServer

	cfg     Config
	index   *catalog.Client
	chains  *chain.Store
	conns   Connections
	log     *slog.Logger
	metrics *metrics
	tracer  trace.Tracer
	now     func() time.Time
	life    stream.LifeID

	running context.Context // ends with Run
	stop    context.CancelFunc
	// senders are the WriteEntries calls under way.
	senders atomic.Int64

	mu      sync.Mutex // guards what follows
	current *writer
	opening chan struct{} // not nil while a chain is being made
	closed  bool
	// unsealed are the chains of this life that broke and have no cut yet.
	unsealed int
	trials   trials
	writers  sync.WaitGroup
}

// New returns a chain-writer. Run MUST be called, and ends what it starts.
func New(cfg Config, deps Deps) (*Service, error) {
	cfg = cfg.withDefaults()
	if deps.Objects == nil || deps.Index == nil {
		return nil, errors.New("chain-writer: object store and index are needed")
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	if deps.Tracer == nil {
		deps.Tracer = noop.Tracer{}
	}
	index := catalog.New(deps.Index)
	chains, err := chain.New(chain.Config{CallTimeout: cfg.AttemptTimeout, Log: deps.Log, Now: deps.Now}, deps.Objects, index)
	if err != nil {
		return nil, fmt.Errorf("chain-writer: %w", err)
	}
	s := &Service{
		cfg: cfg, index: index, chains: chains,
		conns: deps.Conns, log: deps.Log, tracer: deps.Tracer, now: deps.Now, life: stream.NewLifeID(),
	}
	if s.metrics, err = newMetrics(deps.Meter, s.load, s.unsealedChains); err != nil {
		return nil, fmt.Errorf("chain-writer: metrics: %w", err)
	}
	s.running, s.stop = context.WithCancel(context.Background())
	return s, nil
}

// Register adds the service's RPCs.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	chainwriterpb.RegisterChainWriterServiceServer(r, s)
}

// Ready returns nil: a chain is made when it is first asked for.
func (s *Service) Ready() error { return nil }

// Run serves until ctx ends. Then it ends its chain, if the stores answer
// within Config.StopTimeout; if not, whoever recovers its shards does.
func (s *Service) Run(ctx context.Context) error {
	s.watchBacklog(ctx)
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	s.writers.Wait()
	s.chains.Close()
	return nil
}

// load is what the present chain holds.
type load struct {
	pooled    int64 // bytes in the pool
	backlog   int64 // slots not absorbed yet
	unsettled int64 // bytes not settled yet
}

func (s *Service) load() load {
	s.mu.Lock()
	w := s.current
	s.mu.Unlock()
	if w == nil {
		return load{}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return load{pooled: w.pooled, backlog: int64(w.backlog()), unsettled: w.unsettled.bytes}
}
