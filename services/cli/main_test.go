package cli

import (
	"bytes"
	"context"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/nova-stream/nova/libs/client/clienttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a server and the command line that talks to it.
type world struct {
	*clienttest.Server

	address string
	environ []string
	notices time.Duration // between lines about a wait
}

// begin returns a server with the empty stream tests/log.
func begin(t *testing.T) *world {
	t.Helper()
	s := clienttest.New()
	s.Create("tests", "log")
	w := &world{Server: s, address: s.Serve(t)}
	w.environ = []string{"NOVA_ADDR=" + w.address}
	return w
}

// output may be written by one goroutine and read by another.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// result of a command.
type result struct {
	code     int
	out, err string
}

func (w *world) run(t *testing.T, in string, args ...string) result {
	t.Helper()
	return w.runIn(t.Context(), strings.NewReader(in), args...)
}

func (w *world) runIn(ctx context.Context, in io.Reader, args ...string) result {
	var out, errs output
	code := Execute(ctx, args, Streams{In: in, Out: &out, Err: &errs, Environ: w.environ, notices: w.notices})
	return result{code, out.String(), errs.String()}
}

// must runs a command that succeeds and returns its output.
func (w *world) must(t *testing.T, in string, args ...string) string {
	t.Helper()
	r := w.run(t, in, args...)
	if r.code != 0 || r.err != "" {
		t.Fatalf("nova %s: exit %d, %s", strings.Join(args, " "), r.code, r.err)
	}
	return r.out
}

func (w *world) bodies() []string {
	var out []string
	for _, r := range w.Records("tests", "log") {
		out = append(out, string(r.GetBody()))
	}
	return out
}

func (w *world) stored(t *testing.T, want ...string) {
	t.Helper()
	if got := w.bodies(); !slices.Equal(got, want) {
		t.Errorf("stored %.200q, want %.200q", got, want)
	}
}

// eventually polls until ok, for as long as a busy machine may need.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}
