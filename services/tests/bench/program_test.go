package bench

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// programsDir holds the built programs; TestMain removes it.
var programsDir string

// programs builds novad and nova as `make build` does, once, and returns their
// folder. NOVA_BIN names one with programs that are there already, of another
// version, say.
var programs = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv("NOVA_BIN"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.MkdirTemp("", "nova-bench-")
	if err != nil {
		return "", err
	}
	programsDir = dir
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", dir, "../../cmd/novad", "../../cmd/nova")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return dir, cmd.Run()
})

// launcher runs the programs: as processes, or, in a test, within this one.
type launcher interface {
	// node starts novad; it is stopped by stop, or at the end of the benchmark.
	node(tb testing.TB, args ...string) *node
	// nova runs nova to its end.
	nova(tb testing.TB, address string, in io.Reader, args ...string)
}

// node is a running novad.
type node struct {
	address, admin string
	pid            int // of a process of its own
	started        time.Time
	stop           func()
}

// processes runs real programs.
type processes struct{}

var _ launcher = processes{}

func (processes) path(tb testing.TB, name string) string {
	tb.Helper()
	dir, err := programs()
	if err != nil {
		tb.Fatalf("build: %v", err)
	}
	return filepath.Join(dir, name)
}

func (p processes) node(tb testing.TB, args ...string) *node {
	tb.Helper()
	cmd := exec.Command(p.path(tb, "novad"), append([]string{
		"--listen", "127.0.0.1:0", "--http-listen", "", "--metrics-listen", "127.0.0.1:0", "--log-json", "--node-id", "bench",
	}, args...)...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		tb.Fatal(err)
	}
	n := &node{started: time.Now()}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	n.pid = cmd.Process.Pid
	serving := make(chan string, 1)
	drained := make(chan string, 1)
	go func() { drained <- follow(stderr, n, serving) }()
	var once sync.Once
	n.stop = func() {
		once.Do(func() {
			_ = cmd.Process.Signal(syscall.SIGTERM)
			log := <-drained
			if err := cmd.Wait(); err != nil {
				tb.Errorf("novad: %v\n%s", err, log)
			}
		})
	}
	tb.Cleanup(n.stop)
	select {
	case <-serving:
	case log := <-drained:
		drained <- log
		tb.Fatalf("novad ended:\n%s", log)
	case <-time.After(time.Minute):
		tb.Fatal("novad does not start")
	}
	return n
}

// follow reads a node's log to its end, and returns it. serving learns of the
// line that says where the node listens.
func follow(r io.Reader, n *node, serving chan<- string) string {
	var all strings.Builder
	for lines := bufio.NewScanner(r); lines.Scan(); {
		all.WriteString(lines.Text() + "\n")
		var line struct{ Msg, GRPC, Admin string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "serving" {
			n.address, n.admin = line.GRPC, line.Admin
			serving <- line.GRPC
		}
	}
	return all.String()
}

func (p processes) nova(tb testing.TB, address string, in io.Reader, args ...string) {
	tb.Helper()
	cmd := exec.Command(p.path(tb, "nova"), append([]string{"--addr", address}, args...)...)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &out, &out
	if err := cmd.Run(); err != nil {
		tb.Fatalf("nova %s: %v\n%s", strings.Join(args, " "), err, out.String())
	}
}

// metric returns the sum of a metric's series that hold all the labels.
func metric(tb testing.TB, admin, name string, labels ...string) float64 {
	tb.Helper()
	res, err := http.Get("http://" + admin + "/metrics")
	if err != nil {
		tb.Fatal(err)
	}
	defer res.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	sum := 0.0
series:
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		rest, ok := strings.CutPrefix(lines.Text(), name)
		if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(rest, l) {
				continue series
			}
		}
		v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if err != nil {
			tb.Fatal(err)
		}
		sum += v
	}
	return sum
}
