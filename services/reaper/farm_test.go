package reaper

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/export"
	"github.com/nova-stream/nova/libs/history"
	metafault "github.com/nova-stream/nova/libs/metastore/fault"
	metamem "github.com/nova-stream/nova/libs/metastore/mem"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/objectstore/mem"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/settled"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/cache/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/reaper/v1"
	"github.com/nova-stream/nova/proto/gen/nova/settler/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
	"github.com/nova-stream/nova/services/index" //nolint:depguard // the real rules of the records are part of what is tested
)

// farm is the rows and objects of a constellation, with the real rules of the
// rows, and what a settler leaves there. Reapers are processes that can be killed.
type farm struct {
	t       testing.TB
	rows    *metafault.Store
	objects objectstore.Store
	service *index.Service
	raw     indexpb.IndexServiceClient
	index   *catalog.Client
	leader  func(method string, req, res proto.Message) error // nil: nobody leads
	nodes   []discovery.Node                                  // chain-writers
	writers map[string]grpc.ClientConnInterface               // by address
	settler func(object string) (*settlerpb.CompactObjectResponse, error)

	compacting sync.Mutex

	exporting *index.Exporting // nil: the metadata are not exported
	exported  time.Time        // when they were, last
	streams   []stream.ID

	mu    sync.Mutex
	now   time.Time
	names int
	kept  []map[string]bool // what each of the newest two exports needs
}

func newFarm(t testing.TB) *farm {
	t.Helper()
	f := &farm{t: t, rows: metafault.New(metamem.New()), objects: mem.New(), now: time.Now(), writers: map[string]grpc.ClientConnInterface{}}
	var err error
	f.objects = keeper{f.objects, f}
	f.service, err = index.New(index.Config{}, index.Deps{Store: f.rows, Now: f.clock})
	f.must(err)
	f.raw = indexpb.NewIndexServiceClient(direct{f.service, &indexpb.IndexService_ServiceDesc, nil})
	f.index = catalog.New(f.raw)
	_, err = f.raw.OpenConstellation(t.Context(), &indexpb.OpenConstellationRequest{ShardCount: 1})
	f.must(err)
	_, err = f.raw.CreateBucket(t.Context(), &indexpb.CreateBucketRequest{Bucket: "bucket"})
	f.must(err)
	return f
}

func (f *farm) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *farm) newIndex(rows *metafault.Store) indexpb.IndexServiceClient {
	svc, err := index.New(index.Config{}, index.Deps{Store: rows, Now: f.clock})
	f.must(err)
	return indexpb.NewIndexServiceClient(direct{svc, &indexpb.IndexService_ServiceDesc, nil})
}

func (f *farm) clock() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

func (f *farm) pass(d time.Duration) {
	f.mu.Lock()
	f.now = f.now.Add(d)
	f.mu.Unlock()
	if f.exporting != nil && f.clock().Sub(f.exported) >= exportsApart {
		f.export()
	}
}

// direct calls a service without a wire. before, if set, is called before each
// call, and what it returns after it.
type direct struct {
	srv    any
	desc   *grpc.ServiceDesc
	before func(method string) (after func())
}

func (d direct) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	name := method[strings.LastIndexByte(method, '/')+1:]
	if d.before != nil {
		defer d.before(name)()
	}
	if err := ctx.Err(); err != nil {
		return reason.New(reason.Code(err), "", err.Error())
	}
	for _, m := range d.desc.Methods {
		if m.MethodName != name {
			continue
		}
		res, err := m.Handler(d.srv, ctx, func(in any) error {
			proto.Merge(in.(proto.Message), args.(proto.Message))
			return nil
		}, nil)
		if err != nil {
			return err
		}
		if n := proto.Size(res.(proto.Message)); n > 3<<20 {
			return reason.New(codes.ResourceExhausted, "", fmt.Sprintf("an answer of %d bytes", n))
		}
		proto.Merge(reply.(proto.Message), res.(proto.Message))
		return nil
	}
	return fmt.Errorf("no method %s", method)
}

func (d direct) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, reason.New(codes.Unimplemented, "", "no streams")
}

// store is a cache without pages.
type store struct {
	cachepb.CacheServiceClient
	objects objectstore.Store
}

func (c store) ReadRange(ctx context.Context, req *cachepb.ReadRangeRequest, _ ...grpc.CallOption) (*cachepb.ReadRangeResponse, error) {
	o, err := c.objects.Get(ctx, req.GetObject())
	if err != nil {
		return nil, storeError(err)
	}
	from := min(req.GetOffset(), uint64(len(o.Body)))
	return &cachepb.ReadRangeResponse{Data: o.Body[from:min(from+req.GetLength(), uint64(len(o.Body)))], ObjectSize: uint64(len(o.Body))}, nil
}

func (c store) DeleteObjects(ctx context.Context, req *cachepb.DeleteObjectsRequest, _ ...grpc.CallOption) (*cachepb.DeleteObjectsResponse, error) {
	if n := len(req.GetObjects()); n < 1 || n > deleteAtOnce {
		return nil, reason.Field("objects", fmt.Sprint("there are ", n))
	}
	if err := c.objects.Delete(ctx, req.GetObjects()...); err != nil {
		return nil, storeError(err)
	}
	return &cachepb.DeleteObjectsResponse{}, nil
}

func storeError(err error) error {
	if objectstore.Class(err) == "not_found" {
		return reason.New(codes.NotFound, reason.ObjectNotFound, err.Error())
	}
	return reason.New(codes.Unavailable, reason.StorageDown, err.Error())
}

// process is one reaper that can be killed.
type process struct {
	*Service

	rows    *metafault.Store
	objects *fault.Store
}

func (f *farm) process(cfg Config) *process {
	p := &process{rows: f.rows.Fork(), objects: fault.New(f.objects)}
	p.Service = f.reaper(cfg, f.newIndex(p.rows), p.objects)
	return p
}

func (f *farm) reaper(cfg Config, x indexpb.IndexServiceClient, objects objectstore.Store) *Service {
	s, err := New(cfg, Deps{Index: x, Cache: store{objects: objects}, Router: f, Registry: f, Conns: f, Now: f.clock})
	f.must(err)
	return s
}

// context ends with the process.
func (p *process) context(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-p.rows.Killed():
		case <-p.objects.Killed():
		case <-ctx.Done():
		}
		cancel()
	}()
	return ctx, cancel
}

func (p *process) dead() bool {
	select {
	case <-p.rows.Killed():
	case <-p.objects.Killed():
	default:
		return false
	}
	return true
}

// Nodes implements Registry.
func (f *farm) Nodes(_ context.Context, s discovery.Service) ([]discovery.Node, error) {
	if s == discovery.Settler && f.settler != nil {
		return []discovery.Node{{ID: "settler", Address: "settler"}}, nil
	}
	if s == discovery.Settler {
		return nil, nil
	}
	return slices.Clone(f.nodes), nil
}

// Address implements Connections.
func (f *farm) Address(a string) (grpc.ClientConnInterface, error) {
	if a == "settler" {
		return asked(func(_ string, req, res proto.Message) error {
			out, err := f.settler(req.(*settlerpb.CompactObjectRequest).GetObject())
			proto.Merge(res, out)
			return err
		}), nil
	}
	if c := f.writers[a]; c != nil {
		return c, nil
	}
	return nil, errDown
}

// DoIdempotent implements Router.
func (f *farm) DoIdempotent(_ context.Context, _ stream.Shard, call func(grpc.ClientConnInterface) error) error {
	if f.leader == nil {
		return errDown
	}
	return call(asked(f.leader))
}

type asked func(method string, req, res proto.Message) error

func (a asked) Invoke(_ context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	return a(method[strings.LastIndexByte(method, '/')+1:], args.(proto.Message), reply.(proto.Message))
}

func (a asked) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, reason.New(codes.Unimplemented, "", "no streams")
}

// stream makes a stream and returns its id.
func (f *farm) stream(c *novapb.StreamConfig) stream.ID {
	f.t.Helper()
	f.names++
	res, err := f.raw.CreateStream(f.t.Context(), &indexpb.CreateStreamRequest{Bucket: "bucket", Stream: fmt.Sprint("s", f.names), Config: c})
	f.must(err)
	id, err := stream.ParseID(res.GetStream().GetStreamId())
	f.must(err)
	f.streams = append(f.streams, id)
	return id
}

// run is records of a stream that are settled.
type run struct {
	id          stream.ID
	first, next uint64
	at          int64 // timestamp of all records
	size        int   // bytes of a record; 0: few
}

// object puts an object of runs and its row, ADOPTING, and returns the refs.
func (f *farm) object(runs ...run) []*indexpb.Ref {
	f.t.Helper()
	key, body, refs := f.build(runs...)
	f.put(key, body)
	f.row(key, uint32(len(runs)), "", len(body))
	f.liveBytes(key, refs)
	return refs
}

// liveBytes notes what the runs of an object take.
func (f *farm) liveBytes(key string, refs []*indexpb.Ref) {
	f.t.Helper()
	_, _, err := f.index.UpdateSettled(f.t.Context(), key, func(r *indexpb.SettledObject) (bool, error) {
		for _, ref := range refs {
			r.LiveBytes += runBytes(ref)
		}
		return true, nil
	})
	f.must(err)
}

func (f *farm) build(runs ...run) (key string, body []byte, refs []*indexpb.Ref) {
	f.t.Helper()
	key = "settled/" + stream.NewAttemptID().String()
	b := settled.NewBuilder()
	for _, r := range runs {
		in := chunk.Input{StreamID: r.id, BaseSeq: stream.Seq(r.first), Batches: []chunk.InputBatch{{}}}
		body := []byte("record")
		if r.size > 0 {
			body = make([]byte, r.size)
			_, _ = rand.NewChaCha8([32]byte{1}).Read(body)
		}
		for seq := r.first; seq < r.next; seq++ {
			in.Batches[0].Records = append(in.Batches[0].Records, stream.Record{Seq: stream.Seq(seq), Timestamp: stream.Millis(r.at), Body: body})
		}
		frame, h, err := chunk.Encode(nil, in)
		f.must(err)
		b.Begin(r.id)
		f.must(b.Add(frame, &h))
	}
	body, made := b.Finish()
	for i, r := range made {
		refs = append(refs, &indexpb.Ref{
			Object: key, Run: uint32(i), FirstSeq: uint64(r.First), NextSeq: uint64(r.Next), FirstTimestamp: int64(r.FirstTimestamp),
			LastTimestamp: int64(r.LastTimestamp), Offset: r.Offset, Length: r.Length, Frames: r.Frames, IndexOffset: r.IndexOffset, IndexLength: r.IndexLength,
		})
	}
	return key, body, refs
}

func (f *farm) put(key string, body []byte) {
	f.t.Helper()
	_, err := f.objects.PutIfAbsent(f.t.Context(), key, body)
	f.must(err)
}

func (f *farm) row(key string, runs uint32, id string, size int) {
	f.t.Helper()
	r := &indexpb.SettledObject{Object: key, State: indexpb.SettledState_SETTLED_STATE_ADOPTING, Runs: runs, StreamId: id, Size: uint64(size), CreatedAt: 1}
	r.Live = settled.NewLive(int(runs), func(int) bool { return true })
	_, err := f.index.PutSettled(f.t.Context(), r, catalog.Absent)
	f.must(err)
}

func (f *farm) adopted(keys ...string) {
	f.t.Helper()
	for _, key := range keys {
		_, _, err := f.index.UpdateSettled(f.t.Context(), key, func(r *indexpb.SettledObject) (bool, error) {
			r.State = indexpb.SettledState_SETTLED_STATE_ADOPTED
			return true, nil
		})
		f.must(err)
	}
}

// head changes a stream's head.
func (f *farm) head(id stream.ID, change func(h *indexpb.Head)) *indexpb.Head {
	f.t.Helper()
	h, v, err := f.index.GetHead(f.t.Context(), id)
	f.must(err)
	change(h)
	_, err = f.index.PutHead(f.t.Context(), h, v)
	f.must(err)
	return h
}

// names adds refs to a head, and writes pages where it has too many.
func (f *farm) add(id stream.ID, refs ...*indexpb.Ref) *indexpb.Head {
	f.t.Helper()
	return f.head(id, func(h *indexpb.Head) {
		for _, r := range refs {
			f.must(history.Append(h, r))
			h.Tail, h.LastTimestamp = r.GetNextSeq(), r.GetLastTimestamp()
			for {
				body, replace := history.Overflow(h)
				if body == nil {
					break
				}
				key, b := "page/"+stream.NewAttemptID().String(), history.EncodePage(body)
				f.put(key, b)
				f.row(key, 1, id.String(), len(b))
				f.adopted(key)
				replace(key, uint32(len(b)))
			}
		}
	})
}

// settle makes n runs of a stream, each an object of its own, and has the head name
// them.
func (f *farm) settle(id stream.ID, n int) *indexpb.Head {
	f.t.Helper()
	var refs []*indexpb.Ref
	for i := range uint64(n) {
		r := f.object(run{id, i, i + 1, 1, 0})
		f.adopted(r[0].GetObject())
		refs = append(refs, r[0])
	}
	return f.add(id, refs...)
}

// paged makes 6 runs of a stream: two pages of two refs each below a page of level
// 2, and two refs in the head. It returns the objects of the runs.
func (f *farm) paged(id stream.ID) (keys []string) {
	f.t.Helper()
	for _, r := range f.settle(id, 6).GetRefs() {
		keys = append(keys, r.GetObject())
	}
	f.head(id, func(h *indexpb.Head) {
		page := func(body *indexpb.RefPageBody) *indexpb.RefPage {
			body.StreamId = id.String()
			key, b := "page/"+stream.NewAttemptID().String(), history.EncodePage(body)
			f.put(key, b)
			f.row(key, 1, id.String(), len(b))
			f.adopted(key)
			return history.PageOf(body, key, uint32(len(b)))
		}
		below := []*indexpb.RefPage{page(&indexpb.RefPageBody{Level: 1, Refs: h.GetRefs()[:2]}), page(&indexpb.RefPageBody{Level: 1, Refs: h.GetRefs()[2:4]})}
		h.Pages, h.Refs = []*indexpb.RefPage{page(&indexpb.RefPageBody{Level: 2, Pages: below})}, h.GetRefs()[4:]
	})
	return keys
}

// trim drops what is below a number, behind its marker, as a settler does.
func (f *farm) trim(id stream.ID, to uint64) {
	f.t.Helper()
	f.head(id, func(h *indexpb.Head) {
		load := f.reaper(Config{}, f.raw, f.objects).load(id)
		h.Trim = to
		refs, pages, err := history.Trim(f.t.Context(), load, h, stream.Seq(to))
		f.must(err)
		f.arm(&indexpb.Due{Queue: queueUnref, StreamId: id.String(), Refs: refs, Pages: pages})
	})
}

// arm adds a marker that is due.
func (f *farm) arm(d *indexpb.Due) {
	f.t.Helper()
	if f.exporting != nil {
		f.export() // it is armed before what is to be deleted is dead
	}
	if d.GetAt() == 0 {
		d.At = f.clock().UnixMilli()
	}
	_, err := f.index.ArmDue(f.t.Context(), d)
	f.must(err)
}

func (f *farm) queue(name string) []catalog.Marker {
	f.t.Helper()
	all, err := f.index.ListDue(f.t.Context(), name, f.clock().Add(1000*time.Hour), 1000)
	f.must(err)
	return all
}

// converge lets time pass and a reaper work until the queues are empty.
func (f *farm) converge(cfg Config, queues ...string) {
	f.t.Helper()
	f.convergeWith(f.process(cfg).Service, queues...)
}

// convergeWith does so with a reaper that may fail now and then.
func (f *farm) convergeWith(s *Service, queues ...string) {
	f.t.Helper()
	for range 100 {
		_, _ = s.Drain(f.t.Context(), &reaperpb.DrainRequest{})
		next := f.nextDue(queues)
		if next.IsZero() {
			return
		}
		f.pass(max(next.Sub(f.clock()), time.Millisecond))
	}
	f.t.Fatalf("markers are left: %v", f.queue(queues[0]))
}

// nextDue is when the next marker of some queues is due; zero: there is none.
func (f *farm) nextDue(queues []string) (next time.Time) {
	f.t.Helper()
	for _, q := range queues {
		if dead := f.queue(catalog.DeadQueue(q)); len(dead) > 0 {
			f.t.Fatalf("set aside: %v", dead[0].Due)
		}
		for _, m := range f.queue(q) {
			if at := time.UnixMilli(max(m.Due.GetAt(), m.Due.GetLeasedUntil())); next.IsZero() || at.Before(next) {
				next = at
			}
		}
	}
	return next
}

// keys lists the objects.
func (f *farm) keys() []string {
	f.t.Helper()
	all, err := f.objects.List(f.t.Context(), "", "", 1000)
	f.must(err)
	out := make([]string, 0, len(all))
	for _, o := range all {
		if !strings.HasPrefix(o.Key, export.Prefix) {
			out = append(out, o.Key)
		}
	}
	return out
}

// want fails unless exactly these objects are there, and rows of exactly those of
// them that are settled or pages, ADOPTED with these runs.
func (f *farm) want(live map[string][]uint32, known []string, others ...string) {
	f.t.Helper()
	keys := append(slices.Collect(maps.Keys(live)), others...)
	slices.Sort(keys)
	if got := f.keys(); !slices.Equal(got, keys) {
		f.t.Fatalf("objects\n%v, want\n%v", got, keys)
	}
	for _, key := range known {
		row, _, err := f.index.GetSettled(f.t.Context(), key)
		runs, is := live[key]
		if !is {
			if !catalog.IsNotFound(err) {
				f.t.Fatalf("row %v of what is gone, %v", row, err)
			}
			continue
		}
		f.must(err)
		var got []uint32
		for i := range row.GetRuns() {
			if settled.Live(row.GetLive()).Has(i) {
				got = append(got, i)
			}
		}
		if row.GetState() != indexpb.SettledState_SETTLED_STATE_ADOPTED || !slices.Equal(got, runs) {
			f.t.Fatalf("row %v, want ADOPTED with runs %v", row, runs)
		}
	}
}

// scene is what a crash test begins with: markers of a queue that are due, and what
// must be there in the end.
type scene func(f *farm) (end func())

// crashes runs a scene with a reaper that is killed at every call in turn, before
// and after its effect, alone and beside another that works on the same markers,
// and then another until nothing is left to do: without exports of the metadata, and
// with them.
func crashes(t *testing.T, cfg Config, queue string, queues []string, play scene) {
	crashesOf(t, cfg, queue, queues, []bool{false, true}, play)
	afters := []bool{false, true}
	if testing.Short() {
		afters = afters[1:]
	}
	crashesOf(t, cfg, queue, queues, afters, func(f *farm) func() {
		f.exports()
		return play(f)
	})
}

func crashesOf(t *testing.T, cfg Config, queue string, queues []string, afters []bool, play scene) {
	t.Helper()
	if !testing.Short() {
		synctest.Test(t, func(t *testing.T) { disturbs(t, cfg, queues, play) })
	}
	for _, beside := range []bool{false, true} {
		if beside && testing.Short() {
			break
		}
		for _, where := range []string{"rows", "objects"} {
			for _, after := range afters {
				for n, died := 1, true; died; n++ {
					if n > 1000 {
						t.Fatal("it never ends")
					}
					died = crash(t, cfg, queue, queues, play, fmt.Sprintf("%s call %d, after its effect: %v, another beside: %v", where, n, after, beside),
						func(p *process) {
							switch {
							case where == "rows" && after:
								p.rows.KillAt(n, metafault.After)
							case where == "rows":
								p.rows.KillAt(n, metafault.Before)
							case after:
								p.objects.KillAt(n, fault.After)
							default:
								p.objects.KillAt(n, fault.Before)
							}
						}, beside)
				}
			}
		}
	}
}

// disturbs runs a scene with a reaper of which every call in turn fails once,
// before or after its effect, or reads what was there before.
func disturbs(t *testing.T, cfg Config, queues []string, play scene) {
	t.Helper()
	once := func(what string, script func(*process) (acted func() int)) bool {
		f := newFarm(t)
		end := play(f)
		p := f.process(cfg)
		acted := script(p)
		defer func() {
			if t.Failed() {
				t.Log("disturbed by", what)
			}
		}()
		f.convergeWith(p.Service, queues...)
		n := acted()
		p.rows.Clear()
		end()
		return n > 0
	}
	for _, do := range []metafault.Action{metafault.FailBefore, metafault.LoseReply, metafault.Stale} {
		rule := metafault.Rule{Do: do, Back: 1}
		if do == metafault.Stale {
			rule.Op = metafault.Read
		}
		for rule.Nth = 1; once(fmt.Sprintf("rows: %+v", rule), func(p *process) func() int { return p.rows.Script(rule).Acted }); rule.Nth++ {
		}
	}
	for _, do := range []fault.Action{fault.FailBefore, fault.LoseReply, fault.Throttle} {
		rule := fault.Rule{Do: do}
		for rule.Nth = 1; once(fmt.Sprintf("objects: %+v", rule), func(p *process) func() int { return p.objects.Script(rule).Acted }); rule.Nth++ {
		}
	}
}

func crash(t *testing.T, cfg Config, queue string, queues []string, play scene, what string, kill func(*process), beside bool) (died bool) {
	t.Helper()
	f := newFarm(t)
	end := play(f)
	defer func() {
		if t.Failed() {
			t.Log("killed at", what)
		}
	}()
	victim := f.process(cfg)
	kill(victim)
	var both sync.WaitGroup
	if beside {
		twin := f.process(cfg)
		both.Go(func() { twin.workOn(f, queue) })
	}
	ctx, cancel := victim.context(t.Context())
	defer cancel()
	for range 20 {
		for _, q := range victim.queues {
			if slices.Contains(queues, q.name) {
				victim.drain(ctx, q)
			}
		}
		both.Wait()
		next := f.nextDue(queues)
		if victim.dead() || next.IsZero() {
			break
		}
		f.pass(max(next.Sub(f.clock()), time.Millisecond))
	}
	died = victim.dead()
	f.converge(cfg, queues...)
	end()
	return died
}

// workOn works on the markers of a queue that are there, whoever has claimed them.
func (p *process) workOn(f *farm, name string) {
	i := slices.IndexFunc(p.queues, func(q queue) bool { return q.name == name })
	for _, m := range f.queue(name) {
		m.Due = proto.CloneOf(m.Due)
		if err := p.queues[i].work(f.t.Context(), m); err == nil {
			_ = p.index.DropDue(f.t.Context(), m)
		}
	}
}

// drainAll has a reaper work on all that is due.
func drainAll(t *testing.T, s *Service) {
	t.Helper()
	if _, err := s.Drain(t.Context(), &reaperpb.DrainRequest{}); err != nil {
		t.Fatal(err)
	}
}

// stale has the n-th read of rows with a prefix return what was there before.
func stale(prefix string, n int) metafault.Rule {
	return metafault.Rule{Op: metafault.Read, Prefix: prefix, Nth: n, Do: metafault.Stale, Back: 1}
}
