package retention

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/discovery/local"
	metamem "github.com/nova-stream/nova/libs/metastore/mem"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/objectstore/mem"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/routing"
	"github.com/nova-stream/nova/libs/rpc"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/cache/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/node/v1"
	"github.com/nova-stream/nova/proto/gen/nova/settler/v1"
	"github.com/nova-stream/nova/services/cache"
	"github.com/nova-stream/nova/services/chainwriter"
	"github.com/nova-stream/nova/services/gateway"
	"github.com/nova-stream/nova/services/index"
	"github.com/nova-stream/nova/services/node"
	"github.com/nova-stream/nova/services/reader"
	"github.com/nova-stream/nova/services/reaper"
	"github.com/nova-stream/nova/services/sequencer"
	"github.com/nova-stream/nova/services/settler"
)

const (
	shards   = 8
	leaseTTL = 30 * time.Second
	exports  = time.Hour
	// tailWindow is small, so that leaders say where records are, and readers read slots.
	tailWindow = 16 << 10
)

// pace is how often services look for work that nobody tells them of.
type pace struct {
	lease, settled       time.Duration // sequencers
	interval, probe      time.Duration // settlers
	reaper               time.Duration
	settleAge, readGrace time.Duration
	exportRate           int // rows per second that an export reads; 0: the default
}

var (
	// busy is the pace of the day: ages and graces are the defaults, looks come a
	// little less often than that.
	busy = pace{lease: leaseTTL, settled: 10 * time.Second, interval: 10 * time.Second, probe: 5 * time.Second, reaper: 20 * time.Second}
	// calm is the pace of the days after it, of which there are many.
	calm = pace{lease: 10 * time.Minute, settled: 5 * time.Minute, interval: 5 * time.Minute, probe: 5 * time.Minute, reaper: 5 * time.Minute}
)

// leaders are the sequencers.
var leaders = []string{"sequencer-0", "sequencer-1"}

// world is a constellation in one process.
type world struct {
	t       testing.TB
	rows    *ledger
	objects *vault
	network *local.Network
	inproc  *rpc.Inproc
	pool    *rpc.Pool
	router  *routing.Router
	index   indexpb.IndexServiceClient
	log     *slog.Logger
	public  grpc.ClientConnInterface // of the gateway
	missed  atomic.Int64             // objects that were not there for a reader
	slow    atomic.Int64             // see slow
	stop    []func()                 // in reverse

	mu    sync.Mutex
	parts map[string]*part
	done  settlerpb.GetProgressResponse // by the settlers that have ended
}

// part is one process: a life of a service.
type part struct {
	service  discovery.Service
	running  node.Part
	build    builder
	registry *local.Registry
	endpoint *rpc.InprocServer
	mortal   *mortal
	cancel   context.CancelFunc
	done     chan struct{}
}

// builder makes a service; what it calls others by ends with m.
type builder func(id, address string, m *mortal, r discovery.Registry) (node.Part, error)

func newWorld(t testing.TB, p pace) *world {
	t.Helper()
	w := &world{
		t: t, rows: newLedger(metamem.New()), objects: newVault(mem.New()), network: local.NewNetwork(),
		inproc: rpc.NewInproc(rpc.Options{}), parts: map[string]*part{}, log: slog.New(&complaints{t: t}),
	}
	registry := w.network.Registry()
	var err error
	w.pool, err = rpc.NewPool(rpc.PoolConfig{Inproc: w.inproc, Registry: registry})
	w.must(err)
	w.router = routing.New(routing.Config{}, routing.Deps{Conns: w.pool, Registry: registry})
	ctx, cancel := context.WithCancel(context.Background())
	var routed sync.WaitGroup
	routed.Go(func() { _ = w.router.Run(ctx) })
	w.stop = append(w.stop, func() {
		cancel()
		routed.Wait()
		w.must(w.pool.Close())
		w.must(registry.Close())
	})
	w.index = indexpb.NewIndexServiceClient(w.pool.Service(discovery.Index))
	w.public = w.pool.Service(discovery.Gateway)
	w.startAll(p)
	return w
}

// ready waits until the leaders lead.
func (w *world) ready() {
	w.t.Helper()
	for range 600 {
		if w.part(leaders[0]).running.Ready() == nil && w.part(leaders[1]).running.Ready() == nil {
			return
		}
		time.Sleep(time.Second) // polls, in fake time
	}
	w.t.Fatal("nobody leads")
}

func (w *world) part(id string) *part {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.parts[id]
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// startAll starts every service, callees first.
func (w *world) startAll(p pace) {
	w.t.Helper()
	w.start("index-0", discovery.Index, func(string, string, *mortal, discovery.Registry) (node.Part, error) {
		s, err := index.New(index.Config{}, index.Deps{Store: w.rows, Log: w.log})
		if err != nil {
			return nil, err
		}
		return index.NewExporting(s, index.ExportConfig{Interval: exports, Rate: p.exportRate}, w.objects)
	})
	w.start("cache-0", discovery.Cache, func(string, string, *mortal, discovery.Registry) (node.Part, error) {
		return cache.New(cache.Config{Bytes: 32 << 20}, cache.Deps{Objects: w.objects, Log: w.log})
	})
	for i := range 2 {
		w.start(fmt.Sprint("chain-writer-", i), discovery.ChainWriter, func(id, address string, m *mortal, _ discovery.Registry) (node.Part, error) {
			return chainwriter.New(chainwriter.Config{NodeID: id, Address: address}, chainwriter.Deps{
				Objects: m.store(w.objects), Index: w.indexOf(m), Conns: mortalConns{m, w.pool}, Log: w.log,
			})
		})
	}
	for _, id := range leaders {
		w.start(id, discovery.Sequencer, func(id, address string, m *mortal, r discovery.Registry) (node.Part, error) {
			return sequencer.New(sequencer.Config{NodeID: id, Address: address, LeaseTTL: p.lease, Shards: shards, SettledEvery: p.settled, TailWindowBytes: tailWindow}, sequencer.Deps{
				Index: w.indexOf(m), Conns: mortalConns{m, w.pool}, Registry: r, Log: w.log,
			})
		})
	}
	for i := range 2 {
		w.start(fmt.Sprint("settler-", i), discovery.Settler, func(id, _ string, m *mortal, r discovery.Registry) (node.Part, error) {
			return settler.New(settler.Config{NodeID: id, Interval: p.interval, Probe: p.probe, SettleAge: p.settleAge, ReadGrace: p.readGrace}, settler.Deps{
				Objects: m.store(w.objects), Index: w.indexOf(m), Registry: r, Log: w.log,
			})
		})
		w.start(fmt.Sprint("reaper-", i), discovery.Reaper, func(_, _ string, m *mortal, r discovery.Registry) (node.Part, error) {
			return reaper.New(reaper.Config{Interval: p.reaper, ReadGrace: p.readGrace}, reaper.Deps{
				Index: w.indexOf(m), Cache: w.cacheOf(m), Router: mortalRouter{m, w.router}, Registry: r, Conns: mortalConns{m, w.pool}, Log: w.log,
			})
		})
	}
	w.start("reader-0", discovery.Reader, func(_, _ string, m *mortal, _ discovery.Registry) (node.Part, error) {
		return reader.New(reader.Config{}, reader.Deps{
			Index: w.indexOf(m), Router: w.router, Cache: slow{w.cacheOf(m), &w.missed, &w.slow}, Objects: w.objects, Log: w.log,
		})
	})
	w.start("gateway-0", discovery.Gateway, func(_, _ string, m *mortal, r discovery.Registry) (node.Part, error) {
		return gateway.New(gateway.Config{Shards: shards}, gateway.Deps{
			Index: w.indexOf(m), Router: w.router, Readers: w.pool.Service(discovery.Reader), Registry: r, Nodes: noNodes{}, Conns: w.pool, Log: w.log,
		})
	})
}

func (w *world) indexOf(m *mortal) indexpb.IndexServiceClient {
	return indexpb.NewIndexServiceClient(mortalConn{m, w.pool.Service(discovery.Index)})
}

func (w *world) cacheOf(m *mortal) cachepb.CacheServiceClient {
	return cachepb.NewCacheServiceClient(mortalConn{m, w.pool.Service(discovery.Cache)})
}

// start starts a process.
func (w *world) start(id string, s discovery.Service, build builder) {
	w.t.Helper()
	endpoint, err := w.inproc.Server(id)
	w.must(err)
	p := &part{service: s, build: build, registry: w.network.Registry(), endpoint: endpoint, mortal: newMortal(), done: make(chan struct{})}
	service, err := build(id, endpoint.Address(), p.mortal, p.registry)
	w.must(err)
	p.running = service
	service.Register(endpoint)
	endpoint.Start()
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	go func() {
		defer close(p.done)
		// A process that was killed may find that its life is over.
		if err := service.Run(ctx); ctx.Err() == nil && p.mortal.alive() {
			w.t.Errorf("%s ended by itself: %v", id, err)
		}
	}()
	meta := map[string]string{}
	if l, ok := service.(interface{ LifeID() stream.LifeID }); ok {
		meta["life"] = l.LifeID().String()
	}
	w.must(p.registry.Register(context.Background(), discovery.Node{ID: id, Service: s, Address: endpoint.Address(), Meta: meta}))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.parts[id] = p
}

// end ends a process: in order, or dead, after a few more calls.
func (w *world) end(id string, dead bool, calls int64, linger time.Duration) *part {
	w.mu.Lock()
	p := w.parts[id]
	delete(w.parts, id)
	w.mu.Unlock()
	if dead {
		p.mortal.left.Store(calls)
		time.Sleep(linger) // it works on until then, as far as it gets
		p.mortal.left.Store(0)
	}
	if err := p.registry.Close(); err != nil {
		w.t.Errorf("%s: %v", id, err)
	}
	p.cancel()
	<-p.done
	w.tally(p, &w.done)
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	p.endpoint.Stop(ctx)
	return p
}

// tally adds what a process has settled, if it is a settler.
func (w *world) tally(p *part, to *settlerpb.GetProgressResponse) {
	s, ok := p.running.(*settler.Service)
	if !ok {
		return
	}
	got, err := s.GetProgress(context.Background(), &settlerpb.GetProgressRequest{})
	if err != nil {
		w.t.Errorf("progress of a settler: %v", err)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	to.SettledBytes += got.GetSettledBytes()
	to.WrittenBytes += got.GetWrittenBytes()
	to.RewrittenBytes += got.GetRewrittenBytes()
	to.CompactedBytes += got.GetCompactedBytes()
}

// settledBytes is what all settlers have settled, written, rewritten and compacted.
func (w *world) settledBytes() (settled, written, rewritten, compacted uint64) {
	w.mu.Lock()
	all := settlerpb.GetProgressResponse{
		SettledBytes: w.done.GetSettledBytes(), WrittenBytes: w.done.GetWrittenBytes(),
		RewrittenBytes: w.done.GetRewrittenBytes(), CompactedBytes: w.done.GetCompactedBytes(),
	}
	var left []*part
	for _, p := range w.parts {
		left = append(left, p)
	}
	w.mu.Unlock()
	for _, p := range left {
		w.tally(p, &all)
	}
	return all.GetSettledBytes(), all.GetWrittenBytes(), all.GetRewrittenBytes(), all.GetCompactedBytes()
}

// replace ends a process and starts another in its place.
func (w *world) replace(id string, dead bool, calls int64, linger, gone time.Duration) {
	p := w.end(id, dead, calls, linger)
	time.Sleep(gone)
	w.start(id, p.service, p.build)
}

// callersFirst are all processes, callers before callees.
var callersFirst = []string{
	"gateway-0", "reader-0", "reaper-1", "settler-1", "reaper-0", "settler-0", "sequencer-1", "sequencer-0",
	"chain-writer-1", "chain-writer-0", "cache-0", "index-0",
}

// endAll ends all processes.
func (w *world) endAll() {
	for _, id := range callersFirst {
		w.end(id, false, 0, 0)
	}
}

func (w *world) close() {
	w.endAll()
	for _, f := range w.stop {
		f()
	}
}

// mortal is what a process can still say to others: after a number of calls none
// of it arrives.
type mortal struct{ left atomic.Int64 }

func newMortal() *mortal {
	m := &mortal{}
	m.left.Store(math.MaxInt64)
	return m
}

func (m *mortal) alive() bool { return m.left.Load() > 0 }

func (m *mortal) spend() bool { return m.left.Add(-1) >= 0 }

func errDead() error { return reason.New(codes.Unavailable, "", "the process is dead") }

// mortalConn is a connection from a process.
type mortalConn struct {
	m    *mortal
	conn grpc.ClientConnInterface
}

func (c mortalConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if !c.m.spend() {
		return errDead()
	}
	return c.conn.Invoke(ctx, method, args, reply, opts...)
}

func (c mortalConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if !c.m.spend() {
		return nil, errDead()
	}
	return c.conn.NewStream(ctx, desc, method, opts...)
}

type mortalConns struct {
	m    *mortal
	pool *rpc.Pool
}

func (c mortalConns) Address(address string) (grpc.ClientConnInterface, error) {
	conn, err := c.pool.Address(address)
	return mortalConn{c.m, conn}, err
}

type mortalRouter struct {
	m      *mortal
	router *routing.Router
}

func (r mortalRouter) DoIdempotent(ctx context.Context, s stream.Shard, f func(grpc.ClientConnInterface) error) error {
	return r.router.DoIdempotent(ctx, s, func(conn grpc.ClientConnInterface) error { return f(mortalConn{r.m, conn}) })
}

// mortalStore is the object store of a process.
type mortalStore struct {
	objectstore.Store
	m *mortal
}

func (m *mortal) store(s objectstore.Store) objectstore.Store { return mortalStore{s, m} }

func (s mortalStore) check(key string) error {
	if s.m.spend() {
		return nil
	}
	return fmt.Errorf("%s: the process is dead: %w", key, objectstore.ErrUnavailable)
}

func (s mortalStore) PutIfAbsent(ctx context.Context, key string, body []byte) (objectstore.ETag, error) {
	if err := s.check(key); err != nil {
		return "", err
	}
	return s.Store.PutIfAbsent(ctx, key, body)
}

func (s mortalStore) PutIfMatch(ctx context.Context, key string, body []byte, etag objectstore.ETag) (objectstore.ETag, error) {
	if err := s.check(key); err != nil {
		return "", err
	}
	return s.Store.PutIfMatch(ctx, key, body, etag)
}

func (s mortalStore) Get(ctx context.Context, key string) (objectstore.Object, error) {
	if err := s.check(key); err != nil {
		return objectstore.Object{}, err
	}
	return s.Store.Get(ctx, key)
}

func (s mortalStore) GetRange(ctx context.Context, key string, r objectstore.Range) (objectstore.Object, error) {
	if err := s.check(key); err != nil {
		return objectstore.Object{}, err
	}
	return s.Store.GetRange(ctx, key, r)
}

func (s mortalStore) Delete(ctx context.Context, keys ...string) error {
	if err := s.check(fmt.Sprint(keys)); err != nil {
		return err
	}
	return s.Store.Delete(ctx, keys...)
}

// slow is the cache of a reader that takes its time now and then, between learning
// where something is and reading it. It counts what is not there any more.
type slow struct {
	cachepb.CacheServiceClient
	missed *atomic.Int64
	next   *atomic.Int64 // when it is slow again, milliseconds since the Unix epoch
}

const (
	slowness = 30 * time.Second // less than a read may take, and the grace
	slowOnce = 45 * time.Second
)

func (c slow) ReadRange(ctx context.Context, req *cachepb.ReadRangeRequest, opts ...grpc.CallOption) (*cachepb.ReadRangeResponse, error) {
	if next, now := c.next.Load(), time.Now(); now.UnixMilli() >= next && c.next.CompareAndSwap(next, now.Add(slowOnce).UnixMilli()) {
		select {
		case <-time.After(slowness): // part of the schedule
		case <-ctx.Done():
		}
	}
	res, err := c.CacheServiceClient.ReadRange(ctx, req, opts...)
	if reason.Code(err) == codes.NotFound {
		c.missed.Add(1)
	}
	return res, err
}

type noNodes struct{}

func (noNodes) Node(discovery.Node) (nodepb.NodeServiceClient, error) { return nil, errDead() }

// complaints is a log that counts and shows what is an error.
type complaints struct {
	t testing.TB
}

func (c *complaints) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelError }

func (c *complaints) Handle(_ context.Context, r slog.Record) error {
	line := r.Message
	r.Attrs(func(a slog.Attr) bool {
		line += " " + a.String()
		return true
	})
	c.t.Log(r.Level, line)
	return nil
}

func (c *complaints) WithAttrs([]slog.Attr) slog.Handler { return c }
func (c *complaints) WithGroup(string) slog.Handler      { return c }
