package chainwriter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/chain/chaintest"
	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/discovery/local"
	metafault "github.com/nova-stream/nova/libs/metastore/fault"
	metamem "github.com/nova-stream/nova/libs/metastore/mem"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/objectstore/mem"
	"github.com/nova-stream/nova/libs/rpc"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cluster is the stores that chain-writers share.
type cluster struct {
	t       testing.TB
	objects *mem.Store
	rows    *metafault.Store

	mu    sync.Mutex
	conns map[string]grpc.ClientConnInterface // by address
}

func newCluster(t testing.TB) *cluster {
	return &cluster{t: t, objects: mem.New(), rows: metafault.New(metamem.New()), conns: map[string]grpc.ClientConnInterface{}}
}

// Address implements Connections.
func (c *cluster) Address(address string) (grpc.ClientConnInterface, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn := c.conns[address]; conn != nil {
		return conn, nil
	}
	return nil, errors.New("no such address")
}

// node is one running chain-writer and a connection to it.
type node struct {
	chainwriterpb.ChainWriterServiceClient

	svc     *Service
	address string
	objects *fault.Store
	rows    *metafault.Store
	stop    func()
}

func (c *cluster) start(cfg Config) *node {
	c.t.Helper()
	n := &node{objects: fault.New(c.objects), rows: c.rows.Fork()}
	c.mu.Lock()
	name := fmt.Sprint("writer", len(c.conns))
	c.mu.Unlock()
	n.address = rpc.Scheme + name
	cfg.Address = n.address
	var err error
	if n.svc, err = New(cfg, Deps{Objects: n.objects, Index: chaintest.NewIndex(n.rows), Conns: c}); err != nil {
		c.t.Fatal(err)
	}
	in := rpc.NewInproc(rpc.Options{})
	server, err := in.Server(name)
	if err != nil {
		c.t.Fatal(err)
	}
	n.svc.Register(server)
	server.Start()
	registry := local.New()
	pool, err := rpc.NewPool(rpc.PoolConfig{Inproc: in, Registry: registry})
	if err != nil {
		c.t.Fatal(err)
	}
	conn, err := pool.Address(server.Address())
	if err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	c.conns[n.address] = conn
	c.mu.Unlock()
	n.ChainWriterServiceClient = chainwriterpb.NewChainWriterServiceClient(conn)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = n.svc.Run(ctx) })
	n.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		_ = pool.Close()
		_ = registry.Close()
		ended, stop := context.WithTimeout(context.Background(), time.Second)
		defer stop()
		server.Stop(ended)
	})
	c.t.Cleanup(n.stop)
	return n
}

func (n *node) open(t testing.TB) string {
	t.Helper()
	res, err := n.OpenChain(t.Context(), &chainwriterpb.OpenChainRequest{Profile: uint32(stream.ProfileStandard)})
	if err != nil {
		t.Fatal(err)
	}
	return res.GetChainId()
}

// calls returns how many calls it made of the stores.
func (n *node) calls() (total int) {
	for _, k := range n.rows.Counts() {
		total += k.Calls
	}
	for _, k := range n.objects.Counts() {
		total += k.Calls
	}
	return total
}

// sender is one WriteEntries call; it gathers what it is told.
type sender struct {
	t      testing.TB
	str    chainwriterpb.ChainWriterService_WriteEntriesClient
	cancel context.CancelFunc
	done   chan struct{} // the call has ended

	mu       sync.Mutex
	commits  []*chainwriterpb.Commit
	refusals []*chainwriterpb.Refusal
	sealed   bool
	err      error
	credit   uint64
}

func (n *node) send(t testing.TB, chainID string) *sender {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	str, err := n.WriteEntries(ctx)
	if err != nil {
		t.Fatal(err)
	}
	s := &sender{t: t, str: str, cancel: cancel, done: make(chan struct{})}
	_ = str.Send(&chainwriterpb.WriteEntriesRequest{Message: &chainwriterpb.WriteEntriesRequest_Open{
		Open: &chainwriterpb.WriteEntriesOpen{ChainId: chainID, SequencerLife: stream.NewLifeID().String()},
	}})
	go func() {
		defer close(s.done)
		for {
			m, err := str.Recv()
			s.mu.Lock()
			if err != nil {
				s.err = err
				s.mu.Unlock()
				return
			}
			s.commits = append(s.commits, m.GetCommits()...)
			s.refusals = append(s.refusals, m.GetRefusals()...)
			s.sealed = s.sealed || m.GetChainSealed()
			s.credit = max(s.credit, m.GetCreditBytes())
			s.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-s.done
	})
	return s
}

func (s *sender) entry(e *chainwriterpb.Entry) {
	_ = s.str.Send(&chainwriterpb.WriteEntriesRequest{Message: &chainwriterpb.WriteEntriesRequest_Entry{Entry: e}})
}

func (s *sender) told() (commits []*chainwriterpb.Commit, refusals []*chainwriterpb.Refusal, sealed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.commits), slices.Clone(s.refusals), s.sealed
}

// await waits for a number of commits and refusals, and returns them.
func (s *sender) await(commits, refusals int) ([]*chainwriterpb.Commit, []*chainwriterpb.Refusal) {
	s.t.Helper()
	eventually(s.t, fmt.Sprintf("%d commits, %d refusals", commits, refusals), func() bool {
		c, r, _ := s.told()
		return len(c) >= commits && len(r) >= refusals
	})
	c, r, _ := s.told()
	if len(c) != commits || len(r) != refusals {
		s.t.Fatalf("%d commits, %d refusals (%v); want %d, %d", len(c), len(r), r, commits, refusals)
	}
	return c, r
}

var testStream = stream.NewID()

// token is a small entry: (shard, epoch, no).
func token(shard uint32, epoch, no uint64) *chainwriterpb.Entry {
	return &chainwriterpb.Entry{
		Kind: chainwriterpb.EntryKind_ENTRY_KIND_TOKEN, Shard: shard, Epoch: epoch, EntryNo: no, StreamId: testStream[:],
		Body: fmt.Appendf(nil, "%d/%d/%d", shard, epoch, no),
	}
}

func chunkEntry(t testing.TB, no uint64, size int) *chainwriterpb.Entry {
	t.Helper()
	body, _, err := chunk.Encode(nil, chunk.Input{StreamID: testStream, BaseSeq: stream.Seq(no), Batches: []chunk.InputBatch{
		{Records: []stream.Record{{Seq: stream.Seq(no), Timestamp: 1, Body: make([]byte, size)}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return &chainwriterpb.Entry{Kind: chainwriterpb.EntryKind_ENTRY_KIND_CHUNK, Epoch: 1, EntryNo: no, StreamId: testStream[:], Body: body}
}

// at reads the entry that a commit's coordinates name.
func (c *cluster) at(m *chainwriterpb.Commit) bundle.Entry {
	c.t.Helper()
	at := m.GetAt()
	key := chain.SlotKey(stream.ChainID(at.GetChainId()), stream.Slot(at.GetSlot()))
	o, err := c.objects.GetRange(context.Background(), key, objectstore.Range{Offset: int64(at.GetOffset()), Length: int64(at.GetLength())})
	if err != nil {
		c.t.Fatal(err)
	}
	e, err := bundle.ParseEntry(o.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return e
}

func (c *cluster) catalog() *catalog.Client { return catalog.New(chaintest.NewIndex(c.rows)) }

// slots returns how many objects the chain has.
func (c *cluster) slots(chainID string) int {
	c.t.Helper()
	infos, err := c.objects.List(context.Background(), "chain/"+chainID+"/", "", 1000)
	if err != nil {
		c.t.Fatal(err)
	}
	return len(infos)
}

// eventually polls until ok, for at most 30 s.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for until := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("%s: not within 30 s", what)
		}
	}
}
