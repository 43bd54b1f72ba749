package reaper

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/nova-stream/nova/proto/gen/nova/reaper/v1"
)

// metrics are the reaper's instruments, all named nova.reaper.*.
type metrics struct {
	worked  metric.Int64Counter
	objects metric.Int64Counter
	bytes   metric.Int64Counter
}

// newMetrics makes them; queues is asked for how far each queue is.
func newMetrics(m metric.Meter, queues func(func(*reaperpb.QueueProgress))) (*metrics, error) {
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
	gauge := func(name, unit, what string, value func(*reaperpb.QueueProgress) int64) {
		_, e := m.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(what),
			metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
				queues(func(p *reaperpb.QueueProgress) { o.Observe(value(p), inQueue(p.GetQueue())) })
				return nil
			}))
		keep(e)
	}
	gauge("nova.reaper.oldest.due", "ms", "When the oldest marker that is due was to be worked on, since the Unix epoch; 0: none is due.",
		func(p *reaperpb.QueueProgress) int64 { return p.GetOldestDue() })
	gauge("nova.reaper.dead", "{marker}", "Markers that were set aside; at most 1000 are counted.",
		func(p *reaperpb.QueueProgress) int64 { return int64(p.GetDead()) })
	return &metrics{
		worked:  counter("nova.reaper.markers", "{marker}", "Due markers worked on, by queue and result."),
		objects: counter("nova.reaper.deleted.objects", "{object}", "Objects that were asked to be deleted, by queue; some twice."),
		bytes:   counter("nova.reaper.deleted.bytes", "By", "Bytes of settled objects and directories that were deleted, by queue."),
	}, err
}

func inQueue(name string) metric.MeasurementOption {
	return metric.WithAttributes(attribute.String("queue", name))
}

func (m *metrics) workedOn(ctx context.Context, queue string, what result) {
	m.worked.Add(ctx, 1, metric.WithAttributes(attribute.String("queue", queue), attribute.String("result", string(what))))
}

func (m *metrics) deleted(ctx context.Context, queue string, objects int, bytes uint64) {
	m.objects.Add(ctx, int64(objects), inQueue(queue))
	m.bytes.Add(ctx, int64(bytes), inQueue(queue))
}
