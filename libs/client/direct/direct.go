// Package direct makes clients inside the trust domain that need no gateway for
// records: they find the services by Consul, append to the sequencer that leads
// the stream's shard, and read from any reader. Buckets, streams and
// administration still go through a gateway.
//
// Invariants:
//   - Requests are checked here as a gateway checks them: sequencers and readers
//     trust who may reach them.
//   - Every failed append carries its outcome, as from a gateway.
//   - A service that is not registered when it is first needed fails the call at
//     once, with its name; one that goes away later is waited for.
package direct

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/discovery/consul"
	"github.com/nova-stream/nova/libs/discovery/resolver"
	"github.com/nova-stream/nova/libs/routing"
	"github.com/nova-stream/nova/libs/rpc"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// Options say how to find and reach the services. Zero values take the
// defaults.
type Options struct {
	// Consul is the address of the agent: host:port or URL, default
	// 127.0.0.1:8500. Its token comes from CONSUL_HTTP_TOKEN.
	Consul string
	// Constellation is the name of the deployment in Consul, default "nova".
	Constellation string
	// TLS of the connections to the services: nil connects without.
	TLS *tls.Config
	// Patience limits a call that sets no deadline of its own, default 30 s. It
	// does not limit sessions and subscriptions.
	Patience time.Duration
	// Log may be nil.
	Log *slog.Logger
	// Tracer makes a span of every call; it may be nil.
	Tracer trace.TracerProvider
}

// Client is a client that goes straight to sequencers and readers. It is safe
// for concurrent use.
type Client struct {
	*client.Client

	close []func() error // in reverse
}

// Dial returns a client. It calls nobody: who is not there is found out by the
// calls that need it. Close MUST follow.
func Dial(o Options) (*Client, error) {
	if o.Consul == "" {
		o.Consul = consul.DefaultAddress
	}
	if o.Constellation == "" {
		o.Constellation = "nova"
	}
	if o.Patience == 0 {
		o.Patience = 30 * time.Second
	}
	registry, err := consul.Open(consul.Config{Address: o.Consul, Constellation: o.Constellation, Log: o.Log})
	if err != nil {
		return nil, err
	}
	c := &Client{close: []func() error{registry.Close}}
	pool, err := rpc.NewPool(rpc.PoolConfig{Options: rpc.Options{Log: o.Log, Tracer: o.Tracer}, Resolver: resolver.New(registry), TLS: o.TLS})
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	c.close = append(c.close, pool.Close)
	router := routing.New(routing.Config{}, routing.Deps{Conns: pool, Registry: registry, Log: o.Log})
	ctx, cancel := context.WithCancel(context.Background())
	routed := make(chan error, 1)
	go func() { routed <- router.Run(ctx) }()
	c.close = append(c.close, func() error {
		cancel()
		return <-routed
	})
	names := catalog.NewNames(catalog.New(indexpb.NewIndexServiceClient(pool.Service(discovery.Index))))
	c.close = append(c.close, func() error {
		names.Close()
		return nil
	})
	guard := func(conn grpc.ClientConnInterface, needs ...discovery.Service) *guarded {
		return &guarded{to: conn, registry: registry, needs: needs, o: &o}
	}
	c.Client = client.New(guard(pool.Service(discovery.Gateway), discovery.Gateway))
	c.Reads = novapb.NewReadServiceClient(guard(pool.Service(discovery.Reader), discovery.Reader))
	appends := guard(router.Leaders(names), discovery.Index, discovery.Sequencer)
	appends.appends = true
	c.Appends = novapb.NewAppendServiceClient(appends)
	return c, nil
}

// Close ends every call and closes every connection.
func (c *Client) Close() error {
	var errs []error
	for i := len(c.close) - 1; i >= 0; i-- {
		errs = append(errs, c.close[i]())
	}
	c.close = nil
	return errors.Join(errs...)
}
