package client_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"pgregory.net/rapid"

	"github.com/nova-stream/nova/libs/client/clienttest"
	"github.com/nova-stream/nova/libs/reason"
)

// The connection is cut at every byte of an append: one copy is stored, and
// the session learns where.
func TestAppendCutAtEveryByte(t *testing.T) {
	srv := clienttest.New()
	address := srv.Serve(t)
	const (
		enough   = 1500 // bytes of one append, both ways; later cuts do nothing
		parallel = 16
	)
	step := 1
	if testing.Short() {
		step = 7
	}
	var wg sync.WaitGroup
	at := make(chan int64)
	for range parallel {
		wg.Go(func() {
			for n := range at {
				stream := fmt.Sprint("cut-", n)
				srv.Create(bucket, stream)
				var dialled atomic.Int32
				c := dial(t, address, func() int64 {
					if dialled.Add(1) == 1 {
						return n
					}
					return -1
				})
				cfg := config
				cfg.Stream, cfg.MatchSeq = stream, ptr(uint64(0))
				ack, err := c.Append(limit(t), cfg, batchOf("a", "b", "c"))
				_ = c.Close()
				if err != nil || ack.GetFirstSeq() != 0 || ack.GetNextSeq() != 3 {
					t.Errorf("cut at byte %d: %v, %v", n, ack, err)
				}
				if got := bodies(srv.Records(bucket, stream)); !slices.Equal(got, []string{"a", "b", "c"}) {
					t.Errorf("cut at byte %d: stored %v", n, got)
				}
			}
		})
	}
	for n := 0; n <= enough; n += step {
		at <- int64(n)
	}
	close(at)
	wg.Wait()
	if srv.Duplicates == 0 {
		t.Error("no cut lost an answer: the test tests nothing")
	}
}

// Whatever breaks, each record arrives exactly once and in order, and so it is
// read again.
func TestEverythingArrivesExactlyOnceInOrder(t *testing.T) {
	faults := []error{
		clienttest.Cut, reason.New(codes.Unavailable, reason.NoLeader, "no leader"), reason.New(codes.DeadlineExceeded, "", "too slow"),
		reason.New(codes.FailedPrecondition, reason.NotLeader, "elsewhere"), reason.New(codes.Unknown, "", "what?"), reason.New(codes.Aborted, "", "conflict"),
	}
	rapid.Check(t, func(rt *rapid.T) {
		srv := clienttest.New()
		srv.Create(bucket, name)
		srv.MaxPage = rapid.IntRange(1, 40).Draw(rt, "page")
		seed := rapid.Uint64().Draw(rt, "seed")
		batches := rapid.IntRange(1, 60).Draw(rt, "batches")
		odds := rapid.IntRange(2, 60).Draw(rt, "odds")
		cuts := rapid.SliceOfN(rapid.Int64Range(0, 6000), 0, 3).Draw(rt, "cuts")
		var mu sync.Mutex
		random, left := rand.New(rand.NewPCG(seed, 0)), 5
		srv.SetFault(func(step clienttest.Step) error {
			mu.Lock()
			defer mu.Unlock()
			if left == 0 || step == clienttest.Calling || random.IntN(odds) != 0 {
				return nil
			}
			left--
			return faults[random.IntN(len(faults))]
		})
		var dialled atomic.Int32
		c := dial(t, srv.Serve(t), func() int64 {
			if n := int(dialled.Add(1)) - 1; n < len(cuts) {
				return cuts[n]
			}
			return -1
		})
		defer c.Close()
		cfg := config
		cfg.MatchSeq = ptr(uint64(0))
		cfg.Window = rapid.IntRange(1, 16).Draw(rt, "window")
		s := c.OpenSession(limit(t), cfg)
		var want []string
		for range batches {
			var batch []string
			for range 1 + random0(seed, len(want)) {
				batch = append(batch, fmt.Sprint(len(want)+len(batch)))
			}
			want = append(want, batch...)
			if err := s.Send(limit(t), batchOf(batch...)); err != nil {
				rt.Fatalf("send: %v", err)
			}
		}
		p, err := s.Close(limit(t))
		if err != nil || p.Records != uint64(len(want)) || p.NextSeq != uint64(len(want)) {
			rt.Fatalf("%+v, %v, want %d records", p, err, len(want))
		}
		if got := bodies(srv.Records(bucket, name)); !slices.Equal(got, want) {
			rt.Fatalf("stored %v, want %v", got, want)
		}
		mu.Lock()
		left = 5
		mu.Unlock()
		if got, err := readAll(t, c, nil); err != nil || !slices.Equal(got, want) {
			rt.Fatalf("read %v, %v", got, err)
		}
		mu.Lock()
		left = 5
		mu.Unlock()
		if got, err := follow(t, c, nil, len(want)); err != nil || !slices.Equal(got, want) {
			rt.Fatalf("followed %v, %v", got, err)
		}
	})
}

// random0 returns 0..4, the same for the same arguments.
func random0(seed uint64, n int) int { return rand.New(rand.NewPCG(seed, uint64(n)+1)).IntN(5) }
