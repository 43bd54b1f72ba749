package sequencer

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// Producers append and send again what has no ack, while chains end,
// connections break, entries and answers get lost, streams leave memory, the
// metastore fails and leaders follow each other. Whatever happens: numbers have
// no gap, an acknowledged record is stored at its number, and each is stored
// once (I1, I2, I5).
func TestAcknowledgedRecordsKeepTheirNumbers(t *testing.T) {
	seeds := uint64(20)
	if testing.Short() {
		seeds = 5
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { chaos(t, rand.New(rand.NewPCG(seed, 3))) })
		})
	}
}

// troubled is a leader whose time passes quickly.
var troubled = Config{LeaseTTL: 300 * time.Millisecond, IdleStream: time.Millisecond}

// leaders are those that followed each other; the last is the present one.
type leaders struct {
	mu  sync.Mutex
	all []*leader
}

func (ls *leaders) present() *leader {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.all[len(ls.all)-1]
}

func (ls *leaders) add(l *leader) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.all = append(ls.all, l)
}

func chaos(t *testing.T, r *rand.Rand) {
	w := newWorld(t)
	ls := &leaders{}
	ls.add(w.lead(troubled))
	streams := []*indexpb.StreamDescriptor{w.stream(nil), w.stream(nil)}
	var producers sync.WaitGroup
	acked := make([]map[string]uint64, 6)
	var enough atomic.Bool
	for i := range acked {
		acked[i] = map[string]uint64{}
		pace := rand.New(rand.NewPCG(r.Uint64(), 0))
		producers.Go(func() { produce(t, &enough, pace, ls, streams[i%2], fmt.Sprint("p", i), acked[i]) })
	}
	for range troubles {
		time.Sleep(time.Duration(r.IntN(60)) * time.Millisecond) // part of the schedule
		w.trouble(t, r, ls)
	}
	enough.Store(true)
	producers.Wait()
	for i, d := range streams {
		bodies := w.stored(d)
		total := 0
		for p := i; p < len(acked); p += 2 {
			total += len(acked[p])
			for body, number := range acked[p] {
				if number >= uint64(len(bodies)) || bodies[number] != body {
					t.Errorf("%s was acknowledged as number %d, and is not stored there", body, number)
				}
			}
		}
		if len(bodies) != total || total == 0 {
			t.Errorf("stream %d: %d records are stored, %d were acknowledged", i, len(bodies), total)
		}
	}
	for _, l := range ls.all {
		l.stop()
	}
}

const (
	troubles = 60
	maxTries = 3000 // of one batch: a minute
)

func produce(t *testing.T, enough *atomic.Bool, pace *rand.Rand, ls *leaders, d *indexpb.StreamDescriptor, id string, acked map[string]uint64) {
	for n := uint64(0); !enough.Load(); n++ {
		body := fmt.Sprint(id, "/", n)
		time.Sleep(time.Duration(pace.IntN(50)) * time.Millisecond)
		req := &novapb.AppendRequest{Bucket: "bucket", Stream: d.GetName(), Records: records(body), ProducerId: id, BatchSeq: n}
		for tries := 0; ; tries++ {
			res, err := ls.present().Append(t.Context(), req)
			if err == nil {
				acked[body] = res.GetAck().GetFirstSeq()
				break
			}
			// Nothing else may come of it than that it is tried again.
			if reason.OutcomeOf(err) == "" || reason.Is(err, reason.ProducerGap) || reason.Is(err, reason.StreamQuarantine) || tries == maxTries {
				t.Errorf("%s: %v", body, err)
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// lapse keeps the leader from renewing its lease until another leads.
func (l *leader) lapse() *leader {
	l.w.t.Helper()
	next := l.w.start(troubled)
	l.rows.SetOutage(true)
	eventually(l.w.t, "another leads", func() bool { return next.shard() != nil && next.shard().serving.Load() })
	l.rows.SetOutage(false)
	receive(l.w.t, l.ended)
	return next
}

// handDown has the leader hand its shard to another, and end.
func (l *leader) handDown() *leader {
	l.w.t.Helper()
	next := l.w.start(troubled)
	l.SetDraining(true)
	eventually(l.w.t, "another leads", func() bool { return next.shard() != nil && next.shard().serving.Load() })
	l.stop()
	return next
}

// trouble makes some.
func (w *world) trouble(t *testing.T, r *rand.Rand, ls *leaders) {
	l := ls.present()
	switch r.IntN(10) {
	case 0, 1:
		w.writer.disconnect()
	case 2:
		if err := w.writer.end(t.Context()); err != nil {
			t.Error(err)
		}
	case 3, 4:
		// Some entries, or what became of them, get lost before the connection breaks.
		does := []fate{lose, unheard, hold}[r.IntN(3)]
		var left atomic.Int64
		left.Store(int64(r.IntN(4)))
		w.writer.script(func(*chainwriterpb.Entry) fate {
			if left.Add(-1) >= 0 {
				return land
			}
			return does
		})
		time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond)
		w.writer.script(nil)
		w.writer.disconnect()
	case 5:
		var once atomic.Bool
		w.writer.script(func(*chainwriterpb.Entry) fate {
			if once.CompareAndSwap(false, true) {
				return fence
			}
			return land
		})
	case 6:
		l.evictIdle()
	case 7:
		do := []fault.Action{fault.FailBefore, fault.LoseReply, fault.OwnConflict}[r.IntN(3)]
		rows := []string{"shard/", "head/"}[r.IntN(2)]
		l.rows.Script(fault.Rule{Op: fault.Write, Prefix: rows, Nth: 1 + r.IntN(3), Do: do})
		l.rows.Script(fault.Rule{Op: fault.Get, Prefix: rows, Nth: 1 + r.IntN(3), Do: fault.Stale, Back: 1 + r.IntN(2)})
	case 8:
		if len(ls.all) < 4 {
			ls.add(l.lapse())
		}
	case 9:
		if len(ls.all) < 4 {
			ls.add(l.handDown())
		}
	}
}
