package client

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const scope = "github.com/nova-stream/nova/libs/client"

// tracing sends the context's span along with every call, so that the servers'
// spans are part of the caller's trace; with a tracer each call is a span itself.
type tracing struct{ tracer trace.Tracer } // nil: no spans

func newTracing(p trace.TracerProvider) tracing {
	if p == nil {
		return tracing{}
	}
	return tracing{p.Tracer(scope)}
}

// start returns the context and the options of a call. The span ends with the
// call, however that ends.
func (t tracing) start(ctx context.Context, method string, opts []grpc.CallOption) (context.Context, []grpc.CallOption) {
	if t.tracer != nil {
		name := strings.TrimPrefix(method, "/")
		spanned, span := t.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindClient),
			trace.WithAttributes(attribute.String("rpc.system.name", "grpc"), attribute.String("rpc.method", name)))
		ctx, opts = spanned, append(opts[:len(opts):len(opts)], grpc.OnFinish(func(err error) {
			span.SetAttributes(attribute.String("rpc.response.status_code", status.Code(err).String()))
			if err != nil {
				span.SetStatus(otelcodes.Error, status.Convert(err).Message())
			}
			span.End()
		}))
	}
	if trace.SpanContextFromContext(ctx).IsValid() {
		carrier := propagation.MapCarrier{}
		propagation.TraceContext{}.Inject(ctx, carrier)
		for k, v := range carrier {
			ctx = metadata.AppendToOutgoingContext(ctx, k, v)
		}
	}
	return ctx, opts
}

func (t tracing) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	ctx, opts = t.start(ctx, method, opts)
	return invoke(ctx, method, req, reply, cc, opts...)
}

func (t tracing) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	ctx, opts = t.start(ctx, method, opts)
	return open(ctx, desc, cc, method, opts...)
}
