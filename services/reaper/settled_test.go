package reaper

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/history"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/settled"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

var judged = []string{queueSettled}

func (f *farm) judgeLater(keys ...string) {
	f.t.Helper()
	for _, key := range keys {
		f.arm(&indexpb.Due{Queue: queueSettled, Object: key})
	}
}

// Of what a maker left, exactly the runs stay that a head names, wherever the
// judge dies (I11); what none names goes with its row.
func TestObjectOfADeadMakerIsJudgedWhereverItDies(t *testing.T) {
	crashes(t, Config{}, queueSettled, judged, func(f *farm) func() {
		a, b := f.stream(nil), f.stream(nil)
		some := f.object(run{a, 0, 1, 1, 0}, run{b, 0, 1, 1, 0}, run{stream.NewID(), 0, 1, 1, 0})
		none := f.object(run{b, 0, 2, 1, 0})
		f.add(a, some[0])
		keys := []string{some[0].GetObject(), none[0].GetObject()}
		f.judgeLater(keys...)
		return func() { f.want(map[string][]uint32{keys[0]: {0}}, keys) }
	})
}

// Likewise of pages, and of what came no further than its marker or its row.
func TestPageOfADeadMakerIsJudgedWhereverItDies(t *testing.T) {
	crashes(t, Config{}, queueSettled, judged, func(f *farm) func() {
		id := f.stream(nil)
		f.paged(id)
		h, _, err := f.index.GetHead(f.t.Context(), id)
		f.must(err)
		body := f.page(id, h.GetPages()[0])
		lost := "page/" + stream.NewAttemptID().String()
		f.put(lost, history.EncodePage(body))
		f.row(lost, 1, id.String(), 100)
		rowOnly := "settled/" + stream.NewAttemptID().String()
		f.row(rowOnly, 9, "", 100)
		keys := []string{h.GetPages()[0].GetObject(), lost, rowOnly, "settled/none"}
		f.judgeLater(keys...)
		stay := f.keys()
		stay = slices.DeleteFunc(stay, func(k string) bool { return k == lost || k == keys[0] })
		return func() { f.want(map[string][]uint32{keys[0]: {0}}, keys, stay...) }
	})
}

func (f *farm) page(id stream.ID, p *indexpb.RefPage) *indexpb.RefPageBody {
	f.t.Helper()
	o, err := f.objects.Get(f.t.Context(), p.GetObject())
	f.must(err)
	body, err := history.DecodePage(o.Body, id)
	f.must(err)
	return body
}

// An object of many runs is looked through part by part.
func TestObjectOfManyRunsIsJudged(t *testing.T) {
	f := newFarm(t)
	const n = looksAtOnce + 100
	var runs []run
	for range n {
		runs = append(runs, run{f.stream(nil), 0, 1, 1, 0})
	}
	refs := f.object(runs...)
	var named []uint32
	for i := uint32(0); i < n; i += 3 {
		f.add(runs[i].id, refs[i])
		named = append(named, i)
	}
	key := refs[0].GetObject()
	f.judgeLater(key)
	drain(t, f.process(Config{}).Service, 1, 0)
	f.want(map[string][]uint32{key: named}, []string{key})
}

// A page that is named stays, though its row was left ADOPTING.
func TestPageThatIsNamedStays(t *testing.T) {
	f := newFarm(t)
	id := f.stream(nil)
	h := f.settle(id, 65)
	body := f.page(id, h.GetPages()[0])
	key := "page/" + stream.NewAttemptID().String()
	f.put(key, history.EncodePage(body))
	f.row(key, 1, id.String(), 100)
	f.head(id, func(h *indexpb.Head) { h.Pages[0].Object = key })
	f.judgeLater(key)
	f.converge(Config{}, judged...)
	f.want(map[string][]uint32{key: {0}}, []string{key}, slices.DeleteFunc(f.keys(), func(k string) bool { return k == key })...)
}

// A PUT that arrives after the deletion leaves nothing either.
func TestLatePutOfAnObjectIsDeletedToo(t *testing.T) {
	f := newFarm(t)
	key, body, _ := f.build(run{stream.NewID(), 0, 1, 1, 0})
	f.row(key, 1, "", len(body))
	f.judgeLater(key)
	drain(t, f.process(Config{}).Service, 0, 1)
	f.put(key, body)
	f.converge(Config{}, judged...)
	f.want(nil, []string{key})
}

// A maker that only armed its marker can make nothing of the object once that was
// judged: its row is refused.
func TestSlowMakerFailsAfterItsMarkerWasJudged(t *testing.T) {
	f := newFarm(t)
	key, body, _ := f.build(run{stream.NewID(), 0, 1, 1, 0})
	f.judgeLater(key)
	drain(t, f.process(Config{}).Service, 0, 1)
	_, err := f.index.PutSettled(t.Context(), &indexpb.SettledObject{
		Object: key, State: indexpb.SettledState_SETTLED_STATE_ADOPTING, Runs: 1, Live: []byte{1}, Size: uint64(len(body)),
	}, catalog.Absent)
	if !catalog.IsConflict(err) {
		t.Fatalf("its row: %v", err)
	}
	f.converge(Config{}, judged...)
	f.want(nil, []string{key})
}

// What is damaged is not judged: nobody can tell which heads name it.
func TestDamagedObjectIsSetAside(t *testing.T) {
	f := newFarm(t)
	key, body, _ := f.build(run{stream.NewID(), 0, 1, 1, 0})
	body[len(body)-10] ^= 1
	f.put(key, body)
	f.row(key, 1, "", len(body))
	f.judgeLater(key)
	s := f.process(Config{Attempts: 2})
	drain(t, s.Service, 0, 1)
	f.pass(time.Hour)
	drain(t, s.Service, 0, 1)
	if len(f.queue(catalog.DeadQueue(queueSettled))) != 1 || len(f.keys()) != 1 {
		t.Fatalf("%v, objects %v", f.queue(queueSettled), f.keys())
	}
}

// steps lets two take turns: each call of either is one step.
type steps struct {
	one  [2]sync.Mutex // each makes one call at a time
	mu   sync.Mutex
	wait map[int]chan struct{} // at its next step, by who
	gone map[int]bool
	cond *sync.Cond
}

func newSteps() *steps {
	s := &steps{wait: map[int]chan struct{}{}, gone: map[int]bool{}}
	s.cond = sync.NewCond(&s.mu)
	return s
}

// before waits for a step of who.
func (s *steps) before(who int) func(string) func() {
	return func(string) func() {
		s.one[who].Lock()
		s.mu.Lock()
		c := make(chan struct{})
		s.wait[who] = c
		s.cond.Broadcast()
		s.mu.Unlock()
		<-c
		return s.one[who].Unlock
	}
}

func (s *steps) end(who int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone[who] = true
	s.cond.Broadcast()
}

// run has both take steps as choose says, until both have ended. choose is asked
// only when both could.
func (s *steps) run(choose func() int) {
	for {
		s.mu.Lock()
		for !(s.gone[0] || s.wait[0] != nil) || !(s.gone[1] || s.wait[1] != nil) {
			s.cond.Wait()
		}
		who := 0
		switch {
		case s.gone[0] && s.gone[1]:
			s.mu.Unlock()
			return
		case s.gone[0]:
			who = 1
		case s.gone[1]:
		default:
			who = choose()
		}
		c := s.wait[who]
		s.wait[who] = nil
		s.mu.Unlock()
		close(c)
	}
}

// maker is a settler that adopts an object: per head it reads the head, touches the
// row as ADOPTING, changes the head; after a lost change all three again. It may
// die before any of its calls.
type maker struct {
	index   *catalog.Client
	refs    []*indexpb.Ref
	ids     []stream.ID
	row     *indexpb.SettledObject
	version int64
}

// touch reports whether the row is ADOPTING, and certainly was when it returned.
func (m *maker) touch(ctx context.Context) bool {
	for m.row.GetState() == indexpb.SettledState_SETTLED_STATE_ADOPTING {
		v, err := m.index.PutSettled(ctx, m.row, m.version)
		if err == nil {
			m.version = v
			return true
		}
		if m.row, m.version, err = m.index.GetSettled(ctx, m.row.GetObject()); err != nil {
			return false
		}
	}
	return false
}

func (m *maker) adopt(ctx context.Context) {
	var live settled.Live
	for i, id := range m.ids {
		for range 3 {
			h, version, err := m.index.GetHead(ctx, id)
			if err != nil || !m.touch(ctx) {
				return
			}
			r := m.refs[i]
			h.Refs, h.Tail, h.LastTimestamp = append(h.Refs, r), r.GetNextSeq(), r.GetLastTimestamp()
			_, err = m.index.PutHead(ctx, h, version)
			if err == nil {
				live.Set(uint32(i))
				break
			}
			if !catalog.IsConflict(err) {
				return
			}
		}
	}
	if r := proto.CloneOf(m.row); live.Any() {
		r.State = indexpb.SettledState_SETTLED_STATE_ADOPTED
		r.Live = settled.NewLive(int(r.GetRuns()), func(run int) bool { return live.Has(uint32(run)) })
		_, _ = m.index.PutSettled(ctx, r, m.version)
	}
}

// Whatever order the calls of a settler and a judge come in, and wherever the
// settler dies: what a head names is there, is ADOPTED, and the rest is gone (I11).
func TestJudgeNeverDeletesWhatASlowSettlerNames(t *testing.T) {
	const never = 1000
	race := func(streams, dies int) (died bool) {
		for path, more := []int{}, true; more; path, more = nextPath(path) {
			var d bool
			path, d = raceJudge(t, streams, dies, path)
			died = died || d
			if t.Failed() {
				t.Fatalf("%d streams, the settler dies after %d calls, order %v", streams, dies, path)
			}
		}
		return died
	}
	for dies := 0; race(1, dies); dies++ {
	}
	if !testing.Short() {
		race(2, never)
	}
}

// nextPath is the next order of steps after one that was taken to its end.
func nextPath(path []int) ([]int, bool) {
	for i := len(path) - 1; i >= 0; i-- {
		if path[i] == 0 {
			return append(path[:i:i], 1), true
		}
	}
	return nil, false
}

// raceJudge takes the steps of path, and then the settler's first. It returns the
// whole path.
func raceJudge(t *testing.T, streams, dies int, path []int) (taken []int, died bool) {
	f := newFarm(t)
	m := &maker{}
	var runs []run
	for range streams {
		id := f.stream(nil)
		m.ids = append(m.ids, id)
		runs = append(runs, run{id, 0, 1, 1, 0})
	}
	m.refs = f.object(runs...)
	key := m.refs[0].GetObject()
	f.judgeLater(key)
	var err error
	m.row, m.version, err = f.index.GetSettled(t.Context(), key)
	f.must(err)
	s := newSteps()
	of := func(who int, calls func()) *catalog.Client {
		wait := s.before(who)
		return catalog.New(indexpb.NewIndexServiceClient(direct{f.service, &indexpb.IndexService_ServiceDesc, func(method string) func() {
			calls()
			return wait(method)
		}}))
	}
	ctx, kill := context.WithCancel(t.Context())
	defer kill()
	calls := 0
	m.index = of(0, func() {
		if calls++; calls > dies {
			died = true
			kill()
		}
	})
	judge := f.process(Config{})
	judge.index = of(1, func() {})
	var both sync.WaitGroup
	both.Go(func() { defer s.end(0); m.adopt(ctx) })
	both.Go(func() {
		defer s.end(1)
		mk := f.queue(queueSettled)[0]
		mk.Due = proto.CloneOf(mk.Due)
		var wait later
		if err := judge.judgeSettled(t.Context(), mk); err != nil && !errors.As(err, &wait) && !reason.Is(err, reason.VersionConflict) {
			t.Errorf("judge: %v", err)
		} else if err == nil {
			_ = f.index.DropDue(t.Context(), f.queue(queueSettled)[0])
		}
	})
	s.run(func() int {
		n := len(taken)
		who := 0
		if n < len(path) {
			who = path[n]
		}
		taken = append(taken, who)
		return who
	})
	both.Wait()
	if t.Failed() {
		return taken, died
	}
	f.checkJudged(key, m)
	return taken, died
}

// checkJudged lets time pass and looks.
func (f *farm) checkJudged(key string, m *maker) {
	var named []uint32
	// A row that its maker left ADOPTED needs no judge, one that it left has it still.
	f.converge(Config{}, judged...)
	for i, id := range m.ids {
		h, _, err := f.index.GetHead(f.t.Context(), id)
		f.must(err)
		if len(h.GetRefs()) > 0 {
			named = append(named, uint32(i))
		}
	}
	if len(named) == 0 {
		f.want(nil, []string{key})
		return
	}
	f.want(map[string][]uint32{key: named}, []string{key})
}
