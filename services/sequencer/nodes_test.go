package sequencer

import (
	"context"
	"errors"
	"testing"

	"github.com/nova-stream/nova/libs/discovery"
)

// outage is discovery that may be down.
type outage struct {
	down  bool
	nodes []discovery.Node
}

func (o *outage) Nodes(context.Context, discovery.Service) ([]discovery.Node, error) {
	if o.down {
		return nil, discovery.ErrUnavailable
	}
	return o.nodes, nil
}

func (o *outage) PutHint(context.Context, discovery.Hint) error { return nil }

// A takeover needs a chain-writer; without discovery it uses those it knows.
func TestNodesAreRememberedWhileDiscoveryIsDown(t *testing.T) {
	o := &outage{down: true}
	k := &knownNodes{registry: o, last: map[discovery.Service][]discovery.Node{}}
	if _, err := k.of(t.Context(), discovery.ChainWriter); !errors.Is(err, discovery.ErrUnavailable) {
		t.Errorf("nothing was ever seen: %v", err)
	}
	o.down, o.nodes = false, []discovery.Node{{ID: "a"}, {ID: "b"}}
	for _, o.down = range []bool{false, true} {
		if nodes, err := k.of(t.Context(), discovery.ChainWriter); err != nil || len(nodes) != 2 {
			t.Errorf("down %v: %v, %v", o.down, nodes, err)
		}
	}
	if _, err := k.of(t.Context(), discovery.Sequencer); !errors.Is(err, discovery.ErrUnavailable) {
		t.Errorf("another service's nodes: %v", err)
	}
	// That there are none any more is an answer.
	o.down, o.nodes = false, nil
	if nodes, err := k.of(t.Context(), discovery.ChainWriter); err != nil || len(nodes) != 0 {
		t.Errorf("none: %v, %v", nodes, err)
	}
}

// One that leads nothing yet knows whom to write to, should discovery be down when
// it must take over.
func TestASpareKnowsTheChainWriters(t *testing.T) {
	w := newWorld(t)
	w.lead(Config{})
	spare := w.start(Config{})
	spare.SetDraining(true)
	eventually(t, "it knows them", func() bool {
		spare.nodes.mu.Lock()
		defer spare.nodes.mu.Unlock()
		return len(spare.nodes.last[discovery.ChainWriter]) > 0
	})
	if spare.links.present() != nil {
		t.Error("it writes already")
	}
}
