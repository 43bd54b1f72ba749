// Package metered measures a metastore with OpenTelemetry.
//
// Per operation: a histogram nova.metastore.<op>.duration (seconds, also of
// calls that failed), a counter nova.metastore.<op>.errors with the attribute
// error.class (not_found, conflict, unavailable, invalid, closed, canceled,
// deadline), and a span metastore.<Op>. ErrNotFound and ErrConflict are answers
// and not failures, so they do not mark the span as failed. Keys go into spans
// only: as metric attributes they would have no bound.
package metered

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/nova-stream/nova/libs/metastore"
)

const scope = "github.com/nova-stream/nova/libs/metastore"

// The attributes of spans and metrics.
const (
	classKey     = attribute.Key("error.class")
	pathKey      = attribute.Key("nova.metastore.path")
	partitionKey = attribute.Key("nova.metastore.partition")
)

// names are the operations as metric names spell them.
var names = map[metastore.Op]string{
	metastore.OpGet: "get", metastore.OpFloor: "floor", metastore.OpRange: "range",
	metastore.OpPut: "put", metastore.OpPutEphemeral: "put_ephemeral",
	metastore.OpDelete: "delete", metastore.OpWatch: "watch",
}

type instruments struct {
	duration metric.Float64Histogram
	errors   metric.Int64Counter
}

// Store is the decorator; make one with New.
type Store struct {
	inner  metastore.Store
	tracer trace.Tracer
	ops    map[metastore.Op]instruments
}

var _ metastore.Store = (*Store)(nil)

// New returns a decorator of inner.
func New(inner metastore.Store, tracers trace.TracerProvider, meters metric.MeterProvider) (*Store, error) {
	s := &Store{inner: inner, tracer: tracers.Tracer(scope), ops: make(map[metastore.Op]instruments)}
	meter := meters.Meter(scope)
	for op, name := range names {
		duration, err := meter.Float64Histogram("nova.metastore."+name+".duration", metric.WithUnit("s"),
			metric.WithDescription("Duration of metastore "+string(op)+" calls, failed ones included."),
			metric.WithExplicitBucketBoundaries(.0002, .0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10))
		if err != nil {
			return nil, fmt.Errorf("metastore metrics: %w", err)
		}
		failed, err := meter.Int64Counter("nova.metastore."+name+".errors", metric.WithUnit("{error}"),
			metric.WithDescription("Errors of metastore "+string(op)+" calls by class; not_found and conflict are ordinary answers."))
		if err != nil {
			return nil, fmt.Errorf("metastore metrics: %w", err)
		}
		s.ops[op] = instruments{duration, failed}
	}
	return s, nil
}

// classes are the values of error.class.
var classes = []struct {
	err  error
	name string
}{
	{metastore.ErrNotFound, "not_found"},
	{metastore.ErrConflict, "conflict"},
	{metastore.ErrUnavailable, "unavailable"},
	{metastore.ErrInvalid, "invalid"},
	{metastore.ErrClosed, "closed"},
	{context.Canceled, "canceled"},
	{context.DeadlineExceeded, "deadline"},
}

func class(err error) string {
	for _, c := range classes {
		if errors.Is(err, c.err) {
			return c.name
		}
	}
	return "other"
}

// begin starts a span, if the call is part of a sampled trace; the function it
// returns ends it and measures the call.
func (s *Store) begin(ctx context.Context, op metastore.Op, partition, path string) (context.Context, func(error)) {
	span := trace.SpanFromContext(context.Background()) // records nothing
	if trace.SpanContextFromContext(ctx).IsSampled() {
		ctx, span = s.tracer.Start(ctx, "metastore."+string(op), trace.WithSpanKind(trace.SpanKindClient),
			trace.WithAttributes(partitionKey.String(partition), pathKey.String(path)))
	}
	start := time.Now()
	return ctx, func(err error) {
		s.ops[op].duration.Record(ctx, time.Since(start).Seconds())
		if err != nil {
			c := classKey.String(class(err))
			s.ops[op].errors.Add(ctx, 1, metric.WithAttributes(c))
			span.SetAttributes(c)
			if !errors.Is(err, metastore.ErrNotFound) && !errors.Is(err, metastore.ErrConflict) {
				span.RecordError(err)
				span.SetStatus(codes.Error, err.Error())
			}
		}
		span.End()
	}
}

// Get implements metastore.Store.
func (s *Store) Get(ctx context.Context, key metastore.Key) (metastore.Row, error) {
	ctx, end := s.begin(ctx, metastore.OpGet, key.Partition, key.Path)
	row, err := s.inner.Get(ctx, key)
	end(err)
	return row, err
}

// Floor implements metastore.Store.
func (s *Store) Floor(ctx context.Context, key metastore.Key, from string) (metastore.Row, error) {
	ctx, end := s.begin(ctx, metastore.OpFloor, key.Partition, key.Path)
	row, err := s.inner.Floor(ctx, key, from)
	end(err)
	return row, err
}

// Range implements metastore.Store.
func (s *Store) Range(ctx context.Context, partition, from, to string, limit int) ([]metastore.Row, error) {
	ctx, end := s.begin(ctx, metastore.OpRange, partition, metastore.RangeName(from, to))
	rows, err := s.inner.Range(ctx, partition, from, to, limit)
	end(err)
	return rows, err
}

// Put implements metastore.Store.
func (s *Store) Put(ctx context.Context, key metastore.Key, value []byte, expected metastore.Version) (metastore.Version, error) {
	ctx, end := s.begin(ctx, metastore.OpPut, key.Partition, key.Path)
	version, err := s.inner.Put(ctx, key, value, expected)
	end(err)
	return version, err
}

// PutEphemeral implements metastore.Store.
func (s *Store) PutEphemeral(ctx context.Context, key metastore.Key, value []byte, expected metastore.Version) (metastore.Version, error) {
	ctx, end := s.begin(ctx, metastore.OpPutEphemeral, key.Partition, key.Path)
	version, err := s.inner.PutEphemeral(ctx, key, value, expected)
	end(err)
	return version, err
}

// Delete implements metastore.Store.
func (s *Store) Delete(ctx context.Context, key metastore.Key, expected metastore.Version) error {
	ctx, end := s.begin(ctx, metastore.OpDelete, key.Partition, key.Path)
	err := s.inner.Delete(ctx, key, expected)
	end(err)
	return err
}

// Watch implements metastore.Store. Span and duration are of the call that
// opens the watch, and so the watch itself runs under the caller's context.
func (s *Store) Watch(ctx context.Context, prefix string) (<-chan metastore.Event, error) {
	_, end := s.begin(ctx, metastore.OpWatch, "", prefix)
	events, err := s.inner.Watch(ctx, prefix)
	end(err)
	return events, err
}

// Close implements metastore.Store.
func (s *Store) Close() error { return s.inner.Close() }
