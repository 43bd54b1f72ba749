package settler

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	metafault "github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/stream"
	"testing/synctest"
)

// slow makes every call of a process take a while, so that processes interleave.
func (p *process) slow(seed uint64) {
	var mu sync.Mutex
	r := rand.New(rand.NewPCG(seed, 7))
	pause := func(ctx context.Context) error {
		mu.Lock()
		d := time.Duration(r.IntN(20)) * time.Millisecond
		mu.Unlock()
		return sleep(ctx, d)
	}
	p.rows.Script(metafault.Rule{Do: metafault.Pass, Hook: func(ctx context.Context, _ metafault.Op, _ string) error { return pause(ctx) }})
	p.objects.Script(fault.Rule{Do: fault.Pass, Hook: func(ctx context.Context, _ fault.Op, _ string) error { return pause(ctx) }})
}

// I2, I6, I11: two settlers at one chain at the same time, of which one may die.
func TestTwoSettlersAtOnce(t *testing.T) {
	twoAtOnce(t, Config{}, (*process).settleAll, 80, (*world).story)
}

func twoAtOnce(t *testing.T, cfg Config, do task, seeds uint64, prepare func(w *world)) {
	t.Helper()
	for seed := range seeds {
		if t.Failed() {
			return
		}
		in(t, fmt.Sprintf("seed %d", seed), func(w *world) {
			prepare(w)
			r := rand.New(rand.NewPCG(seed, 1))
			var work sync.WaitGroup
			for i := range uint64(2) {
				p := w.process(cfg)
				p.slow(10*seed + i)
				if i == 0 && seed%2 == 0 {
					p.rows.KillAt(1+r.IntN(150), metafault.When(r.IntN(2)))
				}
				start := time.Duration(r.IntN(300)) * time.Millisecond
				work.Go(func() {
					time.Sleep(start)
					p.die(w.ctx, func(ctx context.Context) {
						for range 3 {
							_ = do(p, ctx, w)
						}
					})
				})
			}
			work.Wait()
			w.check()
			if err := do(w.process(cfg), w.ctx, w); err != nil {
				w.t.Errorf("the last settler: %v", err)
			}
			w.wantSettled()
			w.check()
		})
	}
}

// failing tells rapid what a world finds.
type failing struct{ *rapid.T }

// I1, I2, I11: whatever leaders write and in whatever order it is settled, by
// settlers that die and meet failures, every record is found again.
func TestAnyHistory(t *testing.T) { anyHistory(t, Config{}, false) }

func anyHistory(t *testing.T, cfg Config, compacts bool) {
	t.Helper()
	rapid.Check(t, func(rt *rapid.T) {
		bubble(t, func() {
			w := newWorld(context.Background(), failing{rt})
			defer w.close()
			chains := []*written{w.newChain()}
			for n := range stream.Shard(shards) {
				w.lead(n, chains[0])
			}
			var logs []*log
			sizes := []int{1, 50, 5000, 50_000}
			if compacts { // enough streams that share, and of these enough that drop
				sizes = []int{5000, 20_000, 50_000}
				for range 6 {
					logs = append(logs, w.open("first"))
					logs[len(logs)-1].append(1, 20_000)
				}
			}
			pick := func() *log { return logs[rapid.IntRange(0, len(logs)-1).Draw(rt, "stream")] }
			for range rapid.IntRange(5, 60).Draw(rt, "steps") {
				step := rapid.IntRange(0, 13).Draw(rt, "step")
				if len(logs) == 0 {
					step = 0
				} else if compacts && (step == 0 || step == 6) {
					step = 5
				}
				switch step {
				case 0:
					logs = append(logs, w.open(rapid.SampledFrom([]string{"first", "second"}).Draw(rt, "bucket")))
				case 1, 2, 3, 4:
					if l := pick(); !l.state.Sealed {
						l.append(rapid.IntRange(1, 30).Draw(rt, "records"), rapid.SampledFrom(sizes).Draw(rt, "size"))
					}
				case 5:
					l := pick()
					to := rapid.IntRange(0, int(l.state.Tail)+1).Draw(rt, "trim")
					if compacts && rapid.Bool().Draw(rt, "all") {
						to = int(l.state.Tail)
					}
					l.trim(to)
				case 6:
					pick().token("t")
				case 7:
					if l := pick(); rapid.IntRange(0, 3).Draw(rt, "end") == 0 && !l.state.Deleted {
						l.delete()
					} else if !l.state.Sealed {
						l.seal()
					}
				case 8:
					chains[rapid.IntRange(0, len(chains)-1).Draw(rt, "chain")].land()
				case 9, 10:
					chains[rapid.IntRange(0, len(chains)-1).Draw(rt, "chain")].absorb()
				case 11:
					n := stream.Shard(rapid.IntRange(0, shards-1).Draw(rt, "shard"))
					if k := rapid.IntRange(0, len(chains)).Draw(rt, "chain"); k < len(chains) {
						w.lead(n, chains[k])
					} else if len(chains) < 4 {
						chains = append(chains, w.newChain())
						w.lead(n, chains[k])
					}
				default:
					p := w.process(cfg)
					n := rapid.IntRange(1, 100).Draw(rt, "call")
					switch rapid.IntRange(0, 4).Draw(rt, "what happens") {
					case 0:
						p.rows.KillAt(n, metafault.When(rapid.IntRange(0, 1).Draw(rt, "after")))
					case 1:
						p.objects.KillAt(1+n/10, fault.When(rapid.IntRange(0, 1).Draw(rt, "after")))
					case 2:
						do := rapid.SampledFrom([]metafault.Action{metafault.LoseReply, metafault.OwnConflict, metafault.FailBefore}).Draw(rt, "how")
						p.rows.Script(metafault.Rule{Op: metafault.Put, Nth: n, Times: 3, Do: do})
					case 3:
						p.rows.Script(metafault.Rule{Op: metafault.Read, Nth: n, Times: n, Do: metafault.Stale, Back: rapid.IntRange(1, 3).Draw(rt, "back")})
					}
					p.die(w.ctx, func(ctx context.Context) {
						_, _ = p.settle(ctx, chains[rapid.IntRange(0, len(chains)-1).Draw(rt, "chain")].id)
						if compacts {
							_ = p.compactAll(ctx, w)
						}
					})
					if compacts && rapid.Bool().Draw(rt, "reap") {
						w.reap()
					}
				}
				logs = dropDeleted(logs)
			}
			for _, c := range chains {
				c.absorb()
			}
			w.check()
			if err := w.process(cfg).settleAll(w.ctx, w); err != nil {
				rt.Fatalf("the last settler: %v", err)
			}
			w.wantSettled()
			w.check()
			if !compacts {
				return
			}
			for range 3 { // of copies, too
				w.reap()
				if err := w.process(cfg).compactAll(w.ctx, w); err != nil {
					rt.Fatalf("the last compaction: %v", err)
				}
				w.check()
			}
			w.wantCompact()
		})
	})
}

// bubble runs f in a synctest bubble; a panic, by which rapid ends a try, passes.
func bubble(t *testing.T, f func()) {
	var ended any
	synctest.Test(t, func(*testing.T) {
		defer func() { ended = recover() }()
		f()
	})
	if ended != nil {
		panic(ended)
	}
}

// dropDeleted leaves out streams to which no leader writes any more.
func dropDeleted(logs []*log) []*log {
	var out []*log
	for _, l := range logs {
		if !l.deleted {
			out = append(out, l)
		}
	}
	return out
}
