package constellation

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// patience is for what must happen.
const patience = time.Minute

// local is deploy/local over fake programs.
type local struct {
	scripts, bin, dir string
}

func newLocal(t *testing.T) *local {
	t.Helper()
	root, err := repository()
	if err != nil {
		t.Fatal(err)
	}
	// A name that a careless script would take apart.
	l := &local{scripts: filepath.Join(root, "deploy", "local"), bin: fakes(t), dir: filepath.Join(t.TempDir(), "a $dir's name")}
	t.Cleanup(func() {
		if _, err := os.Stat(l.dir); err == nil {
			_, _ = l.command("down").CombinedOutput()
		}
	})
	return l
}

func (l *local) command(script string, args ...string) *exec.Cmd {
	args = append([]string{"--dir", l.dir}, args...)
	if script == "up" {
		args = append(args, "--bin", l.bin)
	}
	cmd := exec.Command(filepath.Join(l.scripts, script), args...)
	cmd.Env = append(os.Environ(), "NOVA_TOOLS="+l.bin, "NOVA_LISTEN=127.0.0.1:1")
	return cmd
}

// run runs a script, which must exit with code, and returns what it said.
func (l *local) run(t *testing.T, code int, script string, args ...string) string {
	t.Helper()
	out, err := l.command(script, args...).CombinedOutput()
	got := 0
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	if got != code {
		t.Fatalf("%s %v: exit code %d, want %d\n%s", script, args, got, code, out)
	}
	return string(out)
}

func (l *local) says(t *testing.T, want string, code int, script string, args ...string) {
	t.Helper()
	if said := l.run(t, code, script, args...); !strings.Contains(said, want) {
		t.Fatalf("%s %v says\n%swithout %q", script, args, said, want)
	}
}

// pids are those of the processes by name.
func (l *local) pids(t *testing.T) map[string]int {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(strings.ReplaceAll(l.dir, "$", `\$`), "run", "pids", "*.pid"))
	if err != nil {
		t.Fatal(err)
	}
	pids := map[string]int{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		pids[strings.TrimSuffix(filepath.Base(file), ".pid")] = pid
	}
	return pids
}

func (l *local) endpoint(t *testing.T, key string) string {
	t.Helper()
	out, err := exec.Command("bash", "-c", `source "$0"; echo "${!1}"`, filepath.Join(l.dir, "run", "endpoints.env"), key).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func listens(address string) bool {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return false
	}
	return conn.Close() == nil
}

// gone waits until a process of nobody is no more.
func gone(t *testing.T, pid int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for syscall.Kill(pid, 0) == nil && !zombie(pid) {
		select {
		case <-ctx.Done():
			t.Fatalf("process %d does not end", pid)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func TestUpRestartDown(t *testing.T) {
	l := newLocal(t)
	l.says(t, "ready: 17 processes started", 0, "up", "--sequencers", "3")
	first := l.pids(t)
	for name, key := range map[string]string{
		"sequencer-3": "NOVA_SEQUENCER_3_GRPC", "chain-writer-2": "NOVA_CHAIN_WRITER_2_METRICS", "gateway-1": "NOVA_ADDR",
		"consul": "CONSUL_HTTP_ADDR", "oxia": "OXIA_ADDR",
	} {
		if address := l.endpoint(t, key); first[name] == 0 || !listens(address) {
			t.Fatalf("%s, pid %d, does not listen at %s=%q", name, first[name], key, address)
		}
	}
	l.says(t, "already running", 0, "up", "--sequencers=3")
	l.says(t, "end that first", 1, "up", "--restart", "reader-1")
	l.says(t, "there is no process nobody", 1, "up", "--restart", "nobody")

	address := l.endpoint(t, "NOVA_READER_1_GRPC")
	if err := syscall.Kill(first["reader-1"], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	gone(t, first["reader-1"])
	l.says(t, "reader-1 is ready again", 0, "up", "--restart", "reader-1")
	if l.endpoint(t, "NOVA_READER_1_GRPC") != address || !listens(address) {
		t.Fatalf("the reader does not listen at %s again", address)
	}
	l.says(t, "stopped 1 process", 0, "down", "cache-2")
	l.says(t, "1 processes started, 15 were running", 0, "up")
	last := l.pids(t)
	for name, pid := range first {
		if (last[name] == pid) == (name == "reader-1" || name == "cache-2") {
			t.Errorf("%s had pid %d and has %d", name, pid, last[name])
		}
	}
	l.says(t, "stopped 17 processes", 0, "down")
	for _, pid := range last {
		gone(t, pid)
	}
	l.says(t, "nothing runs", 0, "down")
	l.says(t, "ready: 16 processes started", 0, "up")
	if l.endpoint(t, "NOVA_READER_1_GRPC") != address {
		t.Error("the ports are others after down and up")
	}
}

// An up that fails names the process and shows what it said this time, and
// leaves nothing behind.
func TestUpNamesWhatFails(t *testing.T) {
	l := newLocal(t)
	l.run(t, 0, "up")
	l.run(t, 0, "down")
	for broken, name := range map[string]string{"nova-cache": "cache-1", "oxia": "oxia"} {
		file := filepath.Join(l.bin, "broken-"+broken)
		if err := os.WriteFile(file, []byte("no disk to be found"), 0o600); err != nil {
			t.Fatal(err)
		}
		said := l.run(t, 1, "up")
		if !strings.Contains(said, "up: "+name+" ended") || !strings.Contains(said, "no disk to be found") {
			t.Errorf("says\n%s", said)
		}
		if left := l.pids(t); len(left) > 0 {
			t.Errorf("left %v", left)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	port, err := net.Listen("tcp", l.endpoint(t, "OXIA_ADDR"))
	if err != nil {
		t.Fatal(err)
	}
	defer port.Close()
	l.says(t, "oxia cannot start: another process listens at", 1, "up")
	if left := l.pids(t); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

// down stops what an up left that was killed itself.
func TestDownAfterAHalfUp(t *testing.T) {
	l := newLocal(t)
	up := l.command("up")
	if err := up.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = up.Wait() }()
	deadline := time.Now().Add(patience)
	for len(l.pids(t)) == 0 {
		if time.Now().After(deadline) {
			t.Fatal("up starts nothing")
		}
		time.Sleep(time.Millisecond)
	}
	if err := up.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = up.Wait()
	left := l.pids(t)
	// One that was just made may record itself only now.
	said := l.run(t, 0, "down")
	_, after, _ := strings.Cut(said, "stopped ")
	n, _, _ := strings.Cut(after, " process")
	if stopped, err := strconv.Atoi(n); err != nil || stopped < len(left) {
		t.Fatalf("down says %q of %d processes", said, len(left))
	}
	for _, pid := range left {
		gone(t, pid)
	}
}

// A process that has by now the id of one of ours is left alone.
func TestStrangersAreLeftAlone(t *testing.T) {
	l := newLocal(t)
	l.run(t, 0, "up")
	stranger := exec.Command("sleep", "600")
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = stranger.Process.Kill()
		_ = stranger.Wait()
	}()
	pid := l.pids(t)["index-1"]
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	gone(t, pid)
	file := filepath.Join(l.dir, "run", "pids", "index-1.pid")
	if err := os.WriteFile(file, []byte(strconv.Itoa(stranger.Process.Pid)), 0o600); err != nil {
		t.Fatal(err)
	}
	l.says(t, "index-1 was not running", 0, "down")
	if zombie(stranger.Process.Pid) {
		t.Fatal("a stranger was stopped")
	}
}

func TestArgumentsAreChecked(t *testing.T) {
	l := newLocal(t)
	l.says(t, "unknown argument --sequencer", 2, "up", "--sequencer", "3")
	l.says(t, "--readers: none is not a number", 2, "up", "--readers", "none")
	l.says(t, "--lease-ttl needs a value", 2, "up", "--lease-ttl=")
	l.says(t, "unknown flag --all", 2, "down", "--all")
	l.says(t, "there is no constellation", 1, "up", "--restart", "oxia")
	l.says(t, "--restart NAME", 0, "up", "--help")
	l.says(t, "[NAME...]", 0, "down", "--help")
}
