package chainwriter

import (
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// absorb and settle do what a settler does.
func (n *node) absorb(t testing.TB, id string, to uint64) {
	t.Helper()
	if _, err := n.AbsorbTo(t.Context(), &chainwriterpb.AbsorbToRequest{ChainId: id, To: to}); err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) settle(id string, to uint64) {
	c.t.Helper()
	if _, err := c.catalog().UpdateChain(c.t.Context(), id, func(r *indexpb.Chain) (bool, error) {
		r.SettledTo = to
		return true, nil
	}); err != nil {
		c.t.Fatal(err)
	}
}

// waits checks that of what was sent so many entries are committed, for ever if
// nothing else happens.
func (s *sender) waits(commits int) {
	s.t.Helper()
	time.Sleep(30 * time.Second)
	if got, refusals, sealed := s.told(); len(got) != commits || len(refusals) != 0 || sealed {
		s.t.Fatalf("%d commits, %d refusals, sealed: %v; want %d commits", len(got), len(refusals), sealed, commits)
	}
}

// I8: what is not settled is bounded in bytes. Absorbing makes no room, settling
// does.
func TestUnsettledBytesStopFlights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		n := c.start(Config{Lanes: 1, UnsettledBytes: 1})
		id := n.open(t)
		s := n.send(t, id)
		for no := range uint64(2) {
			s.entry(token(0, 1, no))
			synctest.Wait()
		}
		s.waits(1)
		n.absorb(t, id, 1)
		before := n.calls()
		s.waits(1)
		if got := n.calls() - before; got < 25 || got > 31 {
			t.Errorf("%d calls in 30 s of waiting", got)
		}
		c.settle(id, 1)
		s.waits(2)
		if l := n.svc.load(); l.unsettled <= 0 || c.slots(id) != 2 {
			t.Errorf("%+v, %d slots", l, c.slots(id))
		}
		s.entry(token(0, 1, 2))
		s.waits(2)
		// Recovery is not held up, and takes along what waits.
		res, err := n.Fence(t.Context(), &chainwriterpb.FenceRequest{ChainId: id, Shard: 9, Epoch: 1})
		if err != nil || res.GetCut() != 3 {
			t.Errorf("fence: %v, %v", res, err)
		}
		s.waits(3)
		n.absorb(t, id, 3)
		c.settle(id, 3)
		time.Sleep(2 * time.Second)
		if l := n.svc.load(); l.unsettled != 0 || l.backlog != 0 {
			t.Errorf("all is settled: %+v", l)
		}
		s.cancel()
		n.stop()
	})
}

// I8: and so are the windows, however little is in each.
func TestUnsettledWindowsStopFlights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		n := c.start(Config{Lanes: 1, UnsettledWindows: 3})
		id := n.open(t)
		s := n.send(t, id)
		for no := range uint64(3) {
			s.entry(token(0, 1, no))
			s.waits(int(no) + 1)
			n.absorb(t, id, no+1)
			time.Sleep(2 * time.Second)
		}
		s.entry(token(0, 1, 3))
		s.waits(3)
		c.settle(id, 1)
		s.waits(4)
		s.cancel()
		n.stop()
	})
}

// The end of a chain does not wait for room.
func TestAStopDoesNotWaitForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		n := c.start(Config{Lanes: 1, UnsettledBytes: 1})
		id := n.open(t)
		s := n.send(t, id)
		for no := range uint64(2) {
			s.entry(token(0, 1, no))
			synctest.Wait()
		}
		s.waits(1)
		started := time.Now()
		n.stop()
		<-s.done
		if _, _, sealed := s.told(); !sealed || time.Since(started) > 2*time.Second {
			t.Errorf("sealed: %v, after %s", sealed, time.Since(started))
		}
	})
}

// Whatever comes when, the bytes are those of the slots at or above settled_to
// where that is an end of absorbing that was seen, and never none of slots that are
// not settled; there are as many windows as full ones would be of what is
// absorbed from one time to the next.
func TestUnsettledIsWhatIsNotSettled(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var u unsettled
		var sizes []int64
		seen := map[stream.Slot]bool{0: true}
		var ends []stream.Slot // of windows that are not settled
		absorbed, settled := stream.Slot(0), stream.Slot(0)
		t.Repeat(map[string]func(*rapid.T){
			"commit": func(t *rapid.T) {
				for range rapid.SampledFrom([]int{1, 3, 70}).Draw(t, "slots") {
					sizes = append(sizes, rapid.Int64Range(1, 4<<20).Draw(t, "bytes"))
					u.committed(stream.Slot(len(sizes)-1), sizes[len(sizes)-1])
				}
			},
			"learn": func(t *rapid.T) {
				tail := uint64(len(sizes))
				if rapid.IntRange(0, 3).Draw(t, "nothing to absorb") > 0 {
					to := stream.Slot(rapid.Uint64Range(uint64(absorbed), tail).Draw(t, "absorbed"))
					for absorbed < to {
						absorbed = min(absorbed+chain.Window, to)
						ends = append(ends, absorbed)
					}
					seen[absorbed] = true
				}
				told := stream.Slot(rapid.Uint64Range(0, uint64(absorbed)).Draw(t, "settled")) // may be an old read
				settled = max(settled, told)
				u.learn(absorbed, told)
			},
			"": func(t *rapid.T) {
				want, listed := int64(0), int64(0)
				for _, n := range sizes[settled:] {
					want += n
				}
				for _, s := range append(u.windows[:len(u.windows):len(u.windows)], u.slots...) {
					listed += s.bytes
				}
				if u.bytes != listed || seen[settled] && u.bytes != want || u.bytes < 0 || (u.bytes == 0) != (want == 0) {
					t.Fatalf("%d bytes, %d in the list; %d are above %d", u.bytes, listed, want, settled)
				}
				for len(ends) > 0 && ends[0] <= settled {
					ends = ends[1:]
				}
				if len(u.windows) != len(ends) {
					t.Fatalf("%d windows, want %d", len(u.windows), len(ends))
				}
			},
		})
	})
}
