package rpc

import (
	"context"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	noopmetric "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	nooptrace "go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const scope = "github.com/nova-stream/nova/libs/rpc"

// The attributes of OpenTelemetry's conventions for RPC.
const (
	attrSystem  = attribute.Key("rpc.system.name")
	attrMethod  = attribute.Key("rpc.method")
	attrStatus  = attribute.Key("rpc.response.status_code")
	traceParent = "traceparent"
)

type side int

const (
	server side = iota
	client
)

// observer reports calls: a span, the duration by method and code (which
// counts them too), how many are under way, and a log line. It reports by
// interceptors and not by a stats.Handler, so that it costs no more than a few
// hundred nanoseconds in process.
type observer struct {
	side     side
	log      *slog.Logger
	tracer   trace.Tracer // nil: nothing is traced
	duration metric.Float64Histogram
	active   metric.Int64UpDownCounter
	panics   metric.Int64Counter // servers only

	methods sync.Map // method -> *methodInfo
}

// methodInfo is what is computed once per method.
type methodInfo struct {
	name   string // nova.v1.AppendService/Append
	span   []trace.SpanStartOption
	attrs  metric.MeasurementOption
	byCode [codes.Unauthenticated + 1]metric.MeasurementOption
}

type method struct{ service, method string }

func newObserver(o Options, s side) (*observer, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Meter == nil {
		o.Meter = noopmetric.NewMeterProvider()
	}
	obs := &observer{side: s, log: o.Log}
	if _, noop := o.Tracer.(nooptrace.TracerProvider); o.Tracer != nil && !noop {
		obs.tracer = o.Tracer.Tracer(scope)
	}
	meter := o.Meter.Meter(scope)
	kind := "server"
	if s == client {
		kind = "client"
	}
	var err error
	obs.duration, err = meter.Float64Histogram("rpc."+kind+".call.duration", metric.WithUnit("s"),
		metric.WithDescription("Time from the start of a call to its end, by method and status code."),
		metric.WithExplicitBucketBoundaries(.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30))
	if err != nil {
		return nil, err
	}
	obs.active, err = meter.Int64UpDownCounter("nova.rpc."+kind+".active", metric.WithUnit("{call}"),
		metric.WithDescription("Calls under way, streams included."))
	if err != nil || s == client {
		return obs, err
	}
	obs.panics, err = meter.Int64Counter("nova.rpc.server.panics", metric.WithUnit("{panic}"),
		metric.WithDescription("Handlers that panicked; the call got INTERNAL and the log has the stack."))
	return obs, err
}

func (o *observer) method(service, name string) *methodInfo {
	key := method{service, name}
	if m, ok := o.methods.Load(key); ok {
		return m.(*methodInfo)
	}
	m := &methodInfo{name: service + "/" + name}
	base := []attribute.KeyValue{attrSystem.String("grpc"), attrMethod.String(m.name)}
	kind := trace.SpanKindServer
	if o.side == client {
		kind = trace.SpanKindClient
	}
	m.span = []trace.SpanStartOption{trace.WithSpanKind(kind), trace.WithAttributes(base...)}
	m.attrs = metric.WithAttributeSet(attribute.NewSet(base...))
	for c := range m.byCode {
		m.byCode[c] = metric.WithAttributeSet(attribute.NewSet(append(base[:2:2], attrStatus.String(codes.Code(c).String()))...))
	}
	stored, _ := o.methods.LoadOrStore(key, m)
	return stored.(*methodInfo)
}

// call is one call under way.
type call struct {
	interceptors.NoopReporter // of the messages

	o      *observer
	method *methodInfo
	ctx    context.Context
	span   trace.Span // nil: not traced
	cause  error      // what the status hides; set by the handler's goroutine
	once   sync.Once
	watch  func() bool // stops watching the context
}

type callKey struct{}

// unobserved are the calls of probes and tools.
func unobserved(service string) bool { return strings.HasPrefix(service, "grpc.") }

// ServerReporter starts the observation of a call at its server.
func (o *observer) ServerReporter(ctx context.Context, m interceptors.CallMeta) (interceptors.Reporter, context.Context) {
	if unobserved(m.Service) {
		return interceptors.NoopReporter{}, ctx
	}
	c := &call{o: o, method: o.method(m.Service, m.Method)}
	if o.tracer != nil {
		ctx = propagation.TraceContext{}.Extract(ctx, incoming{ctx})
		//nolint:spancheck // PostCall ends it.
		ctx, c.span = o.tracer.Start(ctx, c.method.name, c.method.span...)
	}
	ctx = context.WithValue(ctx, callKey{}, c)
	c.ctx = ctx
	o.active.Add(ctx, 1, c.method.attrs)
	return c, ctx
}

// ClientReporter starts the observation of a call at its client.
func (o *observer) ClientReporter(ctx context.Context, m interceptors.CallMeta) (interceptors.Reporter, context.Context) {
	if unobserved(m.Service) {
		return interceptors.NoopReporter{}, ctx
	}
	c := &call{o: o, method: o.method(m.Service, m.Method)}
	if o.tracer != nil {
		//nolint:spancheck // PostCall ends it.
		ctx, c.span = o.tracer.Start(ctx, c.method.name, c.method.span...)
		carrier := propagation.MapCarrier{}
		propagation.TraceContext{}.Inject(ctx, carrier)
		for k, v := range carrier {
			ctx = metadata.AppendToOutgoingContext(ctx, k, v)
		}
	}
	c.ctx = ctx
	o.active.Add(ctx, 1, c.method.attrs)
	if m.Typ != interceptors.Unary {
		// A stream that its caller only cancels never returns an error.
		start := time.Now()
		// It may run before watch is set, so it must not look at that.
		c.watch = context.AfterFunc(ctx, func() {
			c.once.Do(func() { c.end(status.FromContextError(ctx.Err()).Err(), time.Since(start)) })
		})
	}
	return c, ctx
}

// PostCall ends the observation; only the first one counts.
func (c *call) PostCall(err error, took time.Duration) {
	c.once.Do(func() {
		if c.watch != nil {
			c.watch()
		}
		c.end(err, took)
	})
}

func (c *call) end(err error, took time.Duration) {
	code := status.Code(err)
	c.o.active.Add(c.ctx, -1, c.method.attrs)
	if int(code) < len(c.method.byCode) {
		c.o.duration.Record(c.ctx, took.Seconds(), c.method.byCode[code])
	}
	c.write(err, code, took)
	if c.span == nil || !c.span.IsRecording() {
		return
	}
	c.span.SetAttributes(attrStatus.String(code.String()))
	// A server is not to blame for its caller's mistakes; a client sees them all.
	if err != nil && (c.o.side == client || blames(code)) {
		c.span.SetStatus(otelcodes.Error, status.Convert(err).Message())
	}
	c.span.End()
}

// write logs the call: at warn what the server could not do, at info what the
// caller must do differently, at debug the rest. Answers that are part of how
// services talk (no such row, another version, not the leader) are the rest.
func (c *call) write(err error, code codes.Code, took time.Duration) {
	level := slog.LevelDebug
	switch {
	case c.o.side == client:
	case blames(code):
		level = slog.LevelWarn
	case refuses(code):
		level = slog.LevelInfo
	}
	if !c.o.log.Enabled(c.ctx, level) {
		return
	}
	attrs := make([]slog.Attr, 0, 5)
	attrs = append(attrs, slog.String("method", c.method.name), slog.String("code", code.String()), slog.Duration("took", took))
	if err != nil {
		attrs = append(attrs, slog.String("err", status.Convert(err).Message()))
	}
	if c.o.side == server && c.cause != nil {
		attrs = append(attrs, slog.String("cause", c.cause.Error()))
	}
	c.o.log.LogAttrs(c.ctx, level, "call", attrs...)
}

// blames reports whether a code says that the server could not do its work.
func blames(c codes.Code) bool {
	switch c {
	case codes.Unknown, codes.Internal, codes.DataLoss, codes.Unavailable, codes.DeadlineExceeded, codes.Unimplemented:
		return true
	}
	return false
}

// refuses reports whether a code says that the caller itself is wrong.
func refuses(c codes.Code) bool {
	switch c {
	case codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.ResourceExhausted:
		return true
	}
	return false
}

func (o *observer) recoverOption() recovery.Option {
	return recovery.WithRecoveryHandlerContext(func(ctx context.Context, p any) error {
		name := "?"
		if c, ok := ctx.Value(callKey{}).(*call); ok {
			name = c.method.name
			o.panics.Add(ctx, 1, c.method.attrs)
		}
		o.log.ErrorContext(ctx, "handler panicked", "method", name, "panic", p, "stack", string(debug.Stack()))
		return status.Error(codes.Internal, "internal error")
	})
}

func (o *observer) recoverUnary() grpc.UnaryServerInterceptor {
	return recovery.UnaryServerInterceptor(o.recoverOption())
}

func (o *observer) recoverStream() grpc.StreamServerInterceptor {
	return recovery.StreamServerInterceptor(o.recoverOption())
}

// incoming reads a call's metadata without copying it all.
type incoming struct{ ctx context.Context }

// Get returns the last value: the one that the nearest client added.
func (c incoming) Get(key string) string {
	if v := metadata.ValueFromIncomingContext(c.ctx, key); len(v) > 0 {
		return v[len(v)-1]
	}
	return ""
}

func (c incoming) Set(string, string) {}

func (c incoming) Keys() []string { return []string{traceParent} }
