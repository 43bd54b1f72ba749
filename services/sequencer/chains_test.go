package sequencer

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"

	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
)

// absorber notes what it is asked to absorb, and does it when it is let.
type absorber struct {
	chainwriterpb.ChainWriterServiceClient
	let chan struct{}

	mu    sync.Mutex
	asked []uint64
}

func (a *absorber) AbsorbTo(_ context.Context, req *chainwriterpb.AbsorbToRequest, _ ...grpc.CallOption) (*chainwriterpb.AbsorbToResponse, error) {
	a.mu.Lock()
	a.asked = append(a.asked, req.GetTo())
	a.mu.Unlock()
	<-a.let
	return &chainwriterpb.AbsorbToResponse{AbsorbedTo: req.GetTo()}, nil
}

// Shards that recover from one chain at once wait for few absorptions: the one
// that is under way, and one more for all that came meanwhile.
func TestRecoveriesShareAbsorptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newChains(nil)
		a := &absorber{let: make(chan struct{})}
		var waiting sync.WaitGroup
		for to := stream.Slot(1); to <= 20; to++ {
			waiting.Go(func() {
				if err := c.absorb(t.Context(), a, "chain", to); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		close(a.let)
		waiting.Wait()
		if want := []uint64{1, 20}; !slices.Equal(a.asked, want) {
			t.Errorf("asked to absorb to %v, want %v", a.asked, want)
		}
	})
}
