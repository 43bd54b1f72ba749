package settler

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/chunk/chunktest"
	"github.com/nova-stream/nova/libs/directory"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/head"
	"github.com/nova-stream/nova/libs/history"
	metafault "github.com/nova-stream/nova/libs/metastore/fault"
	metamem "github.com/nova-stream/nova/libs/metastore/mem"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/objectstore/mem"
	"github.com/nova-stream/nova/libs/settled"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
	"github.com/nova-stream/nova/services/index" //nolint:depguard // the real rules of the records are part of what is tested
)

func TestMain(m *testing.M) {
	chunktest.Warm()
	goleak.VerifyTestMain(m)
}

// direct calls a service without a network.
type direct struct {
	impl any
	desc *grpc.ServiceDesc

	mu     sync.Mutex
	counts map[string]int // calls by method
}

func (d *direct) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	name := path.Base(method)
	d.mu.Lock()
	d.counts[name]++
	d.mu.Unlock()
	for _, m := range d.desc.Methods {
		if m.MethodName != name {
			continue
		}
		out, err := m.Handler(d.impl, ctx, func(in any) error {
			proto.Merge(in.(proto.Message), args.(proto.Message))
			return nil
		}, nil)
		if err == nil {
			proto.Merge(reply.(proto.Message), out.(proto.Message))
		}
		return err
	}
	return errors.New("no such method: " + method)
}

func (d *direct) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("no streams")
}

func (d *direct) calls() map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[string]int{}
	for k, v := range d.counts {
		out[k] = v
	}
	return out
}

func newIndex(rows *metafault.Store) *direct {
	svc, err := index.New(index.Config{}, index.Deps{Store: rows})
	if err != nil {
		panic(err)
	}
	return &direct{impl: svc, desc: &indexpb.IndexService_ServiceDesc, counts: map[string]int{}}
}

type nodes struct {
	mu  sync.Mutex
	ids []string
	err error
}

func (n *nodes) Nodes(context.Context, discovery.Service) ([]discovery.Node, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []discovery.Node
	for _, id := range n.ids {
		out = append(out, discovery.Node{ID: id})
	}
	return out, n.err
}

const shards = 3

// failer is what a world needs of a test.
type failer interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Fatal(args ...any)
}

// world is the stores, what leaders wrote into them, and settlers over them. It
// lives in a synctest bubble, so time passes by sleeping.
type world struct {
	t       failer
	ctx     context.Context
	objects *mem.Store
	rows    *metafault.Store
	nodes   *nodes
	index   indexpb.IndexServiceClient
	store   *chain.Store
	leaders [shards]*leader
	chains  []*written
	logs    []*log
	rand    *rand.Rand
}

func newWorld(ctx context.Context, t failer) *world {
	t.Helper()
	w := &world{t: t, ctx: ctx, objects: mem.New(), rows: metafault.New(metamem.New()), nodes: &nodes{}, rand: rand.New(rand.NewPCG(1, 2))}
	w.index = indexpb.NewIndexServiceClient(newIndex(w.rows))
	var err error
	if w.store, err = chain.New(chain.Config{}, w.objects, w.catalog()); err != nil {
		t.Fatal(err)
	}
	if _, err := w.index.OpenConstellation(ctx, &indexpb.OpenConstellationRequest{ShardCount: shards}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"first", "second"} {
		if _, err := w.index.CreateBucket(ctx, &indexpb.CreateBucketRequest{Bucket: name}); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func (w *world) close() { w.store.Close() }

func (w *world) catalog() *catalog.Client { return catalog.New(w.index) }

func run(t *testing.T, f func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t.Context(), t)
		defer w.close()
		f(t, w)
	})
}

// written is a chain and what waits for its next slot.
type written struct {
	w    *world
	id   stream.ChainID
	next stream.Slot
	b    *bundle.Builder
}

func (w *world) newChain() *written {
	w.t.Helper()
	c := &written{w: w, id: stream.NewChainID()}
	r := &indexpb.Chain{ChainId: c.id.String(), State: indexpb.ChainState_CHAIN_STATE_OPEN}
	if _, err := w.catalog().PutChain(w.ctx, r, catalog.Absent); err != nil {
		w.t.Fatal(err)
	}
	w.chains = append(w.chains, c)
	return c
}

func (c *written) add(e bundle.Entry) {
	c.w.t.Helper()
	if c.b == nil {
		c.b = bundle.NewBuilder(c.id, stream.NewFlightID(), stream.ProfileStandard)
	}
	if _, _, err := c.b.Add(e); err != nil {
		c.w.t.Fatal(err)
	}
}

// land puts what waits into the next slot.
func (c *written) land() {
	c.w.t.Helper()
	if c.b == nil {
		return
	}
	if _, err := c.w.objects.PutIfAbsent(c.w.ctx, chain.SlotKey(c.id, c.next), c.b.Finish(c.next)); err != nil {
		c.w.t.Fatal(err)
	}
	c.b = nil
	c.next++
}

// absorb lands and absorbs all of the chain.
func (c *written) absorb() {
	c.w.t.Helper()
	c.land()
	if c.next == 0 {
		return
	}
	if _, err := c.w.store.AbsorbTo(c.w.ctx, c.id, c.next); err != nil {
		c.w.t.Fatal(err)
	}
}

func (c *written) seal() {
	c.w.t.Helper()
	c.land()
	if _, err := c.w.store.Seal(c.w.ctx, c.id, stream.NewLifeID()); err != nil {
		c.w.t.Fatal(err)
	}
}

func (c *written) record() *indexpb.Chain {
	c.w.t.Helper()
	r, _, err := c.w.catalog().GetChain(c.w.ctx, c.id.String())
	if err != nil {
		c.w.t.Fatal(err)
	}
	return r
}

// leader leads a shard.
type leader struct {
	w     *world
	shard stream.Shard
	epoch stream.Epoch
	next  stream.EntryNo
	chain *written
}

// lead gives a shard to a new leader with a chain, as recovery does: the chain
// before it is fenced, absorbed, and its cut recorded.
func (w *world) lead(n stream.Shard, c *written) {
	w.t.Helper()
	l := w.leaders[n]
	r, version := &indexpb.Shard{Shard: uint32(n)}, catalog.Absent
	if l == nil {
		l = &leader{w: w, shard: n}
		w.leaders[n] = l
	} else {
		var err error
		if r, version, err = w.catalog().GetShard(w.ctx, n); err != nil {
			w.t.Fatal(err)
		}
	}
	l.epoch++
	l.next = 0
	r.Epoch, r.HolderLife, r.State = uint64(l.epoch), stream.NewLifeID().String(), indexpb.ShardState_SHARD_STATE_RECOVERING
	version = w.putShard(r, version)
	if l.chain != nil {
		if l.chain.record().GetState() == indexpb.ChainState_CHAIN_STATE_OPEN {
			l.chain.add(bundle.Entry{Kind: bundle.KindFence, Shard: n, Epoch: l.epoch})
			l.chain.absorb()
		}
		last := r.Bindings[len(r.Bindings)-1]
		last.Cut, last.CutKnown = uint64(l.chain.next), true
	}
	if k := len(r.GetBindings()); k > 0 && r.GetBindings()[k-1].GetChainId() == c.id.String() {
		r.Bindings[k-1].Cut, r.Bindings[k-1].CutKnown = 0, false
	} else {
		r.Bindings = append(r.Bindings, &indexpb.Binding{ChainId: c.id.String(), Epoch: uint64(l.epoch)})
	}
	r.State = indexpb.ShardState_SHARD_STATE_SERVING
	w.putShard(r, version)
	l.chain = c
}

func (w *world) putShard(r *indexpb.Shard, version int64) int64 {
	w.t.Helper()
	v, err := w.catalog().PutShard(w.ctx, r, version)
	if err != nil {
		w.t.Fatal(err)
	}
	return v
}

// log is a stream as its leader knows it.
type log struct {
	w       *world
	id      stream.ID
	shard   stream.Shard
	bucket  string
	state   head.State
	records []stream.Record
	deleted bool
	broken  bool // its log was damaged: it is to be quarantined
}

// open creates a stream; one of a shard, if that is given.
func (w *world) open(bucket string, of ...stream.Shard) *log {
	w.t.Helper()
	for {
		res, err := w.index.CreateStream(w.ctx, &indexpb.CreateStreamRequest{
			Bucket: bucket, Stream: stream.NewID().String(), RequestToken: stream.NewID().String(), Config: &novapb.StreamConfig{},
		})
		if err != nil {
			w.t.Fatal(err)
		}
		d := res.GetStream()
		id, err := stream.ParseID(d.GetStreamId())
		if err != nil {
			w.t.Fatal(err)
		}
		if len(of) > 0 && stream.Shard(d.GetShard()) != of[0] {
			continue
		}
		l := &log{w: w, id: id, shard: stream.Shard(d.GetShard()), bucket: bucket}
		w.logs = append(w.logs, l)
		return l
	}
}

func (l *log) write(kind bundle.Kind, body []byte, h *chunk.Header) {
	l.w.t.Helper()
	at := l.w.leaders[l.shard]
	e := bundle.Entry{Kind: kind, Shard: l.shard, Epoch: at.epoch, EntryNo: at.next, StreamID: l.id, Timestamp: 1000, Body: body}
	at.next++
	at.chain.add(e)
	he := head.Entry{Position: stream.Position{Epoch: e.Epoch, Entry: e.EntryNo}, Kind: kind, Timestamp: 1000, Chunk: h}
	if kind != bundle.KindChunk {
		he.Argument = body
	}
	if _, err := l.state.Fold(he); err != nil {
		l.w.t.Fatal(err)
	}
}

// append appends one chunk of records, each of so many bytes.
func (l *log) append(records, size int) {
	l.w.t.Helper()
	in := chunk.Input{StreamID: l.id, BaseSeq: l.state.Tail, HashBefore: l.state.Hash, Batches: []chunk.InputBatch{{
		Producer: stream.Producer{ID: "p", Batch: uint64(len(l.records))},
	}}}
	if l.w.rand.IntN(2) == 0 || l.state.Producers.Len() > 0 {
		in.Batches[0].Producer = stream.Producer{}
	}
	for i := range records {
		body := make([]byte, size)
		for k := range body {
			body[k] = byte(l.w.rand.Uint32())
		}
		r := stream.Record{Seq: l.state.Tail + stream.Seq(i), Timestamp: stream.Millis(len(l.records) + i), Body: body}
		if size > 4 {
			r.Headers = []stream.Header{{Name: []byte("n"), Value: body[:2]}}
		}
		in.Batches[0].Records = append(in.Batches[0].Records, r)
	}
	b, h, err := chunk.Encode(nil, in)
	if err != nil {
		l.w.t.Fatal(err)
	}
	l.write(bundle.KindChunk, b, &h)
	l.records = append(l.records, in.Batches[0].Records...)
}

func (l *log) trim(to int)      { l.write(bundle.KindTrim, head.TrimArgument(stream.Seq(to)), nil) }
func (l *log) token(tok string) { l.write(bundle.KindToken, []byte(tok), nil) }
func (l *log) seal()            { l.write(bundle.KindSeal, nil, nil) }
func (l *log) delete() {
	l.write(bundle.KindDelete, nil, nil)
	l.deleted = true
}

// process is a settler's engine with stores of its own, that can fail.
type process struct {
	*engine

	objects *fault.Store
	rows    *metafault.Store
	index   *direct
	logged  *bytes.Buffer
}

func (w *world) process(cfg Config) *process {
	w.t.Helper()
	p := &process{objects: fault.New(w.objects), rows: w.rows.Fork(), logged: &bytes.Buffer{}}
	p.index = newIndex(p.rows)
	m, err := newMetrics(nil, func() load { return load{} })
	if err != nil {
		w.t.Fatal(err)
	}
	cfg = cfg.withDefaults()
	p.engine = newEngine(cfg, Deps{
		Objects: p.objects, Index: indexpb.NewIndexServiceClient(p.index), Now: time.Now, Log: slog.New(slog.NewTextHandler(p.logged, nil)),
	}, m)
	return p
}

// settle settles all that is absorbed, chain by chain as their order allows; who
// cannot go on is left.
func (p *process) settleAll(ctx context.Context, w *world) error {
	var last error
	for moved := true; moved && ctx.Err() == nil; {
		moved, last = false, nil
		for _, c := range w.chains {
			before := c.record().GetSettledTo()
			_, err := p.settle(ctx, c.id)
			if err != nil {
				last = err
			}
			moved = moved || c.record().GetSettledTo() > before
		}
	}
	return last
}

// settled sees that all that was absorbed is settled.
func (w *world) wantSettled() {
	w.t.Helper()
	for i, c := range w.chains {
		if r := c.record(); r.GetSettledTo() != r.GetAbsorbedTo() {
			w.t.Errorf("chain %d is settled to %d, absorbed to %d", i, r.GetSettledTo(), r.GetAbsorbedTo())
		}
	}
}

func (l *log) head() *indexpb.Head {
	l.w.t.Helper()
	h, _, err := l.w.catalog().GetHead(l.w.ctx, l.id)
	if err != nil {
		l.w.t.Fatal(err)
	}
	return h
}

func (w *world) load(id stream.ID) history.Load {
	return func(ctx context.Context, p *indexpb.RefPage) (*indexpb.RefPageBody, error) {
		o, err := w.objects.Get(ctx, p.GetObject())
		if errors.Is(err, objectstore.ErrNotFound) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		return history.DecodePage(o.Body, id)
	}
}

// read returns the records that are settled, from the head's refs.
func (l *log) read(h *indexpb.Head) []stream.Record {
	l.w.t.Helper()
	var out []stream.Record
	err := history.Walk(l.w.ctx, l.w.load(l.id), h, 0, func(r *indexpb.Ref) (bool, error) {
		o, err := l.w.objects.Get(l.w.ctx, r.GetObject())
		if err != nil {
			return false, err
		}
		frames := []settled.Frame{{Offset: r.GetOffset(), Length: uint32(r.GetLength())}}
		if r.GetFrames() > 1 {
			if frames, err = settled.ParseIndex(o.Body[r.GetIndexOffset():r.GetIndexOffset()+uint64(r.GetIndexLength())], l.id); err != nil {
				return false, err
			}
		}
		hash := stream.Hash(r.GetHashBefore())
		for _, f := range frames {
			fh, records, err := chunk.Decode(o.Body[f.Offset : f.Offset+uint64(f.Length)])
			if err != nil {
				return false, err
			}
			if fh.HashBefore != hash {
				return false, fmt.Errorf("frame at %d: hash %016x, want %016x", fh.BaseSeq, fh.HashBefore, hash)
			}
			if err := chunk.VerifyHash(&fh, records); err != nil {
				return false, err
			}
			hash = fh.HashAfter
			out = append(out, records...)
		}
		if hash != stream.Hash(r.GetHashAfter()) {
			return false, errors.New("the run's hash does not fit")
		}
		return true, nil
	})
	if err != nil {
		l.w.t.Fatalf("read what is settled of %s: %v", l.id, err)
	}
	return out
}

// check reads the whole history of every stream, settled or not, and compares it
// with what was written (I1, I2); and sees that no object is without an owner
// (I11).
func (w *world) check() {
	w.t.Helper()
	for i, l := range w.logs {
		if !l.broken {
			l.check(i)
		}
	}
	w.checkObjects()
}

func (l *log) check(i int) {
	l.w.t.Helper()
	t := l.w.t
	h := l.head()
	if h.GetQuarantine() != "" {
		t.Errorf("stream %d is quarantined: %s", i, h.GetQuarantine())
		return
	}
	st := head.Read(h)
	before := st.Folded
	tail := st.Tail // up to it the refs
	var found []directory.Located
	for _, c := range l.w.chains {
		r := c.record()
		if r.GetSettledTo() >= r.GetAbsorbedTo() {
			continue
		}
		located, err := l.w.store.Lookup(l.w.ctx, c.id, l.shard, []stream.ID{l.id}, stream.Slot(r.GetSettledTo()), stream.Slot(r.GetAbsorbedTo()))
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, located...)
	}
	slices.SortFunc(found, func(a, b directory.Located) int {
		if (stream.Position{Epoch: a.Epoch, Entry: a.EntryNo}).Less(stream.Position{Epoch: b.Epoch, Entry: b.EntryNo}) {
			return -1
		}
		return 1
	})
	var rest []stream.Record
	for _, e := range found {
		he := head.Entry{Position: stream.Position{Epoch: e.Epoch, Entry: e.EntryNo}, Kind: e.Kind, Timestamp: e.Timestamp, Chunk: e.Chunk}
		if e.Kind != bundle.KindChunk {
			he.Argument = e.Header
		}
		applied, err := st.Fold(he)
		if err != nil {
			t.Errorf("stream %d: opening it: %v", i, err)
			return
		}
		if !applied || e.Kind != bundle.KindChunk {
			continue
		}
		o, err := l.w.objects.Get(l.w.ctx, chain.SlotKey(e.At.Chain, e.At.Slot))
		if err != nil {
			t.Fatal(err)
		}
		be, err := bundle.ParseEntry(o.Body[e.At.Offset : e.At.Offset+e.At.Length])
		if err != nil {
			t.Fatal(err)
		}
		_, records, err := chunk.Decode(be.Body)
		if err != nil {
			t.Fatal(err)
		}
		rest = append(rest, records...)
	}
	want := &l.state
	if st.Deleted {
		st.Folded = want.Folded // nothing is folded any more
	}
	if st.Tail != want.Tail || st.Hash != want.Hash || st.Trim != want.Trim || st.Folded != want.Folded || st.Sealed != want.Sealed ||
		st.Deleted != want.Deleted || st.Token != want.Token || st.LastTimestamp != want.LastTimestamp || st.Producers.Len() != want.Producers.Len() {
		t.Errorf("stream %d opens as %+v, was written as %+v (folded to %v by the head)", i, st, *want, before)
		return
	}
	if h.GetState() == indexpb.HeadState_HEAD_STATE_DELETED {
		if h.GetDeletedChain() == "" {
			t.Errorf("stream %d does not say where it was deleted", i)
		}
		return
	}
	got := append(l.read(h), rest...)
	from := stream.Seq(0)
	if len(got) > 0 {
		from = got[0].Seq
	}
	dropped := stream.Seq(h.GetDroppedTo())
	if from > dropped && len(got) > 0 {
		t.Errorf("stream %d begins at %d, dropped are those below %d", i, from, dropped)
	}
	if dropped > want.Trim || before == want.Folded && dropped != want.Trim {
		t.Errorf("stream %d is dropped to %d, trimmed to %d", i, dropped, want.Trim)
	}
	live := l.records[min(int(dropped), len(l.records)):]
	for len(got) > 0 && got[0].Seq < dropped {
		got = got[1:]
	}
	if len(got) != len(live) {
		t.Errorf("stream %d has %d records from %d (settled to %d), want %d", i, len(got), dropped, tail, len(live))
		return
	}
	for k := range got {
		a, b := got[k], live[k]
		if a.Seq != b.Seq || a.Timestamp != b.Timestamp || !bytes.Equal(a.Body, b.Body) || len(a.Headers) != len(b.Headers) {
			t.Errorf("stream %d, record %d: found %d at %d", i, b.Seq, a.Seq, a.Timestamp)
			return
		}
	}
}

// due returns all markers of a queue.
func (w *world) due(queue string) []*indexpb.Due {
	w.t.Helper()
	ms, err := w.catalog().ListDue(w.ctx, queue, time.Now().Add(100*24*time.Hour), 1000)
	if err != nil {
		w.t.Fatal(err)
	}
	var out []*indexpb.Due
	for _, m := range ms {
		out = append(out, m.Due)
	}
	return out
}

// named returns the runs of objects that heads name; pages have run 0.
func (w *world) named() map[string]map[uint32]bool {
	w.t.Helper()
	out := map[string]map[uint32]bool{}
	note := func(object string, run uint32) error {
		if out[object] == nil {
			out[object] = map[uint32]bool{}
		}
		out[object][run] = true
		return nil
	}
	ref := func(r *indexpb.Ref) error { return note(r.GetObject(), r.GetRun()) }
	page := func(p *indexpb.RefPage) error { return note(p.GetObject(), 0) }
	for _, l := range w.logs {
		h := l.head()
		for _, r := range h.GetRefs() {
			_ = ref(r)
		}
		for _, p := range h.GetPages() {
			_ = page(p)
			if err := history.WalkPage(w.ctx, w.load(l.id), p, ref, page); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	return out
}

func (w *world) checkObjects() {
	w.t.Helper()
	marked, unref := map[string]bool{}, map[string]bool{}
	for _, q := range []string{queueSettled, chain.QueueDirectory} {
		for _, d := range w.due(q) {
			marked[d.GetObject()] = true
		}
	}
	for _, d := range w.due(queueUnref) {
		for _, r := range d.GetRefs() {
			unref[fmt.Sprint(r.GetObject(), r.GetRun())] = true
		}
		for _, p := range d.GetPages() {
			unref[fmt.Sprint(p.GetObject(), 0)] = true
		}
	}
	named := w.named()
	for object, runs := range named {
		r, _, err := w.catalog().GetSettled(w.ctx, object)
		if err != nil {
			w.t.Errorf("%s is named and has no row: %v", object, err)
			continue
		}
		if _, err := w.objects.Get(w.ctx, object); err != nil {
			w.t.Errorf("%s is named: %v", object, err)
		}
		if r.GetState() == indexpb.SettledState_SETTLED_STATE_CONDEMNED || r.GetState() == indexpb.SettledState_SETTLED_STATE_ADOPTING && !marked[object] {
			w.t.Errorf("%s is named, and %s without a marker", object, r.GetState())
		}
		for run := range r.GetRuns() {
			live := settled.Live(r.GetLive()).Has(run)
			if runs[run] && !live {
				w.t.Errorf("run %d of %s is named and not live", run, object)
			}
			if live && !runs[run] && !marked[object] && !unref[fmt.Sprint(object, run)] {
				w.t.Errorf("run %d of %s is live, and named by no head or marker", run, object)
			}
		}
	}
	infos, err := w.objects.List(w.ctx, "", "", 1000)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, o := range infos {
		switch {
		case strings.HasPrefix(o.Key, "chain/"), strings.HasPrefix(o.Key, "directory/"), marked[o.Key], named[o.Key] != nil:
			continue
		}
		// Named by nobody: what named it has a marker of what it dropped.
		r, _, err := w.catalog().GetSettled(w.ctx, o.Key)
		if err != nil {
			w.t.Errorf("%s is named by no head, marker or row: %v", o.Key, err)
			continue
		}
		for run := range r.GetRuns() {
			if settled.Live(r.GetLive()).Has(run) && !unref[fmt.Sprint(o.Key, run)] {
				w.t.Errorf("run %d of %s is live, and named by no head or marker", run, o.Key)
			}
		}
	}
}

// one is a world with one chain that all shards are led with.
func one(t *testing.T, f func(t *testing.T, w *world, c *written)) {
	run(t, func(t *testing.T, w *world) {
		c := w.newChain()
		for n := range stream.Shard(shards) {
			w.lead(n, c)
		}
		f(t, w, c)
	})
}

// must settles all and sees that it worked.
func (p *process) must(w *world) {
	w.t.Helper()
	if err := p.settleAll(w.ctx, w); err != nil {
		w.t.Fatal(err)
	}
	w.wantSettled()
	w.check()
}
