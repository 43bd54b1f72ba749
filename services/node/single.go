package node

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/nova-stream/nova/libs/config"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/rpc"
)

// Single is a program of one service.
type Single struct {
	Settings

	Service   discovery.Service
	Listen    string
	Advertise string // host:port
}

// Flags declares the settings; the ports are defaults on the loopback address.
func (s *Single) Flags(f *config.Flags, port, metrics int) {
	f.String(&s.Listen, "listen", fmt.Sprintf("127.0.0.1:%d", port), "address of the gRPC listener, inside the trust domain")
	f.String(&s.Advertise, "advertise", "", "host:port where the other nodes reach this one; empty: as --listen")
	s.Settings.Flags(f, fmt.Sprintf("127.0.0.1:%d", metrics))
}

// Check completes and validates.
func (s *Single) Check() error {
	if err := s.Settings.Check(); err != nil {
		return err
	}
	if s.Consul == "" {
		return errors.New("--consul must name the Consul agent: a service alone finds the others by it (novad is all of them in one)")
	}
	if err := CheckAddress("--listen", s.Listen, false); err != nil {
		return err
	}
	if s.Advertise != "" {
		return CheckAddress("--advertise", s.Advertise, false)
	}
	if host, _, _ := net.SplitHostPort(s.Listen); host == "" || net.ParseIP(host).IsUnspecified() {
		return fmt.Errorf("--advertise must say where others reach this node: --listen %s is every address of the machine", s.Listen)
	}
	return nil
}

// Build builds a service; address is where others reach it.
type Build func(ctx context.Context, p *Process, address string) (Part, error)

// Run opens what the service needs, builds it, and serves until ctx ends or the
// service fails.
func (s *Single) Run(ctx context.Context, build Build) error {
	return s.Settings.run(ctx, s.Service, func(p *Process, g *Group) error {
		endpoint, err := rpc.NewServer(rpc.ServerConfig{Options: options(p), Listen: s.Listen})
		if err != nil {
			return err
		}
		return g.build(ctx, s.Service, endpoint, s.Advertise, build)
	})
}

// run opens a process, lets start fill its group, and serves.
func (s *Settings) run(ctx context.Context, service discovery.Service, start func(*Process, *Group) error) (err error) {
	program := "nova-" + string(service)
	t, err := OpenTelemetry(ctx, program, s)
	if err != nil {
		return err
	}
	registry, err := s.openRegistry(t)
	if err != nil {
		return errors.Join(err, t.Shutdown(ctx))
	}
	p, err := Open(t, s, registry, nil)
	if err != nil {
		return err
	}
	g := NewGroup(p)
	defer func() {
		err = errors.Join(err, s.End(func() error {
			g.Stop()
			return p.Close()
		}))
	}()
	admin, err := g.OpenAdmin(program)
	if err != nil {
		return err
	}
	if admin != nil {
		// Runs after the group's Stop: it tells of the stopping.
		p.OnClose(func() error {
			ctx, cancel := context.WithTimeout(context.Background(), s.StopTimeout)
			defer cancel()
			admin.Stop(ctx)
			return nil
		})
	}
	if err := start(p, g); err != nil {
		return err
	}
	for _, m := range g.all() {
		p.Log.InfoContext(ctx, "serving", "service", string(m.service), "address", m.endpoint.Address(), "admin", admin.Addr())
	}
	select {
	case <-ctx.Done():
		p.Log.InfoContext(ctx, "stopping")
		return nil
	case err := <-g.failed:
		return err
	}
}

// build builds a service and adds it; it takes the endpoint over.
func (g *Group) build(ctx context.Context, s discovery.Service, endpoint rpc.Endpoint, advertise string, build Build) error {
	address := advertise
	if address == "" {
		address = endpoint.Address()
	}
	part, err := build(ctx, g.process, address)
	if err != nil {
		endpoint.Stop(ctx)
		return err
	}
	g.Add(s, part, endpoint, address)
	return nil
}
