// Package oxiatest starts a real Oxia server for a test: the standalone one of
// tools/oxia on a free loopback port over a temporary directory.
package oxiatest

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	startTimeout = 30 * time.Second
	stopTimeout  = 5 * time.Second
	// shards is more than one, so that partitions matter.
	shards = "3"
)

// Start starts a server that is stopped at the end of the test and returns its
// address. If the test fails, the server's log is part of its output. A missing
// binary fails the test.
func Start(t testing.TB) string {
	t.Helper()
	return New(t).Address()
}

// Server is a server that a test may stop and start again.
type Server struct {
	t      testing.TB
	binary string
	dir    string
	log    *os.File

	mu      sync.Mutex // guards what follows
	address string     // the same after a restart
	cmd     *exec.Cmd
	exited  chan struct{}
}

// New is Start for a test that needs more than the address.
func New(t testing.TB) *Server {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "oxia.log"))
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, binary: find(t, "oxia"), dir: t.TempDir(), log: log, address: "127.0.0.1:0"}
	t.Cleanup(func() {
		s.Stop()
		_ = log.Close()
		if t.Failed() {
			if text, err := os.ReadFile(log.Name()); err == nil {
				t.Logf("oxia said:\n%s", text[max(0, len(text)-16<<10):])
			}
		}
	})
	s.Start()
	return s
}

// Address is where the server listens: host:port.
func (s *Server) Address() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.address
}

// Start starts a stopped server with the rows and the address it had.
func (s *Server) Start() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	cmd := exec.Command(s.binary, "--public-addr", s.address, "--dir", s.dir, "--shards", shards)
	cmd.Stderr = s.log
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.t.Fatalf("oxiatest: start %s: %v", s.binary, err)
	}
	s.cmd, s.exited = cmd, make(chan struct{})
	exited, serving := s.exited, make(chan string, 1)
	go func() {
		defer close(exited)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if address, ok := strings.CutPrefix(lines.Text(), "serving "); ok {
				serving <- address
			}
		}
		_ = cmd.Wait()
	}()
	select {
	case s.address = <-serving:
	case <-exited:
		s.t.Fatalf("oxiatest: oxia exited: %v", cmd.ProcessState)
	case <-time.After(startTimeout):
		s.t.Fatalf("oxiatest: oxia does not serve within %v", startTimeout)
	}
}

// Stop stops the server, by its process id. It may be started again.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(os.Interrupt)
}

// Kill stops the server as a crash would.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(os.Kill)
}

// Pause lets the server hang: it keeps its connections and answers nothing.
// The function it returns lets it go on.
func (s *Server) Pause() (resume func()) {
	s.t.Helper()
	s.mu.Lock()
	process := s.cmd.Process
	s.mu.Unlock()
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		s.t.Fatalf("oxiatest: pause: %v", err)
	}
	return func() { _ = process.Signal(syscall.SIGCONT) }
}

func (s *Server) end(sig os.Signal) {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Signal(sig)
	select {
	case <-s.exited:
	case <-time.After(stopTimeout):
		_ = s.cmd.Process.Kill()
		<-s.exited
	}
	s.cmd = nil
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
	t.Fatalf("oxiatest: %s is not in %v: run make tools", name, tried)
	return ""
}
