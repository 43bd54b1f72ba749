package novad

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/nova-stream/nova/libs/config"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/discovery/consul"
	"github.com/nova-stream/nova/libs/discovery/local"
	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/rpc"
	"github.com/nova-stream/nova/libs/telemetry"
	"github.com/nova-stream/nova/services/gateway"
	"github.com/nova-stream/nova/services/index"
	"github.com/nova-stream/nova/services/node"
)

// Node is a running novad.
type Node struct {
	cfg     Config
	process *node.Process
	group   *node.Group
	inproc  *rpc.Inproc // nil: each service has a port, because others share the constellation

	meta    metastore.Store
	objects objectstore.Store

	public *rpc.Server
	http   *node.JSON // nil: none
	admin  *node.Web  // nil: none
}

// Start opens and starts everything and returns when the public listeners are
// open; Ready says when the node serves. Close MUST follow. cfg is checked by
// Config.Check before, if it comes from people.
func Start(ctx context.Context, cfg Config) (_ *Node, err error) {
	cfg.withDefaults()
	t, err := node.OpenTelemetry(ctx, "novad", &cfg.Settings)
	if err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg}
	registry, err := n.discover(t)
	if err != nil {
		return nil, errors.Join(err, t.Shutdown(ctx))
	}
	if n.process, err = node.Open(t, &cfg.Settings, registry, n.inproc); err != nil {
		return nil, err
	}
	n.group = node.NewGroup(n.process)
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
		}
	}()
	if err := n.openStorage(ctx); err != nil {
		return nil, err
	}
	if n.admin, err = n.group.OpenAdmin("novad"); err != nil {
		return nil, err
	}
	for _, s := range services {
		if err := n.add(s); err != nil {
			return nil, fmt.Errorf("start %s: %w", s.service, err)
		}
	}
	if err := n.openGateway(); err != nil {
		return nil, fmt.Errorf("start gateway: %w", err)
	}
	return n, nil
}

// discover chooses how services find each other.
func (n *Node) discover(t *telemetry.Telemetry) (discovery.Registry, error) {
	switch {
	case n.cfg.Registry != nil:
		return n.cfg.Registry, nil
	case n.cfg.Consul != "":
		return consul.Open(consul.Config{Address: n.cfg.Consul, Constellation: n.cfg.Constellation, Log: t.Log})
	}
	n.inproc = rpc.NewInproc(rpc.Options{Log: t.Log, Meter: t.Meter, Tracer: t.Tracer})
	return local.New(), nil
}

// openStorage takes the directory, opens both stores and probes the objects.
func (n *Node) openStorage(ctx context.Context) (err error) {
	if n.cfg.Metastore.Dir != "" {
		lock, err := node.LockDir(n.cfg.Metastore.Dir)
		if err != nil {
			return err
		}
		n.process.OnClose(lock.Close)
	}
	if n.objects, err = n.process.OpenObjects(ctx, &n.cfg.Objects, n.cfg.WrapObjects); err != nil {
		return err
	}
	// Before a new metastore is made over old objects.
	if err := n.cfg.Metastore.CheckFresh(ctx, n.objects); err != nil {
		return err
	}
	if n.meta, err = n.process.OpenMetastore(&n.cfg.Metastore, n.cfg.WrapMetastore); err != nil {
		return err
	}
	if err := index.CheckRestored(ctx, n.meta); err != nil {
		return err
	}
	return index.CheckBucket(ctx, n.meta, n.objects, n.cfg.Objects.Name())
}

// add builds a service, opens its endpoint and starts both.
func (n *Node) add(s serviceOf) error {
	endpoint, err := n.endpoint(s.service)
	if err != nil {
		return err
	}
	part, err := s.build(n, endpoint.Address())
	if err != nil {
		endpoint.Stop(context.Background())
		return err
	}
	n.group.Add(s.service, part, endpoint, "")
	return nil
}

// endpoint returns where a service is called by others.
func (n *Node) endpoint(s discovery.Service) (rpc.Endpoint, error) {
	if n.inproc != nil {
		return n.inproc.Server(string(s))
	}
	return rpc.NewServer(rpc.ServerConfig{
		Options: n.process.Options(), Listen: net.JoinHostPort(n.cfg.AdvertiseHost, "0"), Flag: "--advertise-host",
	})
}

// openGateway starts the gateway behind the public listeners.
func (n *Node) openGateway() (err error) {
	part, err := gateway.New(n.cfg.Gateway, gateway.Deps{
		Index: n.process.Index, Router: n.process.Router, Readers: n.process.Pool.Service(discovery.Reader),
		Registry: n.process.Registry, Nodes: n.process, Conns: n.process.Pool, Log: n.process.Log, Meter: n.process.ServiceMeter(discovery.Gateway),
	})
	if err != nil {
		return err
	}
	if n.public, err = n.cfg.Endpoint(n.process); err != nil {
		return err
	}
	n.group.Add(discovery.Gateway, part, n.public, "")
	n.http, err = n.cfg.OpenHTTP(n.process, n.group, part, gateway.Handler)
	return err
}

// Addr returns the host:port of the public gRPC listener.
func (n *Node) Addr() string { return n.public.Address() }

// HTTPAddr returns the host:port of the JSON API, "" if there is none.
func (n *Node) HTTPAddr() string { return n.http.Addr() }

// AdminAddr returns the host:port of the admin pages, "" if there are none.
func (n *Node) AdminAddr() string { return n.admin.Addr() }

// Ready returns nil, or why the node does not serve yet.
func (n *Node) Ready() error { return n.group.Ready() }

// Failed receives the error of a service that ended by itself; the node is then
// of no use any more.
func (n *Node) Failed() <-chan error { return n.group.Failed() }

// Close stops the node: see the package's invariants for the order. It takes up
// to StopTimeout for callers that do not go, and as long again for those of the
// admin page.
func (n *Node) Close() error {
	n.group.Stop()
	err := n.process.Close()
	// Last of all: until here it tells of the stopping.
	if n.admin != nil {
		ctx, cancel := context.WithTimeout(context.Background(), n.cfg.StopTimeout)
		defer cancel()
		n.admin.Stop(ctx)
	}
	return err
}

// Run runs a node until ctx ends or a service fails; its error is the failure.
func Run(ctx context.Context, cfg Config) error {
	n, err := Start(ctx, cfg)
	if err != nil {
		return err
	}
	log := n.process.Log
	log.InfoContext(ctx, "serving", "grpc", n.Addr(), "http", n.HTTPAddr(), "admin", n.AdminAddr(), "storage", cfg.storage(), "version", config.Version)
	begun := time.Now()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for told := false; ; {
		select {
		case <-tick.C:
			if told || n.Ready() != nil {
				continue
			}
			told = true
			tick.Stop()
			log.InfoContext(ctx, "ready", "after", time.Since(begun).Round(time.Millisecond))
		case <-ctx.Done():
			log.InfoContext(ctx, "stopping")
			return n.cfg.End(n.Close)
		case err := <-n.Failed():
			return errors.Join(err, n.cfg.End(n.Close))
		}
	}
}
