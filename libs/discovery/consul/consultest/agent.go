// Package consultest starts a real Consul agent for a test, in development
// mode, on free loopback ports.
package consultest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
)

const (
	startTimeout = 30 * time.Second
	starts       = 3 // another process may take a port in between
)

// Start starts an agent that is stopped at the end of the test and returns the
// address of its HTTP API. If the test fails, the agent's log is part of its
// output. A missing binary fails the test.
func Start(t testing.TB) string {
	t.Helper()
	return New(t).Address
}

// Agent is an agent that a test may stop and start again. It keeps nothing.
type Agent struct {
	Address string // host:port of the HTTP API, the same after a restart

	t      testing.TB
	binary string
	log    *os.File
	args   []string
	cmd    *exec.Cmd
	exited chan struct{}
}

// New is Start for a test that needs more than the address.
func New(t testing.TB) *Agent {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "consul.log"))
	if err != nil {
		t.Fatal(err)
	}
	a := &Agent{t: t, binary: find(t, "consul"), log: log}
	t.Cleanup(func() {
		a.Stop()
		_ = log.Close()
		if t.Failed() {
			if text, err := os.ReadFile(log.Name()); err == nil {
				t.Logf("consul said:\n%s", text[max(0, len(text)-16<<10):])
			}
		}
	})
	for range starts {
		if err = a.choosePorts(); err == nil {
			err = a.start()
		}
		if err == nil {
			return a
		}
		t.Logf("consultest: %v", err)
	}
	t.Fatalf("consultest: consul does not start: %v", err)
	return nil
}

func (a *Agent) choosePorts() error {
	a.args = []string{
		"agent", "-dev", "-log-level", "warn", "-bind", "127.0.0.1", "-node", "test", "-disable-host-node-id",
		"-dns-port", "-1", "-grpc-port", "-1", "-grpc-tls-port", "-1", "-hcl", "connect { enabled = false }",
	}
	var open []net.Listener // all at once, so that no port is given twice
	defer func() {
		for _, l := range open {
			_ = l.Close()
		}
	}()
	for _, flag := range []string{"-server-port", "-serf-lan-port", "-serf-wan-port", "-http-port"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		open = append(open, l)
		a.Address = l.Addr().String() // in the end that of -http-port
		a.args = append(a.args, flag, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	}
	return nil
}

// Start starts a stopped agent, empty, at the same address.
func (a *Agent) Start() {
	a.t.Helper()
	if err := a.start(); err != nil {
		a.t.Fatalf("consultest: %v", err)
	}
}

func (a *Agent) start() error {
	cmd := exec.Command(a.binary, a.args...)
	cmd.Stdout, cmd.Stderr = a.log, a.log
	if err := cmd.Start(); err != nil {
		return err
	}
	a.cmd, a.exited = cmd, make(chan struct{})
	exited := a.exited
	go func() {
		defer close(exited)
		_ = cmd.Wait()
	}()
	err := a.awaitReady()
	if err != nil {
		a.Stop()
	}
	return err
}

// awaitReady waits for a leader that has the agent itself in its catalog.
func (a *Agent) awaitReady() error {
	client, err := api.NewClient(&api.Config{Address: a.Address})
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(startTimeout); ; {
		checks, _, err := client.Health().Node("test", nil)
		if err == nil && len(checks) > 0 {
			return nil
		}
		select {
		case <-a.exited:
			return fmt.Errorf("consul exited: %v", a.cmd.ProcessState)
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not ready within %v: %w", startTimeout, err)
		}
	}
}

// Stop kills the agent, by its process id: a development agent has nothing to
// save. It may be started again.
func (a *Agent) Stop() {
	if a.cmd == nil {
		return
	}
	_ = a.cmd.Process.Kill()
	<-a.exited
	a.cmd = nil
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
	t.Fatalf("consultest: %s is not in %v: run make tools", name, tried)
	return ""
}
