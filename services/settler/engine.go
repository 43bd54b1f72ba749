package settler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/stream"
)

const (
	// maxWindows limits the directories of a span.
	maxWindows = 1024
	// maxRounds is how often the streams that were changed meanwhile are taken up
	// again within a span.
	maxRounds = 8
	// headsAtOnce is how many heads are read, or changed, in parallel.
	headsAtOnce = 16
	// shardsByOne is how many records of shards are read one by one; more are
	// listed, all of the deployment's, since a busy chain has entries of most.
	shardsByOne = 16
	// readsAtOnce is how many ranges of slots and how many directories are read in
	// parallel.
	readsAtOnce = 8
)

// engine settles spans of chains. It is safe for concurrent use; two on one chain
// do no harm.
type engine struct {
	objects  objectstore.Store
	slots    chain.Register
	chains   *chain.Store // for the repair of streams
	index    *catalog.Client
	log      *slog.Logger
	now      func() time.Time
	metrics  *metrics
	limiter  *rate.Limiter // of bytes read from slots; nil: none
	grace    time.Duration // ReadGrace
	memory   int64         // bytes that one span may hold
	bytes    uint64        // of the entries of a span
	windows  int           // of a span
	rewrites int           // RewriteRuns
	listFrom int           // shardsByOne

	limitsMu sync.Mutex
	limits   map[stream.ID]limits
}

func newEngine(cfg Config, deps Deps, m *metrics) *engine {
	e := &engine{
		objects: deps.Objects, slots: chain.NewRegister(deps.Objects, callTimeout), index: catalog.New(deps.Index),
		log: deps.Log, now: deps.Now, metrics: m, grace: cfg.ReadGrace,
		memory: cfg.SettleMemory / settlesAtOnce, bytes: uint64(cfg.SettleBytes), windows: maxWindows,
		rewrites: cfg.RewriteRuns, listFrom: shardsByOne,
	}
	if cfg.SettleRate > 0 {
		e.limiter = rate.NewLimiter(rate.Limit(cfg.SettleRate), int(min(cfg.SettleRate, 1<<30)))
	}
	return e
}

// errBlocked means that a chain is not settled any further for now, and why.
type errBlocked struct{ why string }

func (e errBlocked) Error() string { return e.why }

func blocked(format string, args ...any) error { return errBlocked{fmt.Sprintf(format, args...)} }

// errMoved means that what was read is old, or another settler was faster: start
// again.
var errMoved = errors.New("the chain was settled by another meanwhile, or what was read is old")

// settle settles the next span of a chain, if there is one, and returns how far
// the chain is then. Its steps, and what a crash after each leaves:
//
//  1. choose the span and read its directories: nothing.
//  2. see that the shards' lower chains are settled: nothing.
//  3. read and fold the heads of a group of streams: nothing.
//  4. make the group's objects, each by a marker, a row that says ADOPTING, and
//     the object: objects that no head names, with a marker that leads to them.
//  5. touch the objects' rows and change the heads, each once: heads that are
//     ahead of settled_to; the next settler passes over what they hold.
//  6. make the rows ADOPTED and drop the markers: what is left of them, their judge
//     does.
//  7. when all heads are done, arm the marker of what may be reclaimed: a marker
//     that finds nothing to do.
//  8. compare-and-set settled_to, and the pins of what is kept: nothing.
func (e *engine) settle(ctx context.Context, id stream.ChainID) (stream.Slot, error) {
	s := &span{engine: e, chain: id, name: id.String()}
	err := s.choose(ctx)
	if err == nil && s.to > s.from {
		err = s.settle(ctx)
	}
	if err != nil {
		return s.from, fmt.Errorf("settle chain %s [%d, %d): %w", id, s.from, s.to, err)
	}
	return s.to, nil
}

// take waits until n bytes may be read.
func (e *engine) take(ctx context.Context, n int64) error {
	if e.limiter == nil {
		return nil
	}
	for n > 0 {
		part := min(n, int64(e.limiter.Burst()))
		if err := e.limiter.WaitN(ctx, int(part)); err != nil {
			return err
		}
		n -= part
	}
	return nil
}
