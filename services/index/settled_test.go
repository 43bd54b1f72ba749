package index

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

const (
	adopting  = indexpb.SettledState_SETTLED_STATE_ADOPTING
	adopted   = indexpb.SettledState_SETTLED_STATE_ADOPTED
	condemned = indexpb.SettledState_SETTLED_STATE_CONDEMNED
)

// What a head may still come to name is not deleted, and what was deleted is not
// named (I11).
func TestSettledObjectIsNotNamedOnceItIsCondemned(t *testing.T) {
	row := func(st indexpb.SettledState, live ...byte) *indexpb.SettledObject {
		return &indexpb.SettledObject{Object: "settled/x", State: st, Runs: 10, Live: live, CreatedAt: 5}
	}
	type edit = func(*indexpb.SettledObject)
	keep := func(*indexpb.SettledObject) {}
	for _, c := range []struct {
		what      string
		old, next *indexpb.SettledObject
		f         edit
		ok        bool
	}{
		{"it begins", nil, row(adopting, 0xff, 3), keep, true},
		{"eight runs are one byte", nil, row(adopting, 0xff), func(r *indexpb.SettledObject) { r.Runs = 8 }, true},
		{"a page begins", nil, row(adopting, 1), func(r *indexpb.SettledObject) { r.Runs, r.StreamId = 1, "s" }, true},
		{"it begins adopted", nil, row(adopted, 0xff, 3), keep, false},
		{"it begins condemned", nil, row(condemned, 0xff, 3), keep, false},
		{"it begins without a state", nil, row(0, 0xff, 3), keep, false},
		{"it begins with a dead run", nil, row(adopting, 0xff, 1), keep, false},
		{"it begins with too few bits", nil, row(adopting, 0xff), keep, false},
		{"it begins with too many bytes", nil, row(adopting, 0xff, 3, 0), keep, false},
		{"it begins with a bit beyond the runs", nil, row(adopting, 0xff, 7), keep, false},
		{"it begins without runs", nil, row(adopting), func(r *indexpb.SettledObject) { r.Runs = 0 }, false},
		{"too many runs (I8)", nil, row(adopting, bytes.Repeat([]byte{0xff}, 513)...), func(r *indexpb.SettledObject) { r.Runs = 4104 }, false},
		{"its maker touches it", row(adopting, 0xff, 3), row(adopting, 0xff, 3), keep, true},
		{"its maker abandons a run", row(adopting, 0xff, 3), row(adopting, 0xfe, 3), keep, true},
		{"it is adopted", row(adopting, 0xff, 3), row(adopted, 0xff, 3), keep, true},
		{"it is adopted in part", row(adopting, 0xff, 3), row(adopted, 0, 2), keep, true},
		{"it is adopted with no run", row(adopting, 0xff, 3), row(adopted, 0, 0), keep, false},
		{"it is condemned", row(adopting, 0xff, 3), row(condemned, 0xff, 3), keep, true},
		{"its judge finds what is named", row(condemned, 0xff, 3), row(adopted, 4, 0), keep, true},
		{"its judge finds nothing and it is adopted", row(condemned, 0xff, 3), row(adopted, 0, 0), keep, false},
		{"its judge goes on", row(condemned, 0xff, 3), row(condemned, 0, 0), keep, true},
		{"its maker touches it when it is condemned", row(condemned, 0xff, 3), row(adopting, 0xff, 3), keep, false},
		{"its maker touches it when it is adopted", row(adopted, 0xff, 3), row(adopting, 0xff, 3), keep, false},
		{"runs are dropped", row(adopted, 0xff, 3), row(adopted, 0xf0, 3), keep, true},
		{"the last run is dropped", row(adopted, 1, 0), row(adopted, 0, 0), keep, true},
		{"all runs are dropped, and it is condemned", row(adopted, 1, 0), row(condemned, 0, 0), keep, true},
		{"nothing is live and it is condemned", row(adopted, 0, 0), row(condemned, 0, 0), keep, true},
		{"something is live and it is condemned", row(adopted, 1, 0), row(condemned, 1, 0), keep, false},
		{"what was condemned with nothing live comes back", row(condemned, 0, 0), row(adopted, 0, 0), keep, false},
		{"a bit is set again", row(adopted, 0xf0, 3), row(adopted, 0xf1, 3), keep, false},
		{"a bit is set again while it is adopted", row(adopting, 0xf0, 3), row(adopted, 0xf8, 3), keep, false},
		{"a bit is set again by its judge", row(condemned, 0xf0, 0), row(adopted, 0xf0, 1), keep, false},
		{"bits are lost", row(adopted, 0xff, 3), row(adopted, 0xff), keep, false},
		{"more runs", row(adopting, 0xff, 3), row(adopting, 0xff, 3), func(r *indexpb.SettledObject) { r.Runs = 11 }, false},
		{"fewer runs", row(adopting, 0xff, 1), row(adopting, 0xff, 1), func(r *indexpb.SettledObject) { r.Runs = 9 }, false},
		{"another object", row(adopting, 0xff, 3), row(adopting, 0xff, 3), func(r *indexpb.SettledObject) { r.Object = "settled/y" }, false},
		{"another stream", row(adopting, 0xff, 3), row(adopting, 0xff, 3), func(r *indexpb.SettledObject) { r.StreamId = "s" }, false},
		{"another time", row(adopting, 0xff, 3), row(adopting, 0xff, 3), func(r *indexpb.SettledObject) { r.CreatedAt = 6 }, false},
		{"the state is lost", row(adopted, 0xff, 3), row(0, 0xff, 3), keep, false},
		{"a state that there is not", row(adopted, 0, 0), row(9, 0, 0), keep, false},
	} {
		t.Run(c.what, func(t *testing.T) { judge(t, settledRule(c.old, changed(c.next, c.f), c.old != nil), c.ok) })
	}
}

// settledRow puts the row of an object with three runs.
func settledRow(t *testing.T, s *Service) (*indexpb.SettledObject, int64) {
	t.Helper()
	r := &indexpb.SettledObject{
		Object: "settled/" + stream.NewAttemptID().String(), State: adopting, Runs: 3, Live: []byte{7}, Attempt: stream.NewAttemptID().String(),
	}
	v, err := putSettled(t.Context(), s, r, int64(metastore.Absent))
	if err != nil {
		t.Fatal(err)
	}
	return r, v
}

func putSettled(ctx context.Context, s *Service, r *indexpb.SettledObject, expected int64) (int64, error) {
	res, err := s.PutSettledObject(ctx, &indexpb.PutSettledObjectRequest{Object: r, ExpectedVersion: expected})
	return res.GetVersion(), err
}

func withState(r *indexpb.SettledObject, st indexpb.SettledState, live ...byte) *indexpb.SettledObject {
	return changed(r, func(r *indexpb.SettledObject) {
		r.State, r.Live, r.Attempt = st, live, stream.NewAttemptID().String()
	})
}

// The judge of an object and its maker race: whatever the maker does after it was
// condemned fails, so no head comes to name it (I11).
func TestMakerOfACondemnedObjectIsStopped(t *testing.T) {
	w := newWorld(t)
	s, _ := w.process()
	r, v := settledRow(t, s)
	v2, err := putSettled(t.Context(), s, withState(r, condemned, 7), v)
	if err != nil {
		t.Fatal(err)
	}
	_, err = putSettled(t.Context(), s, withState(r, adopting, 7), v)
	wantReason(t, err, reason.VersionConflict)
	_, err = putSettled(t.Context(), s, withState(r, adopting, 7), v2)
	wantReason(t, err, reason.RuleBroken)
	_, err = putSettled(t.Context(), s, withState(r, adopting, 7), int64(metastore.Absent))
	wantReason(t, err, reason.VersionConflict)
}

// A touch that was long under way does not land after the judge's change.
func TestLateTouchDoesNotLand(t *testing.T) {
	w := newWorld(t)
	s, _ := w.process()
	r, v := settledRow(t, s)
	slow, f := w.process()
	f.Script(fault.Rule{Op: fault.Put, Prefix: "settled/", Do: fault.LandLate})
	if _, err := putSettled(t.Context(), slow, withState(r, adopting, 7), v); err == nil {
		t.Fatal("it landed at once")
	}
	if _, err := putSettled(t.Context(), s, withState(r, condemned, 7), v); err != nil {
		t.Fatal(err)
	}
	f.Land(t.Context())
	got, err := s.GetSettledObject(t.Context(), &indexpb.GetSettledObjectRequest{Object: r.GetObject()})
	if err != nil || got.GetObject().GetState() != condemned {
		t.Fatalf("%v, %v", got, err)
	}
}

// Changes whose replies are lost, or that look like conflicts, are recognised
// (I6); an old read is a conflict and changes nothing.
func TestChangesOfASettledObjectAreRecognised(t *testing.T) {
	for _, do := range []fault.Action{fault.LoseReply, fault.OwnConflict} {
		t.Run(fmt.Sprint(do), func(t *testing.T) {
			w := newWorld(t)
			s, f := w.process()
			f.Script(fault.Rule{Op: fault.Write, Prefix: "settled/", Do: do})
			r, v := settledRow(t, s)
			v, err := putSettled(t.Context(), s, withState(r, adopted, 5), v)
			if err != nil {
				t.Fatal(err)
			}
			if v, err = putSettled(t.Context(), s, withState(r, condemned, 0), v); err != nil {
				t.Fatal(err)
			}
			del := &indexpb.DeleteSettledObjectRequest{Object: r.GetObject(), ExpectedVersion: v}
			for range 2 {
				if _, err := s.DeleteSettledObject(t.Context(), del); err != nil {
					t.Fatal(err)
				}
			}
			if w.exists(settledKey(r.GetObject())) {
				t.Fatal("the row is there still")
			}
		})
	}
	t.Run("old read", func(t *testing.T) {
		w := newWorld(t)
		s, f := w.process()
		r, v := settledRow(t, s)
		v, err := putSettled(t.Context(), s, withState(r, condemned, 7), v)
		if err != nil {
			t.Fatal(err)
		}
		f.Script(fault.Rule{Op: fault.Get, Prefix: "settled/", Do: fault.Stale, Times: 2})
		_, err = putSettled(t.Context(), s, withState(r, adopted, 1), v)
		wantReason(t, err, reason.VersionConflict)
		_, err = s.DeleteSettledObject(t.Context(), &indexpb.DeleteSettledObjectRequest{Object: r.GetObject(), ExpectedVersion: v})
		wantReason(t, err, reason.VersionConflict)
		if !w.exists(settledKey(r.GetObject())) {
			t.Fatal("the row is gone")
		}
	})
}

// Only the row of an object that no head names or will name is removed (I11).
func TestOnlyACondemnedObjectsRowIsRemoved(t *testing.T) {
	w := newWorld(t)
	s, _ := w.process()
	r, v := settledRow(t, s)
	remove := func(v int64) error {
		_, err := s.DeleteSettledObject(t.Context(), &indexpb.DeleteSettledObjectRequest{Object: r.GetObject(), ExpectedVersion: v})
		return err
	}
	wantReason(t, remove(v), reason.RuleBroken)
	v2, err := putSettled(t.Context(), s, withState(r, adopted, 1), v)
	if err != nil {
		t.Fatal(err)
	}
	wantReason(t, remove(v2), reason.RuleBroken)
	v3, err := putSettled(t.Context(), s, withState(r, condemned, 0), v2)
	if err != nil {
		t.Fatal(err)
	}
	wantReason(t, remove(v2), reason.VersionConflict)
	if err := remove(v3); err != nil {
		t.Fatal(err)
	}
	if err := remove(v3); err != nil {
		t.Fatalf("again: %v", err)
	}
	_, err = s.GetSettledObject(t.Context(), &indexpb.GetSettledObjectRequest{Object: r.GetObject()})
	wantReason(t, err, reason.RowNotFound)
	for _, bad := range []string{"", "settled//x", "settled/x!y", "settled/ä"} {
		if _, err := s.GetSettledObject(t.Context(), &indexpb.GetSettledObjectRequest{Object: bad}); err == nil || reason.Is(err, reason.RowNotFound) {
			t.Errorf("object %q: %v", bad, err)
		}
		if _, err := putSettled(t.Context(), s, changed(r, func(r *indexpb.SettledObject) { r.Object = bad }), int64(metastore.Absent)); err == nil {
			t.Errorf("object %q has a row", bad)
		}
	}
}

// The row of a directory is needed until its slots are settled (I2).
func TestDirectoryIsNeededUntilItsSlotsAreSettled(t *testing.T) {
	w := newWorld(t)
	s, f := w.process()
	ctx := t.Context()
	id := stream.NewChainID().String()
	c := &indexpb.Chain{ChainId: id, WriterLife: "w", State: indexpb.ChainState_CHAIN_STATE_OPEN, Attempt: "1"}
	put := func(expected int64) int64 {
		t.Helper()
		res, err := s.PutChain(ctx, &indexpb.PutChainRequest{Chain: c, ExpectedVersion: expected})
		if err != nil {
			t.Fatal(err)
		}
		return res.GetVersion()
	}
	v := put(int64(metastore.Absent))
	for from := uint64(0); from < 30; from += 10 {
		d := &indexpb.Directory{ChainId: id, From: from, To: from + 10, Object: "o", Attempt: fmt.Sprint("d", from)}
		if _, err := s.PutDirectory(ctx, &indexpb.PutDirectoryRequest{Directory: d}); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(from uint64) error {
		_, err := s.DeleteDirectory(ctx, &indexpb.DeleteDirectoryRequest{ChainId: id, From: from})
		return err
	}
	wantReason(t, remove(0), reason.RuleBroken)
	c.AbsorbingTo, c.AbsorbedTo, c.SettledTo, c.Attempt = 30, 30, 20, "2"
	put(v)
	f.Script(fault.Rule{Op: fault.Get, Prefix: "chain/", Nth: 1, Do: fault.Stale})
	wantReason(t, remove(0), reason.RuleBroken) // an old read refuses wrongly, no more
	f.Script(fault.Rule{Op: fault.Delete, Prefix: "directory/", Nth: 1, Do: fault.LoseReply})
	f.Script(fault.Rule{Op: fault.Delete, Prefix: "directory/", Nth: 1, Do: fault.OwnConflict})
	for _, from := range []uint64{0, 10, 10} {
		if err := remove(from); err != nil {
			t.Fatalf("directory from %d: %v", from, err)
		}
	}
	// An absorber that is late puts no row again, which nobody would remove (I11).
	late := &indexpb.Directory{ChainId: id, From: 10, To: 20, Object: "o", Attempt: "late"}
	_, err := s.PutDirectory(ctx, &indexpb.PutDirectoryRequest{Directory: late})
	wantReason(t, err, reason.VersionConflict)
	wantReason(t, remove(20), reason.RuleBroken)
	left, err := s.ListDirectories(ctx, &indexpb.ListDirectoriesRequest{ChainId: id, Limit: 10})
	if err != nil || len(left.GetDirectories()) != 1 || left.GetDirectories()[0].GetFrom() != 20 {
		t.Fatalf("left: %v, %v", left, err)
	}
}

// The head of a stream outlives what it names (I11), and its descriptor goes
// with it.
func TestHeadIsRemovedWhenItNamesNothing(t *testing.T) {
	for _, do := range []fault.Action{fault.Pass, fault.LoseReply, fault.OwnConflict} {
		t.Run(fmt.Sprint(do), func(t *testing.T) {
			w := newWorld(t)
			w.bucket("bucket")
			s, f := w.process()
			ctx := t.Context()
			d, err := create(ctx, s, "bucket", "s")
			if err != nil {
				t.Fatal(err)
			}
			id := d.GetStreamId()
			got, err := s.GetHead(ctx, &indexpb.GetHeadRequest{StreamId: id})
			if err != nil || got.GetHead().GetBucketId() != d.GetBucketId() || d.GetBucketId() == "" {
				t.Fatalf("the head does not know its bucket: %v, %v", got, err)
			}
			h, v := got.GetHead(), got.GetVersion()
			put := func(f func()) {
				t.Helper()
				f()
				h.Attempt = stream.NewAttemptID().String()
				res, err := s.PutHead(ctx, &indexpb.PutHeadRequest{Head: h, ExpectedVersion: v})
				if err != nil {
					t.Fatal(err)
				}
				v = res.GetVersion()
			}
			remove := func(v int64) error {
				_, err := s.DeleteHead(ctx, &indexpb.DeleteHeadRequest{StreamId: id, ExpectedVersion: v})
				return err
			}
			wantReason(t, remove(v), reason.RuleBroken)
			put(func() { h.Tail, h.Refs, h.Pages = 20, []*indexpb.Ref{ref(10, 20)}, []*indexpb.RefPage{page(1, 0, 10)} })
			wantReason(t, remove(v), reason.RuleBroken)
			put(func() { h.State, h.DeletedChain, h.DeletedSlot = indexpb.HeadState_HEAD_STATE_DELETED, "c", 4 })
			wantReason(t, remove(v), reason.RuleBroken)
			put(func() { h.Refs = nil })
			wantReason(t, remove(v), reason.RuleBroken)
			before := v
			put(func() { h.Pages = nil })
			wantReason(t, remove(before), reason.VersionConflict)
			if !w.exists(descriptorKey(id)) {
				t.Fatal("the descriptor is gone too early")
			}
			if do != fault.Pass {
				f.Script(fault.Rule{Op: fault.Delete, Prefix: "descriptor/", Nth: 1, Do: do})
				f.Script(fault.Rule{Op: fault.Delete, Prefix: "head/", Nth: 1, Do: do})
			}
			for range 2 {
				if err := remove(v); err != nil {
					t.Fatal(err)
				}
			}
			if w.exists(descriptorKey(id)) || w.exists(headKey(id)) {
				t.Fatal("rows are left (I11)")
			}
		})
	}
}

// A crash in the middle of the removal leaves the head, and a repeat removes it.
func TestRemovalOfAHeadConverges(t *testing.T) {
	for calls := 1; ; calls++ {
		w := newWorld(t)
		w.bucket("bucket")
		s, _ := w.process()
		d, err := create(t.Context(), s, "bucket", "s")
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.GetHead(t.Context(), &indexpb.GetHeadRequest{StreamId: d.GetStreamId()})
		if err != nil {
			t.Fatal(err)
		}
		h := got.GetHead()
		h.State, h.Attempt = indexpb.HeadState_HEAD_STATE_DELETED, "a"
		res, err := s.PutHead(t.Context(), &indexpb.PutHeadRequest{Head: h, ExpectedVersion: got.GetVersion()})
		if err != nil {
			t.Fatal(err)
		}
		req := &indexpb.DeleteHeadRequest{StreamId: d.GetStreamId(), ExpectedVersion: res.GetVersion()}
		dying, f := w.process()
		f.KillAt(calls, fault.After)
		_, err = dying.DeleteHead(t.Context(), req)
		if _, err := s.DeleteHead(t.Context(), req); err != nil {
			t.Fatalf("again, after a crash at call %d: %v", calls, err)
		}
		if w.exists(descriptorKey(d.GetStreamId())) || w.exists(headKey(d.GetStreamId())) {
			t.Fatalf("rows are left after a crash at call %d (I11)", calls)
		}
		if err == nil {
			return
		}
	}
}
