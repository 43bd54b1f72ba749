package restore

import (
	"math/rand/v2"
	"testing"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/history"
	"github.com/nova-stream/nova/libs/settled"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// shared puts an object with a run of 40 kB of each of some streams, and returns the
// refs to them.
func (w *world) shared(ids ...stream.ID) (refs []*indexpb.Ref) {
	w.t.Helper()
	b, key := settled.NewBuilder(), "settled/"+stream.NewAttemptID().String()
	body := make([]byte, 40_000)
	_, _ = rand.NewChaCha8([32]byte{}).Read(body)
	for _, id := range ids {
		frame, h, err := chunk.Encode(nil, chunk.Input{StreamID: id, Batches: []chunk.InputBatch{{Records: []stream.Record{{Body: body}}}}})
		if err == nil {
			b.Begin(id)
			err = b.Add(frame, &h)
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
	all, runs := b.Finish()
	w.object(key, all)
	for i, r := range runs {
		refs = append(refs, &indexpb.Ref{
			Object: key, Run: uint32(i), NextSeq: 1, HashAfter: uint64(r.HashAfter), Offset: r.Offset, Length: r.Length, Frames: 1,
			IndexOffset: r.IndexOffset, IndexLength: r.IndexLength,
		})
	}
	return refs
}

func (w *world) streamOf(name string, pages []*indexpb.RefPage, refs ...*indexpb.Ref) {
	w.t.Helper()
	made, err := w.index.CreateStream(w.t.Context(), &indexpb.CreateStreamRequest{Bucket: "bucket", Stream: name})
	if err != nil {
		w.t.Fatal(err)
	}
	w.put(&indexpb.Head{
		StreamId: made.GetStream().GetStreamId(), Shard: made.GetStream().GetShard(), State: indexpb.HeadState_HEAD_STATE_ACTIVE,
		Tail: refs[len(refs)-1].GetNextSeq(), FoldedEpoch: 1, Attempt: "a", Pages: pages, Refs: refs,
	})
}

func (r *restored) row(key string) *indexpb.SettledObject {
	r.t.Helper()
	res, err := r.index.GetSettledObject(r.t.Context(), &indexpb.GetSettledObjectRequest{Object: key})
	if err != nil {
		r.t.Fatal(err)
	}
	return res.GetObject()
}

// I8: an object of which most is dead is led to again, and the rows of all tell what is
// live, so that the others are when most of them is dead.
func TestObjectsThatAreMostlyDeadAreCompacted(t *testing.T) {
	w := newWorld(t)
	dead := w.shared(idOf(0), idOf(0), idOf(0), idOf(0))
	half := w.shared(idOf(0), idOf(0), idOf(0), idOf(0))
	w.streamOf("a", nil, dead[3])
	w.streamOf("b", nil, half[0])
	w.streamOf("c", nil, half[1])
	w.streamOf("d", nil, half[2])
	w.export()
	r := w.restore()
	if due := r.due(catalog.QueueCompact); len(due) != 1 || due[0].GetObject() != dead[0].GetObject() {
		t.Errorf("markers %v", due)
	}
	bytes := settled.RunBytes(dead[3].GetLength(), dead[3].GetIndexLength())
	if got := r.row(dead[0].GetObject()); got.GetLiveBytes() != bytes || settled.Live(got.GetLive()).Count() != 1 {
		t.Errorf("%v, want %d live bytes", got, bytes)
	}
	if got := r.row(half[0].GetObject()); got.GetLiveBytes() != 3*bytes || settled.Live(got.GetLive()).Count() != 3 {
		t.Errorf("%v, want %d live bytes", got, 3*bytes)
	}
}

// I11: while the history of a stream cannot be read, it may name any run: else an object
// goes when the others drop it, and with it what comes behind the page that is damaged.
func TestRunsOfAHistoryThatCannotBeReadStay(t *testing.T) {
	w := newWorld(t)
	first := &indexpb.RefPageBody{StreamId: idOf(0).String(), Level: 1, Refs: []*indexpb.Ref{{Object: "settled/x", NextSeq: 1, Offset: 8, Length: 8, Frames: 1}}}
	refs := w.shared(idOf(0), idOf(0))
	behind := refs[1]
	behind.FirstSeq, behind.NextSeq = 1, 2
	w.streamOf("a", nil, refs[0])
	w.streamOf("b", []*indexpb.RefPage{history.PageOf(first, "page/"+stream.NewAttemptID().String(), 100)}, behind)
	w.export()
	r := w.restore()
	if got := r.row(behind.GetObject()); !settled.Live(got.GetLive()).Has(1) || r.report.Damage == 0 {
		t.Errorf("%v, %+v", got, r.report)
	}
	if due := r.due(catalog.QueueCompact); len(due) != 0 {
		t.Errorf("markers %v", due)
	}
}
