package novad

import (
	"context"
	"errors"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/config"
	"github.com/nova-stream/nova/libs/telemetry"
	"github.com/nova-stream/nova/libs/validate"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// edge validates requests of the public API. Messages of a session are checked
// by the session itself, which answers the batch instead of ending the call.
func edge(m proto.Message) error {
	if _, ok := m.(*novapb.AppendSessionRequest); ok {
		return nil
	}
	return validate.Request(m)
}

// Run runs a node until ctx ends.
func Run(ctx context.Context, cfg Config) error {
	t, err := telemetry.Setup(ctx, telemetry.Config{Program: "novad", Version: config.Version, Node: cfg.NodeID, Level: cfg.LogLevel})
	if err != nil {
		return err
	}
	defer func() { _ = t.Shutdown(context.WithoutCancel(ctx)) }()
	cfg.Log, cfg.Tracer, cfg.Meter = t.Log, t.Tracer, t.Meter
	var started atomic.Pointer[Node]
	ready := func() error {
		if n := started.Load(); n != nil {
			return n.Ready()
		}
		return errors.New("starting")
	}
	stopAdmin, err := adminServer(ctx, cfg.MetricsListen, t.AdminHandler("novad", ready, func() []telemetry.Fact { return nil }))
	if err != nil {
		return err
	}
	defer stopAdmin()
	node, err := Start(ctx, cfg)
	if err != nil {
		return err
	}
	started.Store(node)
	defer node.Close()
	t.Log.InfoContext(ctx, "serving", "grpc", node.Addr(), "http", node.HTTPAddr(), "metrics", cfg.MetricsListen, "dir", cfg.Dir, "dev", cfg.Dev)
	select {
	case <-ctx.Done():
		t.Log.InfoContext(ctx, "stopping")
		return nil
	case <-node.Failed():
		return node.Err()
	}
}
