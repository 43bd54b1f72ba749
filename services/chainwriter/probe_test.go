package chainwriter

import (
	"context"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
)

// failing is a way to a node on which every call ends like this, or never.
type failing struct {
	grpc.ClientConnInterface

	err error
}

func (f failing) Invoke(ctx context.Context, _ string, _, _ any, _ ...grpc.CallOption) error {
	if f.err != nil {
		return f.err
	}
	<-ctx.Done()
	return status.FromContextError(ctx.Err()).Err()
}

// unreachable puts a failing connection in the place of an address.
func (c *cluster) unreachable(address string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conns[address] = failing{err: err}
}

// A second node says which life it reaches at an address, or that it reaches
// none. What it cannot tell is no answer: nobody may seal on the strength of it.
func TestProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		a, b := c.start(Config{}), c.start(Config{})
		s := a.send(t, a.open(t))
		s.entry(token(0, 1, 0))
		s.await(1, 0)
		for name, n := range map[string]*node{"itself": a, "through another": b} {
			res, err := n.Probe(t.Context(), &chainwriterpb.ProbeRequest{Address: a.address})
			if err != nil || !res.GetReached() || res.GetWriterLife() != a.svc.life.String() || res.GetSenders() != 1 {
				t.Errorf("%s: %v, %v", name, res, err)
			}
		}
		s.cancel()
		<-s.done
		synctest.Wait()
		if res, err := a.Probe(t.Context(), &chainwriterpb.ProbeRequest{}); err != nil || res.GetSenders() != 0 {
			t.Errorf("without a sender: %v, %v", res, err)
		}
		for name, way := range map[string]error{"nobody there": status.Error(codes.Unavailable, "connection refused"), "silence": nil} {
			c.unreachable(a.address, way)
			if res, err := b.Probe(t.Context(), &chainwriterpb.ProbeRequest{Address: a.address}); err != nil || res.GetReached() {
				t.Errorf("%s: %v, %v", name, res, err)
			}
		}
		c.unreachable(a.address, nil)
		ctx, cancel := context.WithTimeout(t.Context(), probePatience/2)
		defer cancel()
		if res, err := b.Probe(ctx, &chainwriterpb.ProbeRequest{Address: a.address}); err == nil {
			t.Errorf("the caller left before it was decided: %v", res)
		}
		c.unreachable(a.address, status.Error(codes.Unimplemented, "an older one"))
		for name, address := range map[string]string{"a refusal": a.address, "no such address": "inproc:nobody"} {
			if res, err := b.Probe(t.Context(), &chainwriterpb.ProbeRequest{Address: address}); err == nil {
				t.Errorf("%s: %v", name, res)
			}
		}
		b.svc.conns = nil
		if res, err := b.Probe(t.Context(), &chainwriterpb.ProbeRequest{Address: a.address}); reason.Code(err) != codes.FailedPrecondition {
			t.Errorf("without a way to others: %v, %v", res, err)
		}
		a.stop()
		b.stop()
	})
}

// A fence is passed on to the chain's writer, and is the same fence.
func TestFenceIsPassedOn(t *testing.T) {
	c := newCluster(t)
	a, b := c.start(Config{}), c.start(Config{})
	id := a.open(t)
	s := a.send(t, id)
	s.entry(token(7, 1, 0))
	s.await(1, 0)
	req := &chainwriterpb.FenceRequest{ChainId: id, Shard: 7, Epoch: 2, WriterAddress: a.address}
	first, err := b.Fence(t.Context(), req)
	if err != nil || first.GetCut() != 2 {
		t.Fatalf("%v, %v", first, err)
	}
	if again, err := a.Fence(t.Context(), req); err != nil || again.GetCut() != first.GetCut() {
		t.Errorf("asked at the writer itself: %v, %v", again, err)
	}
	req.Epoch = 1
	if _, err := b.Fence(t.Context(), req); !reason.Is(err, reason.EpochFenced) {
		t.Errorf("a lower epoch: %v", err)
	}
	c.unreachable(a.address, status.Error(codes.Unavailable, "connection refused"))
	if _, err := b.Fence(t.Context(), req); reason.Code(err) != codes.Unavailable {
		t.Errorf("nobody there: %v", err)
	}
}
