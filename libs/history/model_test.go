package history

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// model is a head beside the plain list of all refs it was ever given.
type model struct {
	s     *store
	h     *indexpb.Head
	from  *refs
	all   []*indexpb.Ref
	freed map[string]bool // objects of refs that were handed out as dead
}

func (m *model) live() []*indexpb.Ref {
	i, _ := slices.BinarySearchFunc(m.all, m.h.GetDroppedTo(), func(r *indexpb.Ref, to uint64) int {
		if r.GetNextSeq() <= to {
			return -1
		}
		return 1
	})
	return m.all[i:]
}

// trim does what a reaper does with what a trim returns.
func (m *model) trim(t *rapid.T, to stream.Seq) {
	ctx := context.Background()
	refs, pages, err := Trim(ctx, m.s.load, m.h, to)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range refs {
		if m.freed[r.GetObject()] {
			t.Fatalf("%v is freed twice", r)
		}
		m.freed[r.GetObject()] = true
	}
	free := func(p *indexpb.RefPage) error {
		delete(m.s.objects, p.GetObject())
		return nil
	}
	for _, p := range pages {
		if err := WalkPage(ctx, m.s.load, p, func(r *indexpb.Ref) error {
			m.freed[r.GetObject()] = true
			return nil
		}, free); err != nil {
			t.Fatal(err)
		}
		_ = free(p)
	}
}

// replace has the head name one of its refs, as the run of another object.
func (m *model) replace(t *rapid.T) {
	live := m.live()
	if len(live) == 0 {
		return
	}
	i := len(m.all) - 1 - rapid.IntRange(0, len(live)-1).Draw(t, "ref")
	old, with := m.all[i], proto.CloneOf(m.all[i])
	with.Object = fmt.Sprintf("moved/%026d", m.s.made)
	before, made := proto.CloneOf(m.h), len(m.s.objects)
	if _, err := Replace(t.Context(), m.s.load, m.h, old, with, func(context.Context, *indexpb.RefPageBody) (string, uint32, error) {
		return "", 0, errors.New("no page can be written")
	}); err != nil && !proto.Equal(m.h, before) || err == nil && len(before.GetRefs()) == 0 {
		t.Fatalf("%v, and the head is %v", err, m.h)
	}
	m.h = before
	var put []string
	dead, err := Replace(t.Context(), m.s.load, m.h, old, with, func(_ context.Context, body *indexpb.RefPageBody) (string, uint32, error) {
		key, b := fmt.Sprintf("page/%026d", m.s.made), EncodePage(body)
		m.s.made++
		m.s.objects[key] = b
		put = append(put, key)
		return key, uint32(len(b)), nil
	})
	if err != nil || len(put) != len(dead) || len(m.s.objects) != made+len(put) {
		t.Fatalf("%d pages instead of %d: %v", len(put), len(dead), err)
	}
	m.all[i] = with
	delete(m.freed, old.GetObject())
	m.s.made++
	names := func(r *indexpb.Ref, want bool) {
		t.Helper()
		if got, err := Names(t.Context(), m.s.load, m.h, r); got != want || err != nil {
			t.Fatalf("names %v: %v, %v", r, got, err)
		}
	}
	names(old, false)
	names(with, true)
	for k, p := range dead {
		page := &indexpb.Ref{Object: p.GetObject(), FirstSeq: p.GetFirstSeq(), NextSeq: p.GetNextSeq()}
		names(page, false)
		page.Object = put[len(put)-1-k]
		names(page, true)
		delete(m.s.objects, p.GetObject()) // that page alone: the new one names what it named
	}
	if _, err := Replace(t.Context(), m.s.load, m.h, old, with, nil); !errors.Is(err, ErrNotNamed) {
		t.Fatalf("replaced twice: %v", err)
	}
}

// check compares everything that can be asked with the list.
func (m *model) check(t *rapid.T) {
	ctx := context.Background()
	live := m.live()
	// I11: freed is what is dead, all of it and nothing else.
	for _, r := range m.all {
		if dead := r.GetNextSeq() <= m.h.GetDroppedTo(); dead != m.freed[r.GetObject()] {
			t.Fatalf("dropped to %d: %v is dead: %v, freed: %v", m.h.GetDroppedTo(), r, dead, !dead)
		}
	}
	var walked []*indexpb.Ref
	if err := Walk(ctx, m.s.load, m.h, 0, func(r *indexpb.Ref) (bool, error) {
		walked = append(walked, r)
		return true, nil
	}); err != nil {
		t.Fatal(err)
	}
	if !slices.EqualFunc(walked, live, func(a, b *indexpb.Ref) bool { return proto.Equal(a, b) }) {
		t.Fatalf("walked over %d refs, want %d", len(walked), len(live))
	}
	// And the objects of pages are those that are reached.
	reached := map[string]bool{}
	for _, p := range m.h.GetPages() {
		reached[p.GetObject()] = true
		if err := WalkPage(ctx, m.s.load, p, func(*indexpb.Ref) error { return nil }, func(p *indexpb.RefPage) error {
			if p.GetNextSeq() > m.h.GetDroppedTo() {
				reached[p.GetObject()] = true
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if got := slices.Sorted(maps.Keys(m.s.objects)); !slices.Equal(got, slices.Sorted(maps.Keys(reached))) {
		t.Fatalf("objects %v, reached %v", got, reached)
	}
	next := stream.Seq(0)
	if len(live) > 0 {
		next = stream.Seq(live[len(live)-1].GetNextSeq())
	}
	if Next(m.h) != next {
		t.Fatalf("next %d, want %d", Next(m.h), next)
	}
	m.find(t, live)
	m.bounds(t)
}

func (m *model) find(t *rapid.T, live []*indexpb.Ref) {
	ctx := context.Background()
	seq := rapid.Uint64Range(0, m.from.next+2).Draw(t, "seq")
	at := rapid.Int64Range(-1, m.from.at+2).Draw(t, "at")
	var wantSeq, wantAt *indexpb.Ref
	for _, r := range slices.Backward(live) {
		if seq >= m.h.GetDroppedTo() && r.GetFirstSeq() <= seq && seq < r.GetNextSeq() {
			wantSeq = r
		}
		if r.GetLastTimestamp() >= at {
			wantAt = r
		}
	}
	if got, err := Find(ctx, m.s.load, m.h, stream.Seq(seq)); err != nil || !proto.Equal(got, wantSeq) {
		t.Fatalf("find %d: %v, want %v, %v", seq, got, wantSeq, err)
	}
	if got, err := Seek(ctx, m.s.load, m.h, stream.Millis(at)); err != nil || !proto.Equal(got, wantAt) {
		t.Fatalf("seek %d: %v, want %v, %v", at, got, wantAt, err)
	}
	if len(m.all) > 0 {
		r := m.all[rapid.IntRange(0, len(m.all)-1).Draw(t, "ref")]
		if got, err := Names(ctx, m.s.load, m.h, r); err != nil || got == m.freed[r.GetObject()] {
			t.Fatalf("names %v: %v, %v", r, got, err)
		}
	}
}

func (m *model) bounds(t *rapid.T) {
	if n := headBytes(m.h); n > 20<<10 {
		t.Fatalf("head of %d bytes: %s", n, shape(m.h))
	}
	levels := map[uint32]int{}
	for _, p := range m.h.GetPages() {
		levels[p.GetLevel()]++
		if levels[p.GetLevel()] > maxPages {
			t.Fatalf("%s", shape(m.h))
		}
		if int(p.GetSize()) > MaxPageBytes/4 || int(p.GetSize()) != len(m.s.objects[p.GetObject()]) {
			t.Fatalf("page of %d bytes", p.GetSize())
		}
	}
	if len(m.h.GetRefs()) > maxRefs {
		t.Fatalf("%s", shape(m.h))
	}
}

// I1, I8, I11: a head, its pages and what is freed of them are always those of the
// plain list of refs.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		start := rapid.Uint64Range(0, 5).Draw(t, "start")
		m := &model{s: newStore(), h: newHead(), from: &refs{next: start}, freed: map[string]bool{}}
		m.h.DroppedTo = start
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) {
				records, later := rapid.Uint64Range(1, 4).Draw(t, "records"), rapid.Int64Range(0, 2).Draw(t, "later")
				atOnce := rapid.IntRange(1, 100).Draw(t, "at once")
				for i := range rapid.SampledFrom([]int{1, 2, 40, 500}).Draw(t, "refs") {
					r := m.from.ref(records, later*int64(i%3))
					if err := Append(m.h, r); err != nil {
						t.Fatal(err)
					}
					m.all = append(m.all, r)
					if i%atOnce == 0 {
						m.s.overflow(m.h)
					}
				}
				m.s.overflow(m.h)
			},
			"trim": func(t *rapid.T) {
				to := rapid.Uint64Range(m.h.GetDroppedTo(), m.from.next).Draw(t, "to")
				if rapid.Bool().Draw(t, "a little") {
					to = min(to, m.h.GetDroppedTo()+20)
				}
				m.trim(t, stream.Seq(to))
			},
			"trim all": func(t *rapid.T) {
				if rapid.IntRange(0, 5).Draw(t, "really") == 0 {
					m.trim(t, stream.Seq(m.from.next))
				}
			},
			"replace": m.replace,
			"":        m.check,
		})
	})
}

// I8: a head is bounded whatever its refs are: as large as they may be, and as many
// as come in years.
func TestHeadsAreBounded(t *testing.T) {
	h, from := newHead(), &refs{next: 1 << 62, at: math.MinInt64 / 2}
	h.DroppedTo = 1 << 62
	made, most, count := 0, 0, 60_000
	if testing.Short() {
		count = 6_000
	}
	for i := range count {
		r := from.ref(1<<30, 1<<20)
		r.Run, r.Generation, r.Frames, r.IndexLength = math.MaxUint32, math.MaxUint32, math.MaxUint32, math.MaxUint32
		r.Offset, r.IndexOffset = math.MaxUint64, math.MaxUint64
		r.Object += strings.Repeat("x", MaxRefBytes-proto.Size(r)-1) // its length takes two bytes then
		if n := proto.Size(r); n != MaxRefBytes {
			t.Fatalf("ref of %d bytes", n)
		}
		if err := Append(h, r); err != nil {
			t.Fatal(err)
		}
		for {
			body, replace := Overflow(h)
			if body == nil {
				break
			}
			if body.GetLevel() == 1 && i < 100 && len(EncodePage(body)) > MaxPageBytes/4 {
				t.Fatalf("page of %d bytes", len(EncodePage(body)))
			}
			replace("page/01ARZ3NDEKTSV4RRFFQ69G5FAV", math.MaxUint32)
			made++
		}
		most = max(most, headBytes(h))
	}
	if most > 20<<10 || len(h.GetPages()) > 5*maxPages || made > count/20 {
		t.Errorf("at most %d bytes, %d pages made; %s", most, made, shape(h))
	}
}
