package chainwriter

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// ended waits until the call has ended, and wants it to say that its chain did,
// after a number of commits.
func (s *sender) ended(commits int) {
	s.t.Helper()
	select {
	case <-s.done:
	case <-time.After(time.Minute):
		s.t.Fatal("the senders of a chain that takes nothing are kept")
	}
	if c, _, sealed := s.told(); len(c) != commits || !sealed || !errors.Is(s.err, io.EOF) {
		s.t.Fatalf("%d commits, sealed %v, %v; want %d and the end of the chain", len(c), sealed, s.err, commits)
	}
}

func (c *cluster) chain(id string) *indexpb.Chain {
	c.t.Helper()
	r, _, err := c.catalog().GetChain(context.Background(), id)
	if err != nil {
		c.t.Fatal(err)
	}
	return r
}

// works wants an entry to be committed in the chain that is offered.
func (n *node) works(t testing.TB) string {
	t.Helper()
	id := n.open(t)
	s := n.send(t, id)
	s.entry(token(0, 1, 0))
	s.await(1, 0)
	s.cancel()
	return id
}

// A chain whose objects are refused, and which therefore cannot be sealed
// either, is not offered any more; its senders go on in another one, and it is
// sealed once that is possible.
func TestBrokenChainIsNotOffered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		n := c.start(Config{})
		id := n.open(t)
		s, idle := n.send(t, id), n.send(t, id)
		s.entry(token(0, 1, 0))
		s.await(1, 0)
		n.objects.Script(fault.Rule{Op: fault.PutIfAbsent, Prefix: "chain/" + id, Do: fault.Permanent})
		start := time.Now()
		s.entry(token(0, 1, 1))
		s.ended(1)
		idle.ended(0)
		if took := time.Since(start); took > sealPatience+time.Second {
			t.Errorf("the senders of a chain that takes nothing were kept for %v", took)
		}
		if _, err := n.Fence(t.Context(), &chainwriterpb.FenceRequest{ChainId: id, Shard: 0, Epoch: 2}); !reason.Is(err, reason.ChainSealed) {
			t.Errorf("a fence: %v", err)
		}
		if next := n.works(t); next == id {
			t.Fatal("the chain that broke is offered again")
		}
		if r := c.chain(id); r.GetState() != indexpb.ChainState_CHAIN_STATE_OPEN {
			t.Fatalf("the store refuses, and yet: %v", r)
		}
		n.objects.Clear()
		time.Sleep(2 * time.Minute)
		if r := c.chain(id); r.GetState() != indexpb.ChainState_CHAIN_STATE_SEALED || r.GetCut() != 1 || n.svc.unsealedChains() != 0 {
			t.Errorf("not sealed in the background: %v, %d left", r, n.svc.unsealedChains())
		}
		n.stop()
	})
}

// Foreign bytes in a slot break that chain for ever, and no other.
func TestForeignBytesEndOneChainOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		n := c.start(Config{})
		id := n.open(t)
		chainID, err := stream.ParseChainID(id)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.objects.PutIfAbsent(t.Context(), chain.SlotKey(chainID, 1), make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		s := n.send(t, id)
		s.entry(token(0, 1, 0))
		s.await(1, 0)
		s.entry(token(0, 1, 1))
		s.ended(1)
		next := n.works(t)
		if next == id {
			t.Fatal("the chain that broke is offered again")
		}
		// Its first slot, which proved the store, is absorbed like any other.
		if res, err := n.AbsorbTo(t.Context(), &chainwriterpb.AbsorbToRequest{ChainId: next, To: 2}); err != nil || res.GetAbsorbedTo() != 2 {
			t.Errorf("absorbed: %v, %v", res, err)
		}
		time.Sleep(time.Hour)
		if again := n.open(t); again != next || n.svc.unsealedChains() != 1 {
			t.Errorf("an hour later: chain %s after %s, %d left to seal", again, next, n.svc.unsealedChains())
		}
		n.stop()
	})
}

// While the store refuses everything, sequencers are sent elsewhere, and what is
// left behind is bounded (I8) and cleared away afterwards.
func TestRefusingStoreIsSaid(t *testing.T) {
	for name, do := range map[string]fault.Action{"403": fault.Permanent, "silence": fault.Hang} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t)
				n := c.start(Config{})
				s := n.send(t, n.open(t))
				s.entry(token(0, 1, 0))
				s.await(1, 0)
				n.objects.Script(fault.Rule{Op: fault.Any, Do: do})
				s.entry(token(0, 1, 1))
				s.ended(1)
				for until := time.Now().Add(time.Hour); time.Now().Before(until); time.Sleep(time.Second) {
					start := time.Now()
					_, err := n.OpenChain(t.Context(), &chainwriterpb.OpenChainRequest{Profile: uint32(stream.ProfileStandard)})
					if !reason.Is(err, reason.StorageDown) {
						t.Fatalf("a chain was offered: %v", err)
					}
					if took := time.Since(start); took > proofPatience+sealPatience {
						t.Fatalf("it took %v to say so", took)
					}
				}
				if left := n.svc.unsealedChains(); left != maxUnsealed {
					t.Errorf("%d chains to seal", left)
				}
				n.objects.Clear()
				time.Sleep(2 * time.Minute)
				n.works(t)
				if left := n.svc.unsealedChains(); left != 0 {
					t.Errorf("%d chains are not sealed", left)
				}
				n.stop()
			})
		})
	}
}

// A writer freezes with entries on the wire and senders connected; meanwhile its
// chain is sealed. Whenever it goes on, it commits nothing that lies beyond the
// cut, and what it says of the rest is the truth (I4).
func TestFrozenWriterToldNobody(t *testing.T) {
	for _, landed := range []uint64{0, 1, 2} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t)
			n, other := c.start(Config{HedgeAfter: -1}), c.start(Config{})
			id := n.open(t)
			chainID, err := stream.ParseChainID(id)
			if err != nil {
				t.Fatal(err)
			}
			frozen := make(chan struct{})
			freeze := func(ctx context.Context, _ fault.Op, _ string) error {
				select {
				case <-frozen:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			// What it sent in time lands, and it does not hear of that.
			for slot := range landed {
				n.objects.Script(fault.Rule{Op: fault.PutIfAbsent, Prefix: chain.SlotKey(chainID, stream.Slot(slot)), Nth: 1, Do: fault.HangAfter})
			}
			n.objects.Script(fault.Rule{Op: fault.Any, Prefix: "chain/", Hook: freeze})
			senders := []*sender{n.send(t, id), n.send(t, id)}
			for no := range uint64(3) {
				for i, s := range senders {
					s.entry(token(uint32(i), 1, no))
				}
				time.Sleep(2 * gatherTime) // a flight of their own
				synctest.Wait()
			}
			sealed, err := other.Seal(t.Context(), &chainwriterpb.SealRequest{ChainId: id})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Second)
			for _, s := range senders {
				if commits, _, over := s.told(); len(commits) != 0 || over {
					t.Fatalf("told while frozen: %v, %v", commits, over)
				}
			}
			close(frozen)
			total := 0
			for _, s := range senders {
				<-s.done
				commits, _, over := s.told()
				if !over {
					t.Errorf("not told that the chain has ended: %v", s.err)
				}
				for _, m := range commits {
					if m.GetAt().GetSlot() >= sealed.GetCut() {
						t.Errorf("acknowledged %v, the cut is %d", m, sealed.GetCut())
					}
				}
				c.judge(id, commits)
				total += len(commits)
			}
			if sealed.GetCut() != landed || total < int(landed) {
				t.Errorf("%d slots landed: the cut is %d, %d entries are acknowledged", landed, sealed.GetCut(), total)
			}
			n.stop()
			other.stop()
		})
	}
}
