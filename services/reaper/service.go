package reaper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/cache/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/reaper/v1"
)

// Config holds a reaper's settings. Zero values take the defaults.
type Config struct {
	// Interval is how often a queue without markers is looked at, default 5 s; a
	// marker that is due sooner is not kept waiting.
	Interval time.Duration
	// Workers is how many markers of one queue are worked on at once, default 4.
	Workers int
	// Patience limits the work on one marker, default 1 min.
	Patience time.Duration
	// Retry is when a marker whose work failed is tried again, default 1 min,
	// doubled with every failure up to an hour.
	Retry time.Duration
	// Attempts is how often a marker is tried before it is set aside, default 50;
	// tries that were only too early do not count, and those that met an outage up
	// to half of it.
	Attempts uint32
	// ReadGrace is how long what a stream no longer names stays for those who are
	// reading it, default 10 min. It only spares them from looking again: a reader
	// that finds nothing reads the head anew. So clocks that differ do no harm.
	ReadGrace time.Duration
	// LateAfter is how long after its first deletion an object is deleted once
	// more, default 3 days: longer than any PUT of it can be under way.
	LateAfter time.Duration
	// SealAfter is how long a chain-writer is gone before its chain is sealed,
	// default 1 h.
	SealAfter time.Duration
}

// Check validates what a program's flags set.
func (c *Config) Check() error {
	if c.ReadGrace < time.Second || c.ReadGrace > 24*time.Hour {
		return errors.New("--read-grace must be 1s to 24h")
	}
	return nil
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
	set(&c.ReadGrace, 10*time.Minute)
	set(&c.LateAfter, settlesAfter)
	set(&c.SealAfter, time.Hour)
	if c.Workers == 0 {
		c.Workers = 4
	}
	if c.Attempts == 0 {
		c.Attempts = 50
	}
	return c
}

// Router reaches the sequencer that leads a shard.
type Router interface {
	DoIdempotent(ctx context.Context, shard stream.Shard, f func(grpc.ClientConnInterface) error) error
}

// Registry is the part of discovery that a reaper uses.
type Registry interface {
	Nodes(ctx context.Context, s discovery.Service) ([]discovery.Node, error)
}

// Connections reaches a node at its address.
type Connections interface {
	Address(address string) (grpc.ClientConnInterface, error)
}

// Deps are what a reaper works with.
type Deps struct {
	Index    indexpb.IndexServiceClient
	Cache    cachepb.CacheServiceClient
	Router   Router
	Registry Registry
	Conns    Connections
	Log      *slog.Logger
	Meter    metric.Meter
	Now      func() time.Time // default time.Now
}

// queue is a due queue and the work of its markers, which fails with a later
// when it is too early.
type queue struct {
	name string
	work func(context.Context, catalog.Marker) error
	page uint32 // markers that are taken at once; 0: page
}

func (q queue) atOnce() uint32 {
	if q.page > 0 {
		return q.page
	}
	return page
}

// dead is how many markers that were set aside are listed at once.
func (q queue) dead() uint32 {
	if q.page > 0 {
		return q.page
	}
	return deadLimit
}

// later says that work could not be done yet, and when to try again: that is no
// failure.
type later struct {
	after time.Duration
	why   string
}

func (l later) Error() string { return l.why }

// Service is one reaper.
type Service struct {
	reaperpb.UnimplementedReaperServiceServer

	cfg      Config
	raw      indexpb.IndexServiceClient
	index    *catalog.Client
	cache    cachepb.CacheServiceClient
	router   Router
	registry Registry
	conns    Connections
	log      *slog.Logger
	now      func() time.Time
	metrics  *metrics
	queues   []queue

	exports exports

	mu       sync.Mutex
	progress map[string]*reaperpb.QueueProgress
	counted  map[string]time.Time // when the queue's dead were
}

// New returns a reaper.
func New(cfg Config, deps Deps) (*Service, error) {
	if deps.Index == nil || deps.Cache == nil || deps.Router == nil || deps.Registry == nil || deps.Conns == nil {
		return nil, errors.New("reaper: index, cache, router, registry and connections are needed")
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	s := &Service{
		cfg: cfg.withDefaults(), raw: deps.Index, index: catalog.New(deps.Index), cache: deps.Cache, router: deps.Router,
		registry: deps.Registry, conns: deps.Conns, log: deps.Log, now: deps.Now,
		progress: map[string]*reaperpb.QueueProgress{}, counted: map[string]time.Time{}, exports: exports{turn: make(chan struct{}, 1)},
	}
	s.queues = []queue{
		{"create", s.orphan, 0}, {"delete", s.deleteStream, 0}, {"bucket", s.deleteBucket, 0}, {"directory", s.judgeDirectory, 0},
		{queueChain, s.lookAfterChain, 0}, {queueSettled, s.judgeSettled, 0}, {queueUnref, s.unref, largeMarkers},
		{queueReclaim, s.reclaim, 0}, {queueRetention, s.retain, 0}, {catalog.QueueCompact, s.compact, 0},
	}
	for _, q := range s.queues {
		s.progress[q.name] = &reaperpb.QueueProgress{Queue: q.name}
	}
	var err error
	if s.metrics, err = newMetrics(deps.Meter, s.eachQueue); err != nil {
		return nil, fmt.Errorf("reaper: metrics: %w", err)
	}
	return s, nil
}

// Register adds the service's RPCs.
func (s *Service) Register(r grpc.ServiceRegistrar) { reaperpb.RegisterReaperServiceServer(r, s) }

// Ready returns nil: a reaper serves nobody's request.
func (s *Service) Ready() error { return nil }

// Run drains the queues until ctx ends, each at its own pace: one that is slow,
// or cannot be read, must not keep the others waiting.
func (s *Service) Run(ctx context.Context) error {
	var queues sync.WaitGroup
	for _, q := range s.queues {
		queues.Go(func() { s.keepDraining(ctx, q) })
	}
	queues.Wait()
	return nil
}

func (s *Service) keepDraining(ctx context.Context, q queue) {
	timer := time.NewTimer(s.cfg.Interval)
	defer timer.Stop()
	failures := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		r := s.drain(ctx, q)
		pause := s.cfg.Interval
		switch {
		case r.err != nil && ctx.Err() == nil:
			s.log.WarnContext(ctx, "drain", "queue", q.name, "err", r.err)
			pause = max(pause, min(pause<<min(failures, 10), outagePause))
			failures++
		case !r.next.IsZero():
			pause = min(pause, max(r.next.Sub(s.now()), 0))
			fallthrough
		default:
			failures = 0
		}
		s.countDead(ctx, q)
		timer.Reset(pause)
	}
}

const (
	// page is how many markers are taken at once, and largeMarkers if each may hold
	// a quarter of a MiB: they come in one message.
	page, largeMarkers = 100, 8
	// outagePause is how long a queue that meets an outage pauses at most, unless
	// its interval is longer.
	outagePause = time.Minute
	// deadEvery is how often the markers that were set aside are counted, and
	// deadLimit how many at most.
	deadEvery = 5 * time.Minute
	deadLimit = 1000
)

// countDead looks now and then how many markers of a queue were set aside.
func (s *Service) countDead(ctx context.Context, q queue) {
	s.mu.Lock()
	due := s.now().Sub(s.counted[q.name]) >= deadEvery
	if due {
		s.counted[q.name] = s.now()
	}
	s.mu.Unlock()
	if !due {
		return
	}
	dead, err := s.index.ListDue(ctx, catalog.DeadQueue(q.name), s.now().Add(time.Hour), q.dead()) // clocks differ
	if err != nil {
		return // the next look counts them
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.progress[q.name].Dead = uint64(len(dead))
}

// eachQueue calls f with how far each queue is.
func (s *Service) eachQueue(f func(*reaperpb.QueueProgress)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.queues {
		f(s.progress[q.name])
	}
}

// Drain works on every marker that is due now.
func (s *Service) Drain(ctx context.Context, _ *reaperpb.DrainRequest) (*reaperpb.DrainResponse, error) {
	rounds := make([]round, len(s.queues))
	var queues sync.WaitGroup
	for i, q := range s.queues {
		queues.Go(func() { rounds[i] = s.drain(ctx, q) })
	}
	queues.Wait()
	out := &reaperpb.DrainResponse{}
	var failed error
	for _, r := range rounds {
		out.Done += r.done
		out.Failed += r.failed
		failed = errors.Join(failed, r.err)
	}
	if failed != nil {
		return nil, reason.Annotate(failed, "drain")
	}
	return out, nil
}

// round is what a drain of one queue came to.
type round struct {
	done, failed uint64
	next         time.Time // when the next marker is due, if that is soon
	err          error
}

// drain works on the markers of a queue that are due when it begins.
func (s *Service) drain(ctx context.Context, q queue) (r round) {
	until := s.now()
	for {
		// What is due soon comes with the same range.
		markers, err := s.index.ListDue(ctx, q.name, until.Add(s.cfg.Interval), q.atOnce())
		if err != nil {
			r.err = fmt.Errorf("queue %s: %w", q.name, err)
			return r
		}
		var due []catalog.Marker
		oldest := int64(0)
		r.next = time.Time{}
		for _, m := range markers {
			ready := time.UnixMilli(max(m.Due.GetAt(), m.Due.GetLeasedUntil()))
			if oldest == 0 && m.Due.GetAt() <= until.UnixMilli() {
				oldest = m.Due.GetAt()
			}
			switch {
			case !ready.After(until):
				due = append(due, m)
			case r.next.IsZero() || ready.Before(r.next):
				r.next = ready
			}
		}
		s.mu.Lock()
		s.progress[q.name].OldestDue = oldest
		s.mu.Unlock()
		done, failed, err := s.all(ctx, q, due)
		r.done += done
		r.failed += failed
		if err != nil {
			r.err = fmt.Errorf("queue %s: %w", q.name, err)
			return r
		}
		// Less than a page: that was all. A page that others work on: it is theirs.
		if len(markers) < int(q.atOnce()) || len(due) == 0 {
			return r
		}
	}
}

// all works on markers, several at once. Its error is the first that a marker's
// row met: what was not begun by then waits for the next round.
func (s *Service) all(ctx context.Context, q queue, due []catalog.Marker) (done, failed uint64, err error) {
	var counts [2]atomic.Uint64
	var stop atomic.Bool
	var workers errgroup.Group
	workers.SetLimit(s.cfg.Workers)
	for _, m := range due {
		workers.Go(func() error {
			if stop.Load() || ctx.Err() != nil {
				return ctx.Err()
			}
			what, err := s.one(ctx, q, m)
			switch what {
			case resultDone:
				counts[0].Add(1)
			case resultTaken:
			default:
				counts[1].Add(1)
			}
			if err != nil {
				stop.Store(true)
			}
			return err
		})
	}
	err = workers.Wait()
	return counts[0].Load(), counts[1].Load(), err
}

// result is what came of one marker; it is an attribute of the metric.
type result string

const (
	resultDone     result = "done"
	resultTaken    result = "taken" // another worker has it
	resultLater    result = "later"
	resultFailed   result = "failed"
	resultSetAside result = "set_aside"
)

// leaseSlack is how much longer than its work a marker is claimed: for the
// change of the marker after it, and for clocks that differ. If it is not
// enough, two work on one marker, which is only wasteful.
const leaseSlack = 15 * time.Second

// one claims a marker, works on it, and removes, moves, or sets it aside. If it
// dies in between, another does so when the claim ends.
func (s *Service) one(ctx context.Context, q queue, m catalog.Marker) (what result, err error) {
	defer func() {
		s.metrics.workedOn(ctx, q.name, what)
		s.mu.Lock()
		defer s.mu.Unlock()
		switch what {
		case resultDone:
			s.progress[q.name].Done++
		case resultTaken:
		default:
			s.progress[q.name].Failed++
		}
	}()
	held, err := s.index.ClaimDue(ctx, m, s.now().Add(s.cfg.Patience+leaseSlack))
	if catalog.IsConflict(err) {
		return resultTaken, nil
	}
	if err != nil {
		return resultFailed, fmt.Errorf("claim: %w", err)
	}
	work, cancel := context.WithTimeout(ctx, s.cfg.Patience)
	werr := q.work(work, held)
	cancel()
	var wait later
	switch {
	case werr == nil:
		return resultDone, s.index.DropDue(ctx, held)
	case ctx.Err() != nil:
		return resultFailed, ctx.Err()
	case errors.As(werr, &wait):
		held.Due.Attempts = m.Due.GetAttempts()
		s.log.DebugContext(ctx, "due work waits", "queue", q.name, "due", m.Due.GetDueId(), "again_in", wait.after.String(), "why", wait.why)
		return resultLater, s.index.MoveDue(ctx, held, q.name, s.now().Add(wait.after))
	case isOutage(werr):
		// It is nobody's fault, and ends for all at once: it sets nothing aside. Some
		// tries count, so that the pauses grow.
		if held.Due.GetAttempts() > s.cfg.Attempts/2 {
			held.Due.Attempts = m.Due.GetAttempts()
		}
		return resultFailed, errors.Join(s.again(ctx, q, m, held, werr), stopped(werr))
	case held.Due.GetAttempts() >= s.cfg.Attempts:
		s.log.ErrorContext(ctx, "due work failed too often and is set aside", "queue", q.name, "due", m.Due.GetDueId(), "attempts", held.Due.GetAttempts(), "err", werr)
		return resultSetAside, s.index.MoveDue(ctx, held, catalog.DeadQueue(q.name), s.now())
	default:
		return resultFailed, s.again(ctx, q, m, held, werr)
	}
}

// again moves a marker whose work failed to when it is tried next.
func (s *Service) again(ctx context.Context, q queue, m, held catalog.Marker, werr error) error {
	pause := min(s.cfg.Retry<<min(m.Due.GetAttempts(), 10), time.Hour)
	s.log.WarnContext(ctx, "due work failed", "queue", q.name, "due", m.Due.GetDueId(), "again_in", pause.String(), "err", werr)
	return s.index.MoveDue(ctx, held, q.name, s.now().Add(pause))
}

// isOutage reports whether work failed since something did not answer or had no
// room, which says nothing of the work.
func isOutage(err error) bool {
	code := reason.Code(err)
	return code == codes.Unavailable || code == codes.ResourceExhausted
}

// errStorage is the failure of a call to the object store, which the next marker
// of the queue would meet too.
type errStorage struct{ cause error }

func (e errStorage) Error() string { return e.cause.Error() }
func (e errStorage) Unwrap() error { return e.cause }

// stopped is the error that ends a round, if it would be like that for all.
func stopped(err error) error {
	if down := (errStorage{}); errors.As(err, &down) {
		return fmt.Errorf("object store: %w", down.cause)
	}
	return nil
}

// nearlyOver reports whether so little is left of a turn that no further step is
// begun.
func (s *Service) nearlyOver(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && time.Until(deadline) < s.cfg.Patience/4
}

// more says that the turn is over and the work is not, which is no failure.
func (s *Service) more(done string) error { return later{s.cfg.Interval, done} }

// GetProgress returns counts by queue.
func (s *Service) GetProgress(context.Context, *reaperpb.GetProgressRequest) (*reaperpb.GetProgressResponse, error) {
	out := &reaperpb.GetProgressResponse{}
	s.eachQueue(func(p *reaperpb.QueueProgress) { out.Queues = append(out.Queues, proto.CloneOf(p)) })
	return out, nil
}

// Revive puts markers that were set aside back into their queue. Each is written
// there before it is removed here; repeating it after an error does no harm.
func (s *Service) Revive(ctx context.Context, req *reaperpb.ReviveRequest) (*reaperpb.ReviveResponse, error) {
	i := slices.IndexFunc(s.queues, func(q queue) bool { return q.name == req.GetQueue() })
	if i < 0 {
		return nil, reason.Field("queue", fmt.Sprintf("%q is none of the queues", req.GetQueue()))
	}
	now := s.now()
	dead, err := s.index.ListDue(ctx, catalog.DeadQueue(req.GetQueue()), now.Add(time.Hour), s.queues[i].dead()) // clocks differ
	if err != nil {
		return nil, reason.Annotate(err, "list")
	}
	out := &reaperpb.ReviveResponse{}
	for _, m := range dead {
		if id := req.GetDueId(); id != "" && id != m.Due.GetDueId() {
			continue
		}
		m.Due = proto.CloneOf(m.Due)
		m.Due.Attempts = 0
		if err := s.index.MoveDue(ctx, m, req.GetQueue(), now); err != nil {
			return nil, reason.Annotate(err, fmt.Sprintf("after %d markers", out.GetRevived()))
		}
		out.Revived++
	}
	s.log.InfoContext(ctx, "markers that were set aside are tried again", "queue", req.GetQueue(), "count", out.GetRevived())
	s.mu.Lock()
	delete(s.counted, req.GetQueue())
	s.mu.Unlock()
	return out, nil
}
