// Package oxiatest starts a real Oxia server for a test: the standalone one of
// tools/oxia on a free loopback port over a temporary directory.
package oxiatest

import (
	"bufio"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nova-stream/nova/libs/servertest"
)

const (
	startTimeout = 60 * time.Second
	starts       = 5 // another process may have the port of a restart for a moment
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
	*servertest.Process
	t   testing.TB
	dir string

	mu      sync.Mutex
	address string // the same after a restart
}

// New is Start for a test that needs more than the address.
func New(t testing.TB) *Server {
	t.Helper()
	s := &Server{Process: servertest.New(t, "oxia"), t: t, dir: t.TempDir(), address: "127.0.0.1:0"}
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
	for range starts {
		if s.tryLocked() {
			return
		}
		s.Stop()
		time.Sleep(200 * time.Millisecond)
	}
	s.t.Fatal("oxiatest: oxia exited")
}

// tryLocked starts the server; false: it ended at once.
func (s *Server) tryLocked() bool {
	s.t.Helper()
	serving := make(chan string, 1)
	read := func(out io.Reader) {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if address, ok := strings.CutPrefix(lines.Text(), "serving "); ok {
				serving <- address
			}
		}
	}
	if err := s.Process.Start(read, "--public-addr", s.address, "--dir", s.dir, "--shards", shards); err != nil {
		s.t.Fatalf("oxiatest: %v", err)
	}
	select {
	case s.address = <-serving:
		return true
	case <-s.Exited():
		return false
	case <-time.After(startTimeout):
		s.t.Fatalf("oxiatest: oxia does not serve within %v", startTimeout)
	}
	return false
}
