package integration

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/nova-stream/nova/libs/config"
	"github.com/nova-stream/nova/libs/metastore"
	metamem "github.com/nova-stream/nova/libs/metastore/mem"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/objectstore/mem"
	"github.com/nova-stream/nova/services/novad"
)

// shape is a way to deploy a constellation.
type shape interface {
	// start starts an empty one; it is stopped when the test ends.
	start(t *testing.T) deployment
}

// deployment is a constellation and its storage.
type deployment interface {
	// address is where its public gRPC API is.
	address() string
	// http is where its JSON API is.
	http() string
	// restart stops it in order and starts it again over the same storage.
	restart(t *testing.T)
}

// shapes are all that the suite runs on.
var shapes = []struct {
	name  string
	shape shape
	slow  bool
}{
	{"memory", memoryShape{}, false},
	{"dir", dirShape{}, false},
	{"split", splitShape{}, true},
}

// quickest is the test that a short run has on slow shapes, too.
const quickest = "TestAppendAndReadBack"

// eachShape runs a test once per shape.
func eachShape(t *testing.T, run func(t *testing.T, d deployment, c *client)) {
	onShapes(t, run, "memory", "dir", "split")
}

// onShapes runs a test once per named shape.
func onShapes(t *testing.T, run func(t *testing.T, d deployment, c *client), names ...string) {
	for _, s := range shapes {
		if !slices.Contains(names, s.name) || s.slow && testing.Short() && t.Name() != quickest {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			d := s.shape.start(t)
			run(t, d, dial(t, d.address()))
		})
	}
}

type memoryShape struct{}

func (memoryShape) start(t *testing.T) deployment {
	s := newStorage()
	return startSingle(t, func(t *testing.T) *novad.Node { return startNode(t, s.config(t)) })
}

type dirShape struct{}

func (dirShape) start(t *testing.T) deployment {
	dir := t.TempDir()
	return startSingle(t, func(t *testing.T) *novad.Node { return startNode(t, nodeConfig(t, "--dir", dir)) })
}

// single is one process with everything in it.
type single struct {
	launch func(*testing.T) *novad.Node
	node   *novad.Node
}

func startSingle(t *testing.T, launch func(*testing.T) *novad.Node) *single {
	s := &single{launch: launch, node: launch(t)}
	t.Cleanup(func() { stopNode(t, s.node) })
	awaitReady(t, s.node)
	return s
}

func (s *single) address() string { return s.node.Addr() }

func (s *single) http() string { return s.node.HTTPAddr() }

func (s *single) restart(t *testing.T) {
	t.Helper()
	stopNode(t, s.node)
	s.node = s.launch(t)
	awaitReady(t, s.node)
}

// storage outlives the nodes that use it.
type storage struct {
	objects  objectstore.Store
	metadata metastore.Store
}

func newStorage() storage { return storage{objects: mem.New(), metadata: metamem.New()} }

// config is that of a node over this storage.
func (s storage) config(t *testing.T, args ...string) novad.Config {
	cfg := nodeConfig(t, append([]string{"--dev"}, args...)...)
	cfg.WrapObjects = func(own objectstore.Store) objectstore.Store {
		return keptObjects{s.objects, own}
	}
	cfg.WrapMetastore = func(own metastore.Store) metastore.Store {
		return keptMetadata{s.metadata, own}
	}
	return cfg
}

// keptObjects are not closed with the node; own is what the node opened.
type keptObjects struct {
	objectstore.Store
	own objectstore.Store
}

func (k keptObjects) Close() error { return k.own.Close() }

type keptMetadata struct {
	metastore.Store
	own metastore.Store
}

func (k keptMetadata) Close() error { return k.own.Close() }

// nodeConfig is what the program makes of these arguments, on free ports.
func nodeConfig(t *testing.T, args ...string) novad.Config {
	t.Helper()
	var cfg novad.Config
	var complaint bytes.Buffer
	code := config.Program{
		Name: "novad", Flags: cfg.Flags, Check: cfg.Check,
		Run: func(context.Context) error { return nil },
	}.Execute(t.Context(), append([]string{"--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--metrics-listen", "", "--node-id", "node", "--log-level", logLevel()}, args...), nil, &complaint, &complaint)
	if code != 0 {
		t.Fatalf("novad %v: %s", args, complaint.String())
	}
	return cfg
}

// logLevel may be lowered, for looking at one failure.
func logLevel() string {
	if level := os.Getenv("NOVA_TEST_LOG"); level != "" {
		return level
	}
	return "error"
}

func startNode(t *testing.T, cfg novad.Config) *novad.Node {
	t.Helper()
	// Not t.Context, which ends before the cleanup that stops the node.
	n, err := novad.Start(context.Background(), cfg)
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	return n
}

func stopNode(t *testing.T, n *novad.Node) {
	t.Helper()
	if err := n.Close(); err != nil {
		t.Errorf("stop: %v", err)
	}
}

func awaitReady(t *testing.T, n *novad.Node) {
	t.Helper()
	eventually(t, readyLimit, n.Ready)
}

// eventually repeats check until it returns nil.
func eventually(t *testing.T, patience time.Duration, check func() error) {
	t.Helper()
	if err := poll(t.Context(), patience, check); err != nil {
		t.Fatalf("after %v: %v", patience, err)
	}
}

// poll repeats check until it returns nil, and returns its last error when
// patience or ctx ends first.
func poll(ctx context.Context, patience time.Duration, check func() error) error {
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func connect(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

var errNotServing = errors.New("health is not SERVING")

// serving returns nil when the node's health says SERVING.
func serving(ctx context.Context, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	res, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	if err == nil && res.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		return errNotServing
	}
	return err
}
