package chainwriter

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/bundle"
	metafault "github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

func TestCommitsComeInOrderWithCoordinates(t *testing.T) {
	c := newCluster(t)
	n := c.start(Config{})
	s := n.send(t, n.open(t))
	for no := range uint64(100) {
		s.entry(token(uint32(no%3), 1, no/3))
	}
	commits, _ := s.await(100, 0)
	last := map[uint32]uint64{}
	for i, m := range commits {
		if i > 0 && (m.GetAt().GetSlot() < commits[i-1].GetAt().GetSlot()) {
			t.Errorf("slot %d after %d", m.GetAt().GetSlot(), commits[i-1].GetAt().GetSlot())
		}
		if m.GetEntryNo() != last[m.GetShard()] {
			t.Errorf("shard %d: entry %d, want %d", m.GetShard(), m.GetEntryNo(), last[m.GetShard()])
		}
		last[m.GetShard()]++
		if e := c.at(m); uint32(e.Shard) != m.GetShard() || uint64(e.EntryNo) != m.GetEntryNo() || e.Epoch != 1 {
			t.Errorf("coordinates of %v lead to %v", m, e)
		}
	}
	if s.credit == 0 {
		t.Error("no credit was granted")
	}
}

func TestOnlyTheNextEntryNumberIsTaken(t *testing.T) {
	c := newCluster(t)
	n := c.start(Config{})
	s := n.send(t, n.open(t))
	s.entry(token(0, 1, 1))
	if _, r := s.await(0, 1); r[0].GetReason() != string(reason.EntryGap) {
		t.Errorf("a gap: %v", r)
	}
	s.entry(token(0, 2, 0))
	s.await(1, 1)
	s.entry(token(0, 1, 0))
	if _, r := s.await(1, 2); r[1].GetReason() != string(reason.EpochFenced) {
		t.Errorf("a lower epoch: %v", r)
	}
	// A gap of a higher epoch is not in the chain, so it does not raise the fence.
	s.entry(token(0, 9, 4))
	s.entry(token(0, 2, 1))
	commits, r := s.await(2, 3)
	if r[2].GetReason() != string(reason.EntryGap) {
		t.Errorf("a gap: %v", r)
	}
	// A late duplicate gets the known commit, from any sender.
	s2 := n.send(t, n.open(t))
	s2.entry(token(0, 2, 0))
	again, _ := s2.await(1, 0)
	if again[0].GetAt().GetSlot() != commits[0].GetAt().GetSlot() || again[0].GetAt().GetOffset() != commits[0].GetAt().GetOffset() {
		t.Errorf("the duplicate is at %v, the first at %v", again[0].GetAt(), commits[0].GetAt())
	}
}

func TestDuplicateJoinsThePendingOne(t *testing.T) {
	c := newCluster(t)
	n := c.start(Config{HedgeAfter: -1})
	hold := make(chan struct{})
	release := sync.OnceFunc(func() { close(hold) })
	// Before the cluster stops, which waits for the PUT: a failure must not hang.
	t.Cleanup(release)
	n.objects.Script(fault.Rule{Op: fault.PutIfAbsent, Prefix: "chain/", Hook: func(context.Context, fault.Op, string) error {
		<-hold
		return nil
	}})
	id := n.open(t)
	s, s2 := n.send(t, id), n.send(t, id)
	s.entry(token(0, 1, 0))
	s2.entry(token(0, 1, 0))
	s2.entry(token(0, 1, 1))
	eventually(t, "entries wait", func() bool {
		w := n.svc.current
		w.mu.Lock()
		defer w.mu.Unlock()
		st := w.shards[0]
		return st != nil && len(st.pending) == 2 && len(st.pending[0].sessions) == 2
	})
	release()
	s.await(1, 0)
	s2.await(2, 0)
}

func TestRecentCommitsForgetTheOldest(t *testing.T) {
	var r recentCommits
	for i := range 3 * rememberedCommits / 2 {
		r.add(stream.Coordinates{Slot: stream.Slot(i)})
	}
	for _, no := range []stream.EntryNo{rememberedCommits / 2, rememberedCommits, 3*rememberedCommits/2 - 1} {
		if at, ok := r.get(no); !ok || at.Slot != stream.Slot(no) {
			t.Errorf("entry %d: %v, %v", no, at, ok)
		}
	}
	for _, no := range []stream.EntryNo{0, rememberedCommits/2 - 1, 3 * rememberedCommits / 2} {
		if at, ok := r.get(no); ok {
			t.Errorf("entry %d: %v", no, at)
		}
	}
}

func TestFenceCutsAndRepeats(t *testing.T) {
	c := newCluster(t)
	n := c.start(Config{Linger: time.Minute, FlightBytes: 1 << 20})
	id := n.open(t)
	s := n.send(t, id)
	s.entry(token(7, 1, 0))
	// A fence does not linger, and closes the flight that does.
	fence := func(epoch uint64) (uint64, error) {
		res, err := n.Fence(t.Context(), &chainwriterpb.FenceRequest{ChainId: id, Shard: 7, Epoch: epoch})
		return res.GetCut(), err
	}
	eventually(t, "the entry waits", func() bool { l := n.svc.load(); return l.pooled > 0 || l.backlog > 0 })
	var wg sync.WaitGroup
	cuts := make([]uint64, 3)
	for i := range cuts {
		wg.Go(func() {
			var err error
			if cuts[i], err = fence(2); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	commits, _ := s.await(1, 0)
	if slices.Max(cuts) != slices.Min(cuts) || cuts[0] <= commits[0].GetAt().GetSlot() {
		t.Errorf("cuts %v, the entry is in slot %d", cuts, commits[0].GetAt().GetSlot())
	}
	s.entry(token(7, 1, 1))
	if _, r := s.await(1, 1); r[0].GetReason() != string(reason.EpochFenced) {
		t.Errorf("an entry of the fenced epoch: %v", r)
	}
	if cut, err := fence(2); err != nil || cut != cuts[0] {
		t.Errorf("again: %d, %v, want %d", cut, err, cuts[0])
	}
	if _, err := fence(1); !reason.Is(err, reason.EpochFenced) {
		t.Errorf("a lower fence: %v", err)
	}
	if cut, err := fence(3); err != nil || cut <= cuts[0] {
		t.Errorf("a higher fence: %d, %v", cut, err)
	}
}

func TestFenceOfABoundEpochIsRefused(t *testing.T) {
	c := newCluster(t)
	n := c.start(Config{})
	id := n.open(t)
	s := n.send(t, id)
	s.entry(token(7, 2, 0))
	s.await(1, 0)
	for _, epoch := range []uint64{1, 2} {
		if _, err := n.Fence(t.Context(), &chainwriterpb.FenceRequest{ChainId: id, Shard: 7, Epoch: epoch}); !reason.Is(err, reason.EpochFenced) {
			t.Errorf("epoch %d: %v", epoch, err)
		}
	}
}

func TestDamagedEntriesAreRefused(t *testing.T) {
	c := newCluster(t)
	n := c.start(Config{})
	good := chunkEntry(t, 0, 1000)
	for name, e := range map[string]*chainwriterpb.Entry{
		"payload": func() *chainwriterpb.Entry {
			e := chunkEntry(t, 0, 1000)
			e.Body = slices.Clone(e.Body)
			e.Body[len(e.Body)-1] ^= 1
			return e
		}(),
		"cut":          {Kind: good.GetKind(), Epoch: 1, StreamId: good.GetStreamId(), Body: good.GetBody()[:len(good.GetBody())-1]},
		"other stream": {Kind: good.GetKind(), Epoch: 1, StreamId: make([]byte, 16), Body: good.GetBody()},
		"short trim":   {Kind: chainwriterpb.EntryKind_ENTRY_KIND_TRIM, Epoch: 1, StreamId: good.GetStreamId(), Body: []byte{1}},
		"fence":        {Kind: chainwriterpb.EntryKind_ENTRY_KIND_FENCE, Epoch: 1, StreamId: good.GetStreamId()},
		"no epoch":     {Kind: good.GetKind(), StreamId: good.GetStreamId(), Body: good.GetBody()},
		"unknown kind": {Kind: 99, Epoch: 1, StreamId: good.GetStreamId()},
	} {
		s := n.send(t, n.open(t))
		s.entry(e)
		<-s.done
		if code := reason.Code(s.err); code != codes.DataLoss && code != codes.InvalidArgument {
			t.Errorf("%s: %v", name, s.err)
		}
	}
	s := n.send(t, n.open(t))
	s.entry(good)
	commits, _ := s.await(1, 0)
	if e := c.at(commits[0]); e.Kind != bundle.KindChunk || !slices.Equal(e.Body, good.GetBody()) {
		t.Error("the chunk is not stored as it came")
	}
}

// Entries gather while the lanes are busy, and share the next flight.
func TestBusyLanesBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		n := c.start(Config{Lanes: 1, HedgeAfter: -1})
		n.objects.Script(fault.Rule{Op: fault.PutIfAbsent, Do: fault.Delay, Delay: 100 * time.Millisecond})
		id := n.open(t)
		s := n.send(t, id)
		for no := range uint64(200) {
			s.entry(token(0, 1, no))
			time.Sleep(time.Millisecond)
		}
		s.await(200, 0)
		if got := c.slots(id); got > 5 {
			t.Errorf("%d slots in 300 ms with PUTs of 100 ms", got)
		}
		s.cancel()
		n.stop()
	})
}

// While a flight is in the air, the next gathers shortly, also with lanes free: it
// leaves when the first has landed, or when its time is over, whichever is first.
func TestGathersWhileOthersFly(t *testing.T) {
	for name, c := range map[string]struct {
		put   time.Duration // of the first flight
		waits time.Duration // from its launch until the second leaves
	}{
		"lands before":  {put: gatherTime / 2, waits: gatherTime / 2},
		"lands after":   {put: 100 * gatherTime, waits: gatherTime},
		"does not land": {put: time.Hour, waits: gatherTime},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := newCluster(t)
				n := cl.start(Config{Lanes: 4, HedgeAfter: -1})
				n.objects.Script(fault.Rule{Op: fault.PutIfAbsent, Prefix: "chain/", Nth: 1, Do: fault.Delay, Delay: c.put})
				var left []time.Time
				n.objects.Script(fault.Rule{Op: fault.PutIfAbsent, Prefix: "chain/", Hook: func(context.Context, fault.Op, string) error {
					left = append(left, time.Now())
					return nil
				}})
				id := n.open(t)
				s := n.send(t, id)
				began := time.Now()
				s.entry(token(0, 1, 0))
				synctest.Wait()
				for no := range uint64(3) {
					s.entry(token(0, 1, 1+no))
					synctest.Wait()
				}
				if got := cl.slots(id); got != 0 {
					t.Errorf("%d slots at once", got)
				}
				time.Sleep(c.waits + gatherTime/4)
				synctest.Wait()
				if len(left) == 0 || left[len(left)-1].Sub(began) != c.waits {
					t.Errorf("%d flights, the last left %v after the first, want %v", len(left), left, c.waits)
				}
				s.cancel()
				n.stop()
			})
		})
	}
}

func TestBacklogStopsFlights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		n := c.start(Config{Lanes: 1, BacklogFlights: 4})
		id := n.open(t)
		// Nobody can absorb.
		n.rows.Script(metafault.Rule{Op: metafault.Put, Do: metafault.FailBefore})
		s := n.send(t, id)
		for no := range uint64(8) {
			s.entry(token(0, 1, no))
			synctest.Wait()
		}
		time.Sleep(30 * time.Second)
		if commits, _, _ := s.told(); len(commits) != 4 || c.slots(id) != 4 {
			t.Errorf("%d commits in %d slots, want 4: the budget", len(commits), c.slots(id))
		}
		// Recovery is not held up.
		res, err := n.Fence(t.Context(), &chainwriterpb.FenceRequest{ChainId: id, Shard: 9, Epoch: 1})
		if err != nil || res.GetCut() != 5 {
			t.Errorf("fence: %v, %v", res, err)
		}
		n.rows.Clear()
		time.Sleep(30 * time.Second)
		s.await(8, 0)
		s.cancel()
		n.stop()
	})
}

// An idle chain costs nothing; one with a backlog asks the index once a second.
func TestIdleCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		n := c.start(Config{})
		id := n.open(t)
		s := n.send(t, id)
		s.entry(token(0, 1, 0))
		s.await(1, 0)
		before := n.calls()
		time.Sleep(time.Minute)
		if got := n.calls() - before; got > 60 {
			t.Errorf("%d calls in a minute with a backlog", got)
		}
		if _, err := n.AbsorbTo(t.Context(), &chainwriterpb.AbsorbToRequest{ChainId: id, To: 1}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		before = n.calls()
		time.Sleep(time.Hour)
		if got := n.calls() - before; got != 0 {
			t.Errorf("%d calls in an idle hour", got)
		}
		s.cancel()
		n.stop()
	})
}

func TestStopEndsTheChain(t *testing.T) {
	c := newCluster(t)
	n := c.start(Config{})
	id := n.open(t)
	s := n.send(t, id)
	s.entry(token(0, 1, 0))
	s.await(1, 0)
	n.stop()
	<-s.done
	if _, _, sealed := s.told(); !sealed {
		t.Error("the sender was not told that the chain has ended")
	}
	r, _, err := c.catalog().GetChain(t.Context(), id)
	if err != nil || r.GetState() != indexpb.ChainState_CHAIN_STATE_SEALED || r.GetCut() != 1 {
		t.Errorf("record: %v, %v", r, err)
	}
}
