package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/discovery/local"
	"github.com/nova-stream/nova/libs/rpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// diary notes what happens, in order.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) note(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

// part is a service that notes.
type part struct {
	name  string
	diary *diary
	fail  chan error
	mu    sync.Mutex
	why   error
}

func (p *part) Register(grpc.ServiceRegistrar) { p.diary.note("%s registers", p.name) }

func (p *part) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		p.diary.note("%s ends", p.name)
		return nil
	case err := <-p.fail:
		return err
	}
}

func (p *part) Ready() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.why
}

func (p *part) become(why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.why = why
}

// registry is discovery that notes departures and may be down.
type registry struct {
	*local.Registry
	diary *diary
	mu    sync.Mutex
	down  bool
}

func (r *registry) set(down bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = down
}

func (r *registry) Register(ctx context.Context, n discovery.Node) error {
	r.mu.Lock()
	down := r.down
	r.mu.Unlock()
	if down {
		return discovery.Fail("Register", n.ID, discovery.ErrUnavailable, "down")
	}
	return r.Registry.Register(ctx, n)
}

func (r *registry) Deregister(ctx context.Context, id string) error {
	r.diary.note("%s leaves", id)
	return r.Registry.Deregister(ctx, id)
}

func (r *registry) Close() error {
	r.diary.note("discovery closes")
	return r.Registry.Close()
}

type world struct {
	diary    *diary
	registry *registry
	inproc   *rpc.Inproc
	process  *Process
	group    *Group
}

func open(t *testing.T) *world {
	t.Helper()
	w := &world{diary: &diary{}, inproc: rpc.NewInproc(rpc.Options{})}
	w.registry = &registry{Registry: local.New(), diary: w.diary}
	s := Settings{NodeID: "n1", MetricsListen: "127.0.0.1:0", StopTimeout: time.Second, LogLevel: "error"}
	tel, err := OpenTelemetry(t.Context(), "test", &s)
	if err != nil {
		t.Fatal(err)
	}
	if w.process, err = Open(tel, &s, w.registry, w.inproc); err != nil {
		t.Fatal(err)
	}
	w.group = NewGroup(w.process)
	t.Cleanup(func() {
		w.group.Stop()
		if err := w.process.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) add(t *testing.T, s discovery.Service) *part {
	t.Helper()
	endpoint, err := w.inproc.Server(string(s))
	if err != nil {
		t.Fatal(err)
	}
	p := &part{name: string(s), diary: w.diary, fail: make(chan error)}
	w.group.Add(s, p, endpoint, "")
	return p
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

func TestStopOrder(t *testing.T) {
	w := open(t)
	w.add(t, discovery.Index)
	seq := w.add(t, discovery.Sequencer)
	eventually(t, "registered", func() bool { return w.group.Ready() == nil })
	w.group.listen(seq, func(context.Context) { w.diary.note("http closes") })
	w.group.Stop()
	if err := w.group.Ready(); err == nil {
		t.Error("ready after the stop")
	}
	if err := w.process.Close(); err != nil {
		t.Error(err)
	}
	want := []string{
		"index registers", "sequencer registers", "n1.sequencer leaves", "sequencer ends", "http closes", "n1.index leaves", "index ends", "discovery closes",
	}
	if !slices.Equal(w.diary.lines, want) {
		t.Errorf("got  %q\nwant %q", w.diary.lines, want)
	}
}

func TestReadinessSaysWhy(t *testing.T) {
	w := open(t)
	w.registry.set(true)
	p := w.add(t, discovery.Sequencer)
	admin, err := w.group.OpenAdmin("test")
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Stop(t.Context())
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	readyz := func() (int, string) {
		res, err := client.Get("http://" + admin.Addr() + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(body)
	}
	eventually(t, "the registration's failure is told", func() bool {
		code, body := readyz()
		return code == http.StatusServiceUnavailable && strings.Contains(body, "discovery unavailable")
	})
	w.registry.set(false)
	eventually(t, "ready", func() bool { code, _ := readyz(); return code == http.StatusOK })
	p.become(errors.New("sequencer: 3 shards are being recovered"))
	if code, body := readyz(); code != http.StatusServiceUnavailable || !strings.Contains(body, "3 shards") {
		t.Errorf("%d %s", code, body)
	}
}

func TestServiceThatEndsByItself(t *testing.T) {
	w := open(t)
	p := w.add(t, discovery.Sequencer)
	gone := errors.New("declared dead")
	p.fail <- gone
	select {
	case err := <-w.group.Failed():
		if !errors.Is(err, gone) || !strings.Contains(err.Error(), "sequencer") {
			t.Errorf("got %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Error("nobody was told")
	}
}

// The public health service says SERVING only once every part is ready.
func TestPublicHealth(t *testing.T) {
	w := open(t)
	seq := w.add(t, discovery.Sequencer)
	seq.become(errors.New("starting"))
	public := Public{Listen: "127.0.0.1:0"}
	endpoint, err := public.Endpoint(w.process)
	if err != nil {
		t.Fatal(err)
	}
	w.group.Add(discovery.Gateway, &part{name: "gateway", diary: w.diary}, endpoint, "")
	pool, err := rpc.NewPool(rpc.PoolConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	conn, err := pool.Address(endpoint.Address())
	if err != nil {
		t.Fatal(err)
	}
	check := func() healthpb.HealthCheckResponse_ServingStatus {
		res, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return res.GetStatus()
	}
	if got := check(); got != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("while starting: %v", got)
	}
	seq.become(nil)
	eventually(t, "serving", func() bool { return check() == healthpb.HealthCheckResponse_SERVING })
	w.group.Stop()
	if _, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("after the stop: %v", err)
	}
}

func TestLockDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	lock, err := LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = LockDir(dir)
	if err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "pid ") || !strings.Contains(err.Error(), "another directory") {
		t.Errorf("taken twice: %v", err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := LockDir(dir)
	if err != nil {
		t.Fatalf("after it was given back: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
	if _, err := LockDir("/proc/nova"); err == nil || !strings.Contains(err.Error(), "--dir /proc/nova") || !strings.Contains(err.Error(), "choose") {
		t.Errorf("where nothing can be made: %v", err)
	}
}

func TestPublicCheck(t *testing.T) {
	for _, c := range []struct {
		public Public
		says   string
	}{
		{Public{Listen: "127.0.0.1:1", HTTPListen: "localhost:2"}, ""},
		{Public{Listen: "[::1]:1"}, ""},
		{Public{Listen: ":1"}, "--auth"},
		{Public{Listen: "127.0.0.1:1", HTTPListen: "0.0.0.0:2"}, "--auth must be said"},
		{Public{Listen: "0.0.0.0:1", Auth: "off"}, ""},
		{Public{Listen: "127.0.0.1:1", Auth: "tokens"}, "not available"},
		{Public{Listen: "127.0.0.1:1", Auth: "on"}, "neither"},
		{Public{Listen: "nowhere"}, "--listen"},
		{Public{Listen: "127.0.0.1:1", Cert: "c"}, "--tls-key"},
		{Public{Listen: "127.0.0.1:1", ClientCA: "c"}, "--tls-cert"},
	} {
		err := c.public.Check()
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v, want %q", c.public, err, c.says)
		}
	}
}
