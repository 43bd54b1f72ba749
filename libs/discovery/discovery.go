// Package discovery finds the nodes of a constellation and carries routing
// hints. It decides nothing: who leads a shard is in the metastore, and losing
// discovery only stops the discovery of newcomers.
//
// Implementations: discovery/local (in process) and discovery/consul. Both
// pass the contract suite in discovery/discoverytest.
package discovery

import (
	"context"
	"errors"
	"slices"
)

// ErrUnavailable: the registry did not answer; try again.
var ErrUnavailable = errors.New("discovery unavailable")

// Service names the responsibility a node serves.
type Service string

// The services of a constellation.
const (
	Sequencer   Service = "sequencer"
	ChainWriter Service = "chain-writer"
	Reader      Service = "reader"
	Settler     Service = "settler"
	Reaper      Service = "reaper"
	Index       Service = "index"
	Cache       Service = "cache"
	Gateway     Service = "gateway"
)

// Services returns every service, in the order of the write path.
func Services() []Service {
	return []Service{Sequencer, ChainWriter, Reader, Settler, Reaper, Index, Cache, Gateway}
}

// Node is one registered instance of a service.
type Node struct {
	ID      string            // unique in the constellation: node id and service
	Service Service           //
	Address string            // host:port of its gRPC listener; opaque in process
	Zone    string            // failure domain, may be empty
	Meta    map[string]string // hints such as "life", "weight", MetaDraining
}

// MetaDraining is the key in Meta of a node that hands its work to others, with
// any value.
const MetaDraining = "draining"

// Draining reports whether the node hands its work to others.
func (n Node) Draining() bool { return n.Meta[MetaDraining] != "" }

// Preferred returns the nodes to call: those that are not draining, or else
// all of them, since a node that is draining still serves.
func Preferred(nodes []Node) []Node {
	stay := slices.DeleteFunc(slices.Clone(nodes), Node.Draining)
	if len(stay) == 0 {
		return nodes
	}
	return stay
}

// Hint says which node led a shard when it was written.
type Hint struct {
	Shard   uint32
	Epoch   uint64
	Address string
}

// Registry registers nodes, watches services and carries hints. Methods are
// safe for concurrent use.
type Registry interface {
	// Register makes the node visible until ctx ends or Deregister; it keeps
	// the registration alive by itself and returns once it was first visible.
	// A second Register of the same ID replaces the node.
	Register(ctx context.Context, n Node) error
	// Deregister removes a node at once. One that is not there is a success.
	Deregister(ctx context.Context, id string) error
	// Nodes returns the healthy nodes of a service, sorted by ID.
	Nodes(ctx context.Context, s Service) ([]Node, error)
	// Watch sends the healthy nodes of a service, sorted by ID: the present
	// set at once, then every changed set, until ctx ends; then it is closed.
	// A slow receiver gets only the newest set.
	Watch(ctx context.Context, s Service) (<-chan []Node, error)
	// PutHint stores a hint unless one with a higher epoch is there.
	PutHint(ctx context.Context, h Hint) error
	// WatchHints sends the changed hints: all present ones at once, then each
	// change, until ctx ends; then it is closed. Changes may be merged.
	WatchHints(ctx context.Context) (<-chan []Hint, error)
	// Close stops every watch and registration.
	Close() error
}
