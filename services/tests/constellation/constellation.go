// Package constellation runs a split constellation for tests: every service a
// process of its own over real Oxia, Consul and S3 servers, started and stopped
// by deploy/local, built from the sources under test.
//
// However the test process ends, a guard stops the constellation and removes its
// directory: it waits at the end of a pipe that only the test process holds.
package constellation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Constellation is a running one.
type Constellation struct {
	scripts string // deploy/local
	dir     string
	up      []string // how it was started
	where   map[string]string
	seen    map[string]int // bytes of logs, by file

	guard *exec.Cmd
	hold  *os.File // the guard acts when this closes
}

// Start builds the programs and starts a constellation in a new temporary
// directory; flags are those of deploy/local/up, more are those of programs, by
// name: see Shared. Stop should follow.
func Start(ctx context.Context, more map[string][]string, flags ...string) (_ *Constellation, err error) {
	root, err := repository()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "nova-split")
	if err != nil {
		return nil, err
	}
	c := &Constellation{scripts: filepath.Join(root, "deploy", "local"), dir: dir, seen: map[string]int{}}
	if err := c.startGuard(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Stop())
		}
	}()
	bin := filepath.Join(dir, "bin")
	// Flags that change no package: what the test's own build compiled is used.
	build := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", bin+"/", "./cmd/...")
	build.Dir = filepath.Join(root, "services")
	// The programs as people run them, whatever the tests are built with.
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build: %w\n%s", err, out)
	}
	for program, flags := range more {
		if err := c.wrap(bin, program, flags); err != nil {
			return nil, err
		}
	}
	c.up = append([]string{"--dir", dir, "--bin", bin}, flags...)
	if err := c.Up(ctx); err != nil {
		return nil, err
	}
	return c, c.readEndpoints()
}

// wrap puts a script in a program's place, which becomes that program with more
// flags.
func (c *Constellation) wrap(bin, program string, flags []string) error {
	file := filepath.Join(bin, program)
	if err := os.Rename(file, file+".bin"); err != nil {
		return err
	}
	script := fmt.Sprintf("#!/usr/bin/env bash\nsource '%s'\nexec '%s' \"$@\" %s\n",
		filepath.Join(c.dir, "run", "endpoints.env"), file+".bin", strings.Join(flags, " "))
	return os.WriteFile(file, []byte(script), 0o700)
}

// repository is the folder that holds deploy/local, above the present one.
func repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "deploy", "local", "up")); err == nil {
			return dir, nil
		}
	}
	return "", errors.New("deploy/local/up is in no folder above the test's")
}

func (c *Constellation) startGuard() error {
	read, hold, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = read.Close() }() // the guard has its own
	const script = `read -r _; "$0/down" --dir "$1"; rm -rf "$1"`
	c.guard = exec.Command("bash", "-c", script, c.scripts, c.dir)
	c.guard.Stdin = read
	// It must outlive a Ctrl-C that ends the test.
	c.guard.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.guard.Start(); err != nil {
		_ = hold.Close()
		return fmt.Errorf("start the guard: %w", err)
	}
	c.hold = hold
	return nil
}

// Stop stops every process and removes the directory.
func (c *Constellation) Stop() error {
	_ = c.hold.Close()
	return c.guard.Wait()
}

func (c *Constellation) run(ctx context.Context, script string, args ...string) error {
	out, err := exec.CommandContext(ctx, filepath.Join(c.scripts, script), args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("deploy/local/%s %s: %w\n%s", script, strings.Join(args, " "), err, out)
	}
	return nil
}

// Up starts what is not running, and returns when it is ready.
func (c *Constellation) Up(ctx context.Context) error { return c.run(ctx, "up", c.up...) }

// Down stops processes in order.
func (c *Constellation) Down(ctx context.Context, names ...string) error {
	return c.run(ctx, "down", append([]string{"--dir", c.dir}, names...)...)
}

// Restart starts a process that has ended, at its old address.
func (c *Constellation) Restart(ctx context.Context, name string) error {
	return c.run(ctx, "up", "--dir", c.dir, "--restart", name)
}

// Kill is SIGKILL: nothing in the process learns of it. The process is gone when
// it returns, so that it can be started again.
func (c *Constellation) Kill(name string) error {
	pid, err := c.pid(name)
	if err == nil {
		err = syscall.Kill(pid, syscall.SIGKILL)
	}
	if err != nil {
		return err
	}
	const patience = time.Minute
	for began := time.Now(); syscall.Kill(pid, 0) == nil && !zombie(pid); time.Sleep(time.Millisecond) {
		if time.Since(began) > patience {
			return fmt.Errorf("%s, process %d, does not end", name, pid)
		}
	}
	return nil
}

// zombie reports whether a process has ended and its parent has not asked yet.
func zombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil { // gone by now, or not Linux
		out, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
		return err != nil || strings.HasPrefix(string(out), "Z")
	}
	return strings.HasPrefix(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " Z")
}

// Freeze lets a process hang: it keeps its connections and answers nothing,
// until Thaw.
func (c *Constellation) Freeze(name string) error { return c.signal(name, syscall.SIGSTOP) }

// Thaw lets a process go on.
func (c *Constellation) Thaw(name string) error { return c.signal(name, syscall.SIGCONT) }

func (c *Constellation) signal(name string, sig syscall.Signal) error {
	pid, err := c.pid(name)
	if err != nil {
		return err
	}
	return syscall.Kill(pid, sig)
}

func (c *Constellation) pid(name string) (int, error) {
	text, err := os.ReadFile(filepath.Join(c.dir, "run", "pids", name+".pid"))
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("pid of %s: %w", name, err)
	}
	return pid, nil
}

// All are the names of all processes.
func (c *Constellation) All() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(c.dir, "run", "pids"))
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".pid"))
	}
	return names, err
}

// Services are the names of all processes that are Nova's own.
func (c *Constellation) Services() ([]string, error) {
	names, err := c.All()
	return slices.DeleteFunc(names, func(name string) bool {
		return name == "oxia" || name == "consul" || name == "s3"
	}), err
}

func (c *Constellation) readEndpoints() error {
	text, err := os.ReadFile(filepath.Join(c.dir, "run", "endpoints.env"))
	if err != nil {
		return err
	}
	c.where = map[string]string{}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			c.where[key] = value
		}
	}
	return nil
}

// Endpoint is a value of run/endpoints.env, such as NOVA_ADDR.
func (c *Constellation) Endpoint(key string) string { return c.where[key] }

// Who returns the name of the process that serves gRPC at an address, "" if
// there is none.
func (c *Constellation) Who(address string) string {
	for key, value := range c.where {
		name, ok := strings.CutSuffix(key, "_GRPC")
		if ok && value == address {
			return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, "NOVA_")), "_", "-")
		}
	}
	return ""
}

// Errors are the lines of all logs at level error that no one has seen who called
// it before.
func (c *Constellation) Errors() ([]string, error) {
	logs, err := filepath.Glob(filepath.Join(c.dir, "run", "logs", "*.log"))
	if err != nil {
		return nil, err
	}
	var found []string
	for _, file := range logs {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		whole := bytes.LastIndexByte(text, '\n') + 1
		for line := range strings.Lines(string(text[min(c.seen[file], whole):whole])) {
			if strings.Contains(line, " level=ERROR ") {
				found = append(found, filepath.Base(file)+": "+line)
			}
		}
		c.seen[file] = whole
	}
	return found, nil
}

// Said returns the last n bytes of each log, for people.
func (c *Constellation) Said(n int) string {
	logs, err := filepath.Glob(filepath.Join(c.dir, "run", "logs", "*.log"))
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	for _, file := range logs {
		text, err := os.ReadFile(file)
		if err != nil {
			text = []byte(err.Error())
		}
		fmt.Fprintf(&b, "== %s\n%s\n", filepath.Base(file), text[max(0, len(text)-n):])
	}
	return b.String()
}
