// Package consultest starts a real Consul agent for a test, in development
// mode, on free loopback ports.
package consultest

import (
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/nova-stream/nova/libs/servertest"
)

const (
	startTimeout = 60 * time.Second
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

	t       testing.TB
	process *servertest.Process
	args    []string
}

// New is Start for a test that needs more than the address.
func New(t testing.TB) *Agent {
	t.Helper()
	a := &Agent{t: t, process: servertest.New(t, "consul")}
	var err error
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
	flags := []string{"-server-port", "-serf-lan-port", "-serf-wan-port", "-http-port"}
	ports, err := servertest.FreePorts(len(flags))
	if err != nil {
		return err
	}
	a.args = []string{
		"agent", "-dev", "-log-level", "warn", "-bind", "127.0.0.1", "-node", "test", "-disable-host-node-id",
		"-dns-port", "-1", "-grpc-port", "-1", "-grpc-tls-port", "-1", "-hcl", "connect { enabled = false }",
	}
	for i, flag := range flags {
		a.args = append(a.args, flag, strconv.Itoa(ports[i]))
	}
	a.Address = fmt.Sprintf("127.0.0.1:%d", ports[len(ports)-1])
	return nil
}

// Start starts a stopped agent, empty, at the same address.
func (a *Agent) Start() {
	a.t.Helper()
	var err error
	for range starts {
		if err = a.start(); err == nil {
			return
		}
		a.t.Logf("consultest: %v", err)
		time.Sleep(200 * time.Millisecond) // whoever has the port may leave it
	}
	a.t.Fatalf("consultest: %v", err)
}

func (a *Agent) start() error {
	if err := a.process.Start(nil, a.args...); err != nil {
		return err
	}
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
		case <-a.process.Exited():
			return errors.New("consul exited")
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not ready within %v: %w", startTimeout, err)
		}
	}
}

// Stop kills the agent, by its process id: a development agent has nothing to
// save. It may be started again.
func (a *Agent) Stop() { a.process.Kill() }
