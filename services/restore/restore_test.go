package restore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/directory"
	"github.com/nova-stream/nova/libs/export"
	"github.com/nova-stream/nova/libs/history"
	"github.com/nova-stream/nova/libs/metastore"
	metamem "github.com/nova-stream/nova/libs/metastore/mem"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/objectstore/mem"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/services/index"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a bucket and the rows that its exports are made of.
type world struct {
	t       *testing.T
	objects objectstore.Store
	meta    metastore.Store
	index   *index.Service
	rows    *Rows
}

// Rows puts rows as a test wants them.
type Rows = index.Rows

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, objects: mem.New(), meta: metamem.New()}
	var err error
	if w.index, err = index.New(index.Config{}, index.Deps{Store: w.meta}); err != nil {
		t.Fatal(err)
	}
	if w.rows, err = index.NewRows(w.meta); err != nil {
		t.Fatal(err)
	}
	if _, err := w.index.OpenConstellation(t.Context(), &indexpb.OpenConstellationRequest{ShardCount: 2}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.index.CreateBucket(t.Context(), &indexpb.CreateBucketRequest{Bucket: "bucket"}); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) put(m proto.Message) {
	w.t.Helper()
	if err := w.rows.Put(w.t.Context(), m); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) object(key string, body []byte) {
	w.t.Helper()
	if _, err := w.objects.PutIfAbsent(w.t.Context(), key, body); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) export() {
	w.t.Helper()
	e, err := index.NewExporting(w.index, index.ExportConfig{Interval: time.Hour}, w.objects)
	if err == nil {
		err = e.Export(w.t.Context())
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// restored is what came of a restore, into rows of its own.
type restored struct {
	*world
	report *Report
}

func (w *world) restore() *restored {
	w.t.Helper()
	next := &world{t: w.t, objects: w.objects, meta: metamem.New()}
	report, err := Run(w.t.Context(), Deps{Objects: w.objects, Metastore: next.meta})
	if err == nil {
		next.index, err = index.New(index.Config{}, index.Deps{Store: next.meta})
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return &restored{next, report}
}

func (r *restored) chain(id stream.ChainID) *indexpb.Chain {
	r.t.Helper()
	res, err := r.index.GetChain(r.t.Context(), &indexpb.GetChainRequest{ChainId: id.String()})
	if err != nil {
		r.t.Fatal(err)
	}
	return res.GetChain()
}

func (r *restored) directories(id stream.ChainID) string {
	r.t.Helper()
	res, err := r.index.ListDirectories(r.t.Context(), &indexpb.ListDirectoriesRequest{ChainId: id.String(), Limit: 100})
	if err != nil {
		r.t.Fatal(err)
	}
	var out []string
	for _, d := range res.GetDirectories() {
		out = append(out, fmt.Sprintf("%d-%d", d.GetFrom(), d.GetTo()))
	}
	return strings.Join(out, " ")
}

func (r *restored) due(queue string) (out []*indexpb.Due) {
	r.t.Helper()
	res, err := r.index.ListDue(r.t.Context(), &indexpb.ListDueRequest{Queue: queue, Until: time.Now().Add(time.Hour).UnixMilli(), Limit: 100})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, d := range res.GetDue() {
		out = append(out, d.GetDue())
	}
	return out
}

// slot puts a bundle into a slot.
func (w *world) slot(c stream.ChainID, n stream.Slot, entries ...bundle.Entry) {
	w.t.Helper()
	b := bundle.NewBuilder(c, stream.NewFlightID(), stream.ProfileStandard)
	for _, e := range entries {
		e.Timestamp = 1000
		if _, _, err := b.Add(e); err != nil {
			w.t.Fatal(err)
		}
	}
	w.object(chain.SlotKey(c, n), b.Finish(n))
}

func fence(s stream.Shard, e stream.Epoch) bundle.Entry {
	return bundle.Entry{Kind: bundle.KindFence, Shard: s, Epoch: e}
}

// idOf is an id of a stream of a shard of two.
func idOf(s stream.Shard) stream.ID {
	for {
		if id := stream.NewID(); id.Shard(2) == s {
			return id
		}
	}
}

func token(id stream.ID, e stream.Epoch, n stream.EntryNo) bundle.Entry {
	return bundle.Entry{Kind: bundle.KindToken, Shard: id.Shard(2), Epoch: e, EntryNo: n, StreamID: id, Body: []byte("token")}
}

// chunkOf is a chunk of one record; it follows records of which nothing is known
// unless base is 0.
func chunkOf(t *testing.T, id stream.ID, base stream.Seq, e stream.Epoch, n stream.EntryNo) bundle.Entry {
	t.Helper()
	before := stream.Hash(0)
	if base > 0 {
		before = 77
	}
	body, _, err := chunk.Encode(nil, chunk.Input{StreamID: id, BaseSeq: base, HashBefore: before, Batches: []chunk.InputBatch{{
		Records: []stream.Record{{Seq: base, Timestamp: 1000, Body: []byte("body")}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	return bundle.Entry{Kind: bundle.KindChunk, Shard: id.Shard(2), Epoch: e, EntryNo: n, StreamID: id, Body: body}
}

// A shard that left a chain for another and came back has its segments, in the order
// of its epochs, each with its end; and no directory holds entries from before it
// left and after it came back, or settling would wait for itself for ever.
func TestAShardThatCameBackToAChain(t *testing.T) {
	w := newWorld(t)
	w.export()
	one, other := idOf(0), idOf(1)
	c, d := stream.NewChainID(), stream.NewChainID()
	w.slot(c, 0, fence(0, 5), token(one, 5, 0), token(other, 4, 0))
	w.slot(c, 1, token(one, 5, 1))
	w.slot(c, 2, token(other, 4, 1), fence(0, 6))
	w.slot(c, 3, token(other, 4, 2))
	w.slot(d, 0, token(one, 6, 0))
	w.slot(d, 1, fence(0, 7))
	w.slot(c, 4, token(other, 4, 3))
	w.slot(c, 5, token(one, 7, 0))
	w.slot(c, 6, token(one, 7, 1), token(other, 4, 4))
	r := w.restore()
	if got := r.directories(c); got != "0-5 5-7" {
		t.Errorf("directories %s", got)
	}
	if got := r.directories(d); got != "0-2" {
		t.Errorf("directories %s of the other", got)
	}
	for n, want := range map[uint32][]*indexpb.Binding{
		0: {
			{ChainId: c.String(), Epoch: 5, Cut: 3, CutKnown: true}, {ChainId: d.String(), Epoch: 6, Cut: 2, CutKnown: true},
			{ChainId: c.String(), Epoch: 7, Cut: 7, CutKnown: true},
		},
		1: {{ChainId: c.String(), Epoch: 4, Cut: 7, CutKnown: true}},
	} {
		res, err := r.index.GetShard(t.Context(), &indexpb.GetShardRequest{Shard: n})
		if err != nil {
			t.Fatal(err)
		}
		s := res.GetShard()
		same := slices.EqualFunc(s.GetBindings(), want, func(a, b *indexpb.Binding) bool { return proto.Equal(a, b) })
		if !same || s.GetState() != indexpb.ShardState_SHARD_STATE_RELEASED || s.GetEpoch() != map[uint32]uint64{0: 8, 1: 5}[n] {
			t.Errorf("shard %d: %v", n, s)
		}
	}
	if r.report.Found != 2 || r.chain(c).GetCut() != 7 || r.chain(d).GetCut() != 2 {
		t.Errorf("%+v, %v, %v", r.report, r.chain(c), r.chain(d))
	}
}

// I4: a writer that was frozen meets a SEAL in its next slot, of every chain with a
// slot or a record.
func TestEveryChainIsSealed(t *testing.T) {
	w := newWorld(t)
	empty, known, unknown := stream.NewChainID(), stream.NewChainID(), stream.NewChainID()
	for _, c := range []stream.ChainID{empty, known} {
		w.put(&indexpb.Chain{ChainId: c.String(), State: indexpb.ChainState_CHAIN_STATE_OPEN, WriterLife: "life", Attempt: "a"})
	}
	w.export()
	id := idOf(0)
	w.slot(known, 0, token(id, 1, 0))
	w.slot(unknown, 0, token(id, 2, 0))
	r := w.restore()
	for c, cut := range map[stream.ChainID]stream.Slot{empty: 0, known: 1, unknown: 1} {
		o, err := w.objects.Get(t.Context(), chain.SlotKey(c, cut))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := bundle.ParseSeal(o.Body); err != nil {
			t.Error(err)
		}
		if got := r.chain(c); got.GetState() != indexpb.ChainState_CHAIN_STATE_SEALED || got.GetCut() != uint64(cut) {
			t.Errorf("%v", got)
		}
	}
	if got := len(r.due("chain")); got != 3 {
		t.Errorf("%d markers of chains", got)
	}
}

// Of streams that the export does not know: one that begins is found; one that was
// deleted, or of which only the end is there, gets a head that settling passes over,
// and a marker that removes it.
func TestUnknownStreams(t *testing.T) {
	w := newWorld(t)
	w.export()
	begins, deleted, remnant := idOf(0), idOf(0), idOf(1)
	c := stream.NewChainID()
	w.slot(c, 0, chunkOf(t, begins, 0, 1, 0), chunkOf(t, deleted, 0, 1, 1), chunkOf(t, remnant, 9, 1, 0))
	w.slot(c, 1, bundle.Entry{Kind: bundle.KindDelete, Shard: 0, Epoch: 1, EntryNo: 2, StreamID: deleted})
	r := w.restore()
	if r.report.Found != 1 || r.report.Deleted != 1 || r.report.Remnants != 1 || r.report.Damage != 0 {
		t.Errorf("%+v", r.report)
	}
	for id, want := range map[stream.ID]string{begins: "ACTIVE 0  0 0", deleted: fmt.Sprintf("DELETED 2 %s 1 0", c), remnant: fmt.Sprintf("DELETED 0 %s 0 0", c)} {
		res, err := r.index.GetHead(t.Context(), &indexpb.GetHeadRequest{StreamId: id.String()})
		if err != nil {
			t.Fatal(err)
		}
		h := res.GetHead()
		got := fmt.Sprintf("%s %d %s %d %d", strings.TrimPrefix(h.GetState().String(), "HEAD_STATE_"), h.GetFoldedEntry(), h.GetDeletedChain(), h.GetDeletedSlot(), h.GetTail())
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	res, err := r.index.ListStreams(t.Context(), &indexpb.ListStreamsRequest{Bucket: LostAndFound, Limit: 10})
	if err != nil || len(res.GetStreams()) != 1 || res.GetStreams()[0].GetStreamId() != begins.String() || res.GetStreams()[0].GetName() != begins.String() {
		t.Errorf("%v, %v", res, err)
	}
	var marked []string
	for _, d := range r.due("delete") {
		marked = append(marked, d.GetStreamId())
	}
	slices.Sort(marked)
	want := []string{deleted.String(), remnant.String()}
	slices.Sort(want)
	if !slices.Equal(marked, want) {
		t.Errorf("marked %q, want %q", marked, want)
	}
}

// What is taken for settled is only what is gone: the lowest directories, up to one
// from which all are there, with their slots.
func TestWhatIsThereIsSettledAgain(t *testing.T) {
	const id = "chain"
	record := &indexpb.Chain{ChainId: id, AbsorbedTo: 40, SettledTo: 30, ReclaimedTo: 10}
	all := []*indexpb.Directory{
		{ChainId: id, From: 0, To: 10, Object: "0"}, {ChainId: id, From: 10, To: 20, Object: "10"},
		{ChainId: id, From: 20, To: 30, Object: "20"}, {ChainId: id, From: 30, To: 40, Object: "30"},
	}
	objects := map[string]bool{"0": true, "10": true, "20": true, "30": true}
	without := func(key string) map[string]bool {
		out := map[string]bool{}
		for k := range objects {
			out[k] = k != key
		}
		return out
	}
	for _, c := range []struct {
		name    string
		slots   []slots
		objects map[string]bool
		rows    []*indexpb.Directory
		from    uint64
	}{
		{"all is there", []slots{{0, 50}}, objects, all, 0},
		{"slots are gone", []slots{{10, 50}}, objects, all, 10},
		{"in the middle of a directory", []slots{{15, 50}}, objects, all, 20},
		{"but for pinned ones", []slots{{3, 4}, {20, 50}}, objects, all, 20},
		{"a directory is gone", []slots{{0, 50}}, without("10"), all, 20},
		{"its row was not exported", []slots{{0, 50}}, objects, all[2:], 20},
		{"one that is needed is gone", []slots{{0, 50}}, without("30"), all, 40},
	} {
		r := &restore{
			source: &source{directories: map[string][]*indexpb.Directory{id: c.rows}},
			bucket: &listing{slots: map[string][]slots{id: c.slots}, directories: map[string]map[string]bool{id: c.objects}},
		}
		if from := firstSlot(r.present(id, record), record); from != c.from {
			t.Errorf("%s: from %d, want %d", c.name, from, c.from)
		}
	}
}

// Directories that are gone and needed are made again from the slots; those of slots
// that are gone too are damage, and the rest of the chain is there.
func TestDirectoriesThatAreGone(t *testing.T) {
	for _, c := range []struct {
		name    string
		lose    func(w *world, id stream.ChainID, objects []string)
		rows    string
		settled uint64
		damage  int
	}{
		{"none", func(*world, stream.ChainID, []string) {}, "0-2 2-4 4-6 6-7", 0, 0},
		{"one", func(w *world, _ stream.ChainID, objects []string) { w.lose(objects[1]) }, "0-2 2-7", 0, 0},
		{"all", func(w *world, _ stream.ChainID, objects []string) { w.lose(objects...) }, "2-7", 2, 0},
		{"one that is settled", func(w *world, _ stream.ChainID, objects []string) { w.lose(objects[0]) }, "2-4 4-6 6-7", 2, 0},
		{"a slot too", func(w *world, id stream.ChainID, objects []string) { w.lose(chain.SlotKey(id, 3)) }, "4-6 6-7", 4, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			one, other, id := idOf(0), idOf(1), stream.NewChainID()
			for n := range stream.Slot(7) {
				w.slot(id, n, token(one, 3, stream.EntryNo(n)), token(other, 2, stream.EntryNo(2*n)), token(other, 2, stream.EntryNo(2*n+1)))
			}
			var objects []string
			for from := stream.Slot(0); from < 6; from += 2 {
				b := directory.NewBuilder(id, from)
				for n := from; n < from+2; n++ {
					b.Add(n, &bundle.FooterEntry{Kind: bundle.KindToken, Shard: 0, Epoch: 3, EntryNo: stream.EntryNo(n), StreamID: one, Length: 10, Header: []byte("token")})
				}
				key := chain.DirectoryKey(id, from, stream.NewAttemptID())
				w.object(key, b.Finish(from+2))
				w.put(&indexpb.Directory{ChainId: id.String(), From: uint64(from), To: uint64(from + 2), Object: key, Attempt: "a"})
				objects = append(objects, key)
			}
			w.put(&indexpb.Chain{
				ChainId: id.String(), State: indexpb.ChainState_CHAIN_STATE_OPEN, AbsorbingTo: 6, AbsorbedTo: 6, SettledTo: 2, Attempt: "a",
				Progress: []*indexpb.ShardProgress{{Shard: 0, Epoch: 3, NextEntry: 6}, {Shard: 1, Epoch: 2, NextEntry: 12}},
			})
			w.export()
			c.lose(w, id, objects)
			r := w.restore()
			if got, row := r.directories(id), r.chain(id); got != c.rows || row.GetSettledTo() != c.settled || row.GetAbsorbedTo() != 7 || r.report.Damage != c.damage {
				t.Errorf("%s, %v, %+v", got, row, r.report)
			}
		})
	}
}

func (w *world) lose(keys ...string) {
	w.t.Helper()
	if err := w.objects.Delete(w.t.Context(), keys...); err != nil {
		w.t.Fatal(err)
	}
}

// I11: nothing is deleted; what nothing names is marked, what a head names has a row
// that is ADOPTED with its live runs, and what is missing is told.
func TestObjects(t *testing.T) {
	w := newWorld(t)
	made, err := w.index.CreateStream(t.Context(), &indexpb.CreateStreamRequest{Bucket: "bucket", Stream: "s"})
	if err != nil {
		t.Fatal(err)
	}
	id := made.GetStream().GetStreamId()
	ref := func(object string, run uint32, first uint64) *indexpb.Ref {
		return &indexpb.Ref{Object: object, Run: run, FirstSeq: first, NextSeq: first + 1, Offset: 8, Length: 8, Frames: 1}
	}
	there, gone, stray := "settled/"+stream.NewAttemptID().String(), "settled/"+stream.NewAttemptID().String(), "settled/"+stream.NewAttemptID().String()
	w.put(&indexpb.Head{
		StreamId: id, Shard: made.GetStream().GetShard(), State: indexpb.HeadState_HEAD_STATE_ACTIVE, Tail: 3, FoldedEpoch: 1, Attempt: "a",
		Refs: []*indexpb.Ref{ref(there, 0, 0), ref(there, 9, 1), ref(gone, 0, 2)},
	})
	w.export()
	w.object(there, []byte("no settled object at all"))
	w.object(stray, []byte("of a settler that died"))
	leftover := chain.DirectoryKey(stream.NewChainID(), 64, stream.NewAttemptID())
	w.object(leftover, []byte("of an absorber that died"))
	r := w.restore()
	if r.report.Damage != 2 || r.report.Unneeded != 2 {
		t.Errorf("%+v", r.report)
	}
	res, err := r.index.GetSettledObject(t.Context(), &indexpb.GetSettledObjectRequest{Object: there})
	if err != nil {
		t.Fatal(err)
	}
	row := res.GetObject()
	if row.GetState() != indexpb.SettledState_SETTLED_STATE_ADOPTED || !slices.Equal(row.GetLive(), []byte{1, 2}) || row.GetRuns() != 16 {
		t.Errorf("%v", row)
	}
	if d := r.due("settled"); len(d) != 1 || d[0].GetObject() != stray {
		t.Errorf("%v", d)
	}
	if d := r.due("directory"); len(d) != 1 || d[0].GetObject() != leftover || d[0].GetNumber() != 64 {
		t.Errorf("%v", d)
	}
	for _, key := range []string{there, stray, leftover} {
		if _, err := w.objects.Get(t.Context(), key); err != nil {
			t.Error(err)
		}
	}
}

// A stream that is being deleted, and is in the export under its name and by its
// marker, is restored once; a name whose stream is deleted is free.
func TestDeletedStreams(t *testing.T) {
	w := newWorld(t)
	heads := map[string]*indexpb.StreamDescriptor{}
	for _, name := range []string{"marked", "deleted", "later", "kept"} {
		made, err := w.index.CreateStream(t.Context(), &indexpb.CreateStreamRequest{Bucket: "bucket", Stream: name})
		if err != nil {
			t.Fatal(err)
		}
		heads[name] = made.GetStream()
	}
	w.put(&indexpb.Due{Queue: "delete", DueId: "d", At: 1, StreamId: heads["marked"].GetStreamId(), Bucket: "bucket", Name: "marked", Attempt: "a", LeasedUntil: 99})
	w.put(&indexpb.Head{StreamId: heads["deleted"].GetStreamId(), Shard: heads["deleted"].GetShard(), State: indexpb.HeadState_HEAD_STATE_DELETED, Attempt: "a"})
	w.export()
	later, err := stream.ParseID(heads["later"].GetStreamId())
	if err != nil {
		t.Fatal(err)
	}
	w.slot(stream.NewChainID(), 0, bundle.Entry{Kind: bundle.KindDelete, Shard: later.Shard(2), Epoch: 1, StreamID: later})
	r := w.restore()
	res, err := r.index.ListStreams(t.Context(), &indexpb.ListStreamsRequest{Bucket: "bucket", Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range res.GetStreams() {
		names = append(names, d.GetName())
	}
	if !slices.Equal(names, []string{"kept", "marked"}) {
		t.Errorf("%q", names)
	}
	var marked []string
	for _, d := range r.due("delete") {
		marked = append(marked, d.GetName())
		if d.GetLeasedUntil() != 0 {
			t.Errorf("%v is leased", d)
		}
	}
	slices.Sort(marked)
	if !slices.Equal(marked, []string{"deleted", "later", "marked"}) {
		t.Errorf("marked %q", marked)
	}
	if r.report.Streams != 4 || r.report.Deleted != 2 {
		t.Errorf("%+v", r.report)
	}
}

// Of two heads of a stream, read one after the other, the last counts, for what it
// names too: a bit of a run that the first named would never be cleared.
func TestTheLastHeadCounts(t *testing.T) {
	w := newWorld(t)
	ref := func(next uint64) []*indexpb.Ref {
		return []*indexpb.Ref{{Object: "settled/" + fmt.Sprint(next), NextSeq: next, Offset: 8, Length: 8, Frames: 1}}
	}
	id := idOf(0).String()
	out := export.NewWriter(w.objects, &indexpb.ExportManifest{ExportId: "01J00000000000000000000000", Number: 1, ConstellationId: "c"})
	for _, r := range []*indexpb.ExportRecord{
		{Row: &indexpb.ExportRecord_Constellation{Constellation: &indexpb.Constellation{Id: "c", ShardCount: 2}}},
		{Row: &indexpb.ExportRecord_Head{Head: &indexpb.Head{StreamId: id, Tail: 1, Refs: ref(1), State: indexpb.HeadState_HEAD_STATE_ACTIVE}}},
		{Row: &indexpb.ExportRecord_Head{Head: &indexpb.Head{StreamId: id, Tail: 2, Refs: ref(2), State: indexpb.HeadState_HEAD_STATE_ACTIVE}}},
	} {
		if err := out.Add(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := out.Finish(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	r := w.restore()
	res, err := r.index.GetHead(t.Context(), &indexpb.GetHeadRequest{StreamId: id})
	if err != nil || res.GetHead().GetTail() != 2 || r.report.Settled != 1 {
		t.Errorf("%v, %v, %+v", res, err, r.report)
	}
}

// What pages name is named, and the pages are.
func TestPages(t *testing.T) {
	w := newWorld(t)
	made, err := w.index.CreateStream(t.Context(), &indexpb.CreateStreamRequest{Bucket: "bucket", Stream: "s"})
	if err != nil {
		t.Fatal(err)
	}
	id, first, second := made.GetStream().GetStreamId(), "page/"+stream.NewAttemptID().String(), "page/"+stream.NewAttemptID().String()
	body := &indexpb.RefPageBody{StreamId: id, Level: 1, Refs: []*indexpb.Ref{{Object: "settled/x", Run: 3, NextSeq: 2, Offset: 8, Length: 8, Frames: 1}}}
	b := history.EncodePage(body)
	w.object(first, b)
	level := &indexpb.RefPageBody{StreamId: id, Level: 2, Pages: []*indexpb.RefPage{history.PageOf(body, first, uint32(len(b)))}}
	b = history.EncodePage(level)
	w.object(second, b)
	w.put(&indexpb.Head{
		StreamId: id, State: indexpb.HeadState_HEAD_STATE_ACTIVE, Tail: 2, FoldedEpoch: 1, Attempt: "a", Pages: []*indexpb.RefPage{history.PageOf(level, second, uint32(len(b)))},
	})
	w.export()
	stray := "settled/" + stream.NewAttemptID().String()
	w.object(stray, []byte("stray"))
	r := w.restore()
	for _, key := range []string{first, second} {
		res, err := r.index.GetSettledObject(t.Context(), &indexpb.GetSettledObjectRequest{Object: key})
		if err != nil || res.GetObject().GetStreamId() != id || res.GetObject().GetRuns() != 1 || !slices.Equal(res.GetObject().GetLive(), []byte{1}) {
			t.Errorf("%v, %v", res, err)
		}
	}
	if r.report.Settled != 3 || r.report.Damage != 1 || r.report.Unneeded != 1 { // settled/x is not there
		t.Errorf("%+v", r.report)
	}
	// Below a page that is gone nobody knows what is needed: nothing is marked.
	if err := w.objects.Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	r = w.restore()
	if r.report.Unneeded != 0 || r.report.Damage == 0 || len(r.due("settled")) != 0 {
		t.Errorf("%+v, %v", r.report, r.due("settled"))
	}
}

// The constellation is the same one, its next incarnation, and exports go on.
func TestConstellation(t *testing.T) {
	w := newWorld(t)
	w.export()
	w.export()
	r := w.restore()
	was, err := w.index.OpenConstellation(t.Context(), &indexpb.OpenConstellationRequest{ShardCount: 1})
	if err != nil {
		t.Fatal(err)
	}
	is, err := r.index.OpenConstellation(t.Context(), &indexpb.OpenConstellationRequest{ShardCount: 1})
	if err != nil {
		t.Fatal(err)
	}
	a, b := was.GetConstellation(), is.GetConstellation()
	if a.GetId() != b.GetId() || b.GetShardCount() != 2 || b.GetIncarnation() != a.GetIncarnation()+1 || b.GetWriteVersion() != a.GetWriteVersion() {
		t.Errorf("%v after %v", b, a)
	}
	st, err := r.index.GetExportState(context.Background(), &indexpb.GetExportStateRequest{})
	if err != nil || st.GetBegun() != 2 || st.GetCompleted() != 2 || !st.GetEnabled() {
		t.Errorf("%v, %v", st, err)
	}
	// One of the new metastore is restored in its turn.
	e, err := index.NewExporting(r.index, index.ExportConfig{Interval: time.Hour}, w.objects)
	if err == nil {
		err = e.Export(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	if again := r.restore(); again.report.Number != 3 {
		t.Errorf("%+v", again.report)
	}
}
