// Package discoverytest is the contract every registry keeps, as tests.
package discoverytest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/nova-stream/nova/libs/discovery"
)

// Patience is how long a test waits for something that must happen. Only a
// failing test ever waits that long.
const Patience = 30 * time.Second

// Join makes another registry of one constellation, as another process would.
// The suite closes it.
type Join func() discovery.Registry

// Run runs the suite. open starts a new, empty constellation. Registered nodes
// serve the gRPC health service at their addresses, on loopback.
func Run(t *testing.T, open func(t *testing.T) Join) {
	tests := []struct {
		name string
		run  func(*testing.T, env)
	}{
		{"RegisteredNodesAreVisibleToOthers", visible},
		{"NodesAreSortedAndOfOneService", sorted},
		{"SecondRegisterReplaces", replaces},
		{"RegistrationEndsWithItsContext", endsWithContext},
		{"EndOfReplacedContextChangesNothing", replacedContext},
		{"DeregisterRemovesAtOnce", deregister},
		{"WatchSendsThePresentSetThenChanges", watchSends},
		{"SlowWatcherGetsTheNewestSet", watchNewest},
		{"WatchClosesWithItsContext", watchCloses},
		{"HintsAreSeenByOthers", hintsSeen},
		{"LowerEpochNeverOverwritesAHint", hintEpochs},
		{"RacingHintsEndWithTheHighestEpoch", hintRace},
		{"SlowHintWatcherGetsEveryShardsNewest", hintMerge},
		{"CloseEndsWatchesAndRegistrations", closes},
		{"InvalidCallsSaySo", invalid},
		{"EndedContextIsReported", contextEnded},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 3*Patience)
			t.Cleanup(cancel)
			join := open(t)
			e := env{ctx: ctx, join: func() discovery.Registry {
				r := join()
				t.Cleanup(func() {
					if err := r.Close(); err != nil {
						t.Errorf("Close: %v", err)
					}
				})
				return r
			}}
			e.r = e.join()
			tc.run(t, e)
		})
	}
}

type env struct {
	ctx  context.Context
	r    discovery.Registry
	join Join
}

// Serve starts a server that answers health checks and returns its address.
func Serve(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(s, health.NewServer())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() {
		s.Stop()
		<-done
	})
	return l.Addr().String()
}

func (e env) register(ctx context.Context, t *testing.T, n discovery.Node) {
	t.Helper()
	if err := e.r.Register(ctx, n); err != nil {
		t.Fatalf("Register(%q): %v", n.ID, err)
	}
}

// wantNodes waits until a registry sees exactly the wanted nodes.
func (e env) wantNodes(t *testing.T, r discovery.Registry, s discovery.Service, want ...discovery.Node) {
	t.Helper()
	var got []discovery.Node
	var err error
	for deadline := time.Now().Add(Patience); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		got, err = r.Nodes(e.ctx, s)
		if err == nil && slices.EqualFunc(got, want, discovery.Node.Equal) {
			return
		}
	}
	t.Fatalf("Nodes(%s) = %+v, %v; want %+v", s, got, err, want)
}

// wantSet receives until the wanted set comes.
func wantSet(t *testing.T, sets <-chan []discovery.Node, want ...discovery.Node) {
	t.Helper()
	patience := time.NewTimer(Patience)
	defer patience.Stop()
	var last []discovery.Node
	for {
		select {
		case set, ok := <-sets:
			if !ok {
				t.Fatal("watch closed")
			}
			if slices.EqualFunc(set, want, discovery.Node.Equal) {
				return
			}
			last = set
		case <-patience.C:
			t.Fatalf("watch ended with %+v, want %+v", last, want)
		}
	}
}

func wantClosed[T any](t *testing.T, ch <-chan T) {
	t.Helper()
	patience := time.NewTimer(Patience)
	defer patience.Stop()
	for {
		select {
		case _, ok := <-ch:
			if !ok {
				return
			}
		case <-patience.C:
			t.Fatal("watch was not closed")
		}
	}
}

func visible(t *testing.T, e env) {
	n := discovery.Node{
		ID: "node-1-sequencer", Service: discovery.Sequencer, Address: Serve(t), Zone: "zone-a",
		Meta: map[string]string{"life": "01ARZ3NDEKTSV4RRFFQ69G5FAV", "weight": "2"},
	}
	e.register(e.ctx, t, n)
	other := e.join()
	e.wantNodes(t, other, discovery.Sequencer, n)
	nodes, err := e.r.Nodes(e.ctx, discovery.Sequencer) // first visible when Register returned
	if err != nil || len(nodes) != 1 {
		t.Fatalf("Nodes = %v, %v", nodes, err)
	}
	nodes[0].Meta["weight"] = "changed by the caller"
	e.wantNodes(t, e.r, discovery.Sequencer, n)
}

func sorted(t *testing.T, e env) {
	addr := Serve(t)
	var want []discovery.Node
	for _, id := range []string{"c", "a", "b"} {
		n := discovery.Node{ID: id, Service: discovery.Reader, Address: addr}
		e.register(e.ctx, t, n)
		want = append(want, n)
	}
	e.register(e.ctx, t, discovery.Node{ID: "aa", Service: discovery.Settler, Address: addr})
	e.wantNodes(t, e.join(), discovery.Reader, want[1], want[2], want[0])
	e.wantNodes(t, e.r, discovery.Gateway)
}

func replaces(t *testing.T, e env) {
	n := discovery.Node{ID: "a", Service: discovery.Reader, Address: Serve(t), Meta: map[string]string{"draining": "false"}}
	e.register(e.ctx, t, n)
	n.Address, n.Meta = Serve(t), map[string]string{"draining": "true"}
	e.register(e.ctx, t, n)
	e.wantNodes(t, e.join(), discovery.Reader, n)
}

func endsWithContext(t *testing.T, e env) {
	ctx, cancel := context.WithCancel(e.ctx)
	n := discovery.Node{ID: "a", Service: discovery.Reader, Address: Serve(t)}
	e.register(ctx, t, n)
	other := e.join()
	e.wantNodes(t, other, discovery.Reader, n)
	cancel()
	e.wantNodes(t, other, discovery.Reader)
}

func replacedContext(t *testing.T, e env) {
	ctx, cancel := context.WithCancel(e.ctx)
	n := discovery.Node{ID: "a", Service: discovery.Reader, Address: Serve(t)}
	e.register(ctx, t, n)
	n.Zone = "second"
	e.register(e.ctx, t, n)
	cancel()
	// A node that comes and goes shows that the end of ctx had its time.
	brief, stop := context.WithCancel(e.ctx)
	e.register(brief, t, discovery.Node{ID: "brief", Service: discovery.Cache, Address: n.Address})
	stop()
	e.wantNodes(t, e.r, discovery.Cache)
	e.wantNodes(t, e.r, discovery.Reader, n)
}

func deregister(t *testing.T, e env) {
	n := discovery.Node{ID: "a", Service: discovery.Reader, Address: Serve(t)}
	e.register(e.ctx, t, n)
	other := e.join()
	e.wantNodes(t, other, discovery.Reader, n)
	for range 2 { // one that is not there is a success
		if err := e.r.Deregister(e.ctx, n.ID); err != nil {
			t.Fatal(err)
		}
		e.wantNodes(t, other, discovery.Reader)
	}
	e.register(e.ctx, t, n)
	e.wantNodes(t, other, discovery.Reader, n)
}

func watchSends(t *testing.T, e env) {
	addr := Serve(t)
	a := discovery.Node{ID: "a", Service: discovery.Reader, Address: addr}
	b := discovery.Node{ID: "b", Service: discovery.Reader, Address: addr}
	other := e.join()
	empty, err := other.Watch(e.ctx, discovery.Reader)
	if err != nil {
		t.Fatal(err)
	}
	wantSet(t, empty)
	e.register(e.ctx, t, a)
	wantSet(t, empty, a)
	e.wantNodes(t, other, discovery.Reader, a)
	full, err := other.Watch(e.ctx, discovery.Reader)
	if err != nil {
		t.Fatal(err)
	}
	wantSet(t, full, a)
	e.register(e.ctx, t, b)
	wantSet(t, full, a, b)
	a.Meta = map[string]string{"draining": "true"}
	e.register(e.ctx, t, a)
	wantSet(t, full, a, b)
	if err := e.r.Deregister(e.ctx, "a"); err != nil {
		t.Fatal(err)
	}
	wantSet(t, full, b)
	wantSet(t, empty, b)
}

func watchNewest(t *testing.T, e env) {
	addr := Serve(t)
	slow, err := e.r.Watch(e.ctx, discovery.Reader)
	if err != nil {
		t.Fatal(err)
	}
	quick, err := e.r.Watch(e.ctx, discovery.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var n discovery.Node
	const changes = 10
	for i := range changes {
		n = discovery.Node{ID: "a", Service: discovery.Reader, Address: addr, Zone: fmt.Sprint(i)}
		e.register(e.ctx, t, n)
	}
	wantSet(t, quick, n)
	for i := 0; ; i++ { // sets on their way before may still come, but not a queue of them
		set := <-slow
		if slices.EqualFunc(set, []discovery.Node{n}, discovery.Node.Equal) {
			break
		}
		if i > 2 {
			t.Fatalf("a slow watcher got old set number %d: %+v", i, set)
		}
	}
}

func watchCloses(t *testing.T, e env) {
	ctx, cancel := context.WithCancel(e.ctx)
	nodes, err := e.r.Watch(ctx, discovery.Reader)
	if err != nil {
		t.Fatal(err)
	}
	hints, err := e.r.WatchHints(ctx)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	wantClosed(t, nodes)
	wantClosed(t, hints)
}

func closes(t *testing.T, e env) {
	addr := Serve(t)
	e.register(e.ctx, t, discovery.Node{ID: "a", Service: discovery.Reader, Address: addr})
	other := e.join()
	kept := discovery.Node{ID: "kept", Service: discovery.Reader, Address: addr}
	if err := other.Register(e.ctx, kept); err != nil {
		t.Fatal(err)
	}
	nodes, err := e.r.Watch(e.ctx, discovery.Reader)
	if err != nil {
		t.Fatal(err)
	}
	hints, err := e.r.WatchHints(e.ctx)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := e.r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	wantClosed(t, nodes)
	wantClosed(t, hints)
	e.wantNodes(t, other, discovery.Reader, kept)
	for name, err := range e.calls(e.ctx, addr) {
		if !errors.Is(err, discovery.ErrClosed) {
			t.Errorf("%s after Close: %v, want ErrClosed", name, err)
		}
	}
}

// calls makes every call once and returns the errors.
func (e env) calls(ctx context.Context, addr string) map[string]error {
	_, nodes := e.r.Nodes(ctx, discovery.Reader)
	_, watch := e.r.Watch(ctx, discovery.Reader)
	_, hints := e.r.WatchHints(ctx)
	return map[string]error{
		"Register":   e.r.Register(ctx, discovery.Node{ID: "x", Service: discovery.Reader, Address: addr}),
		"Deregister": e.r.Deregister(ctx, "x"),
		"PutHint":    e.r.PutHint(ctx, discovery.Hint{Shard: 1, Epoch: 1, Address: addr}),
		"Nodes":      nodes,
		"Watch":      watch,
		"WatchHints": hints,
	}
}

func contextEnded(t *testing.T, e env) {
	ctx, cancel := context.WithCancel(e.ctx)
	cancel()
	for name, err := range e.calls(ctx, Serve(t)) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s with an ended context: %v, want Canceled", name, err)
		}
	}
	e.wantNodes(t, e.r, discovery.Reader)
}

func invalid(t *testing.T, e env) {
	for name, n := range map[string]discovery.Node{
		"no id":      {Service: discovery.Reader, Address: "a:1"},
		"no service": {ID: "a", Address: "a:1"},
		"no address": {ID: "a", Service: discovery.Reader},
		"odd id":     {ID: "a\n", Service: discovery.Reader, Address: "a:1"},
		"long id":    {ID: strings.Repeat("a", discovery.MaxIDBytes+1), Service: discovery.Reader, Address: "a:1"},
		"odd meta":   {ID: "a", Service: discovery.Reader, Address: "a:1", Meta: map[string]string{"a b": ""}},
		"long meta":  {ID: "a", Service: discovery.Reader, Address: "a:1", Meta: map[string]string{"a": strings.Repeat("v", discovery.MaxMetaValueBytes+1)}},
	} {
		if err := e.r.Register(e.ctx, n); !errors.Is(err, discovery.ErrInvalid) {
			t.Errorf("Register with %s: %v, want ErrInvalid", name, err)
		}
	}
	for _, h := range []discovery.Hint{{Shard: 1, Address: "a:1"}, {Shard: 1, Epoch: 1}} {
		if err := e.r.PutHint(e.ctx, h); !errors.Is(err, discovery.ErrInvalid) {
			t.Errorf("PutHint(%+v): %v, want ErrInvalid", h, err)
		}
	}
}
