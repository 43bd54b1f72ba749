// Nova-settler moves committed records to their long-term place.
package main

import (
	"context"
	"errors"
	"time"

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
			f.Duration(&cfg.SettleAge, "settle-age", 10*time.Minute, "how long what was absorbed waits at most before it is settled")
			f.MiB(&cfg.SettleBytes, "settle-mib", 1024, "MiB of entries of one chain that are settled at once, without waiting")
			f.MiB(&cfg.SettleMemory, "settle-memory-mib", 256, "MiB that settling holds in memory, at least 64")
			f.MiB(&cfg.SettleRate, "settle-rate-mib", 0, "MiB per second that settling reads from slots; 0: no limit")
			f.Duration(&cfg.ReadGrace, "read-grace", 10*time.Minute, "how long readers may need what is settled again, trimmed or deleted")
		},
		Check: func() error { return errors.Join(node.CheckAll(&s, &objects), cfg.Check()) },
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
