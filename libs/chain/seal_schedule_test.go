package chain_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nova-stream/nova/libs/chain"
	metafault "github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/stream"
)

// schedule runs actors step by step: one call to a store at a time, of the actor
// that it chooses. Used again it takes the next of all orders there are.
type schedule struct {
	path []int // which of those that wait was chosen, at each step
	wide []int // how many waited then

	mu      sync.Mutex // guards what follows
	step    int
	waiting map[string]chan struct{}
	running int
}

// next moves on to the next order; false: there is none.
func (s *schedule) next() bool {
	for len(s.path) > 0 {
		last := len(s.path) - 1
		if s.path[last]++; s.path[last] < s.wide[last] {
			s.wide = s.wide[:last]
			return true
		}
		s.path, s.wide = s.path[:last], s.wide[:last]
	}
	return false
}

// turn waits until the actor is chosen.
func (s *schedule) turn(ctx context.Context, actor string) error {
	mine := make(chan struct{})
	s.mu.Lock()
	s.waiting[actor] = mine
	s.mu.Unlock()
	select {
	case <-mine:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run lets the actors go on until all have ended. In a bubble.
func (s *schedule) run(actors map[string]func()) {
	s.step, s.waiting, s.running = 0, map[string]chan struct{}{}, len(actors)
	for _, act := range actors {
		go func() {
			defer func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.running--
			}()
			act()
		}()
	}
	for {
		synctest.Wait()
		s.mu.Lock()
		names := make([]string, 0, len(s.waiting))
		for name := range s.waiting {
			names = append(names, name)
		}
		if len(names) == 0 {
			over := s.running == 0
			s.mu.Unlock()
			if over {
				s.path, s.wide = s.path[:s.step], s.wide[:s.step]
				return
			}
			time.Sleep(10 * time.Millisecond) // one of them pauses before it tries again
			continue
		}
		slices.Sort(names)
		if s.step == len(s.path) {
			s.path = append(s.path, 0)
		}
		if s.step == len(s.wide) {
			s.wide = append(s.wide, len(names))
		}
		// Who paused wakes by chance, so the same order may find fewer here.
		name := names[min(s.path[s.step], len(names)-1)]
		s.step++
		go close(s.waiting[name])
		delete(s.waiting, name)
		s.mu.Unlock()
	}
}

// gate makes the calls of a process that matter to a slot steps of an actor: its
// reads and PUTs of the slot, and its changes of the chain's record.
func (s *schedule) gate(p *process, actor string, key string) {
	p.objects.Script(fault.Rule{Op: fault.Any, Prefix: key, Hook: func(ctx context.Context, _ fault.Op, _ string) error {
		return s.turn(ctx, actor)
	}})
	p.rows.Script(metafault.Rule{Op: metafault.Put, Prefix: "chain/", Hook: func(ctx context.Context, _ metafault.Op, _ string) error {
		return s.turn(ctx, actor)
	}})
}

// In every order of the steps of two sealers, or of a sealer and an absorber, and
// of the PUT of a flight: there is one cut, what was acknowledged lies below it,
// and the flight is acknowledged if and only if it does (I2, I4).
func TestSealInEveryOrder(t *testing.T) {
	for _, rival := range []string{"another sealer", "an absorber"} {
		t.Run(rival, func(t *testing.T) {
			s := &schedule{}
			orders, cuts := 0, map[stream.Slot]int{}
			for {
				orders++
				synctest.Test(t, func(t *testing.T) { cuts[s.sealAgainst(t, rival)]++ })
				if t.Failed() {
					t.Fatalf("in the order %v", s.path)
				}
				if !s.next() {
					break
				}
			}
			if orders < 100 || cuts[1] == 0 || cuts[2] == 0 || len(cuts) != 2 {
				t.Errorf("%d orders led to the cuts %v, want many that lead to 1 and to 2", orders, cuts)
			}
		})
	}
}

// sealAgainst seals a chain of one committed slot, while a flight is on its way
// into the next one, and returns the cut.
func (s *schedule) sealAgainst(t *testing.T, rival string) stream.Slot {
	w := newWorld(t)
	writer, sealer, other := w.process(), w.process(), w.process()
	a := w.appender(writer, chain.AppenderConfig{Lanes: 1, HedgeAfter: -1})
	wantOutcomes(t, w.fly(a, 0, 1), nil)

	slot := chain.SlotKey(w.chain, 1)
	writer.objects.Script(fault.Rule{Op: fault.PutIfAbsent, Prefix: slot, Hook: func(ctx context.Context, _ fault.Op, _ string) error {
		return s.turn(ctx, "flight")
	}})
	s.gate(sealer, "sealer", slot)
	s.gate(other, "rival", slot)
	var flight []outcome
	var cut, rivals stream.Slot
	var errs [2]error
	s.run(map[string]func(){
		"flight": func() { flight = w.fly(a, 1, 1) },
		"sealer": func() { cut, errs[0] = sealer.Seal(sealer.ctx, w.chain, stream.NewLifeID()) },
		"rival": func() {
			if rival == "an absorber" {
				_, errs[1] = other.Absorb(other.ctx, w.chain)
				return
			}
			rivals, errs[1] = other.Seal(other.ctx, w.chain, stream.NewLifeID())
		},
	})
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	if recorded := stream.Slot(w.record().GetCut()); cut != recorded || rival != "an absorber" && rivals != recorded {
		t.Errorf("the cuts %d and %d, recorded is %d", cut, rivals, recorded)
	}
	if cut < 1 {
		t.Errorf("cut %d: slot 0 was acknowledged", cut)
	}
	if acked := flight[0].err == nil; acked != (cut > 1) || !acked && !errors.Is(flight[0].err, chain.ErrCut) {
		t.Errorf("the flight into slot 1 was told %v, the cut is %d", flight[0].err, cut)
	}
	a.Close()
	if got := len(w.verify()[w.streams[0]]); got != int(cut) {
		t.Errorf("%d entries, the cut is %d", got, cut)
	}
	return cut
}

// Every call of a seal fails, or loses its reply, once each, and at that moment
// nothing else happens, or another seals the chain, or a flight lands, or what is
// committed is absorbed and reclaimed (I2, I4).
func TestSealAtEveryCall(t *testing.T) {
	for what, do := range map[string][2]int{
		"never arrives":        {int(fault.FailBefore), int(metafault.FailBefore)},
		"loses its reply":      {int(fault.LoseReply), int(metafault.LoseReply)},
		"conflicts":            {int(fault.Conflict), int(metafault.OwnConflict)},
		"lands late":           {int(fault.LandLate), int(metafault.LandLate)},
		"is throttled, or old": {int(fault.Throttle), int(metafault.Stale)},
	} {
		for _, meanwhile := range []string{"nothing", "another seals", "a flight lands", "it is absorbed and reclaimed"} {
			t.Run(fmt.Sprintf("a call %s and meanwhile %s", what, meanwhile), func(t *testing.T) {
				t.Parallel()
				for _, rows := range []bool{false, true} {
					for n, met := 1, true; met; n++ {
						synctest.Test(t, func(t *testing.T) {
							met = sealMeets(t, rows, n, fault.Action(do[0]), metafault.Action(do[1]), meanwhile)
						})
						if t.Failed() {
							t.Fatalf("it was call %d, to the rows: %v", n, rows)
						}
					}
				}
			})
		}
	}
}

// sealMeets seals a chain of three acknowledged flights while a fourth is in the
// air; false: the seal had fewer calls.
func sealMeets(t *testing.T, rows bool, n int, do fault.Action, doRows metafault.Action, meanwhile string) bool {
	w := newWorld(t)
	writer, p, other := w.process(), w.process(), w.process()
	a := w.appender(writer, chain.AppenderConfig{Lanes: 1, HedgeAfter: -1})
	wantOutcomes(t, w.fly(a, 0, 3), nil, nil, nil)
	depart := make(chan struct{})
	writer.objects.Script(fault.Rule{Op: fault.PutIfAbsent, Prefix: chain.SlotKey(w.chain, 3), Hook: func(context.Context, fault.Op, string) error {
		<-depart
		return nil
	}})
	var flight []outcome
	var flying sync.WaitGroup
	flying.Go(func() { flight = w.fly(a, 3, 1) })
	synctest.Wait()
	leave := sync.OnceFunc(func() { close(depart) })
	event := func() error {
		var err error
		switch meanwhile {
		case "another seals":
			_, err = other.Seal(other.ctx, w.chain, stream.NewLifeID())
		case "a flight lands":
			leave()
			// Not until it is answered: it may meet a SEAL, and wait for what this one does.
			for range 100 {
				if _, err := w.objects.Get(t.Context(), chain.SlotKey(w.chain, 3)); err == nil {
					break
				}
				time.Sleep(time.Millisecond)
			}
		case "it is absorbed and reclaimed":
			if _, err = other.Absorb(other.ctx, w.chain); err == nil {
				w.delete(0, 1, 2)
			}
		}
		return err
	}
	var acted interface{ Acted() int }
	if rows {
		acted = p.rows.Script(metafault.Rule{Op: metafault.Any, Nth: n, Do: doRows, Hook: func(context.Context, metafault.Op, string) error { return event() }})
	} else {
		acted = p.objects.Script(fault.Rule{Op: fault.Any, Nth: n, Do: do, Hook: func(context.Context, fault.Op, string) error { return event() }})
	}
	cut, err := p.Seal(p.ctx, w.chain, stream.NewLifeID())
	met := acted.Acted() > 0
	for tries := 0; err != nil && tries < 10; tries++ { // after an error it may be called again
		time.Sleep(time.Second)
		cut, err = p.Seal(p.ctx, w.chain, stream.NewLifeID())
	}
	if err != nil {
		t.Fatal(err)
	}
	leave()
	flying.Wait()
	// What is still on the wire arrives.
	p.objects.Land(t.Context())
	p.rows.Land(t.Context())
	recorded := stream.Slot(w.record().GetCut())
	if again, err := other.Seal(other.ctx, w.chain, stream.NewLifeID()); cut != recorded || again != cut || err != nil {
		t.Errorf("the cuts %d and %d, %v; recorded is %d", cut, again, err, recorded)
	}
	if cut < 3 || cut > 4 {
		t.Errorf("cut %d: three flights were acknowledged", cut)
	}
	if acked := flight[0].err == nil; acked != (cut == 4) {
		t.Errorf("the flight into slot 3 was told %v, the cut is %d", flight[0].err, cut)
	}
	a.Close()
	if got := len(w.verify()[w.streams[0]]); got != int(cut) {
		t.Errorf("%d entries, the cut is %d", got, cut)
	}
	return met
}
