package settler

import (
	"context"
	"sync/atomic"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
)

// metrics are the settler's instruments, all named nova.settler.*.
type metrics struct {
	absorbed        metric.Int64Counter
	failures        metric.Int64Counter
	settled         metric.Int64Counter
	written         metric.Int64Counter
	objects         metric.Int64Counter
	spans           metric.Int64Counter
	settleFailures  metric.Int64Counter
	quarantined     metric.Int64Counter
	rewritten       metric.Int64Counter
	rewriteFailures metric.Int64Counter
	compacted       metric.Int64Counter

	// The same as settled, written, rewritten and compacted, for GetProgress.
	settledBytes, writtenBytes, rewrittenBytes, compactedBytes atomic.Uint64
}

// load is what a settler looks after.
type load struct {
	chains  int64
	backlog int64 // slots known to wait for absorption
	lag     int64 // seconds since the oldest that is not settled was absorbed
	blocked int64 // chains that something keeps from being settled
}

// newMetrics makes them; now is asked for the load.
func newMetrics(m metric.Meter, now func() load) (*metrics, error) {
	if m == nil {
		m = noop.Meter{}
	}
	var err error
	keep := func(e error) {
		if err == nil {
			err = e
		}
	}
	counter := func(name, unit, what string) metric.Int64Counter {
		c, e := m.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(what))
		keep(e)
		return c
	}
	gauge := func(name, unit, what string, value func(load) int64) {
		_, e := m.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(what),
			metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
				o.Observe(value(now()))
				return nil
			}))
		keep(e)
	}
	gauge("nova.settler.chains", "{chain}", "Chains that this settler looks after.", func(l load) int64 { return l.chains })
	gauge("nova.settler.backlog.slots", "{slot}", "Slots of these chains known to wait.", func(l load) int64 { return l.backlog })
	gauge("nova.settler.lag", "s", "Seconds since the oldest that is not settled was absorbed.", func(l load) int64 { return l.lag })
	gauge("nova.settler.blocked.chains", "{chain}", "Chains that something keeps from being settled.", func(l load) int64 { return l.blocked })
	return &metrics{
		absorbed:        counter("nova.settler.absorbed.slots", "{slot}", "Slots absorbed into directories."),
		failures:        counter("nova.settler.absorb.failures", "{failure}", "Times that a chain could not be absorbed."),
		settled:         counter("nova.settler.settled.bytes", "By", "Bytes of entries that were settled."),
		written:         counter("nova.settler.written.bytes", "By", "Bytes of objects that were written for them, pages included."),
		objects:         counter("nova.settler.objects", "{object}", "Objects written, pages included."),
		spans:           counter("nova.settler.spans", "{span}", "Parts of chains settled in one go."),
		settleFailures:  counter("nova.settler.failures", "{failure}", "Times that a chain could not be settled."),
		quarantined:     counter("nova.settler.quarantined", "{stream}", "Streams found broken and quarantined."),
		rewritten:       counter("nova.settler.rewritten.bytes", "By", "Bytes of small runs that became part of larger ones."),
		compacted:       counter("nova.settler.compacted.bytes", "By", "Bytes of runs copied out of objects of which most was dead."),
		rewriteFailures: counter("nova.settler.rewrite.failures", "{failure}", "Times that small runs could not be rewritten."),
	}, err
}
