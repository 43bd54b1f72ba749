package reaper

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/reaper/v1"
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
	w.arm(&indexpb.Due{Queue: "chain", ChainId: "c"})
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
	if left := w.queue("chain"); len(left) != 1 || left[0].GetAttempts() != 6 {
		t.Errorf("what is only too early was set aside: %v", left)
	}
}

// A queue that cannot be read does not keep the others waiting.
func TestBrokenQueueDoesNotStopTheOthers(t *testing.T) {
	w, s := newWorld(t, Config{})
	w.failures["list create"] = errors.New("broken")
	w.arm(&indexpb.Due{Queue: "delete", StreamId: w.stream("s", 3).GetStreamId(), Bucket: "bucket", Name: "s", Number: 3})
	got, err := s.Drain(t.Context(), &reaperpb.DrainRequest{})
	if err == nil || got.GetDone() != 1 || len(w.deleted) != 1 {
		t.Fatalf("drained %v, %v", got, err)
	}
}

func TestBegunDeleteOfAStreamIsFinished(t *testing.T) {
	w, s := newWorld(t, Config{})
	d := w.stream("s", 3)
	marker := &indexpb.Due{Queue: "delete", StreamId: d.GetStreamId(), Bucket: "bucket", Name: "s", Number: 3}
	w.arm(marker)
	drain(t, s, 1, 0)
	if len(w.deleted) != 1 || len(w.freed) != 0 {
		t.Fatalf("deleted %v, freed %v", w.deleted, w.freed)
	}
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
	w.bucket = &indexpb.BucketRecord{Name: "bucket", BucketId: "b1"}
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
	w.bucket = &indexpb.BucketRecord{Name: "bucket", BucketId: "b2"}
	d := w.stream("s", 1)
	w.arm(&indexpb.Due{Queue: "bucket", Bucket: "bucket", BucketId: "b1"})
	drain(t, s, 1, 0)
	if w.bucket == nil || w.bucket.GetState() != 0 || w.streams[d.GetStreamId()] == nil {
		t.Fatal("the marker of an old bucket touched the next")
	}
}

// An object is deleted only when its window's row names another (I11).
func TestDirectoryObjectIsDeletedOnlyWhenItLost(t *testing.T) {
	w, s := newWorld(t, Config{})
	for _, o := range []string{"winner", "loser", "early"} {
		w.objects[o] = true
	}
	w.rows[10] = &indexpb.Directory{ChainId: "c", From: 10, To: 20, Object: "winner"}
	w.arm(&indexpb.Due{Queue: "directory", ChainId: "c", Number: 10, Object: "winner"})
	w.arm(&indexpb.Due{Queue: "directory", ChainId: "c", Number: 10, Object: "loser"})
	w.arm(&indexpb.Due{Queue: "directory", ChainId: "c", Number: 20, Object: "early"})
	drain(t, s, 2, 1)
	if !w.objects["winner"] || w.objects["loser"] || !w.objects["early"] {
		t.Fatalf("objects %v", w.objects)
	}
	w.rows[20] = &indexpb.Directory{ChainId: "c", From: 20, To: 30, Object: "another"}
	w.pass(time.Hour)
	drain(t, s, 1, 0)
	if w.objects["early"] || len(w.due) != 0 {
		t.Fatalf("objects %v, markers %v", w.objects, w.due)
	}
}

func TestChainIsLookedAfterUntilItRetires(t *testing.T) {
	w, s := newWorld(t, Config{})
	w.chain = &indexpb.Chain{ChainId: "c", State: indexpb.ChainState_CHAIN_STATE_SEALED}
	w.arm(&indexpb.Due{Queue: "chain", ChainId: "c"})
	drain(t, s, 0, 1)
	w.chain.State = indexpb.ChainState_CHAIN_STATE_RETIRED
	w.pass(time.Hour)
	drain(t, s, 1, 0)
	w.chain = nil // never recorded: its writer died before
	w.arm(&indexpb.Due{Queue: "chain", ChainId: "c"})
	drain(t, s, 1, 0)
}

func TestProgressIsCounted(t *testing.T) {
	w, s := newWorld(t, Config{})
	w.failures["s"] = errors.New("broken")
	w.arm(&indexpb.Due{Queue: "create", StreamId: "s", At: 5})
	w.arm(&indexpb.Due{Queue: "create", StreamId: "t", At: 6})
	drain(t, s, 1, 1)
	got, err := s.GetProgress(t.Context(), &reaperpb.GetProgressRequest{})
	if err != nil || len(got.GetQueues()) != 5 {
		t.Fatalf("%v, %v", got, err)
	}
	if q := got.GetQueues()[0]; q.GetQueue() != "create" || q.GetDone() != 1 || q.GetFailed() != 1 || q.GetOldestDue() != 5 {
		t.Fatalf("progress %v", q)
	}
}

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
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
