// Nova-gateway serves the public API.
package main

import (
	"context"
	"errors"

	"github.com/nova-stream/nova/libs/config"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/services/gateway"
	"github.com/nova-stream/nova/services/node"
)

func main() {
	s := node.Outside{Handler: gateway.Handler}
	var cfg gateway.Config
	config.Program{
		Name:  "nova-gateway",
		About: "The gateway: the public API, gRPC and JSON, for callers outside the trust domain.",
		Flags: func(f *config.Flags) {
			s.Flags(f)
			f.Uint32(&cfg.Shards, "shards", 256, "number of shards of a deployment that is new; later it never changes")
			f.MiB(&cfg.DeliveryBytes, "delivery-mib", 256, "MiB of records that are fetched for callers, or sent to them and not taken yet; a subscription counts for at least 32 KiB")
		},
		Check: func() error { return errors.Join(s.Check(), cfg.Check()) },
		Run: func(ctx context.Context) error {
			return s.Run(ctx, func(_ context.Context, p *node.Process, _ string) (node.Part, error) {
				return gateway.New(cfg, gateway.Deps{
					Index: p.Index, Router: p.Router, Readers: p.Pool.Service(discovery.Reader), Registry: p.Registry, Nodes: p, Conns: p.Pool, Log: p.Log, Meter: p.ServiceMeter(discovery.Gateway),
				})
			})
		},
	}.Main()
}
