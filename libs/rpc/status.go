package rpc

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// seen returns what a caller may see of a handler's error, which is not nil.
func seen(err error) error {
	if s, ok := status.FromError(err); ok {
		return s.Err()
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, "the deadline passed")
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, "the call was canceled")
	}
	return status.Error(codes.Internal, "internal error")
}

func statusUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	resp, err := handler(ctx, req)
	if err == nil {
		return resp, nil
	}
	return nil, concealed(ctx, err)
}

func statusStream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	err := handler(srv, statusServerStream{ss})
	if err == nil {
		return nil
	}
	return concealed(ss.Context(), err)
}

// concealed notes a hidden cause for the call's log line.
func concealed(ctx context.Context, err error) error {
	_, shown := status.FromError(err)
	if c, ok := ctx.Value(callKey{}).(*call); ok && !shown {
		c.cause = err
	}
	return seen(err)
}

// statusServerStream gives the handler the errors of a network stream also in
// process, where they are bare context errors, and io.EOF for a failed send.
type statusServerStream struct{ grpc.ServerStream }

func (s statusServerStream) SendMsg(m any) error {
	return streamError(s.Context(), s.ServerStream.SendMsg(m), false)
}

func (s statusServerStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return streamError(s.Context(), err, true)
	}
	return malformed(m)
}

// streamError leaves statuses and, where it may be, io.EOF alone.
func streamError(ctx context.Context, err error, eof bool) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF):
		if eof {
			return err
		}
		if ctx.Err() != nil {
			return status.FromContextError(ctx.Err()).Err()
		}
		return status.Error(codes.Unavailable, "the stream has ended")
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.FromContextError(err).Err()
}
