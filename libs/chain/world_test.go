package chain_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/chain/chaintest"
	"github.com/nova-stream/nova/libs/directory"
	metafault "github.com/nova-stream/nova/libs/metastore/fault"
	metamem "github.com/nova-stream/nova/libs/metastore/mem"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/objectstore/mem"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is what outlives processes: the stores, and one chain in them.
type world struct {
	t       testing.TB
	objects *mem.Store
	rows    *metafault.Store
	chain   stream.ChainID
	streams []stream.ID
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, objects: mem.New(), rows: metafault.New(metamem.New()), chain: stream.NewChainID()}
	for range 3 {
		w.streams = append(w.streams, stream.NewID())
	}
	p := w.process()
	if _, err := p.index.PutChain(t.Context(), &indexpb.Chain{
		ChainId: w.chain.String(), WriterLife: stream.NewLifeID().String(), State: indexpb.ChainState_CHAIN_STATE_OPEN,
	}, catalog.Absent); err != nil {
		t.Fatal(err)
	}
	return w
}

// process is what one process sees of the world; it can be killed.
type process struct {
	*chain.Store

	objects *fault.Store
	rows    *metafault.Store
	index   *catalog.Client
	ctx     context.Context // ends with a kill
}

func (w *world) process() *process {
	p := &process{objects: fault.New(w.objects), rows: w.rows.Fork()}
	p.index = catalog.New(chaintest.NewIndex(p.rows))
	var err error
	p.Store, err = chain.New(chain.Config{Log: slog.New(slog.DiscardHandler)}, p.objects, p.index)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(p.Close)
	ctx, cancel := context.WithCancel(context.Background())
	w.t.Cleanup(cancel)
	p.ctx = ctx
	return p
}

// mortal makes the stores of a process die together, and its context with them.
func (p *process) mortal() {
	ctx, cancel := context.WithCancel(p.ctx)
	p.ctx = ctx
	dead := func() error {
		select {
		case <-p.objects.Killed():
		case <-p.rows.Killed():
		default:
			return nil
		}
		cancel()
		return fault.ErrKilled
	}
	p.objects.Script(fault.Rule{Op: fault.Any, Hook: func(context.Context, fault.Op, string) error { return dead() }})
	p.rows.Script(metafault.Rule{Op: metafault.Any, Hook: func(context.Context, metafault.Op, string) error {
		if err := dead(); err != nil {
			return metafault.ErrKilled
		}
		return nil
	}})
	go func() {
		select {
		case <-p.objects.Killed():
		case <-p.rows.Killed():
		case <-ctx.Done():
		}
		cancel()
	}()
}

// kill is one point at which a process dies.
type kill struct {
	rows bool // at the n-th call to the metastore, else to the object store
	n    int
	when fault.When
}

// plan makes the process die at a point.
func (p *process) plan(k kill) {
	p.mortal()
	if k.rows {
		p.rows.KillAt(k.n, metafault.When(k.when))
	} else {
		p.objects.KillAt(k.n, k.when)
	}
}

// everyKill runs work in a fresh world once per call that it makes to either
// store, dead before and dead after that call, and then check.
func everyKill(t *testing.T, work func(w *world, p *process), check func(t *testing.T, w *world)) {
	t.Helper()
	w := newWorld(t)
	p := w.process()
	work(w, p)
	calls := map[bool]int{}
	for _, c := range p.objects.Counts() {
		calls[false] += c.Calls
	}
	for _, c := range p.rows.Counts() {
		calls[true] += c.Calls
	}
	for rows, n := range calls {
		if n == 0 {
			t.Fatal("no calls to kill at")
		}
		// Work that runs in parallel makes some calls more or less.
		for i := 1; i <= n; i++ {
			for _, when := range []fault.When{fault.Before, fault.After} {
				t.Run(fmt.Sprintf("rows=%v/%d/%v", rows, i, when), func(t *testing.T) {
					w := newWorld(t)
					p := w.process()
					p.plan(kill{rows, i, when})
					work(w, p)
					check(t, w)
				})
			}
		}
	}
}

// entry makes entry no of (shard i, epoch), of stream i.
func (w *world) entry(i int, epoch stream.Epoch, no stream.EntryNo) bundle.Entry {
	return bundle.Entry{
		Kind: bundle.KindToken, Shard: stream.Shard(i), Epoch: epoch, EntryNo: no, StreamID: w.streams[i],
		Body: fmt.Appendf(nil, "shard %d epoch %d entry %d", i, epoch, no),
	}
}

func (w *world) builder(entries ...bundle.Entry) *bundle.Builder {
	b := bundle.NewBuilder(w.chain, stream.NewFlightID(), stream.ProfileStandard)
	for _, e := range entries {
		if _, _, err := b.Add(e); err != nil {
			w.t.Fatal(err)
		}
	}
	return b
}

// outcome is what a flight's Done was told.
type outcome struct {
	slot stream.Slot
	err  error
}

// fly launches flights, one entry of shard 0 each, and returns their outcomes.
func (w *world) fly(a *chain.Appender, first, n int) []outcome {
	w.t.Helper()
	var mu sync.Mutex
	var out []outcome
	var wg sync.WaitGroup
	for i := first; i < first+n; i++ {
		if err := a.Lane(w.t.Context()); err != nil {
			break
		}
		wg.Add(1)
		if err := a.Launch(chain.Flight{Builder: w.builder(w.entry(0, 1, stream.EntryNo(i))), Done: func(slot stream.Slot, err error) {
			mu.Lock()
			defer mu.Unlock()
			out = append(out, outcome{slot, err})
			wg.Done()
		}}); err != nil {
			wg.Done()
			break
		}
	}
	wg.Wait()
	return out
}

// store puts slots straight into the store: what a writer left behind.
func (w *world) store(from, n int) {
	w.t.Helper()
	for i := from; i < from+n; i++ {
		w.put(stream.Slot(i), w.entry(0, 1, stream.EntryNo(i)))
	}
}

func (w *world) put(slot stream.Slot, entries ...bundle.Entry) {
	w.t.Helper()
	if _, err := w.objects.PutIfAbsent(w.t.Context(), chain.SlotKey(w.chain, slot), w.builder(entries...).Finish(slot)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) putSeal(slot stream.Slot) {
	w.t.Helper()
	body := bundle.EncodeSeal(bundle.Seal{Chain: w.chain, Slot: slot, Sealer: stream.NewLifeID(), Attempt: stream.NewAttemptID()})
	if _, err := w.objects.PutIfAbsent(w.t.Context(), chain.SlotKey(w.chain, slot), body); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) delete(slots ...stream.Slot) {
	w.t.Helper()
	for _, s := range slots {
		if err := w.objects.Delete(w.t.Context(), chain.SlotKey(w.chain, s)); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) record() *indexpb.Chain {
	w.t.Helper()
	r, _, err := w.process().index.GetChain(w.t.Context(), w.chain.String())
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// keys returns the object keys with a prefix.
func (w *world) keys(prefix string) []string {
	w.t.Helper()
	infos, err := w.objects.List(w.t.Context(), prefix, "", 1000)
	if err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for _, i := range infos {
		out = append(out, i.Key)
	}
	return out
}

// verify absorbs the rest of the chain, which must be sealed, and checks what
// must hold whatever happened before: directories cover [0, cut) once, each row
// has its object, any other object has a marker, and of each shard the entries
// are there in order, each once. It returns them, by stream.
func (w *world) verify() map[stream.ID][]directory.Located {
	w.t.Helper()
	ctx := w.t.Context()
	p := w.process()
	if _, err := p.Absorb(ctx, w.chain); err != nil {
		w.t.Fatalf("absorb the rest: %v", err)
	}
	r := w.record()
	if r.GetState() != indexpb.ChainState_CHAIN_STATE_SEALED || r.GetAbsorbedTo() != r.GetCut() || r.GetAbsorbingTo() != r.GetCut() {
		w.t.Fatalf("the chain does not end well: %v", r)
	}
	rows, err := p.index.Directories(ctx, w.chain.String(), 0, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	named := map[string]bool{}
	covered := uint64(0)
	for _, d := range rows {
		if d.GetFrom() != covered {
			w.t.Fatalf("directory [%d, %d) follows slot %d", d.GetFrom(), d.GetTo(), covered)
		}
		covered = d.GetTo()
		named[d.GetObject()] = true
	}
	if covered != r.GetCut() {
		w.t.Fatalf("directories end at %d, the chain at %d", covered, r.GetCut())
	}
	markers, err := p.index.ListDue(ctx, chain.QueueDirectory, time.Now().Add(time.Hour), 1000)
	if err != nil {
		w.t.Fatal(err)
	}
	marked := map[string]bool{}
	for _, m := range markers {
		marked[m.Due.GetObject()] = true
	}
	for _, key := range w.keys("directory/") {
		if !named[key] && !marked[key] {
			w.t.Errorf("object %s has neither row nor marker: it leaks", key)
		}
		delete(named, key)
	}
	for key := range named {
		w.t.Errorf("row of %s has no object", key)
	}
	out := map[stream.ID][]directory.Located{}
	for i, id := range w.streams {
		found, err := p.Lookup(ctx, w.chain, stream.Shard(i), []stream.ID{id}, 0, stream.Slot(covered))
		if err != nil {
			w.t.Fatal(err)
		}
		w.inOrder(found)
		out[id] = found
	}
	return out
}

func (w *world) inOrder(found []directory.Located) {
	w.t.Helper()
	var epoch stream.Epoch
	var next stream.EntryNo
	for _, l := range found {
		if l.Epoch > epoch {
			epoch, next = l.Epoch, 0
		}
		if l.Epoch != epoch || l.EntryNo != next {
			w.t.Fatalf("shard %d has entry (%d, %d) where (%d, %d) is next", l.Shard, l.Epoch, l.EntryNo, epoch, next)
		}
		next++
	}
}

// eventually polls until ok, for at most 30 s.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for until := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("%s: not within 30 s", what)
		}
	}
}
