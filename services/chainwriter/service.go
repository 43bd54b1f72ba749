package chainwriter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// Service is one chain-writer: one life.
type Service struct {
	chainwriterpb.UnimplementedChainWriterServiceServer

	cfg     Config
	index   *catalog.Client
	chains  *chain.Store
	log     *slog.Logger
	metrics *metrics
	tracer  trace.Tracer
	now     func() time.Time
	life    stream.LifeID

	running context.Context // ends with Run
	stop    context.CancelFunc

	mu      sync.Mutex // guards what follows
	current *writer
	opening chan struct{} // not nil while a chain is being made
	closed  bool
	writers sync.WaitGroup
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
		log: deps.Log, tracer: deps.Tracer, now: deps.Now, life: stream.NewLifeID(),
	}
	if s.metrics, err = newMetrics(deps.Meter, s.load); err != nil {
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

// load returns the bytes in the pool and the slots not absorbed yet.
func (s *Service) load() (pooled, backlog int64) {
	s.mu.Lock()
	w := s.current
	s.mu.Unlock()
	if w == nil {
		return 0, 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pooled, int64(w.backlog())
}

// queueChain holds the markers of chains, so that one whose writer died before
// anybody was bound to it is found.
const queueChain = "chain"

// chainPatience is when a chain is first looked after.
const chainPatience = 24 * time.Hour

// writer returns the writer of the present chain, making one if there is none
// or the last has ended. Callers at the same time get the same one.
func (s *Service) writer(ctx context.Context) (*writer, error) {
	for {
		s.mu.Lock()
		switch w, wait := s.current, s.opening; {
		case s.closed:
			s.mu.Unlock()
			return nil, errStopping()
		case w != nil && !w.isEnded():
			s.mu.Unlock()
			return w, nil
		case wait == nil:
			s.opening = make(chan struct{})
			s.mu.Unlock()
			return s.openWriter(ctx)
		default:
			s.mu.Unlock()
			select {
			case <-wait:
			case <-ctx.Done():
				return nil, reason.New(reason.Code(ctx.Err()), "", ctx.Err().Error())
			}
		}
	}
}

// openWriter makes a chain and its writer the present ones.
func (s *Service) openWriter(ctx context.Context) (*writer, error) {
	id, err := s.makeChain(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.opening)
	s.opening = nil
	if err != nil {
		return nil, err
	}
	if s.closed {
		return nil, errStopping() // the chain's marker leads to it
	}
	w := &writer{
		cfg: s.cfg, id: id, log: s.log, metrics: s.metrics, tracer: s.tracer, now: s.now, shards: map[stream.Shard]*shardState{},
		gone: make(chan struct{}), hurry: make(chan struct{}, 1),
		appender: s.chains.NewAppender(chain.AppenderConfig{
			Chain: id, Writer: s.life, Lanes: s.cfg.Lanes, StuckAfter: s.cfg.StuckAfter, HedgeAfter: s.cfg.HedgeAfter,
		}),
	}
	w.changed = sync.NewCond(&w.mu)
	s.current = w
	s.writers.Go(func() { w.run(s.running) })
	s.log.InfoContext(ctx, "opened chain", "chain", id.String())
	return w, nil
}

func errStopping() error {
	return reason.New(codes.Unavailable, "", "the chain-writer is stopping")
}

// makeChain records a new chain, a marker for it first: a crash between leaves
// a marker of no chain, and after it a chain that the marker leads to.
func (s *Service) makeChain(ctx context.Context) (stream.ChainID, error) {
	id := stream.NewChainID()
	if _, err := s.index.ArmDue(ctx, &indexpb.Due{Queue: queueChain, At: s.now().Add(chainPatience).UnixMilli(), ChainId: id.String()}); err != nil {
		return id, fmt.Errorf("open chain: arm marker: %w", err)
	}
	if _, err := s.index.PutChain(ctx, &indexpb.Chain{
		ChainId: id.String(), Profile: novapb.StorageProfile_STORAGE_PROFILE_STANDARD, WriterLife: s.life.String(), WriterAddress: s.cfg.Address,
		Zone: s.cfg.Zone, State: indexpb.ChainState_CHAIN_STATE_OPEN, CreatedAt: s.now().UnixMilli(), Lanes: uint32(s.cfg.Lanes),
	}, catalog.Absent); err != nil {
		return id, fmt.Errorf("open chain: record it: %w", err)
	}
	return id, nil
}
