package routing_test

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/discovery/local"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/routing"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// soon is what may pass between a hint and the call that follows it; the clock
// is not a real one.
const soon = 500 * time.Millisecond

// A call that waits for a leader goes on when there is one, not at its next try.
func TestAHintWakesThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{answers: map[string]func() error{"a": fail(noLeader), "b": leads}}
		f.answers["b"] = notLeader("a", 5)
		r, registry := startIn(t, f, "a")
		var done sync.WaitGroup
		var late atomic.Int64
		for range 50 {
			done.Go(func() {
				began := time.Now()
				if err := r.Do(t.Context(), 3, call(t.Context())); err != nil {
					t.Error(err)
				}
				late.Store(max(late.Load(), int64(time.Since(began))))
			})
		}
		time.Sleep(3 * time.Second)
		f.mu.Lock()
		f.answers["b"] = leads
		before := len(f.asked)
		f.mu.Unlock()
		if err := registry.PutHint(t.Context(), discovery.Hint{Shard: 3, Epoch: 6, Address: "b"}); err != nil {
			t.Fatal(err)
		}
		done.Wait()
		if d := time.Duration(late.Load()); d > 3*time.Second {
			t.Errorf("a call went on %v after the hint", d-3*time.Second)
		}
		if asked := f.asked[before:]; len(asked) != 50 || slices.Contains(asked, "a") {
			t.Errorf("after the hint they asked %v", asked)
		}
	})
}

// However many wait for a leader, the sequencers are asked about as often.
func TestACrowdAsksNoMoreThanAFew(t *testing.T) {
	for _, c := range []struct {
		name     string
		a, b     func() error
		outcomes reason.Outcome
	}{
		{"recovering", fail(noLeader), fail(noLeader), reason.NotCommitted},
		{"they name each other", notLeader("b", 5), notLeader("a", 5), reason.NotCommitted},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fleet{answers: map[string]func() error{"a": c.a, "b": c.b}}
				r, _ := startIn(t, f, "a")
				var done sync.WaitGroup
				for range 2000 {
					done.Go(func() {
						err := r.Do(t.Context(), 3, call(t.Context()))
						if status.Code(err) != codes.Unavailable || reason.OutcomeOf(err) != c.outcomes {
							t.Errorf("got %v with outcome %q", err, reason.OutcomeOf(err))
						}
					})
					time.Sleep(2 * time.Millisecond)
				}
				done.Wait()                                // 9 s since the first
				if n := len(f.asked); n < 50 || n > 4000 { // without more thought: 30,000, and with redirects five times that
					t.Errorf("2000 calls asked %d times", n)
				}
			})
		})
	}
}

// Of one stream that fails the others of the shard are not made to wait, and
// their success does not make it ask again and again.
func TestAStreamThatFailsIsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{answers: map[string]func() error{"a": fail(noLeader), "b": leads}}
		r, _ := startIn(t, f, "a")
		var done sync.WaitGroup
		for range 20 {
			done.Go(func() { _ = r.Do(t.Context(), 3, call(t.Context())) })
		}
		time.Sleep(time.Second)
		f.mu.Lock()
		broken := len(f.asked)
		f.mu.Unlock()
		const ok = 4000
		for i := range ok {
			began := time.Now()
			if err := r.Do(t.Context(), 3, call(context.WithValue(t.Context(), served{}, true))); err != nil {
				t.Fatal(err)
			}
			if d := time.Since(began); d > soon && i > 0 { // nobody was served before the first
				t.Fatalf("one that is served waits for %v", d)
			}
			time.Sleep(time.Millisecond)
		}
		done.Wait()
		if n := len(f.asked) - broken - ok; n > 1000 {
			t.Errorf("20 calls that fail asked %d times in 4 s", n)
		}
	})
}

// A leader that hangs is left when another leads. What it was asked may have
// been done; only what may be done twice is sent to its successor.
func TestALeaderThatHangsIsLeft(t *testing.T) {
	for _, idempotent := range []bool{false, true} {
		t.Run(fmt.Sprint(idempotent), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fleet{answers: map[string]func() error{"a": fail(errHangs), "b": leads}}
				r, registry := startIn(t, f, "a")
				do := r.Do
				if idempotent {
					do = r.DoIdempotent
				}
				time.AfterFunc(7*time.Second, func() {
					_ = registry.PutHint(t.Context(), discovery.Hint{Shard: 3, Epoch: 6, Address: "b"})
				})
				began := time.Now()
				err := do(t.Context(), 3, call(t.Context()))
				switch {
				case idempotent && err != nil:
					t.Errorf("got %v", err)
				case !idempotent && (reason.OutcomeOf(err) != reason.Unknown || !reason.Is(err, reason.NoLeader)):
					t.Errorf("got %v with outcome %q", err, reason.OutcomeOf(err))
				}
				if took := time.Since(began); took < 7*time.Second || took > 7*time.Second+soon {
					t.Errorf("took %v", took)
				}
				want := "[a]"
				if idempotent {
					want = "[a b]"
				}
				if got := fmt.Sprint(f.asked); got != want {
					t.Errorf("asked %s, want %s", got, want)
				}
			})
		})
	}
}

// A hint of the same leader, or of an older one, ends nothing.
func TestHintsThatSayNothingNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		f := &fleet{answers: map[string]func() error{"a": func() error { <-release; return nil }, "b": leads}}
		r, registry := startIn(t, f, "a")
		done := make(chan error, 1)
		go func() { done <- r.Do(t.Context(), 3, call(t.Context())) }()
		for _, h := range []discovery.Hint{{Shard: 4, Epoch: 9, Address: "b"}, {Shard: 3, Epoch: 6, Address: "a"}} {
			if err := registry.PutHint(t.Context(), h); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		close(release)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A leader that is gone is not asked again because the others do not know that
// yet.
func TestADeadLeaderIsNotBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{answers: map[string]func() error{"b": notLeader("a", 5), "c": notLeader("a", 5)}}
		r, registry := startIn(t, f, "a")
		time.AfterFunc(3*time.Second, func() {
			f.mu.Lock()
			f.answers["c"] = leads
			f.mu.Unlock()
			_ = registry.PutHint(t.Context(), discovery.Hint{Shard: 3, Epoch: 6, Address: "c"})
		})
		began := time.Now()
		if err := r.Do(t.Context(), 3, call(t.Context())); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 3*time.Second+soon {
			t.Errorf("took %v", took)
		}
		if n := f.dials("a"); n > 6 {
			t.Errorf("the dead leader was called %d times in 3 s", n)
		}
	})
}

// hung is a session that is opened and whose batches are answered while answer
// says so.
func hung(opens bool, answer func() bool) func(novapb.AppendService_AppendSessionServer) error {
	return func(srv novapb.AppendService_AppendSessionServer) error {
		if _, err := srv.Recv(); err != nil {
			return err
		}
		if opens {
			if err := srv.Send(&novapb.AppendSessionResponse{Message: &novapb.AppendSessionResponse_Opened{Opened: &novapb.AppendSessionOpened{StreamId: "a"}}}); err != nil {
				return err
			}
		}
		for i := uint64(0); opens; i++ {
			_, err := srv.Recv()
			if err != nil && answer() {
				return nil //nolint:nilerr // half-closed
			}
			if err != nil || !answer() {
				break
			}
			ack := &novapb.AppendAck{FirstSeq: i, NextSeq: i + 1}
			if err := srv.Send(&novapb.AppendSessionResponse{BatchIndex: i, Message: &novapb.AppendSessionResponse_Ack{Ack: ack}}); err != nil {
				return err
			}
		}
		<-srv.Context().Done()
		return srv.Context().Err()
	}
}

// dialIn is dial with the registry.
func dialIn(t *testing.T, all ...*sequencer) (novapb.AppendServiceClient, *local.Registry) {
	t.Helper()
	registry := local.New()
	return dialOn(t, registry, &names{cached: stream.NewID()}, all...), registry
}

// A session whose leader hangs ends when another leads, and says what is true of
// its batches. One that waits for nothing is left alone until it sends.
func TestASessionLeavesALeaderThatHangs(t *testing.T) {
	for _, c := range []struct {
		name string
		then func(call novapb.AppendService_AppendSessionClient) error // after the hint
		sent bool                                                      // a batch waits when the hint comes
	}{
		{"a batch waits", nil, true},
		{"a batch is sent later", func(call novapb.AppendService_AppendSessionClient) error {
			return call.Send(message(&novapb.AppendSessionBatch{}))
		}, false},
		{"it is closed", func(call novapb.AppendService_AppendSessionClient) error { return call.CloseSend() }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hangs := atomic.Bool{}
				a := &sequencer{session: hung(true, func() bool { return !hangs.Load() })}
				client, registry := dialIn(t, a, &sequencer{session: echo})
				call, err := client.AppendSession(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, m := range []any{&novapb.AppendSessionOpen{Stream: "log"}, &novapb.AppendSessionBatch{}} {
					if err := call.Send(message(m)); err != nil {
						t.Fatal(err)
					}
					if _, err := call.Recv(); err != nil {
						t.Fatal(err)
					}
				}
				hangs.Store(true)
				if c.sent {
					if err := call.Send(message(&novapb.AppendSessionBatch{})); err != nil {
						t.Fatal(err)
					}
				}
				ended := make(chan error, 1)
				go func() {
					_, err := call.Recv()
					ended <- err
				}()
				time.Sleep(20 * time.Second)
				if err := registry.PutHint(t.Context(), discovery.Hint{Shard: 3, Epoch: 2, Address: "inproc:b"}); err != nil {
					t.Fatal(err)
				}
				if c.then != nil {
					time.Sleep(time.Minute)
					select {
					case err := <-ended:
						t.Fatalf("it ended although nothing was owed: %v", err)
					default:
					}
					if err := c.then(call); err != nil {
						t.Fatal(err)
					}
				}
				began := time.Now()
				err = <-ended
				if status.Code(err) != codes.Unavailable || !reason.Is(err, reason.NoLeader) || reason.OutcomeOf(err) != reason.Unknown {
					t.Errorf("it ended with %v, outcome %q", err, reason.OutcomeOf(err))
				}
				if took := time.Since(began); took > soon {
					t.Errorf("it ended after %v", took)
				}
			})
		})
	}
}

// A leader that was replaced and still answers ends its session itself.
func TestASessionStaysWhileItIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, registry := dialIn(t, &sequencer{session: echo}, &sequencer{session: echo})
		call, err := client.AppendSession(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i := range 10 {
			m := message(&novapb.AppendSessionBatch{})
			if i == 0 {
				m = message(&novapb.AppendSessionOpen{Stream: "log"})
			}
			if i == 5 {
				if err := registry.PutHint(t.Context(), discovery.Hint{Shard: 3, Epoch: 2, Address: "inproc:b"}); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}
			if err := call.Send(m); err != nil {
				t.Fatal(err)
			}
			if _, err := call.Recv(); err != nil {
				t.Fatalf("answer %d: %v", i, err)
			}
			time.Sleep(time.Second)
		}
		if err := call.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if _, err := call.Recv(); err != io.EOF { //nolint:errorlint // as it is
			t.Errorf("the end is %v", err)
		}
	})
}

// One that is slow and answers all the same is not taken for one that hangs.
func TestASlowLeaderIsNotLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := func() bool {
			time.Sleep(200 * time.Millisecond)
			return true
		}
		client, registry := dialIn(t, &sequencer{session: hung(true, slow)}, &sequencer{session: echo})
		call, err := client.AppendSession(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := call.Send(message(&novapb.AppendSessionOpen{Stream: "log"})); err != nil {
			t.Fatal(err)
		}
		const batches = 10
		sent := make(chan error, 1)
		go func() {
			for range batches {
				if err := call.Send(message(&novapb.AppendSessionBatch{})); err != nil {
					sent <- err
					return
				}
			}
			sent <- call.CloseSend()
		}()
		if err := registry.PutHint(t.Context(), discovery.Hint{Shard: 3, Epoch: 2, Address: "inproc:b"}); err != nil {
			t.Fatal(err)
		}
		for i := range batches + 1 {
			if _, err := call.Recv(); err != nil {
				t.Fatalf("answer %d: %v", i, err)
			}
		}
		if err := <-sent; err != nil {
			t.Error(err)
		}
		if _, err := call.Recv(); err != io.EOF { //nolint:errorlint // as it is
			t.Errorf("the end is %v", err)
		}
	})
}

// Nothing is lost when the leader hangs before it opened the session: it opens
// at the next one.
func TestASessionOpensElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, registry := dialIn(t, &sequencer{session: hung(false, nil)}, &sequencer{session: echo})
		time.AfterFunc(5*time.Second, func() {
			_ = registry.PutHint(t.Context(), discovery.Hint{Shard: 3, Epoch: 2, Address: "inproc:b"})
		})
		began := time.Now()
		call, err := client.AppendSession(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := call.Send(message(&novapb.AppendSessionOpen{Stream: "log"})); err != nil {
			t.Fatal(err)
		}
		if m, err := call.Recv(); err != nil || m.GetOpened().GetStreamId() != "id" {
			t.Errorf("opened: %v, %v", m, err)
		}
		if took := time.Since(began); took > 5*time.Second+soon {
			t.Errorf("it opened after %v", took)
		}
		if err := call.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if _, err := call.Recv(); err != io.EOF { //nolint:errorlint // as it is
			t.Errorf("the end is %v", err)
		}
	})
}

// startIn is start with the registry.
func startIn(t *testing.T, f *fleet, hint string) (*routing.Router, *local.Registry) {
	registry := local.New()
	return startOn(t, registry, f, hint), registry
}
