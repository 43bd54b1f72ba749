package integration

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/nova-stream/nova/libs/metastore"
	metafault "github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/services/novad"
)

// faulty is a node over a storage, with faults between them.
type faulty struct {
	objects  *fault.Store
	metadata *metafault.Store
	node     *novad.Node
}

// startFaulty starts a node; arm sets what is to happen before it opens its
// stores; appendTimeout 0 is the default. The node may fail to start: then node is nil.
func (s storage) startFaulty(t *testing.T, appendTimeout time.Duration, arm func(*faulty), args ...string) *faulty {
	t.Helper()
	f := &faulty{}
	cfg := s.config(t, args...)
	kept, keptMeta := cfg.WrapObjects, cfg.WrapMetastore
	f.objects, f.metadata = fault.New(nil), metafault.New(nil)
	cfg.WrapObjects = func(own objectstore.Store) objectstore.Store {
		f.objects = fault.New(kept(own))
		if f.metadata != nil && arm != nil {
			arm(f)
		}
		return f.objects
	}
	cfg.WrapMetastore = func(own metastore.Store) metastore.Store {
		f.metadata = metafault.New(keptMeta(own))
		return f.metadata
	}
	// Who runs in a dead process hears no answers; its stop need not wait for them.
	cfg.Sequencer.AppendTimeout = appendTimeout
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if n, err := novad.Start(ctx, cfg); err == nil {
		f.node = n
	}
	return f
}

// crashLoad appends through two producers and trims until the store dies.
func crashLoad(t *testing.T, f *faulty, producers []*producer) {
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Second)
	defer stop()
	go func() {
		select {
		case <-f.objects.Killed():
		case <-f.metadata.Killed():
		case <-ctx.Done():
		}
		// What the dead node still answers from memory is of interest too.
		time.AfterFunc(20*time.Millisecond, stop)
	}()
	conn := connect(t, f.node.Addr())
	defer conn.Close()
	c := clientOf(conn)
	var work sync.WaitGroup
	for _, p := range producers {
		work.Go(func() {
			for ctx.Err() == nil {
				call, cancel := context.WithCancel(ctx)
				if err := p.run(call, c); err != nil {
					t.Error(err)
				}
				cancel()
			}
		})
	}
	work.Wait()
}

// The process dies at its n-th operation on a store, before or after it takes
// effect: at the start, in the middle of appends, of absorption, of the taking
// over of its shards from the life before. What was acknowledged is there (I1,
// I2); the one after serves it and goes on.
func TestCrashPoints(t *testing.T) {
	kills := []struct {
		name   string
		points []int
		arm    func(n int) func(*faulty)
	}{
		{"object before", []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 17, 20, 25, 30, 40, 60}, func(n int) func(*faulty) {
			return func(f *faulty) { f.objects.KillAt(n, fault.Before) }
		}},
		{"object after", []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 17, 20, 25, 30, 40, 60}, func(n int) func(*faulty) {
			return func(f *faulty) { f.objects.KillAt(n, fault.After) }
		}},
		{"metadata before", []int{1, 5, 12, 30, 60, 100}, func(n int) func(*faulty) {
			return func(f *faulty) { f.metadata.KillAt(n, metafault.Before) }
		}},
		{"metadata after", []int{1, 5, 12, 30, 60, 100}, func(n int) func(*faulty) {
			return func(f *faulty) { f.metadata.KillAt(n, metafault.After) }
		}},
	}
	for _, k := range kills {
		t.Run(k.name, func(t *testing.T) {
			s := newStorage()
			producers := []*producer{{id: "p0", stream: "s"}, {id: "p1", stream: "s"}}
			first := startNode(t, s.config(t, "--shards", "16"))
			awaitReady(t, first)
			dial(t, first.Addr()).create(t, "s", nil)
			stopNode(t, first)
			// One storage for all: each crash finds what those before it left.
			for i, n := range k.points {
				if testing.Short() && i%4 != 0 {
					continue // the race detector makes a node slow; the long run has them all
				}
				f := s.startFaulty(t, 500*time.Millisecond, k.arm(n), "--shards", "16", "--stop-timeout", "100ms")
				began := time.Now()
				if f.node != nil {
					crashLoad(t, f, producers)
					_ = f.node.Close() // its stores answer nothing any more
				}
				next := startNode(t, s.config(t, "--shards", "16"))
				awaitReady(t, next)
				c := dial(t, next.Addr())
				got, err := c.readAll(t.Context(), "s", 0)
				if err == nil {
					err = checkRecords(got, producers)
				}
				if err != nil {
					t.Fatalf("killed at operation %d: %v", n, err)
				}
				if n == k.points[len(k.points)-1] {
					c.mustVerify(t)
					c.append(t, uint64(len(got)), "s", "and on")
					if len(got) == 0 {
						t.Error("no crash left a record")
					}
				}
				stopNode(t, next)
				t.Logf("operation %d: %v", n, time.Since(began).Round(time.Millisecond))
			}
			t.Log(len(producers[0].acked)+len(producers[1].acked), "batches acknowledged")
		})
	}
}
