package bench

import (
	"strings"
	"testing"
	"time"
)

// BenchmarkIdle: what a node that nobody uses costs in a minute.
func BenchmarkIdle(b *testing.B) {
	for b.Loop() {
		report(b, idle(b, processes{}, 20*time.Second, time.Minute))
	}
}

// idle measures after a node that was used has come to rest. It has none of its
// own processor time if it is not a process of its own.
func idle(tb testing.TB, l launcher, rest, period time.Duration) map[string]float64 {
	n := l.node(tb, "--dir", tb.TempDir())
	l.nova(tb, n.address, strings.NewReader("one\ntwo\n"), "append", "bench/idle", "--create")
	time.Sleep(rest)
	puts := func() float64 {
		return metric(tb, n.admin, "nova_objectstore_put_duration_seconds_count") +
			metric(tb, n.admin, "nova_objectstore_put_if_match_duration_seconds_count")
	}
	calls := func() float64 { return metric(tb, n.admin, "nova_metastore_put_duration_seconds_count") }
	spent := func() time.Duration {
		if n.pid == 0 {
			return 0
		}
		return processTime(tb, n.pid)
	}
	if puts() == 0 {
		tb.Fatal("the metric of PUTs is not there: an append made none")
	}
	beforePuts, beforeCalls, beforeSpent := puts(), calls(), spent()
	time.Sleep(period)
	used := spent() - beforeSpent
	figures := map[string]float64{
		"cpu-%": 100 * used.Seconds() / period.Seconds(), "object-PUTs": puts() - beforePuts, "metastore-puts": calls() - beforeCalls,
	}
	n.stop()
	return figures
}
