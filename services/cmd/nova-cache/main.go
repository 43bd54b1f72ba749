// Nova-cache reads objects through memory.
package main

import (
	"context"

	"github.com/nova-stream/nova/libs/config"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/services/cache"
	"github.com/nova-stream/nova/services/node"
)

func main() {
	s := node.Single{Service: discovery.Cache}
	var objects node.Objects
	var cfg cache.Config
	config.Program{
		Name:  "nova-cache",
		About: "The cache: pages of committed objects in memory; deletions pass through it.",
		Flags: func(f *config.Flags) {
			s.Flags(f, 7787, 7887)
			objects.Flags(f)
			f.MiB(&cfg.Bytes, "cache-mib", 256, "MiB of objects kept in memory for readers")
		},
		Check: func() error { return node.CheckAll(&s, &objects) },
		Run: func(ctx context.Context) error {
			return s.Run(ctx, func(ctx context.Context, p *node.Process, _ string) (node.Part, error) {
				store, err := p.OpenObjects(ctx, &objects, nil)
				if err != nil {
					return nil, err
				}
				return cache.New(cfg, cache.Deps{Objects: store, Log: p.Log, Meter: p.ServiceMeter(s.Service)})
			})
		},
	}.Main()
}
