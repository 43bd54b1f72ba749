package settler

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/chain"
	metafault "github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/settler/v1"
)

type settler struct {
	*Service

	objects *fault.Store
	rows    *metafault.Store
	stop    func()
}

func (w *world) start(cfg Config) *settler {
	w.t.Helper()
	s := &settler{objects: fault.New(w.objects), rows: w.rows.Fork()}
	if cfg.SettleAge == 0 {
		cfg.SettleAge = 1000 * time.Hour // what these streams are, no index knows
	}
	var err error
	if s.Service, err = New(cfg, Deps{Objects: s.objects, Index: indexpb.NewIndexServiceClient(newIndex(s.rows)), Registry: w.nodes}); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = s.Run(ctx) })
	s.stop = func() {
		cancel()
		running.Wait()
	}
	return s
}

func (s *settler) calls() int {
	n := 0
	for _, c := range s.objects.Counts() {
		n += c.Calls
	}
	for _, c := range s.rows.Counts() {
		n += c.Calls
	}
	return n
}

func (w *world) chain() stream.ChainID {
	w.t.Helper()
	id := stream.NewChainID()
	if _, err := w.catalog().PutChain(w.ctx, &indexpb.Chain{ChainId: id.String(), State: indexpb.ChainState_CHAIN_STATE_OPEN}, catalog.Absent); err != nil {
		w.t.Fatal(err)
	}
	return id
}

func (w *world) record(id stream.ChainID) *indexpb.Chain {
	w.t.Helper()
	r, _, err := w.catalog().GetChain(w.ctx, id.String())
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// commit puts slots [from, to) into a chain; entry no of slot n is n + skip.
func (w *world) commit(id stream.ChainID, from, to, skip int) {
	w.t.Helper()
	for slot := from; slot < to; slot++ {
		b := bundle.NewBuilder(id, stream.NewFlightID(), stream.ProfileStandard)
		if _, _, err := b.Add(bundle.Entry{Kind: bundle.KindToken, Epoch: 1, EntryNo: stream.EntryNo(slot + skip), StreamID: stream.NewID()}); err != nil {
			w.t.Fatal(err)
		}
		if _, err := w.objects.PutIfAbsent(w.ctx, chain.SlotKey(id, stream.Slot(slot)), b.Finish(stream.Slot(slot))); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) want(id stream.ChainID, absorbed uint64) {
	w.t.Helper()
	if got := w.record(id).GetAbsorbedTo(); got != absorbed {
		w.t.Errorf("absorbed to %d, want %d", got, absorbed)
	}
}

func TestAbsorbsWithinTheInterval(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		s := w.start(Config{})
		defer s.stop()
		id := w.chain()
		w.commit(id, 0, 3, 0)
		time.Sleep(11 * time.Second) // found by a listing, then looked at
		w.want(id, 3)
		w.commit(id, 3, 4, 0)
		time.Sleep(6 * time.Second)
		w.want(id, 4)
		p, err := s.GetProgress(t.Context(), &settlerpb.GetProgressRequest{})
		if err != nil || len(p.GetChains()) != 1 || p.GetChains()[0].GetAbsorbedTo() != 4 || p.GetChains()[0].GetBacklog() != 0 {
			t.Errorf("progress: %v, %v", p, err)
		}
	})
}

func TestFullWindowDoesNotWait(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		id := w.chain()
		w.commit(id, 0, 1, 0)
		s := w.start(Config{Interval: time.Minute, Probe: time.Second})
		defer s.stop()
		time.Sleep(2 * time.Second)
		w.want(id, 1)
		w.commit(id, 1, 64, 0)
		time.Sleep(5 * time.Second)
		w.want(id, 1) // not full, not a minute old
		w.commit(id, 64, 65, 0)
		time.Sleep(2 * time.Second)
		w.want(id, 65)
	})
}

func TestIdleChainsCostLittleAndFinishedOnesNothing(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		s := w.start(Config{})
		defer s.stop()
		c := w.newChain()
		id := c.id
		w.lead(0, c)
		l := w.open("first", 0)
		for range 2 {
			l.append(1, 10)
			c.land()
		}
		time.Sleep(time.Minute)
		before, reads := s.calls(), s.objects.Counts()[fault.GetRange].Calls
		time.Sleep(time.Minute)
		// A list and a read every 5 s.
		if got := s.calls() - before; got > 2*12+2 {
			t.Errorf("an idle chain costs %d calls a minute", got)
		}
		if got := s.objects.Counts()[fault.GetRange].Calls - reads; got > 13 || got < 11 {
			t.Errorf("an idle chain costs %d reads a minute", got)
		}
		if puts := s.objects.Counts()[fault.PutIfAbsent].Calls; puts != 1 {
			t.Errorf("%d objects were written, want the one directory", puts)
		}
		other := w.start(Config{NodeID: "other"}) // only to use its chains
		if _, err := other.chains.Seal(t.Context(), id, stream.NewLifeID()); err != nil {
			t.Fatal(err)
		}
		other.stop()
		time.Sleep(time.Minute)
		w.wantSettled()
		reads = s.objects.Counts()[fault.GetRange].Calls
		time.Sleep(time.Hour)
		if got := s.objects.Counts()[fault.GetRange].Calls - reads; got != 0 {
			t.Errorf("%d reads in an hour of a chain that is sealed and settled", got)
		}
	})
}

func TestSealedChainIsSettledToItsCut(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		c := w.newChain()
		id := c.id
		w.lead(0, c)
		l := w.open("first", 0)
		for range 100 {
			l.append(1, 10)
			c.land()
		}
		s := w.start(Config{})
		defer s.stop()
		if _, err := s.chains.Seal(t.Context(), id, stream.NewLifeID()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(6 * time.Second)
		w.want(id, 100)
		time.Sleep(6 * time.Second)
		w.wantSettled()
		w.check()
		if p, _ := s.GetProgress(t.Context(), &settlerpb.GetProgressRequest{}); len(p.GetChains()) != 0 {
			t.Errorf("still tracked: %v", p)
		}
	})
}

// A sealer died between its SEAL and the record.
func TestHalfSealedChainIsFinished(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		id := w.chain()
		w.commit(id, 0, 2, 0)
		body := bundle.EncodeSeal(bundle.Seal{Chain: id, Slot: 2})
		if _, err := w.objects.PutIfAbsent(t.Context(), chain.SlotKey(id, 2), body); err != nil {
			t.Fatal(err)
		}
		s := w.start(Config{})
		defer s.stop()
		time.Sleep(30 * time.Second)
		if r := w.record(id); r.GetState() != indexpb.ChainState_CHAIN_STATE_SEALED || r.GetCut() != 2 || r.GetAbsorbedTo() != 2 {
			t.Errorf("record: %v", r)
		}
	})
}

// One chain that fails must not stop the others.
func TestDamagedChainIsLeftAlone(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		bad, good := w.chain(), w.chain()
		w.commit(bad, 0, 2, 5) // entry numbers begin at 5: a gap
		w.commit(good, 0, 2, 0)
		s := w.start(Config{Workers: 1})
		defer s.stop()
		time.Sleep(20 * time.Second)
		w.want(bad, 0)
		w.want(good, 2)
		if _, err := s.Absorb(t.Context(), &settlerpb.AbsorbRequest{ChainId: bad.String()}); reason.Code(err) != codes.DataLoss {
			t.Errorf("absorb: %v, want DATA_LOSS", err)
		}
		before := s.calls()
		time.Sleep(time.Hour)
		if got := (s.calls() - before) / 60; got > 60 {
			t.Errorf("a damaged and an idle chain cost %d calls a minute", got)
		}
	})
}

func TestStoreOutage(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		id := w.chain()
		w.commit(id, 0, 2, 0)
		s := w.start(Config{})
		defer s.stop()
		s.objects.Script(fault.Rule{Op: fault.Any, Do: fault.Hang})
		s.rows.SetOutage(true)
		time.Sleep(10 * time.Minute)
		s.objects.Clear()
		s.rows.SetOutage(false)
		time.Sleep(2 * time.Minute)
		w.want(id, 2)
	})
}

func TestSettlersShareChains(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		w.nodes.ids = []string{"a", "b", "c"}
		var all []*settler
		for _, id := range w.nodes.ids {
			s := w.start(Config{NodeID: id})
			defer s.stop()
			all = append(all, s)
		}
		for range 60 {
			w.commit(w.chain(), 0, 1, 0)
		}
		time.Sleep(20 * time.Second)
		total := 0
		for i, s := range all {
			p, _ := s.GetProgress(t.Context(), &settlerpb.GetProgressRequest{})
			total += len(p.GetChains())
			if n := len(p.GetChains()); n < 8 || n > 35 {
				t.Errorf("settler %d of 3 has %d of 60 chains", i, n)
			}
		}
		if total != 60 {
			t.Errorf("%d chains are looked after, want 60 once each", total)
		}
		// One leaves; a discovery that fails changes nothing.
		w.nodes.mu.Lock()
		w.nodes.ids = []string{"a", "b"}
		w.nodes.mu.Unlock()
		time.Sleep(10 * time.Second)
		w.nodes.mu.Lock()
		w.nodes.ids, w.nodes.err = nil, errors.New("no answer")
		w.nodes.mu.Unlock()
		time.Sleep(10 * time.Second)
		total = 0
		for _, s := range all[:2] {
			p, _ := s.GetProgress(t.Context(), &settlerpb.GetProgressRequest{})
			total += len(p.GetChains())
		}
		if total != 60 {
			t.Errorf("two settlers look after %d chains, want 60", total)
		}
	})
}

// The chains of the past are not listed again and again (I7).
func TestFinishedChainsAreNotListed(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		for i := range 30 {
			id := w.chain()
			r := w.record(id)
			r.State = indexpb.ChainState_CHAIN_STATE_SEALED // of nothing
			_, version, err := w.catalog().GetChain(t.Context(), id.String())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.catalog().PutChain(t.Context(), r, version); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Duration(i) * time.Minute)
		}
		open := w.chain()
		s := w.start(Config{})
		defer s.stop()
		time.Sleep(time.Minute)
		before := s.rows.Counts()[metafault.Range].Rows
		time.Sleep(time.Minute)
		if got := s.rows.Counts()[metafault.Range].Rows - before; got > 12*4 {
			t.Errorf("a minute's listings read %d rows, want the open chain's and few more", got)
		}
		w.commit(open, 0, 1, 0)
		time.Sleep(10 * time.Second)
		w.want(open, 1)
		// A chain dated back by a wrong clock is found within the hour.
		old := chain.IDFloor(time.Now().Add(-100 * time.Hour))
		old[15] = 1
		if _, err := w.catalog().PutChain(t.Context(), &indexpb.Chain{ChainId: old.String(), State: indexpb.ChainState_CHAIN_STATE_OPEN}, catalog.Absent); err != nil {
			t.Fatal(err)
		}
		w.commit(old, 0, 1, 0)
		time.Sleep(time.Hour + time.Minute)
		w.want(old, 1)
	})
}

func TestJustBefore(t *testing.T) {
	for range 100 {
		id := stream.NewChainID()
		if b := justBefore(id); b.String() >= id.String() {
			t.Errorf("%s is not before %s", b, id)
		}
	}
	id := stream.ChainID{1}
	if b := justBefore(id); fmt.Sprintf("%x", b[:]) != "00ffffffffffffffffffffffffffffff" {
		t.Errorf("%x", b[:])
	}
}

func TestAbsorbRequests(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		s := w.start(Config{})
		defer s.stop()
		id := w.chain()
		w.commit(id, 0, 5, 0)
		res, err := s.Absorb(t.Context(), &settlerpb.AbsorbRequest{ChainId: id.String()})
		if err != nil || res.GetAbsorbedTo() != 5 {
			t.Errorf("%v, %v", res, err)
		}
		if _, err := s.Absorb(t.Context(), &settlerpb.AbsorbRequest{ChainId: "x"}); reason.Code(err) != codes.InvalidArgument {
			t.Errorf("a bad id: %v", err)
		}
		if _, err := s.Absorb(t.Context(), &settlerpb.AbsorbRequest{ChainId: stream.NewChainID().String()}); reason.Code(err) != codes.NotFound {
			t.Errorf("an unknown chain: %v", err)
		}
	})
}
