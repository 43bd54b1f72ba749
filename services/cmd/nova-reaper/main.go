// Nova-reaper removes what nobody needs any more.
package main

import (
	"context"
	"time"

	"github.com/nova-stream/nova/libs/config"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/services/node"
	"github.com/nova-stream/nova/services/reaper"
)

func main() {
	s := node.Single{Service: discovery.Reaper}
	var cfg reaper.Config
	config.Program{
		Name:  "nova-reaper",
		About: "The reaper: retention, deletion and the repair of what was begun and not finished.",
		Flags: func(f *config.Flags) {
			s.Flags(f, 7789, 7889)
			f.Duration(&cfg.ReadGrace, "read-grace", 10*time.Minute, "how long readers may need what is settled again, trimmed or deleted")
		},
		Check: func() error { return node.CheckAll(&s, &cfg) },
		Run: func(ctx context.Context) error {
			return s.Run(ctx, func(_ context.Context, p *node.Process, _ string) (node.Part, error) {
				return reaper.New(cfg, reaper.Deps{
					Index: p.Index, Cache: p.Cache, Router: p.Router, Registry: p.Registry, Conns: p.Pool, Log: p.Log, Meter: p.ServiceMeter(s.Service),
				})
			})
		},
	}.Main()
}
