package settler

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/history"
	metafault "github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/settled"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/settler/v1"
)

// compact moves what is named out of an object.
func (p *process) compact(ctx context.Context, key string) (*compaction, error) {
	c := &compaction{span: &span{engine: p.engine, name: key}, key: key}
	err := c.run(ctx)
	return c, err
}

// compactAll does so for all objects that markers lead to. What waits for the judge of an
// object whose maker died is no failure.
func (p *process) compactAll(ctx context.Context, w *world) error {
	var failed error
	for _, d := range w.due(catalog.QueueCompact) {
		c, err := p.compact(ctx, d.GetObject())
		if err == nil && c.left > 0 && w.state(c.key) == indexpb.SettledState_SETTLED_STATE_ADOPTED {
			err = fmt.Errorf("%d runs of %s are left", c.left, c.key)
		}
		failed = errors.Join(failed, err)
	}
	return failed
}

func (w *world) state(object string) indexpb.SettledState {
	w.t.Helper()
	r, _, err := w.catalog().GetSettled(w.ctx, object)
	if err != nil && !catalog.IsNotFound(err) {
		w.t.Fatal(err)
	}
	return r.GetState()
}

// reap does what a reaper does with what heads dropped: it clears bits, and an object
// without one goes.
func (w *world) reap() {
	w.t.Helper()
	ix := w.catalog()
	must := func(err error) {
		w.t.Helper()
		if err != nil {
			w.t.Fatal(err)
		}
	}
	markers, err := ix.ListDue(w.ctx, queueUnref, time.Now().Add(100*24*time.Hour), 1000)
	must(err)
	for _, m := range markers {
		id, err := stream.ParseID(m.Due.GetStreamId())
		must(err)
		h, _, err := ix.BumpHead(w.ctx, id)
		if catalog.IsNotFound(err) {
			h, err = &indexpb.Head{}, nil
		}
		must(err)
		drop := func(r *indexpb.Ref) error {
			is, err := history.Names(w.ctx, w.load(id), h, r)
			must(err)
			if !is {
				w.clear(r)
			}
			return nil
		}
		for _, r := range m.Due.GetRefs() {
			_ = drop(r)
		}
		page := func(p *indexpb.RefPage) error {
			return drop(&indexpb.Ref{Object: p.GetObject(), FirstSeq: p.GetFirstSeq(), NextSeq: p.GetNextSeq()})
		}
		for _, p := range m.Due.GetPages() {
			must(history.WalkPage(w.ctx, w.load(id), p, drop, page))
			_ = page(p)
		}
		must(ix.DropDue(w.ctx, m))
	}
}

func (w *world) clear(r *indexpb.Ref) {
	w.t.Helper()
	ix := w.catalog()
	row, version, err := ix.UpdateSettled(w.ctx, r.GetObject(), func(row *indexpb.SettledObject) (bool, error) {
		before := proto.CloneOf(row)
		catalog.ClearRun(row, r.GetRun(), settled.RunBytes(r.GetLength(), r.GetIndexLength()))
		if !settled.Live(row.GetLive()).Any() && row.GetState() == indexpb.SettledState_SETTLED_STATE_ADOPTED {
			row.State = indexpb.SettledState_SETTLED_STATE_CONDEMNED
		}
		if catalog.ToCompact(before, row) {
			return true, ix.ArmCompact(w.ctx, r.GetObject(), time.Now())
		}
		return true, nil
	})
	if catalog.IsNotFound(err) {
		return
	}
	if err == nil && row.GetState() == indexpb.SettledState_SETTLED_STATE_CONDEMNED && !settled.Live(row.GetLive()).Any() {
		if err = w.objects.Delete(w.ctx, r.GetObject()); err == nil {
			err = ix.DeleteSettled(w.ctx, r.GetObject(), version)
		}
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// wasteful leaves an object of seven runs of which a marker says that it is mostly dead:
// heads name two runs of one kind and one of another, and that of the first stream is in
// a page.
func (w *world) wasteful() {
	w.t.Helper()
	c := w.newChain()
	for n := range stream.Shard(shards) {
		w.lead(n, c)
	}
	p := w.process(Config{RewriteRuns: -1})
	var dead []*log
	for i := range 7 {
		l := w.open("first")
		l.append(2, 10_000)
		if i > 2 {
			dead = append(dead, l)
		}
	}
	c.absorb()
	p.must(w)
	paged := w.logs[0]
	for range 64 {
		paged.append(1, 5)
		c.absorb()
		if _, err := p.settle(w.ctx, c.id); err != nil {
			w.t.Fatal(err)
		}
	}
	for _, l := range dead {
		l.trim(2)
	}
	w.logs[2].limit(time.Hour, 0)
	c.absorb()
	p.must(w)
	w.reap()
	if n := len(paged.head().GetPages()); n != 1 || len(w.due(catalog.QueueCompact)) != 1 {
		w.t.Fatalf("%d pages, markers %v", n, w.due(catalog.QueueCompact))
	}
}

func (w *world) wastes() string { return w.due(catalog.QueueCompact)[0].GetObject() }

// moved sees that the wasteful object goes, and that nothing is lost by it.
func (w *world) moved() {
	w.t.Helper()
	key := w.wastes()
	w.check()
	if runs := w.named()[key]; len(runs) > 0 {
		w.t.Errorf("heads name %d runs of it", len(runs))
	}
	w.reap()
	w.check()
	if _, err := w.objects.Get(w.ctx, key); err == nil {
		w.t.Errorf("the object is there still")
	}
}

// I8, I2: what heads name of an object that is mostly dead moves, whether it is in a
// page or not, to where streams of its kind are; then the object goes.
func TestWhatIsNamedMovesOutOfADeadObject(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		w.wasteful()
		key := w.wastes()
		p := w.process(Config{})
		before := w.logs[1].head().GetRefs()[0]
		at := time.Now()
		c, err := p.compact(t.Context(), key)
		if err != nil || c.moved != 3 || c.left != 0 || c.kept != 0 || c.bytes != p.metrics.compactedBytes.Load() || c.bytes < 60_000 {
			t.Fatalf("moved %d runs, %d bytes, left %d, kept %d: %v", c.moved, c.bytes, c.left, c.kept, err)
		}
		for _, d := range w.due(queueUnref) {
			if d.GetAt() < at.Add(p.grace).UnixMilli() {
				t.Errorf("what readers may need is dropped after %v", time.UnixMilli(d.GetAt()).Sub(at))
			}
		}
		var to []string
		for _, l := range w.logs[:3] {
			r, err := history.Find(t.Context(), w.load(l.id), l.head(), 0)
			if err != nil {
				t.Fatal(err)
			}
			to = append(to, r.GetObject())
			if r.GetGeneration() != 0 || r.GetFrames() != before.GetFrames() {
				t.Errorf("it is another run: %v", r)
			}
		}
		if to[0] != to[1] || to[0] == to[2] || to[0] == key {
			t.Errorf("moved to %v", to)
		}
		row, _, err := w.catalog().GetSettled(t.Context(), to[0])
		if err != nil || row.GetLiveBytes()+100 < row.GetSize() || row.GetLiveBytes() > row.GetSize() || row.GetState() != indexpb.SettledState_SETTLED_STATE_ADOPTED {
			t.Errorf("%v, %v", row, err)
		}
		_, written := p.calls()
		if c, err := p.compact(t.Context(), key); err != nil || c.moved != 0 || c.left != 0 {
			t.Errorf("once more: moved %d, left %d: %v", c.moved, c.left, err)
		}
		if _, n := p.calls(); n > written+2 {
			t.Errorf("%d calls of the store for nothing", n-written)
		}
		w.moved()
		if c, err := p.compact(t.Context(), key); err != nil || c.moved != 0 || c.left != 0 {
			t.Errorf("of an object that is gone: moved %d, left %d: %v", c.moved, c.left, err)
		}
	})
}

// I2, I6, I11: whoever compacts may die anywhere.
func TestDiesAnywhereWhileItCompacts(t *testing.T) {
	everyCrash(t, Config{}, (*process).compactAll, (*world).wasteful, (*world).moved)
}

// I2, I6: nor is one call that fails any harm.
func TestOneCallFailsWhileItCompacts(t *testing.T) {
	everyFailure(t, Config{}, (*process).compactAll, (*world).wasteful)
}

func TestOldReadsWhileItCompacts(t *testing.T) {
	oldReads(t, Config{}, (*process).compactAll, (*world).wasteful)
}

// I2, I6, I11: two compact one object, of which one may die; or one does while the
// other settles what was appended, trimmed and deleted.
func TestTwoCompactAtOnce(t *testing.T) {
	twoAtOnce(t, Config{}, (*process).compactAll, 12, (*world).wasteful)
	twoAtOnce(t, Config{RewriteRuns: few}, func(p *process, ctx context.Context, w *world) error {
		return errors.Join(p.settleAll(ctx, w), p.compactAll(ctx, w))
	}, 24, func(w *world) {
		w.wasteful()
		c := w.chains[0]
		w.logs[0].append(2, 20)
		w.logs[1].append(1, 20)
		w.logs[2].append(1, 20)
		c.absorb()
		w.logs[0].trim(1)
		w.logs[1].trim(2)
		w.logs[2].delete()
		c.absorb()
	})
}

// I1, I2, I11: whatever is written, dropped and compacted, and fails, every record is
// found again.
func TestCompactsAnyHistory(t *testing.T) {
	anyHistory(t, Config{RewriteRuns: 2}, true)
}

// wantCompact sees that no object that heads name is mostly dead, but for those that are
// judged first.
func (w *world) wantCompact() {
	w.t.Helper()
	for object, runs := range w.named() {
		r, _, err := w.catalog().GetSettled(w.ctx, object)
		if err != nil {
			w.t.Fatal(err)
		}
		if r.GetState() == indexpb.SettledState_SETTLED_STATE_ADOPTED && catalog.MostlyDead(r) && !w.deletes(object) {
			w.t.Errorf("heads name %d runs of %v", len(runs), r)
		}
	}
}

// deletes reports whether a deleted stream has a run of an object, which its teardown
// drops.
func (w *world) deletes(object string) bool {
	w.t.Helper()
	for _, l := range w.logs {
		if h := l.head(); h.GetState() == indexpb.HeadState_HEAD_STATE_DELETED {
			for _, r := range h.GetRefs() {
				if r.GetObject() == object {
					return true
				}
			}
		}
	}
	return false
}

// I2: while an object holds a run of a quarantined stream nothing is moved out of it:
// it would stay all the same.
func TestQuarantinedStreamKeepsItsObject(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		w.wasteful()
		l := w.logs[1]
		l.quarantine(0, w.chains[0])
		before := l.head()
		p := w.process(Config{})
		c, err := p.compact(t.Context(), w.wastes())
		if err != nil || c.kept != 1 || c.moved != 0 || c.left != 0 || len(w.due(queueUnref)) != 0 {
			t.Errorf("moved %d, kept %d, left %d: %v", c.moved, c.kept, c.left, err)
		}
		if !proto.Equal(before, l.head()) {
			t.Errorf("its head was changed to %v", l.head())
		}
	})
}

// A run whose head goes while it is copied has nothing more to do with it.
func TestRunThatIsDroppedWhileItIsCopied(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		w.wasteful()
		l := w.logs[1]
		l.trim(2)
		w.chains[0].absorb()
		p, other := w.process(Config{}), w.process(Config{})
		p.beforeHead(1, func() {
			if err := other.settleAll(t.Context(), w); err != nil {
				t.Error(err)
			}
		})
		c, err := p.compact(t.Context(), w.wastes())
		if err != nil || c.left != 0 || c.moved < 2 {
			t.Errorf("moved %d, left %d: %v", c.moved, c.left, err)
		}
		w.moved()
	})
}

// I8: of an object of which enough is live nothing is copied, and its row says how much
// that is.
func TestObjectOfWhichEnoughIsLiveStays(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		for range 6 {
			w.open("first").append(1, 20_000)
		}
		c.absorb()
		p := w.process(Config{})
		p.must(w)
		key := w.logs[0].head().GetRefs()[0].GetObject()
		was, _, err := w.catalog().UpdateSettled(t.Context(), key, func(r *indexpb.SettledObject) (bool, error) {
			r.LiveBytes = 0 // a row of before
			return true, nil
		})
		if err != nil || was.GetRuns() != 6 {
			t.Fatal(was, err)
		}
		for k := range 5 {
			w.logs[k].trim(1)
			c.absorb()
			p.must(w)
			w.reap()
			x, err := p.compact(t.Context(), key)
			if err != nil || (x.moved > 0) != (k > 2) {
				t.Fatalf("%d of 6 are dead: moved %d, %v", k+1, x.moved, err)
			}
			r, _, err := w.catalog().GetSettled(t.Context(), key)
			if err != nil || r.GetLiveBytes()/20_000 != uint64(5-k) {
				t.Errorf("%d of 6 are dead: %d bytes are live, %v", k+1, r.GetLiveBytes(), err)
			}
			if x.moved > 0 {
				return
			}
		}
	})
}

// I8: an object is written once per compaction, of less than half of the one before.
// However the runs of a stream die, in the end none is copied any more.
func TestCompactionEnds(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		p := w.process(Config{})
		const streams = 20
		for range streams {
			w.open("first").append(1, 20_000)
		}
		c.absorb()
		p.must(w)
		begun := p.metrics.writtenBytes.Load()
		w.rand.Shuffle(len(w.logs), func(i, j int) { w.logs[i], w.logs[j] = w.logs[j], w.logs[i] })
		last := w.logs[streams-1]
		for _, l := range w.logs[:streams-1] {
			l.trim(1)
			c.absorb()
			p.must(w)
			w.reap()
			if err := p.compactAll(t.Context(), w); err != nil {
				t.Fatal(err)
			}
			w.reap()
			for object := range w.named() {
				r, _, err := w.catalog().GetSettled(t.Context(), object)
				if err != nil || catalog.MostlyDead(r) {
					t.Errorf("%v, %v", r, err)
				}
			}
		}
		w.check()
		if n := p.metrics.compactedBytes.Load(); n == 0 || n > begun {
			t.Errorf("%d bytes were copied of %d", n, begun)
		}
		if r := last.head().GetRefs()[0]; len(last.head().GetRefs()) != 1 || r.GetLength() < 20_000 {
			t.Errorf("%v", r)
		}
	})
}

// I8: what is moved at once fits into the memory and the rate; what does not fit into
// the time is moved the next time.
func TestCompactionGoesInBatches(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		w.wasteful()
		p := w.process(Config{SettleRate: 3000})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		c, err := p.compact(ctx, w.wastes())
		cancel()
		if err != nil || c.moved != 1 || c.left != 2 {
			t.Fatalf("moved %d, left %d: %v", c.moved, c.left, err)
		}
		w.check()
		if err := w.process(Config{}).compactAll(t.Context(), w); err != nil {
			t.Error(err)
		}
		w.moved()
	})
}

// I10: what is damaged at rest is not copied, and no head is changed for it; what is
// damaged on its way is read once more.
func TestDamagedRunsAreNotMoved(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		w.wasteful()
		r := w.logs[1].head().GetRefs()[0]
		w.damage(r.GetObject(), int(r.GetOffset()+r.GetLength())-5)
		s := w.serve()
		_, err := s.CompactObject(t.Context(), &settlerpb.CompactObjectRequest{Object: w.wastes()})
		if reason.Code(err) != codes.DataLoss || !strings.Contains(err.Error(), w.logs[1].id.String()) {
			t.Errorf("%v", err)
		}
		if len(w.due(queueUnref)) > 0 || !proto.Equal(w.logs[1].head().GetRefs()[0], r) {
			t.Errorf("heads were changed: %v", w.due(queueUnref))
		}
	})
	run(t, func(t *testing.T, w *world) {
		w.wasteful()
		r := w.logs[1].head().GetRefs()[0]
		w.cut(r, 10)
		_, err := w.serve().CompactObject(t.Context(), &settlerpb.CompactObjectRequest{Object: r.GetObject()})
		if reason.Code(err) != codes.DataLoss {
			t.Errorf("%v", err)
		}
	})
}

// serve is a settler that only answers.
func (w *world) serve() *Service {
	w.t.Helper()
	s, err := New(Config{NodeID: "settler"}, Deps{Objects: w.objects, Index: w.index, Registry: w.nodes})
	if err != nil {
		w.t.Fatal(err)
	}
	s.chains.Close()
	return s
}

// I8: one object is compacted at a time, and beside one chain at least.
func TestCompactObject(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		w.wasteful()
		s := w.serve()
		ask := func(ctx context.Context, key string) (*settlerpb.CompactObjectResponse, error) {
			return s.CompactObject(ctx, &settlerpb.CompactObjectRequest{Object: key})
		}
		for _, key := range []string{"", "page/x", "chain/x"} {
			if _, err := ask(t.Context(), key); reason.Code(err) != codes.InvalidArgument {
				t.Errorf("%q: %v", key, err)
			}
		}
		release, err := s.beginCompact(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ask(t.Context(), w.wastes()); reason.Code(err) != codes.ResourceExhausted {
			t.Errorf("another is compacted: %v", err)
		}
		release()
		for range settlesAtOnce {
			s.settlers <- struct{}{}
		}
		if _, err := ask(t.Context(), w.wastes()); reason.Code(err) != codes.ResourceExhausted {
			t.Errorf("chains are settled: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := ask(ctx, w.wastes()); reason.Code(err) != codes.DeadlineExceeded {
			t.Errorf("no time is left: %v", err)
		}
		<-s.settlers
		res, err := ask(t.Context(), w.wastes())
		if err != nil || res.GetMoved() != 3 || res.GetMovedBytes() == 0 || res.GetLeft() != 0 || res.GetQuarantined() != 0 {
			t.Errorf("%v, %v", res, err)
		}
		got, err := s.GetProgress(t.Context(), &settlerpb.GetProgressRequest{})
		if err != nil || got.GetCompactedBytes() != res.GetMovedBytes() || got.GetWrittenBytes() <= res.GetMovedBytes() {
			t.Errorf("%v, %v", got, err)
		}
		if len(s.compacts) != 0 || len(s.settlers) != settlesAtOnce-1 {
			t.Errorf("%d and %d turns are taken", len(s.compacts), len(s.settlers))
		}
		w.moved()
	})
}

// beforeHead calls f before the process changes a head for the nth time.
func (p *process) beforeHead(nth int, f func()) {
	p.rows.Script(metafault.Rule{Op: metafault.Put, Prefix: "head/", Nth: nth, Times: 1, Do: metafault.Pass, Hook: func(context.Context, metafault.Op, string) error {
		f()
		return nil
	}})
}

// I11: a copy that was judged meanwhile is named by no head that is read later.
func TestCondemnedCopyIsNotNamed(t *testing.T) {
	for at := 4; at < 7; at++ { // three heads are read before there is a copy
		run(t, func(t *testing.T, w *world) {
			w.wasteful()
			p := w.process(Config{})
			p.rows.Script(metafault.Rule{Op: metafault.Read, Prefix: "head/", Nth: at, Times: 1, Do: metafault.Pass, Hook: func(context.Context, metafault.Op, string) error {
				for _, d := range w.due(queueSettled) {
					if strings.HasPrefix(d.GetObject(), runsPrefix) {
						w.judge(d.GetObject())
					}
				}
				return nil
			}})
			_, _ = p.compact(t.Context(), w.wastes())
			w.check()
			if err := w.process(Config{}).compactAll(t.Context(), w); err != nil {
				t.Error(err)
			}
			w.moved()
		})
	}
}

// I8: whoever is about to clear a bit by what was read before an object was looked at
// fails, and arms its marker again.
func TestRowIsChangedBeforeItIsLookedAt(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		w.open("first").append(1, 100)
		w.open("first").append(1, 100)
		c.absorb()
		p := w.process(Config{})
		p.must(w)
		key := w.logs[0].head().GetRefs()[0].GetObject()
		row, version, err := w.catalog().GetSettled(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if c, err := p.compact(t.Context(), key); err != nil || c.moved+c.left+c.kept != 0 {
			t.Fatal(c, err)
		}
		if _, err := w.catalog().PutSettled(t.Context(), row, version); !catalog.IsConflict(err) {
			t.Errorf("a bit is cleared by an old read: %v", err)
		}
	})
}

// An object whose runs are not decided yet is looked at again.
func TestObjectThatIsNotAdoptedIsLookedAtAgain(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		key := "settled/" + stream.NewAttemptID().String()
		_, err := w.catalog().PutSettled(t.Context(), &indexpb.SettledObject{
			Object: key, State: indexpb.SettledState_SETTLED_STATE_ADOPTING, Runs: 2, Live: []byte{3}, Size: 1 << 20, CreatedAt: 1,
		}, catalog.Absent)
		if err != nil {
			t.Fatal(err)
		}
		p := w.process(Config{})
		if c, err := p.compact(t.Context(), key); err != nil || c.left != 1 || c.moved != 0 {
			t.Errorf("left %d, moved %d: %v", c.left, c.moved, err)
		}
	})
}
