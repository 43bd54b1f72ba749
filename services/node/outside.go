package node

import (
	"context"
	"errors"
	"net/http"

	"google.golang.org/grpc"

	"github.com/nova-stream/nova/libs/config"
	"github.com/nova-stream/nova/libs/discovery"
)

// Outside is the program of the one service that faces the outside.
type Outside struct {
	Settings
	Public

	Advertise string // host:port
	// Handler makes the JSON API over a connection to the service.
	Handler func(grpc.ClientConnInterface) http.Handler
}

// Flags declares the settings.
func (o *Outside) Flags(f *config.Flags) {
	o.Public.Flags(f)
	f.String(&o.Advertise, "advertise", "", "host:port where the other nodes reach this one; empty: as --listen")
	o.Settings.Flags(f, "127.0.0.1:7782")
}

// Check completes and validates.
func (o *Outside) Check() error {
	if o.Consul == "" {
		return errors.New("--consul must name the Consul agent: a service alone finds the others by it (novad is all of them in one)")
	}
	if o.Advertise != "" {
		if err := CheckAddress("--advertise", o.Advertise, false); err != nil {
			return err
		}
	}
	return CheckAll(&o.Settings, &o.Public)
}

// Run serves until ctx ends or the service fails.
func (o *Outside) Run(ctx context.Context, build Build) error {
	return o.Settings.run(ctx, discovery.Gateway, func(p *Process, g *Group) error {
		endpoint, err := o.Endpoint(p)
		if err != nil {
			return err
		}
		if err := g.build(ctx, discovery.Gateway, endpoint, o.Advertise, build); err != nil {
			return err
		}
		_, err = o.OpenHTTP(p, g, g.all()[0].part, o.Handler)
		return err
	})
}
