package retention

import (
	"cmp"
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/export"
	"github.com/nova-stream/nova/libs/history"
	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/settled"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/reader/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// What an object of runs takes beyond their frames: its beginning and end, and of
// each run a row, an index and a row of it per frame.
const (
	objectSlack = 64
	runSlack    = 160
	frameSlack  = 16
)

// What is settled late, a slot or the PUT of an object that was under way, is
// deleted once more three days after it was first; chains go three days after they
// have ended, and both are looked at now and then.
const afterwards = 7 * 24 * time.Hour

// A day of a thousand streams that are limited, trimmed, deleted and made again,
// while processes die: no read meets a gap, another's record or one that is not
// there (I1, I2), no limit is exceeded by more than its slack, and in the end every
// object and every row has a reason (I11).
func TestADayOfRetentionLeaksNothing(t *testing.T) {
	names, length := 1000, 26*time.Hour
	if testing.Short() {
		names, length = 120, 6*time.Hour
	}
	took := clock()
	synctest.Test(t, func(t *testing.T) {
		d := newDay(t, 1, names)
		defer d.close()
		before := d.rows.counted()
		d.live(1, length)
		d.note("%d records, %d KiB, were written and took %v; %d reads, %d seeks, %d trims, %d deletes, %d creations (%d of a name not yet free), %d ended empty, %d processes ended, %d repeated calls, %d reads began again because of a trim",
			d.records.Load(), d.bytes.Load()>>10, took(), d.reading.Load(), d.seeks.Load(), d.trims.Load(), d.deletes.Load(), d.creations.Load(), d.taken.Load(), d.ends.Load(), d.troubles.Load(), d.again.Load(), d.trimmedUnder.Load())
		d.note("calls of the metastore per 1000 records: %s", perThousand(before, d.rows.counted(), int(d.records.Load())))
		d.note("%s; at most %d KiB, %d puts; rows %v", d.objects.summary(), d.objects.most>>10, d.objects.puts, d.rows.kinds())
		for what, n := range map[string]int64{"reads": d.reading.Load(), "trims": d.trims.Load(), "deletes": d.deletes.Load(), "streams ended empty": d.ends.Load(), "processes ended": d.troubles.Load()} {
			if n == 0 {
				t.Errorf("no %s: it proves nothing of them", what)
			}
		}
		if !t.Failed() {
			d.finish()
		}
		if missed := d.missed.Load(); missed != 0 {
			t.Errorf("%d times an object was not there for a reader, although what it needs stays for the read grace", missed)
		}
		d.note("all took %v", took())
	})
}

// finish deletes half of the buckets, waits until all work is done, and looks at
// what is left.
func (d *day) finish() {
	for i := 0; i < bucketCount; i += 2 {
		for _, s := range d.slots {
			if g := s.now.Load(); s.bucket == bucketName(i) && g != nil {
				g.mu.Lock()
				g.deleting = true
				g.mu.Unlock()
				s.now.Store(nil)
			}
		}
		d.must(d.try(func(ctx context.Context) error {
			_, err := d.buckets.DeleteBucket(ctx, &novapb.DeleteBucketRequest{Bucket: bucketName(i), Force: true})
			return err
		}))
	}
	time.Sleep(time.Hour)
	d.endAll()
	d.startAll(calm)
	d.ready()
	time.Sleep(14 * time.Hour) // all that has a limit of age has reached it
	r := rand.New(rand.NewPCG(1, 97))
	d.lookAll(r)
	// Leaders have nothing to do any more, and are busy looking at each other.
	var resting []*part
	for _, id := range leaders {
		resting = append(resting, d.end(id, false, 0, 0))
	}
	time.Sleep(afterwards)
	for i, id := range leaders {
		d.start(id, resting[i].service, resting[i].build)
	}
	d.ready()
	time.Sleep(2*time.Hour + 4*exports) // what is deleted waits until no export that is kept needs it
	d.lookAll(r)
	a := accounts{day: d, named: map[string]map[uint32]bool{}, pages: map[string]bool{}, allowed: map[string]bool{}}
	a.streams()
	a.chains()
	a.exports()
	a.objects()
	a.queues()
	a.rest()
	a.verify()
}

// lookAll reads all streams that are left.
func (d *day) lookAll(r *rand.Rand) {
	for _, s := range d.slots {
		d.look(s, r, true)
	}
	d.note("%s, %v", d.objects.summary(), d.rows.kinds())
}

// accounts is what there must be, and what there is.
type accounts struct {
	*day
	named   map[string]map[uint32]bool // the runs that heads name, by object
	pages   map[string]bool            // the pages that they name
	allowed map[string]bool            // objects that are there for another reason
	limited map[string]string          // the marker of each stream that has limits
	live    int64                      // bytes of the frames that are named
	bodies  int64                      // and of the bodies in them
}

// row reads a row as the store has it.
func (a *accounts) row(key metastore.Key, into proto.Message) {
	a.t.Helper()
	r, err := a.rows.Store.Get(context.Background(), key)
	a.must(err)
	a.must(proto.Unmarshal(r.Value, into))
}

// ids are the second parts of the paths of the rows of a kind.
func (a *accounts) ids(kind string) []string {
	var out []string
	for _, key := range a.rows.all(kind) {
		out = append(out, strings.Split(key.Path, "/")[1])
	}
	return out
}

// streams: there are the heads, descriptors and names of those that live, and they
// name what they hold.
func (a *accounts) streams() {
	live := map[string]*generation{}
	a.limited = map[string]string{}
	for _, s := range a.slots {
		if g := s.now.Load(); g != nil && !g.mayBeGone(time.Now()) {
			live[g.id] = g
		}
	}
	want := slices.Sorted(maps.Keys(live))
	for _, kind := range []string{"head", "descriptor"} {
		if got := a.ids(kind); !slices.Equal(got, want) {
			a.t.Errorf("%d rows %s, want %d: too many %v, missing %v", len(got), kind, len(want), without(got, want), without(want, got))
		}
	}
	var named []string
	for _, key := range a.rows.all("name") {
		var n indexpb.NameRecord
		a.row(key, &n)
		named = append(named, n.GetStreamId())
	}
	slices.Sort(named)
	if !slices.Equal(named, want) {
		a.t.Errorf("%d names, want %d: too many %v, missing %v", len(named), len(want), without(named, want), without(want, named))
	}
	for _, key := range a.rows.all("head") {
		var h indexpb.Head
		a.row(key, &h)
		if g := live[h.GetStreamId()]; g != nil {
			a.head(&h, g)
		}
	}
	for _, key := range a.rows.all("descriptor") {
		var x indexpb.StreamDescriptor
		a.row(key, &x)
		if c := x.GetConfig(); c.GetRetentionAgeMs() > 0 || c.GetRetentionBytes() > 0 || c.GetDeleteOnEmptyMs() > 0 {
			a.limited[x.GetRetentionMarker()] = x.GetStreamId()
		}
	}
}

// without returns those of some that are not among others.
func without(some, others []string) []string {
	return slices.DeleteFunc(slices.Clone(some), func(s string) bool { return slices.Contains(others, s) })
}

// head notes what a head names: all that the stream holds, once.
func (a *accounts) head(h *indexpb.Head, g *generation) {
	ctx := context.Background()
	id, err := stream.ParseID(h.GetStreamId())
	a.must(err)
	var load history.Load = func(ctx context.Context, p *indexpb.RefPage) (*indexpb.RefPageBody, error) {
		o, err := a.day.objects.Get(ctx, p.GetObject())
		if err != nil {
			return nil, err
		}
		return history.DecodePage(o.Body, id)
	}
	below := func(p *indexpb.RefPage) {
		if p.GetNextSeq() <= h.GetDroppedTo() {
			return // dead, in a page that is not
		}
		a.pages[p.GetObject()] = true
		err := history.WalkPage(ctx, load, p, func(*indexpb.Ref) error { return nil }, func(p *indexpb.RefPage) error {
			if p.GetNextSeq() > h.GetDroppedTo() {
				a.pages[p.GetObject()] = true
			}
			return nil
		})
		if err != nil {
			a.t.Errorf("%s: %v", g.name, err)
		}
	}
	for _, p := range h.GetPages() {
		below(p)
	}
	next := h.GetDroppedTo()
	begun := false
	err = history.Walk(ctx, load, h, 0, func(r *indexpb.Ref) (bool, error) {
		if a.named[r.GetObject()] == nil {
			a.named[r.GetObject()] = map[uint32]bool{}
		}
		if a.named[r.GetObject()][r.GetRun()] || begun && r.GetFirstSeq() != next || !begun && r.GetFirstSeq() > next {
			a.t.Errorf("%s names %v behind record %d", g.name, r, next)
		}
		begun, next = true, r.GetNextSeq()
		a.named[r.GetObject()][r.GetRun()] = true
		a.live += int64(r.GetLength())
		a.bodies += int64(g.sum(int(r.GetFirstSeq()), int(r.GetNextSeq())))
		return true, nil
	})
	if err != nil || next != h.GetTail() || h.GetTail() != uint64(g.sent) {
		a.t.Errorf("%s: refs up to %d, the tail is %d, %d were sent: %v", g.name, next, h.GetTail(), g.sent, err)
	}
}

// chains: those that have ended are retired, of all others nothing is left.
func (a *accounts) chains() {
	open := 0
	for _, key := range a.rows.all("chain") {
		var c indexpb.Chain
		a.row(key, &c)
		id, err := stream.ParseChainID(c.GetChainId())
		a.must(err)
		switch c.GetState() {
		case indexpb.ChainState_CHAIN_STATE_RETIRED:
			a.allowed[chain.SlotKey(id, stream.Slot(c.GetCut()))] = true
		case indexpb.ChainState_CHAIN_STATE_OPEN:
			open++
			fallthrough
		default:
			if c.GetState() != indexpb.ChainState_CHAIN_STATE_OPEN || c.GetSettledTo() != c.GetAbsorbedTo() || c.GetReclaimedTo() != c.GetSettledTo() {
				a.t.Errorf("chain %v", &c)
			}
		}
	}
	a.note("%d chains, %d open", len(a.rows.all("chain")), open)
	if open > 2 {
		a.t.Errorf("%d chains are open, of two chain-writers", open)
	}
}

// exports: the newest ones are there.
func (a *accounts) exports() {
	var st indexpb.ExportState
	a.row(a.rows.all("export")[0], &st)
	complete := 0
	for _, e := range st.GetExports() {
		if !e.GetComplete() {
			continue
		}
		complete++
		a.allowed[export.ManifestKey(e.GetExportId())] = true
		for n := range 100 {
			a.allowed[export.PartKey(e.GetExportId(), n)] = true
		}
	}
	if complete > 2 {
		a.t.Errorf("%d exports are kept", complete)
	}
}

// objects: each is named, or there for another reason; the bytes are those of the
// live frames and the stated slack.
func (a *accounts) objects() {
	type loss struct {
		key              string
		size, live, dead int64
	}
	var losses []loss
	var total, dead, slack, allowed int64
	runs, frames := 0, 0
	rows := map[string]bool{}
	for key, size := range a.day.objects.all() {
		switch {
		case a.allowed[key]:
			allowed += size
		case a.pages[key]:
			total += size
			slack += size
			a.settledRow(key, 1, map[uint32]bool{0: true})
			rows[key] = true
		case len(a.named[key]) > 0:
			o, err := a.day.objects.Get(context.Background(), key)
			a.must(err)
			in, err := settled.Parse(o.Body)
			a.must(err)
			a.settledRow(key, uint32(len(in)), a.named[key])
			rows[key] = true
			l := loss{key: key, size: size}
			over := int64(objectSlack)
			for i := range in {
				if a.named[key][uint32(i)] {
					l.live += int64(in[i].Length)
				} else {
					l.dead += int64(in[i].Length)
				}
				over += runSlack + frameSlack*int64(in[i].Frames)
				runs++
				frames += int(in[i].Frames)
			}
			if size > l.live+l.dead+over {
				a.t.Errorf("%s has %d bytes, frames of %d are live and of %d are dead", key, size, l.live, l.dead)
			}
			total, dead, slack = total+size, dead+l.dead, slack+size-l.live-l.dead
			losses = append(losses, l)
		default:
			a.t.Errorf("nothing names the object %s of %d bytes", key, size)
		}
	}
	for key := range a.named {
		if !rows[key] {
			a.t.Errorf("a head names %s, which is not there", key)
		}
	}
	for key := range a.pages {
		if !rows[key] {
			a.t.Errorf("a head names the page %s, which is not there", key)
		}
	}
	if got := len(a.rows.all("settled")); got != len(rows) {
		a.t.Errorf("%d rows of settled objects, want %d", got, len(rows))
	}
	slices.SortFunc(losses, func(x, y loss) int { return cmp.Compare(y.dead, x.dead) })
	for _, l := range losses {
		// What little is dead of an object is not worth a copy.
		if l.dead > l.live+catalog.MinDead {
			a.t.Errorf("%s has %d live and %d dead bytes", l.key, l.live, l.dead)
		}
	}
	a.note("%d settled objects and pages, %d bytes = %d live (bodies %d) + %d dead beside live ones + %d of indexes and pages, %d runs, %d frames; %d bytes of exports and SEALs; worst %v",
		len(rows), total, a.live, a.bodies, dead, slack, runs, frames, allowed, losses[:min(3, len(losses))])
	done, written, rewritten, compacted := a.settledBytes()
	a.note("%d bytes of entries were settled, %d written for them, of these %d of runs that were rewritten and %d of what was compacted", done, written, rewritten, compacted)
	large := len(a.slots) > 500 // else little is dead
	if large && total > 2*a.live+slack {
		a.t.Errorf("%d bytes of objects hold %d live ones", total, a.live)
	}
	// What was copied is less than what went by it, so less than all else that was
	// written.
	if large && compacted == 0 || 2*compacted > written {
		a.t.Errorf("of %d bytes that were written %d are copies of what was live", written, compacted)
	}
	if total != a.live+dead+slack {
		a.t.Errorf("%d bytes of objects, %d live, %d dead, %d slack", total, a.live, dead, slack)
	}
}

// settledRow: it is adopted, and exactly the runs that heads name are live.
func (a *accounts) settledRow(object string, runs uint32, named map[uint32]bool) {
	var r indexpb.SettledObject
	a.row(metastore.Key{Partition: object, Path: "settled/" + strings.ReplaceAll(object, "/", "!")}, &r)
	for i := range runs {
		if is := settled.Live(r.GetLive()).Has(i); is != named[i] {
			a.t.Errorf("%s: run %d is live: %v, named: %v", object, i, is, named[i])
		}
	}
	if r.GetState() != indexpb.SettledState_SETTLED_STATE_ADOPTED || r.GetRuns() != runs {
		a.t.Errorf("%v, want ADOPTED of %d runs", &r, runs)
	}
}

// queues: what is left has to look after streams and chains that are there.
func (a *accounts) queues() {
	count := map[string]int{}
	open := map[string]bool{}
	for _, key := range a.rows.all("chain") {
		var c indexpb.Chain
		a.row(key, &c)
		open[c.GetChainId()] = c.GetState() != indexpb.ChainState_CHAIN_STATE_RETIRED
	}
	kept := map[string]bool{}
	for _, key := range a.rows.all("due") {
		var m indexpb.Due
		a.row(key, &m)
		count[m.GetQueue()]++
		switch {
		case m.GetQueue() == "retention" && a.limited[m.GetDueId()] == m.GetStreamId():
			kept[m.GetDueId()] = true
		case m.GetQueue() == "chain" && open[m.GetChainId()]:
		default:
			a.t.Errorf("a marker is left: %v, armed at %v, due at %v", &m, time.UnixMilli(m.GetAt()), time.UnixMilli(m.GetAt()))
		}
	}
	if len(kept) != len(a.limited) {
		a.t.Errorf("%d markers of retention for %d streams", len(kept), len(a.limited))
	}
	a.note("markers: %v", count)
}

// rest: the other rows.
func (a *accounts) rest() {
	kinds := a.rows.kinds()
	for kind, most := range map[string]int{"directory": 0, "life": 2, "bucket": bucketCount/2 + a.others, "shard": shards, "constellation": 1, "export": 1, "fence": 64} {
		if kinds[kind] > most {
			a.t.Errorf("%d rows %s, want %d", kinds[kind], kind, most)
		}
	}
	for kind := range kinds {
		if !slices.Contains([]string{"directory", "life", "bucket", "shard", "constellation", "export", "fence", "head", "descriptor", "name", "settled", "due", "chain"}, kind) {
			a.t.Errorf("rows of an unknown kind %s", kind)
		}
	}
	for _, key := range a.rows.all("shard") {
		var s indexpb.Shard
		a.row(key, &s)
		if len(s.GetBindings()) != 1 {
			a.t.Errorf("%v: all but the last chain are settled", &s)
		}
	}
}

// verify asks the reader, which has its own idea of what must be there.
func (a *accounts) verify() {
	srv, err := readerpb.NewReaderServiceClient(a.pool.Service(discovery.Reader)).VerifyObjects(context.Background(), &readerpb.VerifyObjectsRequest{})
	a.must(err)
	for {
		res, err := srv.Recv()
		if err != nil {
			a.t.Errorf("verify: %v", err)
			return
		}
		for _, f := range res.GetProgress().GetFindings() {
			a.t.Errorf("verify finds %v", f)
		}
		if res.GetProgress().GetDone() {
			break
		}
	}
	if _, err := srv.Recv(); err == nil {
		a.t.Error("it goes on after its end")
	}
}
