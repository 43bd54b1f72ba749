package chainwriter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/chain"
	metafault "github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
)

func TestExpressIsRefused(t *testing.T) {
	n := newCluster(t).start(Config{})
	_, err := n.OpenChain(t.Context(), &chainwriterpb.OpenChainRequest{Profile: uint32(stream.ProfileExpress)})
	if reason.Code(err) != codes.Unimplemented {
		t.Errorf("%v, want UNIMPLEMENTED", err)
	}
}

func TestOneChainForAllUntilItEnds(t *testing.T) {
	c := newCluster(t)
	n, other := c.start(Config{}), c.start(Config{})
	var wg sync.WaitGroup
	ids := make([]string, 8)
	for i := range ids {
		wg.Go(func() { ids[i] = n.open(t) })
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Fatalf("chains %v: at the same time there is one", ids)
		}
	}
	s := n.send(t, ids[0])
	s.entry(token(0, 1, 0))
	s.await(1, 0)
	// Anyone may seal it; its writer finds out by its next PUT.
	sealed, err := other.Seal(t.Context(), &chainwriterpb.SealRequest{ChainId: ids[0]})
	if err != nil || sealed.GetCut() != 1 {
		t.Fatal(sealed, err)
	}
	s.entry(token(0, 1, 1))
	<-s.done
	if commits, _, ended := s.told(); len(commits) != 1 || !ended || !errors.Is(s.err, io.EOF) {
		t.Errorf("%d commits, sealed %v, %v", len(commits), ended, s.err)
	}
	_, err = n.Fence(t.Context(), &chainwriterpb.FenceRequest{ChainId: ids[0], Shard: 0, Epoch: 2})
	if cut, ok := reason.Number(err, reason.KeyCut); !reason.Is(err, reason.ChainSealed) || !ok || cut != 1 {
		t.Errorf("fence in a chain that has ended: %v", err)
	}
	next := n.open(t)
	if next == ids[0] {
		t.Fatal("the ended chain is offered again")
	}
	s = n.send(t, next)
	s.entry(token(0, 2, 0))
	s.await(1, 0)
}

func TestLookupAfterAbsorb(t *testing.T) {
	c := newCluster(t)
	n := c.start(Config{})
	id := n.open(t)
	s := n.send(t, id)
	for no := range uint64(1200) {
		s.entry(token(3, 1, no))
	}
	commits, _ := s.await(1200, 0)
	cut := commits[1199].GetAt().GetSlot() + 1
	if _, err := n.AbsorbTo(t.Context(), &chainwriterpb.AbsorbToRequest{ChainId: id, To: cut}); err != nil {
		t.Fatal(err)
	}
	str, err := n.LookupEntries(t.Context(), &chainwriterpb.LookupEntriesRequest{ChainId: id, StreamIds: [][]byte{testStream[:]}, To: cut, Shard: 3})
	if err != nil {
		t.Fatal(err)
	}
	var no uint64
	for {
		page, err := str.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.GetEntries() {
			if e.GetEntryNo() != no || e.GetAt().GetSlot() != commits[no].GetAt().GetSlot() || e.GetAt().GetOffset() != commits[no].GetAt().GetOffset() {
				t.Fatalf("entry %d is %v, committed at %v", no, e, commits[no].GetAt())
			}
			no++
		}
	}
	if no != 1200 {
		t.Errorf("%d entries, want 1200", no)
	}
	// What is not in directories, any more or yet, is told apart from an outage.
	str, err = n.LookupEntries(t.Context(), &chainwriterpb.LookupEntriesRequest{ChainId: id, StreamIds: [][]byte{testStream[:]}, To: cut + 1, Shard: 3})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := str.Recv(); reason.Code(err) != codes.Unavailable || !reason.Is(err, reason.DirectoryVanished) {
		t.Errorf("entries that no directory holds: %v", err)
	}
	if _, err := n.AbsorbTo(t.Context(), &chainwriterpb.AbsorbToRequest{ChainId: id, To: cut + 1}); reason.Code(err) != codes.Unavailable {
		t.Errorf("absorb what is not committed: %v", err)
	}
	if _, err := n.Seal(t.Context(), &chainwriterpb.SealRequest{ChainId: stream.NewChainID().String()}); reason.Code(err) != codes.NotFound {
		t.Errorf("seal a chain that is not there: %v", err)
	}
	if _, err := n.Seal(t.Context(), &chainwriterpb.SealRequest{ChainId: "x"}); reason.Code(err) != codes.InvalidArgument {
		t.Errorf("seal a chain with a bad id: %v", err)
	}
}

// Case C19: the object store takes connections and never answers. Nothing is
// acknowledged, nothing hangs for longer than its caller waits, and once the
// store is back a new chain works.
func TestSilentStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		n := c.start(Config{})
		id := n.open(t)
		n.objects.Script(fault.Rule{Op: fault.Any, Do: fault.Hang})
		s := n.send(t, id)
		s.entry(token(0, 1, 0))
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if _, err := n.Fence(ctx, &chainwriterpb.FenceRequest{ChainId: id, Shard: 0, Epoch: 2}); reason.Code(err) != codes.DeadlineExceeded {
			t.Errorf("fence: %v", err)
		}
		time.Sleep(5 * time.Minute)
		if commits, _, _ := s.told(); len(commits) != 0 {
			t.Errorf("acknowledged: %v", commits)
		}
		n.objects.Clear()
		<-s.done
		if _, _, sealed := s.told(); !sealed {
			t.Error("the sender was not told that the chain has ended")
		}
		s = n.send(t, n.open(t))
		s.entry(token(0, 3, 0))
		s.await(1, 0)
		s.cancel()
		n.stop()
	})
}

// Shards take turns: one that floods the pool does not keep another waiting.
func TestShardsTakeTurns(t *testing.T) {
	w := &writer{cfg: Config{FlightBytes: 4000}.withDefaults(), shards: map[stream.Shard]*shardState{}, hurry: make(chan struct{}, 1)}
	w.changed = sync.NewCond(&w.mu)
	add := func(shard stream.Shard, no, size int) {
		it := &item{}
		it.entry.Shard, it.entry.EntryNo, it.entry.Body = shard, stream.EntryNo(no), make([]byte, size)
		w.enter(w.shard(shard), it)
	}
	for no := range 100 {
		add(1, no, 300)
	}
	add(2, 0, 300)
	add(3, 0, 3000) // more than a quarter
	next := map[stream.Shard]stream.EntryNo{}
	for flight := 0; len(w.ring) > 0; flight++ {
		size := int64(0)
		by := map[stream.Shard]int64{}
		for _, it := range w.take() {
			size += it.bytes()
			by[it.entry.Shard] += it.bytes()
			if it.entry.EntryNo != next[it.entry.Shard] {
				t.Fatalf("shard %d: entry %d, want %d", it.entry.Shard, it.entry.EntryNo, next[it.entry.Shard])
			}
			next[it.entry.Shard]++
		}
		if size > 4000 || size == 0 {
			t.Errorf("flight %d has %d bytes", flight, size)
		}
		if flight == 0 && (by[1] > 1000 || by[2] == 0) {
			t.Errorf("the first flight: %v", by)
		}
		if flight > 30 {
			t.Fatal("no progress")
		}
	}
	if next[1] != 100 || next[2] != 1 || next[3] != 1 || w.waiting != 0 {
		t.Errorf("sent %v, %d bytes left", next, w.waiting)
	}
}

// Senders go on through faults, kills of the writer's chain by others, and new
// chains. What they were told is committed is in the directories, once (I2).
func TestAcknowledgedEntriesAreFoundAgain(t *testing.T) {
	for seed := range uint64(15) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 7))
			c := newCluster(t)
			n, other := c.start(Config{Lanes: 1 + r.IntN(4), HedgeAfter: 2 * time.Millisecond}), c.start(Config{})
			for range 6 {
				n.objects.Script(fault.Rule{
					Op: fault.Put, Nth: 1 + r.IntN(60), Times: 1 + r.IntN(2), Delay: time.Duration(r.IntN(5)) * time.Millisecond,
					Do: []fault.Action{fault.FailBefore, fault.LoseReply, fault.LandLate, fault.Conflict, fault.Throttle, fault.Delay, fault.Permanent}[r.IntN(7)],
				})
				n.rows.Script(metafault.Rule{Op: metafault.Any, Nth: 1 + r.IntN(60), Do: []metafault.Action{
					metafault.FailBefore, metafault.LoseReply, metafault.OwnConflict, metafault.Stale,
				}[r.IntN(4)]})
			}
			acked := map[string][]*chainwriterpb.Commit{}
			for epoch := uint64(1); epoch <= 4; epoch++ {
				id := n.open(t)
				var wg sync.WaitGroup
				senders := make([]*sender, 3)
				for i := range senders {
					s := n.send(t, id)
					senders[i] = s
					wg.Go(func() {
						for no := range uint64(150) {
							s.entry(token(uint32(i), epoch, no))
						}
					})
				}
				wg.Wait()
				if _, err := other.Seal(t.Context(), &chainwriterpb.SealRequest{ChainId: id}); err != nil {
					t.Error(err)
				}
				for _, s := range senders {
					// The writer meets the SEAL at its next PUT.
					s.entry(token(9, epoch, 0))
					<-s.done
					commits, _, sealed := s.told()
					// One that came when the chain had broken is refused.
					if !sealed && !reason.Is(s.err, reason.ChainSealed) {
						t.Errorf("ended without a word: %v", s.err)
					}
					acked[id] = append(acked[id], commits...)
				}
			}
			n.objects.Land(t.Context())
			total := 0
			for id, commits := range acked {
				total += len(commits)
				c.judge(id, commits)
			}
			t.Logf("%d entries acknowledged in %d chains", total, len(acked))
		})
	}
}

func (c *cluster) judge(id string, commits []*chainwriterpb.Commit) {
	c.t.Helper()
	ctx := c.t.Context()
	store, err := chain.New(chain.Config{}, c.objects, c.catalog())
	if err != nil {
		c.t.Fatal(err)
	}
	defer store.Close()
	chainID, err := stream.ParseChainID(id)
	if err != nil {
		c.t.Fatal(err)
	}
	cut, err := store.Seal(ctx, chainID, stream.NewLifeID())
	if err != nil {
		c.t.Fatal(err)
	}
	if cut > 0 {
		if _, err := store.AbsorbTo(ctx, chainID, cut); err != nil {
			c.t.Fatal(err)
		}
	}
	type key struct {
		shard     uint32
		epoch, no uint64
	}
	found := map[key]int{}
	for shard := range stream.Shard(10) {
		located, err := store.Lookup(ctx, chainID, shard, []stream.ID{testStream}, 0, cut)
		if err != nil {
			c.t.Fatal(err)
		}
		for _, l := range located {
			if l.Shard == shard { // the stream is in every shard here
				found[key{uint32(l.Shard), uint64(l.Epoch), uint64(l.EntryNo)}]++
			}
		}
	}
	for _, m := range commits {
		if n := found[key{m.GetShard(), m.GetEpoch(), m.GetEntryNo()}]; n != 1 || m.GetAt().GetSlot() >= uint64(cut) {
			c.t.Errorf("acknowledged %v is there %d times, cut %d", m, n, cut)
		}
	}
}
