package reader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/rpc/wire"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/cache/v1"
	"github.com/nova-stream/nova/proto/gen/nova/reader/v1"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// Service is one reader.
type Service struct {
	novapb.UnimplementedReadServiceServer
	readerpb.UnimplementedReaderServiceServer

	cfg     Config
	index   *catalog.Client
	names   *catalog.Names
	known   known
	ahead   *ahead
	router  Router
	cache   cachepb.CacheServiceClient
	objects objectstore.Store
	log     *slog.Logger
	records metric.Int64Counter
	bytes   metric.Int64Counter
	refused metric.Int64Counter

	memory        *semaphore.Weighted // bytes being fetched and decoded
	delivery      *wire.Budget        // bytes of messages of subscriptions
	subscriptions atomic.Int64

	retry   time.Duration   // pause before the leader is asked again
	running context.Context // ends when a stop begins
	stop    context.CancelFunc
}

// New returns a reader.
func New(cfg Config, deps Deps) (*Service, error) {
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Meter == nil {
		deps.Meter = noop.Meter{}
	}
	index := catalog.New(deps.Index)
	s := &Service{
		cfg: cfg.withDefaults(), index: index, names: catalog.NewNames(index), ahead: newAhead(deps.Cache), router: deps.Router,
		cache: deps.Cache, objects: deps.Objects, log: deps.Log,
	}
	s.known = newKnown(s.cfg.HistoryBytes)
	s.memory = semaphore.NewWeighted(s.cfg.MemoryBytes)
	s.retry = retryDelay
	s.running, s.stop = context.WithCancel(context.Background())
	var err, err2, err3, err4 error
	s.delivery, err4 = wire.NewMeteredBudget(wire.BudgetConfig{Bytes: s.cfg.DeliveryBytes, Patience: s.cfg.Patience}, deps.Meter, "nova.reader")
	s.records, err = deps.Meter.Int64Counter("nova.reader.read.records", metric.WithUnit("{record}"), metric.WithDescription("Records returned."))
	s.bytes, err2 = deps.Meter.Int64Counter("nova.reader.read.bytes", metric.WithUnit("By"), metric.WithDescription("Bytes of headers and bodies returned."))
	s.refused, err3 = deps.Meter.Int64Counter("nova.reader.refused", metric.WithUnit("{call}"), metric.WithDescription("Calls refused at a limit."))
	if err := errors.Join(err, err2, err3, err4); err != nil {
		return nil, fmt.Errorf("reader: metrics: %w", err)
	}
	return s, nil
}

// Register adds the service's RPCs.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	novapb.RegisterReadServiceServer(r, s)
	readerpb.RegisterReaderServiceServer(r, s)
}

// Ready returns nil: a reader holds nothing that it must first find.
func (s *Service) Ready() error { return nil }

// Run waits for ctx, and then ends the calls that would not end by themselves:
// their clients go on where they were, with another reader.
func (s *Service) Run(ctx context.Context) error {
	<-ctx.Done()
	s.stop()
	s.ahead.close()
	return nil
}

// whileRunning calls f with a context that ends with ctx, or when a stop
// begins; what f returns because of a stop becomes errStopping.
func (s *Service) whileRunning(ctx context.Context, f func(context.Context) error) error {
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.running, cancel)()
	err := f(running)
	if reason.Code(err) == codes.Canceled && s.running.Err() != nil && ctx.Err() == nil {
		return errStopping()
	}
	return err
}

// errStopping is UNAVAILABLE: another reader serves what this one refuses.
func errStopping() error {
	return reason.New(codes.Unavailable, reason.NoLeader, "the reader is stopping")
}

// target is a stream as a request names it.
type target interface {
	GetBucket() string
	GetStream() string
	GetStreamId() string
}

// withStream calls f with what the name means. If the leader then knows that
// this stream is deleted, the name is resolved once more: it may mean another.
func (s *Service) withStream(ctx context.Context, t target, f func(id stream.ID, key *sequencerpb.StreamKey) error) error {
	for again := false; ; again = true {
		named, err := s.names.Resolve(ctx, t.GetBucket(), t.GetStream(), t.GetStreamId(), catalog.ForRead)
		if err != nil {
			return err
		}
		err = f(named.ID, &sequencerpb.StreamKey{StreamId: named.ID.String(), Shard: uint32(named.Shard)})
		if again || !reason.Is(err, reason.StreamNotFound) {
			return err
		}
		s.names.Invalidate(t.GetBucket(), t.GetStream(), named.ID)
	}
}

// state asks the leader for a stream's extent.
func (s *Service) state(ctx context.Context, key *sequencerpb.StreamKey) (*sequencerpb.StreamState, error) {
	var state *sequencerpb.StreamState
	err := s.router.DoIdempotent(ctx, stream.Shard(key.GetShard()), func(conn grpc.ClientConnInterface) error {
		res, err := sequencerpb.NewSequencerServiceClient(conn).GetState(ctx, &sequencerpb.GetStateRequest{Stream: key})
		state = res.GetState()
		return err
	})
	return state, err
}

// CheckTail returns the next number.
func (s *Service) CheckTail(ctx context.Context, req *novapb.CheckTailRequest) (*novapb.CheckTailResponse, error) {
	var out *novapb.CheckTailResponse
	err := s.withStream(ctx, req, func(id stream.ID, key *sequencerpb.StreamKey) error {
		state, err := s.state(ctx, key)
		if err != nil {
			return err
		}
		out = &novapb.CheckTailResponse{
			Tail: state.GetTail(), LastTimestamp: state.GetLastTimestamp(), ContentHash: state.GetContentHash(),
			FirstSeq: state.GetTrim(), StreamId: id.String(), Sealed: state.GetSealed(),
		}
		return nil
	})
	return out, err
}

// PlanRead is not available yet.
func (s *Service) PlanRead(context.Context, *novapb.PlanReadRequest) (*novapb.PlanReadResponse, error) {
	return nil, reason.Missing("read plans")
}
