// Nova-settler moves committed records to their long-term place.
package main

import (
	"context"

	"github.com/nova-stream/nova/libs/config"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/services/node"
	"github.com/nova-stream/nova/services/settler"
)

func main() {
	s := node.Single{Service: discovery.Settler}
	var objects node.Objects
	var cfg settler.Config
	config.Program{
		Name:  "nova-settler",
		About: "The settler: absorbs chains into directories and settles streams, in the background.",
		Flags: func(f *config.Flags) {
			s.Flags(f, 7788, 7888)
			objects.Flags(f)
		},
		Check: func() error { return node.CheckAll(&s, &objects) },
		Run: func(ctx context.Context) error {
			return s.Run(ctx, func(ctx context.Context, p *node.Process, _ string) (node.Part, error) {
				store, err := p.OpenObjects(ctx, &objects, nil)
				if err != nil {
					return nil, err
				}
				cfg.NodeID = p.ID(s.Service)
				return settler.New(cfg, settler.Deps{
					Objects: store, Index: p.Index, Registry: p.Registry, Log: p.Log, Meter: p.ServiceMeter(s.Service),
				})
			})
		},
	}.Main()
}
