package sequencer

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/chunk/chunktest"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/discovery/local"
	"github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/metastore/mem"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/rpc"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
	"github.com/nova-stream/nova/services/index" //nolint:depguard // the real rules of the records are part of what is tested
)

func TestMain(m *testing.M) {
	chunktest.Warm()
	goleak.VerifyTestMain(m)
}

// world is what outlives sequencers: the rows, one chain-writer, one stream
// after another in one bucket. The constellation has one shard.
type world struct {
	t        testing.TB
	rows     *fault.Store
	inproc   *rpc.Inproc
	registry *local.Registry
	// discovery, if set, is what a sequencer that starts sees of it.
	discovery Registry
	pool      *rpc.Pool
	writer    *writer
	index     indexpb.IndexServiceClient
	servers   int
	streams   int
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, rows: fault.New(mem.New()), inproc: rpc.NewInproc(rpc.Options{}), registry: local.New()}
	var err error
	if w.pool, err = rpc.NewPool(rpc.PoolConfig{Inproc: w.inproc, Registry: w.registry}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = w.pool.Close()
		_ = w.registry.Close()
	})
	w.index = w.newIndex(w.rows)
	if _, err := w.index.OpenConstellation(t.Context(), &indexpb.OpenConstellationRequest{ShardCount: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.index.CreateBucket(t.Context(), &indexpb.CreateBucketRequest{Bucket: "bucket"}); err != nil {
		t.Fatal(err)
	}
	w.writer = newWriter(catalog.New(w.index), rpc.Scheme+"writer")
	w.serve("writer", func(r grpc.ServiceRegistrar) { chainwriterpb.RegisterChainWriterServiceServer(r, w.writer) })
	if err := w.registry.Register(t.Context(), discovery.Node{ID: "writer", Service: discovery.ChainWriter, Address: w.writer.address}); err != nil {
		t.Fatal(err)
	}
	return w
}

// serve serves in this process until the test ends, and returns the connection.
func (w *world) serve(name string, register func(grpc.ServiceRegistrar)) grpc.ClientConnInterface {
	w.t.Helper()
	server, err := w.inproc.Server(name)
	if err != nil {
		w.t.Fatal(err)
	}
	register(server)
	server.Start()
	w.t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		server.Stop(ctx)
	})
	conn, err := w.pool.Address(server.Address())
	if err != nil {
		w.t.Fatal(err)
	}
	return conn
}

func (w *world) newIndex(rows *fault.Store) indexpb.IndexServiceClient {
	w.t.Helper()
	svc, err := index.New(index.Config{}, index.Deps{Store: rows})
	if err != nil {
		w.t.Fatal(err)
	}
	w.servers++
	return indexpb.NewIndexServiceClient(w.serve(fmt.Sprint("index", w.servers), svc.Register))
}

// leader is one sequencer at work.
type leader struct {
	*Service

	w       *world
	rows    *fault.Store // as this one sees them
	wire    *wire
	appends novapb.AppendServiceClient
	stop    func()
	cancel  func()        // begins a stop
	ended   chan struct{} // closed when Run has returned, with err
	err     error
}

// start starts a sequencer; it may not lead yet.
func (w *world) start(cfg Config) *leader {
	w.t.Helper()
	w.servers++
	l := &leader{w: w, rows: w.rows.Fork(), ended: make(chan struct{})}
	l.wire = &wire{pool: w.pool, dead: l.rows.Killed()}
	name := fmt.Sprint("sequencer", w.servers)
	cfg.NodeID, cfg.Address, cfg.Shards = name, rpc.Scheme+name, 1
	var registry Registry = w.registry
	if w.discovery != nil {
		registry = w.discovery
	}
	w.run(l, cfg, Deps{Index: w.newIndex(l.rows), Conns: l.wire, Registry: registry})
	return l
}

// run has a sequencer serve under its name and do its work until the test ends.
func (w *world) run(l *leader, cfg Config, deps Deps) {
	w.t.Helper()
	var err error
	if l.Service, err = New(cfg, deps); err != nil {
		w.t.Fatal(err)
	}
	l.appends = novapb.NewAppendServiceClient(w.serve(cfg.NodeID, l.Register))
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(l.ended)
		l.err = l.Run(ctx)
	}()
	l.cancel = cancel
	l.stop = sync.OnceFunc(func() {
		w.writer.release()
		cancel()
		<-l.ended
		l.names.Close()
	})
	w.t.Cleanup(l.stop)
}

// lead starts a sequencer and waits until it leads.
func (w *world) lead(cfg Config) *leader {
	w.t.Helper()
	l := w.start(cfg)
	eventually(w.t, "it leads", func() bool { return l.shard() != nil && l.shard().serving.Load() })
	return l
}

// shard is the only one; nil while the service does not know it.
func (l *leader) shard() *shard {
	select {
	case <-l.opened:
		return l.shards[0]
	default:
		return nil
	}
}

// holds reports whether the shard's record names this life.
func (l *leader) holds() bool {
	sh := l.shard()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.held
}

func (l *leader) epoch() stream.Epoch { return l.shard().currentEpoch() }

// stream makes a stream of the bucket.
func (w *world) stream(c *novapb.StreamConfig) *indexpb.StreamDescriptor {
	w.t.Helper()
	w.streams++
	res, err := w.index.CreateStream(w.t.Context(), &indexpb.CreateStreamRequest{Bucket: "bucket", Stream: fmt.Sprint("s", w.streams), Config: c})
	if err != nil {
		w.t.Fatal(err)
	}
	return res.GetStream()
}

// batch is an append request of records with these bodies.
func batch(d *indexpb.StreamDescriptor, bodies ...string) *novapb.AppendRequest {
	return &novapb.AppendRequest{Bucket: "bucket", Stream: d.GetName(), Records: records(bodies...)}
}

func records(bodies ...string) []*novapb.AppendRecord {
	var out []*novapb.AppendRecord
	for _, b := range bodies {
		out = append(out, &novapb.AppendRecord{Body: []byte(b)})
	}
	return out
}

// answer is what an append was told.
type answer struct {
	ack *novapb.AppendAck
	err error
}

// begin appends without waiting.
func (l *leader) begin(ctx context.Context, req *novapb.AppendRequest) <-chan answer {
	out := make(chan answer, 1)
	go func() {
		res, err := l.Append(ctx, req)
		out <- answer{res.GetAck(), err}
	}()
	return out
}

// pending is begin, and returns once the batch is numbered and under way, in an
// entry of its own.
func (l *leader) pending(req *novapb.AppendRequest) <-chan answer {
	l.w.t.Helper()
	_, before := l.numbered(req)
	out := l.begin(l.w.t.Context(), req)
	eventually(l.w.t, "it is under way", func() bool { _, now := l.numbered(req); return now > before || len(out) > 0 })
	return out
}

// numbered returns the name's stream in memory, and how many of its entries are
// under way: they have their place in the shard's line, which comes after their
// numbers.
func (l *leader) numbered(req *novapb.AppendRequest) (*openStream, int) {
	sh := l.shard()
	sh.mu.Lock()
	streams := slices.Collect(maps.Values(sh.streams))
	sh.mu.Unlock()
	for _, st := range streams {
		st.mu.Lock()
		name := st.descriptor.GetName()
		st.mu.Unlock()
		if name == req.GetStream() {
			return st, sh.inLine(st)
		}
	}
	return nil, 0
}

// inLine returns how many entries of a stream have a place in the shard's line.
func (sh *shard) inLine(st *openStream) (n int) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for _, e := range sh.pending {
		if e.st == st {
			n++
		}
	}
	return n
}

// state returns the committed extent of a stream.
func (l *leader) state(d *indexpb.StreamDescriptor) *sequencerpb.StreamState {
	l.w.t.Helper()
	res, err := l.GetState(l.w.t.Context(), &sequencerpb.GetStateRequest{Stream: key(d)})
	if err != nil {
		l.w.t.Fatal(err)
	}
	return res.GetState()
}

// depose has another life take the shard, and waits until this one knows.
func (l *leader) depose() *leader {
	l.w.t.Helper()
	// Who is declared dead at once must not be able to do the same.
	l.rows.SetOutage(true)
	next := l.w.lead(Config{FormerLivesDead: true, IdleStream: l.cfg.IdleStream})
	l.rows.SetOutage(false)
	receive(l.w.t, l.ended)
	return next
}

// append appends and wants an ack of these numbers.
func (l *leader) append(req *novapb.AppendRequest, first, next uint64) *novapb.AppendAck {
	l.w.t.Helper()
	res, err := l.Append(l.w.t.Context(), req)
	wantAck(l.w.t, answer{res.GetAck(), err}, first, next)
	return res.GetAck()
}

func wantAck(t testing.TB, a answer, first, next uint64) {
	t.Helper()
	if a.err != nil || a.ack.GetFirstSeq() != first || a.ack.GetNextSeq() != next {
		t.Fatalf("ack %v, %v; want numbers [%d, %d)", a.ack, a.err, first, next)
	}
}

// wantRefusal wants a failure with a reason that says that nothing was stored.
func wantRefusal(t testing.TB, err error, want reason.Reason) {
	t.Helper()
	wantFailure(t, err, want, reason.NotCommitted)
}

func wantFailure(t testing.TB, err error, want reason.Reason, outcome reason.Outcome) {
	t.Helper()
	if err == nil || want != "" && !reason.Is(err, want) || reason.OutcomeOf(err) != outcome {
		t.Fatalf("got %v with outcome %q, want %s with %s", err, reason.OutcomeOf(err), want, outcome)
	}
}
