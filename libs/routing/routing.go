package routing

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/rpc"
	"github.com/nova-stream/nova/libs/stream"
)

// Config holds a router's settings. Zero values take the defaults.
type Config struct {
	// Patience is how long a call is tried again after its first failure,
	// default 5 s: a planned handoff takes less, the loss of a node more.
	Patience time.Duration
}

// Connections is the part of rpc.Pool that a router uses.
type Connections interface {
	Address(address string) (grpc.ClientConnInterface, error)
}

// Registry is the part of discovery that a router uses.
type Registry interface {
	Watch(ctx context.Context, s discovery.Service) (<-chan []discovery.Node, error)
	WatchHints(ctx context.Context) (<-chan []discovery.Hint, error)
}

// Deps are what a router works with.
type Deps struct {
	Conns    Connections
	Registry Registry
	Log      *slog.Logger
}

const (
	// redirects followed in a row without a pause: one for a stale hint, one for
	// a leader that just changed, and two to spare.
	maxRedirects = 4
	firstPause   = 10 * time.Millisecond
	longestPause = 400 * time.Millisecond
)

// Router calls the leaders of shards. Its methods are safe for concurrent use.
type Router struct {
	cfg  Config
	deps Deps

	mu       sync.Mutex // guards what follows
	shards   map[stream.Shard]*shard
	nodes    []string             // the addresses of the sequencers to ask, in turn
	suspects map[string]time.Time // addresses that did not answer, until when
	turn     int
}

// New returns a router that knows nothing until Run.
func New(cfg Config, deps Deps) *Router {
	if cfg.Patience == 0 {
		cfg.Patience = 5 * time.Second
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	return &Router{cfg: cfg, deps: deps, shards: map[stream.Shard]*shard{}, suspects: map[string]time.Time{}}
}

// Run follows the sequencers and the hints until ctx ends.
func (r *Router) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() {
		follow(ctx, r.deps.Log, "sequencers", func() (<-chan []discovery.Node, error) {
			return r.deps.Registry.Watch(ctx, discovery.Sequencer)
		}, r.setNodes)
	})
	wg.Go(func() {
		follow(ctx, r.deps.Log, "hints", func() (<-chan []discovery.Hint, error) {
			return r.deps.Registry.WatchHints(ctx)
		}, func(hints []discovery.Hint) {
			for _, h := range hints {
				r.learn(stream.Shard(h.Shard), h.Epoch, h.Address)
			}
		})
	})
	wg.Wait()
	return nil
}

// follow receives from a watch, and opens it again if it ends.
func follow[T any](ctx context.Context, log *slog.Logger, what string, open func() (<-chan T, error), take func(T)) {
	for ctx.Err() == nil {
		watch, err := open()
		if err != nil {
			log.WarnContext(ctx, "routing goes on with what it knows", "watch", what, "err", err)
		} else {
			for v := range watch {
				take(v)
			}
		}
		pause(ctx, longestPause)
	}
}

// Do calls f with the connection of the shard's leader. f makes one call and
// returns its error. It is called again only if the last call was certainly
// not done; the error returned is f's, with the outcome NOT_COMMITTED if that
// is so.
func (r *Router) Do(ctx context.Context, shard stream.Shard, f func(grpc.ClientConnInterface) error) error {
	return r.do(ctx, shard, false, f)
}

// DoIdempotent is Do for calls that may be done twice: it also calls f again
// when the leader became UNAVAILABLE during the call.
func (r *Router) DoIdempotent(ctx context.Context, shard stream.Shard, f func(grpc.ClientConnInterface) error) error {
	return r.do(ctx, shard, true, f)
}

func (r *Router) do(ctx context.Context, n stream.Shard, idempotent bool, f func(grpc.ClientConnInterface) error) error {
	var end time.Time // set by the first failure
	delay := firstPause
	maybe := false // some earlier call may have been done
	if !r.queue(ctx, n) {
		return final(ctx, n, noLeader(n, "others wait for it too"), false)
	}
	for redirects := 0; ; {
		redirected, version, err := r.try(n, f)
		if err == nil || !again(err, idempotent) {
			return Outward(err)
		}
		maybe = maybe || !undone(err)
		if end.IsZero() {
			end = time.Now().Add(r.cfg.Patience)
		}
		if redirects++; redirected && redirects <= maxRedirects && ctx.Err() == nil {
			continue
		}
		redirects = 0
		if !r.rest(ctx, n, version, delay, end) {
			return final(ctx, n, err, maybe)
		}
		delay = min(2*delay, longestPause)
	}
}

// try asks once; redirected: it now knows a leader that it did not ask. version
// is that of what it knew then.
func (r *Router) try(n stream.Shard, f func(grpc.ClientConnInterface) error) (redirected bool, version uint64, err error) {
	a := r.begin(n)
	version = a.version
	if a.address == "" {
		return false, version, noLeader(n, "no sequencer is known yet")
	}
	defer a.returned()
	if a.conn, err = r.deps.Conns.Address(a.address); err != nil {
		r.doubt(n, a.address, true)
		return false, version, noLeader(n, err.Error())
	}
	err = a.explain(f(a))
	switch {
	case err == nil:
		r.confirm(n, a.address)
	case reason.Is(err, reason.NotLeader):
		r.doubt(n, a.address, false)
		epoch, _ := reason.Number(err, reason.KeyEpoch)
		to := reason.Meta(err, reason.KeyAddress)
		if redirected = to != a.address && to != "" && r.learn(n, epoch, to); redirected {
			version = r.version(n) // no news to this call any more
		}
	case a.wasCut(), rpc.NotSent(err):
		r.doubt(n, a.address, true)
	}
	return redirected, version, err
}

// again reports whether the call may be made once more.
func again(err error, idempotent bool) bool {
	switch {
	case reason.OutcomeOf(err) == reason.Unknown:
		// Also of a leader that lost its shard after it had sent the entry.
		return idempotent
	case reason.Is(err, reason.NotLeader), reason.Is(err, reason.NoLeader), rpc.NotSent(err):
		return true
	case reason.Code(err) != codes.Unavailable:
		return false // asking again changes nothing
	}
	return idempotent || reason.OutcomeOf(err) == reason.NotCommitted
}

// final is what the caller gets when trying ends; maybe: some call may have
// been done.
func final(ctx context.Context, shard stream.Shard, err error, maybe bool) error {
	switch {
	case ctx.Err() != nil:
		s := status.FromContextError(ctx.Err())
		err = status.Error(s.Code(), s.Message()+" while looking for the leader of shard "+reason.Text(shard)+": "+status.Convert(err).Message())
	default:
		err = Outward(err)
	}
	if maybe {
		return reason.WithOutcome(err, reason.Unknown)
	}
	return reason.WithOutcome(err, reason.NotCommitted)
}

// Outward is an error as callers outside the fleet may see it: who leads a shard
// is not their business, and UNAVAILABLE is what they try again.
func Outward(err error) error {
	if !reason.Is(err, reason.NotLeader) {
		return err
	}
	out := reason.New(codes.Unavailable, reason.NoLeader, "the stream's leader is changing")
	if o := reason.OutcomeOf(err); o != "" {
		return reason.WithOutcome(out, o)
	}
	return out
}

// undone reports whether a failed call was certainly not done, and passes.
func undone(err error) bool {
	return again(err, false)
}

func noLeader(shard stream.Shard, why string) error {
	return reason.WithOutcome(reason.New(codes.Unavailable, reason.NoLeader, "shard "+reason.Text(shard)+" has no leader yet: "+why), reason.NotCommitted)
}

// pause waits; false if ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
