package reader

import (
	"context"
	"io"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/rpc/wire"
	"github.com/nova-stream/nova/proto/gen/nova/reader/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// puller is who asks for the messages of a subscription one by one.
type puller struct {
	readerpb.ReaderService_FollowServer
	ctx  context.Context
	asks chan *readerpb.FollowRequest
	got  chan *readerpb.FollowResponse
	end  chan error
}

func (p *puller) Context() context.Context { return p.ctx }

func (p *puller) Recv() (*readerpb.FollowRequest, error) {
	select {
	case m := <-p.asks:
		return m, nil
	case <-p.ctx.Done():
		return nil, io.EOF
	}
}

func (p *puller) Send(m *readerpb.FollowResponse) error { return p.SendMsg(m) }

func (p *puller) SendMsg(m any) error {
	msg, taken := wire.Unwrap(m)
	select {
	case p.got <- msg.(*readerpb.FollowResponse):
		taken()
		return nil
	case <-p.ctx.Done():
		return reason.New(reason.Code(p.ctx.Err()), "", "gone")
	}
}

// pull follows the stream s from a number on.
func (w *world) pull(from uint64) *puller {
	ctx, cancel := context.WithTimeout(w.t.Context(), limit)
	p := &puller{ctx: ctx, asks: make(chan *readerpb.FollowRequest, 1), got: make(chan *readerpb.FollowResponse), end: make(chan error, 1)}
	p.asks <- &readerpb.FollowRequest{Subscribe: &novapb.SubscribeRequest{Bucket: "b", Stream: "s", Start: &novapb.SubscribeRequest_Seq{Seq: from}}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.end <- w.svc.Follow(p)
	}()
	w.t.Cleanup(func() { cancel(); <-done })
	return p
}

// ask asks for a message and returns what comes.
func (p *puller) ask(t *testing.T, room uint64) *readerpb.FollowResponse {
	t.Helper()
	p.asks <- &readerpb.FollowRequest{Room: room}
	return p.take(t)
}

func (p *puller) take(t *testing.T) *readerpb.FollowResponse {
	t.Helper()
	select {
	case m := <-p.got:
		return m
	case err := <-p.end:
		t.Fatalf("the subscription ended: %v", err)
	}
	return nil
}

// dense is a body that is not compressed: what compresses is made once for the
// process, and not in a bubble.
func dense(n int) string { return string(noise(rand.New(rand.NewPCG(1, 1)), n)) }

// A subscription whose peer must first find room for a large record does not hold
// what was fetched, uncounted or for long (I8).
func TestWhatWaitsForRoomIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const floor = 2 * wire.LeastMessage
		w, s := tenRecords(t, Config{})
		w.chunk(s, dense(1<<20), dense(1<<20), dense(1<<20))
		p := w.pull(10)
		need := p.ask(t, wire.LeastMessage).GetNeeds()
		synctest.Wait()
		if used := w.svc.delivery.Used(); need < 1<<20 || used < 3<<20 {
			t.Fatalf("needs %d; %d bytes are counted", need, used)
		}
		fetches := func() int {
			w.mu.Lock()
			defer w.mu.Unlock()
			return len(w.fetches)
		}
		before := fetches()
		time.Sleep(2 * keepFetched)
		synctest.Wait()
		if used := w.svc.delivery.Used(); used != floor {
			t.Errorf("%d bytes are held for a peer that does not ask", used)
		}
		for seq := uint64(10); seq < 13; seq++ {
			m := p.ask(t, need).GetMessage()
			if len(m.GetRecords()) != 1 || m.GetRecords()[0].GetSeq() != seq {
				t.Fatalf("%d records, next is %d, want %d", len(m.GetRecords()), m.GetNextSeq(), seq)
			}
		}
		if got := fetches() - before; got != 1 {
			t.Errorf("fetched %d times", got)
		}
	})
}

// Subscriptions never wait for each other's room with what each keeps for its next
// message: it is fetched again.
func TestWhoWaitsForRoomHoldsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const records, size = 100, 10_000
		kept := int64(records * (size + recordCost))
		w, s := tenRecords(t, Config{DeliveryBytes: 2*kept + 10_000})
		var bodies []string
		for range records {
			bodies = append(bodies, dense(size))
		}
		w.chunk(s, bodies...)
		both := []*puller{w.pull(10), w.pull(10)}
		for _, p := range both {
			if m := p.ask(t, wire.LeastMessage).GetMessage(); m.GetNextSeq() != 11 {
				t.Fatalf("next is %d", m.GetNextSeq())
			}
			synctest.Wait()
		}
		if used := w.svc.delivery.Used(); used != 2*kept {
			t.Fatalf("%d bytes are kept, want %d", used, 2*kept)
		}
		start := time.Now()
		for _, p := range both {
			p.asks <- &readerpb.FollowRequest{Room: wire.LeastMessage}
		}
		synctest.Wait()
		for _, p := range both {
			if m := p.take(t).GetMessage(); m.GetNextSeq() != 12 {
				t.Errorf("next is %d", m.GetNextSeq())
			}
		}
		if took := time.Since(start); took > 0 {
			t.Errorf("they waited %v for each other", took)
		}
	})
}
