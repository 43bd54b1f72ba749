package cmd_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/configuration.md")

const page = "../../docs/configuration.md"

// servers are the programs in the order of the page.
var servers = []string{
	"novad", "nova-gateway", "nova-sequencer", "nova-chain-writer", "nova-reader", "nova-settler", "nova-reaper", "nova-index", "nova-cache",
}

const intro = `# Configuration

Every server program takes its settings from flags, from environment variables, and from a YAML file named by ` + "`--config`" + ` whose
keys are the flags without the dashes. A flag beats the environment, that beats the file, that beats the default. Unknown flags and keys
are errors; unknown ` + "`NOVA_*`" + ` variables are ignored. Durations are written like 500ms, 90s, 1h30m or 7d; lists have commas, or are YAML
lists. ` + "`PROGRAM print-config`" + ` shows what is in effect. Exit codes: 0, 1 failure, 2 usage.

Traces and metrics go to an OpenTelemetry collector when ` + "`OTEL_EXPORTER_OTLP_ENDPOINT`" + ` names one (gRPC); the other ` + "`OTEL_*`" + ` variables of its
specification apply. Credentials of S3 come from the AWS SDK's usual chain, those of Consul from ` + "`CONSUL_HTTP_TOKEN`" + `.

This page is made from the programs by ` + "`make generate`" + `.
`

// bin is the folder of all programs, built once.
var bin string

func TestMain(m *testing.M) {
	flag.Parse()
	code := func() int {
		var err error
		if bin, err = os.MkdirTemp("", "nova-programs-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.RemoveAll(bin) }()
		build := exec.Command("go", "build", "-ldflags", "-s -w -X github.com/nova-stream/nova/libs/config.Version=v1.2.3", "-o", bin, "./...")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}()
	os.Exit(code)
}

// run runs a program and returns its exit code and output.
func run(t *testing.T, path string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := exec.Command(path, args...)
	cmd.Dir = t.TempDir() // a program that runs by mistake leaves its data there
	cmd.Env = []string{}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

func TestConfigurationPage(t *testing.T) {
	got := intro
	rows := map[string]string{} // flag -> its row in the first program that has it
	for _, name := range servers {
		code, out, errs := run(t, filepath.Join(bin, name), "print-flags")
		if code != 0 || errs != "" {
			t.Fatalf("%s: code %d, %s", name, code, errs)
		}
		got += "\n" + out
		for _, line := range strings.Split(out, "\n") {
			cells := strings.Split(line, "|")
			if len(cells) < 6 || !strings.Contains(cells[1], "--") {
				continue
			}
			f := strings.Fields(strings.Trim(cells[1], " `"))[0]
			if strings.TrimSpace(cells[4]) == "" {
				t.Errorf("%s %s has no help", name, f)
			}
			// Where a program listens is its own.
			if f == "--listen" || f == "--metrics-listen" {
				continue
			}
			if first, ok := rows[f]; ok && first != line {
				t.Errorf("%s of %s differs from other programs:\n%s\n%s", f, name, line, first)
			}
			rows[f] = line
		}
	}
	if *update {
		if err := os.WriteFile(page, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("docs/configuration.md is not current: run make generate")
	}
}

func TestCommonBehaviour(t *testing.T) {
	for _, name := range servers {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(bin, name)
			if code, out, _ := run(t, path, "--version"); code != 0 || out != name+" v1.2.3\n" {
				t.Errorf("--version: code %d, %q", code, out)
			}
			if code, out, _ := run(t, path, "--help"); code != 0 || !strings.Contains(out, "Usage: "+name) || !strings.Contains(out, "--log-level") {
				t.Errorf("--help: code %d, %q", code, out)
			}
			for _, args := range [][]string{{"--no-such-flag"}, {"no-such-command"}, {"--log-level", "loud"}, {"--config", "absent.yaml"}} {
				if code, _, errs := run(t, path, args...); code != 2 || !strings.HasPrefix(errs, name+": ") {
					t.Errorf("%v: code %d, %q; want 2", args, code, errs)
				}
			}
			// A service alone cannot find the others.
			if name != "novad" {
				if code, _, errs := run(t, path); code != 2 || !strings.Contains(errs, "--consul") {
					t.Errorf("without flags: code %d, %q", code, errs)
				}
			}
		})
	}
	if code, _, errs := run(t, filepath.Join(bin, "novad"), "restore", "--dev"); code != 1 || !strings.Contains(errs, "--dev keeps everything in memory") {
		t.Errorf("novad restore: code %d, %q", code, errs)
	}
	// A mistyped directory is not marked: the next restore, or start, of it is as of a new one.
	typo := filepath.Join(t.TempDir(), "typo")
	if code, _, errs := run(t, filepath.Join(bin, "novad"), "restore", "--dir", typo); code != 1 || !strings.Contains(errs, "no complete export") {
		t.Errorf("novad restore: code %d, %q", code, errs)
	}
	if _, err := os.Stat(filepath.Join(typo, "metadata")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it was marked: %v", err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "nova.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, "dir: %s\nlease-ttl: 1d\n", dir), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := run(t, filepath.Join(bin, "novad"), "print-config", "--config", file, "--zone", "a"); code != 0 ||
		!strings.Contains(out, "lease-ttl: 1d\n") || !strings.Contains(out, "zone: a\n") || !strings.Contains(out, "dir: "+dir+"\n") {
		t.Errorf("print-config: code %d, %s%s", code, out, errs)
	}
}
