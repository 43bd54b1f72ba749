package index

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/metastore/mem"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is what outlives processes: the rows, and the time.
type world struct {
	t    testing.TB
	rows *fault.Store

	mu  sync.Mutex
	now time.Time
	ids map[string]bool // of streams whose descriptor was ever put
}

// witness notes the streams that are begun.
type witness struct {
	metastore.Store

	w *world
}

func (x witness) Put(ctx context.Context, key metastore.Key, value []byte, expected metastore.Version) (metastore.Version, error) {
	if id, ok := strings.CutPrefix(key.Path, "descriptor/"); ok {
		x.w.mu.Lock()
		x.w.ids[id] = true
		x.w.mu.Unlock()
	}
	return x.Store.Put(ctx, key, value, expected)
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, now: time.UnixMilli(1_000_000), ids: map[string]bool{}}
	w.rows = fault.New(witness{mem.New(), w})
	s, _ := w.process()
	if _, err := s.OpenConstellation(t.Context(), &indexpb.OpenConstellationRequest{ShardCount: 8}); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

func (w *world) pass(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

// process is an index of its own over the rows.
func (w *world) process() (*Service, *fault.Store) {
	w.t.Helper()
	f := w.rows.Fork()
	s, err := New(Config{}, Deps{Store: f, Now: w.clock})
	if err != nil {
		w.t.Fatal(err)
	}
	return s, f
}

// reap does what the reaper does with creations that may not have finished.
func (w *world) reap() {
	w.t.Helper()
	w.pass(time.Hour)
	s, _ := w.process()
	ctx := w.t.Context()
	due, err := s.ListDue(ctx, &indexpb.ListDueRequest{Queue: QueueCreate, Until: w.clock().UnixMilli(), Limit: 100})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, v := range due.GetDue() {
		d := v.GetDue()
		if _, err := s.RemoveOrphan(ctx, &indexpb.RemoveOrphanRequest{Bucket: d.GetBucket(), Stream: d.GetName(), StreamId: d.GetStreamId()}); err != nil {
			w.t.Fatalf("remove orphan: %v", err)
		}
		if _, err := s.DeleteDue(ctx, &indexpb.DeleteDueRequest{Queue: d.GetQueue(), At: d.GetAt(), DueId: d.GetDueId(), ExpectedVersion: v.GetVersion()}); err != nil {
			w.t.Fatal(err)
		}
	}
}

// made returns the ids of the streams that were ever begun.
func (w *world) made() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Keys(w.ids))
}

func (w *world) bucket(name string) *indexpb.BucketRecord {
	w.t.Helper()
	s, _ := w.process()
	res, err := s.CreateBucket(w.t.Context(), &indexpb.CreateBucketRequest{Bucket: name})
	if err != nil {
		w.t.Fatal(err)
	}
	return res.GetBucket()
}

// count returns how many rows a range of one partition has.
func (w *world) count(partition, from, to string) int {
	w.t.Helper()
	rows, err := w.rows.Range(w.t.Context(), partition, from, to, metastore.MaxRangeLimit)
	if err != nil {
		w.t.Fatal(err)
	}
	return len(rows)
}

func (w *world) names(bucket string) int {
	w.t.Helper()
	return w.count(partNamesBase+bucket, "name/"+bucket+"/", "name/"+bucket+"/"+after)
}

func (w *world) markers(queue string) int {
	w.t.Helper()
	return w.count("due/"+queue, "due/"+queue+"/", "due/"+queue+"/"+after)
}

// exists reports whether a row is there.
func (w *world) exists(key metastore.Key) bool {
	w.t.Helper()
	_, err := w.rows.Get(w.t.Context(), key)
	return err == nil
}

func create(ctx context.Context, s *Service, bucket, name string) (*indexpb.StreamDescriptor, error) {
	res, err := s.CreateStream(ctx, &indexpb.CreateStreamRequest{Bucket: bucket, Stream: name})
	return res.GetStream(), err
}

// drop deletes a bucket as the gateway does, without force.
func drop(ctx context.Context, s *Service, bucket string) error {
	res, err := s.BeginDeleteBucket(ctx, &indexpb.BeginDeleteBucketRequest{Bucket: bucket})
	if err != nil {
		return err
	}
	_, err = s.FinishDeleteBucket(ctx, &indexpb.FinishDeleteBucketRequest{Bucket: bucket, BucketId: res.GetBucket().GetBucketId()})
	return err
}

func wantReason(t testing.TB, err error, want reason.Reason) {
	t.Helper()
	if !reason.Is(err, want) {
		t.Fatalf("got error %v, want reason %s", err, want)
	}
}
