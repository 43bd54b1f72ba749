package settler

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/settler/v1"
)

// Config holds a settler's settings. Zero values take the defaults.
type Config struct {
	// NodeID names the node, as discovery shows it.
	NodeID string
	// Interval is how often chains are looked at, default 5 s: what was committed
	// since then is absorbed, full window or not.
	Interval time.Duration
}

// Registry is the part of discovery that a settler uses.
type Registry interface {
	Nodes(ctx context.Context, s discovery.Service) ([]discovery.Node, error)
}

// Deps are what a settler works with.
type Deps struct {
	Objects  objectstore.Store
	Index    indexpb.IndexServiceClient
	Registry Registry
	Log      *slog.Logger
	Meter    metric.Meter
	Now      func() time.Time // default time.Now
}

// Service is one settler.
type Service struct {
	settlerpb.UnimplementedSettlerServiceServer

	cfg      Config
	chains   *chain.Store
	index    *catalog.Client
	registry Registry
	log      *slog.Logger
	now      func() time.Time
	absorbed metric.Int64Counter

	mu sync.Mutex
	// progress is absorbed_to of the chains looked after.
	progress map[string]uint64
	// finished holds chains that need nothing any more.
	finished map[string]bool
}

// New returns a settler.
func New(cfg Config, deps Deps) (*Service, error) {
	if cfg.Interval == 0 {
		cfg.Interval = 5 * time.Second
	}
	if deps.Objects == nil || deps.Index == nil || deps.Registry == nil {
		return nil, errors.New("settler: object store, index and registry are needed")
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
	absorbed, err := deps.Meter.Int64Counter("nova.settler.absorbed.slots", metric.WithUnit("{slot}"), metric.WithDescription("Slots absorbed into directories."))
	if err != nil {
		return nil, fmt.Errorf("settler: metrics: %w", err)
	}
	index := catalog.New(deps.Index)
	chains, err := chain.New(chain.Config{Log: deps.Log, Now: deps.Now}, deps.Objects, index)
	if err != nil {
		return nil, fmt.Errorf("settler: %w", err)
	}
	return &Service{
		cfg: cfg, chains: chains, index: index, registry: deps.Registry, log: deps.Log, now: deps.Now,
		absorbed: absorbed, progress: map[string]uint64{}, finished: map[string]bool{},
	}, nil
}

// Register adds the service's RPCs.
func (s *Service) Register(r grpc.ServiceRegistrar) { settlerpb.RegisterSettlerServiceServer(r, s) }

// Ready returns nil: a settler serves nobody's request.
func (s *Service) Ready() error { return nil }

// Run absorbs until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	tick := time.NewTicker(s.cfg.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := s.round(ctx); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "settle round", "err", err)
		}
	}
}

// round absorbs what the chains that fall to this settler have committed.
func (s *Service) round(ctx context.Context) error {
	nodes, err := s.registry.Nodes(ctx, discovery.Settler)
	if err != nil {
		return fmt.Errorf("list settlers: %w", err)
	}
	return s.index.EachChain(ctx, func(r *indexpb.Chain) error {
		id := r.GetChainId()
		s.mu.Lock()
		done := s.finished[id]
		s.mu.Unlock()
		if done || !s.mine(nodes, id) {
			return nil
		}
		if r.GetState() != indexpb.ChainState_CHAIN_STATE_OPEN && r.GetAbsorbedTo() >= r.GetCut() {
			s.mu.Lock()
			s.finished[id] = true
			delete(s.progress, id)
			s.mu.Unlock()
			return nil
		}
		if _, err := s.absorb(ctx, id); err != nil && ctx.Err() == nil {
			// One chain that fails must not stop the others.
			s.log.WarnContext(ctx, "absorb", "chain", id, "err", err)
		}
		return ctx.Err()
	})
}

func (s *Service) absorb(ctx context.Context, id string) (uint64, error) {
	c, err := stream.ParseChainID(id)
	if err != nil {
		return 0, reason.Field("chain_id", err.Error())
	}
	to, err := s.chains.Absorb(ctx, c)
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if before := s.progress[id]; uint64(to) > before {
		s.absorbed.Add(ctx, int64(uint64(to)-before))
	}
	s.progress[id] = uint64(to)
	return uint64(to), nil
}

// mine says whether a chain falls to this settler; it counts itself even while
// discovery does not show it.
func (s *Service) mine(nodes []discovery.Node, chain string) bool {
	own := score(chain, s.cfg.NodeID)
	for _, n := range nodes {
		if n.ID != s.cfg.NodeID && score(chain, n.ID) > own {
			return false
		}
	}
	return true
}

func score(key, node string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(node + "\x00" + key))
	return h.Sum64()
}

// Absorb absorbs what a chain has committed now.
func (s *Service) Absorb(ctx context.Context, req *settlerpb.AbsorbRequest) (*settlerpb.AbsorbResponse, error) {
	to, err := s.absorb(ctx, req.GetChainId())
	if err != nil {
		if reason.Code(err) == codes.Unknown {
			err = reason.New(codes.Unavailable, reason.StorageDown, err.Error())
		}
		return nil, err
	}
	return &settlerpb.AbsorbResponse{AbsorbedTo: to}, nil
}

// GetProgress returns how far the chains looked after are.
func (s *Service) GetProgress(context.Context, *settlerpb.GetProgressRequest) (*settlerpb.GetProgressResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &settlerpb.GetProgressResponse{}
	for id, to := range s.progress {
		out.Chains = append(out.Chains, &settlerpb.ChainProgress{ChainId: id, AbsorbedTo: to})
	}
	slices.SortFunc(out.Chains, func(a, b *settlerpb.ChainProgress) int { return strings.Compare(a.GetChainId(), b.GetChainId()) })
	return out, nil
}
