package resolver_test

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/discovery/consul"
	"github.com/nova-stream/nova/libs/discovery/consul/consultest"
	"github.com/nova-stream/nova/libs/discovery/discoverytest"
	"github.com/nova-stream/nova/libs/discovery/local"
	"github.com/nova-stream/nova/libs/discovery/resolver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestClientsFollowTheNodesOfAService(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) discovery.Registry{
		"local": func(*testing.T) discovery.Registry { return local.New() },
		"consul": func(t *testing.T) discovery.Registry {
			r, err := consul.Open(consul.Config{Address: consultest.Start(t), Constellation: "c"})
			if err != nil {
				t.Fatal(err)
			}
			return r
		},
	} {
		t.Run(name, func(t *testing.T) { follow(t, open(t)) })
	}
}

func follow(t *testing.T, registry discovery.Registry) {
	defer registry.Close()
	a := discovery.Node{ID: "a", Service: discovery.Reader, Address: discoverytest.Serve(t)}
	b := discovery.Node{ID: "b", Service: discovery.Reader, Address: discoverytest.Serve(t)}
	conn, err := grpc.NewClient(resolver.Target(discovery.Reader),
		grpc.WithResolvers(resolver.New(registry)),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"round_robin":{}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()

	if _, err := call(t, conn, false); status.Code(err) != codes.Unavailable {
		t.Errorf("call of a service without nodes: %v, want UNAVAILABLE", err)
	}
	register(t, registry, a)
	awaitPeers(t, conn, a.Address)
	register(t, registry, b)
	awaitPeers(t, conn, a.Address, b.Address)
	// One that is draining is called only while there is no other.
	a.Meta = map[string]string{discovery.MetaDraining: "1"}
	register(t, registry, a)
	awaitPeers(t, conn, b.Address)
	b.Meta = a.Meta
	register(t, registry, b)
	awaitPeers(t, conn, a.Address, b.Address)
	if err := registry.Deregister(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	awaitPeers(t, conn, b.Address)
}

func register(t *testing.T, r discovery.Registry, n discovery.Node) {
	t.Helper()
	if err := r.Register(t.Context(), n); err != nil {
		t.Fatal(err)
	}
}

// call makes one call and returns who answered it.
func call(t *testing.T, conn *grpc.ClientConn, wait bool) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), discoverytest.Patience)
	defer cancel()
	var p peer.Peer
	_, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.Peer(&p), grpc.WaitForReady(wait))
	if err != nil {
		return "", err
	}
	return p.Addr.String(), nil
}

// awaitPeers waits until calls are answered by exactly these nodes.
func awaitPeers(t *testing.T, conn *grpc.ClientConn, want ...string) {
	t.Helper()
	seen := map[string]bool{}
	for deadline := time.Now().Add(discoverytest.Patience); time.Now().Before(deadline); {
		seen = map[string]bool{}
		for range 8 {
			addr, err := call(t, conn, true)
			if err != nil {
				t.Fatal(err)
			}
			seen[addr] = true
		}
		all := len(seen) == len(want)
		for _, addr := range want {
			all = all && seen[addr]
		}
		if all {
			return
		}
	}
	t.Fatalf("calls were answered by %v, want %v", seen, want)
}

func TestBadTargetsAreRefused(t *testing.T) {
	registry := local.New()
	defer registry.Close()
	for _, target := range []string{"nova:///", "nova://authority/reader"} {
		conn, err := grpc.NewClient(target, grpc.WithResolvers(resolver.New(registry)), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			continue
		}
		if _, err := call(t, conn, false); err == nil {
			t.Errorf("call of target %q succeeded", target)
		}
		_ = conn.Close()
	}
}
