package reaper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/chunk/chunktest"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/export"
	"github.com/nova-stream/nova/libs/objectstore/mem"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/cache/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/reaper/v1"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

func TestMain(m *testing.M) {
	chunktest.Warm()
	// Exports have a compressor of their own.
	w := export.NewWriter(mem.New(), &indexpb.ExportManifest{ExportId: stream.NewAttemptID().String()})
	err := w.Add(context.Background(), &indexpb.ExportRecord{Row: &indexpb.ExportRecord_Chain{Chain: &indexpb.Chain{}}})
	if err == nil {
		_, err = w.Finish(context.Background(), time.Now())
	}
	if err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// world is an index, a cache and the sequencers, as far as a reaper meets them.
// Calls that a test does not expect panic.
type world struct {
	indexpb.IndexServiceClient
	cachepb.CacheServiceClient

	mu       sync.Mutex
	now      time.Time
	version  int64
	due      map[string]*indexpb.VersionedDue
	streams  map[string]*indexpb.StreamDescriptor // by id
	bucket   *indexpb.BucketRecord
	touched  int // changes of the bucket's row
	chain    *indexpb.Chain
	rows     map[uint64]*indexpb.Directory
	objects  map[string]bool
	orphans  []string // ids that RemoveOrphan was asked to remove
	freed    []string // names whose streams were deleted already
	deleted  []string // ids that a sequencer deleted
	failures map[string]error
	hold     func(id string) // called by RemoveOrphan
}

var errDown = reason.New(codes.Unavailable, "", "down")

func newWorld(t *testing.T, cfg Config) (*world, *Service) {
	t.Helper()
	w := &world{
		now: time.UnixMilli(10_000_000), due: map[string]*indexpb.VersionedDue{}, streams: map[string]*indexpb.StreamDescriptor{},
		rows: map[uint64]*indexpb.Directory{}, objects: map[string]bool{}, failures: map[string]error{},
	}
	s, err := New(cfg, Deps{Index: w, Cache: w, Router: w, Registry: w, Conns: w, Now: w.clock})
	if err != nil {
		t.Fatal(err)
	}
	return w, s
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

// arm adds a marker that is due.
func (w *world) arm(d *indexpb.Due) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if d.GetDueId() == "" {
		d.DueId = stream.NewID().String()
	}
	if d.GetAt() == 0 {
		d.At = w.now.UnixMilli()
	}
	w.put(d)
}

func place(queue string, at int64, id string) string {
	return fmt.Sprintf("%s/%016x-%s", queue, at, id)
}

func (w *world) put(d *indexpb.Due) int64 {
	w.version++
	w.due[place(d.GetQueue(), d.GetAt(), d.GetDueId())] = &indexpb.VersionedDue{Due: d, Version: w.version}
	return w.version
}

func (w *world) stream(name string, shard uint32) *indexpb.StreamDescriptor {
	d := &indexpb.StreamDescriptor{StreamId: stream.NewID().String(), Bucket: "bucket", Name: name, Shard: shard}
	w.streams[d.GetStreamId()] = d
	return d
}

func (w *world) removed() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.orphans)
}

// queue returns the markers of a queue, by time.
func (w *world) queue(name string) []*indexpb.Due {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []*indexpb.Due
	for _, v := range w.due {
		if v.GetDue().GetQueue() == name {
			out = append(out, v.GetDue())
		}
	}
	slices.SortFunc(out, func(a, b *indexpb.Due) int { return cmp.Compare(a.GetAt(), b.GetAt()) })
	return out
}

func (w *world) ListDue(_ context.Context, req *indexpb.ListDueRequest, _ ...grpc.CallOption) (*indexpb.ListDueResponse, error) {
	if err := w.failures["list "+req.GetQueue()]; err != nil {
		return nil, err
	}
	out := &indexpb.ListDueResponse{}
	markers := w.queue(req.GetQueue())
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range markers {
		v := w.due[place(d.GetQueue(), d.GetAt(), d.GetDueId())]
		if v != nil && d.GetAt() <= req.GetUntil() && len(out.GetDue()) < int(req.GetLimit()) {
			out.Due = append(out.Due, v)
		}
	}
	return out, nil
}

func (w *world) PutDue(_ context.Context, req *indexpb.PutDueRequest, _ ...grpc.CallOption) (*indexpb.PutDueResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	d := req.GetDue()
	old := w.due[place(d.GetQueue(), d.GetAt(), d.GetDueId())]
	if old == nil && req.GetExpectedVersion() != -1 || old != nil && old.GetVersion() != req.GetExpectedVersion() {
		return nil, reason.New(codes.Aborted, reason.VersionConflict, "another version")
	}
	return &indexpb.PutDueResponse{Version: w.put(d)}, nil
}

func (w *world) DeleteDue(_ context.Context, req *indexpb.DeleteDueRequest, _ ...grpc.CallOption) (*indexpb.DeleteDueResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	k := place(req.GetQueue(), req.GetAt(), req.GetDueId())
	if w.due[k].GetVersion() != req.GetExpectedVersion() {
		return nil, reason.New(codes.Aborted, reason.VersionConflict, "another version")
	}
	delete(w.due, k)
	return &indexpb.DeleteDueResponse{}, nil
}

func (w *world) RemoveOrphan(_ context.Context, req *indexpb.RemoveOrphanRequest, _ ...grpc.CallOption) (*indexpb.RemoveOrphanResponse, error) {
	if err := w.failures[req.GetStreamId()]; err != nil {
		return nil, err
	}
	if w.hold != nil {
		w.hold(req.GetStreamId())
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.orphans = append(w.orphans, req.GetStreamId())
	return &indexpb.RemoveOrphanResponse{}, nil
}

func (w *world) GetBucket(context.Context, *indexpb.GetBucketRequest, ...grpc.CallOption) (*indexpb.GetBucketResponse, error) {
	if w.bucket == nil {
		return nil, reason.New(codes.NotFound, reason.BucketNotFound, "none")
	}
	return &indexpb.GetBucketResponse{Bucket: w.bucket}, nil
}

func (w *world) UpdateBucket(_ context.Context, req *indexpb.UpdateBucketRequest, _ ...grpc.CallOption) (*indexpb.UpdateBucketResponse, error) {
	switch {
	case w.bucket == nil:
		return nil, reason.New(codes.NotFound, reason.BucketNotFound, "none")
	case w.bucket.GetState() != novapb.BucketState_BUCKET_STATE_ACTIVE:
		return nil, reason.New(codes.FailedPrecondition, reason.BucketDeleting, "it is being deleted")
	case req.GetConfig() != nil:
		return nil, errors.New("the reaper changes a setting")
	}
	w.touched++
	return &indexpb.UpdateBucketResponse{Bucket: w.bucket}, nil
}

func (w *world) ListStreams(_ context.Context, req *indexpb.ListStreamsRequest, _ ...grpc.CallOption) (*indexpb.ListStreamsResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := &indexpb.ListStreamsResponse{}
	for _, d := range w.streams {
		if len(out.GetStreams()) < int(req.GetLimit()) {
			out.Streams = append(out.Streams, d)
		}
	}
	out.HasMore = len(w.streams) > len(out.GetStreams())
	return out, nil
}

func (w *world) FinishDeleteBucket(_ context.Context, req *indexpb.FinishDeleteBucketRequest, _ ...grpc.CallOption) (*indexpb.FinishDeleteBucketResponse, error) {
	if len(w.streams) > 0 || !req.GetForce() {
		return nil, reason.New(codes.FailedPrecondition, reason.BucketNotEmpty, "streams are left")
	}
	w.bucket = nil
	return &indexpb.FinishDeleteBucketResponse{}, nil
}

func (w *world) ListDirectories(_ context.Context, req *indexpb.ListDirectoriesRequest, _ ...grpc.CallOption) (*indexpb.ListDirectoriesResponse, error) {
	out := &indexpb.ListDirectoriesResponse{}
	if d := w.rows[req.GetFrom()]; d != nil {
		out.Directories = append(out.Directories, d)
	}
	return out, nil
}

func (w *world) GetChain(context.Context, *indexpb.GetChainRequest, ...grpc.CallOption) (*indexpb.GetChainResponse, error) {
	if w.chain == nil {
		return nil, reason.New(codes.NotFound, reason.RowNotFound, "none")
	}
	return &indexpb.GetChainResponse{Chain: w.chain}, nil
}

func (w *world) DeleteObjects(_ context.Context, req *cachepb.DeleteObjectsRequest, _ ...grpc.CallOption) (*cachepb.DeleteObjectsResponse, error) {
	for _, o := range req.GetObjects() {
		delete(w.objects, o)
	}
	return &cachepb.DeleteObjectsResponse{}, nil
}

// GetExportState implements indexpb.IndexServiceClient: there are no exports.
func (w *world) GetExportState(context.Context, *indexpb.GetExportStateRequest, ...grpc.CallOption) (*indexpb.GetExportStateResponse, error) {
	return &indexpb.GetExportStateResponse{}, nil
}

// GetHead implements indexpb.IndexServiceClient: streams have none here.
func (w *world) GetHead(_ context.Context, req *indexpb.GetHeadRequest, _ ...grpc.CallOption) (*indexpb.GetHeadResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.streams[req.GetStreamId()] == nil {
		return nil, reason.New(codes.NotFound, reason.RowNotFound, "none")
	}
	return &indexpb.GetHeadResponse{Head: &indexpb.Head{StreamId: req.GetStreamId(), State: indexpb.HeadState_HEAD_STATE_ACTIVE}}, nil
}

func (w *world) FreeName(_ context.Context, req *indexpb.FreeNameRequest, _ ...grpc.CallOption) (*indexpb.FreeNameResponse, error) {
	w.freed = append(w.freed, req.GetStream()+" "+req.GetStreamId())
	return &indexpb.FreeNameResponse{}, nil
}

// Nodes implements Registry: there is no chain-writer.
func (w *world) Nodes(context.Context, discovery.Service) ([]discovery.Node, error) { return nil, nil }

// Address implements Connections.
func (w *world) Address(string) (grpc.ClientConnInterface, error) { return nil, errDown }

// DoIdempotent implements Router: each shard has a leader.
func (w *world) DoIdempotent(_ context.Context, shard stream.Shard, f func(grpc.ClientConnInterface) error) error {
	return f(leader{w, shard})
}

type leader struct {
	w     *world
	shard stream.Shard
}

func (l leader) Invoke(_ context.Context, _ string, args, _ any, _ ...grpc.CallOption) error {
	req, ok := args.(*sequencerpb.DeleteStreamRequest)
	if !ok {
		return fmt.Errorf("unexpected call %T", args)
	}
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	id := req.GetStream().GetStreamId()
	d := l.w.streams[id]
	if byBucket := l.w.bucket != nil; req.GetArmed() == byBucket {
		return errors.New("a delete has a marker of its own, and each try of it arms no more")
	}
	if d == nil {
		// It is deleted already: what may be left is its name.
		l.w.freed = append(l.w.freed, req.GetName()+" "+id)
		return nil
	}
	if stream.Shard(d.GetShard()) != l.shard || req.GetStream().GetShard() != d.GetShard() || req.GetName() != d.GetName() {
		return fmt.Errorf("shard %d has no stream as in %v", l.shard, req)
	}
	if err := l.w.failures[id]; err != nil {
		return err
	}
	delete(l.w.streams, id)
	l.w.deleted = append(l.w.deleted, id)
	return nil
}

func (l leader) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("no streams")
}

func drain(t *testing.T, s *Service, done, failed uint64) {
	t.Helper()
	got, err := s.Drain(t.Context(), &reaperpb.DrainRequest{})
	if err != nil || got.GetDone() != done || got.GetFailed() != failed {
		t.Fatalf("drained %v, %v; want %d done, %d failed", got, err, done, failed)
	}
}
