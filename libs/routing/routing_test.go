package routing_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/discovery/local"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/routing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fleet is sequencers by address: what each answers, and who was asked.
type fleet struct {
	grpc.ClientConnInterface
	answers map[string]func() error

	mu      sync.Mutex
	asked   []string
	dialled []string // also those that are not there
}

// dials is how often an address was tried.
func (f *fleet) dials(address string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, a := range f.dialled {
		if a == address {
			n++
		}
	}
	return n
}

// served in a call's context: it is answered well by everybody.
type served struct{}

type conn struct {
	grpc.ClientConnInterface
	fleet   *fleet
	address string
}

func (f *fleet) Address(address string) (grpc.ClientConnInterface, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dialled = append(f.dialled, address)
	if _, ok := f.answers[address]; !ok {
		return nil, fmt.Errorf("no route to %s", address)
	}
	return conn{fleet: f, address: address}, nil
}

// Invoke answers; whoever hangs does so until ctx ends.
func (c conn) Invoke(ctx context.Context, _ string, _, _ any, _ ...grpc.CallOption) error {
	f := c.fleet
	f.mu.Lock()
	f.asked = append(f.asked, c.address)
	answer := f.answers[c.address]
	f.mu.Unlock()
	if ctx.Value(served{}) != nil {
		return nil
	}
	err := answer()
	if errors.Is(err, errHangs) {
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	return err
}

var errHangs = errors.New("hangs")

// call is one call with ctx.
func call(ctx context.Context) func(grpc.ClientConnInterface) error {
	return func(c grpc.ClientConnInterface) error { return c.Invoke(ctx, "m", nil, nil) }
}

func notLeader(address string, epoch uint64) func() error {
	return func() error {
		return reason.New(codes.FailedPrecondition, reason.NotLeader, "not the leader", reason.KeyAddress, address, reason.KeyEpoch, reason.Text(epoch))
	}
}

func fail(err error) func() error { return func() error { return err } }

func leads() error { return nil }

var (
	noLeader = reason.WithOutcome(reason.New(codes.Unavailable, reason.NoLeader, "recovering"), reason.NotCommitted)
	undone   = reason.WithOutcome(status.Error(codes.Unavailable, "storage is slow"), reason.NotCommitted)
	perhaps  = reason.WithOutcome(status.Error(codes.Unavailable, "storage is slow"), reason.Unknown)
	// What a leader says of entries it had sent when it lost the shard.
	deposed    = reason.WithOutcome(reason.New(codes.FailedPrecondition, reason.NotLeader, "not here", reason.KeyAddress, "b", reason.KeyEpoch, "9"), reason.Unknown)
	leaderless = reason.WithOutcome(reason.New(codes.Unavailable, reason.NoLeader, "it let the shard go"), reason.Unknown)
	gone       = status.Error(codes.Unavailable, "connection reset")
	mismatch   = reason.WithOutcome(reason.New(codes.FailedPrecondition, reason.SeqMismatch, "no"), reason.NotCommitted)
	exhausted  = reason.WithOutcome(reason.Over("pool", "full", time.Second), reason.NotCommitted)
)

// times answers err n times, then nil.
func times(n int, err error) func() error {
	return func() error {
		if n--; n >= 0 {
			return err
		}
		return nil
	}
}

func TestDo(t *testing.T) {
	for _, c := range []struct {
		name       string
		answers    map[string]func() error
		hint       string // with epoch 5
		idempotent bool
		code       codes.Code
		outcome    reason.Outcome
		asked      int           // 0: any number
		min, max   time.Duration // that it takes
	}{
		{name: "the hint is right", answers: map[string]func() error{"a": leads, "b": notLeader("a", 5)}, hint: "a", asked: 1},
		{name: "no hint: any of them redirects", answers: map[string]func() error{"a": leads, "b": notLeader("a", 5), "c": notLeader("a", 5)}, max: time.Millisecond},
		{name: "a stale hint", answers: map[string]func() error{"a": notLeader("b", 6), "b": leads}, hint: "a", asked: 2, max: time.Millisecond},
		{name: "an older redirect is not followed", answers: map[string]func() error{"a": notLeader("b", 4), "b": leads}, hint: "a", min: 5 * time.Millisecond, max: time.Second},
		{name: "a redirect loop", answers: map[string]func() error{"a": notLeader("b", 6), "b": notLeader("a", 6)}, hint: "a",
			code: codes.Unavailable, outcome: reason.NotCommitted, min: 4 * time.Second, max: 5 * time.Second},
		{name: "recovering", answers: map[string]func() error{"a": times(4, noLeader)}, hint: "a", asked: 5, min: 50 * time.Millisecond, max: time.Second},
		{name: "never a leader", answers: map[string]func() error{"a": fail(noLeader)}, hint: "a",
			code: codes.Unavailable, outcome: reason.NotCommitted, min: 4 * time.Second, max: 5 * time.Second},
		{name: "not committed", answers: map[string]func() error{"a": times(1, undone)}, hint: "a", asked: 2, max: time.Second},
		{name: "unknown is not repeated", answers: map[string]func() error{"a": times(1, perhaps)}, hint: "a", asked: 1, code: codes.Unavailable, outcome: reason.Unknown},
		{name: "unknown after a takeover is not repeated", answers: map[string]func() error{"a": times(1, deposed)}, hint: "a", asked: 1, code: codes.Unavailable, outcome: reason.Unknown},
		{name: "unknown without a leader is not repeated", answers: map[string]func() error{"a": times(1, leaderless)}, hint: "a", asked: 1, code: codes.Unavailable, outcome: reason.Unknown},
		{name: "unknown after a takeover, idempotent", answers: map[string]func() error{"a": times(1, deposed)}, hint: "a", idempotent: true, asked: 2, max: time.Second},
		{name: "a lost reply is not repeated", answers: map[string]func() error{"a": times(1, gone)}, hint: "a", asked: 1, code: codes.Unavailable},
		{name: "a lost reply, idempotent", answers: map[string]func() error{"a": times(1, gone)}, hint: "a", idempotent: true, asked: 2, max: time.Second},
		{name: "lost replies, idempotent", answers: map[string]func() error{"a": fail(gone)}, hint: "a", idempotent: true,
			code: codes.Unavailable, outcome: reason.Unknown, min: 4 * time.Second, max: 5 * time.Second},
		{name: "a refusal is final", answers: map[string]func() error{"a": fail(mismatch)}, hint: "a", idempotent: true, asked: 1, code: codes.FailedPrecondition, outcome: reason.NotCommitted},
		{name: "a budget is the caller's matter", answers: map[string]func() error{"a": fail(exhausted)}, hint: "a", asked: 1, code: codes.ResourceExhausted, outcome: reason.NotCommitted},
		{name: "nobody", code: codes.Unavailable, outcome: reason.NotCommitted, min: 4 * time.Second, max: 5 * time.Second},
		{name: "the hint names a node that is not there", answers: map[string]func() error{"b": leads}, hint: "a", asked: 1, max: time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fleet{answers: c.answers}
				r := start(t, f, c.hint)
				begun := time.Now()
				do := r.Do
				if c.idempotent {
					do = r.DoIdempotent
				}
				err := do(t.Context(), 3, call(t.Context()))
				if status.Code(err) != c.code || reason.OutcomeOf(err) != c.outcome || reason.Is(err, reason.NotLeader) {
					t.Errorf("got %v with outcome %q, want %s with %q", err, reason.OutcomeOf(err), c.code, c.outcome)
				}
				if c.asked != 0 && len(f.asked) != c.asked {
					t.Errorf("asked %v, want %d", f.asked, c.asked)
				}
				if took := time.Since(begun); took < c.min || c.max != 0 && took > c.max {
					t.Errorf("took %s, want %s..%s", took, c.min, c.max)
				}
				if len(f.asked) > 200 {
					t.Errorf("asked %d times", len(f.asked))
				}
			})
		})
	}
}

// start runs a router over the fleet; a hint is for shard 3, epoch 5.
func start(t *testing.T, f *fleet, hint string) *routing.Router {
	return startOn(t, local.New(), f, hint)
}

func startOn(t *testing.T, registry *local.Registry, f *fleet, hint string) *routing.Router {
	ctx, cancel := context.WithCancel(context.Background())
	for address := range f.answers {
		if err := registry.Register(ctx, discovery.Node{ID: address, Service: discovery.Sequencer, Address: address}); err != nil {
			t.Fatal(err)
		}
	}
	if hint != "" {
		if err := registry.PutHint(ctx, discovery.Hint{Shard: 3, Epoch: 5, Address: hint}); err != nil {
			t.Fatal(err)
		}
	}
	r := routing.New(routing.Config{}, routing.Deps{Conns: f, Registry: registry})
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := registry.Close(); err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
	return r
}

func TestContextEndsTheSearch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{answers: map[string]func() error{"a": fail(noLeader)}}
		r := start(t, f, "a")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := r.Do(ctx, 3, call(ctx))
		if status.Code(err) != codes.DeadlineExceeded || reason.OutcomeOf(err) != reason.NotCommitted {
			t.Errorf("got %v with outcome %q", err, reason.OutcomeOf(err))
		}
	})
}

// A leader learned from a redirect is asked first by the next call.
func TestRedirectsAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{answers: map[string]func() error{"a": notLeader("b", 7), "b": leads}}
		r := start(t, f, "a")
		for range 2 {
			if err := r.Do(t.Context(), 3, call(t.Context())); err != nil {
				t.Fatal(err)
			}
		}
		if got := fmt.Sprint(f.asked); got != "[a b b]" {
			t.Errorf("asked %s", got)
		}
	})
}
