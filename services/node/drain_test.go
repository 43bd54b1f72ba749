package node

import (
	"context"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/rpc"
	"github.com/nova-stream/nova/proto/gen/nova/node/v1"
)

// drained is a part that notes when it is to drain.
type drained struct {
	part
}

func (d *drained) SetDraining(on bool) { d.diary.note("%s drains: %v", d.name, on) }

// addOn adds a service on an endpoint of its own and returns how to call it.
func (w *world) addOn(t *testing.T, s discovery.Service, p Part) nodepb.NodeServiceClient {
	t.Helper()
	endpoint, err := w.inproc.Server(string(s))
	if err != nil {
		t.Fatal(err)
	}
	w.group.Add(s, p, endpoint, "")
	conn, err := w.process.Pool.Address(endpoint.Address())
	if err != nil {
		t.Fatal(err)
	}
	return nodepb.NewNodeServiceClient(conn)
}

// shown returns how discovery shows the one node of a service.
func (w *world) shown(t *testing.T, s discovery.Service) discovery.Node {
	t.Helper()
	nodes, err := w.registry.Nodes(t.Context(), s)
	if err != nil || len(nodes) != 1 {
		t.Fatalf("nodes: %v, %v", nodes, err)
	}
	return nodes[0]
}

// A drain is told to the service and shown by discovery, of that node only, and
// can be taken back.
func TestDrain(t *testing.T) {
	w := open(t)
	seq := w.addOn(t, discovery.Sequencer, &drained{part{name: "sequencer", diary: w.diary}})
	reader := w.addOn(t, discovery.Reader, &part{name: "reader", diary: w.diary})
	eventually(t, "registered", func() bool { return w.group.Ready() == nil })
	before := w.shown(t, discovery.Sequencer)
	if before.Draining() {
		t.Fatalf("%v is draining from the start", before)
	}
	for range 2 { // the second changes nothing
		if _, err := seq.Drain(t.Context(), &nodepb.DrainRequest{NodeId: "n1.sequencer"}); err != nil {
			t.Fatal(err)
		}
		if n := w.shown(t, discovery.Sequencer); !n.Draining() || n.Address != before.Address || n.Meta["version"] != before.Meta["version"] {
			t.Errorf("draining, it is %v; before, %v", n, before)
		}
	}
	if w.shown(t, discovery.Reader).Draining() {
		t.Error("the reader of the same process is draining too")
	}
	// A service that has nothing to give away.
	if _, err := reader.Drain(t.Context(), &nodepb.DrainRequest{NodeId: "n1.reader"}); err != nil || !w.shown(t, discovery.Reader).Draining() {
		t.Errorf("the reader: %v", err)
	}
	if _, err := seq.Undrain(t.Context(), &nodepb.UndrainRequest{NodeId: "n1.sequencer"}); err != nil {
		t.Fatal(err)
	}
	if n := w.shown(t, discovery.Sequencer); !n.Equal(before) {
		t.Errorf("afterwards it is %v, was %v", n, before)
	}
	if err := w.group.Ready(); err != nil {
		t.Errorf("not ready: %v", err)
	}
	w.diary.mu.Lock()
	defer w.diary.mu.Unlock()
	want := []string{"sequencer registers", "reader registers", "sequencer drains: true", "sequencer drains: false"}
	if !slices.Equal(w.diary.lines, want) {
		t.Errorf("got  %q\nwant %q", w.diary.lines, want)
	}
}

// Whoever has another's address by now does not do as the other is told.
func TestDrainOfAnother(t *testing.T) {
	w := open(t)
	seq := w.addOn(t, discovery.Sequencer, &drained{part{name: "sequencer", diary: w.diary}})
	eventually(t, "registered", func() bool { return w.group.Ready() == nil })
	_, err := seq.Drain(t.Context(), &nodepb.DrainRequest{NodeId: "n2.sequencer"})
	if reason.Code(err) != codes.NotFound || !reason.Is(err, reason.NodeNotFound) {
		t.Errorf("drain: %v", err)
	}
	if _, err := seq.GetStats(t.Context(), &nodepb.GetStatsRequest{NodeId: "n2.sequencer"}); !reason.Is(err, reason.NodeNotFound) {
		t.Errorf("stats: %v", err)
	}
	if w.shown(t, discovery.Sequencer).Draining() {
		t.Error("it drains all the same")
	}
}

// While discovery is down the node drains, its caller is told that nobody can
// see it, and discovery learns of it later.
func TestDrainWithoutDiscovery(t *testing.T) {
	w := open(t)
	w.addOn(t, discovery.Sequencer, &drained{part{name: "sequencer", diary: w.diary}})
	eventually(t, "registered", func() bool { return w.group.Ready() == nil })
	w.registry.set(true)
	c := w.process.controls["n1.sequencer"]
	c.patience = 20 * time.Millisecond
	_, err := c.Drain(t.Context(), &nodepb.DrainRequest{NodeId: "n1.sequencer"})
	if reason.Code(err) != codes.Unavailable || !reason.Is(err, reason.NodeUnavailable) {
		t.Errorf("drain: %v", err)
	}
	w.diary.mu.Lock()
	if !slices.Contains(w.diary.lines, "sequencer drains: true") {
		t.Errorf("the service was not told: %q", w.diary.lines)
	}
	w.diary.mu.Unlock()
	w.registry.set(false)
	eventually(t, "discovery shows it", func() bool { return w.shown(t, discovery.Sequencer).Draining() })
	// What a stop of the node meets.
	w.registry.set(true)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Undrain(ctx, &nodepb.UndrainRequest{NodeId: "n1.sequencer"}); reason.Code(err) != codes.Canceled {
		t.Errorf("undrain: %v", err)
	}
}

// The figures are those of the process, also over a network, and a node of the
// same process needs no network.
func TestNodeStats(t *testing.T) {
	w := open(t)
	endpoint, err := rpc.NewServer(rpc.ServerConfig{Options: options(w.process), Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	w.group.Add(discovery.Reader, &part{name: "reader", diary: w.diary}, endpoint, "")
	eventually(t, "registered", func() bool { return w.group.Ready() == nil })
	counter, err := w.process.ServiceMeter(discovery.Reader).Int64Counter("nova.test.things")
	if err != nil {
		t.Fatal(err)
	}
	counter.Add(t.Context(), 42)
	n := w.shown(t, discovery.Reader)
	own, err := w.process.Node(n)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := own.(sameProcess); !ok {
		t.Errorf("the own node is called by %T", own)
	}
	n.ID = "another"
	far, err := w.process.Node(n)
	if err != nil {
		t.Fatal(err)
	}
	for name, client := range map[string]nodepb.NodeServiceClient{"within": own, "network": far} {
		res, err := client.GetStats(t.Context(), &nodepb.GetStatsRequest{NodeId: "n1.reader"})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := res.GetStats()["nova_test_things_total"]; got != 42 || res.GetStats()["go_goroutines"] < 1 {
			t.Errorf("%s: %v of %d figures", name, got, len(res.GetStats()))
		}
	}
}
