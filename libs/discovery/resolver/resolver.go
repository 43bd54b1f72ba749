// Package resolver lets gRPC clients dial a service of the constellation:
//
//	grpc.NewClient("nova:///sequencer", grpc.WithResolvers(resolver.New(registry)), ...)
//
// The addresses are those of the healthy nodes, and follow them; of nodes that
// are draining only when there is no other: calls under way there end in peace.
// An empty set fails calls as UNAVAILABLE; while the registry does not answer,
// the last set stays.
package resolver

import (
	"context"
	"fmt"

	"google.golang.org/grpc/attributes"
	"google.golang.org/grpc/resolver"

	"github.com/nova-stream/nova/libs/discovery"
)

// Scheme is that of the targets: nova:///<service>.
const Scheme = "nova"

type attributeKey string

// The attributes of an address; see NodeID and Zone.
const (
	nodeKey attributeKey = "nova-node"
	zoneKey attributeKey = "nova-zone"
)

// Target returns the target of a service, for grpc.NewClient.
func Target(s discovery.Service) string { return Scheme + ":///" + string(s) }

// New returns a builder that asks registry. It outlives its clients.
func New(registry discovery.Registry) resolver.Builder { return builder{registry} }

type builder struct{ registry discovery.Registry }

func (builder) Scheme() string { return Scheme }

func (b builder) Build(target resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	service := discovery.Service(target.Endpoint())
	if service == "" || target.URL.Host != "" {
		return nil, fmt.Errorf("target %q is not nova:///<service>", target.URL.String())
	}
	ctx, cancel := context.WithCancel(context.Background())
	sets, err := b.registry.Watch(ctx, service)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("resolve %s: %w", service, err)
	}
	r := &watching{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		for nodes := range sets {
			// The error asks to resolve again; the next set will.
			_ = cc.UpdateState(state(nodes))
		}
	}()
	return r, nil
}

func state(nodes []discovery.Node) resolver.State {
	var s resolver.State
	for _, n := range discovery.Preferred(nodes) {
		a := resolver.Address{Addr: n.Address, Attributes: attributes.New(nodeKey, n.ID).WithValue(zoneKey, n.Zone)}
		s.Addresses = append(s.Addresses, a)
		s.Endpoints = append(s.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{a}})
	}
	return s
}

// NodeID returns the id of the node behind an address, for balancers.
func NodeID(a resolver.Address) string {
	id, _ := a.Attributes.Value(nodeKey).(string)
	return id
}

// Zone returns the zone of the node behind an address, for balancers.
func Zone(a resolver.Address) string {
	zone, _ := a.Attributes.Value(zoneKey).(string)
	return zone
}

// watching is one client's resolver.
type watching struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// ResolveNow does nothing: changes come by themselves.
func (*watching) ResolveNow(resolver.ResolveNowOptions) {}

// Close ends the watch and returns when no update is under way.
func (r *watching) Close() {
	r.cancel()
	<-r.done
}
