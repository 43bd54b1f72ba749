package chain_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/directory"
	metafault "github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/stream"
)

// A writer, two sealers and two absorbers work on one chain at once, over stores
// that lose, delay and refuse, and any of them may be killed. Whatever happens:
// an acknowledged entry is below the cut, in the directories once and in order;
// one whose flight was cut is not there (I2, I3, I4).
func TestDuel(t *testing.T) {
	rounds := 150
	if testing.Short() {
		rounds = 30
	}
	for i := range rounds {
		seed := uint64(i)
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			duel(t, rand.New(rand.NewPCG(seed, 1)))
		})
	}
}

// weather makes both stores of a process unreliable, by chance drawn from r.
func weather(p *process, r *rand.Rand) {
	for range r.IntN(4) {
		p.objects.Script(fault.Rule{
			Op: fault.Any, Nth: 1 + r.IntN(40), Times: 1 + r.IntN(2), Delay: time.Duration(r.IntN(4)) * time.Millisecond,
			Do: []fault.Action{fault.FailBefore, fault.LoseReply, fault.LandLate, fault.Conflict, fault.Throttle, fault.Delay}[r.IntN(6)],
		})
	}
	for range r.IntN(4) {
		p.rows.Script(metafault.Rule{
			Op: metafault.Any, Nth: 1 + r.IntN(20), Times: 1 + r.IntN(2), Delay: time.Duration(r.IntN(4)) * time.Millisecond, Back: 1 + r.IntN(3),
			Do: []metafault.Action{metafault.FailBefore, metafault.LoseReply, metafault.OwnConflict, metafault.LandLate, metafault.Stale, metafault.Delay}[r.IntN(6)],
		})
	}
}

func duel(t *testing.T, r *rand.Rand) {
	w := newWorld(t)
	var all []*process
	process := func() *process {
		p := w.process()
		if r.IntN(3) == 0 {
			p.plan(kill{rows: r.IntN(2) == 0, n: 1 + r.IntN(60), when: fault.When(r.IntN(2))})
		}
		weather(p, r)
		all = append(all, p)
		return p
	}

	var wg sync.WaitGroup
	writer := process()
	a := w.appender(writer, chain.AppenderConfig{Lanes: 1 + r.IntN(4), HedgeAfter: time.Duration(1+r.IntN(3)) * time.Millisecond})
	told := make(chan flightTold, 1000)
	flights := 10 + r.IntN(100)
	wg.Go(func() { w.write(a, writer, flights, told) })
	for range 2 {
		sealer, absorber, wait := process(), process(), time.Duration(r.IntN(20))*time.Millisecond
		wg.Go(func() {
			time.Sleep(wait) // part of the schedule, not a wait for something
			_, _ = sealer.Seal(sealer.ctx, w.chain, stream.NewLifeID())
		})
		wg.Go(func() {
			for range 10 {
				_, _ = absorber.Absorb(absorber.ctx, w.chain)
			}
		})
	}
	wg.Wait()
	a.Close()
	close(told)
	// What is still on the wire arrives, before the end or after it.
	land := func() {
		for _, p := range all {
			p.objects.Land(t.Context())
			p.rows.Land(t.Context())
		}
	}
	if r.IntN(2) == 0 {
		land()
	}
	p := w.process()
	if _, err := p.Seal(p.ctx, w.chain, stream.NewLifeID()); err != nil {
		t.Fatal(err)
	}
	found := w.verify()
	land()
	w.judge(found, told)
	w.verify() // the late ones changed nothing
}

// flightTold is what a flight's sender was told of its entries.
type flightTold struct {
	entries []bundle.Entry
	err     error
}

// write sends n flights of entries of every shard.
func (w *world) write(a *chain.Appender, p *process, n int, told chan<- flightTold) {
	for i := range n {
		if a.Lane(p.ctx) != nil {
			break
		}
		f := flightTold{}
		for shard := range w.streams {
			f.entries = append(f.entries, w.entry(shard, 1, stream.EntryNo(i)))
		}
		if a.Launch(chain.Flight{Builder: w.builder(f.entries...), Done: func(_ stream.Slot, err error) {
			f.err = err
			told <- f
		}}) != nil {
			break
		}
	}
	a.End()
	select {
	case <-a.Done():
	case <-p.ctx.Done():
	}
}

func (w *world) judge(found map[stream.ID][]directory.Located, told <-chan flightTold) {
	w.t.Helper()
	for f := range told {
		for _, e := range f.entries {
			there := 0
			for _, l := range found[e.StreamID] {
				if l.Epoch == e.Epoch && l.EntryNo == e.EntryNo {
					there++
				}
			}
			switch {
			case f.err == nil && there != 1:
				w.t.Errorf("acknowledged entry %d of shard %d is there %d times", e.EntryNo, e.Shard, there)
			case errors.Is(f.err, chain.ErrCut) && there != 0:
				w.t.Errorf("entry %d of shard %d was told lost for certain, and is there", e.EntryNo, e.Shard)
			}
		}
	}
}
