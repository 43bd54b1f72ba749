package reaper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"google.golang.org/grpc"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/cache/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/reaper/v1"
)

// Config holds a reaper's settings. Zero values take the defaults.
type Config struct {
	// Interval is how often queues are looked at, default 5 s.
	Interval time.Duration
	// Patience limits the work on one marker, default 1 min.
	Patience time.Duration
	// Retry is when a marker whose work failed is tried again, default 1 min,
	// doubled with every failure up to an hour.
	Retry time.Duration
	// Attempts is how often a marker is tried before it is set aside, default 50.
	Attempts uint32
}

func (c Config) withDefaults() Config {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&c.Interval, 5*time.Second)
	set(&c.Patience, time.Minute)
	set(&c.Retry, time.Minute)
	if c.Attempts == 0 {
		c.Attempts = 50
	}
	return c
}

// Router reaches the sequencer that leads a shard.
type Router interface {
	DoIdempotent(ctx context.Context, shard stream.Shard, f func(grpc.ClientConnInterface) error) error
}

// Deps are what a reaper works with.
type Deps struct {
	Index  indexpb.IndexServiceClient
	Cache  cachepb.CacheServiceClient
	Router Router
	Log    *slog.Logger
	Meter  metric.Meter
	Now    func() time.Time // default time.Now
}

// queue is a due queue and the work of its markers. errLater means that it is
// too early to tell.
type queue struct {
	name string
	work func(context.Context, *indexpb.Due) error
}

// Service is one reaper.
type Service struct {
	reaperpb.UnimplementedReaperServiceServer

	cfg    Config
	raw    indexpb.IndexServiceClient
	index  *catalog.Client
	cache  cachepb.CacheServiceClient
	router Router
	log    *slog.Logger
	now    func() time.Time
	worked metric.Int64Counter
	queues []queue

	mu       sync.Mutex
	progress map[string]*reaperpb.QueueProgress
}

// New returns a reaper.
func New(cfg Config, deps Deps) (*Service, error) {
	if deps.Index == nil || deps.Cache == nil || deps.Router == nil {
		return nil, errors.New("reaper: index, cache and router are needed")
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Meter == nil {
		deps.Meter = noop.Meter{}
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	s := &Service{
		cfg: cfg.withDefaults(), raw: deps.Index, index: catalog.New(deps.Index), cache: deps.Cache, router: deps.Router,
		log: deps.Log, now: deps.Now, progress: map[string]*reaperpb.QueueProgress{},
	}
	s.queues = []queue{
		{"create", s.orphan}, {"delete", s.deleteStream}, {"bucket", s.deleteBucket}, {"directory", s.judgeDirectory}, {"chain", s.lookAfterChain},
	}
	for _, q := range s.queues {
		s.progress[q.name] = &reaperpb.QueueProgress{Queue: q.name}
	}
	var err error
	s.worked, err = deps.Meter.Int64Counter("nova.reaper.markers", metric.WithUnit("{marker}"), metric.WithDescription("Due markers worked on, by queue and result."))
	if err != nil {
		return nil, fmt.Errorf("reaper: metrics: %w", err)
	}
	return s, nil
}

// Register adds the service's RPCs.
func (s *Service) Register(r grpc.ServiceRegistrar) { reaperpb.RegisterReaperServiceServer(r, s) }

// Ready returns nil: a reaper serves nobody's request.
func (s *Service) Ready() error { return nil }

// Run drains the queues until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	tick := time.NewTicker(s.cfg.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if _, err := s.Drain(ctx, &reaperpb.DrainRequest{}); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "reap round", "err", err)
		}
	}
}

// page is how many markers are taken at once.
const page = 100

// Drain works on every marker that is due now.
func (s *Service) Drain(ctx context.Context, _ *reaperpb.DrainRequest) (*reaperpb.DrainResponse, error) {
	out := &reaperpb.DrainResponse{}
	until := s.now()
	var failed error
	for _, q := range s.queues {
		done, bad, err := s.drain(ctx, q, until)
		out.Done += done
		out.Failed += bad
		// A queue that cannot be read must not keep the others waiting.
		failed = errors.Join(failed, err)
	}
	return out, failed
}

func (s *Service) drain(ctx context.Context, q queue, until time.Time) (done, failed uint64, err error) {
	for {
		markers, err := s.index.ListDue(ctx, q.name, until, page)
		if err != nil {
			return done, failed, fmt.Errorf("queue %s: %w", q.name, err)
		}
		s.mu.Lock()
		s.progress[q.name].OldestDue = 0
		if len(markers) > 0 {
			s.progress[q.name].OldestDue = markers[0].Due.GetAt()
		}
		s.mu.Unlock()
		for _, m := range markers {
			if ctx.Err() != nil {
				return done, failed, ctx.Err()
			}
			ok, err := s.one(ctx, q, m)
			if err != nil {
				return done, failed, fmt.Errorf("queue %s: %w", q.name, err)
			}
			if ok {
				done++
			} else {
				failed++
			}
		}
		if len(markers) < page {
			return done, failed, nil
		}
	}
}

// one works on a marker and removes, moves, or sets it aside.
func (s *Service) one(ctx context.Context, q queue, m catalog.Marker) (bool, error) {
	work, cancel := context.WithTimeout(ctx, s.cfg.Patience)
	err := q.work(work, m.Due)
	cancel()
	result := "done"
	defer func() {
		s.worked.Add(ctx, 1, metric.WithAttributes(attribute.String("queue", q.name), attribute.String("result", result)))
		s.mu.Lock()
		defer s.mu.Unlock()
		if result == "done" {
			s.progress[q.name].Done++
		} else {
			s.progress[q.name].Failed++
		}
	}()
	if err == nil {
		return true, s.index.DropDue(ctx, m)
	}
	result = "failed"
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	if m.Due.GetAttempts()+1 >= s.cfg.Attempts && !errors.Is(err, errLater) {
		result = "set aside"
		s.log.ErrorContext(ctx, "due work failed too often and is set aside", "queue", q.name, "due", m.Due.GetDueId(), "err", err)
		return false, s.index.MoveDue(ctx, m, "dead-"+q.name, s.now())
	}
	pause := min(s.cfg.Retry<<min(m.Due.GetAttempts(), 10), time.Hour)
	if !errors.Is(err, errLater) {
		s.log.WarnContext(ctx, "due work failed", "queue", q.name, "due", m.Due.GetDueId(), "again_in", pause.String(), "err", err)
	}
	return false, s.index.MoveDue(ctx, m, q.name, s.now().Add(pause))
}

// GetProgress returns counts by queue.
func (s *Service) GetProgress(context.Context, *reaperpb.GetProgressRequest) (*reaperpb.GetProgressResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &reaperpb.GetProgressResponse{}
	for _, q := range s.queues {
		p := s.progress[q.name]
		out.Queues = append(out.Queues, &reaperpb.QueueProgress{Queue: p.GetQueue(), Done: p.GetDone(), Failed: p.GetFailed(), OldestDue: p.GetOldestDue()})
	}
	return out, nil
}
