package servertest_test

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/nova-stream/nova/libs/servertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tool makes a tool of a shell script.
func tool(t *testing.T, script string) string {
	dir := t.TempDir()
	t.Setenv("NOVA_TOOLS", dir)
	if err := os.WriteFile(filepath.Join(dir, "tool"), []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	return "tool"
}

func TestProcessIsStartedStoppedAndStartedAgain(t *testing.T) {
	p := servertest.New(t, tool(t, "echo a warning >&2\necho serving $1\nexec sleep 60"))
	for _, arg := range []string{"first", "second"} {
		said := make(chan string, 1)
		read := func(r io.Reader) {
			lines := bufio.NewScanner(r)
			for lines.Scan() {
				said <- lines.Text()
			}
		}
		if err := p.Start(read, arg); err != nil {
			t.Fatal(err)
		}
		select {
		case line := <-said:
			if line != "serving "+arg {
				t.Errorf("said %q", line)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("said nothing")
		}
		if err := p.Start(nil); err == nil {
			t.Error("started twice at once")
		}
		p.Kill()
		<-p.Exited()
	}
	p.Stop() // of one that does not run
	if n := strings.Count(p.Said(1000), "a warning\n"); n != 2 {
		t.Errorf("the log has %d warnings, not those of both runs: %q", n, p.Said(1000))
	}
}

func TestFreePortsDiffer(t *testing.T) {
	ports, err := servertest.FreePorts(20)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for _, p := range ports {
		if p == 0 || seen[p] {
			t.Fatalf("ports %v", ports)
		}
		seen[p] = true
	}
}
