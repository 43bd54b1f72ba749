package sequencer

import (
	"context"
	"sync"
	"time"

	"github.com/nova-stream/nova/libs/discovery"
)

// nodesPatience is how long discovery may take to answer. A takeover asks it a
// few times, and must not wait for one that hangs.
const nodesPatience = time.Second

// knownNodes remembers the nodes that discovery showed last. Losing discovery
// stops the discovery of newcomers and nothing else: who is alive is what leases
// and answers tell.
type knownNodes struct {
	registry Registry

	mu   sync.Mutex
	last map[discovery.Service][]discovery.Node
}

// of returns the nodes of a service, those seen last while discovery is down;
// its error if none were seen yet.
func (k *knownNodes) of(ctx context.Context, s discovery.Service) ([]discovery.Node, error) {
	asking, cancel := context.WithTimeout(ctx, nodesPatience)
	defer cancel()
	nodes, err := k.registry.Nodes(asking, s)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil {
		k.last[s] = nodes
		return nodes, nil
	}
	if last, ok := k.last[s]; ok && ctx.Err() == nil {
		return last, nil
	}
	return nil, err
}
