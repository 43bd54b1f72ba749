package integration

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// lines are what a program said that ended at once with code 1.
func lines(t *testing.T, cmd *exec.Cmd) []string {
	t.Helper()
	var out output
	cmd.Stdout, cmd.Stderr = &out, &out
	timer := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	err := cmd.Run()
	if code := cmd.ProcessState.ExitCode(); code != 1 {
		t.Errorf("exit code %d, %v", code, err)
	}
	return strings.Split(strings.TrimSpace(string(out.from(0))), "\n")
}

// A program that cannot start says why and what to do in one line, and ends with
// code 1 at once.
func TestProgramCannotStart(t *testing.T) {
	running := newProgram(t)
	running.start(t)
	for _, c := range []struct {
		name string
		make func(dir string) error
		args func(dir string) []string
		says []string
	}{
		{name: "directory in use", args: func(string) []string { return []string{"--dir", running.dir} },
			says: []string{running.dir, fmt.Sprint("pid ", running.cmd.Process.Pid), "stop that one"}},
		{name: "directory that cannot be made", args: func(string) []string { return []string{"--dir", "/proc/nova"} },
			says: []string{"/proc/nova", "choose one that this user may write"}},
		{name: "file in its place", make: func(dir string) error { return os.WriteFile(dir, nil, 0o600) },
			says: []string{"DIR", "choose one"}},
		{name: "file in the place of a folder", make: func(dir string) error {
			return errors.Join(os.MkdirAll(filepath.Join(dir, "objects"), 0o700), os.WriteFile(filepath.Join(dir, "objects", "tmp"), nil, 0o600))
		}, says: []string{"DIR/objects/tmp", "choose another"}},
		{name: "damaged metastore", make: func(dir string) error {
			return errors.Join(os.MkdirAll(filepath.Join(dir, "metadata"), 0o700),
				os.WriteFile(filepath.Join(dir, "metadata", "metastore.db"), []byte(strings.Repeat("noise", 1<<14)), 0o600))
		}, says: []string{"DIR/metadata/metastore.db", "damaged", "copy"}},
		{name: "port in use", args: func(string) []string { return []string{"--listen", running.address} },
			says: []string{"--listen " + running.address, "taken", "choose another port"}},
		{name: "HTTP port in use", args: func(string) []string { return []string{"--http-listen", running.address} },
			says: []string{"--http-listen " + running.address, "taken"}},
		{name: "admin port in use", args: func(string) []string { return []string{"--metrics-listen", running.admin} },
			says: []string{"--metrics-listen " + running.admin, "taken"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newProgram(t)
			if c.make != nil {
				if err := c.make(p.dir); err != nil {
					t.Fatal(err)
				}
			}
			var args []string
			if c.args != nil {
				args = c.args(p.dir)
			}
			// What was started already may have said so.
			said := slices.DeleteFunc(lines(t, p.command(args...)), func(line string) bool {
				return strings.Contains(line, "level=INFO") || strings.Contains(line, "level=WARN")
			})
			if len(said) != 1 {
				t.Errorf("%d lines: %q", len(said), said)
			}
			for _, want := range c.says {
				if !strings.Contains(said[0], strings.ReplaceAll(want, "DIR", p.dir)) {
					t.Errorf("it says %q, not %q", said[0], want)
				}
			}
		})
	}
	// A shell sets the limit: the program is to start with it.
	t.Run("full disk", func(t *testing.T) {
		p := newProgram(t)
		for _, room := range []string{"0", "8"} { // of 512 bytes
			cmd := p.command()
			cmd.Args = append([]string{"sh", "-c", "ulimit -f " + room + ` && exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
			cmd.Path, cmd.Err = exec.LookPath("sh")
			if said := lines(t, cmd); len(said) != 1 || !strings.Contains(said[0], p.dir) || !strings.Contains(said[0], "file too large") {
				t.Errorf("with room for %s: %q", room, said)
			}
		}
		p.start(t) // nothing half-made is in its way
	})
}

// Records whose metadata are gone are not hidden behind a new, empty node.
func TestProgramRefusesRecordsWithoutMetadata(t *testing.T) {
	p := newProgram(t)
	p.start(t)
	c := dial(t, p.address)
	c.create(t, "s", nil)
	c.append(t, 0, "s", "kept")
	p.kill()
	db, away := filepath.Join(p.dir, "metadata", "metastore.db"), filepath.Join(t.TempDir(), "away")
	if err := os.Rename(db, away); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the first try leaves nothing behind that lets the second pass
		said := lines(t, p.command())
		if last := said[len(said)-1]; !strings.Contains(last, "holds records but no metadata") || !strings.Contains(last, db) {
			t.Fatalf("it says %q", said)
		}
	}
	if err := os.Rename(away, db); err != nil {
		t.Fatal(err)
	}
	p.start(t)
	c = dial(t, p.address)
	c.expect(t, "s", 0, "kept")
}
