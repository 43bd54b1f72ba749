package sequencer

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
)

// wire is how one sequencer reaches others. A test may break single calls; with
// the process it is gone.
type wire struct {
	pool Connections
	dead <-chan struct{}
	// onCall, if set, is asked about every unary call: before it is sent, then,
	// with the reply lost, after it.
	onCall atomic.Pointer[func(method string, after bool) error]
}

func (w *wire) Address(addr string) (grpc.ClientConnInterface, error) {
	conn, err := w.pool.Address(addr)
	if err != nil {
		return nil, err
	}
	return &wiredConn{ClientConnInterface: conn, wire: w}, nil
}

type wiredConn struct {
	grpc.ClientConnInterface
	wire *wire
}

func (c *wiredConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if err := c.wire.judge(method, false); err != nil {
		return err
	}
	if err := c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...); err != nil {
		return err
	}
	return c.wire.judge(method, true)
}

func (w *wire) judge(method string, after bool) error {
	select {
	case <-w.dead:
		return reason.New(codes.Unavailable, "", "the process is dead")
	default:
	}
	if f := w.onCall.Load(); f != nil {
		return (*f)(method, after)
	}
	return nil
}

// pair is a leader and a successor, and a producer whose batches must be stored
// once, whoever leads.
type pair struct {
	t          testing.TB
	w          *world
	holder     *leader
	successor  *leader
	third      atomic.Pointer[leader] // if a test needs one
	descriptor *indexpb.StreamDescriptor
	enough     atomic.Bool
	acked      atomic.Uint64
	work       sync.WaitGroup
}

func newPair(t testing.TB) *pair {
	w := newWorld(t)
	p := &pair{t: t, w: w, holder: w.lead(troubled)}
	p.successor = w.start(troubled)
	eventually(t, "the successor lives", func() bool { return p.successor.lease.valid() })
	p.descriptor = w.stream(nil)
	p.work.Go(p.produce)
	p.goOn("before")
	return p
}

// produce appends one record after another, each until it has an ack.
func (p *pair) produce() {
	for n := uint64(0); !p.enough.Load(); n++ {
		req := batch(p.descriptor, fmt.Sprint(n))
		req.ProducerId, req.BatchSeq = "p", n
		time.Sleep(2 * time.Millisecond) // time stands still while somebody works
		for tries := 0; ; tries++ {
			l := []*leader{p.holder, p.successor, p.third.Load()}[tries%3]
			if l == nil {
				continue
			}
			ctx, cancel := context.WithTimeout(p.t.Context(), time.Second)
			res, err := l.Append(ctx, req)
			cancel()
			if err == nil {
				if res.GetAck().GetFirstSeq() != n {
					p.t.Errorf("record %d has number %d", n, res.GetAck().GetFirstSeq())
				}
				p.acked.Add(1)
				break
			}
			if reason.OutcomeOf(err) == "" || tries > maxTries {
				p.t.Errorf("record %d: %v", n, err)
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// goOn waits until more is acknowledged.
func (p *pair) goOn(when string) {
	p.t.Helper()
	before := p.acked.Load()
	eventually(p.t, "acknowledgements "+when, func() bool { return p.acked.Load() > before+3 })
}

// end stops the producer: everything it got an ack for is stored once, in order.
func (p *pair) end() {
	p.t.Helper()
	p.enough.Store(true)
	p.work.Wait()
	stored := p.w.stored(p.descriptor)
	for n, body := range stored {
		if body != fmt.Sprint(n) {
			p.t.Fatalf("record %d is %q", n, body)
		}
	}
	if uint64(len(stored)) != p.acked.Load() {
		p.t.Errorf("%d records are stored, %d acknowledged", len(stored), p.acked.Load())
	}
	for _, l := range []*leader{p.holder, p.successor, p.third.Load()} {
		if l != nil {
			l.stop()
		}
	}
}

func serves(l *leader) func() bool {
	return func() bool { return l.shard() != nil && l.shard().serving.Load() }
}

// A node that drains hands its shards over, and answers who leads them now; one
// that comes back gets its own back, but not before it is known for a while.
func TestDrainAndUndrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		epoch := p.holder.epoch()
		began := time.Now()
		p.holder.SetDraining(true)
		eventually(t, "the successor leads", serves(p.successor))
		if took := time.Since(began); took > troubled.LeaseTTL/2 {
			t.Errorf("the handoff took %v", took)
		}
		if got := p.successor.epoch(); got != epoch+1 {
			t.Errorf("epoch %d after %d", got, epoch)
		}
		_, err := p.holder.GetState(t.Context(), &sequencerpb.GetStateRequest{Stream: key(p.descriptor)})
		if !reason.Is(err, reason.NotLeader) || reason.Meta(err, reason.KeyAddress) != p.successor.cfg.Address {
			t.Errorf("the former leader says %v", err)
		}
		p.goOn("at the successor")
		// If all drain, somebody must lead.
		p.successor.SetDraining(true)
		time.Sleep(10 * troubled.LeaseTTL)
		p.goOn("while both drain")
		p.holder.SetDraining(false)
		eventually(t, "the holder leads again", serves(p.holder))
		p.goOn("at the holder")
		p.end()
	})
}

// A node that stops hands its shards over first: nobody waits for its lease.
func TestStopHandsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.holder.stop()
		if !serves(p.successor)() {
			t.Error("the successor does not lead when the stop is over")
		}
		p.goOn("at the successor")
		p.end()
	})
}

// For balance a shard moves to the node it falls to, when both it and that node
// have been where they are for a while, and then stays.
func TestShardsMoveToWhereTheyFall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		cfg := troubled
		var first, second *leader
		// Weights make the second one win, whatever the names are.
		cfg.Weight = 1
		first = w.lead(cfg)
		cfg.Weight = 1 << 30
		began := time.Now()
		second = w.start(cfg)
		eventually(t, "the heavier leads", serves(second))
		if took := time.Since(began); took < settledLeases*cfg.LeaseTTL {
			t.Errorf("moved after %v, to a life that is hardly known", took)
		}
		epoch := second.epoch()
		time.Sleep(20 * cfg.LeaseTTL)
		if !serves(second)() || second.epoch() != epoch || serves(first)() {
			t.Errorf("the shard does not stay: epoch %d, then %d", epoch, second.epoch())
		}
		first.stop()
		second.stop()
	})
}

// handoffCalls are what the two say to each other.
var handoffCalls = []string{sequencerpb.SequencerService_OfferShard_FullMethodName, sequencerpb.SequencerService_TakeShard_FullMethodName}

// Each call of a handoff is lost, or its answer is, once or for ever.
func TestHandoffWithLostCalls(t *testing.T) {
	for _, method := range handoffCalls {
		for _, after := range []bool{false, true} {
			for _, always := range []bool{false, true} {
				t.Run(fmt.Sprint(method, "/after=", after, "/always=", always), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						p := newPair(t)
						var met atomic.Int64
						lost := func(m string, a bool) error {
							if m == method && a == after && (met.Add(1) == 1 || always) {
								return reason.New(codes.Unavailable, "", "lost")
							}
							return nil
						}
						p.holder.wire.onCall.Store(&lost)
						p.holder.SetDraining(true)
						p.goOn("around the loss")
						eventually(t, "the call is met", func() bool { return met.Load() > 0 })
						p.goOn("after the loss")
						if !always {
							eventually(t, "the successor leads", serves(p.successor))
						}
						p.goOn("at the end")
						p.end()
					})
				})
			}
		}
	}
}

// A process dies at each of its metastore calls during a handoff, before the
// call takes effect or after it; for the rest of time it is a zombie that reaches
// neither metastore nor peers, and acknowledges nothing that does not count.
func TestHandoffAndDeath(t *testing.T) {
	const most = 40 // calls of one process in a handoff: far fewer
	for _, who := range []string{"holder", "successor"} {
		for _, when := range []fault.When{fault.Before, fault.After} {
			for n := 1; ; n++ {
				reached := false
				t.Run(fmt.Sprint(who, "/call=", n, "/after=", when == fault.After), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { reached = handoffAndDeath(t, who, n, when) })
				})
				if !reached || t.Failed() {
					break
				}
				if n == most {
					t.Fatalf("a handoff makes more than %d calls", most)
				}
			}
		}
	}
}

// handoffAndDeath reports whether the process died before the handoff was over.
func handoffAndDeath(t *testing.T, who string, n int, when fault.When) (died bool) {
	p := newPair(t)
	victim := p.holder
	if who == "successor" {
		victim = p.successor
	}
	killed := victim.dieAt(n, when)
	p.holder.SetDraining(true)
	eventually(t, "the handoff is over, or the process dead", func() bool { return killed() || serves(p.successor)() })
	over := serves(p.successor)()
	p.goOn("around the death")
	p.goOn("after the death")
	if victim == p.successor && killed() {
		eventually(t, "the holder leads again", serves(p.holder))
	} else {
		eventually(t, "the successor leads", serves(p.successor))
	}
	died = killed() && !over
	p.end()
	return died
}

// dieAt kills a process at the n-th call about shards, chains and heads from now;
// who renews a lease meanwhile does not count. The result tells whether it is dead.
func (l *leader) dieAt(n int, when fault.When) func() bool {
	var calls atomic.Int64
	l.rows.Script(fault.Rule{Op: fault.Any, Hook: func(_ context.Context, _ fault.Op, path string) error {
		if !strings.HasPrefix(path, "life/") && calls.Add(1) == int64(n) {
			l.rows.KillAt(1, when)
		}
		return nil
	}})
	return func() bool {
		select {
		case <-l.rows.Killed():
			return true
		default:
			return false
		}
	}
}

// A leader is cut off and goes on as a zombie; who takes over dies at each of
// its metastore calls, too; a third one leads in the end (I2, I4, I5).
func TestTakeoverAndDeath(t *testing.T) {
	const most = 40
	for _, when := range []fault.When{fault.Before, fault.After} {
		for n := 1; ; n++ {
			died := false
			t.Run(fmt.Sprint("call=", n, "/after=", when == fault.After), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := newPair(t)
					killed := p.successor.dieAt(n, when)
					p.holder.rows.SetOutage(true)
					eventually(t, "another leads, or died trying", func() bool { return killed() || serves(p.successor)() })
					died = killed() && !serves(p.successor)()
					p.third.Store(p.w.start(troubled))
					p.goOn("around the deaths")
					if killed() {
						eventually(t, "the third leads", serves(p.third.Load()))
					}
					p.goOn("after the deaths")
					p.holder.rows.SetOutage(false)
					p.goOn("when the first is back")
					p.end()
				})
			})
			if !died || t.Failed() {
				break
			}
			if n == most {
				t.Fatalf("a takeover makes more than %d calls", most)
			}
		}
	}
}

// What a handoff asks of a life that cannot take a shard is declined, and the
// shard stays where it is, unharmed.
func TestOffersAreDeclined(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{LeaseTTL: time.Hour}) // it is not renewed meanwhile
	offer := func() error {
		_, err := l.OfferShard(t.Context(), &sequencerpb.OfferShardRequest{Shard: 0, Epoch: 1})
		return err
	}
	if err := offer(); err != nil {
		t.Errorf("a healthy life declines: %v", err)
	}
	l.SetDraining(true)
	if offer() == nil {
		t.Error("accepted while draining")
	}
	l.SetDraining(false)
	l.lease.mu.Lock()
	sent := l.lease.sent
	l.lease.sent = time.Time{}
	l.lease.mu.Unlock()
	if offer() == nil {
		t.Error("accepted without a lease")
	}
	l.lease.renewed(sent)
	l.endAdmitting()
	if offer() == nil {
		t.Error("accepted while stopping")
	}
	if _, err := l.OfferShard(t.Context(), &sequencerpb.OfferShardRequest{Shard: 7}); !reason.Is(err, reason.NoLeader) {
		t.Errorf("a shard that is not there: %v", err)
	}
}

// A shard that nobody released is not taken, whoever asks (I4).
func TestNothingIsTakenThatWasNotReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		epoch := p.holder.epoch()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := p.successor.TakeShard(ctx, &sequencerpb.TakeShardRequest{Shard: 0, Epoch: uint64(epoch)})
		if !reason.Is(err, reason.NotLeader) {
			t.Errorf("%v", err)
		}
		if !serves(p.holder)() || p.holder.epoch() != epoch {
			t.Error("the holder lost the shard")
		}
		p.end()
	})
}

// Nothing is answered from memory after the release (I4): the streams are gone
// from it before the record says so.
func TestNothingIsAnsweredAfterTheRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		released := make(chan error, 1)
		st, _ := p.holder.numbered(batch(p.descriptor))
		p.holder.rows.Script(fault.Rule{Op: fault.Put, Prefix: "shard/", Nth: 1, Hook: func(context.Context, fault.Op, string) error {
			st.mu.Lock()
			defer st.mu.Unlock()
			_, err := st.stateLocked()
			released <- err
			return nil
		}})
		p.holder.SetDraining(true)
		if err := receive(t, released); !reason.Is(err, reason.NotLeader) {
			t.Errorf("while it is released the holder answers %v", err)
		}
		eventually(t, "the successor leads", serves(p.successor))
		p.end()
	})
}

// A list of shards that is older than a handoff has the former holder take
// nothing back.
func TestAnOldListTakesNothingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		epoch := p.holder.epoch()
		// The successor hears of the release only when the holder has looked again.
		late := func(method string, after bool) error {
			if method == sequencerpb.SequencerService_TakeShard_FullMethodName && !after {
				p.holder.rows.Script(fault.Rule{Op: fault.Range, Do: fault.Stale})
				time.Sleep(vacantLeases * troubled.LeaseTTL * 3 / 4)
				p.holder.rows.Clear()
			}
			return nil
		}
		p.holder.wire.onCall.Store(&late)
		p.successor.rows.Script(fault.Rule{Op: fault.Range, Prefix: "shard/", Do: fault.FailBefore})
		p.holder.SetDraining(true)
		eventually(t, "the successor leads", serves(p.successor))
		if got := p.successor.epoch(); got != epoch+1 {
			t.Errorf("epoch %d after %d: the holder took it back between", got, epoch)
		}
		p.successor.rows.Clear()
		p.end()
	})
}

// What is under way when a handoff begins is decided first; if storage is slow,
// the shard stays.
func TestHandoffWaitsForWhatIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := w.lead(Config{})
		next := w.start(Config{})
		eventually(t, "the successor lives", func() bool { return next.lease.valid() })
		d := w.stream(nil)
		l.append(batch(d, "a"), 0, 1)
		w.writer.script(always(hold))
		pending := l.pending(batch(d, "b"))
		l.SetDraining(true)
		time.Sleep(quietPatience / 2)
		queued := l.begin(t.Context(), batch(d, "c"))
		synctest.Wait()
		silent(t, "what is under way", pending)
		silent(t, "what is queued", queued)
		w.writer.release()
		wantAck(t, receive(t, pending), 1, 2)
		wantFailure(t, receive(t, queued).err, reason.NotLeader, reason.NotCommitted)
		eventually(t, "the successor leads", serves(next))
		next.append(batch(d, "c"), 2, 3)
		w.wantStored(d, "a", "b", "c")
		l.stop()
		next.stop()
	})
}

// Rows of lives that are over go, unless a shard names them.
func TestEndedLivesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		gone := stream.NewLifeID().String()
		ended := &indexpb.Life{LifeId: gone, State: indexpb.LifeState_LIFE_STATE_DEAD}
		l := w.lead(Config{})
		if _, err := l.index.PutLife(t.Context(), ended, catalog.Absent); err != nil {
			t.Fatal(err)
		}
		count := func() (n int) {
			if err := l.index.EachLife(t.Context(), func(*indexpb.Life, int64) error { n++; return nil }); err != nil {
				t.Fatal(err)
			}
			return n
		}
		time.Sleep(lifeKept / 2)
		if count() != 2 {
			t.Error("a life is forgotten too soon")
		}
		time.Sleep(lifeKept)
		if count() != 1 {
			t.Error("a life that is over is never forgotten")
		}
		l.stop()
	})
}
