// Nova-chain-writer makes entries durable.
package main

import (
	"context"

	"github.com/nova-stream/nova/libs/config"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/services/chainwriter"
	"github.com/nova-stream/nova/services/node"
)

func main() {
	s := node.Single{Service: discovery.ChainWriter}
	var objects node.Objects
	var cfg chainwriter.Config
	config.Program{
		Name:  "nova-chain-writer",
		About: "The chain-writer: pools entries into flights, puts each into the next slot of its chain, and acknowledges in order.",
		Flags: func(f *config.Flags) {
			s.Flags(f, 7784, 7884)
			objects.Flags(f)
			f.Int(&cfg.FlightBytes, "flight-bytes", 4<<20, "bytes after which a flight leaves")
			f.Duration(&cfg.Linger, "linger", 0, "how long a flight waits for more; 0: only while others are in the air, 2ms at most")
			f.Int(&cfg.Lanes, "put-lanes", 4, "flights in the air at once")
			f.MiB(&cfg.PoolBytes, "flight-pool-mib", 256, "MiB of entries that wait for a flight or are in one")
			f.Int(&cfg.BacklogFlights, "chain-backlog-flights", 1024, "committed flights of a chain not yet absorbed; beyond it appends wait")
			f.MiB(&cfg.UnsettledBytes, "chain-unsettled-mib", 4096, "MiB of committed flights of a chain not yet settled; beyond it appends wait")
		},
		Check: func() error { return node.CheckAll(&s, &objects) },
		Run: func(ctx context.Context) error {
			return s.Run(ctx, func(ctx context.Context, p *node.Process, address string) (node.Part, error) {
				store, err := p.OpenObjects(ctx, &objects, nil)
				if err != nil {
					return nil, err
				}
				cfg.NodeID, cfg.Address, cfg.Zone = p.ID(s.Service), address, s.Zone
				return chainwriter.New(cfg, chainwriter.Deps{
					Objects: store, Index: p.Index, Conns: p.Pool, Log: p.Log, Meter: p.ServiceMeter(s.Service), Tracer: p.ServiceTracer(s.Service),
				})
			})
		},
	}.Main()
}
