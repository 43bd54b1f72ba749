package sequencer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// Service is one sequencer: one life.
type Service struct {
	novapb.UnimplementedAppendServiceServer
	sequencerpb.UnimplementedSequencerServiceServer

	cfg      Config
	log      *slog.Logger
	index    *catalog.Client
	names    *catalog.Names
	conns    Connections
	registry Registry
	nodes    *knownNodes
	now      func() time.Time
	metrics  *metrics

	lease   *lease
	watched map[string]watchedLife // by lives only
	// lookedAt is when lives last saw all; by lives only.
	lookedAt time.Time
	// vacant is since when shards that fall to others are seen without a holder;
	// placement's only.
	vacant map[stream.Shard]time.Time
	ended  map[string]time.Time // since when a life is seen as over; placement's only
	// takeable maps a shard to the holder that placement found gone.
	takeable sync.Map // stream.Shard -> string
	shards   []*shard // set once by Run, before opened is closed
	opened   chan struct{}
	links    *links
	chains   *chains
	window   *tailWindow

	pool     *semaphore.Weighted // bytes of appends under way
	poolMu   sync.Mutex          // serialises adjustPool
	withheld atomic.Int64        // of the pool, because the chain-writer grants less
	// toWithhold is what withheld is to become.
	toWithhold atomic.Int64
	// coordinates is what the pieces of open streams take, in bytes.
	coordinates atomic.Int64
	evicted     atomic.Int64 // when appends last had idle streams leave for room, Unix nanoseconds
	sessions    atomic.Int64
	draining    atomic.Bool
	others      atomic.Bool   // there are other nodes that shards fall to
	unfitNodes  sync.Map      // node -> time.Time: when it did not take what it was given
	wake        chan struct{} // has placement look at once; capacity 1
	rebalancing atomic.Bool

	stopping  context.Context // ends when a stop begins
	beginStop context.CancelFunc
	stopBegan atomic.Pointer[time.Time]
	running   context.Context // ends when the service stops serving
	stop      context.CancelFunc
	// admitting ends with running, or before it when a stop begins: see stop.go.
	admitting    context.Context
	endAdmitting context.CancelFunc
	work         workGroup
	state        atomic.Pointer[string] // why it is not ready; nil: it is

	chainNames sync.Map // stream.ChainID -> *stream.ChainID

	readyMu  sync.Mutex // serialises reportReady
	wasReady bool       // guarded by readyMu

	saidMu sync.Mutex
	said   map[string]time.Time // cause of waiting -> when it was logged
}

// New returns a sequencer that does nothing until Run.
func New(cfg Config, deps Deps) (*Service, error) {
	cfg = cfg.withDefaults()
	if cfg.NodeID == "" || cfg.Address == "" {
		return nil, errors.New("sequencer: node id and address are needed")
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	m, err := newMetrics(deps.Meter)
	if err != nil {
		return nil, fmt.Errorf("sequencer: metrics: %w", err)
	}
	index := catalog.New(deps.Index)
	s := &Service{
		cfg: cfg, log: deps.Log, index: index, names: catalog.NewNames(index), conns: deps.Conns, registry: deps.Registry, now: deps.Now,
		nodes:   &knownNodes{registry: deps.Registry, last: map[discovery.Service][]discovery.Node{}},
		metrics: m, lease: newLease(cfg.LeaseTTL, cfg.FormerLivesDead, deps.Now), watched: map[string]watchedLife{}, opened: make(chan struct{}),
		window: &tailWindow{limit: cfg.TailWindowBytes}, pool: semaphore.NewWeighted(cfg.PoolBytes),
		said: map[string]time.Time{}, vacant: map[stream.Shard]time.Time{}, wake: make(chan struct{}, 1),
	}
	s.links, s.chains = newLinks(s), newChains(s)
	// Both contexts exist before Run, so that an early request waits, not panics.
	s.stopping, s.beginStop = context.WithCancel(context.Background())
	s.running, s.stop = context.WithCancel(context.Background())
	s.admitting, s.endAdmitting = context.WithCancel(s.running)
	s.notReady("starting")
	return s, nil
}

// Register adds the service's RPCs.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	novapb.RegisterAppendServiceServer(r, s)
	sequencerpb.RegisterSequencerServiceServer(r, s)
}

// Ready returns nil once the service leads shards, or why it does not.
func (s *Service) Ready() error {
	if why := s.state.Load(); why != nil {
		return errors.New("sequencer: " + *why)
	}
	if !s.lease.valid() {
		return errors.New("sequencer: its lease could not be renewed in the metastore; only appends are served")
	}
	return nil
}

func (s *Service) notReady(why string) { s.state.Store(&why) }

// LifeID returns the id of this life.
func (s *Service) LifeID() stream.LifeID { return s.lease.life }

// Run leads shards until ctx ends, then hands them back: appends under way are
// answered, the life is released. It returns an error if the life was declared
// dead by another: the process should start again as a new life.
func (s *Service) Run(ctx context.Context) error {
	defer s.stop()
	defer s.beginStop()
	constellation, err := s.openConstellation(ctx)
	if err != nil {
		return nil //nolint:nilerr // ctx ended before the index answered
	}
	shards := make([]*shard, constellation.GetShardCount())
	for i := range shards {
		shards[i] = newShard(s, stream.Shard(i))
	}
	s.shards = shards
	close(s.opened)
	s.work.Go(s.watchSettled)

	held := make(chan struct{})
	leaseCtx, endLease := context.WithCancel(context.WithoutCancel(ctx))
	defer endLease()
	leaseDone := make(chan error, 1)
	s.notReady("waiting for its lease in the metastore")
	go func() { leaseDone <- s.keepLease(leaseCtx, func() { close(held) }) }()

	var placed sync.WaitGroup
	placeCtx, endPlacing := context.WithCancel(ctx)
	defer endPlacing()
	placed.Go(func() {
		select {
		case <-held:
			s.place(placeCtx)
		case <-placeCtx.Done():
		}
	})

	select {
	case err = <-leaseDone:
		// Deposed: nothing may be answered from memory any more.
		endPlacing()
		placed.Wait()
	case <-ctx.Done():
		began := time.Now()
		s.stopBegan.Store(&began)
		s.draining.Store(true)
		s.beginStop()
		s.reportReady()
		endPlacing()
		placed.Wait()
		// Order: shards are handed over while others live, so that their streams
		// hardly pause; of those that stay nothing new is taken, or the next step
		// would never end under load; what is under way is answered, while the lease
		// still holds; then the lease ends; only then is the life released, so that a
		// successor never serves beside this one.
		s.handOverAll(context.WithoutCancel(ctx))
		s.endAdmitting()
		s.settleDown()
		endLease()
		if lerr := <-leaseDone; lerr != nil {
			s.log.WarnContext(ctx, "the lease ended while stopping", "err", lerr)
		}
		s.lease.end()
		s.releaseLife(context.WithoutCancel(ctx))
	}
	s.stop()
	for _, sh := range s.shards {
		sh.drop(nil)
	}
	s.work.Wait()
	return err
}

// openConstellation waits for the index to answer.
func (s *Service) openConstellation(ctx context.Context) (*indexpb.Constellation, error) {
	for pause := retryLeast; ; pause = min(2*pause, retryMost) {
		c, err := s.index.OpenConstellation(ctx, s.cfg.Shards)
		if err == nil {
			return c, nil
		}
		s.notReady("waiting for the index: " + err.Error())
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(jittered(pause)):
		}
	}
}

// reportReady looks at all shards. One look at a time: the last one to end its
// recovery must have the last word. Once ready, a service stays so while it
// serves anything: that some shards move is everyday life.
func (s *Service) reportReady() {
	s.readyMu.Lock()
	defer s.readyMu.Unlock()
	if s.stopping.Err() != nil {
		s.notReady("stopping")
		return
	}
	waiting, serving := 0, 0
	for _, sh := range s.shards {
		sh.mu.Lock()
		switch {
		case sh.taking || sh.held && !sh.serving.Load():
			waiting++
		case sh.held:
			serving++
		}
		sh.mu.Unlock()
	}
	if waiting > 0 && (serving == 0 || !s.wasReady) {
		s.notReady(fmt.Sprintf("%d shards are being recovered", waiting))
		return
	}
	s.wasReady = true
	s.state.Store(nil)
}

// fenced drops a shard that a higher epoch took away.
func (s *Service) fenced(sh *shard, epoch stream.Epoch) {
	sh.mu.Lock()
	current := sh.epoch == epoch && sh.held
	sh.mu.Unlock()
	if current && sh.suspend() {
		// The record says who has it now; recovery reads it and gives up, or
		// finds that it was the own fence and goes on.
		s.startRecovery(sh)
	}
}

func (s *Service) startRecovery(sh *shard) {
	s.work.Go(func() {
		s.recover(s.running, sh)
		if s.running.Err() == nil {
			s.reportReady()
		}
	})
}

// stopsBy is when what is under way must be over, once a stop has begun.
func (s *Service) stopsBy() time.Time { return s.stopBegan.Load().Add(s.cfg.StopTimeout) }

// settleDown waits, up to the stop timeout, until nothing is under way.
func (s *Service) settleDown() {
	deadline := time.NewTimer(time.Until(s.stopsBy()))
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for s.underWay() {
		select {
		case <-tick.C:
		case <-deadline.C:
			return
		}
	}
}

func (s *Service) underWay() bool {
	for _, sh := range s.shards {
		sh.mu.Lock()
		n := len(sh.pending)
		sh.mu.Unlock()
		if n > 0 {
			return true
		}
	}
	return false
}

// releasePatience is how long a stop waits for the metastore at most.
const releasePatience = time.Second

// releaseLife says that this life serves nothing any more, so that others need
// not wait for its lease to run out.
func (s *Service) releaseLife(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, min(s.lease.ttl/3, releasePatience))
	defer cancel()
	if err := s.index.EndLife(ctx, s.lease.life.String(), indexpb.LifeState_LIFE_STATE_RELEASED); err != nil {
		s.log.WarnContext(ctx, "life not released; successors wait for its lease", "err", err)
	}
}

// hint tells where the shard is led; only routing, so a failure is only logged.
func (s *Service) hint(ctx context.Context, r *indexpb.Shard) {
	err := s.registry.PutHint(ctx, discovery.Hint{Shard: r.GetShard(), Epoch: r.GetEpoch(), Address: s.cfg.Address})
	if err != nil && ctx.Err() == nil {
		s.log.WarnContext(ctx, "routing hint not written", "shard", r.GetShard(), "err", err)
	}
}

// shardOf returns a shard by number, once the constellation is known.
func (s *Service) shardOf(ctx context.Context, n stream.Shard) (*shard, error) {
	select {
	case <-s.opened:
	case <-ctx.Done():
		return nil, errNoLeader(n)
	case <-s.running.Done():
		return nil, errNoLeader(n)
	}
	if int(n) >= len(s.shards) {
		return nil, errNoLeader(n)
	}
	return s.shards[n], nil
}

// profileOf returns the storage profile of a shard: all are standard until
// express shards exist.
func (s *Service) profileOf(stream.Shard) novapb.StorageProfile {
	return novapb.StorageProfile_STORAGE_PROFILE_STANDARD
}

// chainPointer returns one pointer for all pieces of a chain.
func (s *Service) chainPointer(c stream.ChainID) *stream.ChainID {
	if p, ok := s.chainNames.Load(c); ok {
		return p.(*stream.ChainID)
	}
	p, _ := s.chainNames.LoadOrStore(c, &c)
	return p.(*stream.ChainID)
}

// The pause before a step is tried again doubles from the least to the most.
const (
	retryLeast = 50 * time.Millisecond
	retryMost  = 500 * time.Millisecond
)

// jittered returns a pause of once to twice the given one.
func jittered(pause time.Duration) time.Duration {
	return pause + time.Duration(rand.Int64N(int64(pause)))
}
