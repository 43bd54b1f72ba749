package cli

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/client/clienttest"
	"github.com/nova-stream/nova/libs/reason"
)

const mib = 1 << 20

func file(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// What append read comes back byte for byte, but for a missing last LF.
func TestLinesComeBackByteForByte(t *testing.T) {
	random := make([]byte, 300<<10)
	for i := range random {
		random[i] = byte(rand.IntN(256))
	}
	for name, content := range map[string]string{
		"plain":        "a\nb\nc\n",
		"no last LF":   "a\nb",
		"one record":   "a",
		"CRLF":         "a\r\nb\r\n\r\n\r\r\n",
		"empty lines":  "\n\n\na\n\n",
		"only LF":      "\n",
		"NUL":          "\x00\na\x00b\n\x00",
		"not UTF-8":    "\xff\xfe\n\xc3\x28\n",
		"1 MiB lines":  strings.Repeat(strings.Repeat("x", mib)+"\n", 5),
		"buffer sizes": strings.Repeat("x", 256<<10-1) + "\n" + strings.Repeat("y", 256<<10) + "\n" + strings.Repeat("z", 256<<10+1),
		"many":         strings.Repeat("some line\n", 12345),
		"random":       string(random),
	} {
		want := content
		if !strings.HasSuffix(content, "\n") {
			want += "\n"
		}
		records := strings.Count(want, "\n")
		said := fmt.Sprintf("appended %d records, seq 0..%d\n", records, records-1)
		for _, batch := range []string{"1000", "7"} {
			t.Run(name+" "+batch, func(t *testing.T) {
				w := begin(t)
				if out := w.must(t, content, "append", "tests/log", "--batch", batch); out != said {
					t.Errorf("append from standard input said %q, want %q", out, said)
				}
				if got := w.must(t, "", "read", "tests/log"); got != want {
					t.Errorf("read %d bytes, appended %d", len(got), len(want))
				}
			})
		}
		t.Run(name+" file", func(t *testing.T) {
			w := begin(t)
			if out := w.must(t, "", "append", "tests/log", file(t, "in", content), "--match-seq", "0"); out != said {
				t.Errorf("append from a file said %q, want %q", out, said)
			}
			if got := w.must(t, "", "read", "tests/log"); got != want {
				t.Errorf("read %d bytes, appended %d", len(got), len(want))
			}
		})
	}
}

func TestAppendSurvivesBrokenConnections(t *testing.T) {
	w := begin(t)
	var n atomic.Int32
	w.SetFault(func(step clienttest.Step) error {
		if (step == clienttest.Stored || step == clienttest.Taking || step == clienttest.Acking || step == clienttest.Paging) && n.Add(1)%11 == 0 {
			return clienttest.Cut
		}
		return nil
	})
	var in strings.Builder
	for i := range 20000 {
		fmt.Fprintf(&in, "line %d\n", i)
	}
	if out := w.must(t, in.String(), "append", "tests/log", "--batch", "500"); out != "appended 20000 records, seq 0..19999\n" {
		t.Error(out)
	}
	if got := w.must(t, "", "read", "tests/log"); got != in.String() {
		t.Errorf("read %d bytes, appended %d", len(got), in.Len())
	}
}

func TestFilesAreConcatenatedRecordWise(t *testing.T) {
	w := begin(t)
	a, b := file(t, "a", "1\n2"), file(t, "b", "4\n")
	if out := w.must(t, "3", "append", "tests/log", a, "-", b); out != "appended 4 records, seq 0..3\n" {
		t.Error(out)
	}
	w.stored(t, "1", "2", "3", "4")
	if out := w.must(t, "", "append", "tests/log", file(t, "empty", "")); out != "appended 0 records\n" {
		t.Error(out)
	}
	if out := w.must(t, "", "append", "tests/log", "--format", "raw", a, b); out != "appended 2 records, seq 4..5\n" {
		t.Error(out)
	}
	w.stored(t, "1", "2", "3", "4", "1\n2", "4\n")
	if r := w.run(t, "", "append", "tests/log", a, "/does/not/exist"); r.code != 1 || r.out != "" {
		t.Errorf("a file that does not exist: %+v", r)
	}
	w.stored(t, "1", "2", "3", "4", "1\n2", "4\n")
}

// A line that is too long is refused with its place, after everything before
// it was stored, and that is told.
func TestTooLongLine(t *testing.T) {
	for name, c := range map[string]struct {
		format, content, place string
		stored                 int
	}{
		"lines":     {"lines", "a\nb\n" + strings.Repeat("x", mib+1) + "\nc\n", " line 3: ", 2},
		"last line": {"lines", "a\n" + strings.Repeat("x", mib+1), " line 2: ", 1},
		"first":     {"lines", strings.Repeat("x", 5*mib), " line 1: ", 0},
		"json":      {"json", `{"body":"a"}` + "\n" + `{"body":"` + strings.Repeat("x", mib) + `","headers":[["n","v"]]}` + "\n", " line 2: ", 1},
		"raw":       {"raw", strings.Repeat("x", mib+1), ": ", 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := begin(t)
			path := file(t, "in", c.content)
			r := w.run(t, "", "append", "tests/log", path, "--format", c.format)
			said := "appended 0 records\n"
			if c.stored > 0 {
				said = fmt.Sprintf("appended %d records, seq 0..%d\n", c.stored, c.stored-1)
			}
			if r.code != 1 || r.out != said || !strings.Contains(r.err, path+c.place) || !strings.Contains(r.err, "1048576 bytes") {
				t.Errorf("%+v", r)
			}
			if n := len(w.bodies()); n != c.stored {
				t.Errorf("%d records stored, want %d", n, c.stored)
			}
		})
	}
}

// A record is not held until its batch is full, nor until the line after it is
// complete.
func TestSlowInputIsSentAtOnce(t *testing.T) {
	w := begin(t)
	in, write := io.Pipe()
	done := make(chan result)
	go func() { done <- w.runIn(t.Context(), in, "append", "tests/log") }()
	for i, chunk := range []string{"a\nb", "\n", "c\nd\ne"} {
		if _, err := io.WriteString(write, chunk); err != nil {
			t.Fatal(err)
		}
		want := []int{1, 2, 4}[i]
		eventually(t, fmt.Sprintf("%d records are stored", want), func() bool { return len(w.bodies()) == want })
	}
	_ = write.Close()
	if r := <-done; r.code != 0 || r.out != "appended 5 records, seq 0..4\n" {
		t.Errorf("%+v", r)
	}
	w.stored(t, "a", "b", "c", "d", "e")
}

// An interrupt ends reading; what was told as appended is stored, and a prefix.
func TestInterruptedAppendSaysHowFarItGot(t *testing.T) {
	w := begin(t)
	in, write := io.Pipe()
	ctx, interrupt := context.WithCancel(t.Context())
	done := make(chan result)
	go func() { done <- w.runIn(ctx, in, "append", "tests/log", "--batch", "2") }()
	if _, err := io.WriteString(write, "a\nb\nc\n"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "everything is stored", func() bool { return len(w.bodies()) == 3 })
	interrupt()
	r := <-done
	_ = write.Close()
	if r.code != 1 || r.out != "appended 3 records, seq 0..2\n" || !strings.Contains(r.err, "interrupted") {
		t.Errorf("%+v", r)
	}
}

func TestAppendFailsWithReasonAndCount(t *testing.T) {
	for name, c := range map[string]struct {
		args  []string
		fault func(clienttest.Step) error
		says  []string
		not   string
	}{
		"match_seq": {args: []string{"--match-seq", "5"}, says: []string{"SEQ_MISMATCH", "the next number is 0"}, not: "unknown whether"},
		"token":     {args: []string{"--fencing-token", "mine"}, says: []string{"FENCED"}, not: "unknown whether"},
		"unknown": {args: []string{"--patience", "100ms"}, fault: func(s clienttest.Step) error {
			if s == clienttest.Stored {
				return clienttest.Cut
			}
			return nil
		}, says: []string{"cut by the test", "unknown whether"}, not: "rpc error"},
		"denied": {fault: func(clienttest.Step) error { return reason.New(codes.PermissionDenied, "", "not for you") }, says: []string{"not for you"}, not: "unknown whether"},
	} {
		t.Run(name, func(t *testing.T) {
			w := begin(t)
			w.SetFault(c.fault)
			r := w.run(t, "x\n", append([]string{"append", "tests/log"}, c.args...)...)
			if r.code != 1 || r.out != "appended 0 records\n" || strings.Contains(r.err, c.not) {
				t.Errorf("%+v", r)
			}
			for _, s := range c.says {
				if !strings.Contains(r.err, s) {
					t.Errorf("%q does not say %q", r.err, s)
				}
			}
		})
	}
}

// A session that fails while the input pauses ends the command.
func TestAppendEndsWhenItsSessionFails(t *testing.T) {
	w := begin(t)
	w.SetFault(func(s clienttest.Step) error {
		if s == clienttest.Taking {
			return reason.New(codes.FailedPrecondition, reason.StreamSealed, "the stream is sealed")
		}
		return nil
	})
	in, write := io.Pipe()
	defer write.Close()
	done := make(chan result)
	go func() { done <- w.runIn(t.Context(), in, "append", "tests/log") }()
	if _, err := io.WriteString(write, "x\n"); err != nil {
		t.Fatal(err)
	}
	if r := <-done; r.code != 1 || !strings.Contains(r.err, "STREAM_SEALED") {
		t.Errorf("%+v", r)
	}
}

func TestAppendCreates(t *testing.T) {
	w := begin(t)
	if r := w.run(t, "x\n", "append", "fresh/a/b"); r.code != 1 || !strings.Contains(r.err, "BUCKET_NOT_FOUND") {
		t.Errorf("%+v", r)
	}
	for range 2 {
		w.must(t, "x\n", "append", "fresh/a/b", "--create")
	}
	if n := len(w.Records("fresh", "a/b")); n != 2 {
		t.Errorf("%d records", n)
	}
	if out := w.must(t, "x\n", "append", "fresh/a/b", "-o", "json"); out != `{"complete":true,"first_seq":2,"last_seq":2,"records":1}`+"\n" {
		t.Error(out)
	}
	w.must(t, "x\n", "append", "fresh/a/b", "--producer", "p")
}

func TestJSONRecords(t *testing.T) {
	w := begin(t)
	in := `{"body":"plain","timestamp":5}
{"body":"é \u00e9 \ud83d\ude00 <&> \\ud800","headers":[["n","v"],["n",""]]}

 {"seq":99,"body":"AP8=","headers":[["/w==","AA=="]],"encoding":"base64"}
{"body":""}`
	if out := w.must(t, in, "append", "tests/log", "--format", "json"); out != "appended 4 records, seq 0..3\n" {
		t.Fatal(out)
	}
	w.stored(t, "plain", `é é 😀 <&> \ud800`, "\x00\xff", "")
	out := w.must(t, "", "read", "tests/log", "--format", "json")
	lines := strings.Split(out, "\n")
	if !strings.HasPrefix(lines[0], `{"seq":0,"timestamp":5,"body":"plain"}`) {
		t.Error(lines[0])
	}
	if !strings.Contains(lines[1], `"headers":[["n","v"],["n",""]],"body":"é é 😀 <&> \\ud800"`) {
		t.Error(lines[1])
	}
	if !strings.Contains(lines[2], `"headers":[["/w==","AA=="]],"body":"AP8=","encoding":"base64"`) {
		t.Error(lines[2])
	}
	w.Create("tests", "copy")
	w.must(t, out, "append", "tests/copy", "--format", "json")
	if again := w.must(t, "", "read", "tests/copy", "--format", "json"); again != out {
		t.Errorf("a copy reads\n%s\nthe original\n%s", again, out)
	}
	for _, bad := range []string{
		`{`, `[]`, `null`, `"x"`, `{} {}`, `{} ]`, `{"bdy":"x"}`, `{"body":1}`, `{"body":"` + "\xff" + `"}`, `{"body":"\ud800"}`, `{"body":"\ud800\u0041"}`, `{"body":"\udc00"}`,
		`{"headers":[["a"]]}`, `{"headers":[["a","b","c"]]}`, `{"body":"!","encoding":"base64"}`, `{"body":"x","encoding":"hex"}`, `{"timestamp":1.5}`,
	} {
		r := w.run(t, `{"body":"good"}`+"\n"+bad+"\n", "append", "tests/log", "--format", "json")
		if r.code != 1 || !strings.HasPrefix(r.out, "appended 1 records") || !strings.Contains(r.err, "standard input line 2: ") {
			t.Errorf("%s: %+v", bad, r)
		}
	}
}
