package settler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/settler/v1"
)

// Service is one settler.
type Service struct {
	settlerpb.UnimplementedSettlerServiceServer

	cfg      Config
	chains   *chain.Store
	index    indexpb.IndexServiceClient
	registry Registry
	log      *slog.Logger
	now      func() time.Time
	metrics  *metrics
	began    time.Time
	workers  chan struct{} // a token per chain worked on
	engine   *engine
	settlers chan struct{} // a token per chain that is being settled, and per object that is compacted
	compacts chan struct{} // a token per object that is compacted

	listing listing // of Run alone

	mu       sync.Mutex
	tracked  map[string]*tracked      // the chains that fall to this settler and need work
	settling map[string]chan struct{} // the chains that are being settled; closed at the end
}

// New returns a settler. Run MUST be called, and ends what it starts.
func New(cfg Config, deps Deps) (*Service, error) {
	cfg = cfg.withDefaults()
	if deps.Objects == nil || deps.Index == nil || deps.Registry == nil {
		return nil, errors.New("settler: object store, index and registry are needed")
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	chains, err := chain.New(chain.Config{Log: deps.Log, Now: deps.Now}, deps.Objects, catalog.New(deps.Index))
	if err != nil {
		return nil, fmt.Errorf("settler: %w", err)
	}
	s := &Service{
		cfg: cfg, chains: chains, index: deps.Index, registry: deps.Registry, log: deps.Log, now: deps.Now, began: deps.Now(),
		workers: make(chan struct{}, cfg.Workers), settlers: make(chan struct{}, settlesAtOnce), compacts: make(chan struct{}, 1),
		tracked: map[string]*tracked{}, settling: map[string]chan struct{}{},
	}
	if s.metrics, err = newMetrics(deps.Meter, s.load); err != nil {
		return nil, fmt.Errorf("settler: metrics: %w", err)
	}
	s.engine = newEngine(cfg, deps, s.metrics)
	s.engine.chains = chains
	return s, nil
}

// Register adds the service's RPCs.
func (s *Service) Register(r grpc.ServiceRegistrar) { settlerpb.RegisterSettlerServiceServer(r, s) }

// Ready returns nil: a settler serves nobody's request.
func (s *Service) Ready() error { return nil }

// Run absorbs and settles until ctx ends and the work under way has stopped.
func (s *Service) Run(ctx context.Context) error {
	defer s.chains.Close()
	var work sync.WaitGroup
	defer work.Wait()
	tick := time.NewTicker(s.cfg.Probe)
	defer tick.Stop()
	var listed time.Time
	for {
		if now := s.now(); now.Sub(listed) >= s.cfg.Interval {
			listed = now
			if err := s.list(ctx); err != nil && ctx.Err() == nil {
				// What is tracked is worked on meanwhile.
				s.log.WarnContext(ctx, "chains cannot be listed", "err", err)
			}
		}
		for _, t := range s.due() {
			select {
			case s.workers <- struct{}{}:
				work.Go(func() {
					defer func() { <-s.workers }()
					s.look(ctx, t)
				})
			case <-ctx.Done():
				return nil
			}
		}
		for _, t := range s.toSettle() {
			work.Go(func() { s.settle(ctx, t) })
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// listing is what a settler knows of all chains.
type listing struct {
	nodes []discovery.Node
	from  stream.ChainID // none below it needs work
	whole time.Time      // when all were listed last
}

const (
	// clockSkew is how far a new chain's id may be dated back to be found at once.
	clockSkew = time.Hour
	// wholeEvery is how often all chains are listed.
	wholeEvery = time.Hour
	// pageLimit is how many chains are listed at once.
	pageLimit = 500
)

// list brings tracked up to date: chains that are open, or sealed and not wholly
// settled, and fall to this settler.
func (s *Service) list(ctx context.Context) error {
	l := &s.listing
	nodes, err := s.registry.Nodes(ctx, discovery.Settler)
	switch {
	case err == nil:
		l.nodes = nodes
	case ctx.Err() == nil:
		s.log.WarnContext(ctx, "settlers cannot be listed; the last known count", "err", err)
	}
	now := s.now()
	after, whole := l.from, l.whole.IsZero() || now.Sub(l.whole) >= wholeEvery
	if whole {
		after = stream.ChainID{}
	}
	oldest := chain.IDFloor(now.Add(-clockSkew))
	needed := map[string]*indexpb.Chain{}
	for cursor := after.String(); ; {
		res, err := s.index.ListChains(ctx, &indexpb.ListChainsRequest{StartAfter: cursor, Limit: pageLimit})
		if err != nil {
			return err
		}
		for _, v := range res.GetChains() {
			c := v.GetChain()
			cursor = c.GetChainId()
			if c.GetState() != indexpb.ChainState_CHAIN_STATE_OPEN && c.GetSettledTo() >= c.GetCut() {
				continue // whether it is RETIRED or not
			}
			id, err := stream.ParseChainID(c.GetChainId())
			if err != nil {
				s.log.ErrorContext(ctx, "a chain has no id", "err", err)
				continue
			}
			if before := justBefore(id); strings.Compare(before.String(), oldest.String()) < 0 {
				oldest = before
			}
			if s.mine(c.GetChainId()) {
				needed[c.GetChainId()] = c
			}
		}
		if !res.GetHasMore() {
			break
		}
	}
	l.from = oldest
	if whole {
		l.whole = now
	}
	s.track(needed)
	return nil
}

// justBefore returns an id that sorts before id.
func justBefore(id stream.ChainID) stream.ChainID {
	for i := len(id) - 1; i >= 0; i-- {
		id[i]--
		if id[i] != 0xff {
			return id
		}
	}
	return stream.ChainID{}
}

// mine says whether a chain falls to this settler; it counts itself even while
// discovery does not show it.
func (s *Service) mine(chainID string) bool {
	own := score(chainID, s.cfg.NodeID)
	for _, n := range s.listing.nodes {
		if n.ID != s.cfg.NodeID && !n.Draining() && score(chainID, n.ID) > own {
			return false
		}
	}
	return true
}

// Absorb absorbs what a chain has committed now.
func (s *Service) Absorb(ctx context.Context, req *settlerpb.AbsorbRequest) (*settlerpb.AbsorbResponse, error) {
	id, err := stream.ParseChainID(req.GetChainId())
	if err != nil {
		return nil, reason.Field("chain_id", err.Error())
	}
	to, err := s.chains.Absorb(ctx, id)
	if err != nil {
		return nil, status(err)
	}
	s.absorbed(ctx, req.GetChainId(), to)
	return &settlerpb.AbsorbResponse{AbsorbedTo: uint64(to)}, nil
}

// status gives an error of the chain library its code.
func status(err error) error {
	switch {
	case reason.Code(err) != codes.Unknown:
		return reason.Annotate(err, "absorb")
	case errors.Is(err, chain.ErrBroken), errors.Is(err, chain.ErrForeign), errors.Is(err, bundle.ErrCorrupt):
		return reason.New(codes.DataLoss, reason.ChecksumMismatch, err.Error())
	}
	return reason.New(codes.Unavailable, reason.StorageDown, err.Error())
}

// GetProgress returns how far the chains looked after are.
func (s *Service) GetProgress(context.Context, *settlerpb.GetProgressRequest) (*settlerpb.GetProgressResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &settlerpb.GetProgressResponse{
		SettledBytes: s.metrics.settledBytes.Load(), WrittenBytes: s.metrics.writtenBytes.Load(), Since: s.began.UnixMilli(),
		RewrittenBytes: s.metrics.rewrittenBytes.Load(), CompactedBytes: s.metrics.compactedBytes.Load(),
	}
	for id, t := range s.tracked {
		bytes, since := t.unsettled()
		p := &settlerpb.ChainProgress{
			ChainId: id, AbsorbedTo: uint64(t.from), Backlog: t.backlog(), SettledTo: uint64(t.settled),
			UnsettledBytes: bytes, UnsettledSince: since, Blocked: t.blocked,
		}
		if !t.waits.IsZero() {
			p.BacklogSince = t.waits.UnixMilli()
		}
		if p.GetBlocked() == "" {
			p.Blocked = t.stuck
		}
		out.Chains = append(out.Chains, p)
	}
	slices.SortFunc(out.Chains, func(a, b *settlerpb.ChainProgress) int { return strings.Compare(a.GetChainId(), b.GetChainId()) })
	return out, nil
}
