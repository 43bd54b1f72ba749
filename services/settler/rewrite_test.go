package settler

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/directory"
	metafault "github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/settled"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// few makes rewriting come soon.
const few = 3

// spans settles so many spans, in each of which every stream gets one record.
func (p *process) spans(w *world, c *written, n int, streams ...*log) {
	w.t.Helper()
	for range n {
		for _, l := range streams {
			l.append(1, 20)
		}
		c.absorb()
		if _, err := p.settle(w.ctx, c.id); err != nil {
			w.t.Fatal(err)
		}
	}
}

// generations says of each ref how often its records were rewritten.
func (l *log) generations() string {
	l.w.t.Helper()
	var out []string
	for _, r := range l.head().GetRefs() {
		out = append(out, fmt.Sprint(r.GetGeneration()))
	}
	return strings.Join(out, " ")
}

// key tells runs apart.
func key(r *indexpb.Ref) string { return fmt.Sprint(r.GetObject(), " ", r.GetRun()) }

// dropped returns the runs that markers lead to, and how often.
func (w *world) dropped() map[string]int {
	w.t.Helper()
	out := map[string]int{}
	for _, d := range w.due(queueUnref) {
		for _, r := range d.GetRefs() {
			out[key(r)]++
		}
	}
	return out
}

// I8: however many spans have something of a stream, its head names few runs.
func TestRunsOfManySpansBecomeFew(t *testing.T) {
	for _, runs := range []int{2, 3, 16} {
		one(t, func(t *testing.T, w *world, c *written) {
			const spans = 300
			a, b := w.open("first"), w.open("second")
			p := w.process(Config{RewriteRuns: runs})
			ever, written := map[string]bool{}, uint64(0)
			for i := 1; i <= spans; i++ {
				p.spans(w, c, 1, a, b)
				most := uint32(math.Log(float64(i))/math.Log(float64(runs)) + 1e-9)
				for _, l := range []*log{a, b} {
					h := l.head()
					if n := len(h.GetRefs()); n > runs*(int(most)+1) || len(h.GetPages()) > 0 {
						t.Fatalf("%d refs after %d spans: generations %s", n, i, l.generations())
					}
					for _, r := range h.GetRefs() {
						if !ever[key(r)] {
							written += r.GetNextSeq() - r.GetFirstSeq()
						}
						ever[key(r)] = true
						if r.GetGeneration() > most {
							t.Fatalf("after %d spans: generations %s", i, l.generations())
						}
					}
				}
			}
			w.wantSettled()
			w.check()
			// What was ever named has a marker, if it is not named any more, and nothing
			// else has.
			for _, l := range []*log{a, b} {
				for _, r := range l.head().GetRefs() {
					delete(ever, key(r))
				}
			}
			dropped := w.dropped()
			for k := range ever {
				if dropped[k] != 1 {
					t.Errorf("%s is named no more and has %d markers", k, dropped[k])
				}
			}
			if len(dropped) != len(ever) {
				t.Errorf("markers of %d runs, %d are named no more", len(dropped), len(ever))
			}
			// Each record is rewritten once per generation at most.
			if most := 2 * spans * (1 + math.Log(spans)/math.Log(float64(runs))); float64(written) > most {
				t.Errorf("%d records were written, want %.0f at most", written, most)
			}
		})
	}
}

func TestWhatIsRewritten(t *testing.T) {
	const small, large, day = 1000, rewriteBytes, 24 * 3600 * 1000
	for _, c := range []struct {
		name string
		gens []uint32                     // of the head's refs
		with func(i int, r *indexpb.Ref)  // changes one
		plan func(p *plan, memory *int64) // changes what is new
		want int                          // refs that are rewritten
		gen  uint32                       // of what they become
	}{
		{name: "too few", gens: []uint32{0, 0}},
		{name: "enough", gens: []uint32{0, 0, 0}, want: 3, gen: 1},
		{name: "more, from when it could not be", gens: []uint32{0, 0, 0, 0, 0}, want: 5, gen: 1},
		{name: "only the newest", gens: []uint32{1, 1, 0, 0, 0}, want: 3, gen: 1},
		{name: "too few of the newest", gens: []uint32{1, 1, 0, 0}},
		{name: "older ones, with the few after them", gens: []uint32{2, 1, 1, 1, 0, 0}, want: 5, gen: 2},
		{name: "all at once", gens: []uint32{1, 1, 1, 0, 0, 0}, want: 6, gen: 2},
		{name: "left behind", gens: []uint32{0, 0, 1, 1, 1}, want: 5, gen: 2},
		{name: "a large one ends it", gens: []uint32{0, 0, 0, 0}, with: func(i int, r *indexpb.Ref) {
			if i == 1 {
				r.Length = large
			}
		}},
		{name: "those after a large one", gens: []uint32{0, 0, 0, 0}, with: func(i int, r *indexpb.Ref) {
			if i == 0 {
				r.Length = large
			}
		}, want: 3, gen: 1},
		{name: "as much as fits", gens: []uint32{0, 0, 0, 0, 0}, plan: func(_ *plan, memory *int64) { *memory = 4 * 3900 }, want: 3, gen: 1},
		{name: "what fits is too few", gens: []uint32{0, 0, 0, 0, 0}, plan: func(_ *plan, memory *int64) { *memory = 4 * 3000 }},
		{name: "the rest of the memory is used", gens: []uint32{0, 0, 0}, plan: func(p *plan, _ *int64) { p.weight = 16<<20 - 2*small }},
		{name: "an object is full", gens: []uint32{0, 0, 0}, plan: func(p *plan, _ *int64) { p.bytes = 15 << 20 }},
		{name: "what is trimmed is not", gens: []uint32{0, 0, 0, 0}, plan: func(p *plan, _ *int64) { p.state.Trim = 15 }, want: 3, gen: 1},
		{name: "and is not counted", gens: []uint32{0, 0, 0, 0}, plan: func(p *plan, _ *int64) { p.state.Trim = 20 }},
		{name: "no more time than a week", gens: []uint32{0, 0, 0, 0}, with: func(i int, r *indexpb.Ref) {
			if i == 0 {
				r.FirstTimestamp = -8 * day
			}
		}, want: 3, gen: 1},
		{name: "no more time than an eighth of what is kept", gens: []uint32{0, 0, 0, 0}, with: func(i int, r *indexpb.Ref) {
			if i == 0 {
				r.FirstTimestamp = -day
			}
		}, plan: func(p *plan, _ *int64) { p.limits.age = 7 * 24 * time.Hour }, want: 3, gen: 1},
		{name: "no more bytes than an eighth of what is kept", gens: []uint32{0, 0, 0, 0}, plan: func(p *plan, _ *int64) { p.limits.bytes = 8 * 3 * small }, want: 3, gen: 1},
		{name: "nothing new", gens: []uint32{0, 0, 0}, plan: func(p *plan, _ *int64) { p.store = nil }},
		{name: "settled without", gens: []uint32{0, 0, 0}, plan: func(p *plan, _ *int64) { p.plain = true }},
		{name: "the log does not continue the refs", gens: []uint32{0, 0, 0}, plan: func(p *plan, _ *int64) { p.store[0].Chunk.BaseSeq++ }},
	} {
		h := &indexpb.Head{}
		for i, g := range c.gens {
			r := &indexpb.Ref{Generation: g, FirstSeq: uint64(10 * i), NextSeq: uint64(10*i + 10), Length: small}
			if c.with != nil {
				c.with(i, r)
			}
			h.Refs = append(h.Refs, r)
		}
		p := &plan{work: &work{}, head: h, store: []directory.Located{{Chunk: &chunk.Header{BaseSeq: stream.Seq(10 * len(c.gens))}}}}
		s := &span{engine: &engine{rewrites: few, memory: 64 << 20}} // groups and objects of 16 MiB
		if c.plan != nil {
			c.plan(p, &s.memory)
		}
		got := s.rewritten(p)
		switch {
		case c.want == 0 && got != nil:
			t.Errorf("%s: %d become one of generation %d", c.name, len(got.refs), got.generation)
		case c.want > 0 && (got == nil || len(got.refs) != c.want || got.generation != c.gen || got.bytes != int64(c.want)*small):
			t.Errorf("%s: %+v, want %d of generation %d", c.name, got, c.want, c.gen)
		}
	}
}

// A trim in the midst of what is rewritten: what is trimmed goes, frame by frame.
func TestTrimAmongWhatIsRewritten(t *testing.T) {
	for to := range 12 {
		one(t, func(t *testing.T, w *world, c *written) {
			l := w.open("first")
			p := w.process(Config{RewriteRuns: few})
			for range 3 {
				l.append(2, 20)
				c.land()
				l.append(1, 200_000) // a frame by itself
				c.absorb()
				if _, err := p.settle(t.Context(), c.id); err != nil {
					t.Fatal(err)
				}
			}
			before := l.head()
			l.trim(to)
			l.append(1, 1)
			c.absorb()
			p.must(w)
			h := l.head()
			dropped := w.dropped()
			dead := 0
			for _, r := range before.GetRefs() {
				if r.GetNextSeq() <= uint64(to) {
					dead++
				}
				if replaced := len(h.GetRefs()) == 1; dropped[key(r)] == 0 && (replaced || r.GetNextSeq() <= uint64(to)) {
					t.Errorf("trimmed to %d: no marker leads to %v", to, r)
				}
			}
			want := 1
			if dead > 0 && dead < 3 { // too few are left
				want = 4 - dead
			}
			if len(h.GetRefs()) != want {
				t.Errorf("trimmed to %d: %d refs", to, len(h.GetRefs()))
			}
			if first := h.GetRefs()[0]; dead == 0 && to > 1 && first.GetFirstSeq() != uint64(to) {
				t.Errorf("trimmed to %d: it begins at %d", to, first.GetFirstSeq())
			}
		})
	}
}

// tiers is a chain whose last span rewrites runs of one stream into generation 2,
// of another, in the same object, into 1, while a trim lies in the midst of them; a
// third has one that stays alone.
func (w *world) tiers() {
	w.t.Helper()
	c, d := w.newChain(), w.newChain()
	w.lead(0, c)
	w.lead(1, c)
	w.lead(2, d)
	a, b, other := w.open("first", 0), w.open("first", 1), w.open("first", 0)
	p := w.process(Config{RewriteRuns: few})
	p.spans(w, c, 9, a)
	for range few {
		b.append(1, 20)
		p.spans(w, c, 1, a, b)
	}
	b.trim(1)
	b.append(2, 2000)
	a.append(1, 30)
	c.land()
	other.append(1, 30)
	a.append(1, 30)
	c.absorb()
	w.open("first", 2).append(1, 1)
	d.absorb()
}

func wantTiers(w *world) {
	w.t.Helper()
	w.wantSettled()
	w.check()
	if a, b := w.logs[0].generations(), w.logs[1].generations(); a != "2" || b != "1" {
		w.t.Errorf("generations %q and %q", a, b)
	}
}

// I2, I6, I11: a settler that rewrites may die anywhere.
func TestDiesAnywhereWhileItRewrites(t *testing.T) {
	everyCrash(t, Config{RewriteRuns: few}, (*process).settleAll, (*world).tiers, wantTiers)
}

// I2, I6: nor is one call that fails any harm.
func TestOneCallFailsWhileItRewrites(t *testing.T) {
	everyFailure(t, Config{RewriteRuns: few}, (*process).settleAll, (*world).tiers)
}

func TestOldReadsWhileItRewrites(t *testing.T) {
	oldReads(t, Config{RewriteRuns: few}, (*process).settleAll, (*world).tiers)
}

// I2, I6, I11: two settlers rewrite the same runs, or one does and the other not.
func TestTwoRewriteAtOnce(t *testing.T) {
	twoAtOnce(t, Config{RewriteRuns: few}, (*process).settleAll, 60, (*world).tiers)
}

// I1, I2, I11: whatever is written and fails, it is found again.
func TestRewritesAnyHistory(t *testing.T) {
	anyHistory(t, Config{RewriteRuns: 2}, false)
}

// takeAway removes the object of a run.
func (w *world) takeAway(r *indexpb.Ref) {
	w.t.Helper()
	if err := w.objects.Delete(w.ctx, r.GetObject()); err != nil {
		w.t.Fatal(err)
	}
}

// change changes the object of a run.
func (w *world) change(r *indexpb.Ref, body []byte) {
	w.t.Helper()
	o, err := w.objects.Get(w.ctx, r.GetObject())
	if err == nil {
		_, err = w.objects.PutIfMatch(w.ctx, r.GetObject(), body, o.ETag)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// cut leaves so many bytes of the frames of a run.
func (w *world) cut(r *indexpb.Ref, n uint64) {
	w.t.Helper()
	o, err := w.objects.Get(w.ctx, r.GetObject())
	if err != nil {
		w.t.Fatal(err)
	}
	w.change(r, o.Body[:r.GetOffset()+n])
}

// An object that is gone, or damaged, keeps nobody from settling: its stream is
// settled without rewriting, and is not quarantined. Others are rewritten.
func TestWhatCannotBeReadIsNotRewritten(t *testing.T) {
	for name, harm := range map[string]func(w *world, p *process, r *indexpb.Ref){
		"gone":             func(w *world, _ *process, r *indexpb.Ref) { w.takeAway(r) },
		"a header damaged": func(w *world, _ *process, r *indexpb.Ref) { w.damage(r.GetObject(), int(r.GetOffset())+20) },
		"a payload damaged": func(w *world, _ *process, r *indexpb.Ref) {
			w.damage(r.GetObject(), int(r.GetOffset()+r.GetLength())-1)
		},
		"refused for good": func(_ *world, p *process, r *indexpb.Ref) {
			p.objects.Script(fault.Rule{Prefix: r.GetObject(), Do: fault.Permanent})
		},
		"the store is silent": func(_ *world, p *process, r *indexpb.Ref) {
			p.objects.Script(fault.Rule{Prefix: r.GetObject(), Do: fault.FailBefore})
		},
		"corrupted each time": func(_ *world, p *process, r *indexpb.Ref) {
			p.objects.Script(fault.Rule{Prefix: r.GetObject(), Do: fault.Corrupt})
		},
		"another run": func(w *world, _ *process, r *indexpb.Ref) {
			o, err := w.objects.Get(w.ctx, r.GetObject())
			if err != nil {
				w.t.Fatal(err)
			}
			b, _, err := chunk.Encode(nil, chunk.Input{StreamID: w.logs[0].id, BaseSeq: 5, Batches: []chunk.InputBatch{{Records: []stream.Record{{Seq: 5, Body: make([]byte, 20)}}}}})
			if err != nil {
				w.t.Fatal(err)
			}
			w.change(r, append(append(o.Body[:r.GetOffset():r.GetOffset()], b...), make([]byte, 200)...))
		},
		"other records": func(w *world, _ *process, r *indexpb.Ref) {
			o, err := w.objects.Get(w.ctx, r.GetObject())
			if err != nil {
				w.t.Fatal(err)
			}
			// All checksums are right, but for the content hash.
			frame := o.Body[r.GetOffset() : r.GetOffset()+r.GetLength()]
			h, n, err := chunk.ParseHeader(frame)
			if err != nil || h.Compression != chunk.CompressionNone {
				w.t.Fatal(h, err)
			}
			frame[len(frame)-1] ^= 1
			le, table := binary.LittleEndian, crc32.MakeTable(crc32.Castagnoli)
			le.PutUint32(frame[56:], crc32.Checksum(frame[n:], table))
			le.PutUint32(frame[n-4:], crc32.Checksum(frame[:n-4], table))
			w.change(r, o.Body)
		},
		"cut short": func(w *world, _ *process, r *indexpb.Ref) { w.cut(r, 10) },
		"empty":     func(w *world, _ *process, r *indexpb.Ref) { w.cut(r, 0) },
	} {
		one(t, func(t *testing.T, w *world, c *written) {
			bad, good := w.open("first"), w.open("second")
			p := w.process(Config{RewriteRuns: few})
			p.spans(w, c, few, bad, good)
			before := bad.head()
			harm(w, p, before.GetRefs()[1])
			bad.append(1, 20)
			good.append(1, 20)
			c.absorb()
			if _, err := p.settle(t.Context(), c.id); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			w.wantSettled()
			h := bad.head()
			if h.GetQuarantine() != "" || bad.generations() != "0 0 0 0" || good.generations() != "1" {
				t.Errorf("%s: quarantine %q, generations %q and %q", name, h.GetQuarantine(), bad.generations(), good.generations())
			}
			for _, r := range before.GetRefs() {
				if w.dropped()[key(r)] > 0 {
					t.Errorf("%s: a marker leads to %v", name, r)
				}
			}
			if !strings.Contains(p.logged.String(), bad.id.String()) {
				t.Errorf("%s: logged %q", name, p.logged)
			}
			p.objects.Clear()
			good.check(1)
			// The next span tries again.
			if name == "refused for good" || name == "the store is silent" {
				bad.append(1, 20)
				c.absorb()
				p.must(w)
				if bad.generations() != "1" {
					t.Errorf("%s: generations %q after it", name, bad.generations())
				}
			}
		})
	}
}

// A store that does not answer holds up a span once, not once per stream.
func TestSilenceHoldsUpNoSpan(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		var logs []*log
		for range 100 {
			logs = append(logs, w.open("first"))
		}
		const memory = 512 << 10 // of a span: many groups
		p := w.process(Config{RewriteRuns: few, SettleMemory: settlesAtOnce * memory})
		p.spans(w, c, few, logs...)
		p.objects.Script(fault.Rule{Op: fault.GetRange, Prefix: "settled/", Do: fault.FailBefore})
		start := time.Now()
		p.spans(w, c, 1, logs...)
		if took := time.Since(start); took > 2*patience {
			t.Errorf("it took %s", took)
		}
		w.wantSettled()
		p.objects.Clear()
		p.spans(w, c, 1, logs...)
		w.check()
		for i, l := range logs {
			if l.generations() != "1" {
				t.Errorf("stream %d: generations %q", i, l.generations())
			}
		}
	})
}

// Damage on the way is met by reading once more.
func TestRewritesInSpiteOfDamageOnTheWay(t *testing.T) {
	for _, do := range []fault.Action{fault.Corrupt, fault.Truncate, fault.Cut, fault.Throttle} {
		one(t, func(t *testing.T, w *world, c *written) {
			l := w.open("first")
			p := w.process(Config{RewriteRuns: few})
			p.spans(w, c, few, l)
			p.objects.Script(fault.Rule{Op: fault.GetRange, Prefix: "settled/", Nth: 2, Do: do})
			p.spans(w, c, 1, l)
			w.check()
			if l.generations() != "1" {
				t.Errorf("%v: generations %q", do, l.generations())
			}
		})
	}
}

// A run whose bytes are right and whose records are not is not rewritten, and
// damage to what is new is told from damage to what is old.
func TestOldRunsAreNotTheLog(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		l := w.open("first")
		p := w.process(Config{RewriteRuns: few})
		p.spans(w, c, few, l)
		l.append(1, 10)
		c.b = nil // its flight is lost
		w.leaders[l.shard].next--
		l.append(1, 1)
		l.broken = true
		c.absorb()
		if _, err := p.settle(t.Context(), c.id); err != nil {
			t.Fatal(err)
		}
		if h := l.head(); h.GetQuarantine() == "" || l.generations() != "0 0 0" || len(w.dropped()) > 0 {
			t.Errorf("%v", h)
		}
	})
}

// An old head names runs that were rewritten and are gone: the stream is taken up
// again.
func TestOldHeadWhoseRunsAreGone(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		l := w.open("first")
		p := w.process(Config{RewriteRuns: few})
		p.spans(w, c, few, l)
		old := l.head()
		l.append(1, 5)
		c.absorb()
		// The one before changed the head, and died.
		p.rows.Script(metafault.Rule{Op: metafault.Put, Prefix: "chain/", Do: metafault.FailBefore})
		if _, err := p.settle(t.Context(), c.id); err == nil || l.generations() != "1" {
			t.Fatalf("generations %q, %v", l.generations(), err)
		}
		p.rows.Clear()
		for _, r := range old.GetRefs() {
			w.takeAway(r)
		}
		p.rows.Script(metafault.Rule{Op: metafault.Get, Prefix: "head/", Nth: 1, Do: metafault.Stale})
		if _, err := p.settle(t.Context(), c.id); err != nil {
			t.Fatal(err)
		}
		w.wantSettled()
		l.check(0)
		if l.generations() != "1" || strings.Contains(p.logged.String(), "not rewritten") {
			t.Errorf("generations %q, logged %q", l.generations(), p.logged)
		}
	})
}

// Streams that are rewritten in one span share an object, and none has two runs.
func TestRewrittenRunsAreWhole(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		const memory = 4 << 20 // of a span: objects of 1 MiB
		var logs []*log
		for range 6 {
			logs = append(logs, w.open("first"))
		}
		p := w.process(Config{RewriteRuns: few, SettleMemory: settlesAtOnce * memory})
		most := int64(0) // read and not written yet
		p.objects.Script(fault.Rule{Op: fault.PutIfAbsent, Prefix: "settled/", Do: fault.Pass, Hook: func(context.Context, fault.Op, string) error {
			counts := p.objects.Counts()
			most = max(most, counts[fault.GetRange].Read-counts[fault.PutIfAbsent].Written)
			return nil
		}})
		for range few + 1 {
			for _, l := range logs {
				l.append(1, 70_000)
			}
			c.absorb()
			if _, err := p.settle(t.Context(), c.id); err != nil {
				t.Fatal(err)
			}
		}
		w.check()
		for i, l := range logs {
			if l.generations() != "1" {
				t.Errorf("stream %d: generations %q", i, l.generations())
			}
		}
		if most > memory/2 {
			t.Errorf("%d bytes were held, of a memory of %d", most, memory)
		}
	})
}

// What is rewritten goes into the next object if this one has no room for all of it.
func TestRewrittenRunIsNotSplit(t *testing.T) {
	s := &span{engine: &engine{memory: 64 << 10}} // objects of 16 KiB, 15 KiB of frames
	for _, c := range []struct {
		bytes     int64
		rewritten bool
		splits    bool
	}{{14 << 10, true, false}, {15 << 10, true, true}, {15 << 10, false, false}} {
		w := &writer{span: s, object: settled.NewBuilder()}
		p := &plan{bytes: c.bytes}
		if c.rewritten {
			p.rewrite = &rewrite{}
		}
		if got := w.splits(p); got != c.splits {
			t.Errorf("%d bytes to %d: splits %t", c.bytes, w.object.Size(), got)
		}
	}
}

// Streams that began together do not all hold up the same span.
func TestSpanRewritesLittleAtOnce(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		var logs []*log
		for range 100 {
			logs = append(logs, w.open("first"))
		}
		p := w.process(Config{})
		rewritten := func() (n int) {
			for _, l := range logs {
				if strings.HasPrefix(l.generations(), "1") {
					n++
				}
			}
			return n
		}
		p.spans(w, c, 17, logs...)
		if n, most := rewritten(), (1000+4*len(logs))/16; n != most {
			t.Errorf("the runs of %d streams were rewritten, want %d", n, most)
		}
		p.spans(w, c, 1, logs...)
		if n := rewritten(); n != len(logs) {
			t.Errorf("the runs of %d streams were rewritten", n)
		}
		for i, l := range logs {
			l.check(i)
		}
	})
}

// Rewriting costs no further change of a row per stream but for the marker.
func TestCostOfRewriting(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		l := w.open("first")
		p := w.process(Config{RewriteRuns: few})
		calls := func() map[string]int {
			before := p.index.calls()
			p.spans(w, c, 1, l)
			after := p.index.calls()
			for k := range after {
				after[k] -= before[k]
			}
			return after
		}
		plain := calls()
		p.spans(w, c, few-1, l)
		with := calls()
		if l.generations() != "1" {
			t.Fatalf("generations %q", l.generations())
		}
		plain["PutDue"]++
		plain["GetDescriptor"]-- // known by then
		for k := range with {
			if with[k] != plain[k] {
				t.Errorf("%s: %d calls, %d without rewriting", k, with[k], plain[k])
			}
		}
	})
}
