package failover

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// plan is how a run goes.
type plan struct {
	streams  int           // at once
	ops      int           // of one client in one round, at most
	length   time.Duration // of the part of a round in which clients begin operations
	timeout  time.Duration // of a call
	patience time.Duration // for the constellation to be whole after a round
	search   time.Duration // for Porcupine, per history
	settles  int           // percent of the rounds during which slots are settled and reclaimed, at least
	upkeep   *upkeep       // of the constellation
	alarms   *alarms       // of its logs
	// up starts what has ended by itself, to be started again by whoever runs it; nil:
	// nothing does.
	up     func(ctx context.Context) error
	elder  *elder
	former []string // streams of the last round
	report *report
}

// nemesis hurts a constellation.
type nemesis interface {
	// hurt does one thing and returns what. It returns when the thing is done, or
	// has begun: then heal ends it.
	hurt(ctx context.Context, r *rand.Rand) (string, error)
	// heal makes everything whole.
	heal(ctx context.Context) error
}

// seed is what the run's choices are made from.
func seed(t *testing.T) uint64 {
	n := uint64(time.Now().UnixNano())
	if text := os.Getenv("NOVA_SEED"); text != "" {
		var err error
		if n, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("NOVA_SEED: %v", err)
		}
	}
	t.Logf("NOVA_SEED=%d", n)
	return n
}

// run makes rounds until it is time to stop, and at least one.
func (p *plan) run(t *testing.T, r *rand.Rand, doors []*door, enemy nemesis, length time.Duration) {
	t.Helper()
	p.report = newReport()
	ctx := t.Context()
	p.makeBucket(t, doors[0])
	p.elder = newElder(fmt.Sprint("elder-", time.Now().UnixNano()))
	began := time.Now()
	for round := 0; round == 0 || time.Since(began) < length; round++ {
		if !p.round(ctx, t, r, doors, enemy, round) {
			return
		}
		p.report.rounds++
		if round%20 == 19 {
			p.tell(ctx, t, began)
		}
	}
	p.tell(ctx, t, began)
	p.report.happened(t, p.settles)
	// What nobody could judge proves nothing.
	verdicts := p.report.verdicts
	if n, all := verdicts[porcupine.Unknown], verdicts[porcupine.Ok]+verdicts[porcupine.Unknown]; n*10 > all {
		t.Errorf("%d of %d histories were too much for Porcupine in %v", n, all, p.search)
	}
}

func (p *plan) makeBucket(t *testing.T, d *door) {
	t.Helper()
	if err := within(t.Context(), p.patience, func(ctx context.Context) error {
		_, err := d.buckets.CreateBucket(ctx, &novapb.CreateBucketRequest{Bucket: bucket})
		if reason.Is(err, reason.BucketExists) {
			return nil
		}
		return err
	}); err != nil {
		t.Fatalf("create bucket: %v", err)
	}
}

// round uses fresh streams while the nemesis is at work, and judges; false: it
// is no use going on.
func (p *plan) round(ctx context.Context, t *testing.T, r *rand.Rand, doors []*door, enemy nemesis, number int) bool {
	t.Helper()
	var crowds []*crowd
	for i := range p.streams {
		name := fmt.Sprintf("round-%d-stream-%d", number, i)
		if err := within(ctx, p.patience, func(ctx context.Context) error {
			_, err := doors[0].streams.CreateStream(ctx, &novapb.CreateStreamRequest{Bucket: bucket, Stream: name, RequestToken: name})
			return err
		}); err != nil {
			t.Errorf("create %s: %v", name, err)
			return false
		}
		crowds = append(crowds, &crowd{history: newHistory(name), plan: p, doors: doors, until: time.Now().Add(p.length), ends: r.IntN(2) == 0})
	}
	var clients, fight sync.WaitGroup
	for _, c := range crowds {
		c.start(&clients, r)
	}
	before, err := p.upkeep.moved(ctx)
	if err != nil {
		t.Errorf("before the round: %v", err)
	}
	behind, stop := context.WithCancel(ctx)
	defer stop()
	var back sync.WaitGroup
	defer back.Wait()
	defer stop()
	choices, hurried := rand.New(rand.NewPCG(r.Uint64(), 0)), rand.New(rand.NewPCG(r.Uint64(), 2))
	back.Go(func() {
		if err := p.upkeep.keepHurrying(behind, hurried, 3); err != nil {
			t.Error(err)
		}
	})
	fight.Go(func() { p.fight(ctx, t, choices, enemy, time.Now().Add(p.length)) })
	fight.Go(func() { p.elder.grow(ctx, doors, time.Now().Add(p.length)) })
	fight.Go(func() { p.forget(ctx, doors) })
	clients.Wait()
	fight.Wait()
	stop()
	back.Wait()
	if t.Failed() {
		return false
	}
	after, err := p.upkeep.moved(ctx)
	if err != nil {
		t.Errorf("after the round: %v", err)
	}
	p.report.moved(before, after)
	if err := p.end(ctx, r, doors, crowds); err != nil {
		t.Errorf("after the round: %v", err)
	}
	for _, c := range crowds {
		p.former = append(p.former, c.stream)
		j := judge(c.all(), p.search)
		p.report.judgement(&j)
		if !j.good() {
			t.Errorf("%s: %s\n%s%s\nall of it:\n%s", c.stream, j.result, lines(j.wrong), j.why, listing(c.all()))
		}
	}
	if err := p.alarms.err(); err != nil {
		t.Error(err)
	}
	return !t.Failed()
}

// end reads all streams when all is whole again, and once more when all of them
// is settled and no slot is left; then everything is verified.
func (p *plan) end(ctx context.Context, r *rand.Rand, doors []*door, crowds []*crowd) error {
	for _, when := range []string{"whole", "settled"} {
		for _, c := range crowds {
			if err := c.finish(ctx, r); err != nil {
				return fmt.Errorf("%s, when all is %s, within %v: %w", c.stream, when, p.patience, err)
			}
		}
		if err := p.elder.check(ctx, doors[0], p.patience); err != nil {
			return fmt.Errorf("the elder, when all is %s: %w", when, err)
		}
		if when == "settled" {
			break
		}
		began := time.Now()
		if err := p.upkeep.caughtUp(ctx, r, p.patience); err != nil {
			return fmt.Errorf("not caught up within %v: %w", p.patience, err)
		}
		p.report.caughtUp(time.Since(began))
	}
	return p.verifyAll(ctx, doors[r.IntN(len(doors))])
}

// forget deletes most streams of the round before, while the next is on.
func (p *plan) forget(ctx context.Context, doors []*door) {
	var kept []string
	for i, name := range p.former {
		ctx, cancel := context.WithTimeout(ctx, p.timeout)
		if _, err := doors[i%len(doors)].streams.DeleteStream(ctx, &novapb.DeleteStreamRequest{Bucket: bucket, Stream: name}); err != nil && !reason.Is(err, reason.StreamNotFound) {
			kept = append(kept, name) // the next round tries again
		}
		cancel()
	}
	p.former = kept
}

// tell logs how it goes.
func (p *plan) tell(ctx context.Context, t *testing.T, began time.Time) {
	t.Helper()
	census, err := p.upkeep.census(ctx)
	if err != nil {
		t.Errorf("census: %v", err)
	}
	t.Logf("after %v: %v\nkept: %s", time.Since(began).Round(time.Second), p.report, table(census))
}

// start starts the clients of a stream.
func (c *crowd) start(work *sync.WaitGroup, r *rand.Rand) {
	for number, run := range []func(*client){
		(*client).runPlain,
		func(x *client) { x.runProducer("one") },
		func(x *client) { x.runSender("two") },
		(*client).runController,
		(*client).runReader,
	} {
		x := &client{crowd: c, number: number, rand: rand.New(rand.NewPCG(r.Uint64(), 1)), door: r.IntN(len(c.doors))}
		work.Go(func() { run(x) })
	}
}

// fight lets the nemesis hurt and heal until the time is over.
func (p *plan) fight(ctx context.Context, t *testing.T, r *rand.Rand, enemy nemesis, until time.Time) {
	sleep := func() { time.Sleep(min(some(r, p.length/8), time.Until(until))) } // part of the schedule
	for sleep(); time.Now().Before(until); sleep() {
		what, err := enemy.hurt(ctx, r)
		p.report.fault(what)
		sleep()
		if healed := enemy.heal(ctx); err == nil {
			err = healed
		}
		if err != nil {
			t.Errorf("%s: %v", what, err)
			return
		}
	}
}

// finish reads the stream when all is whole again.
func (c *crowd) finish(ctx context.Context, r *rand.Rand) error {
	x := &client{crowd: c, number: -1, rand: r}
	tried := false
	return within(ctx, c.plan.patience, func(context.Context) error {
		if up := c.plan.up; up != nil && tried {
			if err := up(ctx); err != nil {
				return err
			}
		}
		tried = true
		o := x.begin(x.number, readOp)
		if x.call(o, func(ctx context.Context, d *door) { o.read(ctx, d, c.stream) }); o.outcome != done {
			return fmt.Errorf("read: %s", o.text)
		}
		o = x.begin(x.number, tailOp)
		if x.call(o, func(ctx context.Context, d *door) { o.checkTail(ctx, d, c.stream) }); o.outcome != done {
			return fmt.Errorf("check tail: %s", o.text)
		}
		return nil
	})
}

// within repeats f until it returns nil.
func within(ctx context.Context, patience time.Duration, f func(ctx context.Context) error) error {
	deadline := time.Now().Add(patience)
	for {
		call, cancel := context.WithTimeout(ctx, 10*time.Second)
		err := f(call)
		cancel()
		if err == nil || time.Now().After(deadline) || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func lines(texts []string) (all string) {
	for _, text := range texts[:min(20, len(texts))] {
		all += text + "\n"
	}
	return all
}

// listing is a history for people.
func listing(ops []*op) (all string) {
	for _, o := range ops[:min(1000, len(ops))] {
		all += "  " + o.String() + "\n"
	}
	return all
}

// some is a time up to most.
func some(r *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(r.Int64N(int64(most) + 1))
}
