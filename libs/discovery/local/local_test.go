package local_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/discovery/discoverytest"
	"github.com/nova-stream/nova/libs/discovery/local"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestContract(t *testing.T) {
	discoverytest.Run(t, func(*testing.T) discoverytest.Join {
		network := local.NewNetwork()
		return func() discovery.Registry { return network.Registry() }
	})
}

func TestNewIsANetworkOfItsOwn(t *testing.T) {
	a, b := local.New(), local.New()
	defer a.Close()
	defer b.Close()
	if err := a.Register(t.Context(), discovery.Node{ID: "a", Service: discovery.Reader, Address: "in-process"}); err != nil {
		t.Fatal(err)
	}
	if nodes, err := b.Nodes(t.Context(), discovery.Reader); err != nil || len(nodes) != 0 {
		t.Errorf("Nodes of another network = %v, %v", nodes, err)
	}
}
