package settler

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/settler/v1"
)

// progress returns what a settler says of a chain.
func (s *settler) progress(t *testing.T, c *written) *settlerpb.ChainProgress {
	t.Helper()
	res, err := s.GetProgress(t.Context(), &settlerpb.GetProgressRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range res.GetChains() {
		if p.GetChainId() == c.id.String() {
			return p
		}
	}
	return &settlerpb.ChainProgress{}
}

func TestSettlesByAge(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		s := w.start(Config{SettleAge: time.Minute})
		defer s.stop()
		l := w.open("first")
		l.append(2, 100)
		c.land()
		time.Sleep(30 * time.Second)
		if p := s.progress(t, c); p.GetAbsorbedTo() != 1 || p.GetSettledTo() != 0 || p.GetUnsettledSince() == 0 {
			t.Errorf("after half a minute: %v", p)
		}
		time.Sleep(45 * time.Second)
		if p := s.progress(t, c); p.GetSettledTo() != 1 || p.GetUnsettledSince() != 0 || p.GetUnsettledBytes() != 0 {
			t.Errorf("after its age: %v", p)
		}
		w.wantSettled()
		w.check()
		res, _ := s.GetProgress(t.Context(), &settlerpb.GetProgressRequest{})
		if res.GetSettledBytes() == 0 || res.GetWrittenBytes() == 0 {
			t.Errorf("%v", res)
		}
		// An idle chain that is settled costs what it did before.
		before := s.calls()
		time.Sleep(10 * time.Minute)
		if got := (s.calls() - before) / 10; got > 2*12+2 {
			t.Errorf("an idle chain costs %d calls a minute", got)
		}
	})
}

func TestSettlesBySize(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		s := w.start(Config{SettleBytes: 1 << 20})
		defer s.stop()
		l := w.open("first")
		l.append(10, 60_000)
		c.land()
		time.Sleep(20 * time.Second)
		if p := s.progress(t, c); p.GetSettledTo() != 0 || p.GetUnsettledBytes() < 600_000 {
			t.Errorf("not enough yet: %v", p)
		}
		l.append(10, 60_000)
		c.land()
		time.Sleep(20 * time.Second)
		// The rest is too little by itself.
		if p := s.progress(t, c); p.GetSettledTo() != 1 || p.GetAbsorbedTo() != 2 {
			t.Errorf("%v", p)
		}
		w.check()
	})
}

// Half of the windows that stop appends are settled without waiting.
func TestRipeness(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		s := w.start(Config{SettleAge: time.Hour})
		defer s.stop()
		now := time.Now()
		windows := func(n int, bytes uint64, age time.Duration) []unsettled {
			out := make([]unsettled, n)
			for i := range out {
				out[i] = unsettled{to: stream.Slot(i + 1), bytes: bytes, at: now.Add(-age).UnixMilli()}
			}
			return out
		}
		for _, c := range []struct {
			name string
			t    tracked
			ripe bool
		}{
			{"nothing", tracked{sealed: true}, false},
			{"little and young", tracked{windows: windows(3, 1000, time.Minute)}, false},
			{"old", tracked{windows: windows(1, 1000, time.Hour)}, true},
			{"many bytes", tracked{windows: windows(4, 1<<28, 0)}, true},
			{"many windows", tracked{windows: windows(settleWindows, 1, 0)}, true},
			{"a row that does not tell", tracked{windows: []unsettled{{to: 1}}}, true},
			{"sealed", tracked{windows: windows(1, 1, 0), sealed: true, cut: 1, from: 1}, true},
			{"sealed and not absorbed", tracked{windows: windows(1, 1, 0), sealed: true, cut: 2, from: 1}, false},
		} {
			if got := s.ripe(&c.t, now); got != c.ripe {
				t.Errorf("%s: ripe %t", c.name, got)
			}
		}
	})
}

func TestSettleRequests(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		a, b := w.newChain(), w.newChain()
		w.lead(0, a)
		l := w.open("first", 0)
		l.append(1, 1)
		a.absorb()
		l.append(1, 1)
		w.lead(0, b)
		l.append(1, 1)
		b.absorb()
		s := w.start(Config{NodeID: "idle"})
		defer s.stop()
		ask := func(id string) (uint64, error) {
			res, err := s.Settle(t.Context(), &settlerpb.SettleRequest{ChainId: id})
			return res.GetSettledTo(), err
		}
		if _, err := ask(b.id.String()); reason.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), a.id.String()) {
			t.Errorf("a chain that waits: %v", err)
		}
		if to, err := ask(a.id.String()); err != nil || to != uint64(a.next) {
			t.Errorf("settled to %d, %v", to, err)
		}
		if to, err := ask(b.id.String()); err != nil || to != 1 {
			t.Errorf("settled to %d, %v", to, err)
		}
		if to, err := ask(b.id.String()); err != nil || to != 1 {
			t.Errorf("again: settled to %d, %v", to, err)
		}
		if _, err := ask("x"); reason.Code(err) != codes.InvalidArgument {
			t.Errorf("a bad id: %v", err)
		}
		if _, err := ask(stream.NewChainID().String()); reason.Code(err) != codes.NotFound {
			t.Errorf("an unknown chain: %v", err)
		}
		w.check()
	})
}

// A chain that waits for another says so, and goes on when that is settled.
func TestWaitingChainIsShown(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		a, b := w.newChain(), w.newChain()
		w.lead(0, a)
		l := w.open("first", 0)
		l.append(1, 1)
		w.lead(0, b)
		l.append(1, 1)
		b.absorb()
		s := w.start(Config{SettleAge: time.Second})
		defer s.stop()
		s.objects.Script(fault.Rule{Op: fault.GetRange, Prefix: "chain/" + a.id.String(), Do: fault.Permanent})
		time.Sleep(2 * time.Minute)
		if p := s.progress(t, b); !strings.Contains(p.GetBlocked(), a.id.String()) || p.GetSettledTo() != 0 {
			t.Errorf("%v", p)
		}
		if p := s.progress(t, a); p.GetBlocked() == "" {
			t.Errorf("a chain that fails: %v", p)
		}
		if l := s.load(); l.blocked != 2 || l.lag < 60 {
			t.Errorf("load %+v", l)
		}
		s.objects.Clear()
		time.Sleep(3 * time.Minute)
		w.wantSettled()
		w.check()
		if p := s.progress(t, b); p.GetBlocked() != "" {
			t.Errorf("%v", p)
		}
	})
}

// A chain that hangs or fails stops neither others nor its own absorption.
func TestFailingChainStopsNoOther(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		bad, good := w.newChain(), w.newChain()
		w.lead(0, bad)
		w.lead(1, good)
		l := w.open("first", 0)
		l.append(1, 1)
		bad.land()
		s := w.start(Config{SettleAge: time.Second})
		defer s.stop()
		s.objects.Script(fault.Rule{Op: fault.GetRange, Prefix: "chain/" + bad.id.String() + "/0000000000000000", Do: fault.Pass})
		s.objects.Script(fault.Rule{Op: fault.Put, Prefix: "settled/", Do: fault.Hang})
		time.Sleep(10 * time.Second)
		l.append(1, 1)
		bad.land()
		time.Sleep(10 * time.Second)
		if r := bad.record(); r.GetAbsorbedTo() != 2 || r.GetSettledTo() != 0 {
			t.Errorf("while it hangs: %v", r)
		}
		w.open("first", 1).token("t") // needs no object
		good.land()
		time.Sleep(2 * time.Minute)
		if r := good.record(); r.GetSettledTo() != 1 {
			t.Errorf("the other chain: %v", r)
		}
		s.objects.Clear()
		time.Sleep(5 * time.Minute)
		w.wantSettled()
		w.check()
	})
}

// Several settlers share the chains, and each is settled by one.
func TestSettlersShareSettling(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		w.nodes.ids = []string{"a", "b"}
		for n := range stream.Shard(shards) {
			w.lead(n, w.newChain())
			w.open("first", n).append(1, 1)
		}
		for _, c := range w.chains {
			c.land()
		}
		var all []*settler
		for _, id := range w.nodes.ids {
			s := w.start(Config{NodeID: id, SettleAge: time.Second})
			defer s.stop()
			all = append(all, s)
		}
		time.Sleep(time.Minute)
		w.wantSettled()
		w.check()
		spans := 0
		for _, s := range all {
			spans += s.objects.Counts()[fault.PutIfAbsent].Calls
		}
		if spans != 2*shards { // a directory and an object each
			t.Errorf("%d objects were written for %d chains", spans, shards)
		}
	})
}

func TestSettingsAreChecked(t *testing.T) {
	good := Config{}.withDefaults()
	if err := good.Check(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	for flag, change := range map[string]func(c *Config){
		"--settle-age":        func(c *Config) { c.SettleAge = 0 },
		"--settle-mib":        func(c *Config) { c.SettleBytes = 0 },
		"--settle-memory-mib": func(c *Config) { c.SettleMemory = 1 << 20 },
		"--settle-rate-mib":   func(c *Config) { c.SettleRate = 1000 },
		"--read-grace":        func(c *Config) { c.ReadGrace = time.Millisecond },
	} {
		c := good
		change(&c)
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s: %v", flag, err)
		}
	}
}
