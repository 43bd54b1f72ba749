package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/nova-stream/nova/libs/config"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/discovery/resolver"
	"github.com/nova-stream/nova/libs/routing"
	"github.com/nova-stream/nova/libs/rpc"
	"github.com/nova-stream/nova/libs/telemetry"
	"github.com/nova-stream/nova/proto/gen/nova/cache/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// Process is what the services of one program work with.
type Process struct {
	*telemetry.Telemetry

	Settings Settings
	Registry discovery.Registry
	Pool     *rpc.Pool
	Router   *routing.Router
	Index    indexpb.IndexServiceClient
	Cache    cachepb.CacheServiceClient

	closers []func() error // called in reverse

	mu       sync.Mutex
	controls map[string]*control // the nodes of this process by id; guarded by mu
}

// OpenTelemetry sets up a program's telemetry.
func OpenTelemetry(ctx context.Context, program string, s *Settings) (*telemetry.Telemetry, error) {
	return telemetry.Setup(ctx, telemetry.Config{Program: program, Version: config.Version, Node: s.NodeID, Level: s.LogLevel, JSON: s.LogJSON})
}

// Open makes the connections to other services: over networks, or with inproc
// within this process. Close MUST follow; it closes registry and t too.
func Open(t *telemetry.Telemetry, s *Settings, registry discovery.Registry, inproc *rpc.Inproc) (*Process, error) {
	p := &Process{Telemetry: t, Settings: *s, Registry: registry}
	p.OnClose(func() error {
		// A collector that is gone must not hold up the end.
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return t.Shutdown(ctx)
	})
	p.OnClose(registry.Close)
	cfg := rpc.PoolConfig{Options: p.Options(), Inproc: inproc, Registry: registry}
	if inproc == nil {
		cfg.Resolver = resolver.New(registry)
	}
	var err error
	if p.Pool, err = rpc.NewPool(cfg); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	p.OnClose(p.Pool.Close)
	p.Router = routing.New(routing.Config{}, routing.Deps{Conns: p.Pool, Registry: registry, Log: t.Log})
	ctx, cancel := context.WithCancel(context.Background())
	routed := make(chan error, 1)
	go func() { routed <- p.Router.Run(ctx) }()
	p.OnClose(func() error {
		cancel()
		return <-routed
	})
	p.Index = indexpb.NewIndexServiceClient(p.Pool.Service(discovery.Index))
	p.Cache = cachepb.NewCacheServiceClient(p.Pool.Service(discovery.Cache))
	return p, nil
}

// Options are those of every server and connection.
func (p *Process) Options() rpc.Options {
	return rpc.Options{Log: p.Log, Meter: p.Telemetry.Meter, Tracer: p.Telemetry.Tracer}
}

// ServiceMeter returns the meter of a service.
func (p *Process) ServiceMeter(s discovery.Service) metric.Meter {
	return p.Telemetry.Meter.Meter("github.com/nova-stream/nova/services/" + string(s))
}

// ServiceTracer returns the tracer of a service.
func (p *Process) ServiceTracer(s discovery.Service) trace.Tracer {
	return p.Telemetry.Tracer.Tracer("github.com/nova-stream/nova/services/" + string(s))
}

// ID returns the id under which a service of this node is registered.
func (p *Process) ID(s discovery.Service) string { return p.Settings.NodeID + "." + string(s) }

// CheckAll checks several settings, in order.
func CheckAll(all ...interface{ Check() error }) error {
	for _, c := range all {
		if err := c.Check(); err != nil {
			return err
		}
	}
	return nil
}

// OnClose adds something to close before all that was opened until now.
func (p *Process) OnClose(f func() error) { p.closers = append(p.closers, f) }

// Close closes everything, the last opened first.
func (p *Process) Close() error {
	var errs []error
	for i := len(p.closers) - 1; i >= 0; i-- {
		errs = append(errs, p.closers[i]())
	}
	p.closers = nil
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}
