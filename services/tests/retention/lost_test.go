package retention

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/export"
	metafault "github.com/nova-stream/nova/libs/metastore/fault"
	metamem "github.com/nova-stream/nova/libs/metastore/mem"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
	"github.com/nova-stream/nova/services/restore"
)

// lossy is a constellation in use whose metastore is lost now and then, and comes
// back from the bucket.
type lossy struct {
	*day

	r     *rand.Rand
	pace  pace
	parts latch // held while processes end and are started

	mu    sync.Mutex
	ended []*generation // streams that are deleted
	found []*slot       // streams of the lost-and-found bucket that are not among the slots yet
	// How often each came, for the report.
	losses, older, deaths, lost, back, unmade, undead int
}

// How much longer than the slack of retention records may stay after a restore: what
// an export did not know to be settled is settled again, in one span.
const lateAfterLoss = 4 * exports

// newLossy makes one with streams of every kind of limits.
func newLossy(t testing.TB, seed uint64, names int) *lossy {
	r, p := rand.New(rand.NewPCG(seed, 7)), busy
	p.exportRate = 1 + r.IntN(5) // so that rows change while they are exported
	l := &lossy{day: &day{world: newWorld(t, p)}, r: r, pace: p, parts: make(latch, 1)}
	l.connect()
	l.ready()
	for i := range bucketCount {
		l.must(l.try(func(ctx context.Context) error {
			_, err := l.buckets.CreateBucket(ctx, &novapb.CreateBucketRequest{Bucket: bucketName(i)})
			return err
		}))
	}
	time.Sleep(2*exports + 10*time.Minute) // a bucket that no export knows is lost with its streams' names
	for i := range names {
		// A kind of limits is that of bucketCount numbers; the first few are special.
		s := newSlot(bucketCount*i+2+i%2, rand.New(rand.NewPCG(seed, uint64(i)+20)), l.r)
		s.bucket = bucketName(i % bucketCount)
		s.every, s.size = time.Minute+time.Duration(l.r.Int64N(int64(15*time.Minute))), 300
		if s.quietAfter > 0 {
			s.quietAfter = time.Hour
		}
		s.next = time.Now()
		l.slots = append(l.slots, s)
	}
	l.each(l.slots, func(s *slot) { l.create(s) })
	return l
}

// liveAndLose lets a time pass in which the constellation is used, and the metastore
// lost after a while.
func (l *lossy) liveAndLose(length, after time.Duration) {
	var all sync.WaitGroup
	l.over.Store(false)
	for range 2 {
		r := rand.New(rand.NewPCG(l.r.Uint64(), 1))
		all.Go(func() { l.readOn(r) })
	}
	trouble, lose := rand.New(rand.NewPCG(l.r.Uint64(), 2)), rand.New(rand.NewPCG(l.r.Uint64(), 3))
	all.Go(func() { l.troubleOn(trouble) })
	all.Go(func() {
		time.Sleep(after)
		l.lose(lose)
	})
	l.writeOn(rand.New(rand.NewPCG(l.r.Uint64(), 4)), length)
	l.over.Store(true)
	all.Wait()
	l.slots, l.found = append(l.slots, l.found...), nil
}

// writeOn appends, trims, deletes and makes again.
func (l *lossy) writeOn(r *rand.Rand, length time.Duration) {
	for end := time.Now().Add(length); time.Now().Before(end) && !l.t.Failed(); {
		now := time.Now()
		var due []*slot
		for _, s := range l.slots {
			switch {
			case s.now.Load() == nil:
				if now.After(s.dead) && s.bucket != restore.LostAndFound {
					s.mu.Lock()
					l.create(s)
					s.mu.Unlock()
				}
			case !now.Before(s.next) && (s.quietAfter == 0 || now.Sub(s.begun) < s.quietAfter):
				due = append(due, s)
			}
		}
		l.each(due, func(s *slot) {
			g := s.now.Load()
			if g == nil {
				return
			}
			l.append(s)
			if s.now.Load() != g {
				l.retire(g)
			}
			s.next = now.Add(s.every/2 + time.Duration(s.rand.Int64N(int64(s.every))))
		})
		if r.IntN(4) == 0 {
			l.trim(l.slots[r.IntN(len(l.slots))])
		}
		if r.IntN(12) == 0 {
			s := l.slots[r.IntN(len(l.slots))]
			g := s.now.Load()
			l.remove(s)
			if g != nil {
				l.retire(g)
			}
		}
		time.Sleep(time.Until(now.Add(time.Minute)))
	}
}

// retire notes that a stream is deleted, or lost.
func (l *lossy) retire(g *generation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = append(l.ended, g)
}

func (l *lossy) readOn(r *rand.Rand) {
	for !l.over.Load() && !l.t.Failed() {
		time.Sleep(time.Duration(r.Int64N(int64(3 * time.Minute))))
		l.look(l.slots[r.IntN(len(l.slots))], r, r.IntN(3) == 0)
	}
}

// troubleOn has processes die and come back.
func (l *lossy) troubleOn(r *rand.Rand) {
	for {
		wait := time.Now().Add(5*time.Minute + time.Duration(r.Int64N(int64(20*time.Minute))))
		for time.Now().Before(wait) {
			time.Sleep(time.Minute)
			if l.over.Load() || l.t.Failed() {
				return
			}
		}
		id := callersFirst[2+r.IntN(len(callersFirst)-4)]
		l.parts.Lock()
		l.deaths++
		l.replace(id, r.IntN(3) > 0, r.Int64N(60), time.Duration(r.Int64N(int64(20*time.Second))), time.Duration(r.Int64N(int64(20*time.Second))))
		l.parts.Unlock()
	}
}

// lose kills all processes, each after some more calls, loses the metastore, and
// restores it from the bucket. Calls of clients are under way meanwhile, and are
// tried again until they are answered.
func (l *lossy) lose(r *rand.Rand) {
	l.parts.Lock()
	defer l.parts.Unlock()
	for _, id := range callersFirst {
		l.part(id).mortal.left.Store(r.Int64N(300))
	}
	time.Sleep(time.Duration(r.Int64N(int64(30 * time.Second))))
	for _, id := range callersFirst {
		l.world.end(id, true, 0, 0)
	}
	l.losses++
	if r.IntN(3) == 0 {
		l.damageNewest()
	}
	rows := newLedger(metamem.New())
	report := l.restore(r, rows)
	if report == nil {
		l.startAll(l.pace) // so that all can be ended
		return
	}
	if report.Damage != report.Skipped {
		l.t.Errorf("the restore found damage: %+v", report)
	}
	l.rows, l.others = rows, len(rows.all("bucket"))-bucketCount
	l.compare(report)
	l.startAll(l.pace)
	l.ready()
	for _, s := range l.found {
		l.learn(s)
	}
	l.note("restored %+v", *report)
}

// damageNewest takes a part of the newest complete export away, if there is one before
// it.
func (l *lossy) damageNewest() {
	var st indexpb.ExportState
	(&accounts{day: l.day}).row(l.rows.all("export")[0], &st)
	var complete []*indexpb.ExportEntry
	for _, e := range st.GetExports() {
		if e.GetComplete() {
			complete = append(complete, e)
		}
	}
	if len(complete) < 2 {
		return
	}
	slices.SortFunc(complete, func(a, b *indexpb.ExportEntry) int { return int(int64(b.GetNumber()) - int64(a.GetNumber())) })
	l.must(l.objects.Delete(context.Background(), export.PartKey(complete[0].GetExportId(), 0)))
	l.older++
}

// restore restores, and dies at some calls before it succeeds.
func (l *lossy) restore(r *rand.Rand, rows *ledger) *restore.Report {
	for try := 0; ; try++ {
		objects, meta := fault.New(l.world.objects), metafault.New(rows)
		if try < r.IntN(4) {
			if when := r.IntN(2); r.IntN(2) == 0 {
				objects.KillAt(1+r.IntN(400), []fault.When{fault.Before, fault.After}[when])
			} else {
				meta.KillAt(1+r.IntN(600), []metafault.When{metafault.Before, metafault.After}[when])
			}
		}
		report, err := restore.Run(context.Background(), restore.Deps{Objects: objects, Metastore: meta, Log: slog.New(&complaints{t: l.t})})
		switch {
		case err == nil:
			return report
		case try > 10:
			l.t.Errorf("restore: %v", err)
			return nil
		}
		l.deaths++
	}
}

// compare says what the names mean now. Whatever existed when the export began is
// there under its name; what was made later is in the lost-and-found bucket if it has
// records, and what was deleted is gone.
func (l *lossy) compare(report *restore.Report) {
	l.mu.Lock()
	defer l.mu.Unlock()
	names := map[string]string{}
	for _, key := range l.rows.all("name") {
		var n indexpb.NameRecord
		(&accounts{day: l.day}).row(key, &n)
		names[n.GetBucket()+"/"+n.GetName()] = n.GetStreamId()
	}
	known := map[string]bool{}
	for _, s := range append(slices.Clone(l.slots), l.found...) {
		g := s.now.Load()
		if g == nil {
			continue
		}
		g.mu.Lock()
		g.late = max(g.late, lateAfterLoss)
		acked := len(g.times) > 0
		before := acked && time.UnixMilli(g.times[0]).Before(report.BegunAt) || g.created.Add(patience).Before(report.BegunAt)
		g.mu.Unlock()
		known[g.id] = true
		certain := !g.mayBeGone(time.Now())
		is, there := names[s.bucket+"/"+s.name]
		in := names[restore.LostAndFound+"/"+g.id] == g.id
		switch {
		case is == g.id:
			l.back++
			continue
		case !certain && !in:
			continue // the next append finds out
		case there:
			l.t.Errorf("%s means %s, it meant %s", s.name, is, g.id)
		case before && certain:
			l.t.Errorf("%s %s was there when the export began, and has no name", s.name, g.id)
		case acked && !in:
			l.t.Errorf("%s %s has records, and is not in the lost-and-found bucket", s.name, g.id)
		}
		if in {
			l.found = append(l.found, g.kept())
			l.lost++
		} else {
			l.unmade++
		}
		g.mu.Lock()
		g.deleting = true // so far as its name goes
		g.mu.Unlock()
		s.now.Store(nil)
	}
	for _, g := range l.ended {
		for name, id := range names {
			if id != g.id || known[id] {
				continue
			}
			g.mu.Lock()
			gone := g.gone
			g.mu.Unlock()
			// Its records may be in a chain that the entry that deleted it is not in.
			if name != restore.LostAndFound+"/"+id || gone.After(report.BegunAt) {
				l.t.Errorf("%s %s was deleted at %v, and is back as %s", g.name, g.id, gone, name)
				continue
			}
			l.found = append(l.found, g.kept())
			l.undead++
		}
		known[g.id] = true
	}
	for name, id := range names {
		if strings.HasPrefix(name, restore.LostAndFound+"/") && !known[id] {
			l.t.Errorf("nobody made %s", name)
		}
	}
}

// kept is the stream in the lost-and-found bucket, where records are kept for ever.
func (g *generation) kept() *slot {
	g.mu.Lock()
	defer g.mu.Unlock()
	cfg := proto.CloneOf(g.cfg)
	cfg.DeleteOnEmptyMsPresence = nil
	c := &generation{
		bucket: restore.LostAndFound, name: g.id, cfg: cfg, seed: g.seed, size: g.size, created: g.created, producer: stream.NewID().String(),
		id: g.id, sent: g.sent, times: slices.Clone(g.times), trimmed: g.trimmed, trimming: g.trimming, late: 1 << 62,
	}
	s := &slot{
		mu: make(latch, 1), bucket: c.bucket, name: c.name, rand: rand.New(rand.NewPCG(g.seed, 5)), most: 3, burst: 1, size: g.size,
		every: 5 * time.Minute, begun: time.Now(), cfg: cfg, next: time.Now(),
	}
	s.now.Store(c)
	return s
}

// learn reads what of the last batch of a stream in the lost-and-found bucket was
// stored: nobody was told.
func (l *lossy) learn(s *slot) {
	g := s.now.Load()
	for {
		next := uint64(len(g.times))
		var res *novapb.ReadResponse
		err := l.try(func(ctx context.Context) (err error) {
			res, err = l.reads.Read(ctx, &novapb.ReadRequest{Bucket: s.bucket, Stream: s.name, Start: &novapb.ReadRequest_Seq{Seq: next}})
			return err
		})
		if reason.Is(err, reason.Trimmed) && next < uint64(g.sent) {
			// A trim of all that is stored was under way, too; whether it came is not known.
			l.t.Errorf("%s: %v", s.name, err)
			return
		}
		if err != nil {
			l.t.Errorf("%s, from %d on: %v", s.name, next, err)
			return
		}
		if len(res.GetRecords()) == 0 {
			g.sent = len(g.times)
			return
		}
		for _, record := range res.GetRecords() {
			g.times = append(g.times, record.GetTimestamp())
		}
	}
}

// The metastore is lost at any time, with work going on and processes dying, and comes
// back from the newest export, or the one before it: every record that was acknowledged
// and not trimmed is there with its number, byte for byte, now and later (I1, I2); a
// batch that is sent again is stored once (I5); what was deleted is gone; and in the
// end every object and every row has a reason (I11).
func TestTheMetastoreIsLostAtAnyTime(t *testing.T) {
	seed := lossSeed(t)
	if testing.Short() {
		loseRepeatedly(t, seed, 8, 1, false)
		return
	}
	for i := range uint64(2) {
		t.Run(fmt.Sprint("seed ", seed+i), func(t *testing.T) { loseRepeatedly(t, seed+i, 12, 2, i == 0) })
	}
}

// lossSeed is what the choices of a run are made from: NOVA_SEED, or always the same.
func lossSeed(t *testing.T) uint64 {
	text := os.Getenv("NOVA_SEED")
	if text == "" {
		return 1
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("NOVA_SEED: %v", err)
	}
	return n
}

// loseRepeatedly loses the metastore so often. whole: until nothing is left to do.
func loseRepeatedly(t *testing.T, seed uint64, names, losses int, whole bool) {
	took := clock()
	synctest.Test(t, func(t *testing.T) {
		l := newLossy(t, seed, names)
		defer l.close()
		for range losses {
			length := 20*time.Minute + time.Duration(l.r.Int64N(int64(100*time.Minute)))
			l.liveAndLose(length, time.Duration(l.r.Int64N(int64(length))))
			l.lookAll(l.r)
			if t.Failed() {
				return
			}
		}
		l.note("%d records, %d reads, %d trims, %d deletes; lost %d times, %d of them with the newest export as well, %d deaths; %d streams were found by their names, %d in lost-and-found, %d were gone, %d deleted ones were back; took %v",
			l.records.Load(), l.reading.Load(), l.trims.Load(), l.deletes.Load(), l.losses, l.older, l.deaths, l.back, l.lost, l.unmade, l.undead, took())
		if whole {
			l.finish()
		} else {
			time.Sleep(2*exports + 20*time.Minute) // all that was there is settled, and verified when it is an hour old
			l.lookAll(l.r)
			(&accounts{day: l.day}).verify()
		}
		l.note("all took %v", took())
	})
}
