package novad

import (
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/services/cache"
	"github.com/nova-stream/nova/services/chainwriter"
	"github.com/nova-stream/nova/services/index"
	"github.com/nova-stream/nova/services/node"
	"github.com/nova-stream/nova/services/reader"
	"github.com/nova-stream/nova/services/reaper"
	"github.com/nova-stream/nova/services/sequencer"
	"github.com/nova-stream/nova/services/settler"
)

// serviceOf builds one service; address is where others reach it.
type serviceOf struct {
	service discovery.Service
	build   func(n *Node, address string) (node.Part, error)
}

// services are all but the gateway, callees first.
var services = []serviceOf{
	{discovery.Index, func(n *Node, _ string) (node.Part, error) {
		s, err := index.New(index.Config{}, index.Deps{Store: n.meta, Log: n.process.Log, Meter: n.process.ServiceMeter(discovery.Index)})
		if err != nil {
			return nil, err
		}
		cfg := n.cfg.Export
		if n.cfg.Dev {
			cfg.Interval = 0 // metadata and objects are lost together
		}
		return index.NewExporting(s, cfg, n.objects)
	}},
	{discovery.Cache, func(n *Node, _ string) (node.Part, error) {
		return cache.New(n.cfg.Cache, cache.Deps{
			Objects: n.objects, Log: n.process.Log, Meter: n.process.ServiceMeter(discovery.Cache),
		})
	}},
	{discovery.ChainWriter, func(n *Node, address string) (node.Part, error) {
		cfg := n.cfg.ChainWriter
		cfg.NodeID, cfg.Address, cfg.Zone = n.process.ID(discovery.ChainWriter), address, n.cfg.Zone
		return chainwriter.New(cfg, chainwriter.Deps{
			Objects: n.objects, Index: n.process.Index, Conns: n.process.Pool, Log: n.process.Log,
			Meter: n.process.ServiceMeter(discovery.ChainWriter), Tracer: n.process.ServiceTracer(discovery.ChainWriter),
		})
	}},
	{discovery.Sequencer, func(n *Node, address string) (node.Part, error) {
		cfg := n.cfg.Sequencer
		cfg.NodeID, cfg.Address, cfg.Zone = n.process.ID(discovery.Sequencer), address, n.cfg.Zone
		// The lock of the directory proves it; memory has no former lives.
		cfg.FormerLivesDead, cfg.StopTimeout = n.cfg.FormerLivesDead(), n.cfg.StopTimeout
		return sequencer.New(cfg, sequencer.Deps{
			Index: n.process.Index, Conns: n.process.Pool, Registry: n.process.Registry,
			Log: n.process.Log, Meter: n.process.ServiceMeter(discovery.Sequencer),
		})
	}},
	{discovery.Settler, func(n *Node, _ string) (node.Part, error) {
		cfg := n.cfg.Settler
		cfg.NodeID = n.process.ID(discovery.Settler)
		return settler.New(cfg, settler.Deps{
			Objects: n.objects, Index: n.process.Index, Registry: n.process.Registry,
			Log: n.process.Log, Meter: n.process.ServiceMeter(discovery.Settler),
		})
	}},
	{discovery.Reaper, func(n *Node, _ string) (node.Part, error) {
		cfg := n.cfg.Reaper
		cfg.ReadGrace = n.cfg.Settler.ReadGrace // one setting of both
		return reaper.New(cfg, reaper.Deps{
			Index: n.process.Index, Cache: n.process.Cache, Router: n.process.Router, Registry: n.process.Registry, Conns: n.process.Pool,
			Log: n.process.Log, Meter: n.process.ServiceMeter(discovery.Reaper),
		})
	}},
	{discovery.Reader, func(n *Node, _ string) (node.Part, error) {
		return reader.New(n.cfg.Reader, reader.Deps{
			Index: n.process.Index, Router: n.process.Router, Cache: n.process.Cache, Objects: n.objects,
			Log: n.process.Log, Meter: n.process.ServiceMeter(discovery.Reader),
		})
	}},
}
