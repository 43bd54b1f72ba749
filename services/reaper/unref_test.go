package reaper

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

var collected = []string{queueUnref, queueSettled}

// What a head no longer names goes, wherever the reaper dies: of a shared object
// only the run, all of an object that nothing is left of, with its row. What is
// named stays (I11).
func TestDroppedRefsGoWhereverItDies(t *testing.T) {
	crashes(t, Config{}, queueUnref, collected, func(f *farm) func() {
		a, b := f.stream(nil), f.stream(nil)
		shared := f.object(run{a, 0, 2, 1, 0}, run{b, 0, 1, 1, 0})
		own := f.object(run{a, 2, 3, 1, 0})
		stays := f.object(run{a, 3, 4, 1, 0})
		keys := []string{shared[0].GetObject(), own[0].GetObject(), stays[0].GetObject()}
		f.adopted(keys...)
		f.add(a, shared[0], own[0], stays[0])
		f.add(b, shared[1])
		f.trim(a, 3)
		return func() {
			f.want(map[string][]uint32{keys[0]: {1}, keys[2]: {0}}, keys)
			f.trim(b, 1)
			f.converge(Config{}, collected...)
			f.want(map[string][]uint32{keys[2]: {0}}, keys)
		}
	})
}

// Pages go after all that is below them.
func TestDroppedPagesGoWhereverItDies(t *testing.T) {
	crashes(t, Config{}, queueUnref, collected, func(f *farm) func() {
		id := f.stream(nil)
		keys := f.paged(id)
		f.trim(id, 5)
		return func() {
			f.want(map[string][]uint32{keys[5]: {0}}, keys)
			f.trim(id, 6)
			f.converge(Config{}, collected...)
			f.want(nil, keys)
		}
	})
}

// Of a page that is only partly dead its dead refs go first, and the page when all
// of it is.
func TestPartOfAPageGoesWhereverItDies(t *testing.T) {
	crashes(t, Config{}, queueUnref, collected, func(f *farm) func() {
		id := f.stream(nil)
		keys := f.paged(id)
		all := f.keys()
		f.trim(id, 3)
		return func() {
			h, _, err := f.index.GetHead(f.t.Context(), id)
			f.must(err)
			if got := len(f.keys()); got != len(all)-4 || len(h.GetPages()) != 1 { // 3 runs and a page
				f.t.Fatalf("%d of %d objects are left", got, len(all))
			}
			f.trim(id, 6)
			f.converge(Config{}, collected...)
			f.want(nil, keys)
		}
	})
}

// A marker whose change of the head did not happen drops nothing, and whoever is
// about to make that change fails (I11).
func TestRefsThatAreNamedStillStay(t *testing.T) {
	f := newFarm(t)
	id := f.stream(nil)
	h := f.settle(id, 2)
	_, slow, err := f.index.GetHead(t.Context(), id)
	f.must(err)
	f.arm(&indexpb.Due{Queue: queueUnref, StreamId: id.String(), Refs: h.GetRefs()[:1]})
	drain(t, f.process(Config{}).Service, 0, 1)
	h.Trim, h.DroppedTo, h.Refs = 1, 1, h.GetRefs()[1:]
	if _, err := f.index.PutHead(t.Context(), h, slow); err == nil {
		t.Fatal("a head is changed that was looked at in between")
	}
	f.pass(settlesAfter + time.Hour)
	f.converge(Config{}, collected...)
	if n := len(f.keys()); n != 2 {
		t.Fatalf("%d objects are left", n)
	}
}

// A turn that is over goes on in the next one.
func TestManyRefsTakeSeveralTurns(t *testing.T) {
	f := newFarm(t)
	id := f.stream(nil)
	f.settle(id, 80)
	f.trim(id, 80)
	s := f.process(Config{Patience: time.Hour})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute) // less than a quarter
	defer cancel()
	var wait later
	if err := s.unref(ctx, f.queue(queueUnref)[0]); !errors.As(err, &wait) {
		t.Fatalf("it goes on in a turn that is over: %v", err)
	}
	f.converge(Config{}, collected...)
	f.want(nil, nil)
}

// Many markers of the largest size come in messages that are not too large (I8).
func TestLargeMarkersAreListedInSmallPages(t *testing.T) {
	f := newFarm(t)
	id := f.stream(nil)
	f.settle(id, 1)
	f.trim(id, 1)
	m := f.queue(queueUnref)[0].Due
	for len(m.GetRefs()) < 1000 {
		r := proto.CloneOf(m.GetRefs()[0])
		r.Object += strings.Repeat("x", 100)
		r.HashBefore, r.HashAfter, r.IndexOffset = 1, 1, 1<<40
		m.Refs = append(m.Refs, r)
	}
	for range 20 {
		f.arm(&indexpb.Due{Queue: queueUnref, StreamId: id.String(), Refs: m.GetRefs()})
	}
	s := f.process(Config{})
	drain(t, s.Service, 21, 0)
	s.countDead(t.Context(), s.queues[6])
	if s.queues[6].name != queueUnref {
		t.Fatal("another queue")
	}
}
