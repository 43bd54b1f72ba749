// Package metered wraps an object store with OpenTelemetry metrics and spans.
// It changes no answer.
package metered

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/nova-stream/nova/libs/objectstore"
)

const scope = "github.com/nova-stream/nova/libs/objectstore"

// Attribute keys of spans and metrics.
const (
	KeyAttr   = attribute.Key("nova.objectstore.key")   // object key; spans only
	KeysAttr  = attribute.Key("nova.objectstore.keys")  // number of keys of a delete; spans only
	BytesAttr = attribute.Key("nova.objectstore.bytes") // bytes of the body; spans only
	ClassAttr = attribute.Key("nova.objectstore.class") // objectstore.Class of the answer
)

// Store is the decorator; make one with New. For each operation <op> (put,
// put_if_match, get, get_range, delete, list) it reports
//
//	nova.objectstore.<op>.duration   histogram, seconds, by class
//	nova.objectstore.<op>.bytes      counter, bytes of successful bodies (put*, get*)
//	nova.objectstore.<op>.errors     counter, by class
//
// and, for calls within a sampled trace, spans objectstore.PUT, objectstore.GET,
// objectstore.DELETE, objectstore.LIST: a call of its own would be a trace of
// one span, which says no more than the metrics. Classes that are answers
// (exists, mismatch, not_found, range) count as errors by class but leave the
// span's status alone.
type Store struct {
	inner  objectstore.Store
	tracer trace.Tracer
	ops    map[string]instruments
}

type instruments struct {
	span     string
	duration metric.Float64Histogram
	bytes    metric.Int64Counter // nil for those without bodies
	errors   metric.Int64Counter
}

var _ objectstore.Store = (*Store)(nil)

// bounds are those of the duration histograms, in seconds: a local disk syncs in
// a millisecond, S3 Express answers in five, S3 in tens to hundreds.
var bounds = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}

// New wraps inner. Close closes inner.
func New(inner objectstore.Store, tracers trace.TracerProvider, meters metric.MeterProvider) (*Store, error) {
	s := &Store{inner: inner, tracer: tracers.Tracer(scope), ops: map[string]instruments{}}
	meter := meters.Meter(scope)
	for op, span := range map[string]string{
		"put": "objectstore.PUT", "put_if_match": "objectstore.PUT", "get": "objectstore.GET", "get_range": "objectstore.GET",
		"delete": "objectstore.DELETE", "list": "objectstore.LIST",
	} {
		i, err := newInstruments(meter, op, span)
		if err != nil {
			return nil, fmt.Errorf("objectstore/metered: instruments of %s: %w", op, err)
		}
		s.ops[op] = i
	}
	return s, nil
}

func newInstruments(meter metric.Meter, op, span string) (i instruments, err error) {
	i.span = span
	name := "nova.objectstore." + op
	if i.duration, err = meter.Float64Histogram(name+".duration", metric.WithUnit("s"),
		metric.WithDescription("Time of one object store call, retries and hedges included."),
		metric.WithExplicitBucketBoundaries(bounds...)); err != nil {
		return i, err
	}
	if i.errors, err = meter.Int64Counter(name+".errors", metric.WithUnit("{call}"),
		metric.WithDescription("Object store calls that did not succeed, by class.")); err != nil {
		return i, err
	}
	if span == "objectstore.PUT" || span == "objectstore.GET" {
		i.bytes, err = meter.Int64Counter(name+".bytes", metric.WithUnit("By"),
			metric.WithDescription("Bytes of bodies that were written or read."))
	}
	return i, err
}

// do runs one call, in a span if it is part of a sampled trace; call returns
// the bytes it moved.
func (s *Store) do(ctx context.Context, op, key string, call func(context.Context) (int, error)) error {
	i := s.ops[op]
	var span trace.Span // nil: not traced
	if trace.SpanContextFromContext(ctx).IsSampled() {
		ctx, span = s.tracer.Start(ctx, i.span, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(KeyAttr.String(key)))
		defer span.End()
	}
	start := time.Now()
	n, err := call(ctx)
	took := time.Since(start).Seconds()
	name := objectstore.Class(err)
	class := metric.WithAttributes(ClassAttr.String(name))
	i.duration.Record(ctx, took, class)
	switch {
	case err != nil:
		i.errors.Add(ctx, 1, class)
	case i.bytes != nil:
		i.bytes.Add(ctx, int64(n))
	}
	if span != nil {
		span.SetAttributes(ClassAttr.String(name))
		if err == nil && i.bytes != nil {
			span.SetAttributes(BytesAttr.Int(n))
		}
		blame(span, name, err)
	}
	return err
}

// blame marks the span of a call that failed.
func blame(span trace.Span, class string, err error) {
	switch class {
	case "ok", "exists", "mismatch", "not_found", "range":
	default:
		span.RecordError(err)
		span.SetStatus(codes.Error, err.Error())
	}
}

// PutIfAbsent implements objectstore.Store.
func (s *Store) PutIfAbsent(ctx context.Context, key string, body []byte) (etag objectstore.ETag, err error) {
	err = s.do(ctx, "put", key, func(ctx context.Context) (_ int, err error) {
		etag, err = s.inner.PutIfAbsent(ctx, key, body)
		return len(body), err
	})
	return etag, err
}

// PutIfMatch implements objectstore.Store.
func (s *Store) PutIfMatch(ctx context.Context, key string, body []byte, match objectstore.ETag) (etag objectstore.ETag, err error) {
	err = s.do(ctx, "put_if_match", key, func(ctx context.Context) (_ int, err error) {
		etag, err = s.inner.PutIfMatch(ctx, key, body, match)
		return len(body), err
	})
	return etag, err
}

// Get implements objectstore.Store.
func (s *Store) Get(ctx context.Context, key string) (o objectstore.Object, err error) {
	err = s.do(ctx, "get", key, func(ctx context.Context) (_ int, err error) {
		o, err = s.inner.Get(ctx, key)
		return len(o.Body), err
	})
	return o, err
}

// GetRange implements objectstore.Store.
func (s *Store) GetRange(ctx context.Context, key string, r objectstore.Range) (o objectstore.Object, err error) {
	err = s.do(ctx, "get_range", key, func(ctx context.Context) (_ int, err error) {
		o, err = s.inner.GetRange(ctx, key, r)
		return len(o.Body), err
	})
	return o, err
}

// Delete implements objectstore.Store.
func (s *Store) Delete(ctx context.Context, keys ...string) error {
	var key string
	if len(keys) > 0 {
		key = keys[0]
	}
	return s.do(ctx, "delete", key, func(ctx context.Context) (int, error) {
		if span := trace.SpanFromContext(ctx); span.IsRecording() {
			span.SetAttributes(KeysAttr.Int(len(keys)))
		}
		return 0, s.inner.Delete(ctx, keys...)
	})
}

// List implements objectstore.Store.
func (s *Store) List(ctx context.Context, prefix, after string, limit int) (infos []objectstore.Info, err error) {
	err = s.do(ctx, "list", prefix, func(ctx context.Context) (_ int, err error) {
		infos, err = s.inner.List(ctx, prefix, after, limit)
		return 0, err
	})
	return infos, err
}

// Close implements objectstore.Store.
func (s *Store) Close() error { return s.inner.Close() }
