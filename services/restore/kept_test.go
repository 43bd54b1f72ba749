package restore

import (
	"testing"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/directory"
	"github.com/nova-stream/nova/libs/export"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// The marker that looks after a stream's limits is the one that its descriptor
// names.
func TestLimitsAreLookedAfter(t *testing.T) {
	w := newWorld(t)
	made, err := w.index.CreateStream(t.Context(), &indexpb.CreateStreamRequest{Bucket: "bucket", Stream: "s", Config: &novapb.StreamConfig{
		RetentionBytesPresence: &novapb.StreamConfig_RetentionBytes{RetentionBytes: 1 << 20},
	}})
	if err != nil {
		t.Fatal(err)
	}
	w.export()
	r := w.restore()
	d, err := r.index.GetDescriptor(t.Context(), &indexpb.GetDescriptorRequest{StreamId: made.GetStream().GetStreamId()})
	if err != nil {
		t.Fatal(err)
	}
	due := r.due("retention")
	if len(due) != 1 || due[0].GetDueId() != d.GetStream().GetRetentionMarker() {
		t.Errorf("the descriptor names marker %q, there are %v", d.GetStream().GetRetentionMarker(), due)
	}
}

// An export that was found damaged is none of the two that are kept: the one before it,
// from which was restored, is there when the next one is damaged, too.
func TestADamagedExportIsNotKept(t *testing.T) {
	w := newWorld(t)
	damageNewest := func(w *world) string {
		st, err := w.index.GetExportState(t.Context(), &indexpb.GetExportStateRequest{})
		if err != nil {
			t.Fatal(err)
		}
		found, err := w.objects.List(t.Context(), export.Prefix, "", 1000)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range found {
			id, part, ok := export.ParseKey(o.Key)
			if !ok || part >= 0 {
				continue
			}
			if m, err := export.ReadManifest(t.Context(), w.objects, id); err == nil && m.GetNumber() == st.GetCompleted() {
				w.lose(export.PartKey(id, 0))
				return id
			}
		}
		t.Fatal("there is no export")
		return ""
	}
	w.export()
	w.export()
	damageNewest(w)
	r := w.restore()
	if r.report.Skipped != 1 || r.report.Number != 1 {
		t.Fatalf("%+v", r.report)
	}
	st, err := r.index.GetExportState(t.Context(), &indexpb.GetExportStateRequest{})
	if err != nil || st.GetCompleted() != 1 || st.GetOldestKept() != 1 || st.GetBegun() != 2 {
		t.Errorf("after the restore: %v, %v", st, err)
	}
	r.export()
	damageNewest(r.world)
	if again := r.world.restore(); again.report.Number != 1 {
		t.Errorf("the newest is damaged again: %+v", again.report)
	}
}

// What the repair of a quarantined stream needs comes back.
func TestDirectoriesOfPinnedSlots(t *testing.T) {
	w := newWorld(t)
	one, id := idOf(0), stream.NewChainID()
	// [0, 64) is pinned at 3 and otherwise reclaimed, [64, 128) reclaimed, [128, 130) is there.
	w.slot(id, 3, token(one, 3, 3))
	for n := stream.Slot(128); n < 130; n++ {
		w.slot(id, n, token(one, 3, stream.EntryNo(n)))
	}
	mk := func(from, to stream.Slot) string {
		b := directory.NewBuilder(id, from)
		for n := from; n < to; n++ {
			b.Add(n, &bundle.FooterEntry{Kind: bundle.KindToken, Shard: 0, Epoch: 3, EntryNo: stream.EntryNo(n), StreamID: one, Length: 10, Header: []byte("token")})
		}
		key := chain.DirectoryKey(id, from, stream.NewAttemptID())
		w.object(key, b.Finish(to))
		w.put(&indexpb.Directory{ChainId: id.String(), From: uint64(from), To: uint64(to), Object: key, Attempt: "a"})
		return key
	}
	pinned := mk(0, 64)
	mk(128, 130)
	w.put(&indexpb.Chain{
		ChainId: id.String(), State: indexpb.ChainState_CHAIN_STATE_OPEN, AbsorbingTo: 130, AbsorbedTo: 130, SettledTo: 128, ReclaimedTo: 128, Attempt: "a",
		Progress: []*indexpb.ShardProgress{{Shard: 0, Epoch: 3, NextEntry: 130}},
		Pins:     []*indexpb.ChainPin{{StreamId: one.String(), From: 3, To: 4}},
	})
	w.export()
	r := w.restore()
	if got := r.directories(id); got != "0-64 128-130" {
		t.Errorf("directories %s: that of the pinned slot is gone", got)
	}
	for _, d := range r.due("directory") {
		if d.GetObject() == pinned {
			t.Errorf("the directory of the pinned slot is marked as unneeded: %v", d)
		}
	}
}

// A shard that has no entries in the windows that are absorbed again holds what it
// held: else its next leader would take the chain for empty (I1).
func TestProgressBelowWhatIsAbsorbedAgain(t *testing.T) {
	w := newWorld(t)
	one, other, id := idOf(0), idOf(1), stream.NewChainID()
	for n := range stream.Slot(5) {
		e := []bundle.Entry{token(one, 3, stream.EntryNo(n))}
		if n < 2 {
			e = append(e, token(other, 2, stream.EntryNo(n)))
		}
		w.slot(id, n, e...)
	}
	var objects []string
	for from := stream.Slot(0); from < 4; from += 2 {
		b := directory.NewBuilder(id, from)
		for n := from; n < from+2; n++ {
			b.Add(n, &bundle.FooterEntry{Kind: bundle.KindToken, Shard: 0, Epoch: 3, EntryNo: stream.EntryNo(n), StreamID: one, Length: 10, Header: []byte("token")})
			if n < 2 {
				b.Add(n, &bundle.FooterEntry{Kind: bundle.KindToken, Shard: 1, Epoch: 2, EntryNo: stream.EntryNo(n), StreamID: other, Length: 10, Header: []byte("token")})
			}
		}
		key := chain.DirectoryKey(id, from, stream.NewAttemptID())
		w.object(key, b.Finish(from+2))
		w.put(&indexpb.Directory{ChainId: id.String(), From: uint64(from), To: uint64(from + 2), Object: key, Attempt: "a"})
		objects = append(objects, key)
	}
	w.put(&indexpb.Chain{
		ChainId: id.String(), State: indexpb.ChainState_CHAIN_STATE_OPEN, AbsorbingTo: 4, AbsorbedTo: 4, SettledTo: 0, Attempt: "a",
		Progress: []*indexpb.ShardProgress{{Shard: 0, Epoch: 3, NextEntry: 4}, {Shard: 1, Epoch: 2, NextEntry: 2}},
	})
	w.export()
	w.lose(objects[1])
	r := w.restore()
	for n := range uint32(2) {
		found := false
		for _, p := range r.chain(id).GetProgress() {
			found = found || p.GetShard() == n
		}
		if !found {
			t.Errorf("shard %d has entries in [0, 2) that are not settled, and the chain's record does not say that it holds any: the next leader unbinds it", n)
		}
	}
}
