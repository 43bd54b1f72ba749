package rpc

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// Options are common to both shapes, servers and clients. The zero value logs
// nothing, measures nothing and traces nothing.
type Options struct {
	Log    *slog.Logger
	Meter  metric.MeterProvider
	Tracer trace.TracerProvider
	// Validate is called with every request before its handler, servers only;
	// an error that carries no status becomes INTERNAL like any other.
	Validate func(proto.Message) error
	// Unary and Stream run innermost, in order, servers only: authentication,
	// rate limits.
	Unary  []grpc.UnaryServerInterceptor
	Stream []grpc.StreamServerInterceptor
}

// chain is the interceptors of a server, made into one of each kind.
type chain struct {
	unary  grpc.UnaryServerInterceptor
	stream grpc.StreamServerInterceptor
}

func newChain(o Options) (chain, error) {
	obs, err := newObserver(o, server)
	if err != nil {
		return chain{}, fmt.Errorf("rpc: metrics: %w", err)
	}
	unary := []grpc.UnaryServerInterceptor{interceptors.UnaryServerInterceptor(obs), statusUnary, obs.recoverUnary(), malformedUnary}
	stream := []grpc.StreamServerInterceptor{interceptors.StreamServerInterceptor(obs), statusStream, obs.recoverStream()}
	if o.Validate != nil {
		unary = append(unary, validateUnary(o.Validate))
		stream = append(stream, validateStream(o.Validate))
	}
	return chain{
		unary:  chainUnary(append(unary, o.Unary...)),
		stream: chainStream(append(stream, o.Stream...)),
	}, nil
}

// chainUnary makes one interceptor of several, the first outermost.
// grpc.ChainUnaryInterceptor does this for a grpc.Server only.
func chainUnary(all []grpc.UnaryServerInterceptor) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		return nextUnary(all, info, handler)(ctx, req)
	}
}

func nextUnary(rest []grpc.UnaryServerInterceptor, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) grpc.UnaryHandler {
	if len(rest) == 0 {
		return handler
	}
	return func(ctx context.Context, req any) (any, error) {
		return rest[0](ctx, req, info, nextUnary(rest[1:], info, handler))
	}
}

func chainStream(all []grpc.StreamServerInterceptor) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		return nextStream(all, info, handler)(srv, ss)
	}
}

func nextStream(rest []grpc.StreamServerInterceptor, info *grpc.StreamServerInfo, handler grpc.StreamHandler) grpc.StreamHandler {
	if len(rest) == 0 {
		return handler
	}
	return func(srv any, ss grpc.ServerStream) error {
		return rest[0](srv, ss, info, nextStream(rest[1:], info, handler))
	}
}

func validateUnary(validate func(proto.Message) error) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if m, ok := req.(proto.Message); ok {
			if err := validate(m); err != nil {
				return nil, err
			}
		}
		return handler(ctx, req)
	}
}

func validateStream(validate func(proto.Message) error) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		return handler(srv, &validatedStream{ServerStream: ss, validate: validate})
	}
}

type validatedStream struct {
	grpc.ServerStream
	validate func(proto.Message) error
}

func (s *validatedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	if p, ok := m.(proto.Message); ok {
		return s.validate(p)
	}
	return nil
}
