package config_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nova-stream/nova/libs/config"
)

type settings struct {
	listen  string
	ttl     time.Duration
	pool    int64
	dev     bool
	origins []string
	lanes   int
	shards  uint32
}

type result struct {
	settings
	code   int
	stdout string
	stderr string
	ran    string
}

// run executes a program with a config file, if file is not empty.
func run(t *testing.T, file string, env []string, args ...string) result {
	t.Helper()
	var r result
	if file != "" {
		path := filepath.Join(t.TempDir(), "nova.yaml")
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append([]string{"--config", path}, args...)
	}
	p := config.Program{
		Name: "nova-test", About: "Does nothing.",
		Flags: func(f *config.Flags) {
			f.String(&r.listen, "listen", "127.0.0.1:7780", "address of the gRPC listener")
			f.Duration(&r.ttl, "lease-ttl", 10*time.Second, "how long others wait")
			f.MiB(&r.pool, "append-pool-mib", 256, "bytes under way")
			f.Bool(&r.dev, "dev", false, "all in memory")
			f.Strings(&r.origins, "cors-origin", nil, "allowed origins")
			f.Int(&r.lanes, "put-lanes", 4, "uploads at once")
			f.Uint32(&r.shards, "shards", 256, "number of shards")
		},
		Check: func() error {
			if r.listen == "" {
				return errors.New("--listen must not be empty")
			}
			return nil
		},
		Run: func(context.Context) error {
			r.ran = "run"
			if r.listen == "broken" {
				return errors.New("it broke")
			}
			return nil
		},
		Commands: []config.Command{{Name: "restore", About: "rebuilds", Run: func(context.Context) error { r.ran = "restore"; return nil }}},
	}
	var stdout, stderr bytes.Buffer
	r.code = p.Execute(context.Background(), args, env, &stdout, &stderr)
	r.stdout, r.stderr = stdout.String(), stderr.String()
	return r
}

func TestPrecedence(t *testing.T) {
	file := "listen: file:1\nlease-ttl: 7d\nappend-pool-mib: 3\ndev: true\ncors-origin: [a, b]\nshards: 8\n"
	env := []string{"NOVA_LISTEN=env:1", "NOVA_LEASE_TTL=1m", "NOVA_CORS_ORIGIN=c,d", "NOVA_NOT_OURS=1", "LISTEN=x"}
	r := run(t, file, env, "--listen", "flag:1")
	want := settings{listen: "flag:1", ttl: time.Minute, pool: 3 << 20, dev: true, origins: []string{"c", "d"}, lanes: 4, shards: 8}
	if r.code != 0 || r.listen != want.listen || r.ttl != want.ttl || r.pool != want.pool || r.dev != want.dev ||
		!slices.Equal(r.origins, want.origins) || r.lanes != want.lanes || r.shards != want.shards {
		t.Errorf("got %+v, want %+v", r, want)
	}
	r = run(t, file, nil)
	if r.listen != "file:1" || r.ttl != 7*24*time.Hour || !slices.Equal(r.origins, []string{"a", "b"}) {
		t.Errorf("got %+v", r)
	}
}

func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		name string
		file string
		env  []string
		args []string
		code int
		ran  string
		says string // in standard error
	}{
		{name: "fine", ran: "run"},
		{name: "failure", args: []string{"--listen", "broken"}, code: 1, ran: "run", says: "it broke"},
		{name: "check", args: []string{"--listen="}, code: 2, says: "must not be empty"},
		{name: "unknown flag", args: []string{"--lisen", "x"}, code: 2, says: `did you mean "listen"?`},
		{name: "unknown key", file: "lease_ttl: 3s\n", code: 2, says: `unknown key "lease_ttl", did you mean "lease-ttl"?`},
		{name: "unlike any key", file: "zzzz: 3s\n", code: 2, says: `unknown key "zzzz"`},
		{name: "config in the file", file: "config: x\n", code: 2, says: "unknown key"},
		{name: "nested key", file: "listen: {a: b}\n", code: 2, says: "plain value"},
		{name: "list for one", file: "listen: [a]\n", code: 2, says: "one value"},
		{name: "wrong value in the file", file: "lease-ttl: soon\n", code: 2, says: "line 1: lease-ttl"},
		{name: "a wrong key counts though a flag is given", file: "lisen: x\n", args: []string{"--listen", "y"}, code: 2, says: "listen"},
		{name: "not YAML", file: ":\t:\n", code: 2, says: "--config"},
		{name: "no file", args: []string{"--config", "/nonexistent/x"}, code: 2, says: "no such file"},
		{name: "wrong value in the environment", env: []string{"NOVA_PUT_LANES=-1"}, code: 2, says: "NOVA_PUT_LANES"},
		{name: "an unknown variable", env: []string{"NOVA_PUT_LINES=-1"}, ran: "run"},
		{name: "negative size", args: []string{"--append-pool-mib=-1"}, code: 2, says: "append-pool-mib"},
		{name: "command", args: []string{"restore", "--dev"}, ran: "restore"},
		{name: "unknown command", args: []string{"restor"}, code: 2, says: `unknown command "restor"`},
		{name: "too many arguments", args: []string{"restore", "now"}, code: 2, says: `unexpected argument "now"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := run(t, c.file, c.env, c.args...)
			if r.code != c.code || r.ran != c.ran || !strings.Contains(r.stderr, c.says) || (c.says == "") != (r.stderr == "") {
				t.Errorf("code %d, ran %q, says %q; want %d, %q, %q", r.code, r.ran, r.stderr, c.code, c.ran, c.says)
			}
		})
	}
}

func TestHelpAndVersion(t *testing.T) {
	r := run(t, "", nil, "--help")
	for _, want := range []string{"Does nothing.", "--lease-ttl duration", "default 10s", "restore", "print-config", "--version"} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("the help lacks %q:\n%s", want, r.stdout)
		}
	}
	if r.code != 0 || r.ran != "" {
		t.Errorf("code %d, ran %q", r.code, r.ran)
	}
	if r := run(t, "", nil, "--version", "--listen="); r.code != 0 || r.stdout != "nova-test unknown\n" || r.ran != "" {
		t.Errorf("%+v", r)
	}
}

// What print-config prints is a config file that means the same.
func TestPrintConfig(t *testing.T) {
	first := run(t, "", nil, "print-config", "--lease-ttl", "36h", "--cors-origin", "a,b", "--append-pool-mib", "7", "--dev")
	if first.code != 0 || first.ran != "" || !strings.Contains(first.stdout, "lease-ttl: 1d12h\n") || !strings.Contains(first.stdout, "append-pool-mib: 7\n") {
		t.Fatalf("%+v", first)
	}
	second := run(t, first.stdout, nil, "print-config")
	if second.stdout != first.stdout {
		t.Errorf("got\n%swant\n%s", second.stdout, first.stdout)
	}
}

func TestDurations(t *testing.T) {
	for s, want := range map[string]time.Duration{
		"0s": 0, "500ms": 500 * time.Millisecond, "90s": 90 * time.Second, "1h": time.Hour, "2h30m": 150 * time.Minute,
		"7d": 168 * time.Hour, "1d12h": 36 * time.Hour, "1d1ms": 24*time.Hour + time.Millisecond, "1h0m5s": time.Hour + 5*time.Second,
	} {
		got, err := config.ParseDuration(s)
		if err != nil || got != want {
			t.Errorf("%q: %v, %v", s, got, err)
		}
		again, err := config.ParseDuration(config.FormatDuration(want))
		if err != nil || again != want {
			t.Errorf("%v is written as %q", want, config.FormatDuration(want))
		}
	}
	for _, s := range []string{"", "d", "1", "-1s", "1d-1s", "1.5d", "1dx", "999999999d", "1d+1s"} {
		if got, err := config.ParseDuration(s); err == nil {
			t.Errorf("%q is %v", s, got)
		}
	}
}
