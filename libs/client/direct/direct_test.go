package direct_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/libs/client/clienttest"
	"github.com/nova-stream/nova/libs/client/direct"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/discovery/consul"
	"github.com/nova-stream/nova/libs/discovery/consul/consultest"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/rpc"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	bucket        = "tests"
	name          = "log"
	constellation = "direct-test"
)

// world is services that a real Consul knows: what they store is in one place,
// and one sequencer at a time admits that it leads.
type world struct {
	store    *clienttest.Server
	id       string // of the stream
	agent    string
	registry *consul.Registry
	leader   atomic.Pointer[node]
	epoch    atomic.Uint64
}

// node is one server.
type node struct {
	address string
	asked   atomic.Int64 // calls that reached it
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{store: clienttest.New(), agent: consultest.Start(t)}
	w.id = w.store.Create(bucket, name)
	var err error
	if w.registry, err = consul.Open(consul.Config{Address: w.agent, Constellation: constellation, Check: consul.TTL}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.registry.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// start starts a node of a service; before may refuse each of its calls.
func (w *world) start(t *testing.T, s discovery.Service, id string, register func(grpc.ServiceRegistrar), before func(*node) error) *node {
	t.Helper()
	n := &node{}
	check := func() error {
		n.asked.Add(1)
		if before == nil {
			return nil
		}
		return before(n)
	}
	srv, err := rpc.NewServer(rpc.ServerConfig{Listen: "127.0.0.1:0", Options: rpc.Options{
		Unary: []grpc.UnaryServerInterceptor{func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
			if err := check(); err != nil {
				return nil, err
			}
			return h(ctx, req)
		}},
		Stream: []grpc.StreamServerInterceptor{func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
			if err := check(); err != nil {
				return err
			}
			return h(srv, ss)
		}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	n.address = srv.Address()
	register(srv)
	srv.Start()
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		srv.Stop(ctx)
	})
	if err := w.registry.Register(within(t), discovery.Node{ID: id, Service: s, Address: n.address}); err != nil {
		t.Fatal(err)
	}
	return n
}

func (w *world) startSequencer(t *testing.T, id string) *node {
	return w.start(t, discovery.Sequencer, id, w.store.Register, w.leads)
}

func (w *world) startIndex(t *testing.T) *node {
	return w.start(t, discovery.Index, "index", func(r grpc.ServiceRegistrar) { indexpb.RegisterIndexServiceServer(r, index{w: w}) }, nil)
}

func (w *world) startReader(t *testing.T) *node {
	return w.start(t, discovery.Reader, "reader", w.store.Register, nil)
}

// lead makes a node the leader of every shard.
func (w *world) lead(n *node) {
	w.epoch.Add(1)
	w.leader.Store(n)
}

// leads is NOT_LEADER unless n leads.
func (w *world) leads(n *node) error {
	l := w.leader.Load()
	if l == n {
		return nil
	}
	return reason.New(codes.FailedPrecondition, reason.NotLeader, "another leads", reason.KeyAddress, l.address, reason.KeyEpoch, reason.Text(w.epoch.Load()))
}

// index knows the one stream.
type index struct {
	indexpb.UnimplementedIndexServiceServer

	w *world
}

func (i index) ResolveStream(_ context.Context, r *indexpb.ResolveStreamRequest) (*indexpb.ResolveStreamResponse, error) {
	if r.GetStream() != name {
		return nil, reason.New(codes.NotFound, reason.StreamNotFound, "there is no stream "+r.GetStream())
	}
	return &indexpb.ResolveStreamResponse{Stream: &indexpb.StreamDescriptor{StreamId: i.w.id, Shard: 3}}, nil
}

func (w *world) dial(t *testing.T) *direct.Client {
	t.Helper()
	c, err := direct.Dial(direct.Options{Consul: w.agent, Constellation: constellation})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// within bounds everything that a test waits for.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func batch(bodies ...string) []*novapb.AppendRecord {
	out := make([]*novapb.AppendRecord, len(bodies))
	for i, b := range bodies {
		out[i] = &novapb.AppendRecord{Body: []byte(b)}
	}
	return out
}

func (w *world) append(t *testing.T, c *direct.Client, body string) (*novapb.AppendResponse, error) {
	t.Helper()
	return c.Appends.Append(within(t), &novapb.AppendRequest{Bucket: bucket, Stream: name, Records: batch(body)})
}

// wantStored checks that the bodies 0..n-1 are stored, each once.
func (w *world) wantStored(t *testing.T, n int) {
	t.Helper()
	stored := w.store.Records(bucket, name)
	for i, r := range stored {
		if string(r.GetBody()) != fmt.Sprint(i) {
			t.Fatalf("record %d is %q", i, r.GetBody())
		}
	}
	if len(stored) != n {
		t.Fatalf("%d records are stored, want %d", len(stored), n)
	}
}

// Records go to the leader and come from a reader; there is no gateway, and
// only what needs one fails, with its name.
func TestRecordsNeedNoGateway(t *testing.T) {
	w := newWorld(t)
	a, b := w.startSequencer(t, "a"), w.startSequencer(t, "b")
	w.startIndex(t)
	r := w.startReader(t)
	w.lead(b)
	if err := w.registry.PutHint(within(t), discovery.Hint{Shard: 3, Epoch: 1, Address: b.address}); err != nil {
		t.Fatal(err)
	}
	c := w.dial(t)

	s := c.OpenSession(within(t), client.SessionConfig{Bucket: bucket, Stream: name})
	for i := range 40 {
		if err := s.Send(within(t), batch(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	if p, err := s.Close(within(t)); err != nil || p.Records != 40 {
		t.Fatalf("session: %+v, %v", p, err)
	}
	res, err := w.append(t, c, "40")
	if err != nil || res.GetAck().GetFirstSeq() != 40 || res.GetStreamId() != w.id {
		t.Fatalf("append: %v, %v", res, err)
	}
	w.wantStored(t, 41)
	if a.asked.Load()+b.asked.Load() > 3 {
		t.Errorf("the leader was called %d times, the other %d times for a session and an append", b.asked.Load(), a.asked.Load())
	}

	page, err := c.Reads.Read(within(t), &novapb.ReadRequest{Bucket: bucket, Stream: name})
	if err != nil || len(page.GetRecords()) != 41 {
		t.Fatalf("read: %d records, %v", len(page.GetRecords()), err)
	}
	count := uint64(41)
	sub, err := c.Reads.Subscribe(within(t), &novapb.SubscribeRequest{Bucket: bucket, Stream: name, CountPresence: &novapb.SubscribeRequest_Count{Count: count}})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := sub.Recv(); err != nil || m.GetNextSeq() == 0 {
		t.Fatalf("subscribe: %v, %v", m, err)
	}
	if r.asked.Load() != 2 {
		t.Errorf("the reader was called %d times, want 2", r.asked.Load())
	}

	_, err = c.Buckets.GetBucket(within(t), &novapb.GetBucketRequest{Bucket: bucket})
	wantMissing(t, err, "no gateway", w)
}

// A session goes on at the next leader; nothing is lost and nothing is twice.
func TestSessionFollowsTheLeader(t *testing.T) {
	w := newWorld(t)
	a, b := w.startSequencer(t, "a"), w.startSequencer(t, "b")
	w.startIndex(t)
	w.lead(a)
	c := w.dial(t)
	s := c.OpenSession(within(t), client.SessionConfig{Bucket: bucket, Stream: name})
	next := 0
	send := func(n int) {
		t.Helper()
		for range n {
			if err := s.Send(within(t), batch(fmt.Sprint(next))); err != nil {
				t.Fatal(err)
			}
			next++
		}
	}
	for range 3 {
		send(10)
		if err := s.Flush(within(t)); err != nil {
			t.Fatal(err)
		}
		now, other := w.leader.Load(), b
		if now == b {
			other = a
		}
		before := other.asked.Load()
		// The session's leader notices at its next batch, stored or not.
		step, lost := clienttest.Taking, w.leads
		if other == b {
			step = clienttest.Stored
		}
		w.lead(other)
		var told atomic.Bool
		w.store.SetFault(func(at clienttest.Step) error {
			if at != step || told.Swap(true) {
				return nil
			}
			return lost(now)
		})
		send(10)
		if err := s.Flush(within(t)); err != nil {
			t.Fatal(err)
		}
		if !told.Load() || other.asked.Load() == before {
			t.Fatal("the session did not move")
		}
	}
	if _, err := s.Close(within(t)); err != nil {
		t.Fatal(err)
	}
	w.wantStored(t, next)
}

// What is not registered is named, at once, and nothing of an append is stored;
// once it is there, the same client works.
func TestWhatIsMissingIsNamed(t *testing.T) {
	w := newWorld(t)
	c := w.dial(t)
	_, err := w.append(t, c, "0")
	wantMissing(t, err, "no index and no sequencer", w)
	if reason.OutcomeOf(err) != reason.NotCommitted {
		t.Errorf("the append's outcome is %q", reason.OutcomeOf(err))
	}
	s := c.OpenSession(within(t), client.SessionConfig{Bucket: bucket, Stream: name})
	_ = s.Send(within(t), batch("0")) // fails or not
	_, err = s.Close(within(t))
	wantMissing(t, err, "no index and no sequencer", w)
	if reason.OutcomeOf(err) != reason.NotCommitted {
		t.Errorf("the session's outcome is %q", reason.OutcomeOf(err))
	}
	_, err = c.Reads.Read(within(t), &novapb.ReadRequest{Bucket: bucket, Stream: name})
	wantMissing(t, err, "no reader", w)
	_, err = c.Reads.Subscribe(within(t), &novapb.SubscribeRequest{Bucket: bucket, Stream: name})
	wantMissing(t, err, "no reader", w)

	w.startIndex(t)
	_, err = w.append(t, c, "0")
	wantMissing(t, err, "no sequencer", w)
	w.lead(w.startSequencer(t, "a"))
	if _, err := w.append(t, c, "0"); err != nil {
		t.Fatal(err)
	}
	w.wantStored(t, 1)
}

// A service that was there is waited for: it is expected back.
func TestAServiceThatGoesAwayIsWaitedFor(t *testing.T) {
	w := newWorld(t)
	w.startReader(t)
	c := w.dial(t)
	read := func(limit time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		_, err := c.Reads.Read(ctx, &novapb.ReadRequest{Bucket: bucket, Stream: name})
		return err
	}
	if err := read(time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := w.registry.Deregister(within(t), "reader"); err != nil {
		t.Fatal(err)
	}
	// Whether the client knows already, or still reaches it.
	if err := read(200 * time.Millisecond); err != nil && status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("while it is away: %v", err)
	}
	w.startReader(t)
	if err := read(time.Minute); err != nil {
		t.Errorf("when it is back: %v", err)
	}
}

func wantMissing(t *testing.T, err error, what string, w *world) {
	t.Helper()
	want := fmt.Sprintf("Consul at %s knows %s of the constellation %s", w.agent, what, constellation)
	if reason.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want FAILED_PRECONDITION: %s", err, want)
	}
}

// Sequencers and readers get only requests that a gateway would let through.
func TestRequestsAreCheckedHere(t *testing.T) {
	w := newWorld(t)
	a := w.startSequencer(t, "a")
	w.lead(a)
	w.startIndex(t)
	r := w.startReader(t)
	c := w.dial(t)
	_, err := w.append(t, c, strings.Repeat("x", 1<<20+1))
	if status.Code(err) != codes.InvalidArgument || reason.OutcomeOf(err) != reason.NotCommitted {
		t.Errorf("a record of more than 1 MiB: %v with outcome %q", err, reason.OutcomeOf(err))
	}
	_, err = c.Reads.Read(within(t), &novapb.ReadRequest{Bucket: bucket, Stream: ".."})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("a bad name: %v", err)
	}
	sub, err := c.Reads.Subscribe(within(t), &novapb.SubscribeRequest{Bucket: bucket, Stream: name, HeartbeatMs: 1})
	if err == nil {
		_, err = sub.Recv()
	}
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("a heartbeat of 1 ms: %v", err)
	}
	if a.asked.Load()+r.asked.Load() != 0 {
		t.Error("bad requests were sent")
	}
}

func TestAnAgentThatIsNotThereIsSaid(t *testing.T) {
	c, err := direct.Dial(direct.Options{Consul: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Reads.CheckTail(within(t), &novapb.CheckTailRequest{Bucket: bucket, Stream: name})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("got %v", err)
	}
	if _, err := direct.Dial(direct.Options{Constellation: "not a name"}); !errors.Is(err, discovery.ErrInvalid) {
		t.Errorf("a bad constellation: %v", err)
	}
}
