package reaper

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/reaper/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

func TestOnlyWhatIsDueIsDone(t *testing.T) {
	w, s := newWorld(t, Config{})
	w.arm(&indexpb.Due{Queue: "create", StreamId: "now"})
	w.arm(&indexpb.Due{Queue: "create", StreamId: "later", At: w.clock().UnixMilli() + 1})
	drain(t, s, 1, 0)
	if len(w.orphans) != 1 || w.orphans[0] != "now" || len(w.queue("create")) != 1 {
		t.Fatalf("removed %v, left %v", w.orphans, w.queue("create"))
	}
	w.pass(time.Millisecond)
	drain(t, s, 1, 0)
	drain(t, s, 0, 0)
}

func TestManyMarkersAreDoneInPages(t *testing.T) {
	w, s := newWorld(t, Config{})
	for i := range 3*page + 1 {
		w.arm(&indexpb.Due{Queue: "create", StreamId: fmt.Sprint(i)})
	}
	drain(t, s, 3*page+1, 0)
}

// A marker whose work failed stays until the work is done: later and later, and
// never lost (I11).
func TestFailedWorkIsTriedAgainLater(t *testing.T) {
	w, s := newWorld(t, Config{Retry: time.Minute, Attempts: 50})
	w.failures["s"] = errors.New("broken")
	w.arm(&indexpb.Due{Queue: "create", StreamId: "s"})
	for i, pause := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60, 60} {
		drain(t, s, 0, 1)
		left := w.queue("create")
		if len(left) != 1 || left[0].GetAttempts() != uint32(i+1) {
			t.Fatalf("try %d: markers %v", i, left)
		}
		if got := time.UnixMilli(left[0].GetAt()).Sub(w.clock()); got != pause*time.Minute {
			t.Fatalf("try %d: again in %v, want %d min", i, got, pause)
		}
		drain(t, s, 0, 0)
		w.pass(pause * time.Minute)
	}
	delete(w.failures, "s")
	drain(t, s, 1, 0)
	if len(w.due) != 0 {
		t.Fatalf("markers are left: %v", w.due)
	}
}

func TestWorkThatFailsTooOftenIsSetAside(t *testing.T) {
	w, s := newWorld(t, Config{Attempts: 3})
	w.failures["s"] = errors.New("broken")
	w.arm(&indexpb.Due{Queue: "create", StreamId: "s"})
	w.arm(&indexpb.Due{Queue: "directory", ChainId: "c", Number: 5, Object: "o"})
	w.chain = &indexpb.Chain{ChainId: "c", State: indexpb.ChainState_CHAIN_STATE_OPEN}
	for range 6 {
		if _, err := s.Drain(t.Context(), &reaperpb.DrainRequest{}); err != nil {
			t.Fatal(err)
		}
		w.pass(2 * time.Hour)
	}
	if dead := w.queue("dead-create"); len(dead) != 1 || dead[0].GetStreamId() != "s" || len(w.queue("create")) != 0 {
		t.Errorf("set aside: %v; left: %v", dead, w.queue("create"))
	}
	if left := w.queue("directory"); len(left) != 1 || left[0].GetAttempts() != 0 {
		t.Errorf("what is only too early was set aside: %v", left)
	}
}

// A queue that cannot be read does not keep the others waiting.
func TestBrokenQueueDoesNotStopTheOthers(t *testing.T) {
	w, s := newWorld(t, Config{})
	w.failures["list create"] = errors.New("broken")
	w.arm(&indexpb.Due{Queue: "delete", StreamId: w.stream("s", 3).GetStreamId(), Bucket: "bucket", Name: "s", Number: 3})
	if _, err := s.Drain(t.Context(), &reaperpb.DrainRequest{}); err == nil || len(w.deleted) != 1 || len(w.due) != 1 {
		t.Fatalf("deleted %v, left %v, %v", w.deleted, w.due, err)
	}
}

func TestBegunDeleteOfAStreamIsFinished(t *testing.T) {
	w, s := newWorld(t, Config{})
	d := w.stream("s", 3)
	marker := &indexpb.Due{Queue: "delete", StreamId: d.GetStreamId(), Bucket: "bucket", Name: "s", Number: 3}
	w.arm(marker)
	drain(t, s, 0, 1)
	if len(w.deleted) != 1 || len(w.queue("delete")) != 1 {
		t.Fatalf("deleted %v, left %v", w.deleted, w.due)
	}
	w.pass(time.Hour)
	drain(t, s, 1, 0)
	w.freed = nil
	// Its descriptor is gone: what may be left is its name, and that by id, so
	// that a stream made again under the name stays.
	w.arm(&indexpb.Due{Queue: "delete", StreamId: d.GetStreamId(), Bucket: "bucket", Name: "s", Number: 3})
	drain(t, s, 1, 0)
	if len(w.deleted) != 1 || len(w.freed) != 1 || w.freed[0] != "s "+d.GetStreamId() {
		t.Fatalf("deleted %v, freed %v", w.deleted, w.freed)
	}
	w.arm(&indexpb.Due{Queue: "delete", StreamId: "no ulid"})
	drain(t, s, 0, 1)
}

func TestForcedDeleteOfABucketIsFinished(t *testing.T) {
	w, s := newWorld(t, Config{Attempts: 2})
	deleting := novapb.BucketState_BUCKET_STATE_DELETING
	w.bucket = &indexpb.BucketRecord{Name: "bucket", BucketId: "b1", State: deleting}
	for i := range page + 20 {
		w.stream(fmt.Sprint(i), uint32(i%8))
	}
	stuck := w.stream("stuck", 1).GetStreamId()
	w.failures[stuck] = errDown
	w.arm(&indexpb.Due{Queue: "bucket", Bucket: "bucket", BucketId: "b1"})
	// Each turn deletes some streams before it meets the stuck one, or none.
	for range 200 {
		if len(w.streams) == 1 {
			break
		}
		had := len(w.streams)
		drain(t, s, 0, 1)
		if len(w.streams) < had && len(w.queue("bucket")) != 1 {
			t.Fatal("a delete that gets on was set aside")
		}
		for _, d := range w.queue("dead-bucket") {
			w.due = map[string]*indexpb.VersionedDue{}
			w.arm(&indexpb.Due{Queue: "bucket", Bucket: d.GetBucket(), BucketId: d.GetBucketId()})
		}
		w.pass(2 * time.Hour)
	}
	delete(w.failures, stuck)
	w.pass(2 * time.Hour)
	drain(t, s, 1, 0)
	if w.bucket != nil || len(w.streams) != 0 || len(w.queue("bucket")) != 0 {
		t.Fatalf("bucket %v, %d streams, markers %v", w.bucket, len(w.streams), w.queue("bucket"))
	}
	// It was finished before, and the name may be another bucket's by now.
	w.arm(&indexpb.Due{Queue: "bucket", Bucket: "bucket", BucketId: "b1"})
	drain(t, s, 1, 0)
	w.bucket = &indexpb.BucketRecord{Name: "bucket", BucketId: "b2", State: deleting}
	d := w.stream("s", 1)
	w.arm(&indexpb.Due{Queue: "bucket", Bucket: "bucket", BucketId: "b1"})
	drain(t, s, 1, 0)
	if w.bucket == nil || w.streams[d.GetStreamId()] == nil {
		t.Fatal("the marker of an old bucket touched the next")
	}
	// A read that is older than the marker decides nothing.
	w.arm(&indexpb.Due{Queue: "bucket", Bucket: "bucket", BucketId: "b3"})
	drain(t, s, 0, 1)
	if len(w.queue("bucket")) != 1 {
		t.Fatal("the marker of the bucket is gone")
	}
}

// A forced delete that never made its bucket DELETING is not finished later,
// over the head of whoever uses the bucket; that the row is changed makes its
// beginner arm again.
func TestDeleteThatWasNotBegunIsNotFinished(t *testing.T) {
	w, s := newWorld(t, Config{})
	w.bucket = &indexpb.BucketRecord{Name: "bucket", BucketId: "b1", State: novapb.BucketState_BUCKET_STATE_ACTIVE}
	d := w.stream("s", 1)
	w.arm(&indexpb.Due{Queue: "bucket", Bucket: "bucket", BucketId: "b1"})
	drain(t, s, 1, 0)
	if w.bucket == nil || w.streams[d.GetStreamId()] == nil || w.touched != 1 {
		t.Fatalf("bucket %v, %d streams, %d changes", w.bucket, len(w.streams), w.touched)
	}
}

// An object is deleted only when its window's row names another, or when the
// row is gone for good (I11); and twice, for a PUT that was under way.
func TestDirectoryObjectIsDeletedOnlyWhenItLost(t *testing.T) {
	w, s := newWorld(t, Config{})
	w.now = time.Now()
	w.chain = &indexpb.Chain{ChainId: "c", AbsorbedTo: 20}
	for _, o := range []string{"winner", "loser", "early"} {
		w.objects[o] = true
	}
	w.rows[10] = &indexpb.Directory{ChainId: "c", From: 10, To: 20, Object: "winner"}
	w.arm(&indexpb.Due{Queue: "directory", ChainId: "c", Number: 10, Object: "winner"})
	w.arm(&indexpb.Due{Queue: "directory", ChainId: "c", Number: 10, Object: "loser"})
	w.arm(&indexpb.Due{Queue: "directory", ChainId: "c", Number: 20, Object: "early"})
	want := func(objects ...string) {
		t.Helper()
		if got := slices.Sorted(maps.Keys(w.objects)); !slices.Equal(got, objects) {
			t.Fatalf("objects %v, want %v", got, objects)
		}
	}
	drain(t, s, 1, 2)
	want("early", "winner")
	w.objects["loser"] = true // the late PUT
	w.pass(settlesAfter + time.Hour)
	drain(t, s, 1, 1)
	want("early", "winner")
	// Its window is not absorbed: its absorber may still win.
	w.pass(settlesAfter)
	drain(t, s, 0, 1)
	want("early", "winner")
	w.chain.AbsorbedTo = 21
	w.pass(time.Hour)
	drain(t, s, 1, 0)
	want("winner")
	if len(w.due) != 0 {
		t.Fatalf("markers %v", w.due)
	}
}

// Whether the row is only not there yet is not decided by one look.
func TestDirectoryObjectWithoutARowIsWatchedForDays(t *testing.T) {
	w, s := newWorld(t, Config{})
	w.now = time.Now()
	w.chain = &indexpb.Chain{ChainId: "c", AbsorbedTo: 20}
	w.objects["o"] = true
	w.arm(&indexpb.Due{Queue: "directory", ChainId: "c", Number: 10, Object: "o"})
	for range 48 {
		drain(t, s, 0, 1)
		w.pass(time.Hour)
	}
	if !w.objects["o"] {
		t.Fatal("an old read deleted a directory")
	}
	w.rows[10] = &indexpb.Directory{ChainId: "c", From: 10, To: 20, Object: "o"}
	drain(t, s, 1, 0)
	if !w.objects["o"] {
		t.Fatal("a directory was deleted")
	}
}

// Of two reapers one works on a marker, and the other takes over when the first
// one's claim ends.
func TestMarkerIsWorkedOnByOneReaper(t *testing.T) {
	w, s := newWorld(t, Config{Patience: time.Minute})
	other, err := New(Config{}, Deps{Index: w, Cache: w, Router: w, Registry: w, Conns: w, Now: w.clock})
	if err != nil {
		t.Fatal(err)
	}
	w.arm(&indexpb.Due{Queue: "create", StreamId: "s"})
	begun, hold := make(chan struct{}), make(chan struct{})
	w.hold = func(string) { close(begun); <-hold }
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if got, err := s.Drain(t.Context(), &reaperpb.DrainRequest{}); err != nil || got.GetDone() != 1 {
			t.Errorf("the first: %v, %v", got, err)
		}
	}()
	<-begun
	w.hold = nil
	drain(t, other, 0, 0)
	w.pass(time.Minute + leaseSlack)
	drain(t, other, 1, 0)
	close(hold)
	<-ended
	if len(w.due) != 0 {
		t.Fatalf("markers %v", w.due)
	}
}

// A list may be older than another reaper's claim.
func TestMarkerThatAnotherClaimedIsLeftToIt(t *testing.T) {
	w, s := newWorld(t, Config{})
	w.arm(&indexpb.Due{Queue: "create", StreamId: "s"})
	listed := catalog.Marker{Due: w.queue("create")[0], Version: w.version}
	if _, err := s.index.ClaimDue(t.Context(), listed, w.clock().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if what, err := s.one(t.Context(), s.queues[0], listed); err != nil || what != resultTaken || w.removed() != 0 {
		t.Fatalf("%s, %v, %d removed", what, err, w.removed())
	}
}

// Several markers of a queue are worked on at once, not more than it may (I8).
func TestMarkersOfAQueueAreWorkedOnTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := newWorld(t, Config{Workers: 3})
		for i := range 20 {
			w.arm(&indexpb.Due{Queue: "create", StreamId: fmt.Sprint(i)})
		}
		var at atomic.Int32
		release := make(chan struct{})
		w.hold = func(string) { at.Add(1); <-release; at.Add(-1) }
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			drain(t, s, 20, 0)
		}()
		synctest.Wait()
		if at.Load() != 3 {
			t.Errorf("%d at once", at.Load())
		}
		close(release)
		<-ended
	})
}

// Work that takes its process with it every time is set aside too.
func TestTryThatNeverEndedCounts(t *testing.T) {
	w, s := newWorld(t, Config{Attempts: 2})
	w.arm(&indexpb.Due{Queue: "create", StreamId: "s"})
	w.hold = func(string) { panic("dies") }
	func() {
		defer func() { _ = recover() }()
		_, _ = s.one(t.Context(), s.queues[0], catalog.Marker{Due: w.queue("create")[0], Version: w.version})
	}()
	if got := w.queue("create")[0].GetAttempts(); got != 1 {
		t.Fatalf("%d tries are counted", got)
	}
	w.hold, w.failures["s"] = nil, errors.New("broken")
	w.pass(time.Hour)
	drain(t, s, 0, 1)
	if len(w.queue("dead-create")) != 1 {
		t.Fatalf("markers %v", w.due)
	}
}

// What was set aside is counted, shown, and tried again when somebody says so.
func TestDeadMarkersAreCountedAndRevived(t *testing.T) {
	w, s := newWorld(t, Config{Attempts: 1})
	w.failures["s"] = errors.New("broken")
	for range 3 {
		w.arm(&indexpb.Due{Queue: "create", StreamId: "s"})
	}
	drain(t, s, 0, 3)
	s.countDead(t.Context(), s.queues[0])
	got, err := s.GetProgress(t.Context(), &reaperpb.GetProgressRequest{})
	if err != nil || got.GetQueues()[0].GetDead() != 3 {
		t.Fatalf("%v, %v", got, err)
	}
	delete(w.failures, "s")
	one := w.queue("dead-create")[1].GetDueId()
	if got, err := s.Revive(t.Context(), &reaperpb.ReviveRequest{Queue: "create", DueId: one}); err != nil || got.GetRevived() != 1 {
		t.Fatalf("%v, %v", got, err)
	}
	if q := w.queue("create"); len(q) != 1 || q[0].GetDueId() != one || q[0].GetAttempts() != 0 {
		t.Fatalf("markers %v", q)
	}
	if got, err := s.Revive(t.Context(), &reaperpb.ReviveRequest{Queue: "create"}); err != nil || got.GetRevived() != 2 {
		t.Fatalf("%v, %v", got, err)
	}
	drain(t, s, 3, 0)
	if len(w.due) != 0 {
		t.Fatalf("markers %v", w.due)
	}
	if _, err := s.Revive(t.Context(), &reaperpb.ReviveRequest{Queue: "dead-create"}); err == nil {
		t.Fatal("a queue that is none")
	}
}

func TestProgressIsCounted(t *testing.T) {
	w, s := newWorld(t, Config{})
	w.failures["s"] = errors.New("broken")
	w.arm(&indexpb.Due{Queue: "create", StreamId: "s", At: 5})
	w.arm(&indexpb.Due{Queue: "create", StreamId: "t", At: 6})
	drain(t, s, 1, 1)
	got, err := s.GetProgress(t.Context(), &reaperpb.GetProgressRequest{})
	if err != nil || len(got.GetQueues()) != len(catalog.Queues()) {
		t.Fatalf("%v, %v", got, err)
	}
	if q := got.GetQueues()[0]; q.GetQueue() != "create" || q.GetDone() != 1 || q.GetFailed() != 1 || q.GetOldestDue() != 5 {
		t.Fatalf("progress %v", q)
	}
}

// An idle reaper reads each queue once an interval; a marker that comes due
// within one is not kept waiting.
func TestRunDrainsAtItsIntervalAndEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := newWorld(t, Config{Interval: time.Second})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.Run(ctx) }()
		w.arm(&indexpb.Due{Queue: "create", StreamId: "s"})
		time.Sleep(999 * time.Millisecond)
		synctest.Wait()
		if w.removed() != 0 {
			t.Error("it did not wait for its interval")
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if w.removed() != 1 {
			t.Error("it did not drain")
		}
		w.arm(&indexpb.Due{Queue: "create", StreamId: "t", At: w.clock().Add(300 * time.Millisecond).UnixMilli()})
		time.Sleep(time.Second)
		synctest.Wait()
		w.pass(300 * time.Millisecond)
		time.Sleep(301 * time.Millisecond)
		synctest.Wait()
		if w.removed() != 2 {
			t.Error("a marker waited for the next interval")
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
