// Nova-sequencer leads shards and numbers their records.
package main

import (
	"context"
	"errors"
	"time"

	"github.com/nova-stream/nova/libs/config"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/services/node"
	"github.com/nova-stream/nova/services/sequencer"
)

func main() {
	s := node.Single{Service: discovery.Sequencer}
	var cfg sequencer.Config
	config.Program{
		Name:  "nova-sequencer",
		About: "The sequencer: leads shards, numbers and stamps their records, and knows each stream's tail.",
		Flags: func(f *config.Flags) {
			s.Flags(f, 7783, 7883)
			f.Duration(&cfg.LeaseTTL, "lease-ttl", 10*time.Second, "how long others wait for a silent sequencer before they take its shards")
			f.Uint32(&cfg.Weight, "weight", 1, "share of the shards that this node leads, next to the weights of others; 1 to 1000")
			f.Uint32(&cfg.Shards, "shards", 256, "number of shards of a deployment that is new; later it never changes")
			f.MiB(&cfg.PoolBytes, "append-pool-mib", 256, "MiB of appends under way")
			f.MiB(&cfg.TailWindowBytes, "tail-window-mib", 128, "MiB of recent records kept for readers")
			f.MiB(&cfg.CoordinateBytes, "coordinates-mib", 256, "MiB of places of records that are not settled yet")
			f.Int(&cfg.MaxSessions, "max-producer-sessions", 4096, "append sessions open at once")
		},
		Check: func() error { return errors.Join(s.Check(), cfg.Check()) },
		Run: func(ctx context.Context) error {
			return s.Run(ctx, func(_ context.Context, p *node.Process, address string) (node.Part, error) {
				cfg.NodeID, cfg.Address, cfg.Zone = p.ID(s.Service), address, s.Zone
				cfg.StopTimeout = s.StopTimeout
				return sequencer.New(cfg, sequencer.Deps{
					Index: p.Index, Conns: p.Pool, Registry: p.Registry, Log: p.Log, Meter: p.ServiceMeter(s.Service),
				})
			})
		},
	}.Main()
}
