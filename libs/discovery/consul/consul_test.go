package consul_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/oklog/ulid/v2"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/discovery/consul"
	"github.com/nova-stream/nova/libs/discovery/consul/consultest"
	"github.com/nova-stream/nova/libs/discovery/discoverytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, cfg consul.Config) *consul.Registry {
	t.Helper()
	cfg.CheckInterval = time.Second
	r, err := consul.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func client(t *testing.T, address string) *api.Client {
	t.Helper()
	c, err := api.NewClient(&api.Config{Address: address})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// await polls until ok, which says what it saw.
func await(t *testing.T, what string, ok func() (bool, any)) {
	t.Helper()
	var saw any
	for deadline := time.Now().Add(discoverytest.Patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		var done bool
		if done, saw = ok(); done {
			return
		}
	}
	t.Fatalf("%s: saw %v", what, saw)
}

// awaitIDs waits until a registry sees exactly the nodes of these ids.
func awaitIDs(t *testing.T, r discovery.Registry, s discovery.Service, want ...string) {
	t.Helper()
	await(t, fmt.Sprintf("nodes %q", want), func() (bool, any) {
		nodes, err := r.Nodes(t.Context(), s)
		var ids []string
		for _, n := range nodes {
			ids = append(ids, n.ID)
		}
		return err == nil && fmt.Sprint(ids) == fmt.Sprint(want), fmt.Sprint(ids, err)
	})
}

// One agent for all tests of the suite: constellations are apart.
func TestContract(t *testing.T) {
	address := consultest.Start(t)
	for _, check := range []consul.Check{consul.GRPC, consul.TTL} {
		t.Run(string(check), func(t *testing.T) {
			discoverytest.Run(t, func(t *testing.T) discoverytest.Join {
				constellation := "test-" + ulid.Make().String()
				return func() discovery.Registry {
					return open(t, consul.Config{Address: address, Constellation: constellation, Check: check})
				}
			})
		})
	}
}

func TestNodeThatStopsServingIsNotHealthy(t *testing.T) {
	address := consultest.Start(t)
	r := open(t, consul.Config{Address: address, Constellation: "c"})
	serving := health.NewServer()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, serving)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	defer func() { server.Stop(); <-done }()

	n := discovery.Node{ID: "a", Service: discovery.Reader, Address: l.Addr().String()}
	if err := r.Register(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	awaitIDs(t, r, discovery.Reader, "a")
	serving.SetServingStatus("", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	awaitIDs(t, r, discovery.Reader)
	serving.SetServingStatus("", grpc_health_v1.HealthCheckResponse_SERVING)
	awaitIDs(t, r, discovery.Reader, "a")
}

// A node that begins to drain stays where it was: nobody misses it for a moment,
// its health check goes on, and so do the hints of the shards that it leads.
func TestDrainingKeepsTheNode(t *testing.T) {
	address := consultest.Start(t)
	r := open(t, consul.Config{Address: address, Constellation: "c"})
	serving := health.NewServer()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, serving)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	defer func() { server.Stop(); <-done }()

	n := discovery.Node{ID: "a", Service: discovery.Sequencer, Address: l.Addr().String(), Meta: map[string]string{"life": "l"}}
	if err := r.Register(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	hint := discovery.Hint{Shard: 7, Epoch: 3, Address: n.Address}
	if err := r.PutHint(t.Context(), hint); err != nil {
		t.Fatal(err)
	}
	watching, stop := context.WithCancel(t.Context())
	defer stop()
	sets, err := r.Watch(watching, discovery.Sequencer)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 7 {
		n = n.Clone()
		delete(n.Meta, discovery.MetaDraining)
		if i%2 == 0 {
			n.Meta[discovery.MetaDraining] = "1"
		}
		if err := r.Register(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		if nodes, err := r.Nodes(t.Context(), discovery.Sequencer); err != nil || len(nodes) != 1 || !nodes[0].Equal(n) {
			t.Fatalf("registered %v, see %v, %v", n, nodes, err)
		}
	}
	for draining := false; !draining; {
		select {
		case set := <-sets:
			if len(set) != 1 || set[0].ID != "a" {
				t.Fatalf("a watch saw %v", set)
			}
			draining = set[0].Equal(n)
		case <-time.After(discoverytest.Patience):
			t.Fatal("a watch does not see it draining")
		}
	}
	hints, err := r.WatchHints(watching)
	if err != nil {
		t.Fatal(err)
	}
	if got := <-hints; len(got) != 1 || got[0] != hint {
		t.Errorf("hints %v, want %v", got, hint)
	}
	checks, err := client(t, address).Agent().Checks()
	if err != nil || len(checks) != 1 {
		t.Errorf("the agent has the checks %v, %v", checks, err)
	}
	serving.SetServingStatus("", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	awaitIDs(t, r, discovery.Sequencer)
}

func TestTTLNodeStaysHealthyWhileItLives(t *testing.T) {
	address := consultest.Start(t)
	r := open(t, consul.Config{Address: address, Constellation: "c", Check: consul.TTL})
	if err := r.Register(t.Context(), discovery.Node{ID: "a", Service: discovery.Reader, Address: "127.0.0.1:1"}); err != nil {
		t.Fatal(err)
	}
	sets, err := r.Watch(t.Context(), discovery.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if set := <-sets; len(set) != 1 {
		t.Fatalf("first set = %v", set)
	}
	// Longer than the TTL, so that a check nobody renews would turn critical.
	select {
	case set := <-sets:
		t.Errorf("the set changed to %v", set)
	case <-time.After(4 * time.Second):
	}
}

// A restarted agent knows nothing: nodes come back, watches go on.
func TestForgottenNodesAreRegisteredAgain(t *testing.T) {
	for _, check := range []consul.Check{consul.GRPC, consul.TTL} {
		t.Run(string(check), func(t *testing.T) {
			agent := consultest.New(t)
			r := open(t, consul.Config{Address: agent.Address, Constellation: "c", Check: check})
			// An id that a URL path would not take as it is.
			n := discovery.Node{ID: "node 1//sequencer?%41#", Service: discovery.Sequencer, Address: discoverytest.Serve(t)}
			if err := r.Register(t.Context(), n); err != nil {
				t.Fatal(err)
			}
			sets, err := r.Watch(t.Context(), discovery.Sequencer)
			if err != nil {
				t.Fatal(err)
			}
			hints, err := r.WatchHints(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			<-hints
			if set := <-sets; len(set) != 1 || !set[0].Equal(n) {
				t.Fatalf("first set = %+v", set)
			}
			agent.Stop()
			if _, err := r.Nodes(t.Context(), discovery.Sequencer); !errors.Is(err, discovery.ErrUnavailable) || !strings.Contains(err.Error(), agent.Address) {
				t.Fatalf("Nodes without an agent: %v, want ErrUnavailable with its address", err)
			}
			agent.Start()
			awaitIDs(t, r, discovery.Sequencer, n.ID)
			if err := r.PutHint(t.Context(), discovery.Hint{Shard: 9, Epoch: 1, Address: "a:1"}); err != nil {
				t.Fatal(err)
			}
			await(t, "hint after the restart", func() (bool, any) {
				got := <-hints
				return len(got) == 1 && got[0].Shard == 9, got
			})
			if err := r.Deregister(t.Context(), n.ID); err != nil {
				t.Fatal(err)
			}
			await(t, "empty set after the restart", func() (bool, any) {
				set := <-sets
				return len(set) == 0, set
			})
			awaitIDs(t, r, discovery.Sequencer)
		})
	}
}

// Other programs read the hints: their form is part of the contract.
func TestHintsAreJSONUnderTheConstellation(t *testing.T) {
	address := consultest.Start(t)
	r := open(t, consul.Config{Address: address, Constellation: "prod"})
	if err := r.PutHint(t.Context(), discovery.Hint{Shard: 17, Epoch: 3, Address: "10.0.0.1:7780"}); err != nil {
		t.Fatal(err)
	}
	kv := client(t, address).KV()
	pair, _, err := kv.Get("nova/prod/shards/17", nil)
	if err != nil || pair == nil || string(pair.Value) != `{"epoch":3,"address":"10.0.0.1:7780"}` {
		t.Fatalf("hint = %+v, %v", pair, err)
	}
	// What is no hint is replaced, and passed over by watchers.
	for _, key := range []string{"nova/prod/shards/17", "nova/prod/shards/x"} {
		if _, err := kv.Put(&api.KVPair{Key: key, Value: []byte("{")}, nil); err != nil {
			t.Fatal(err)
		}
	}
	want := discovery.Hint{Shard: 17, Epoch: 1, Address: "a:1"}
	if err := r.PutHint(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	hints, err := r.WatchHints(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := <-hints; len(got) != 1 || got[0] != want {
		t.Errorf("hints = %+v, want %+v", got, want)
	}
}

func TestConstellationsAreApart(t *testing.T) {
	address := consultest.Start(t)
	a, b := open(t, consul.Config{Address: address, Constellation: "a"}), open(t, consul.Config{Address: address, Constellation: "b"})
	serving := discoverytest.Serve(t)
	for id, r := range map[string]discovery.Registry{"of-a": a, "of-b": b} {
		if err := r.Register(t.Context(), discovery.Node{ID: id, Service: discovery.Reader, Address: serving}); err != nil {
			t.Fatal(err)
		}
	}
	awaitIDs(t, a, discovery.Reader, "of-a")
	awaitIDs(t, b, discovery.Reader, "of-b")
}

func TestConfigIsChecked(t *testing.T) {
	for name, cfg := range map[string]consul.Config{
		"no constellation":  {},
		"odd constellation": {Constellation: "a/b"},
		"odd check":         {Constellation: "a", Check: "http"},
		"short interval":    {Constellation: "a", CheckInterval: time.Millisecond},
	} {
		if _, err := consul.Open(cfg); !errors.Is(err, discovery.ErrInvalid) {
			t.Errorf("Open with %s: %v, want ErrInvalid", name, err)
		}
	}
	r, err := consul.Open(consul.Config{Address: "127.0.0.1:1", Constellation: "a"})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, addr := range []string{"nowhere", ":7780", "host:0", "host:http"} {
		if err := r.Register(t.Context(), discovery.Node{ID: "a", Service: discovery.Reader, Address: addr}); !errors.Is(err, discovery.ErrInvalid) {
			t.Errorf("Register at %q: %v, want ErrInvalid", addr, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), discoverytest.Patience)
	defer cancel()
	if err := r.Register(ctx, discovery.Node{ID: "a", Service: discovery.Reader, Address: "host:1"}); !errors.Is(err, discovery.ErrUnavailable) {
		t.Errorf("Register without an agent: %v, want ErrUnavailable", err)
	}
}
