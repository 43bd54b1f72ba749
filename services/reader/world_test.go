package reader

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/chunk/chunktest"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/objectstore/mem"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/cache/v1"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
)

func TestMain(m *testing.M) {
	chunktest.Warm()
	goleak.VerifyTestMain(m)
}

// limit is how long a test waits for what must happen.
const limit = 30 * time.Second

// conn is a connection to a service that is a function.
type conn func(ctx context.Context, req, reply proto.Message) error

func (c conn) Invoke(ctx context.Context, _ string, req, reply any, _ ...grpc.CallOption) error {
	if ctx.Err() != nil {
		return reason.New(reason.Code(ctx.Err()), "", ctx.Err().Error())
	}
	return c(ctx, req.(proto.Message), reply.(proto.Message))
}

func (conn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, reason.New(codes.Unimplemented, "", "no streams here")
}

// world is a reader and what it works with: one leader that knows the streams,
// and the store that holds their chunks.
type world struct {
	t       *testing.T
	log     *safeBuffer
	objects *fault.Store
	svc     *Service

	mu      sync.Mutex
	names   map[string]*led // by name
	streams map[string]*led // by id
	// window: the leader answers with the chunks themselves.
	window bool
	// whole: pages are asked for as chunks; read makes records of them.
	whole bool
	// down, if set, is what the leader answers instead.
	down error
	// before, if set, is called before the leader answers a Fetch, without locks.
	before  func(req *sequencerpb.FetchRequest)
	fetches []*sequencerpb.FetchRequest
	// most, if set, is how many pieces the leader answers with.
	most int
	// cache, if set, may change what the cache answers.
	cache  func(res *cachepb.ReadRangeResponse) error
	cached int // calls of the cache
	// ahead is what the cache was to read ahead; it reads nothing.
	ahead   []string
	heads   int   // heads read
	headErr error // if set, what the index answers
	// onHead, if set, is called before a head is read, without locks.
	onHead func()
}

// led is a stream as its leader knows it.
type led struct {
	id              stream.ID
	chain           stream.ChainID
	shard           uint32
	slots           stream.Slot
	pieces          []*sequencerpb.Piece // At, and the chunk for the window
	lastTS          []int64              // of each piece
	trim, tail      uint64
	hash            stream.Hash
	time            int64
	sealed, deleted bool
	changed         chan struct{}

	// Records below settled are settled as far as the leader knows, the last of them
	// at settledTS.
	settled   uint64
	settledTS int64
	head      *indexpb.Head
	// Old reads of the head: the next ones.
	old []*indexpb.Head
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func newWorld(t *testing.T, cfg Config) *world {
	t.Helper()
	w := &world{t: t, log: &safeBuffer{}, objects: fault.New(mem.New()), names: map[string]*led{}, streams: map[string]*led{}}
	var err error
	w.svc, err = New(cfg, Deps{
		Index: indexpb.NewIndexServiceClient(conn(w.index)), Router: w, Cache: cachepb.NewCacheServiceClient(conn(w.readRange)),
		Objects: w.objects, Log: slog.New(slog.NewTextHandler(io.MultiWriter(w.log, io.Discard), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.close)
	return w
}

func (w *world) close() {
	w.svc.names.Close()
	w.svc.ahead.close()
}

// DoIdempotent makes the world a Router that knows where the leader is.
func (w *world) DoIdempotent(_ context.Context, _ stream.Shard, f func(grpc.ClientConnInterface) error) error {
	return f(conn(w.lead))
}

func (w *world) index(_ context.Context, req, reply proto.Message) error {
	if head, ok := req.(*indexpb.GetHeadRequest); ok {
		return w.getHead(head.GetStreamId(), reply)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.names[req.(*indexpb.ResolveStreamRequest).GetStream()]
	if s == nil {
		return reason.New(codes.NotFound, reason.StreamNotFound, "no such stream")
	}
	proto.Merge(reply, &indexpb.ResolveStreamResponse{Stream: &indexpb.StreamDescriptor{StreamId: s.id.String(), Shard: s.shard}})
	return nil
}

func (w *world) readRange(ctx context.Context, req, reply proto.Message) error {
	r := req.(*cachepb.ReadRangeRequest)
	w.mu.Lock()
	if r.GetLength() == 1 {
		w.ahead = append(w.ahead, fmt.Sprintf("%s@%d", r.GetObject(), r.GetOffset()))
		w.mu.Unlock()
		return nil
	}
	w.cached++
	change := w.cache
	w.mu.Unlock()
	o, err := w.objects.GetRange(ctx, r.GetObject(), objectstore.Range{Offset: int64(r.GetOffset()), Length: int64(r.GetLength())})
	if err != nil {
		if b, gerr := w.objects.Get(ctx, r.GetObject()); gerr == nil {
			return reason.New(codes.OutOfRange, "", fmt.Sprintf("%s has %d bytes", r.GetObject(), len(b.Body)))
		}
		return reason.New(codes.NotFound, reason.ObjectNotFound, "no "+r.GetObject())
	}
	res := &cachepb.ReadRangeResponse{Data: bytes.Clone(o.Body), ObjectSize: uint64(o.Size)}
	if change != nil {
		if err := change(res); err != nil {
			return err
		}
	}
	proto.Merge(reply, res)
	return nil
}

// lead is the sequencer.
func (w *world) lead(ctx context.Context, req, reply proto.Message) error {
	switch req := req.(type) {
	case *sequencerpb.GetStateRequest:
		w.mu.Lock()
		defer w.mu.Unlock()
		s, err := w.served(req.GetStream())
		if err == nil {
			proto.Merge(reply, &sequencerpb.GetStateResponse{State: s.state()})
		}
		return err
	case *sequencerpb.FetchRequest:
		return w.fetch(ctx, req, reply)
	}
	return reason.New(codes.Unimplemented, "", "not here")
}

func (w *world) served(key *sequencerpb.StreamKey) (*led, error) {
	s := w.streams[key.GetStreamId()]
	switch {
	case w.down != nil:
		return nil, w.down
	case s == nil || s.deleted:
		return nil, reason.New(codes.NotFound, reason.StreamNotFound, "the stream is deleted")
	case s.shard != key.GetShard():
		return nil, reason.New(codes.Internal, "", "asked for the wrong shard")
	}
	return s, nil
}

func (s *led) state() *sequencerpb.StreamState {
	return &sequencerpb.StreamState{Trim: s.trim, Tail: s.tail, LastTimestamp: s.time, ContentHash: uint64(s.hash), Sealed: s.sealed}
}

func (w *world) fetch(ctx context.Context, req *sequencerpb.FetchRequest, reply proto.Message) error {
	w.mu.Lock()
	w.fetches = append(w.fetches, proto.CloneOf(req))
	before := w.before
	w.mu.Unlock()
	if before != nil {
		before(req)
	}
	var wait <-chan time.Time
	for {
		w.mu.Lock()
		s, err := w.served(req.GetStream())
		if err != nil {
			w.mu.Unlock()
			return err
		}
		res, err := s.answer(req, w.window)
		if w.most > 0 && err == nil {
			res.Pieces = res.Pieces[:min(w.most, len(res.GetPieces()))]
		}
		changed := s.changed
		w.mu.Unlock()
		if err != nil || len(res.GetPieces()) > 0 || res.GetStartSeq() < res.GetSettledTo() || res.GetState().GetSealed() || req.GetWaitMs() == 0 {
			proto.Merge(reply, res)
			return err
		}
		if wait == nil {
			wait = time.After(time.Duration(req.GetWaitMs()) * time.Millisecond)
		}
		select {
		case <-changed:
		case <-wait:
			proto.Merge(reply, res)
			return nil
		case <-ctx.Done():
			return reason.New(reason.Code(ctx.Err()), "", "fetch: "+ctx.Err().Error())
		}
	}
}

func (s *led) answer(req *sequencerpb.FetchRequest, window bool) (*sequencerpb.FetchResponse, error) {
	start, seek := s.trim, false
	switch at := req.GetStart().(type) {
	case *sequencerpb.FetchRequest_Seq:
		start = at.Seq
		switch {
		case req.GetClamp():
			start = min(max(start, s.trim), s.tail)
		case start < s.trim:
			return nil, reason.New(codes.OutOfRange, reason.Trimmed, "trimmed", reason.KeyFirstSeq, reason.Text(s.trim))
		case start > s.tail:
			return nil, reason.New(codes.OutOfRange, reason.BeyondTail, "beyond the tail", reason.KeyTail, reason.Text(s.tail))
		}
	case *sequencerpb.FetchRequest_Timestamp:
		start = s.tail
		if s.trim < s.settled && at.Timestamp <= s.settledTS {
			start, seek = s.trim, true
		} else if i := slices.IndexFunc(s.lastTS, func(ts int64) bool { return ts >= at.Timestamp }); i >= 0 {
			start = max(s.pieces[i].GetBaseSeq(), s.trim)
		}
	case *sequencerpb.FetchRequest_TailOffset:
		start = max(s.trim, s.tail-min(s.tail, at.TailOffset))
	}
	res := &sequencerpb.FetchResponse{State: s.state(), StartSeq: start, SettledTo: s.settled, SeekSettled: seek}
	if start < s.settled {
		return res, nil
	}
	budget := int64(req.GetMaxBytes())
	for _, p := range s.pieces {
		if p.GetBaseSeq()+uint64(p.GetCount()) <= start {
			continue
		}
		if len(res.GetPieces()) > 0 && budget < int64(p.GetAt().GetLength()) {
			break
		}
		budget -= int64(p.GetAt().GetLength())
		p = proto.CloneOf(p)
		if !window {
			p.Chunk = nil
		}
		res.Pieces = append(res.Pieces, p)
	}
	return res, nil
}

// create makes a stream under a name, which it may take from another.
func (w *world) create(name string) *led {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &led{id: stream.NewID(), chain: stream.NewChainID(), shard: uint32(len(w.streams) + 1), time: 1000, changed: make(chan struct{})}
	w.names[name], w.streams[s.id.String()] = s, s
	return s
}

// change changes a stream and tells who waits.
func (w *world) change(s *led, f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	close(s.changed)
	s.changed = make(chan struct{})
}

// chunk commits one chunk of these bodies in a slot of its own; each record is
// 10 ms after the one before.
func (w *world) chunk(s *led, bodies ...string) {
	w.t.Helper()
	w.change(s, func() {
		in := chunk.Input{StreamID: s.id, BaseSeq: stream.Seq(s.tail), HashBefore: s.hash, Batches: make([]chunk.InputBatch, 1)}
		for i, b := range bodies {
			s.time += 10
			in.Batches[0].Records = append(in.Batches[0].Records, stream.Record{Seq: stream.Seq(s.tail) + stream.Seq(i), Timestamp: stream.Millis(s.time), Body: []byte(b)})
		}
		w.put(s, in)
	})
}

func (w *world) put(s *led, in chunk.Input) {
	w.t.Helper()
	body, h, err := chunk.Encode(nil, in)
	if err != nil {
		w.t.Fatal(err)
	}
	b := bundle.NewBuilder(s.chain, stream.NewFlightID(), stream.ProfileStandard)
	offset, length, err := b.Add(bundle.Entry{Kind: bundle.KindChunk, Shard: stream.Shard(s.shard), Epoch: 1, EntryNo: stream.EntryNo(s.slots), StreamID: s.id, Body: body})
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.objects.PutIfAbsent(context.Background(), chain.SlotKey(s.chain, s.slots), b.Finish(s.slots)); err != nil {
		w.t.Fatal(err)
	}
	s.pieces = append(s.pieces, &sequencerpb.Piece{
		BaseSeq: uint64(h.BaseSeq), Count: h.Count, Chunk: body,
		At: &chainwriterpb.Coordinates{ChainId: s.chain[:], Slot: uint64(s.slots), Offset: offset, Length: length},
	})
	s.lastTS = append(s.lastTS, int64(h.LastTimestamp))
	s.slots++
	s.tail, s.hash = uint64(h.Next()), h.HashAfter
}
