package bench

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/discovery/local"
	"github.com/nova-stream/nova/libs/metastore"
	metamem "github.com/nova-stream/nova/libs/metastore/mem"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/rpc"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/cache/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/reaper/v1"
	"github.com/nova-stream/nova/proto/gen/nova/settler/v1"
	"github.com/nova-stream/nova/services/cache"
	"github.com/nova-stream/nova/services/index"
	"github.com/nova-stream/nova/services/novad"
	"github.com/nova-stream/nova/services/reaper"
	"github.com/nova-stream/nova/services/settler"
)

// background is what moves records on after they were appended: absorption,
// settling and reaping. They run beside a node whose own do nothing, so that what
// each of them costs is seen by itself: each has an index of its own over the
// same metastore, and a view of its own of the same objects.
type background struct {
	tb       testing.TB
	metadata metastore.Store

	node, absorbs, settles, reaps *part

	absorber, settler *settler.Service
	reaper            *reaper.Service

	catalog *catalog.Client // for the measurement itself
}

// part is what one of them does to the stores.
type part struct {
	rows    *rows
	objects *puts
}

// service is what every service package's Service is.
type service interface {
	Register(r grpc.ServiceRegistrar)
	Run(ctx context.Context) error
}

// never is longer than any measurement.
const never = 24 * time.Hour

// newBackground starts a node over a store, and what works in the background
// beside it. Absorption runs by itself, with the default pace; settling and reaping
// do when they are told. The reaper keeps nothing back, neither for readers nor for
// late PUTs.
func newBackground(tb testing.TB, store objectstore.Store, args ...string) (*background, inside) {
	tb.Helper()
	b := &background{tb: tb, metadata: metamem.New()}
	fresh := func() *part { return &part{rows: &rows{Store: b.metadata}, objects: &puts{Store: store}} }
	b.node, b.absorbs, b.settles, b.reaps = fresh(), fresh(), fresh(), fresh()
	n, _ := nodeWith(tb, b.node.objects, b.node.rows, still(nodeConfig(tb, append([]string{"--dev"}, args...)...)))
	b.absorber = b.newSettler(b.absorbs)
	b.settler = b.newSettler(b.settles)
	b.reaper = b.newReaper(0)
	b.catalog = catalog.New(b.index(fresh()))
	b.run(b.absorber)
	return b, n
}

// still has the background of a node do nothing.
func still(cfg novad.Config) novad.Config {
	cfg.Settler.Interval, cfg.Settler.SettleAge, cfg.Reaper.Interval = never, never, never
	return cfg
}

// run runs a part until the end of the test, or until what it returns is called.
func (b *background) run(p service) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := p.Run(ctx); err != nil {
			b.tb.Error(err)
		}
	})
	stop = func() { cancel(); wg.Wait() }
	b.tb.Cleanup(stop)
	return stop
}

// serve returns a connection to a service in this process.
func (b *background) serve(p service) grpc.ClientConnInterface {
	b.tb.Helper()
	within := rpc.NewInproc(rpc.Options{})
	server, err := within.Server("bench")
	if err != nil {
		b.tb.Fatal(err)
	}
	p.Register(server)
	server.Start()
	registry := local.New()
	pool, err := rpc.NewPool(rpc.PoolConfig{Inproc: within, Registry: registry})
	if err != nil {
		b.tb.Fatal(err)
	}
	b.tb.Cleanup(func() {
		server.Stop(context.Background())
		if err := errors.Join(pool.Close(), registry.Close()); err != nil {
			b.tb.Error(err)
		}
	})
	conn, err := pool.Address(server.Address())
	if err != nil {
		b.tb.Fatal(err)
	}
	return conn
}

func (b *background) index(of *part) indexpb.IndexServiceClient {
	b.tb.Helper()
	s, err := index.New(index.Config{}, index.Deps{Store: of.rows})
	if err != nil {
		b.tb.Fatal(err)
	}
	return indexpb.NewIndexServiceClient(b.serve(s))
}

func (b *background) newSettler(of *part) *settler.Service {
	b.tb.Helper()
	registry := local.New()
	b.tb.Cleanup(func() { _ = registry.Close() })
	s, err := settler.New(settler.Config{NodeID: "bench", SettleAge: never, ReadGrace: time.Millisecond, SettleBytes: 4 << 30},
		settler.Deps{Objects: of.objects, Index: b.index(of), Registry: registry})
	if err != nil {
		b.tb.Fatal(err)
	}
	return s
}

// newReaper makes one that looks into its queues that often; 0: when it is told.
func (b *background) newReaper(every time.Duration) *reaper.Service {
	b.tb.Helper()
	if every == 0 {
		every = never
	}
	c, err := cache.New(cache.Config{Bytes: 1 << 20}, cache.Deps{Objects: b.reaps.objects})
	if err != nil {
		b.tb.Fatal(err)
	}
	b.run(c)
	registry := local.New()
	b.tb.Cleanup(func() { _ = registry.Close() })
	r, err := reaper.New(reaper.Config{Interval: every, ReadGrace: time.Millisecond, LateAfter: time.Millisecond, Patience: 10 * time.Minute}, reaper.Deps{
		Index: b.index(b.reaps), Cache: cachepb.NewCacheServiceClient(b.serve(c)), Router: alone{}, Registry: registry, Conns: alone{},
	})
	if err != nil {
		b.tb.Fatal(err)
	}
	return r
}

// alone is how a reaper reaches others that it does not need here.
type alone struct{}

var errAlone = errors.New("there are no others")

func (alone) DoIdempotent(context.Context, stream.Shard, func(grpc.ClientConnInterface) error) error {
	return errAlone
}
func (alone) Address(string) (grpc.ClientConnInterface, error) { return nil, errAlone }

// chains calls f with every chain.
func (b *background) chains(f func(*indexpb.Chain)) {
	b.tb.Helper()
	if err := b.catalog.EachChain(b.tb.Context(), func(c *indexpb.Chain) error { f(c); return nil }); err != nil {
		b.tb.Fatal(err)
	}
}

// absorb absorbs all that is committed.
func (b *background) absorb() {
	b.tb.Helper()
	b.chains(func(c *indexpb.Chain) {
		if _, err := b.absorber.Absorb(b.tb.Context(), &settlerpb.AbsorbRequest{ChainId: c.GetChainId()}); err != nil {
			b.tb.Fatal(err)
		}
	})
}

// settle settles all that is absorbed.
func (b *background) settle() {
	b.tb.Helper()
	b.chains(func(c *indexpb.Chain) {
		if _, err := b.settler.Settle(b.tb.Context(), &settlerpb.SettleRequest{ChainId: c.GetChainId()}); err != nil {
			b.tb.Fatal(err)
		}
	})
}

// reap does all work that is due, until there is none.
func (b *background) reap() {
	b.tb.Helper()
	for {
		time.Sleep(2 * time.Millisecond) // what was armed last is due then
		r, err := b.reaper.Drain(b.tb.Context(), &reaperpb.DrainRequest{})
		if err != nil {
			b.tb.Fatal(err)
		}
		if r.GetDone()+r.GetFailed() == 0 {
			return
		}
	}
}

// rows counts the calls to a metastore, by family of keys. Close leaves it open.
type rows struct {
	metastore.Store

	mu    sync.Mutex
	calls map[string]int
	watch func(key metastore.Key, value []byte) // of puts that succeeded; nil: nobody
}

func (r *rows) count(op metastore.Op, path string) {
	family, _, _ := strings.Cut(path, "/")
	if family == "due" {
		// Queues are families of their own.
		queue, _, _ := strings.Cut(strings.TrimPrefix(path, "due/"), "/")
		family += "/" + queue
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls == nil {
		r.calls = map[string]int{}
	}
	r.calls[family+" "+string(op)]++
}

// take returns the calls since the last take.
func (r *rows) take() calls {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.calls
	r.calls = nil
	return c
}

// calls are numbers of calls by family of keys and operation.
type calls map[string]int

// of sums the families that begin with one of the prefixes; none: all.
func (c calls) of(prefixes ...string) float64 {
	n := 0
	for family, k := range c {
		found := len(prefixes) == 0
		for _, p := range prefixes {
			found = found || strings.HasPrefix(family, p)
		}
		if found {
			n += k
		}
	}
	return float64(n)
}

func (r *rows) Close() error { return nil }

func (r *rows) Get(ctx context.Context, key metastore.Key) (metastore.Row, error) {
	r.count(metastore.OpGet, key.Path)
	return r.Store.Get(ctx, key)
}

func (r *rows) Floor(ctx context.Context, key metastore.Key, from string) (metastore.Row, error) {
	r.count(metastore.OpFloor, key.Path)
	return r.Store.Floor(ctx, key, from)
}

func (r *rows) Range(ctx context.Context, partition, from, to string, limit int) ([]metastore.Row, error) {
	r.count(metastore.OpRange, from)
	return r.Store.Range(ctx, partition, from, to, limit)
}

func (r *rows) Put(ctx context.Context, key metastore.Key, value []byte, expected metastore.Version) (metastore.Version, error) {
	r.count(metastore.OpPut, key.Path)
	v, err := r.Store.Put(ctx, key, value, expected)
	if err == nil && r.watch != nil {
		r.watch(key, value)
	}
	return v, err
}

func (r *rows) PutEphemeral(ctx context.Context, key metastore.Key, value []byte, expected metastore.Version) (metastore.Version, error) {
	r.count(metastore.OpPutEphemeral, key.Path)
	return r.Store.PutEphemeral(ctx, key, value, expected)
}

func (r *rows) Delete(ctx context.Context, key metastore.Key, expected metastore.Version) error {
	r.count(metastore.OpDelete, key.Path)
	return r.Store.Delete(ctx, key, expected)
}

// puts notes what is put into a store, by the first part of the keys. Close leaves
// it open.
type puts struct {
	objectstore.Store

	mu    sync.Mutex
	kinds map[string][]putObject
}

type putObject struct {
	key  string
	size int
}

func (p *puts) note(key string, size int) {
	kind, _, _ := strings.Cut(key, "/")
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kinds == nil {
		p.kinds = map[string][]putObject{}
	}
	p.kinds[kind] = append(p.kinds[kind], putObject{key, size})
}

// take returns what was put since the last take.
func (p *puts) take() map[string][]putObject {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.kinds
	p.kinds = nil
	return k
}

func (p *puts) Close() error { return nil }

func (p *puts) PutIfAbsent(ctx context.Context, key string, body []byte) (objectstore.ETag, error) {
	tag, err := p.Store.PutIfAbsent(ctx, key, body)
	if err == nil {
		p.note(key, len(body))
	}
	return tag, err
}

func (p *puts) PutIfMatch(ctx context.Context, key string, body []byte, etag objectstore.ETag) (objectstore.ETag, error) {
	tag, err := p.Store.PutIfMatch(ctx, key, body, etag)
	if err == nil {
		p.note(key, len(body))
	}
	return tag, err
}

// total is the bytes of objects.
func total(objects ...[]putObject) float64 {
	n := 0
	for _, list := range objects {
		for _, o := range list {
			n += o.size
		}
	}
	return float64(n)
}
