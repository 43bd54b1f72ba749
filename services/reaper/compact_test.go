package reaper

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/history"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/settled"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/settler/v1"
)

var compacted = []string{queueUnref, catalog.QueueCompact, queueSettled}

// compact moves what heads name of an object that is mostly dead, as a settler does:
// the heads name copies, behind markers of what they do not name any more.
func (f *farm) compact(object string) (*settlerpb.CompactObjectResponse, error) {
	f.t.Helper()
	f.compacting.Lock() // one at a time, as a settler does
	defer f.compacting.Unlock()
	ctx, out := f.t.Context(), &settlerpb.CompactObjectResponse{}
	row, _, err := f.index.UpdateSettled(ctx, object, func(*indexpb.SettledObject) (bool, error) { return true, nil })
	if catalog.IsNotFound(err) || err == nil && (row.GetState() != indexpb.SettledState_SETTLED_STATE_ADOPTED || !catalog.MostlyDead(row)) {
		return out, nil
	}
	f.must(err)
	for _, id := range f.streams {
		h, _, err := f.index.GetHead(ctx, id)
		f.must(err)
		for _, r := range h.GetRefs() {
			if r.GetObject() != object {
				continue
			}
			with := f.object(run{id, r.GetFirstSeq(), r.GetNextSeq(), r.GetFirstTimestamp(), 30_000})[0]
			f.adopted(with.GetObject())
			f.moved(id, r, with)
			out.Moved++
		}
	}
	return out, nil
}

// moved has a head name a copy of a run, and arms the marker of the run and of the
// pages that are written anew. It returns those.
func (f *farm) moved(id stream.ID, old, with *indexpb.Ref) (pages []*indexpb.RefPage) {
	f.t.Helper()
	for {
		h, version, err := f.index.GetHead(f.t.Context(), id)
		f.must(err)
		pages, err = history.Replace(f.t.Context(), f.load(id), h, old, with, func(_ context.Context, body *indexpb.RefPageBody) (string, uint32, error) {
			key, b := "page/"+stream.NewAttemptID().String(), history.EncodePage(body)
			f.put(key, b)
			f.row(key, 1, id.String(), len(b))
			f.adopted(key)
			return key, uint32(len(b)), nil
		})
		f.must(err)
		_, err = f.index.ArmDue(f.t.Context(), &indexpb.Due{
			Queue: queueUnref, At: f.clock().UnixMilli(), StreamId: id.String(), Refs: append(alone(pages), old),
		})
		f.must(err)
		if _, err = f.index.PutHead(f.t.Context(), h, version); !catalog.IsConflict(err) { // a reaper may look at it
			f.must(err)
			return pages
		}
	}
}

func (f *farm) load(id stream.ID) history.Load { return f.reaper(Config{}, f.raw, f.objects).load(id) }

// alone are refs to pages without what is below them.
func alone(pages []*indexpb.RefPage) (out []*indexpb.Ref) {
	for _, p := range pages {
		out = append(out, &indexpb.Ref{Object: p.GetObject(), FirstSeq: p.GetFirstSeq(), NextSeq: p.GetNextSeq()})
	}
	return out
}

// I8, I11: when most of an object is dead, what heads name of it is moved, wherever the
// reaper dies; the object goes, and nothing that is named does.
func TestMostlyDeadObjectIsCompactedWhereverItDies(t *testing.T) {
	crashes(t, Config{}, queueUnref, compacted, func(f *farm) func() {
		f.settler = f.compact
		var runs []run
		for range 5 {
			runs = append(runs, run{f.stream(nil), 0, 1, 1, 30_000})
		}
		refs := f.object(runs...)
		key := refs[0].GetObject()
		f.adopted(key)
		for i, r := range refs {
			f.add(runs[i].id, r)
		}
		for i := range 3 {
			f.trim(runs[i].id, 1)
		}
		return func() {
			live := map[string][]uint32{}
			for _, r := range runs[3:] {
				h, _, err := f.index.GetHead(f.t.Context(), r.id)
				f.must(err)
				live[h.GetRefs()[0].GetObject()] = []uint32{0}
			}
			if len(live) != 2 {
				f.t.Fatalf("it was not moved: %v", live)
			}
			f.want(live, []string{key})
		}
	})
}

// I8: the judge of an object arms the marker too, if it leaves most of it dead.
func TestJudgeThatLeavesLittleHasItCompacted(t *testing.T) {
	crashes(t, Config{}, queueSettled, compacted, func(f *farm) func() {
		f.settler = f.compact
		var runs []run
		for range 5 {
			runs = append(runs, run{f.stream(nil), 0, 1, 1, 30_000})
		}
		refs := f.object(runs...)
		f.add(runs[2].id, refs[2])
		f.judgeLater(refs[0].GetObject())
		return func() {
			h, _, err := f.index.GetHead(f.t.Context(), runs[2].id)
			f.must(err)
			f.want(map[string][]uint32{h.GetRefs()[0].GetObject(): {0}}, []string{refs[0].GetObject()})
		}
	})
}

// I2, I11: a page that is written anew goes alone: the new one names what it named,
// whatever older markers say of it.
func TestPageThatIsWrittenAnewGoesAlone(t *testing.T) {
	crashesOf(t, Config{}, queueUnref, compacted, []bool{false, true}, func(f *farm) func() {
		id := f.stream(nil)
		keys := f.paged(id)
		h, _, err := f.index.GetHead(f.t.Context(), id)
		f.must(err)
		// Of a change that did not happen.
		f.arm(&indexpb.Due{Queue: queueUnref, StreamId: id.String(), Pages: h.GetPages()})
		old, err := history.Find(f.t.Context(), f.load(id), h, 1)
		f.must(err)
		with := f.object(run{id, 1, 2, 1, 0})[0]
		f.adopted(with.GetObject())
		pages := f.moved(id, old, with)
		if len(pages) != 2 {
			f.t.Fatalf("%d pages are written anew", len(pages))
		}
		return func() {
			h, _, err := f.index.GetHead(f.t.Context(), id)
			f.must(err)
			live := map[string][]uint32{with.GetObject(): {0}}
			for i, key := range keys {
				if i != 1 {
					live[key] = []uint32{0}
				}
			}
			live[h.GetPages()[0].GetObject()] = []uint32{0}
			f.must(history.WalkPage(f.t.Context(), f.load(id), h.GetPages()[0], func(*indexpb.Ref) error { return nil }, func(p *indexpb.RefPage) error {
				live[p.GetObject()] = []uint32{0}
				return nil
			}))
			f.want(live, append(keys, pages[0].GetObject(), pages[1].GetObject()))
			f.trim(id, 6)
			f.converge(Config{}, compacted...)
			f.want(nil, keys)
		}
	})
}

// I2, I11: a marker of a page alone whose change did not happen drops nothing.
func TestPageThatIsNamedStillStays(t *testing.T) {
	f := newFarm(t)
	id := f.stream(nil)
	f.paged(id)
	h, _, err := f.index.GetHead(t.Context(), id)
	f.must(err)
	body := f.page(id, h.GetPages()[0])
	before := f.keys()
	f.arm(&indexpb.Due{Queue: queueUnref, StreamId: id.String(), Refs: alone(append(h.GetPages(), body.GetPages()...))})
	drain(t, f.process(Config{}).Service, 0, 1)
	f.pass(settlesAfter + time.Hour)
	f.converge(Config{}, compacted...)
	if got := f.keys(); len(got) != len(before) {
		t.Errorf("%d of %d objects are left", len(got), len(before))
	}
}

// What a settler answers decides whether the marker comes back, and when.
func TestCompactionIsAskedForAgain(t *testing.T) {
	for name, c := range map[string]struct {
		res   *settlerpb.CompactObjectResponse
		err   error
		after time.Duration // 0: it is dropped
		tries uint32        // that count
	}{
		"all has moved":         {&settlerpb.CompactObjectResponse{Moved: 3}, nil, 0, 0},
		"nothing was to move":   {&settlerpb.CompactObjectResponse{}, nil, 0, 0},
		"some are left":         {&settlerpb.CompactObjectResponse{Moved: 1, Left: 2}, nil, time.Minute, 0},
		"one is quarantined":    {&settlerpb.CompactObjectResponse{Quarantined: 1}, nil, repairedBy, 0},
		"the settler is busy":   {nil, reason.New(codes.ResourceExhausted, "", "busy"), time.Minute, 0},
		"its store is down":     {nil, errDown, time.Minute, 1},
		"the object is damaged": {nil, reason.New(codes.DataLoss, reason.ChecksumMismatch, "damaged"), time.Minute, 1},
	} {
		f := newFarm(t)
		f.settler = func(string) (*settlerpb.CompactObjectResponse, error) { return c.res, c.err }
		f.arm(&indexpb.Due{Queue: catalog.QueueCompact, Object: "settled/x"})
		_, _ = f.process(Config{}).Drain(t.Context(), nil)
		left := f.queue(catalog.QueueCompact)
		switch {
		case c.after == 0 && len(left) == 0:
		case len(left) != 1 || c.after == 0:
			t.Errorf("%s: %d markers", name, len(left))
		case left[0].Due.GetAt() != f.clock().Add(c.after).UnixMilli() || left[0].Due.GetAttempts() != c.tries:
			t.Errorf("%s: again in %v, after %d tries", name, time.UnixMilli(left[0].Due.GetAt()).Sub(f.clock()), left[0].Due.GetAttempts())
		}
	}
	f := newFarm(t)
	f.arm(&indexpb.Due{Queue: catalog.QueueCompact, Object: "settled/x"})
	_, _ = f.process(Config{}).Drain(t.Context(), nil)
	if left := f.queue(catalog.QueueCompact); len(left) != 1 || left[0].Due.GetAttempts() != 1 {
		t.Errorf("there is no settler, and the markers are %v", left)
	}
}

// twoSettlers are two of which the first that is asked does not answer.
type twoSettlers struct {
	*farm

	asked []string
	fail  error
}

func (n *twoSettlers) Nodes(context.Context, discovery.Service) ([]discovery.Node, error) {
	return []discovery.Node{{ID: "a", Address: "a"}, {ID: "b", Address: "b"}}, nil
}

func (n *twoSettlers) Address(a string) (grpc.ClientConnInterface, error) {
	n.asked = append(n.asked, a)
	return asked(func(string, proto.Message, proto.Message) error {
		if len(n.asked)%2 == 1 {
			return n.fail
		}
		return nil
	}), nil
}

// A settler that does not answer keeps nobody from asking the next; all reapers ask in
// the same order.
func TestAnotherSettlerIsAsked(t *testing.T) {
	f := newFarm(t)
	n := &twoSettlers{farm: f, fail: errDown}
	s, err := New(Config{}, Deps{Index: f.raw, Cache: store{objects: f.objects}, Router: f, Registry: n, Conns: n, Now: f.clock})
	f.must(err)
	m := catalog.Marker{Due: &indexpb.Due{Object: "settled/x"}}
	for range 2 {
		f.must(s.compact(t.Context(), m))
	}
	if len(n.asked) != 4 || n.asked[0] == n.asked[1] || n.asked[0] != n.asked[2] {
		t.Errorf("asked %v", n.asked)
	}
	n.asked, n.fail = nil, reason.New(codes.DataLoss, "", "damaged")
	if err := s.compact(t.Context(), m); !errors.Is(err, n.fail) || len(n.asked) != 1 {
		t.Errorf("asked %v: %v", n.asked, err)
	}
}

// I8: rows whose live bytes are not known are looked at whenever a bit is cleared; a ref
// that does not tell its bytes makes them so.
func TestLiveBytesThatAreNotKnown(t *testing.T) {
	f := newFarm(t)
	var runs []run
	for range 5 {
		runs = append(runs, run{f.stream(nil), 0, 1, 1, 30_000})
	}
	refs := f.object(runs...)
	key := refs[0].GetObject()
	f.adopted(key)
	f.add(runs[4].id, refs[4])
	f.arm(&indexpb.Due{Queue: queueUnref, StreamId: runs[0].id.String(), Refs: []*indexpb.Ref{{Object: key, NextSeq: 1}}})
	drain(t, f.process(Config{}).Service, 1, 0)
	row, _, err := f.index.GetSettled(t.Context(), key)
	f.must(err)
	if row.GetLiveBytes() != 0 || settled.Live(row.GetLive()).Count() != 4 || len(f.queue(catalog.QueueCompact)) != 1 {
		t.Errorf("%d bytes are live, %d markers", row.GetLiveBytes(), len(f.queue(catalog.QueueCompact)))
	}
	if at := f.queue(catalog.QueueCompact)[0].Due.GetAt(); at != f.clock().Add(10*time.Minute).UnixMilli() {
		t.Errorf("it is looked at in %v", time.UnixMilli(at).Sub(f.clock()))
	}
}

// dropLater has a settler trim a stream, whose marker is due after all others.
func (f *farm) dropLater(id stream.ID, to uint64) {
	f.t.Helper()
	f.head(id, func(h *indexpb.Head) {
		h.Trim = to
		refs, pages, err := history.Trim(f.t.Context(), f.load(id), h, stream.Seq(to))
		f.must(err)
		f.arm(&indexpb.Due{Queue: queueUnref, StreamId: id.String(), Refs: refs, Pages: pages, At: f.clock().Add(24 * time.Hour).UnixMilli()})
	})
}

// I11: a compaction that loses against a trim leaves a marker that has pages go alone;
// what is below them goes too, although the marker of the trim finds them gone.
func TestPageThatIsTrimmedGoesWithAllBelow(t *testing.T) {
	crashesOf(t, Config{}, queueUnref, compacted, []bool{true}, func(f *farm) func() {
		id := f.stream(nil)
		keys := f.paged(id)
		h, _, err := f.index.GetHead(f.t.Context(), id)
		f.must(err)
		below := f.page(id, h.GetPages()[0]).GetPages()
		pages := alone([]*indexpb.RefPage{h.GetPages()[0], below[0]})
		r := f.page(id, below[0]).GetRefs()[0]
		f.arm(&indexpb.Due{Queue: queueUnref, StreamId: id.String(), Refs: append(pages, r)})
		f.dropLater(id, 5)
		return func() {
			f.want(map[string][]uint32{keys[5]: {0}}, append(keys, pages[0].GetObject(), pages[1].GetObject(), below[1].GetObject()))
		}
	})
}

// I11: so does what is below a page whose maker died and whose judge comes first.
func TestPageThatIsTrimmedBeforeItsJudgeGoesWithAllBelow(t *testing.T) {
	crashesOf(t, Config{}, queueSettled, compacted, []bool{true}, func(f *farm) func() {
		id := f.stream(nil)
		var keys []string
		refs := f.settle(id, 3).GetRefs()
		for _, r := range refs {
			keys = append(keys, r.GetObject())
		}
		body := &indexpb.RefPageBody{StreamId: id.String(), Level: 1, Refs: refs[:2]}
		key, b := "page/"+stream.NewAttemptID().String(), history.EncodePage(body)
		f.put(key, b)
		f.row(key, 1, id.String(), len(b))
		f.head(id, func(h *indexpb.Head) {
			h.Pages, h.Refs = []*indexpb.RefPage{history.PageOf(body, key, uint32(len(b)))}, refs[2:]
		})
		f.judgeLater(key)
		f.dropLater(id, 2)
		return func() { f.want(map[string][]uint32{keys[2]: {0}}, append(keys, key)) }
	})
}
