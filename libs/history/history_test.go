package history

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

var testStream = stream.ID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}

// store keeps page objects as bytes.
type store struct {
	objects map[string][]byte
	made    int
	loads   int
	fail    error // of the next loads
}

func newStore() *store { return &store{objects: map[string][]byte{}} }

func (s *store) load(_ context.Context, p *indexpb.RefPage) (*indexpb.RefPageBody, error) {
	s.loads++
	if s.fail != nil {
		return nil, s.fail
	}
	b, ok := s.objects[p.GetObject()]
	if !ok {
		return nil, nil
	}
	return DecodePage(b, testStream)
}

// overflow writes pages until the head names few enough.
func (s *store) overflow(h *indexpb.Head) {
	for {
		body, replace := Overflow(h)
		if body == nil {
			return
		}
		key := fmt.Sprintf("page/%026d", s.made)
		s.made++
		b := EncodePage(body)
		s.objects[key] = b
		replace(key, uint32(len(b)))
	}
}

func newHead() *indexpb.Head { return &indexpb.Head{StreamId: testStream.String()} }

// refs makes the refs of one stream, one after the other.
type refs struct {
	n    int
	next uint64
	at   int64
}

// ref is the next ref, of some records and so much time.
func (r *refs) ref(records uint64, later int64) *indexpb.Ref {
	out := &indexpb.Ref{
		Object: fmt.Sprintf("settled/%026d", r.n), Run: uint32(r.n % 3), FirstSeq: r.next, NextSeq: r.next + records,
		FirstTimestamp: r.at, LastTimestamp: r.at + later, HashBefore: uint64(r.n), HashAfter: uint64(r.n + 1), Offset: 8, Length: 100 + records, Frames: 1,
	}
	r.n++
	r.next += records
	r.at += later
	return out
}

// filled is a head with n refs of 10 records and 10 ms each.
func filled(t testing.TB, s *store, n int) (*indexpb.Head, []*indexpb.Ref) {
	t.Helper()
	h, from := newHead(), &refs{at: 1000}
	var all []*indexpb.Ref
	for range n {
		r := from.ref(10, 10)
		all = append(all, r)
		if err := Append(h, r); err != nil {
			t.Fatal(err)
		}
		if len(h.GetRefs()) > maxRefs {
			s.overflow(h)
		}
	}
	return h, all
}

// shape says what a head names: levels of pages, and refs.
func shape(h *indexpb.Head) string {
	counts := map[uint32]int{}
	var levels []uint32
	for _, p := range h.GetPages() {
		if counts[p.GetLevel()] == 0 {
			levels = append(levels, p.GetLevel())
		}
		counts[p.GetLevel()]++
	}
	var b strings.Builder
	for _, l := range levels {
		fmt.Fprintf(&b, "L%d:%d ", l, counts[l])
	}
	return b.String() + fmt.Sprint(len(h.GetRefs()))
}

func TestAnEmptyHeadNamesNothing(t *testing.T) {
	ctx, h, s := t.Context(), newHead(), newStore()
	if Next(h) != 0 || Stored(h) != 0 {
		t.Errorf("next %d, stored %d", Next(h), Stored(h))
	}
	if body, _ := Overflow(h); body != nil {
		t.Errorf("%v", body)
	}
	if r, err := Find(ctx, s.load, h, 0); r != nil || err != nil {
		t.Errorf("%v, %v", r, err)
	}
	if r, err := Seek(ctx, s.load, h, 0); r != nil || err != nil {
		t.Errorf("%v, %v", r, err)
	}
	if err := Walk(ctx, s.load, h, 0, func(*indexpb.Ref) (bool, error) { return true, errors.New("called") }); err != nil {
		t.Error(err)
	}
	if refs, pages, err := Trim(ctx, s.load, h, 7); refs != nil || pages != nil || err != nil || h.GetDroppedTo() != 7 {
		t.Errorf("%v, %v, %v, dropped to %d", refs, pages, err, h.GetDroppedTo())
	}
}

// I1: a head takes only what continues it exactly, and is unchanged by anything else.
func TestAppendContinues(t *testing.T) {
	from := &refs{next: 40, at: 1000}
	first := from.ref(10, 10)
	empty := newHead()
	empty.DroppedTo = 45
	one := proto.CloneOf(empty)
	one.Refs = []*indexpb.Ref{first}
	second := from.ref(10, 10)
	for name, c := range map[string]struct {
		h      *indexpb.Head
		base   *indexpb.Ref
		change func(r *indexpb.Ref)
		ok     bool
	}{
		"the first":             {empty, first, func(*indexpb.Ref) {}, true},
		"the second":            {one, second, func(*indexpb.Ref) {}, true},
		"a gap":                 {one, second, func(r *indexpb.Ref) { r.FirstSeq++ }, false},
		"an overlap":            {one, second, func(r *indexpb.Ref) { r.FirstSeq-- }, false},
		"the same again":        {one, first, func(*indexpb.Ref) {}, false},
		"other content":         {one, second, func(r *indexpb.Ref) { r.HashBefore++ }, false},
		"back in time":          {one, second, func(r *indexpb.Ref) { r.FirstTimestamp-- }, false},
		"time within":           {one, second, func(r *indexpb.Ref) { r.LastTimestamp = r.GetFirstTimestamp() - 1 }, false},
		"no records":            {one, second, func(r *indexpb.Ref) { r.NextSeq = r.GetFirstSeq() }, false},
		"no frames":             {one, second, func(r *indexpb.Ref) { r.Frames = 0 }, false},
		"no bytes":              {one, second, func(r *indexpb.Ref) { r.Length = 0 }, false},
		"no object":             {one, second, func(r *indexpb.Ref) { r.Object = "" }, false},
		"no text":               {one, second, func(r *indexpb.Ref) { r.Object = "\xff" }, false},
		"too large":             {one, second, func(r *indexpb.Ref) { r.Object = strings.Repeat("x", MaxRefBytes) }, false},
		"the first with a gap":  {empty, first, func(r *indexpb.Ref) { r.FirstSeq = 46 }, false},
		"the first at the drop": {empty, first, func(r *indexpb.Ref) { r.FirstSeq = 45 }, true},
		"the first is dead":     {empty, first, func(r *indexpb.Ref) { r.NextSeq = 45 }, false},
	} {
		h, r := proto.CloneOf(c.h), proto.CloneOf(c.base)
		c.change(r)
		err := Append(h, r)
		if c.ok != (err == nil) || err != nil && (!errors.Is(err, ErrBroken) || !proto.Equal(h, c.h)) {
			t.Errorf("%s: %v, %v", name, err, h)
		}
		if c.ok && uint64(Next(h)) != r.GetNextSeq() {
			t.Errorf("%s: next %d", name, Next(h))
		}
	}
}

// After a page comes what continues it, also when the head names nothing else.
func TestAppendContinuesAPage(t *testing.T) {
	h := newHead()
	h.Pages = []*indexpb.RefPage{{Object: "page/x", Level: 1, NextSeq: 40, LastTimestamp: 7, Refs: 1}}
	r := (&refs{next: 40, at: 7}).ref(1, 1)
	gap := proto.CloneOf(r)
	gap.FirstSeq++
	gap.NextSeq++
	if err := Append(h, gap); !errors.Is(err, ErrBroken) {
		t.Errorf("%v", err)
	}
	if err := Append(h, r); err != nil || Next(h) != 41 {
		t.Errorf("%v, next %d", err, Next(h))
	}
}

// The oldest refs go into pages of 32, the oldest 16 pages of a level into one of
// the next.
func TestOverflow(t *testing.T) {
	for n, want := range map[int]string{
		64: "64", 65: "L1:1 33", 96: "L1:1 64", 97: "L1:2 33",
		32*32 + 64: "L1:32 64", 32*32 + 65: "L2:1 L1:17 33", 32*16*31 + 32*32 + 65: "L2:32 L1:17 33", 32*16*32 + 32*32 + 65: "L3:1 L2:17 L1:17 33",
	} {
		s := newStore()
		h, all := filled(t, s, n)
		if got := shape(h); got != want {
			t.Errorf("%d refs: %s, want %s", n, got, want)
		}
		stored := uint64(0)
		for _, r := range all {
			stored += r.GetLength()
		}
		if got := Stored(h); got != stored || Next(h) != stream.Seq(10*n) {
			t.Errorf("%d refs: %d bytes, want %d; next %d", n, got, stored, Next(h))
		}
	}
}

// A lookup reads one page per level, and none for what the head names itself.
func TestLookupsReadOnePagePerLevel(t *testing.T) {
	s := newStore()
	h, all := filled(t, s, 32*16*40)
	for _, i := range []int{0, 1, 31, 32, 511, 512, 12345, 32 * 16 * 16, len(all) - 200, len(all) - 33, len(all) - 1} {
		want := all[i]
		for what, find := range map[string]func() (*indexpb.Ref, error){
			"find": func() (*indexpb.Ref, error) { return Find(t.Context(), s.load, h, stream.Seq(want.GetFirstSeq()+3)) },
			"last": func() (*indexpb.Ref, error) { return Find(t.Context(), s.load, h, stream.Seq(want.GetNextSeq()-1)) },
			"seek": func() (*indexpb.Ref, error) {
				return Seek(t.Context(), s.load, h, stream.Millis(want.GetFirstTimestamp()+1))
			},
		} {
			s.loads = 0
			got, err := find()
			if err != nil || !proto.Equal(got, want) {
				t.Fatalf("%s %d: %v, want %v, %v", what, i, got, want, err)
			}
			if s.loads > 3 || i >= len(all)-33 && s.loads > 0 {
				t.Errorf("%s %d: %d loads", what, i, s.loads)
			}
		}
	}
	if r, err := Find(t.Context(), s.load, h, Next(h)); r != nil || err != nil {
		t.Errorf("beyond the end: %v, %v", r, err)
	}
	if r, err := Seek(t.Context(), s.load, h, 1<<60); r != nil || err != nil {
		t.Errorf("later than the end: %v, %v", r, err)
	}
	// A trim inside a page of level 3 reads one page of each level too.
	s.loads = 0
	if _, _, err := Trim(t.Context(), s.load, h, 12345); err != nil || s.loads != 3 {
		t.Errorf("trim: %d loads, %v", s.loads, err)
	}
}

// A walk begins where it is told and ends when it is told.
func TestWalk(t *testing.T) {
	s := newStore()
	h, all := filled(t, s, 2000)
	walk := func(from stream.Seq, limit int) (out []*indexpb.Ref) {
		if err := Walk(t.Context(), s.load, h, from, func(r *indexpb.Ref) (bool, error) {
			out = append(out, r)
			return len(out) < limit, nil
		}); err != nil {
			t.Fatal(err)
		}
		return out
	}
	same := func(a, b []*indexpb.Ref) bool {
		return slices.EqualFunc(a, b, func(x, y *indexpb.Ref) bool { return proto.Equal(x, y) })
	}
	if got := walk(0, 5000); !same(got, all) {
		t.Errorf("all: %d", len(got))
	}
	s.loads = 0
	if got := walk(5005, 3); !same(got, all[500:503]) || s.loads != 2 {
		t.Errorf("from 5005: %v, %d loads", got, s.loads)
	}
	if got := walk(19999, 5); !same(got, all[1999:]) {
		t.Errorf("the last: %v", got)
	}
	failing := errors.New("f fails")
	if err := Walk(t.Context(), s.load, h, 0, func(*indexpb.Ref) (bool, error) { return true, failing }); !errors.Is(err, failing) {
		t.Errorf("%v", err)
	}
	if _, _, err := Trim(t.Context(), s.load, h, 5005); err != nil {
		t.Fatal(err)
	}
	if got := walk(0, 5000); !same(got, all[500:]) {
		t.Errorf("after a trim: %d", len(got))
	}
}

// Whatever was not read leaves the head as it was.
func TestATrimThatCannotReadChangesNothing(t *testing.T) {
	s := newStore()
	h, _ := filled(t, s, 2000)
	before := proto.CloneOf(h)
	s.fail = errors.New("storage is away")
	if refs, pages, err := Trim(t.Context(), s.load, h, 5005); !errors.Is(err, s.fail) || refs != nil || pages != nil || !proto.Equal(h, before) {
		t.Errorf("%v, %v, %v", refs, pages, err)
	}
	s.fail = nil
	clear(s.objects)
	if _, _, err := Trim(t.Context(), s.load, h, 5005); !errors.Is(err, ErrGone) || !proto.Equal(h, before) {
		t.Errorf("gone: %v", err)
	}
	// What is dead as a whole need not be read.
	if refs, pages, err := Trim(t.Context(), s.load, h, 20_000); err != nil || len(refs) != len(before.GetRefs()) || len(pages) != len(before.GetPages()) ||
		shape(h) != "0" || Next(h) != 0 {
		t.Errorf("all: %d, %d, %v", len(refs), len(pages), err)
	}
}

func TestTrimNeverGoesBack(t *testing.T) {
	s := newStore()
	h, _ := filled(t, s, 10)
	for _, to := range []stream.Seq{45, 45, 7, 0} {
		refs, _, err := Trim(t.Context(), s.load, h, to)
		if err != nil || (to == 45) != (h.GetDroppedTo() == uint64(to)) && h.GetDroppedTo() != 45 || len(h.GetRefs()) != 6 || to != 45 && refs != nil {
			t.Errorf("to %d: %v, %v, %v", to, refs, err, h)
		}
	}
}

// A page that is gone has nothing below it: whoever unrefs what lies below
// pages and then the pages may be stopped anywhere, and starts again.
func TestWalkPagePassesOverWhatIsGone(t *testing.T) {
	s := newStore()
	h, all := filled(t, s, 32*32+65)
	top := h.GetPages()[0]
	var refs []*indexpb.Ref
	var order []string
	walk := func() {
		refs, order = nil, nil
		if err := WalkPage(t.Context(), s.load, top, func(r *indexpb.Ref) error {
			refs, order = append(refs, r), append(order, "ref")
			return nil
		}, func(p *indexpb.RefPage) error {
			order = append(order, p.GetObject())
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	walk()
	if len(refs) != 16*32 || !proto.Equal(refs[0], all[0]) || len(order) != 16*33 || order[31] != "ref" || order[32] != "page/"+strings.Repeat("0", 26) {
		t.Fatalf("%d refs, %v", len(refs), order)
	}
	first := order[32]
	delete(s.objects, first)
	walk()
	if len(refs) != 15*32 || !proto.Equal(refs[0], all[32]) || order[0] != first {
		t.Errorf("%d refs, %v", len(refs), order)
	}
	delete(s.objects, top.GetObject())
	walk()
	if len(order) != 0 {
		t.Errorf("%v", order)
	}
	if _, err := Find(t.Context(), s.load, h, 0); !errors.Is(err, ErrGone) {
		t.Errorf("a head that names what is gone: %v", err)
	}
}

func TestWalkPageEndsWithTheFirstError(t *testing.T) {
	s := newStore()
	h, _ := filled(t, s, 32*32+65)
	failing := errors.New("fails")
	none := func(*indexpb.Ref) error { return nil }
	if err := WalkPage(t.Context(), s.load, h.GetPages()[0], func(*indexpb.Ref) error { return failing }, nil); !errors.Is(err, failing) {
		t.Errorf("%v", err)
	}
	if err := WalkPage(t.Context(), s.load, h.GetPages()[0], none, func(*indexpb.RefPage) error { return failing }); !errors.Is(err, failing) {
		t.Errorf("%v", err)
	}
	s.fail = errors.New("storage is away")
	if err := WalkPage(t.Context(), s.load, h.GetPages()[0], none, nil); !errors.Is(err, s.fail) {
		t.Errorf("%v", err)
	}
}

// I11: a ref is named as long as its object and run stand at its range above
// dropped_to, be it in the head or in a page; a page likewise.
func TestNames(t *testing.T) {
	s := newStore()
	h, all := filled(t, s, 32*32+65)
	ctx := t.Context()
	names := func(r *indexpb.Ref) bool {
		t.Helper()
		ok, err := Names(ctx, s.load, h, r)
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	for i, r := range all {
		other, run := proto.CloneOf(r), proto.CloneOf(r)
		other.Object += "x"
		run.Run++
		if !names(r) || names(other) || names(run) {
			t.Fatalf("ref %d", i)
		}
	}
	beyond := (&refs{next: uint64(Next(h)), n: 5000}).ref(10, 10)
	if names(beyond) {
		t.Error("beyond the end")
	}
	pageNamed := func(p *indexpb.RefPage) bool {
		t.Helper()
		ok, err := NamesPage(ctx, s.load, h, p)
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	var pages []*indexpb.RefPage
	for _, p := range h.GetPages() {
		pages = append(pages, p)
		if err := WalkPage(ctx, s.load, p, func(*indexpb.Ref) error { return nil }, func(p *indexpb.RefPage) error {
			pages = append(pages, p)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if len(pages) != 1+16+17 || len(pages) != len(s.objects) {
		t.Fatalf("%d pages, %d objects", len(pages), len(s.objects))
	}
	for _, p := range pages {
		other, level := proto.CloneOf(p), proto.CloneOf(p)
		other.Object += "x"
		level.Level = 3 - p.GetLevel()
		if !pageNamed(p) || pageNamed(other) || pageNamed(level) {
			t.Errorf("page %v", p)
		}
		// The page that a body is of is found by the body alone.
		body, err := s.load(ctx, p)
		if err != nil || !proto.Equal(PageOf(body, p.GetObject(), p.GetSize()), p) {
			t.Errorf("%v, %v", body, err)
		}
	}
	if refsEnd := (&indexpb.RefPage{Object: "x", Level: 1, FirstSeq: uint64(Next(h)), NextSeq: uint64(Next(h)) + 1}); pageNamed(refsEnd) {
		t.Error("a page beyond the end")
	}
	// Inside a page of the second level; one ref is dead in part.
	if _, _, err := Trim(ctx, s.load, h, 1005); err != nil {
		t.Fatal(err)
	}
	for i, r := range all {
		if names(r) != (i >= 100) {
			t.Fatalf("ref %d after the trim", i)
		}
	}
	for _, p := range pages {
		if pageNamed(p) != (p.GetNextSeq() > 1005) {
			t.Errorf("page %v after the trim", p)
		}
	}
}

// I10: what a page holds is used only if it is what the page that names it says.
func TestPagesThatLieAreRefused(t *testing.T) {
	for _, n := range []int{65, 32*32 + 65} {
		s := newStore()
		h, _ := filled(t, s, n)
		good, err := s.load(t.Context(), h.GetPages()[0])
		if err != nil {
			t.Fatal(err)
		}
		for name, lie := range map[string]func(b *indexpb.RefPageBody){
			"of a higher level": func(b *indexpb.RefPageBody) { b.Level++ },
			"of level 0":        func(b *indexpb.RefPageBody) { b.Level = 0 },
			"empty":             func(b *indexpb.RefPageBody) { b.Refs, b.Pages = nil, nil },
			"the end is missing": func(b *indexpb.RefPageBody) {
				b.Refs, b.Pages = b.Refs[:max(0, len(b.Refs)-1)], b.Pages[:max(0, len(b.Pages)-1)]
			},
			"the first is missing": func(b *indexpb.RefPageBody) {
				b.Refs, b.Pages = b.Refs[min(1, len(b.Refs)):], b.Pages[min(1, len(b.Pages)):]
			},
			"one is missing": func(b *indexpb.RefPageBody) {
				if b.Level == 1 {
					b.Refs = slices.Delete(b.Refs, 3, 4)
				} else {
					b.Pages = slices.Delete(b.Pages, 3, 4)
				}
			},
			"out of order": func(b *indexpb.RefPageBody) {
				if b.Level == 1 {
					b.Refs[3], b.Refs[4] = b.Refs[4], b.Refs[3]
				} else {
					b.Pages[3], b.Pages[4] = b.Pages[4], b.Pages[3]
				}
			},
			"other bytes": func(b *indexpb.RefPageBody) {
				if b.Level == 1 {
					b.Refs[3].Length++
				} else {
					b.Pages[3].StoredBytes++
				}
			},
			"other times": func(b *indexpb.RefPageBody) {
				if b.Level == 1 {
					b.Refs[0].FirstTimestamp--
				} else {
					b.Pages[0].FirstTimestamp--
				}
			},
			"other content": func(b *indexpb.RefPageBody) {
				if b.Level == 1 {
					b.Refs[3].HashBefore++
				} else {
					b.Pages[3].Level = 2
				}
			},
			"other count": func(b *indexpb.RefPageBody) {
				if b.Level == 1 {
					b.Pages = []*indexpb.RefPage{{Object: "x", Level: 1, NextSeq: 1}}
				} else {
					b.Pages[3].Refs++
				}
			},
			"no object": func(b *indexpb.RefPageBody) {
				if b.Level == 1 {
					b.Refs[3].Object = ""
				} else {
					b.Pages[3].Object = ""
				}
			},
		} {
			bad := proto.CloneOf(good)
			lie(bad)
			load := func(context.Context, *indexpb.RefPage) (*indexpb.RefPageBody, error) { return bad, nil }
			ctx, page := t.Context(), h.GetPages()[0]
			_, findErr := Find(ctx, load, h, 0)
			_, seekErr := Seek(ctx, load, h, 0)
			_, _, trimErr := Trim(ctx, load, proto.CloneOf(h), 1)
			walkErr := Walk(ctx, load, h, 0, func(*indexpb.Ref) (bool, error) { return true, errors.New("called") })
			pageErr := WalkPage(ctx, load, page, func(*indexpb.Ref) error { return errors.New("called") }, nil)
			_, namesErr := Names(ctx, load, h, (&refs{}).ref(1, 1))
			errs := []error{findErr, seekErr, trimErr, walkErr, pageErr, namesErr}
			if page.GetLevel() > 1 {
				_, err := NamesPage(ctx, load, h, &indexpb.RefPage{Level: 1, NextSeq: 1})
				errs = append(errs, err)
			}
			for i, err := range errs {
				if !errors.Is(err, ErrBroken) {
					t.Errorf("level %d, %s, operation %d: %v", page.GetLevel(), name, i, err)
				}
			}
		}
	}
}

// I10: a head whose lists are not in order is not searched.
func TestHeadsThatLieAreRefused(t *testing.T) {
	s := newStore()
	good, _ := filled(t, s, 32*32+65)
	for name, lie := range map[string]func(h *indexpb.Head){
		"a page is missing":        func(h *indexpb.Head) { h.Pages = slices.Delete(h.Pages, 2, 3) },
		"a ref is missing":         func(h *indexpb.Head) { h.Refs = slices.Delete(h.Refs, 2, 3) },
		"the first ref is missing": func(h *indexpb.Head) { h.Refs = h.Refs[1:] },
		"levels out of order":      func(h *indexpb.Head) { h.Pages[1].Level = 3 },
		"level 0":                  func(h *indexpb.Head) { h.Pages[1].Level = 0 },
		"time goes back":           func(h *indexpb.Head) { h.Refs[0].FirstTimestamp = 0 },
		"content":                  func(h *indexpb.Head) { h.Refs[5].HashBefore++ },
	} {
		h := proto.CloneOf(good)
		lie(h)
		ctx := t.Context()
		_, findErr := Find(ctx, s.load, h, 0)
		_, seekErr := Seek(ctx, s.load, h, 0)
		_, _, trimErr := Trim(ctx, s.load, h, 1)
		_, namesErr := NamesPage(ctx, s.load, h, good.GetPages()[0])
		walkErr := Walk(ctx, s.load, h, 0, func(*indexpb.Ref) (bool, error) { return true, errors.New("called") })
		for i, err := range []error{findErr, seekErr, trimErr, namesErr, walkErr} {
			if !errors.Is(err, ErrBroken) {
				t.Errorf("%s, operation %d: %v", name, i, err)
			}
		}
	}
}

// I2: a ref is replaced by one to the same records only, and only where it stands.
func TestOnlyTheSameRecordsAreReplaced(t *testing.T) {
	s := newStore()
	h, all := filled(t, s, 100)
	h.DroppedTo = 15 // the first ref is dead, and in a page that is not
	put := func(context.Context, *indexpb.RefPageBody) (string, uint32, error) { return "page/new", 1, nil }
	for name, c := range map[string]struct {
		old    *indexpb.Ref
		change func(r *indexpb.Ref)
		want   error
	}{
		"fewer records":     {all[50], func(r *indexpb.Ref) { r.NextSeq-- }, ErrBroken},
		"other times":       {all[50], func(r *indexpb.Ref) { r.LastTimestamp++ }, ErrBroken},
		"another hash":      {all[50], func(r *indexpb.Ref) { r.HashAfter++ }, ErrBroken},
		"other bytes":       {all[50], func(r *indexpb.Ref) { r.Length++ }, ErrBroken},
		"no object":         {all[50], func(r *indexpb.Ref) { r.Object = "" }, ErrBroken},
		"what is dropped":   {all[0], func(*indexpb.Ref) {}, ErrNotNamed},
		"in a page":         {all[1], func(r *indexpb.Ref) { r.Object = "settled/new" }, nil},
		"in the head":       {all[99], func(r *indexpb.Ref) { r.Object = "settled/new" }, nil},
		"what is not there": {&indexpb.Ref{Object: "settled/x", FirstSeq: 990, NextSeq: 1000, FirstTimestamp: all[99].GetFirstTimestamp(), LastTimestamp: all[99].GetLastTimestamp(), HashBefore: 99, HashAfter: 100, Length: 110, Frames: 1}, func(*indexpb.Ref) {}, ErrNotNamed},
	} {
		next, with := proto.CloneOf(h), proto.CloneOf(c.old)
		c.change(with)
		if _, err := Replace(t.Context(), s.load, next, c.old, with, put); !errors.Is(err, c.want) || err != nil && !proto.Equal(next, h) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s.objects = map[string][]byte{}
	if _, err := Replace(t.Context(), s.load, h, all[1], all[1], put); !errors.Is(err, ErrGone) {
		t.Errorf("a page is gone: %v", err)
	}
}
