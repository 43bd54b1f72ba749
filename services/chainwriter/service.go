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

	mu      sync.Mutex
	current *openWriter
	opening chan struct{} // not nil while a chain is being made
	closed  bool
	writers sync.WaitGroup
}

// openWriter is a writer with its end.
type openWriter struct {
	*writer

	gone chan struct{} // closed when run has returned
}

// New returns a chain-writer that takes entries once Run was called.
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
	m, err := newMetrics(deps.Meter)
	if err != nil {
		return nil, fmt.Errorf("chain-writer: metrics: %w", err)
	}
	index := catalog.New(deps.Index)
	chains, err := chain.New(chain.Config{CallTimeout: cfg.AttemptTimeout, Log: deps.Log, Now: deps.Now}, deps.Objects, index)
	if err != nil {
		return nil, fmt.Errorf("chain-writer: %w", err)
	}
	s := &Service{
		cfg: cfg, index: index, chains: chains,
		log: deps.Log, metrics: m, tracer: deps.Tracer, now: deps.Now, life: stream.NewLifeID(),
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

// Run keeps the chain's backlog in view until ctx ends, then closes the chain's
// appender: flights in the air stay undecided, and the next leader decides them.
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

// queueChain holds the markers of chains, so that one whose writer died before
// anybody was bound to it is found.
const queueChain = "chain"

// chainPatience is when a chain is first looked after.
const chainPatience = 24 * time.Hour

// writer returns the writer of the present chain, making one if there is none
// or the last has ended.
func (s *Service) writer(ctx context.Context) (*openWriter, error) {
	for {
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return nil, reason.New(codes.Unavailable, "", "the chain-writer is stopping")
		}
		if w := s.current; w != nil && !w.isEnded() {
			s.mu.Unlock()
			return w, nil
		}
		wait := s.opening
		if wait == nil {
			wait = make(chan struct{})
			s.opening = wait
			s.mu.Unlock()
			w, err := s.makeChain(ctx)
			s.mu.Lock()
			s.opening = nil
			close(wait)
			if err == nil && s.closed {
				err = reason.New(codes.Unavailable, "", "the chain-writer is stopping")
			}
			if err == nil {
				s.current = w
				s.writers.Go(func() {
					defer close(w.gone)
					w.run(s.running)
				})
			} else if w != nil {
				w.appender.Close()
			}
			s.mu.Unlock()
			return w, err
		}
		s.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, reason.New(reason.Code(ctx.Err()), "", ctx.Err().Error())
		}
	}
}

// makeChain records a new chain, a marker for it first.
func (s *Service) makeChain(ctx context.Context) (*openWriter, error) {
	id := stream.NewChainID()
	if _, err := s.index.ArmDue(ctx, &indexpb.Due{Queue: queueChain, At: s.now().Add(chainPatience).UnixMilli(), ChainId: id.String()}); err != nil {
		return nil, fmt.Errorf("open chain: arm marker: %w", err)
	}
	if _, err := s.index.PutChain(ctx, &indexpb.Chain{
		ChainId: id.String(), Profile: novapb.StorageProfile_STORAGE_PROFILE_STANDARD, WriterLife: s.life.String(), WriterAddress: s.cfg.Address,
		Zone: s.cfg.Zone, State: indexpb.ChainState_CHAIN_STATE_OPEN, CreatedAt: s.now().UnixMilli(),
	}, catalog.Absent); err != nil {
		return nil, fmt.Errorf("open chain: record it: %w", err)
	}
	w := &writer{
		cfg: s.cfg, id: id, log: s.log, metrics: s.metrics, tracer: s.tracer, now: s.now, shards: map[stream.Shard]*shardState{},
		appender: s.chains.NewAppender(chain.AppenderConfig{
			Chain: id, Writer: s.life, Lanes: s.cfg.Lanes, StuckAfter: s.cfg.StuckAfter, HedgeAfter: s.cfg.HedgeAfter,
		}),
	}
	w.changed = sync.NewCond(&w.mu)
	s.log.InfoContext(ctx, "opened chain", "chain", id.String())
	return &openWriter{writer: w, gone: make(chan struct{})}, nil
}

// watchBacklog learns how far the chain is absorbed, while there is anything to
// absorb, and absorbs itself when the settler falls behind by half the budget.
func (s *Service) watchBacklog(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s.mu.Lock()
		w := s.current
		s.mu.Unlock()
		if w == nil {
			continue
		}
		w.mu.Lock()
		backlog, ended := w.backlog(), w.ended
		w.mu.Unlock()
		if ended || backlog <= 0 {
			continue
		}
		to, err := s.absorbed(ctx, w.id, backlog >= s.cfg.BacklogFlights/2)
		if err != nil {
			if ctx.Err() == nil {
				s.log.WarnContext(ctx, "backlog", "chain", w.id.String(), "slots", backlog, "err", err)
			}
			continue
		}
		w.mu.Lock()
		w.absorbed = max(w.absorbed, to)
		w.changed.Broadcast()
		w.mu.Unlock()
	}
}

func (s *Service) absorbed(ctx context.Context, c stream.ChainID, help bool) (stream.Slot, error) {
	if help {
		return s.chains.Absorb(ctx, c)
	}
	r, _, err := s.index.GetChain(ctx, c.String())
	return stream.Slot(r.GetAbsorbedTo()), err
}
