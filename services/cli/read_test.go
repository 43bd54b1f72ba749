package cli

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/nova-stream/nova/libs/client/clienttest"
)

func TestReadFromToAndHowMuch(t *testing.T) {
	w := begin(t)
	var in strings.Builder
	for i := range 20 {
		fmt.Fprintf(&in, `{"body":"%d","timestamp":%d}`+"\n", i, 1000*(i+1))
	}
	w.must(t, in.String(), "append", "tests/log", "--format", "json")
	w.Trim("tests", "log", 2)
	for args, want := range map[string][2]int{
		"":                                 {2, 20},
		"--from-seq 5":                     {5, 20},
		"--from-seq 20":                    {20, 20},
		"--from-time 5000":                 {4, 20},
		"--from-time 5001":                 {5, 20},
		"--from-time 1970-01-01T00:00:05Z": {4, 20},
		"--from-time 5m":                   {20, 20},
		"--tail 3":                         {17, 20},
		"--tail 0":                         {20, 20},
		"--tail 100":                       {2, 20},
		"--count 0":                        {2, 2},
		"--count 3":                        {2, 5},
		"--bytes 3 --from-seq 8":           {8, 10},
		"--until 5000":                     {2, 4},
		"--until 1970-01-01T00:00:05Z --from-seq 3 --count 9": {3, 4},
		"--follow --count 3":              {2, 5},
		"--follow --until 9000 --tail 15": {5, 8},
	} {
		for _, page := range []int{0, 1, 3} {
			w.MaxPage = page
			var lines string
			for i := want[0]; i < want[1]; i++ {
				lines += fmt.Sprintln(i)
			}
			if got := w.must(t, "", append([]string{"read", "tests/log"}, strings.Fields(args)...)...); got != lines {
				t.Errorf("read %s, page %d: %q, want %q", args, page, got, lines)
			}
		}
	}
	if got := w.must(t, "", "tail", "tests/log"); !strings.HasPrefix(got, "10\n11\n") || !strings.HasSuffix(got, "\n19\n") {
		t.Errorf("tail: %q", got)
	}
	if got := w.must(t, "", "tail", "tests/log", "-n", "1", "--format", "raw"); got != "19" {
		t.Errorf("tail: %q", got)
	}
	if r := w.run(t, "", "read", "tests/log", "--from-seq", "1"); r.code != 1 || r.out != "" || !strings.Contains(r.err, "TRIMMED") || !strings.Contains(r.err, "2") {
		t.Errorf("below the trim point: %+v", r)
	}
	if r := w.run(t, "", "read", "tests/log", "--from-seq", "21"); r.code != 1 || !strings.Contains(r.err, "BEYOND_TAIL") {
		t.Errorf("beyond the tail: %+v", r)
	}
}

func TestFollowShowsWhatComesAndEndsWithAnInterrupt(t *testing.T) {
	w := begin(t)
	w.Store("tests", "log", "0", "1")
	for _, args := range [][]string{{"read", "tests/log", "--follow", "--tail", "1"}, {"tail", "tests/log", "-f", "-n", "1"}} {
		from := len(w.bodies())
		ctx, interrupt := context.WithCancel(t.Context())
		var out, errs output
		done := make(chan int)
		go func() {
			done <- Execute(ctx, args, Streams{In: strings.NewReader(""), Out: &out, Err: &errs, Environ: w.environ})
		}()
		eventually(t, "the last record is shown", func() bool { return out.String() == fmt.Sprintln(from-1) })
		w.Store("tests", "log", fmt.Sprint(from), fmt.Sprint(from+1))
		eventually(t, "new records are shown", func() bool { return out.String() == fmt.Sprintf("%d\n%d\n%d\n", from-1, from, from+1) })
		interrupt()
		if code := <-done; code != 0 || errs.String() != "" {
			t.Errorf("exit %d, %s", code, errs.String())
		}
	}
}

func TestTrimWhileReadingIsSaid(t *testing.T) {
	w := begin(t)
	w.Store("tests", "log", "0", "1", "2", "3", "4", "5")
	w.MaxPage = 2
	pages := 0
	w.SetFault(func(s clienttest.Step) error {
		if s == clienttest.Paging {
			if pages++; pages == 2 {
				w.Trim("tests", "log", 5)
			}
		}
		return nil
	})
	if r := w.run(t, "", "read", "tests/log"); r.code != 1 || r.out != "0\n1\n" || !strings.Contains(r.err, "TRIMMED") || !strings.Contains(r.err, "the first is 5") {
		t.Errorf("%+v", r)
	}
}

// closed is an output whose reader is gone.
type closed struct{}

func (closed) Write([]byte) (int, error) { return 0, syscall.EPIPE }

func TestClosedOutputEndsQuietly(t *testing.T) {
	w := begin(t)
	w.Store("tests", "log", "0")
	for _, args := range [][]string{{"read", "tests/log"}, {"tail", "-f", "tests/log"}, {"stream", "list", "tests", "-o", "json"}} {
		var errs output
		if code := Execute(t.Context(), args, Streams{In: strings.NewReader(""), Out: closed{}, Err: &errs, Environ: w.environ}); code != 0 || errs.String() != "" {
			t.Errorf("%v: exit %d, %s", args, code, errs.String())
		}
	}
}

// -o json is about the records, too, unless --format says how they are wanted.
func TestReadAsJSON(t *testing.T) {
	w := begin(t)
	w.Store("tests", "log", "hello")
	for args, want := range map[string]string{"read tests/log -o json": `{"seq":0,`, "tail tests/log -o json": `{"seq":0,`, "read tests/log -o json --format lines": "hello\n"} {
		if got := w.must(t, "", strings.Fields(args)...); !strings.HasPrefix(got, want) {
			t.Errorf("nova %s: %q", args, got)
		}
	}
}
