package settler

import (
	"context"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
)

// metrics are the settler's instruments, all named nova.settler.*.
type metrics struct {
	absorbed metric.Int64Counter
	failures metric.Int64Counter
}

// newMetrics makes them; load is asked for the chains looked after and the slots
// known to wait.
func newMetrics(m metric.Meter, load func() (chains, backlog int64)) (*metrics, error) {
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
	gauge := func(name, unit, what string, value func() int64) {
		_, e := m.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(what),
			metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
				o.Observe(value())
				return nil
			}))
		keep(e)
	}
	gauge("nova.settler.chains", "{chain}", "Chains that this settler looks after.", func() int64 { n, _ := load(); return n })
	gauge("nova.settler.backlog.slots", "{slot}", "Slots of these chains known to wait.", func() int64 { _, n := load(); return n })
	return &metrics{
		absorbed: counter("nova.settler.absorbed.slots", "{slot}", "Slots absorbed into directories."),
		failures: counter("nova.settler.absorb.failures", "{failure}", "Times that a chain could not be absorbed."),
	}, err
}
