// Nova-reader serves reads and subscriptions.
package main

import (
	"context"

	"github.com/nova-stream/nova/libs/config"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/services/node"
	"github.com/nova-stream/nova/services/reader"
)

func main() {
	s := node.Single{Service: discovery.Reader}
	var objects node.Objects
	var cfg reader.Config
	config.Program{
		Name:  "nova-reader",
		About: "The reader: reads, subscriptions and seeks by timestamp.",
		Flags: func(f *config.Flags) {
			s.Flags(f, 7785, 7885)
			objects.Flags(f)
			f.MiB(&cfg.DeliveryBytes, "delivery-mib", 256, "MiB of records that are fetched for callers, or sent to them and not taken yet; a subscription counts for at least 32 KiB")
		},
		Check: func() error { return node.CheckAll(&s, &objects, &cfg) },
		Run: func(ctx context.Context) error {
			return s.Run(ctx, func(ctx context.Context, p *node.Process, _ string) (node.Part, error) {
				store, err := p.OpenObjects(ctx, &objects, nil)
				if err != nil {
					return nil, err
				}
				return reader.New(cfg, reader.Deps{
					Index: p.Index, Router: p.Router, Cache: p.Cache, Objects: store, Log: p.Log, Meter: p.ServiceMeter(s.Service),
				})
			})
		},
	}.Main()
}
