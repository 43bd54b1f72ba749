package cli

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nova-stream/nova/libs/client/clienttest"
	"github.com/nova-stream/nova/libs/reason"
)

// load is what -o json says.
type load struct {
	Records, Bytes int
	LatencyMS      map[string]struct {
		Count         int
		P50, P99, Max float64
	} `json:"latency_ms"`
}

func (w *world) load(t *testing.T, args ...string) load {
	t.Helper()
	var l load
	out := w.must(t, "", append([]string{"bench", "-o", "json"}, args...)...)
	if err := json.Unmarshal([]byte(out), &l); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	for name, v := range l.LatencyMS {
		if v.Count == 0 || v.P50 <= 0 || v.P50 > v.P99 || v.P99 > v.Max {
			t.Errorf("%s: %+v", name, v)
		}
	}
	return l
}

// streams returns the names in a bucket, as the command line lists them.
func (w *world) streams(t *testing.T, bucket string) []string {
	t.Helper()
	return slices.DeleteFunc(strings.Fields(w.must(t, "", "stream", "list", bucket)), func(s string) bool { return !strings.Contains(s, "bench-") })
}

func TestBenchAppend(t *testing.T) {
	w := begin(t)
	l := w.load(t, "append", "load", "--time", "200ms", "--sessions", "3", "--batch", "7", "--size", "11", "--window", "4")
	ack := l.LatencyMS["ack"]
	if l.Records != 7*ack.Count || l.Bytes != 11*l.Records {
		t.Errorf("%d batches, %d records, %d bytes", ack.Count, l.Records, l.Bytes)
	}
	if left := w.streams(t, "load"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	l = w.load(t, "append", "load", "--time", "10ms", "--sessions", "2", "--keep")
	left := w.streams(t, "load")
	if len(left) != 2 {
		t.Fatalf("kept %v, want 2", left)
	}
	// What was counted is there, and reading it counts the same.
	got := 0
	for _, name := range left {
		r := w.load(t, "read", "load/"+strings.TrimPrefix(name, "load/"), "--readers", "3")
		got += r.Records / 3
	}
	if got != l.Records {
		t.Errorf("appended %d, read %d", l.Records, got)
	}
}

func TestBenchEndToEnd(t *testing.T) {
	w := begin(t)
	l := w.load(t, "e2e", "load", "--time", "200ms", "--sessions", "2", "--batch", "3", "--window", "5")
	if ack, delivery := l.LatencyMS["ack"], l.LatencyMS["delivery"]; ack.Count != delivery.Count || l.Records != 3*ack.Count {
		t.Errorf("%d records in %d batches, %d delivered", l.Records, ack.Count, delivery.Count)
	}
	if left := w.streams(t, "load"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestBenchInterrupt(t *testing.T) {
	w := begin(t)
	for _, kind := range []string{"append", "e2e"} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		w.SetFault(func(step clienttest.Step) error {
			if step == clienttest.Stored {
				cancel() // there is something to tell of
			}
			return nil
		})
		r := w.runIn(ctx, strings.NewReader(""), "bench", kind, "--time", "1h")
		cancel()
		if r.code != 0 || !strings.Contains(r.out, "records/s") || !strings.Contains(r.out, "p99.9") {
			t.Errorf("%s: exit %d, %s%s", kind, r.code, r.out, r.err)
		}
	}
}

func TestBenchFailure(t *testing.T) {
	w := begin(t)
	w.SetFault(func(step clienttest.Step) error {
		if step == clienttest.Taking {
			return reason.Field("records", "refused by the test")
		}
		return nil
	})
	for _, kind := range []string{"append", "e2e"} {
		if r := w.run(t, "", "bench", kind, "load", "--time", "1h", "--sessions", "3"); r.code != 1 || strings.Count(r.err, "\n") != 1 {
			t.Errorf("%s: exit %d, %q", kind, r.code, r.err)
		}
	}
}

func TestBenchUsage(t *testing.T) {
	w := begin(t)
	for _, args := range []string{
		"append a b", "append load --sessions 0", "append load --batch 1001", "append load --size 2000000", "append load --window 17",
		"e2e load --batch 1000 --size 100000", "append load --time 0s", "read load", "read tests/log --readers 0", "", "other",
	} {
		if r := w.run(t, "", append([]string{"bench"}, strings.Fields(args)...)...); r.code != 2 {
			t.Errorf("bench %s: exit %d, %s", args, r.code, r.err)
		}
	}
}

// Quantiles are those of the samples, within the width of a bucket.
func TestLatencyQuantiles(t *testing.T) {
	var l latency
	var all []time.Duration
	for range 10_000 {
		d := time.Duration(rand.ExpFloat64() * float64(20*time.Millisecond))
		l.add(d)
		all = append(all, d)
	}
	slices.Sort(all)
	for _, q := range quantiles {
		want := all[int(q.share*float64(len(all)))-1]
		if got := l.quantile(q.share); got < want || float64(got) > 1.021*float64(want)+float64(time.Microsecond) {
			t.Errorf("%s is %v, want %v", q.name, got, want)
		}
	}
	if got := l.quantile(1); got < all[len(all)-1] {
		t.Errorf("the whole is %v, want %v", got, all[len(all)-1])
	}
}
