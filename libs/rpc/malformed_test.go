package rpc_test

import (
	"context"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/status"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/rpc"
	novapb "github.com/nova-stream/nova/proto/gen/nova/v1"
)

// raw sends bytes as they are, as clients in other languages may.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error) { return *(v.(*[]byte)), nil }
func (raw) Unmarshal([]byte, any) error   { return nil }
func (raw) Name() string                  { return "proto" }

var _ encoding.Codec = raw{}

// A request that cannot be read is its caller's mistake, and nothing of it was
// done: not INTERNAL, which clients try again for minutes.
func TestRequestsThatCannotBeRead(t *testing.T) {
	srv, err := rpc.NewServer(rpc.ServerConfig{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	s := &service{
		append: func(context.Context, *novapb.AppendRequest) (*novapb.AppendResponse, error) {
			t.Error("the handler was called")
			return &novapb.AppendResponse{}, nil
		},
		session: func(srv novapb.AppendService_AppendSessionServer) error {
			_, err := srv.Recv()
			return err
		},
		subscribe: func(*novapb.SubscribeRequest, novapb.ReadService_SubscribeServer) error {
			t.Error("the handler was called")
			return nil
		},
	}
	novapb.RegisterAppendServiceServer(srv, s)
	novapb.RegisterReadServiceServer(srv, s)
	srv.Start()
	defer srv.Stop(context.Background())
	pool, err := rpc.NewPool(rpc.PoolConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	conn, err := pool.Address(srv.Address())
	if err != nil {
		t.Fatal(err)
	}
	unary := func(method string) func(b []byte) error {
		return func(b []byte) error {
			return conn.Invoke(t.Context(), method, &b, new(struct{}), grpc.ForceCodec(raw{}))
		}
	}
	stream := func(method string) func(b []byte) error {
		return func(b []byte) error {
			c, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method, grpc.ForceCodec(raw{}))
			if err != nil {
				return err
			}
			if err := c.SendMsg(&b); err != nil {
				return err
			}
			if err := c.CloseSend(); err != nil {
				return err
			}
			return c.RecvMsg(new(struct{}))
		}
	}
	for _, c := range []struct {
		name  string
		call  func([]byte) error
		sent  []byte
		field string
	}{
		{"a string", unary(novapb.AppendService_Append_FullMethodName), []byte("\x0a\x01\xff"), "bucket"},
		{"another string", unary(novapb.AppendService_Append_FullMethodName), []byte("\x0a\x01a\x12\x02a\x80"), "stream"},
		{"within a message", stream(novapb.AppendService_AppendSession_FullMethodName), []byte("\x0a\x03\x0a\x01\xff"), "open.bucket"},
		{"of a stream of answers", stream(novapb.ReadService_Subscribe_FullMethodName), []byte("\x0a\x01\xff"), "bucket"},
		{"no message", unary(novapb.AppendService_Append_FullMethodName), []byte("\x0a\x7f"), ""},
		{"no message in a stream", stream(novapb.AppendService_AppendSession_FullMethodName), []byte("\xff\xff"), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.call(c.sent)
			if status.Code(err) != codes.InvalidArgument || reason.OutcomeOf(err) != reason.NotCommitted {
				t.Fatalf("got %v, outcome %q", err, reason.OutcomeOf(err))
			}
			field := ""
			for _, d := range status.Convert(err).Details() {
				if bad, ok := d.(*errdetails.BadRequest); ok {
					field = bad.GetFieldViolations()[0].GetField()
				}
			}
			if field != c.field {
				t.Errorf("%v names the field %q, want %q", err, field, c.field)
			}
		})
	}
}
