package novad

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
	noopmetric "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	nooptrace "go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc"

	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/discovery/local"
	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/metastore/bbolt"
	metamem "github.com/nova-stream/nova/libs/metastore/mem"
	metametered "github.com/nova-stream/nova/libs/metastore/metered"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/objectstore/fs"
	"github.com/nova-stream/nova/libs/objectstore/mem"
	"github.com/nova-stream/nova/libs/objectstore/metered"
	"github.com/nova-stream/nova/libs/objectstore/probe"
	"github.com/nova-stream/nova/libs/routing"
	"github.com/nova-stream/nova/libs/rpc"
	"github.com/nova-stream/nova/proto/gen/nova/cache/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/services/cache"
	"github.com/nova-stream/nova/services/chainwriter"
	"github.com/nova-stream/nova/services/gateway"
	"github.com/nova-stream/nova/services/index"
	"github.com/nova-stream/nova/services/reader"
	"github.com/nova-stream/nova/services/reaper"
	"github.com/nova-stream/nova/services/sequencer"
	"github.com/nova-stream/nova/services/settler"
)

// service is what every service package offers.
type service interface {
	Register(r grpc.ServiceRegistrar)
	Run(ctx context.Context) error
	Ready() error
}

// running is a service on its in-process server.
type running struct {
	kind   discovery.Service
	svc    service
	server *rpc.InprocServer
	cancel context.CancelFunc
	done   chan struct{}
}

// Node is a running process.
type Node struct {
	cfg      Config
	log      *slog.Logger
	objects  objectstore.Store
	metadata metastore.Store
	lock     *os.File
	registry *local.Registry
	inproc   *rpc.Inproc
	pool     *rpc.Pool
	public   *rpc.Server
	http     net.Listener

	services []*running // in start order
	group    sync.WaitGroup
	stopHTTP context.CancelFunc
	stopBack context.CancelFunc
	closing  sync.Once

	mu     sync.Mutex
	failed error
	failCh chan struct{} // closed when a service ended by itself
}

// stopPatience is how long calls under way may take to end at a stop.
const stopPatience = 10 * time.Second

// Start opens everything and returns once the node takes calls; it may still
// recover (see Ready). Close MUST follow.
func Start(ctx context.Context, cfg Config) (*Node, error) {
	n := &Node{cfg: cfg, log: cfg.Log, failCh: make(chan struct{})}
	if n.log == nil {
		n.log = slog.New(slog.DiscardHandler)
	}
	if n.cfg.Tracer == nil {
		n.cfg.Tracer = nooptrace.NewTracerProvider()
	}
	if n.cfg.Meter == nil {
		n.cfg.Meter = noopmetric.NewMeterProvider()
	}
	for _, step := range []func(context.Context) error{n.listen, n.openBackends, n.connect, n.startServices, n.startPublic} {
		if err := step(ctx); err != nil {
			n.Close()
			return nil, err
		}
	}
	return n, nil
}

func (n *Node) options() rpc.Options {
	return rpc.Options{Log: n.log, Meter: n.cfg.Meter, Tracer: n.cfg.Tracer, Validate: edge}
}

func (n *Node) listen(context.Context) error {
	var err error
	if n.public, err = rpc.NewServer(rpc.ServerConfig{Options: n.options(), Listen: n.cfg.Listen, Flag: "--listen"}); err != nil {
		return err
	}
	n.http, err = rpc.Listen(n.cfg.HTTPListen, "--http-listen")
	return err
}

func (n *Node) openBackends(ctx context.Context) error {
	if n.cfg.Dev {
		n.objects, n.metadata = mem.New(), metamem.New()
	} else if err := n.openDir(); err != nil {
		return err
	}
	if n.cfg.Objects != nil {
		n.objects = n.cfg.Objects(n.objects)
	}
	if n.cfg.Metadata != nil {
		n.metadata = n.cfg.Metadata(n.metadata)
	}
	var err error
	if n.objects, err = metered.New(n.objects, n.cfg.Tracer, n.cfg.Meter); err != nil {
		return err
	}
	if n.metadata, err = metametered.New(n.metadata, n.cfg.Tracer, n.cfg.Meter); err != nil {
		return err
	}
	if err := probe.Run(ctx, n.objects); err != nil {
		return fmt.Errorf("the object store is not fit: %w", err)
	}
	return nil
}

// openDir opens the backends of a directory. The object store and the metadata
// store each lock their part, so former lives of this directory are over.
func (n *Node) openDir() error {
	what := func(err error) error {
		return fmt.Errorf("--dir %s: %w", n.cfg.Dir, err)
	}
	if err := os.MkdirAll(n.cfg.Dir, 0o755); err != nil {
		return what(fmt.Errorf("cannot be made; choose a directory that this user may write: %w", err))
	}
	objects, err := fs.Open(filepath.Join(n.cfg.Dir, "objects"))
	if err != nil {
		return what(err)
	}
	n.objects = objects
	metadata, err := bbolt.Open(bbolt.Config{Dir: filepath.Join(n.cfg.Dir, "metadata"), Log: n.log})
	if err != nil {
		return what(err)
	}
	n.metadata = metadata
	return nil
}

func (n *Node) connect(context.Context) error {
	n.registry = local.New()
	n.inproc = rpc.NewInproc(n.options())
	var err error
	n.pool, err = rpc.NewPool(rpc.PoolConfig{
		Options: rpc.Options{Log: n.log, Meter: n.cfg.Meter, Tracer: n.cfg.Tracer}, Inproc: n.inproc, Registry: n.registry,
	})
	return err
}

func (n *Node) meter(s discovery.Service) metric.Meter { return n.cfg.Meter.Meter("nova/" + string(s)) }

func (n *Node) tracer(s discovery.Service) trace.Tracer {
	return n.cfg.Tracer.Tracer("nova/" + string(s))
}

// startServices starts what others call first: index and cache, then the write
// path from its end, then its callers.
func (n *Node) startServices(ctx context.Context) error {
	idx := indexpb.NewIndexServiceClient(n.pool.Service(discovery.Index))
	pages := cachepb.NewCacheServiceClient(n.pool.Service(discovery.Cache))
	router := routing.New(routing.Config{}, routing.Deps{Conns: n.pool, Registry: n.registry, Log: n.log})
	background, stop := context.WithCancel(context.Background())
	n.stopBack = stop
	n.group.Go(func() { _ = router.Run(background) })
	makers := []struct {
		kind discovery.Service
		make func(address string) (service, error)
	}{
		{discovery.Index, func(string) (service, error) {
			return index.New(index.Config{}, index.Deps{Store: n.metadata, Log: n.log})
		}},
		{discovery.Cache, func(string) (service, error) {
			return cache.New(cache.Config{Bytes: n.cfg.CachePages}, cache.Deps{Objects: n.objects, Log: n.log, Meter: n.meter(discovery.Cache)})
		}},
		{discovery.ChainWriter, func(address string) (service, error) {
			return chainwriter.New(chainwriter.Config{
				NodeID: n.cfg.NodeID, Address: address, FlightBytes: n.cfg.FlightBytes, Linger: n.cfg.Linger, Lanes: n.cfg.PutLanes,
				PoolBytes: n.cfg.AppendPool, BacklogFlights: n.cfg.ChainBacklogFlights,
			}, chainwriter.Deps{Objects: n.objects, Index: idx, Log: n.log, Meter: n.meter(discovery.ChainWriter), Tracer: n.tracer(discovery.ChainWriter)})
		}},
		{discovery.Settler, func(string) (service, error) {
			return settler.New(settler.Config{NodeID: n.nodeID(discovery.Settler)}, settler.Deps{
				Objects: n.objects, Index: idx, Registry: n.registry, Log: n.log, Meter: n.meter(discovery.Settler),
			})
		}},
		{discovery.Reaper, func(string) (service, error) {
			return reaper.New(reaper.Config{}, reaper.Deps{Index: idx, Cache: pages, Router: router, Log: n.log, Meter: n.meter(discovery.Reaper)})
		}},
		{discovery.Sequencer, func(address string) (service, error) {
			return sequencer.New(sequencer.Config{
				NodeID: n.nodeID(discovery.Sequencer), Address: address, LeaseTTL: n.cfg.LeaseTTL,
				// In memory there are no former lives; in a directory its lock proves
				// that they are over.
				FormerLivesDead: true,
				PoolBytes:       n.cfg.AppendPool, TailWindowBytes: n.cfg.TailWindow, CoordinateBytes: n.cfg.Coordinates, MaxSessions: n.cfg.MaxProducerSessions,
			}, sequencer.Deps{Index: idx, Conns: n.pool, Registry: n.registry, Log: n.log, Meter: n.meter(discovery.Sequencer)})
		}},
		{discovery.Reader, func(string) (service, error) {
			return reader.New(reader.Config{}, reader.Deps{
				Index: idx, Router: router, Cache: pages, Objects: n.objects, Log: n.log, Meter: n.meter(discovery.Reader),
			})
		}},
		{discovery.Gateway, func(string) (service, error) {
			return gateway.New(gateway.Config{}, gateway.Deps{
				Index: idx, Router: router, Readers: n.pool.Service(discovery.Reader), Registry: n.registry, Log: n.log,
			})
		}},
	}
	for _, m := range makers {
		server, err := n.inproc.Server(string(m.kind))
		if err != nil {
			return err
		}
		svc, err := m.make(server.Address())
		if err != nil {
			return err
		}
		svc.Register(server)
		server.Start()
		if err := n.registry.Register(ctx, discovery.Node{ID: n.nodeID(m.kind), Service: m.kind, Address: server.Address()}); err != nil {
			return err
		}
		n.run(m.kind, svc, server)
	}
	return nil
}

// nodeID is the id of one service of the node.
func (n *Node) nodeID(s discovery.Service) string { return n.cfg.NodeID + "-" + string(s) }

func (n *Node) run(kind discovery.Service, svc service, server *rpc.InprocServer) {
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{kind: kind, svc: svc, server: server, cancel: cancel, done: make(chan struct{})}
	n.services = append(n.services, r)
	go func() {
		defer close(r.done)
		err := svc.Run(ctx)
		if ctx.Err() == nil {
			n.fail(fmt.Errorf("%s ended: %w", kind, err))
		}
	}()
}

func (n *Node) fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.failed == nil {
		n.failed = err
		close(n.failCh)
	}
}

func (n *Node) startPublic(context.Context) error {
	front, err := n.pool.Address(rpc.Scheme + string(discovery.Gateway))
	if err != nil {
		return err
	}
	n.services[len(n.services)-1].svc.Register(n.public)
	n.public.Start()
	ctx, cancel := context.WithCancel(context.Background())
	n.stopHTTP = cancel
	server := gateway.Server(front)
	n.group.Go(func() {
		if err := gateway.Serve(ctx, server, func() error { return server.Serve(n.http) }, stopPatience); err != nil && ctx.Err() == nil {
			n.fail(fmt.Errorf("http: %w", err))
		}
	})
	n.group.Go(func() { n.watchReady(ctx) })
	return nil
}

// watchReady keeps the health service in step with Ready.
func (n *Node) watchReady(ctx context.Context) {
	was := false
	for pause := 2 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		err := n.Ready()
		n.public.SetReady(err == nil)
		if is := err == nil; is != was {
			was = is
			n.log.InfoContext(ctx, "readiness", "ready", is, "why", fmt.Sprint(err))
		}
		select {
		case <-ctx.Done():
			n.public.SetReady(false)
			return
		case <-time.After(pause):
		}
	}
}

// Ready returns nil when every service is ready, or what is not and why.
func (n *Node) Ready() error {
	for _, r := range n.services {
		if err := r.svc.Ready(); err != nil {
			return err
		}
	}
	return nil
}

// Addr is the address of the public gRPC services.
func (n *Node) Addr() string { return n.public.Address() }

// HTTPAddr is the address of the JSON API.
func (n *Node) HTTPAddr() string { return n.http.Addr().String() }

// Failed is closed when a part of the node ended by itself; Err says why.
func (n *Node) Failed() <-chan struct{} { return n.failCh }

// Err returns why a part of the node ended by itself.
func (n *Node) Err() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.failed
}

// Close stops everything in the order that the package comment states.
func (n *Node) Close() {
	n.closing.Do(func() {
		if n.stopHTTP != nil {
			n.stopHTTP()
		} else if n.http != nil {
			_ = n.http.Close()
		}
		n.stopServer(n.public)
		for i := len(n.services) - 1; i >= 0; i-- {
			r := n.services[i]
			// First no new calls to it, then its own work. A sequencer is stopped the
			// other way round: it answers what is under way while it still runs.
			_ = n.registry.Deregister(context.Background(), n.nodeID(r.kind))
			r.cancel()
			<-r.done
			n.stopServer(r.server)
		}
		if n.stopBack != nil {
			n.stopBack()
		}
		n.group.Wait()
		var errs []error
		if n.pool != nil {
			errs = append(errs, n.pool.Close())
		}
		if n.registry != nil {
			errs = append(errs, n.registry.Close())
		}
		if n.objects != nil {
			errs = append(errs, n.objects.Close())
		}
		if n.metadata != nil {
			errs = append(errs, n.metadata.Close())
		}
		if err := errors.Join(errs...); err != nil {
			n.log.Warn("close", "err", err)
		}
	})
}

func (n *Node) stopServer(e rpc.Endpoint) {
	if e == nil || e == rpc.Endpoint((*rpc.Server)(nil)) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopPatience)
	defer cancel()
	e.Stop(ctx)
}

// adminServer serves metrics, health and profiles until ctx ends.
func adminServer(ctx context.Context, address string, h http.Handler) (func(), error) {
	lis, err := rpc.Listen(address, "--metrics-listen")
	if err != nil {
		return nil, err
	}
	const slowHeader = 10 * time.Second
	server := &http.Server{Handler: h, ReadHeaderTimeout: slowHeader}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(lis) // ends with Close
	}()
	return func() {
		_ = server.Close()
		<-done
	}, ctx.Err()
}
