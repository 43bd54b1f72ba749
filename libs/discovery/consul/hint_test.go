package consul_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/discovery/consul"
	"github.com/nova-stream/nova/libs/discovery/consul/consultest"
	"github.com/nova-stream/nova/libs/discovery/discoverytest"
)

// awaitHints waits until somebody who comes now sees exactly these hints.
func awaitHints(t *testing.T, r discovery.Registry, want map[uint32]discovery.Hint) {
	t.Helper()
	watch, err := r.WatchHints(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	seen := map[uint32]discovery.Hint{}
	patience := time.After(discoverytest.Patience)
	for {
		select {
		case hints := <-watch:
			for _, h := range hints {
				seen[h.Shard] = h
			}
		case <-patience:
			t.Fatalf("%d hints seen, want %d", len(seen), len(want))
		}
		wrong := len(seen) != len(want)
		for shard, h := range want {
			wrong = wrong || seen[shard] != h
		}
		if !wrong {
			return
		}
	}
}

// A sequencer that starts puts the hints of all its shards at once. An agent
// refuses more than 200 connections of one client.
func TestManyHintsAtOnce(t *testing.T) {
	r := open(t, consul.Config{Address: consultest.Start(t), Constellation: "c"})
	const shards = 600
	want := map[uint32]discovery.Hint{}
	errs := make([]error, shards)
	var puts sync.WaitGroup
	for i := range uint32(shards) {
		h := discovery.Hint{Shard: i, Epoch: 1, Address: fmt.Sprintf("n:%d", i)}
		want[i] = h
		puts.Go(func() { errs[i] = r.PutHint(t.Context(), h) })
	}
	puts.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("%.500s", err.Error())
	}
	awaitHints(t, r, want)
}

// Hints that Consul did not take are there when it is back, though nobody puts
// them again; of each shard the newest.
func TestHintsOfAnOutageComeLater(t *testing.T) {
	agent := consultest.New(t)
	r := open(t, consul.Config{Address: agent.Address, Constellation: "c"})
	agent.Stop()
	for _, h := range []discovery.Hint{
		{Shard: 1, Epoch: 1, Address: "a:1"}, {Shard: 2, Epoch: 7, Address: "a:1"}, {Shard: 1, Epoch: 2, Address: "b:1"},
		{Shard: 2, Epoch: 6, Address: "b:1"}, {Shard: 3, Epoch: 1, Address: "a:1"}, {Shard: 3, Epoch: 1, Address: "b:1"},
	} {
		if err := r.PutHint(t.Context(), h); !errors.Is(err, discovery.ErrUnavailable) {
			t.Fatalf("PutHint without an agent: %v, want ErrUnavailable", err)
		}
	}
	agent.Start()
	awaitHints(t, r, map[uint32]discovery.Hint{
		1: {Shard: 1, Epoch: 2, Address: "b:1"}, 2: {Shard: 2, Epoch: 7, Address: "a:1"}, 3: {Shard: 3, Epoch: 1, Address: "b:1"},
	})
}

// The work on hints that wait ends with the registry.
func TestCloseWhileHintsWait(t *testing.T) {
	r, err := consul.Open(consul.Config{Address: "127.0.0.1:1", Constellation: "c"})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.PutHint(t.Context(), discovery.Hint{Shard: 1, Epoch: 1, Address: "a:1"}); !errors.Is(err, discovery.ErrUnavailable) {
		t.Fatalf("PutHint without an agent: %v, want ErrUnavailable", err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
}
