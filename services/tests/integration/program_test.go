package integration

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// readyLimit is how long a node may take to serve, or to serve again after a kill.
const readyLimit = time.Minute

// binaries is the folder of the built programs, removed by TestMain.
var binaries = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "nova-bin") })

// novadBinary and novaBinary build the programs, once for all tests.
var (
	novadBinary = sync.OnceValues(func() (string, error) { return build("novad") })
	novaBinary  = sync.OnceValues(func() (string, error) { return build("nova") })
)

func build(name string) (string, error) {
	dir, err := binaries()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	out, err := exec.Command("go", "build", "-o", path, "github.com/nova-stream/nova/services/cmd/"+name).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build %s: %w\n%s", name, err, out)
	}
	return path, nil
}

// program is the real novad on a directory, started, stopped and killed as a
// process.
type program struct {
	binary, dir string
	args        []string // more than those that start gives
	cmd         *exec.Cmd
	address     string // of gRPC
	admin       string
	log         output
	ended       chan struct{}
}

// newProgram is a program on an empty directory; it is killed when the test ends.
func newProgram(t *testing.T, args ...string) *program {
	t.Helper()
	binary, err := novadBinary()
	if err != nil {
		t.Fatal(err)
	}
	p := &program{binary: binary, dir: filepath.Join(t.TempDir(), "data"), args: args}
	t.Cleanup(func() {
		p.kill()
		if b := p.log.from(0); t.Failed() {
			t.Logf("end of the log:\n%s", b[max(0, len(b)-8<<10):])
		}
	})
	return p
}

// output is what processes said. They write into a pipe: what they may not
// write to files, they can still log.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

// from returns what was said after the first n bytes.
func (o *output) from(n int) []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return bytes.Clone(o.b.Bytes()[n:])
}

// command is the program on the directory, at free ports. The last of several
// flags of a name counts.
func (p *program) command(args ...string) *exec.Cmd {
	args = append([]string{"--dir", p.dir, "--node-id", "node", "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"}, args...)
	return exec.Command(p.binary, args...)
}

var listening = regexp.MustCompile(`grpc=(127\.0\.0\.1:\d+) http=\S+ admin=(127\.0\.0\.1:\d+)`)

// start starts the program and returns when its health says SERVING.
func (p *program) start(t *testing.T) {
	t.Helper()
	p.launch(t)
	conn := p.dial(t)
	defer conn.Close()
	eventually(t, readyLimit, func() error { return serving(t.Context(), conn) })
}

// launch starts the program and returns when it listens.
func (p *program) launch(t *testing.T) {
	t.Helper()
	at := len(p.log.from(0))
	p.cmd = p.command(p.args...)
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.ended = make(chan struct{})
	go func() {
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	eventually(t, readyLimit, func() error {
		m := listening.FindSubmatch(p.log.from(at))
		if m == nil {
			return errors.New("it does not say where it listens")
		}
		p.address, p.admin = string(m[1]), string(m[2])
		return nil
	})
}

func (p *program) dial(t *testing.T) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(p.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// kill is SIGKILL: nothing in the process learns of it.
func (p *program) kill() {
	if p.cmd == nil || p.ended == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// stop is SIGTERM. The program must end within limit; its exit code is returned.
func (p *program) stop(t *testing.T, limit time.Duration) int {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.ended:
	case <-time.After(limit):
		t.Fatalf("it runs %v after SIGTERM", limit)
	}
	return p.cmd.ProcessState.ExitCode()
}
