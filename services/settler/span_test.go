package settler

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metafault "github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/stream"
)

// story writes a history that has all that a span can meet: several shards,
// epochs and chains, streams large and small, controls, and streams that are
// deleted, trimmed, idle or only controlled. Everything is absorbed at its end.
func (w *world) story() {
	w.t.Helper()
	a, b := w.newChain(), w.newChain()
	w.lead(0, a)
	w.lead(1, a)
	w.lead(2, b)
	var logs []*log
	for n := range stream.Shard(shards) {
		logs = append(logs, w.open("first", n), w.open("second", n))
	}
	idle, controlled, gone, trimmed := w.open("first"), w.open("first"), w.open("second", 0), w.open("first", 1)
	_ = idle
	large := w.open("first", 1)
	for i, l := range logs {
		l.append(3, 50)
		l.append(1+i, 2000)
	}
	a.land()
	controlled.token("t")
	large.append(20, 20_000)
	trimmed.append(5, 100)
	gone.append(4, 10)
	a.land()
	b.absorb()
	trimmed.trim(5)
	gone.delete()
	logs[0].trim(4)
	logs[1].seal()
	a.absorb()
	// Shard 0 goes from a to b and back.
	w.lead(0, b)
	for _, l := range []*log{logs[0], logs[2], logs[4]} {
		l.append(2, 30)
	}
	b.absorb()
	a.absorb()
	w.lead(0, a)
	logs[0].append(1, 5)
	logs[0].trim(6)
	trimmed.append(1, 1)
	a.absorb()
	b.seal()
}

func TestSettlesAWholeHistory(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		w.story()
		w.check()
		p := w.process(Config{})
		if err := p.settleAll(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		w.wantSettled()
		w.check()
		if due := w.due(queueSettled); len(due) > 0 {
			t.Errorf("%d markers are left", len(due))
		}
		if due := w.due(queueReclaim); len(due) != 3 {
			t.Errorf("%d markers to reclaim, want one per span", len(due))
		}
	})
}

// named puts what a test is doing before what it finds wrong.
type named struct {
	*testing.T

	what string
}

func (n named) Errorf(format string, args ...any) {
	n.Helper()
	n.T.Errorf(n.what+": "+format, args...)
}

func (n named) Fatalf(format string, args ...any) {
	n.Helper()
	n.T.Fatalf(n.what+": "+format, args...)
}

func (n named) Fatal(args ...any) {
	n.Helper()
	n.T.Fatal(append([]any{n.what, ": "}, args...)...)
}

// in runs f in a world of its own.
func in(t *testing.T, what string, f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t.Context(), named{t, what})
		defer w.close()
		f(w)
	})
}

// calls counts what a process did.
func (p *process) calls() (rows, objects int) {
	for _, c := range p.rows.Counts() {
		rows += c.Calls
	}
	for _, c := range p.objects.Counts() {
		objects += c.Calls
	}
	return rows, objects
}

// die runs work until the process is killed.
func (p *process) die(ctx context.Context, work func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-p.rows.Killed():
		case <-p.objects.Killed():
		case <-ctx.Done():
		}
		cancel()
	})
	work(ctx)
	cancel()
	watch.Wait()
}

// eachCall is how far apart the calls are at which things go wrong: tests that are
// shortened take some of them.
func eachCall() int {
	if testing.Short() {
		return 5
	}
	return 1
}

// task is what a settler does in a test that goes wrong somewhere; done again it
// finishes what is left.
type task func(p *process, ctx context.Context, w *world) error

// everyCrash kills a settler before and after the effect of each call that it
// makes to a store, and has another one finish.
func everyCrash(t *testing.T, cfg Config, do task, prepare, check func(w *world)) {
	t.Helper()
	var rows, objects int
	in(t, "clean", func(w *world) {
		prepare(w)
		p := w.process(cfg)
		if err := do(p, w.ctx, w); err != nil {
			t.Fatal(err)
		}
		rows, objects = p.calls()
		check(w)
	})
	if rows == 0 || objects == 0 {
		t.Fatal("no calls to crash at")
	}
	one := func(what string, kill func(p *process)) {
		in(t, what, func(w *world) {
			prepare(w)
			p := w.process(cfg)
			kill(p)
			p.die(w.ctx, func(ctx context.Context) { _ = do(p, ctx, w) })
			w.check()
			if err := do(w.process(cfg), w.ctx, w); err != nil {
				w.t.Errorf("the next settler: %v", err)
			}
			check(w)
		})
	}
	for _, after := range []bool{false, true} {
		for n := 1; n <= rows && !t.Failed(); n += eachCall() {
			when := metafault.Before
			if after {
				when = metafault.After
			}
			one(fmt.Sprintf("metastore call %d of %d, after=%v", n, rows, after), func(p *process) { p.rows.KillAt(n, when) })
		}
		for n := 1; n <= objects && !t.Failed(); n += eachCall() {
			when := fault.Before
			if after {
				when = fault.After
			}
			one(fmt.Sprintf("object call %d of %d, after=%v", n, objects, after), func(p *process) { p.objects.KillAt(n, when) })
		}
	}
}

// I2, I6, I11: whatever a settler leaves when it dies, the next one finishes.
func TestDiesAnywhereAndTheNextFinishes(t *testing.T) {
	everyCrash(t, Config{}, (*process).settleAll, (*world).story, func(w *world) {
		w.wantSettled()
		w.check()
	})
}

// tangle is a chain whose last span needs all of the rest: a stream larger than
// the memory, one whose refs go into a page, one that drops refs, one that is
// quarantined, one whose log is broken, and one that was deleted broken.
func (w *world) tangle() {
	w.t.Helper()
	c := w.newChain()
	for n := range stream.Shard(shards) {
		w.lead(n, c)
	}
	many, large, quarantined, broken, deleted, trimmed := w.open("first"), w.open("first"), w.open("second"), w.open("second"), w.open("first"), w.open("first")
	p := w.process(Config{RewriteRuns: -1})
	for i := range 64 {
		many.append(1, 5)
		if i < 5 {
			trimmed.append(1, 5)
		}
		c.absorb()
		if _, err := p.settle(w.ctx, c.id); err != nil {
			w.t.Fatal(err)
		}
	}
	for _, l := range []*log{quarantined, broken, deleted} {
		l.append(1, 10)
	}
	c.absorb()
	quarantined.quarantine(c.next-1, c)
	deleted.quarantine(c.next-1, c)
	for range 4 {
		large.append(2, 50_000)
		quarantined.append(1, 10)
		c.land()
	}
	broken.append(1, 1)
	c.b = nil // its flight is lost
	w.leaders[broken.shard].next--
	broken.append(1, 1)
	broken.broken = true
	deleted.delete()
	if err := w.catalog().DeleteBrokenHead(w.ctx, deleted.id); err != nil {
		w.t.Fatal(err)
	}
	many.append(1, 5)
	trimmed.trim(3)
	c.absorb()
}

func TestDiesAnywhereInATangle(t *testing.T) {
	const memory = 1 << 20 // of a span
	everyCrash(t, Config{SettleMemory: settlesAtOnce * memory, RewriteRuns: -1}, (*process).settleAll, (*world).tangle, func(w *world) {
		w.wantSettled()
		w.check()
		c, many, large, broken, deleted, trimmed := w.chains[0], w.logs[0].head(), w.logs[1].head(), w.logs[3].head(), w.logs[4].head(), w.logs[5].head()
		if len(many.GetPages()) != 1 || len(large.GetRefs()) < 2 || trimmed.GetDroppedTo() != 3 || len(trimmed.GetRefs()) != 2 {
			w.t.Errorf("%d pages, %d refs, %d refs from %d", len(many.GetPages()), len(large.GetRefs()), len(trimmed.GetRefs()), trimmed.GetDroppedTo())
		}
		if broken.GetQuarantine() == "" || len(c.record().GetPins()) != 3 || deleted.GetDeletedSlot() == 0 {
			w.t.Errorf("pins %v, deleted at %d", c.record().GetPins(), deleted.GetDeletedSlot())
		}
	})
}

// I2, I6: one call that fails, in whatever way, is no harm.
func TestOneCallFails(t *testing.T) { everyFailure(t, Config{}, (*process).settleAll, (*world).story) }

// everyFailure makes each call that a settler makes fail, in every way.
func everyFailure(t *testing.T, cfg Config, do task, prepare func(w *world)) {
	t.Helper()
	var rows, objects int
	in(t, "clean", func(w *world) {
		prepare(w)
		p := w.process(cfg)
		if err := do(p, w.ctx, w); err != nil {
			t.Fatal(err)
		}
		rows, objects = p.calls()
	})
	one := func(what string, script func(p *process)) {
		in(t, what, func(w *world) {
			prepare(w)
			p := w.process(cfg)
			script(p)
			if err := do(p, w.ctx, w); err != nil {
				p.rows.Clear()
				p.objects.Clear()
				w.check()
				if err := do(p, w.ctx, w); err != nil {
					w.t.Errorf("tried again: %v", err)
				}
			}
			w.wantSettled()
			w.check()
		})
	}
	for act, name := range map[metafault.Action]string{
		metafault.FailBefore: "refused", metafault.LoseReply: "reply lost", metafault.OwnConflict: "own conflict", metafault.Stale: "old read",
	} {
		for n := 1; n <= rows && !t.Failed(); n += eachCall() {
			one(fmt.Sprintf("metastore call %d %s", n, name), func(p *process) { p.rows.Script(metafault.Rule{Nth: n, Do: act}) })
		}
	}
	for act, name := range map[fault.Action]string{
		fault.FailBefore: "refused", fault.LoseReply: "reply lost", fault.Hang: "hangs", fault.Permanent: "refused for good",
		fault.Throttle: "throttled", fault.Cut: "cut", fault.Corrupt: "corrupted on its way", fault.Truncate: "truncated on its way",
	} {
		for n := 1; n <= objects && !t.Failed(); n += eachCall() {
			one(fmt.Sprintf("object call %d %s", n, name), func(p *process) { p.objects.Script(fault.Rule{Nth: n, Do: act}) })
		}
	}
}

// All reads are old ones, by one version or several: nothing is decided by them.
func TestOldReads(t *testing.T) { oldReads(t, Config{}, (*process).settleAll, (*world).story) }

func oldReads(t *testing.T, cfg Config, do task, prepare func(w *world)) {
	t.Helper()
	for _, prefix := range []string{"shard/", "head/", "chain/", "directory/", "settled/"} {
		for back := 1; back <= 3; back++ {
			in(t, fmt.Sprintf("%s %d versions back", prefix, back), func(w *world) {
				prepare(w)
				p := w.process(cfg)
				p.rows.Script(metafault.Rule{Op: metafault.Read, Prefix: prefix, Do: metafault.Stale, Back: back})
				ctx, cancel := context.WithTimeout(w.ctx, 10*time.Second)
				_ = do(p, ctx, w) // it may come nowhere
				cancel()
				w.check()
				p.rows.Clear()
				if err := do(p, w.ctx, w); err != nil {
					w.t.Errorf("with reads of now: %v", err)
				}
				w.wantSettled()
				w.check()
			})
		}
	}
}
