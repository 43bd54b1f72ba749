package bench

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/libs/config"
	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/objectstore/fs"
	"github.com/nova-stream/nova/libs/objectstore/mem"
	"github.com/nova-stream/nova/libs/objectstore/s3"
	"github.com/nova-stream/nova/libs/objectstore/s3/s3test"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
	"github.com/nova-stream/nova/services/cli"
	"github.com/nova-stream/nova/services/novad"
)

// here runs the programs' code in this process.
type here struct{}

var _ launcher = here{}

func (here) node(tb testing.TB, args ...string) *node {
	tb.Helper()
	started := time.Now()
	n := startNode(tb, nodeConfig(tb, args...))
	return &node{address: n.Addr(), admin: n.AdminAddr(), started: started, stop: n.stop}
}

func (here) nova(tb testing.TB, address string, in io.Reader, args ...string) {
	tb.Helper()
	var out bytes.Buffer
	if code := cli.Execute(tb.Context(), args, cli.Streams{In: in, Out: &out, Err: &out, Environ: []string{"NOVA_ADDR=" + address}}); code != 0 {
		tb.Fatalf("nova %s: exit %d\n%s", strings.Join(args, " "), code, out.String())
	}
}

// nodeConfig is what novad makes of these arguments, on free ports.
func nodeConfig(tb testing.TB, args ...string) novad.Config {
	tb.Helper()
	var cfg novad.Config
	var said bytes.Buffer
	p := config.Program{Name: "novad", Flags: cfg.Flags, Check: cfg.Check, Run: func(context.Context) error { return nil }}
	args = append([]string{"--listen", "127.0.0.1:0", "--http-listen", "", "--metrics-listen", "127.0.0.1:0", "--node-id", "bench", "--log-level", "error"}, args...)
	if code := p.Execute(tb.Context(), args, nil, &said, &said); code != 0 {
		tb.Fatalf("novad %v: %s", args, said.String())
	}
	return cfg
}

type inside struct {
	*novad.Node

	stop func()
}

// startNode starts a node in this process and waits until it serves.
func startNode(tb testing.TB, cfg novad.Config) inside {
	tb.Helper()
	n, err := novad.Start(context.Background(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	var once sync.Once
	in := inside{Node: n}
	in.stop = func() {
		once.Do(func() {
			if err := n.Close(); err != nil {
				tb.Errorf("stop: %v", err)
			}
			n = nil // the cleanup must not keep the node's memory
		})
	}
	tb.Cleanup(in.stop)
	for end := time.Now().Add(time.Minute); in.Ready() != nil; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatal(in.Ready())
		}
	}
	return in
}

// dial connects the SDK.
func dial(tb testing.TB, address string) *client.Client {
	tb.Helper()
	c, err := client.Dial(address, client.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

// create makes the bucket that all measurements use; appends make their streams.
func create(tb testing.TB, c *client.Client) {
	tb.Helper()
	yes := true
	if _, err := c.Buckets.CreateBucket(tb.Context(), &novapb.CreateBucketRequest{
		Bucket: bucket, RequestToken: "bench", Config: &novapb.BucketConfig{CreateStreamOnAppendPresence: &novapb.BucketConfig_CreateStreamOnAppend{CreateStreamOnAppend: yes}},
	}); err != nil {
		tb.Fatal(err)
	}
}

const bucket = "bench"

// stores are the object stores that are measured. Metadata is in memory for
// each of them: appends do not need it.
var stores = []struct {
	name string
	open func(testing.TB) objectstore.Store
}{
	{"mem", func(testing.TB) objectstore.Store { return mem.New() }},
	{"dir", func(tb testing.TB) objectstore.Store { return opened(tb)(fs.Open(tb.TempDir())) }},
	{"s3", func(tb testing.TB) objectstore.Store {
		s := s3test.Start(tb)
		return opened(tb)(s3.Open(tb.Context(), s3.Config{
			Bucket: s.Bucket, Endpoint: s.Endpoint, Region: s.Region, PathStyle: true, Credentials: s.Credentials(),
		}))
	}},
}

// opened fails the benchmark if a store does not open.
func opened(tb testing.TB) func(objectstore.Store, error) objectstore.Store {
	return func(s objectstore.Store, err error) objectstore.Store {
		if err != nil {
			tb.Fatal(err)
		}
		return s
	}
}

// nodeOn starts a node over a store that outlives it, and metadata if not nil;
// the recorder sees its flights.
func nodeOn(tb testing.TB, store objectstore.Store, metadata metastore.Store, args ...string) (inside, *recorder) {
	tb.Helper()
	return nodeWith(tb, store, metadata, nodeConfig(tb, append([]string{"--dev"}, args...)...))
}

// nodeWith is nodeOn with a configuration.
func nodeWith(tb testing.TB, store objectstore.Store, metadata metastore.Store, cfg novad.Config) (inside, *recorder) {
	tb.Helper()
	r := &recorder{Store: store}
	cfg.WrapObjects = func(own objectstore.Store) objectstore.Store {
		r.own = own
		return r
	}
	if metadata != nil {
		cfg.WrapMetastore = func(own metastore.Store) metastore.Store { return keptMetadata{metadata, own} }
	}
	return startNode(tb, cfg), r
}

// keptMetadata is not closed with the node; own is what the node opened.
type keptMetadata struct {
	metastore.Store

	own metastore.Store
}

func (k keptMetadata) Close() error { return k.own.Close() }

// recorder notes the flights that a node puts. Close leaves the store open.
type recorder struct {
	objectstore.Store

	own objectstore.Store

	mu    sync.Mutex
	sizes []int    // since take
	keys  []string // of all
	times []time.Time
}

func (r *recorder) PutIfAbsent(ctx context.Context, key string, body []byte) (objectstore.ETag, error) {
	tag, err := r.Store.PutIfAbsent(ctx, key, body)
	if strings.HasPrefix(key, slots) {
		r.mu.Lock()
		r.sizes = append(r.sizes, len(body))
		r.keys = append(r.keys, key)
		r.times = append(r.times, time.Now())
		r.mu.Unlock()
	}
	return tag, err
}

func (r *recorder) Close() error { return r.own.Close() }

// take returns the sizes since the last call.
func (r *recorder) take() []int {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sizes
	r.sizes = nil
	return s
}

// written returns the keys of all flights.
func (r *recorder) written() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.keys
}

// slots is where chains keep their slots.
const slots = "chain/"

// random returns bytes that do not compress.
func random(n int) []byte {
	rng := rand.NewChaCha8([32]byte{1})
	b := make([]byte, n)
	_, _ = rng.Read(b)
	return b
}

// batchOf returns n records of size bytes each.
func batchOf(n, size int) []*novapb.AppendRecord {
	bytes := random(n * size)
	out := make([]*novapb.AppendRecord, n)
	for i := range out {
		out[i] = &novapb.AppendRecord{Body: bytes[i*size : (i+1)*size]}
	}
	return out
}
