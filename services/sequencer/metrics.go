package sequencer

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/reason"
)

// metrics are the sequencer's instruments, all named nova.sequencer.*.
type metrics struct {
	records    metric.Int64Counter
	bytes      metric.Int64Counter
	ack        metric.Float64Histogram
	refusals   metric.Int64Counter
	recoveries metric.Float64Histogram
	renewals   metric.Int64Counter
	quarantine metric.Int64Counter
	handoffs   metric.Int64Counter
	pauses     metric.Float64Histogram
}

func newMetrics(m metric.Meter) (*metrics, error) {
	if m == nil {
		m = noop.Meter{}
	}
	b := builder{meter: m}
	out := &metrics{
		records:    b.counter("nova.sequencer.appended.records", "{record}", "Records acknowledged."),
		bytes:      b.counter("nova.sequencer.appended.bytes", "By", "Bytes of headers and bodies acknowledged."),
		ack:        b.histogram("nova.sequencer.append.duration", "s", "From the reservation of room to the answer."),
		refusals:   b.counter("nova.sequencer.budget.refusals", "{request}", "Requests refused at a budget."),
		recoveries: b.histogram("nova.sequencer.recovery.duration", "s", "From losing or claiming a shard to serving it."),
		renewals:   b.counter("nova.sequencer.lease.renewals", "{renewal}", "Successful lease renewals."),
		quarantine: b.counter("nova.sequencer.streams.quarantined", "{stream}", "Streams quarantined because their log is damaged."),
		handoffs:   b.counter("nova.sequencer.handoffs", "{shard}", "Planned handoffs of shards to other sequencers, by result."),
		pauses:     b.histogram("nova.sequencer.handoff.duration", "s", "From the last number given here to the successor's readiness, of one shard."),
	}
	return out, b.err
}

// builder keeps the first error.
type builder struct {
	meter metric.Meter
	err   error
}

func (b *builder) counter(name, unit, what string) metric.Int64Counter {
	c, err := b.meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(what))
	b.keep(err)
	return c
}

func (b *builder) histogram(name, unit, what string) metric.Float64Histogram {
	h, err := b.meter.Float64Histogram(name, metric.WithUnit(unit), metric.WithDescription(what),
		metric.WithExplicitBucketBoundaries(.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30))
	b.keep(err)
	return h
}

func (b *builder) keep(err error) {
	if b.err == nil {
		b.err = err
	}
}

func (m *metrics) appended(ctx context.Context, r *request, took time.Duration, err error) {
	result := "ok"
	if err != nil {
		result = string(reason.OutcomeOf(err))
	}
	m.ack.Record(ctx, took.Seconds(), metric.WithAttributes(attribute.String("result", result)))
	if err == nil && r.kind == bundle.KindChunk {
		m.records.Add(ctx, int64(len(r.records)))
		m.bytes.Add(ctx, r.size)
	}
}

func (m *metrics) refused(ctx context.Context, budget string) {
	m.refusals.Add(ctx, 1, metric.WithAttributes(attribute.String("budget", budget)))
}

func (m *metrics) recovered(ctx context.Context, took time.Duration) {
	m.recoveries.Record(ctx, took.Seconds())
}

func (m *metrics) quarantined(ctx context.Context) { m.quarantine.Add(ctx, 1) }

func (m *metrics) leaseRenewed(ctx context.Context) { m.renewals.Add(ctx, 1) }

func (m *metrics) handedOff(ctx context.Context, err error) {
	result := "ok"
	switch {
	case errors.Is(err, errStays):
		result = "declined"
	case err != nil:
		result = "failed"
	}
	m.handoffs.Add(ctx, 1, metric.WithAttributes(attribute.String("result", result)))
}

func (m *metrics) paused(ctx context.Context, took time.Duration) {
	m.pauses.Record(ctx, took.Seconds())
}
