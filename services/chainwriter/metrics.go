package chainwriter

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
)

// metrics are the chain-writer's instruments, all named nova.chainwriter.*.
type metrics struct {
	flight        metric.Float64Histogram
	entries       metric.Int64Counter
	bytes         metric.Int64Counter
	poolFull      metric.Int64Counter
	backlogFull   metric.Int64Counter
	unsettledFull metric.Int64Counter
}

// newMetrics makes them; load is asked for what the present chain holds, unsealed
// for the chains that broke and have no cut yet.
func newMetrics(m metric.Meter, load func() load, unsealed func() int64) (*metrics, error) {
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
	flight, e := m.Float64Histogram("nova.chainwriter.flight.duration", metric.WithUnit("s"), metric.WithDescription("From launch to commit of a flight."),
		metric.WithExplicitBucketBoundaries(.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30))
	keep(e)
	gauge := func(name, unit, what string, value func() int64) {
		_, e := m.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(what),
			metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
				o.Observe(value())
				return nil
			}))
		keep(e)
	}
	gauge("nova.chainwriter.pool.bytes", "By", "Entries that wait or are in the air.", func() int64 { return load().pooled })
	gauge("nova.chainwriter.backlog.slots", "{slot}", "Committed slots of the present chain not known to be absorbed.", func() int64 { return load().backlog })
	gauge("nova.chainwriter.unsettled.bytes", "By", "Committed slots of the present chain not known to be settled.", func() int64 { return load().unsettled })
	gauge("nova.chainwriter.unsealed.chains", "{chain}", "Chains of this life that broke and could not be sealed yet.", unsealed)
	return &metrics{
		flight:        flight,
		entries:       counter("nova.chainwriter.committed.entries", "{entry}", "Entries committed."),
		bytes:         counter("nova.chainwriter.committed.bytes", "By", "Bytes of bundles committed."),
		poolFull:      counter("nova.chainwriter.pool.full", "{event}", "Times that an entry waited for the pool."),
		backlogFull:   counter("nova.chainwriter.backlog.full", "{event}", "Times that flights waited for slots to be absorbed."),
		unsettledFull: counter("nova.chainwriter.unsettled.full", "{event}", "Times that flights waited for slots to be settled."),
	}, err
}

func (m *metrics) landed(ctx context.Context, took time.Duration, entries, bytes int) {
	m.flight.Record(ctx, took.Seconds())
	m.entries.Add(ctx, int64(entries))
	m.bytes.Add(ctx, int64(bytes))
}
