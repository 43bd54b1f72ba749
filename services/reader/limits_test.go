package reader

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/reader/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// A client that does not read holds one message and the chunk it comes
// from, not what follows, and no part of what others need.
func TestSlowSubscriberHoldsLittle(t *testing.T) {
	w := newWorld(t, Config{MemoryBytes: 4 << 20})
	s := w.create("s")
	const n = 12
	for range n {
		w.chunk(s, strings.Repeat("y", 1<<20))
	}
	slow := make([]*follower, 10) // together they would need more than there is
	for i := range slow {
		slow[i] = w.subscribe(&novapb.SubscribeRequest{}, 0)
		slow[i].upTo(1)
	}
	// All of them are stuck at the next message; nothing is reserved meanwhile.
	eventually(t, "room", func() bool {
		if !w.svc.memory.TryAcquire(4 << 20) {
			return false
		}
		w.svc.memory.Release(4 << 20)
		return true
	})
	w.mu.Lock()
	fetched, asked := w.cached, len(w.fetches)
	w.mu.Unlock()
	if most := len(slow) * (2 + w.svc.cfg.FetchAhead) * 2; fetched > most {
		t.Errorf("%d chunks of 1 MiB fetched for %d messages taken (%d fetches)", fetched, len(slow), asked)
	}
	if res, err := w.read(&novapb.ReadRequest{Start: atSeq(10)}); err != nil || len(res.GetRecords()) == 0 {
		t.Errorf("a read beside them: %v", err)
	}
	for _, f := range slow {
		f.upTo(n)
	}
}

func TestSubscriptionsAreLimited(t *testing.T) {
	w, _ := tenRecords(t, Config{MaxSubscriptions: 2})
	var open []*follower
	for range 2 {
		open = append(open, w.subscribe(&novapb.SubscribeRequest{}, 0))
		open[len(open)-1].upTo(10)
	}
	want(t, w.subscribe(&novapb.SubscribeRequest{}, 0).fails(), codes.ResourceExhausted, reason.OverBudget)
	// One that leaves makes room.
	w.svc.subscriptions.Add(-1)
	w.subscribe(&novapb.SubscribeRequest{}, 0).upTo(10)
	w.svc.subscriptions.Add(1)
}

// At the limit a read waits, then it is refused with a hint (I8); who waits at
// the tail holds nothing.
func TestMemoryForReadsIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := tenRecords(t, Config{MemoryBytes: 1 << 20, Patience: 100 * time.Millisecond})
		if !w.svc.memory.TryAcquire(1 << 20) {
			t.Fatal("something is held")
		}
		_, err := w.read(&novapb.ReadRequest{})
		want(t, err, codes.ResourceExhausted, reason.OverBudget)
		if res := w.mustRead(&novapb.ReadRequest{Start: atSeq(10), WaitMs: 10}, 10, 0); res.GetTail() != 10 {
			t.Errorf("%v", res)
		}
		w.svc.cfg.Patience = limit
		done := make(chan error, 1)
		go func() {
			_, err := w.read(&novapb.ReadRequest{})
			done <- err
		}()
		w.svc.memory.Release(1 << 20)
		if err := <-done; err != nil {
			t.Error(err)
		}
		if !w.svc.memory.TryAcquire(1 << 20) {
			t.Error("a read kept its part")
		}
	})
}

// A stop ends what would not end by itself; another reader goes on.
func TestStopEndsWhatWaits(t *testing.T) {
	w, _ := tenRecords(t, Config{})
	running, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- w.svc.Run(running) }()
	f := w.subscribe(&novapb.SubscribeRequest{HeartbeatMs: 60000}, 0)
	f.upTo(10)
	ends := make(chan error, 2)
	go func() {
		_, err := w.read(&novapb.ReadRequest{Start: atSeq(10), WaitMs: 60000})
		ends <- err
	}()
	// Verification is held up by a store that does not answer.
	hung := make(chan struct{})
	w.objects.Script(fault.Rule{Op: fault.GetRange, Nth: 1, Hook: func(ctx context.Context, _ fault.Op, _ string) error {
		close(hung)
		<-ctx.Done()
		return ctx.Err()
	}})
	go func() {
		ends <- w.svc.VerifyStream(&readerpb.VerifyStreamRequest{Bucket: "b", Stream: "s"}, &verifyStream{ctx: w.ctx()})
	}()
	<-hung
	eventually(t, "the read waits", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, r := range w.fetches {
			if r.GetWaitMs() == 60000 && r.GetMaxBytes() == pageBytes {
				return true
			}
		}
		return false
	})
	stop()
	want(t, f.fails(), codes.Unavailable, reason.NoLeader)
	for range 2 {
		want(t, <-ends, codes.Unavailable, reason.NoLeader)
	}
	if err := <-ran; err != nil {
		t.Error(err)
	}
	// What ends by itself is still served; what would last is not.
	w.mustRead(&novapb.ReadRequest{}, 0, 10)
	want(t, w.subscribe(&novapb.SubscribeRequest{}, 0).fails(), codes.Unavailable, reason.NoLeader)
}
