package catalog

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// answers is an index that answers by functions; any other call panics.
type answers struct {
	indexpb.IndexServiceClient

	mu       sync.Mutex
	asked    []*indexpb.ResolveStreamRequest
	resolve  func(n int, req *indexpb.ResolveStreamRequest) (string, error)
	getChain func(n int) (*indexpb.GetChainResponse, error)
	putChain func(n int, req *indexpb.PutChainRequest) (*indexpb.PutChainResponse, error)
	gets     int
	puts     int
}

func (a *answers) ResolveStream(_ context.Context, req *indexpb.ResolveStreamRequest, _ ...grpc.CallOption) (*indexpb.ResolveStreamResponse, error) {
	a.mu.Lock()
	a.asked = append(a.asked, req)
	n := len(a.asked)
	a.mu.Unlock()
	id, err := a.resolve(n, req)
	if err != nil {
		return nil, err
	}
	return &indexpb.ResolveStreamResponse{Stream: &indexpb.StreamDescriptor{StreamId: id, Shard: 7}}, nil
}

func (a *answers) GetChain(context.Context, *indexpb.GetChainRequest, ...grpc.CallOption) (*indexpb.GetChainResponse, error) {
	a.gets++
	return a.getChain(a.gets)
}

func (a *answers) PutChain(_ context.Context, req *indexpb.PutChainRequest, _ ...grpc.CallOption) (*indexpb.PutChainResponse, error) {
	a.puts++
	return a.putChain(a.puts, req)
}

func (a *answers) calls() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.asked)
}

func newNames(t *testing.T, a *answers) *Names {
	t.Helper()
	n := NewNames(New(a))
	t.Cleanup(n.Close)
	return n
}

func TestNamesAreRememberedUntilInvalidated(t *testing.T) {
	first, second := stream.NewID(), stream.NewID()
	a := &answers{resolve: func(n int, _ *indexpb.ResolveStreamRequest) (string, error) {
		if n == 1 {
			return first.String(), nil
		}
		return second.String(), nil
	}}
	names := newNames(t, a)
	resolve := func(want stream.ID) {
		t.Helper()
		got, err := names.Resolve(t.Context(), "bucket", "s", "", ForAppend)
		if err != nil || got != (Named{ID: want, Shard: 7}) {
			t.Fatalf("got %v, %v; want %s", got, err, want)
		}
	}
	for range 5 {
		resolve(first)
	}
	names.Invalidate("bucket", "s", second)
	names.Invalidate("other", "s", first)
	resolve(first) // neither meant this one
	if a.calls() != 1 {
		t.Fatalf("the index was asked %d times", a.calls())
	}
	names.Invalidate("bucket", "s", first)
	resolve(second)
	// A late invalidation of what the name meant before does not count.
	names.Invalidate("bucket", "s", first)
	resolve(second)
	if a.calls() != 2 {
		t.Fatalf("the index was asked %d times", a.calls())
	}
}

func TestNameIsResolvedForAWantedID(t *testing.T) {
	old, now := stream.NewID(), stream.NewID()
	a := &answers{resolve: func(n int, _ *indexpb.ResolveStreamRequest) (string, error) {
		if n == 1 {
			return old.String(), nil
		}
		return now.String(), nil
	}}
	names := newNames(t, a)
	if _, err := names.Resolve(t.Context(), "bucket", "s", "", ForAppend); err != nil {
		t.Fatal(err)
	}
	got, err := names.Resolve(t.Context(), "bucket", "s", now.String(), ForAppend)
	if err != nil || got.ID != now {
		t.Fatalf("the newer stream that the caller knows: %v, %v", got, err)
	}
	if req := a.asked[1]; req.GetForAppend() || req.GetForRead() {
		t.Errorf("who knows an id would create another stream: %v", req)
	}
	_, err = names.Resolve(t.Context(), "bucket", "s", old.String(), ForAppend)
	if !reason.Is(err, reason.StreamNotFound) {
		t.Fatalf("a stream that the name meant before: %v", err)
	}
	if got, err := names.Resolve(t.Context(), "bucket", "s", now.String(), ForRead); err != nil || got.ID != now {
		t.Fatalf("%v, %v", got, err)
	}
}

// What many may share creates nothing; each of them then asks for its purpose.
func TestNameIsResolvedForItsPurpose(t *testing.T) {
	for why, want := range map[Purpose][2]bool{ForAppend: {true, false}, ForRead: {false, true}} {
		a := &answers{resolve: func(_ int, req *indexpb.ResolveStreamRequest) (string, error) {
			if !req.GetForAppend() && !req.GetForRead() {
				return "", reason.New(codes.NotFound, reason.StreamNotFound, "none")
			}
			return stream.NewID().String(), nil
		}}
		names := newNames(t, a)
		made, err := names.Resolve(t.Context(), "bucket", "s", "", why)
		if err != nil {
			t.Fatal(err)
		}
		if got := [2]bool{a.asked[1].GetForAppend(), a.asked[1].GetForRead()}; got != want {
			t.Errorf("purpose %d asks %v, want %v", why, got, want)
		}
		if again, err := names.Resolve(t.Context(), "bucket", "s", "", why); err != nil || again != made || a.calls() != 2 {
			t.Errorf("%v, %v after %d calls; want %v", again, err, a.calls(), made)
		}
		// Who knows an id creates nothing.
		_, err = names.Resolve(t.Context(), "bucket", "t", stream.NewID().String(), why)
		if !reason.Is(err, reason.StreamNotFound) || a.calls() != 3 {
			t.Errorf("%v after %d calls", err, a.calls())
		}
	}
}

// Many callers that miss a name ask the index once, and the first one's end
// does not fail the others.
func TestNameIsResolvedOnceForMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		id := stream.NewID()
		begun, hold := make(chan struct{}), make(chan struct{})
		a := &answers{resolve: func(n int, _ *indexpb.ResolveStreamRequest) (string, error) {
			if n == 1 {
				close(begun)
			}
			<-hold
			return id.String(), nil
		}}
		names := newNames(t, a)
		var wg sync.WaitGroup
		first, leave := context.WithCancel(t.Context())
		wg.Go(func() { _, _ = names.Resolve(first, "bucket", "s", "", ForAppend) })
		<-begun
		for range 30 {
			wg.Go(func() {
				if got, err := names.Resolve(t.Context(), "bucket", "s", "", ForAppend); err != nil || got.ID != id {
					t.Errorf("%v, %v", got, err)
				}
			})
		}
		leave()
		synctest.Wait()
		close(hold)
		wg.Wait()
		if a.calls() != 1 {
			t.Errorf("the index was asked %d times", a.calls())
		}
	})
}

// Who waits for a name waits as long as its own context, whoever asked; and what
// is asked ends with the names.
func TestWaitingForANameEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		defer close(hold)
		var asked atomic.Int64
		a := &answers{resolve: func(int, *indexpb.ResolveStreamRequest) (string, error) {
			asked.Add(1)
			<-hold
			return "", reason.New(codes.Unavailable, "", "down")
		}}
		names := newNames(t, a)
		for range 3 { // the one who asks, and those who wait
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			_, err := names.Resolve(ctx, "bucket", "s", "", ForAppend)
			cancel()
			if reason.Code(err) != codes.DeadlineExceeded {
				t.Fatal(err)
			}
		}
		if n := asked.Load(); n != 1 {
			t.Errorf("the index was asked %d times", n)
		}
	})
}

func TestNameThatIsNotFoundIsNotRemembered(t *testing.T) {
	id := stream.NewID()
	a := &answers{resolve: func(n int, _ *indexpb.ResolveStreamRequest) (string, error) {
		if n <= 2 {
			return "", reason.New(codes.NotFound, reason.StreamNotFound, "none")
		}
		return id.String(), nil
	}}
	names := newNames(t, a)
	if _, err := names.Resolve(t.Context(), "bucket", "s", "", ForRead); !reason.Is(err, reason.StreamNotFound) {
		t.Fatal(err)
	}
	if got, err := names.Resolve(t.Context(), "bucket", "s", "", ForRead); err != nil || got.ID != id {
		t.Fatalf("%v, %v", got, err)
	}
}

// An index that does not answer is asked again with the same attempt id, for a
// limited time (I6).
func TestChangeIsRepeatedWithItsAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := reason.New(codes.Unavailable, reason.StorageDown, "down")
		attempts := map[string]int{}
		a := &answers{putChain: func(n int, req *indexpb.PutChainRequest) (*indexpb.PutChainResponse, error) {
			attempts[req.GetChain().GetAttempt()]++
			if n < 4 {
				return nil, down
			}
			return &indexpb.PutChainResponse{Version: 9}, nil
		}}
		chain := &indexpb.Chain{ChainId: "c"}
		v, err := New(a).PutChain(t.Context(), chain, 3)
		if err != nil || v != 9 || a.puts != 4 || len(attempts) != 1 {
			t.Fatalf("version %d, %v, %d calls, attempts %v", v, err, a.puts, attempts)
		}
		if chain.GetAttempt() != "" {
			t.Error("the caller's record was changed")
		}
		a.putChain = func(int, *indexpb.PutChainRequest) (*indexpb.PutChainResponse, error) { return nil, down }
		began := time.Now()
		if _, err := New(a).PutChain(t.Context(), chain, 3); reason.Code(err) != codes.Unavailable {
			t.Fatal(err)
		}
		if took := time.Since(began); took < patience || took > 2*patience {
			t.Errorf("it was repeated for %v", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		if _, err := New(a).PutChain(ctx, chain, 3); err == nil || time.Since(began) > time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// UpdateChain applies its function to the newest row until nothing comes between.
func TestUpdateChainBeginsAgainAfterAConflict(t *testing.T) {
	lost := reason.New(codes.Aborted, reason.VersionConflict, "another version")
	a := &answers{
		getChain: func(n int) (*indexpb.GetChainResponse, error) {
			return &indexpb.GetChainResponse{Chain: &indexpb.Chain{ChainId: "c", AbsorbedTo: uint64(n)}, Version: int64(n)}, nil
		},
		putChain: func(_ int, req *indexpb.PutChainRequest) (*indexpb.PutChainResponse, error) {
			if req.GetExpectedVersion() < 3 {
				return nil, lost
			}
			return &indexpb.PutChainResponse{Version: 4}, nil
		},
	}
	raise := func(c *indexpb.Chain) (bool, error) { c.AbsorbedTo += 10; return true, nil }
	got, err := New(a).UpdateChain(t.Context(), "c", raise)
	if err != nil || got.GetAbsorbedTo() != 13 {
		t.Fatalf("%v, %v", got, err)
	}
	puts := a.puts
	if got, err := New(a).UpdateChain(t.Context(), "c", func(*indexpb.Chain) (bool, error) { return false, nil }); err != nil || got == nil || a.puts != puts {
		t.Fatalf("no change: %v, %v, %d writes", got, err, a.puts-puts)
	}
	broken := errors.New("not so")
	if _, err := New(a).UpdateChain(t.Context(), "c", func(*indexpb.Chain) (bool, error) { return true, broken }); !errors.Is(err, broken) || a.puts != puts {
		t.Fatalf("the function's error: %v, %d writes", err, a.puts-puts)
	}
	// A row that is always contended ends with the context.
	a.putChain = func(int, *indexpb.PutChainRequest) (*indexpb.PutChainResponse, error) { return nil, lost }
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := New(a).UpdateChain(ctx, "c", raise); reason.Code(err) != codes.DeadlineExceeded {
		t.Fatalf("a row that is always contended: %v", err)
	}
}
