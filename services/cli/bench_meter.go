package cli

import (
	"fmt"
	"io"
	"math"
	"sync"
	"time"
)

// meter counts what a load did. Its clock runs from the first thing counted to
// the last.
type meter struct {
	mu          sync.Mutex
	first, last time.Time
	records     int
	bytes       int
	names       []string // of latencies, in the order of their first
	latencies   map[string]*latency
}

func (m *meter) count(records, bytes int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.records += records
	m.bytes += bytes
	m.last = time.Now()
}

// begin starts the clock.
func (m *meter) begin() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.first = time.Now()
	m.last = m.first
}

func (m *meter) observe(name string, d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.latencies[name]
	if l == nil {
		if m.latencies == nil {
			m.latencies = map[string]*latency{}
		}
		l = &latency{}
		m.latencies[name] = l
		m.names = append(m.names, name)
	}
	l.add(d)
}

// latency is a histogram whose buckets are 2 % apart.
type latency struct {
	buckets [1200]uint64 // up to some hours; bucket i ends at growth^(i+1) microseconds
	count   uint64
	most    time.Duration
}

const growth = 1.02

func (l *latency) add(d time.Duration) {
	i := int(math.Log(max(float64(d)/float64(time.Microsecond), 1)) / math.Log(growth))
	l.buckets[min(i, len(l.buckets)-1)]++
	l.count++
	l.most = max(l.most, d)
}

// quantile returns, within 2 %, what a share q of all does not exceed.
func (l *latency) quantile(q float64) time.Duration {
	due := max(uint64(math.Ceil(q*float64(l.count))), 1)
	for i, n := range l.buckets {
		if n >= due {
			return min(time.Duration(math.Pow(growth, float64(i+1))*float64(time.Microsecond)), l.most)
		}
		due -= n
	}
	return l.most
}

var quantiles = []struct {
	name  string
	share float64
}{{"p50", .5}, {"p90", .9}, {"p99", .99}, {"p99.9", .999}}

func ms(d time.Duration) float64 {
	return float64(d.Round(time.Microsecond)) / float64(time.Millisecond)
}

func (m *meter) rates() (seconds, records, bytes float64) {
	seconds = m.last.Sub(m.first).Seconds()
	if seconds > 0 {
		records, bytes = float64(m.records)/seconds, float64(m.bytes)/seconds
	}
	return seconds, records, bytes
}

// result is for -o json; latencies are milliseconds.
func (m *meter) result() map[string]any {
	m.mu.Lock()
	defer m.mu.Unlock()
	seconds, records, bytes := m.rates()
	latencies := map[string]any{}
	for name, l := range m.latencies {
		row := map[string]any{"count": l.count, "max": ms(l.most)}
		for _, q := range quantiles {
			row[q.name] = ms(l.quantile(q.share))
		}
		latencies[name] = row
	}
	return map[string]any{
		"seconds": seconds, "records": m.records, "bytes": m.bytes, "records_per_second": records, "bytes_per_second": bytes, "latency_ms": latencies,
	}
}

// print is for people.
func (m *meter) print(w io.Writer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	seconds, records, bytes := m.rates()
	fmt.Fprintf(w, "%d records, %.1f MiB in %.1f s: %.0f records/s, %.1f MiB/s\n", m.records, float64(m.bytes)/(1<<20), seconds, records, bytes/(1<<20))
	rows := [][]string{{"LATENCY MS", "COUNT"}}
	for _, q := range quantiles {
		rows[0] = append(rows[0], q.name)
	}
	rows[0] = append(rows[0], "max")
	for _, name := range m.names {
		l := m.latencies[name]
		row := []string{name, fmt.Sprint(l.count)}
		for _, q := range quantiles {
			row = append(row, fmt.Sprintf("%.3f", ms(l.quantile(q.share))))
		}
		rows = append(rows, append(row, fmt.Sprintf("%.3f", ms(l.most))))
	}
	table(w, rows...)
}

// showLoad starts the clock and shows on a terminal how a load goes; call the
// function to end.
func (a *app) showLoad(m *meter) func() {
	m.begin()
	return a.showLine(func() string {
		m.mu.Lock()
		defer m.mu.Unlock()
		since := time.Since(m.first)
		return fmt.Sprintf("%.0f s, %d records, %.0f/s, %.1f MiB/s", since.Seconds(), m.records,
			float64(m.records)/since.Seconds(), float64(m.bytes)/(1<<20)/since.Seconds())
	})
}

// each runs f(0), ..., f(n-1) side by side and returns the first of their errors.
func each(n int, f func(int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
