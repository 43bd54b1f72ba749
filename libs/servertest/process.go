// Package servertest runs the real servers that tests need, such as Oxia,
// Consul and an S3 server: it finds the pinned binary, keeps the log and stops
// the process by its id. A missing binary fails the test; nothing is skipped.
package servertest

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// stopTimeout is how long a server may take to stop before it is killed.
const stopTimeout = 5 * time.Second

// Process is one server of a test. It may be stopped and started again; its log
// goes on, and is part of the test's output if the test fails. Safe for
// concurrent use.
type Process struct {
	t      testing.TB
	binary string
	log    *os.File

	mu     sync.Mutex // guards what follows
	cmd    *exec.Cmd
	exited chan struct{} // closed when cmd has ended
}

// New finds the binary; nothing runs yet. The process is stopped at the end of
// the test.
func New(t testing.TB, name string) *Process {
	t.Helper()
	p := &Process{t: t, binary: find(t, name)}
	log, err := os.Create(filepath.Join(t.TempDir(), name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	p.log = log
	t.Cleanup(func() {
		p.Stop()
		if t.Failed() {
			t.Logf("%s said:\n%s", name, p.Said(16<<10))
		}
		_ = log.Close()
	})
	return p
}

// Start starts the server. If lines is set, it is given standard output, which
// is else part of the log, and must return at its end.
func (p *Process) Start(lines func(io.Reader), args ...string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil {
		return fmt.Errorf("%s runs already", p.binary)
	}
	cmd := exec.Command(p.binary, args...)
	cmd.Stdout, cmd.Stderr = p.log, p.log
	var out io.Reader
	if lines != nil {
		cmd.Stdout = nil
		var err error
		if out, err = cmd.StdoutPipe(); err != nil {
			return err
		}
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.binary, err)
	}
	exited := make(chan struct{})
	p.cmd, p.exited = cmd, exited
	go func() {
		defer close(exited)
		if out != nil {
			lines(out)
		}
		_ = cmd.Wait()
	}()
	return nil
}

// Exited is closed when the server that was started last has ended.
func (p *Process) Exited() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exited
}

// Said returns the last n bytes of the log.
func (p *Process) Said(n int) string {
	text, err := os.ReadFile(p.log.Name())
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-n):])
}

// Stop asks the server to stop, and kills it if it does not.
func (p *Process) Stop() { p.end(os.Interrupt) }

// Kill stops the server as a crash would.
func (p *Process) Kill() { p.end(os.Kill) }

// Pause lets the server hang: it keeps its connections and answers nothing.
// The function it returns lets it go on.
func (p *Process) Pause() (resume func()) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	process := p.cmd.Process
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		p.t.Fatalf("pause %s: %v", p.binary, err)
	}
	return func() { _ = process.Signal(syscall.SIGCONT) }
}

func (p *Process) end(sig os.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Signal(sig)
	select {
	case <-p.exited:
	case <-time.After(stopTimeout):
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
	p.cmd = nil
}

// FreePorts returns n free TCP ports of the loopback interface, all different.
// Another process may take one before it is used: try again then.
func FreePorts(n int) ([]int, error) {
	ports := make([]int, n)
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }() // after all are chosen, so that none is given twice
		ports[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports, nil
}

// find returns the path of a pinned tool: in $NOVA_TOOLS, or in .tools/bin of
// the repository.
func find(t testing.TB, name string) string {
	t.Helper()
	tried := []string{os.Getenv("NOVA_TOOLS")}
	if tried[0] == "" {
		dir, err := os.Getwd()
		if err != nil {
			t.Fatal(err)
		}
		tried = tried[:0]
		for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
			tried = append(tried, filepath.Join(dir, ".tools", "bin"))
		}
	}
	for _, dir := range tried {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && !info.IsDir() {
			return path
		}
	}
	t.Fatalf("%s is not in %v: run make tools", name, tried)
	return ""
}
