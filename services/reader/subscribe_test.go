package reader

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/rpc/wire"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// follower is a client's side of a subscription. Nothing is sent that it does
// not take.
type follower struct {
	novapb.ReadService_SubscribeServer
	w    *world
	ctx  context.Context
	got  chan *novapb.SubscribeResponse
	end  chan error
	next uint64
	hash uint64
	any  bool // records were received
}

func (f *follower) Context() context.Context { return f.ctx }

func (f *follower) SendMsg(m any) error {
	msg, taken := wire.Unwrap(m)
	select {
	case f.got <- msg.(*novapb.SubscribeResponse):
		taken()
		return nil
	case <-f.ctx.Done():
		return reason.New(reason.Code(f.ctx.Err()), "", "gone")
	}
}

func (w *world) subscribe(req *novapb.SubscribeRequest, next uint64) *follower {
	req.Bucket, req.Stream = "b", "s"
	ctx, cancel := context.WithTimeout(w.t.Context(), limit)
	f := &follower{w: w, ctx: ctx, got: make(chan *novapb.SubscribeResponse), end: make(chan error, 1), next: next}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.end <- w.svc.Subscribe(req, f)
	}()
	w.t.Cleanup(func() { cancel(); <-done })
	return f
}

// receive takes one message and checks that it follows.
func (f *follower) receive() (*novapb.SubscribeResponse, error) {
	select {
	case m := <-f.got:
		n := proto.Size(m)
		if len(m.GetRecords()) > 1 && n > 1<<20+1000 {
			return m, fmt.Errorf("a message of %d bytes", n)
		}
		for i, r := range m.GetRecords() {
			if r.GetSeq() != f.next+uint64(i) {
				return m, fmt.Errorf("record %d where %d is due", r.GetSeq(), f.next+uint64(i))
			}
		}
		f.next += uint64(len(m.GetRecords()))
		if m.GetNextSeq() != f.next {
			return m, fmt.Errorf("next is %d, not %d", m.GetNextSeq(), f.next)
		}
		if len(m.GetRecords()) > 0 {
			if f.any && m.GetHashBefore() != f.hash {
				return m, fmt.Errorf("hash %016x does not continue %016x", m.GetHashBefore(), f.hash)
			}
			f.hash, f.any = m.GetHashAfter(), true
		}
		return m, nil
	case err := <-f.end:
		f.end <- err
		if err == nil {
			err = errEnd
		}
		return nil, err
	}
}

var errEnd = errors.New("the subscription ended in order")

// upTo receives until the next number is n.
func (f *follower) upTo(n uint64) {
	f.w.t.Helper()
	for f.next < n {
		if _, err := f.receive(); err != nil {
			f.w.t.Fatalf("at %d: %v", f.next, err)
		}
	}
}

// fails receives until the subscription ends, and returns how.
func (f *follower) fails() error {
	for {
		if _, err := f.receive(); err != nil {
			return err
		}
	}
}

func TestSubscriptionCatchesUpThenFollows(t *testing.T) {
	for _, window := range []bool{true, false} {
		w, s := tenRecords(t, Config{})
		w.window = window
		f := w.subscribe(&novapb.SubscribeRequest{}, 0)
		f.upTo(10)
		for n := range 20 {
			w.chunk(s, numbered(10+2*n, 2)...)
			f.upTo(uint64(12 + 2*n))
		}
		if f.hash != uint64(s.hash) {
			t.Errorf("hash %016x, the leader says %016x", f.hash, s.hash)
		}
		w.change(s, func() { s.sealed = true })
		if err := f.fails(); !errors.Is(err, errEnd) {
			t.Errorf("the end of a sealed stream: %v", err)
		}
	}
}

func TestSubscriptionStartsAndLimits(t *testing.T) {
	w, s := tenRecords(t, Config{})
	w.change(s, func() { s.trim = 2 })
	size := uint64(len("record 0"))
	for _, c := range []struct {
		name     string
		req      *novapb.SubscribeRequest
		from, to uint64
	}{
		{"first retained", &novapb.SubscribeRequest{CountPresence: &novapb.SubscribeRequest_Count{Count: uint64(3)}}, 2, 5},
		{"number", &novapb.SubscribeRequest{Start: &novapb.SubscribeRequest_Seq{Seq: 4}, CountPresence: &novapb.SubscribeRequest_Count{Count: uint64(6)}}, 4, 10},
		{"clamp", &novapb.SubscribeRequest{Start: &novapb.SubscribeRequest_Seq{Seq: 0}, Clamp: true, CountPresence: &novapb.SubscribeRequest_Count{Count: uint64(1)}}, 2, 3},
		{"time", &novapb.SubscribeRequest{Start: &novapb.SubscribeRequest_Timestamp{Timestamp: 1051}, CountPresence: &novapb.SubscribeRequest_Count{Count: uint64(2)}}, 5, 7},
		{"last", &novapb.SubscribeRequest{Start: &novapb.SubscribeRequest_TailOffset{TailOffset: 2}, CountPresence: &novapb.SubscribeRequest_Count{Count: uint64(2)}}, 8, 10},
		{"bytes", &novapb.SubscribeRequest{BytesPresence: &novapb.SubscribeRequest_Bytes{Bytes: 2 * size}}, 2, 4},
		{"bytes 0", &novapb.SubscribeRequest{BytesPresence: &novapb.SubscribeRequest_Bytes{Bytes: uint64(0)}}, 2, 2},
		{"until", &novapb.SubscribeRequest{UntilPresence: &novapb.SubscribeRequest_Until{Until: int64(1050)}}, 2, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := w.subscribe(c.req, c.from)
			if err := f.fails(); !errors.Is(err, errEnd) || f.next != c.to {
				t.Errorf("ended at %d, want %d: %v", f.next, c.to, err)
			}
		})
	}
	want(t, w.subscribe(&novapb.SubscribeRequest{Start: &novapb.SubscribeRequest_Seq{Seq: 1}}, 1).fails(), codes.OutOfRange, reason.Trimmed)
	want(t, w.subscribe(&novapb.SubscribeRequest{Start: &novapb.SubscribeRequest_Seq{Seq: 11}}, 11).fails(), codes.OutOfRange, reason.BeyondTail)

	// A time to come: records before it are passed over when they come.
	f := w.subscribe(&novapb.SubscribeRequest{Start: &novapb.SubscribeRequest_Timestamp{Timestamp: s.time + 30}, CountPresence: &novapb.SubscribeRequest_Count{Count: uint64(2)}}, 10)
	if m, err := f.receive(); err != nil || len(m.GetRecords()) != 0 {
		t.Fatalf("%v, %v", m, err)
	}
	f.next = 12
	w.chunk(s, numbered(10, 4)...)
	if err := f.fails(); !errors.Is(err, errEnd) || f.next != 14 {
		t.Errorf("ended at %d: %v", f.next, err)
	}
}

func TestHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := tenRecords(t, Config{})
		f := w.subscribe(&novapb.SubscribeRequest{HeartbeatMs: 100}, 0)
		f.upTo(10)
		for range 3 {
			if m, err := f.receive(); err != nil || len(m.GetRecords()) != 0 || m.GetTail() != 10 || m.GetHashAfter() != 0 || m.GetStreamId() != s.id.String() {
				t.Fatalf("%v, %v", m, err)
			}
		}
		w.chunk(s, numbered(10, 1)...)
		f.upTo(11)
	})
}

// A subscription that broke goes on at next_seq by id: nothing is missing or
// doubled, and the content hashes join.
func TestSubscriptionResumes(t *testing.T) {
	w, s := tenRecords(t, Config{})
	first := w.subscribe(&novapb.SubscribeRequest{CountPresence: &novapb.SubscribeRequest_Count{Count: uint64(4)}}, 0)
	if err := first.fails(); !errors.Is(err, errEnd) {
		t.Fatal(err)
	}
	second := w.subscribe(&novapb.SubscribeRequest{StreamId: s.id.String(), Start: &novapb.SubscribeRequest_Seq{Seq: first.next}}, first.next)
	second.hash, second.any = first.hash, true
	second.upTo(10)
}

// Whoever follows a deleted stream hears so at once, and never gets the
// records of another that has the name by then.
func TestSubscriptionOfDeletedStream(t *testing.T) {
	for _, again := range []bool{false, true} {
		w, s := tenRecords(t, Config{})
		f := w.subscribe(&novapb.SubscribeRequest{HeartbeatMs: 60000}, 0)
		f.upTo(10)
		if again {
			young := w.create("s")
			w.chunk(young, numbered(0, 20)...)
		}
		w.change(s, func() { s.deleted = true })
		want(t, f.fails(), codes.NotFound, reason.StreamNotFound)
		if f.next != 10 {
			t.Errorf("it went on to %d", f.next)
		}
	}
}

// A leader that moves is waited for, and the subscription goes on where it was;
// one that does not come back is told.
func TestSubscriptionWaitsForLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := tenRecords(t, Config{Patience: limit})
		f := w.subscribe(&novapb.SubscribeRequest{HeartbeatMs: 60000}, 0)
		f.upTo(10)
		asked := func() int {
			w.mu.Lock()
			defer w.mu.Unlock()
			return len(w.fetches)
		}
		before := asked()
		w.change(s, func() { w.down = reason.New(codes.Unavailable, reason.NoLeader, "moves") })
		eventually(t, "it asks again", func() bool { return asked() >= before+2 })
		w.change(s, func() { w.down = nil })
		w.chunk(s, numbered(10, 3)...)
		f.upTo(13)

		w, s = tenRecords(t, Config{Patience: 100 * time.Millisecond})
		f = w.subscribe(&novapb.SubscribeRequest{HeartbeatMs: 60000}, 0)
		f.upTo(10)
		w.change(s, func() { w.down = reason.New(codes.Unavailable, reason.NoLeader, "gone") })
		want(t, f.fails(), codes.Unavailable, reason.NoLeader)
	})
}

// A trim that passes a slow subscription is no gap that it could miss.
func TestTrimPassesSubscription(t *testing.T) {
	w, s := tenRecords(t, Config{})
	w.most = 1
	f := w.subscribe(&novapb.SubscribeRequest{}, 0)
	f.upTo(1)
	w.change(s, func() { s.trim = 9 })
	err := f.fails()
	want(t, err, codes.OutOfRange, reason.Trimmed)
	if first, _ := reason.Number(err, reason.KeyFirstSeq); first != 9 || f.next > 6 {
		t.Errorf("first is %d, it was at %d", first, f.next)
	}
}

func TestSubscriptionMeetsDamage(t *testing.T) {
	w, s := tenRecords(t, Config{})
	w.most = 1
	w.replace(s, 2, func(b []byte) []byte { b[s.pieces[2].GetAt().GetOffset()+70] ^= 4; return b })
	f := w.subscribe(&novapb.SubscribeRequest{}, 0)
	err := f.fails()
	want(t, err, codes.DataLoss, reason.ChecksumMismatch)
	wantNoNames(t, err, s)
	if f.next != 3 {
		t.Errorf("it was at %d, want 3: what is whole comes first", f.next)
	}
	if !strings.Contains(w.log.String(), chain.SlotKey(s.chain, 2)) {
		t.Error("the log does not say where")
	}
}

// Between two fetches the history must be the same one: a leader that restarts
// its count with other records is not followed.
func TestSubscriptionMeetsAnotherHistory(t *testing.T) {
	w, s := tenRecords(t, Config{})
	f := w.subscribe(&novapb.SubscribeRequest{HeartbeatMs: 60000}, 0)
	f.upTo(10)
	w.mu.Lock()
	s.hash ^= 1
	w.mu.Unlock()
	w.chunk(s, numbered(10, 1)...)
	want(t, f.fails(), codes.DataLoss, reason.ChecksumMismatch)
	if f.next != 10 {
		t.Errorf("it went on to %d", f.next)
	}
}
