package constellation

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// The scripts are tested with programs that only listen: this test's own binary,
// under the names of the real ones.
func TestMain(m *testing.M) {
	if name := os.Getenv("FAKE_PROGRAM"); name != "" {
		if err := pretend(name, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// listeners are the flags that name a port.
var listeners = map[string]bool{
	"--listen": true, "--metrics-listen": true, "--http-listen": true, // Nova
	"--public-addr": true, // Oxia
	"-http-port":    true, // Consul
	"--port":        true, // versitygw
}

// pretend listens where the arguments say, and answers every request of HTTP as
// a program that is ready, until it is told to stop.
func pretend(name string, args []string) error {
	if text, err := os.ReadFile(filepath.Join(os.Getenv("FAKE_DIR"), "broken-"+name)); err == nil {
		return fmt.Errorf("%s", text)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	for i, arg := range args {
		if !listeners[arg] {
			continue
		}
		address := args[i+1]
		if arg == "-http-port" {
			address = "127.0.0.1:" + address
		}
		l, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		go func() {
			_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprintln(w, `[{"Node":"local"}]`)
			}))
		}()
	}
	<-stop
	return nil
}

// fakes makes a folder of all programs and servers.
func fakes(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"oxia", "consul", "versitygw", "nova-sequencer", "nova-chain-writer", "nova-reader", "nova-cache",
		"nova-index", "nova-settler", "nova-reaper", "nova-gateway",
	} {
		script := fmt.Sprintf("#!/bin/sh\nFAKE_PROGRAM=%s FAKE_DIR='%s' exec '%s' \"$@\"\n", name, dir, self)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
