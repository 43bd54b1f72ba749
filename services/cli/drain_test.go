package cli

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// twoSequencers is a fleet in which n1 leads three shards and n2 one.
func twoSequencers(w *world) {
	w.SetFleet([]*novapb.Node{
		{NodeId: "n1", Service: "sequencer", Address: "one:1"},
		{NodeId: "n2", Service: "sequencer", Address: "two:1"},
		{NodeId: "r1", Service: "reader", Address: "three:1"},
	},
		&novapb.ShardInfo{Shard: 0, Epoch: 1, State: "serving", Leader: "one:1"},
		&novapb.ShardInfo{Shard: 1, Epoch: 1, State: "recovering", Leader: "one:1"},
		&novapb.ShardInfo{Shard: 2, Epoch: 1, State: "serving", Leader: "two:1"},
		&novapb.ShardInfo{Shard: 3, Epoch: 1, State: "released", Leader: "one:1"},
		&novapb.ShardInfo{Shard: 7, Epoch: 1, State: "serving", Leader: "one:1"},
	)
}

// begun is a command that runs meanwhile.
type begun struct {
	out, err  output
	code      chan int
	interrupt context.CancelFunc
}

func (w *world) start(t *testing.T, args ...string) *begun {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	b := &begun{code: make(chan int, 1), interrupt: cancel}
	go func() {
		b.code <- Execute(ctx, args, Streams{In: strings.NewReader(""), Out: &b.out, Err: &b.err, Environ: w.environ, notices: w.notices})
	}()
	return b
}

func (b *begun) wants(t *testing.T, code int, out, err string) {
	t.Helper()
	if got := <-b.code; got != code || !strings.Contains(b.out.String(), out) || !strings.Contains(b.err.String(), err) {
		t.Errorf("exit %d, %q, %q; want %d, %q, %q", got, b.out.String(), b.err.String(), code, out, err)
	}
	b.interrupt()
}

// Drain ends when the node leads nothing, and says meanwhile how much is left.
func TestDrainWaitsForShards(t *testing.T) {
	w := begin(t)
	twoSequencers(w)
	w.notices = time.Millisecond
	b := w.start(t, "node", "drain", "n1")
	eventually(t, "it tells what it waits for", func() bool { return strings.Contains(b.err.String(), "nova: waiting: n1 leads 3 shards\n") })
	if out := w.must(t, "", "fleet"); !strings.Contains(out, "sequencer  n1    one:1    -     true") {
		t.Errorf("while draining: %s", out)
	}
	if len(b.code) > 0 || b.out.String() != "" {
		t.Fatal("it did not wait")
	}
	w.Lead("one:1", "two:1")
	b.wants(t, 0, "n1 is drained: it leads no shard\n", "")
	if out := w.must(t, "", "node", "drain", "n1", "-o", "json"); out != `{"draining":true,"node":"n1","shards":0}`+"\n" {
		t.Errorf("again: %q", out)
	}
	if out := w.must(t, "", "node", "drain", "r1"); out != "r1 is draining\n" {
		t.Errorf("a reader: %q", out)
	}
	if out := w.must(t, "", "node", "undrain", "n1"); out != "n1 takes work again\n" {
		t.Errorf("undrain: %q", out)
	}
	if out := w.must(t, "", "fleet"); !strings.Contains(out, "sequencer  n1    one:1    -     false") {
		t.Errorf("afterwards: %s", out)
	}
}

// Without anybody who could take the shards it does not wait unless told to.
func TestDrainOfTheOnlySequencer(t *testing.T) {
	w := begin(t)
	twoSequencers(w)
	w.must(t, "", "node", "drain", "n2", "--wait=false")
	r := w.run(t, "", "node", "drain", "n1")
	if r.code != 1 || r.out != "" || !strings.Contains(r.err, "n1 is draining, but leads 3 shards that nobody else can take") {
		t.Errorf("%+v", r)
	}
	w.notices = time.Millisecond
	b := w.start(t, "node", "drain", "n1", "--wait")
	eventually(t, "it waits", func() bool { return strings.Contains(b.err.String(), "n1 leads 3 shards") })
	w.must(t, "", "node", "undrain", "n2")
	w.Lead("one:1", "two:1")
	b.wants(t, 0, "n1 is drained", "")
}

// An interrupt ends the wait and nothing else.
func TestDrainInterrupted(t *testing.T) {
	w := begin(t)
	twoSequencers(w)
	w.notices = time.Millisecond
	b := w.start(t, "node", "drain", "n1")
	eventually(t, "it waits", func() bool { return strings.Contains(b.err.String(), "n1 leads 3 shards") })
	b.interrupt()
	b.wants(t, 1, "", "interrupted; n1 goes on draining (nova node undrain n1 ends that)")
	if out := w.must(t, "", "fleet"); !strings.Contains(out, "true") {
		t.Errorf("afterwards: %s", out)
	}
}

// A node that forgot that it drains, or went, is not waited for.
func TestDrainOfANodeThatComesBack(t *testing.T) {
	w := begin(t)
	if r := w.run(t, "", "node", "drain", "n9"); r.code != 1 || !strings.Contains(r.err, "NODE_NOT_FOUND") {
		t.Errorf("unknown: %+v", r)
	}
	twoSequencers(w)
	w.notices = time.Millisecond
	b := w.start(t, "node", "drain", "n1")
	eventually(t, "it waits", func() bool { return strings.Contains(b.err.String(), "n1 leads 3 shards") })
	twoSequencers(w) // nobody is draining
	b.wants(t, 1, "", "n1 is not draining any more")
}

// A process with one service is a node by its own name, too.
func TestNodesNamedByTheirProcess(t *testing.T) {
	w := begin(t)
	w.SetFleet([]*novapb.Node{
		{NodeId: "p1.reader", Service: "reader", Address: "one:1"},
		{NodeId: "p2.reader", Service: "reader", Address: "two:1"},
		{NodeId: "p2.cache", Service: "cache", Address: "two:1"},
	})
	if out := w.must(t, "", "node", "drain", "p1"); out != "p1.reader is draining\n" {
		t.Errorf("%q", out)
	}
	if out := w.must(t, "", "node", "undrain", "p1"); out != "p1.reader takes work again\n" {
		t.Errorf("%q", out)
	}
	w.start(t, "node", "drain", "p2").wants(t, 1, "", "p2")
}

// A chain-writer is drained when no shard is written through it: the last chain
// of a shard is its present one.
func TestDrainOfAChainWriter(t *testing.T) {
	w := begin(t)
	nodes := []*novapb.Node{
		{NodeId: "w1", Service: "chain-writer", Address: "127.0.0.1:2"}, // of chain c
		{NodeId: "w2", Service: "chain-writer", Address: "two:1"},
	}
	shard := func(chains ...string) *novapb.ShardInfo {
		return &novapb.ShardInfo{Epoch: 1, State: "serving", Leader: "one:1", ChainIds: chains}
	}
	w.SetFleet(nodes, shard("a", "c"), shard("c", "b"), shard())
	w.notices = time.Millisecond
	b := w.start(t, "node", "drain", "w1")
	eventually(t, "it waits", func() bool { return strings.Contains(b.err.String(), "nova: waiting: w1 writes for 1 shards\n") })
	nodes[0].Draining = true
	w.SetFleet(nodes, shard("c", "d"), shard("c", "b"))
	b.wants(t, 0, "w1 is drained: it writes for no shard\n", "")
	w.SetFleet(nodes[:1], shard("c"))
	w.start(t, "node", "drain", "w1").wants(t, 1, "", "w1 is draining, but writes for 1 shards that nobody else can take: there is no other chain-writer")
}
