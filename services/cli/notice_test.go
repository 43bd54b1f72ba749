package cli

import (
	"net"
	"strings"
	"testing"
	"time"
)

// Who appends through a pipe is told what it waits for, again and again, and
// nothing once it does not wait.
func TestAppendTellsWhatItWaitsFor(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for _, c := range []struct {
		name, address, why string
		args               []string
	}{
		{"nobody listens", "127.0.0.1:1", "connection refused", nil},
		{"nobody listens, to be created", "127.0.0.1:1", "connection refused", []string{"--create"}},
		{"no answer", silent.Addr().String(), "no answer", nil},
		{"no answer, to be created", silent.Addr().String(), "no answer", []string{"--create"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &world{environ: []string{"NOVA_ADDR=" + c.address}, notices: 20 * time.Millisecond}
			r := w.run(t, "a\n", append([]string{"append", "tests/log", "--patience", "700ms"}, c.args...)...)
			lines := strings.Split(strings.TrimSpace(r.err), "\n")
			if r.code != 1 || len(lines) < 3 {
				t.Fatalf("exit %d, %q", r.code, r.err)
			}
			for _, l := range lines[:len(lines)-1] {
				if !strings.HasPrefix(l, "nova: waiting for "+c.address+" for ") {
					t.Fatalf("it says %q", l)
				}
			}
			if l := lines[len(lines)-2]; !strings.HasSuffix(l, "s: "+c.why) {
				t.Errorf("it says %q, want why: %q", l, c.why)
			}
		})
	}
	t.Run("nothing to wait for", func(t *testing.T) {
		w := begin(t)
		w.notices = time.Millisecond
		b := w.start(t, "append", "tests/log")
		b.wants(t, 0, "appended 0 records", "")
		if b.err.String() != "" {
			t.Errorf("it says %q", b.err.String())
		}
	})
	t.Run("on a terminal", func(t *testing.T) {
		w := &world{environ: []string{"NOVA_ADDR=127.0.0.1:1"}, notices: time.Millisecond}
		var out, errs output
		code := Execute(t.Context(), []string{"append", "tests/log", "--patience", "1s"}, Streams{
			In: strings.NewReader("a\n"), Out: &out, Err: &errs, Environ: w.environ, Terminal: true, notices: w.notices,
		})
		if code != 1 || !strings.Contains(errs.String(), "0 records acknowledged, 0/s; waiting for 127.0.0.1:1 for ") || strings.Contains(errs.String(), "nova: waiting") {
			t.Errorf("exit %d, %q", code, errs.String())
		}
	})
}
