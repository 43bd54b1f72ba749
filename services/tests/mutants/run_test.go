//go:build mutants

package mutants

import (
	"context"
	"encoding/json"
	"fmt"
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// mutant is one broken rule.
type mutant struct {
	rule      string
	invariant string
	file      string // from the root of the repository
	old, new  string // old is in the file exactly once
	pkg       string // that holds the test, from the root of the repository
	test      string // fails when the rule is broken
}

const (
	root = "../../.."
	// atOnce is how many compilers and tests run at once.
	atOnce = 2
	// testTimeout ends a test that hangs: longer than any guard waits before it
	// fails by itself.
	testTimeout = 90 * time.Second
	// soundTimeout ends all guards of a package, one after another.
	soundTimeout = 10 * time.Minute
)

func TestMutants(t *testing.T) {
	b := &bench{turn: make(chan struct{}, atOnce), dir: t.TempDir(), sound: map[string]*soundRun{}}
	for _, m := range mutants {
		b.guards(m)
	}
	for i, m := range mutants {
		t.Run(m.rule, func(t *testing.T) {
			dir := filepath.Join(b.dir, fmt.Sprint(i))
			overlay := m.overlay(t, dir) // of all, before the first is compiled
			t.Parallel()
			b.turn <- struct{}{}
			defer func() { <-b.turn }()
			b.judge(t, m, dir, overlay)
		})
	}
}

// bench compiles and runs the guards.
type bench struct {
	turn  chan struct{}
	dir   string
	sound map[string]*soundRun // by package
}

// soundRun is one run of all guards of a package on the code as it is.
type soundRun struct {
	tests []string
	once  sync.Once
	out   string
	err   error
}

func (b *bench) guards(m mutant) {
	if b.sound[m.pkg] == nil {
		b.sound[m.pkg] = &soundRun{}
	}
	b.sound[m.pkg].tests = append(b.sound[m.pkg].tests, m.test)
}

func (b *bench) judge(t *testing.T, m mutant, dir, overlay string) {
	run := b.sound[m.pkg]
	run.once.Do(func() {
		run.out, run.err = runTests(t, dir, m.pkg, "", strings.Join(run.tests, "|"), soundTimeout)
	})
	if !strings.Contains(run.out, "--- PASS: "+m.test+" ") {
		t.Fatalf("%s does not pass on the code as it is: %v\n%s", m.test, run.err, run.out)
	}
	out, err := runTests(t, dir, m.pkg, overlay, m.test, testTimeout)
	// Anything else than the test's own verdict may have another cause.
	if err == nil || !strings.Contains(out, "--- FAIL: "+m.test+" ") {
		t.Fatalf("%s does not fail although the rule is broken (%s): %v\n%s", m.test, m.invariant, err, out)
	}
}

// overlay writes the broken file and the overlay that names it.
func (m mutant) overlay(t *testing.T, dir string) string {
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path, err := filepath.Abs(filepath.Join(root, m.file))
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(source), m.old); n != 1 {
		t.Fatalf("mutant is stale: %s holds %d times\n%s", m.file, n, m.old)
	}
	broken, err := format.Source([]byte(strings.Replace(string(source), m.old, m.new, 1)))
	if err != nil {
		t.Fatalf("mutant is no Go: %v", err)
	}
	mutated := filepath.Join(dir, "mutated.go")
	if err := os.WriteFile(mutated, broken, 0o644); err != nil {
		t.Fatal(err)
	}
	content, err := json.Marshal(map[string]map[string]string{"Replace": {path: mutated}})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, content, 0o644); err != nil {
		t.Fatal(err)
	}
	return overlay
}

// runTests compiles a package's tests, which must succeed, and runs some.
func runTests(t *testing.T, dir, pkg, overlay, pattern string, timeout time.Duration) (string, error) {
	t.Helper()
	if !regexp.MustCompile(`^[\w|]+$`).MatchString(pattern) {
		t.Fatalf("%q are no names of tests", pattern)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute+timeout) // with the compiler's part
	defer cancel()
	binary := filepath.Join(dir, "guards.test")
	defer func() { _ = os.Remove(binary) }() // else a hundred of them stay until the end
	folder := filepath.Join(root, pkg)
	compile := exec.CommandContext(ctx, "go", "test", "-c", "-ldflags=-w -s", "-overlay", overlay, "-o", binary, ".")
	compile.Dir = folder
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("%s does not compile: %v\n%s", pkg, err, out)
	}
	guards := exec.CommandContext(ctx, binary, "-test.v", "-test.run", "^("+pattern+")$", "-test.count", "1", "-test.timeout", timeout.String())
	guards.Dir = folder
	out, err := guards.CombinedOutput()
	return string(out), err
}
