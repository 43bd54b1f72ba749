package gateway

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/discovery/local"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/rpc"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// loose sends bytes as they are.
type loose struct{}

func (loose) Marshal(v any) ([]byte, error)   { return v.([]byte), nil }
func (loose) Unmarshal(b []byte, v any) error { return proto.Unmarshal(b, v.(proto.Message)) }
func (loose) Name() string                    { return "proto" }

var _ encoding.Codec = loose{}

// A session in which a message cannot be read ends as refused, after the answers
// to what came before: not as if it had been closed.
func TestASessionWithAMessageThatCannotBeRead(t *testing.T) {
	inproc := rpc.NewInproc(rpc.Options{})
	leader, err := inproc.Server("leader")
	if err != nil {
		t.Fatal(err)
	}
	novapb.RegisterAppendServiceServer(leader, &fake{session: (&log{}).serve})
	leader.Start()
	defer leader.Stop(context.Background())
	pool, err := rpc.NewPool(rpc.PoolConfig{Inproc: inproc, Registry: local.New()})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	up, err := pool.Address(leader.Address())
	if err != nil {
		t.Fatal(err)
	}
	s := &Service{leaders: novapb.NewAppendServiceClient(up), log: slog.New(slog.DiscardHandler)}
	s.running, s.stop = context.WithCancel(t.Context())
	defer s.stop()
	srv, err := rpc.NewServer(rpc.ServerConfig{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	novapb.RegisterAppendServiceServer(srv, s)
	srv.Start()
	defer srv.Stop(context.Background())
	conn, err := pool.Address(srv.Address())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	desc := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	call, err := conn.NewStream(ctx, desc, novapb.AppendService_AppendSession_FullMethodName, grpc.ForceCodec(loose{}))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []*novapb.AppendSessionRequest{
		{Message: &novapb.AppendSessionRequest_Open{Open: &novapb.AppendSessionOpen{Bucket: "bucket", Stream: "s"}}},
		{Message: &novapb.AppendSessionRequest_Batch{Batch: &novapb.AppendSessionBatch{Records: []*novapb.AppendRecord{{Body: []byte("a")}}}}},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if err := call.SendMsg(b); err != nil {
			t.Fatal(err)
		}
		if err := call.RecvMsg(&novapb.AppendSessionResponse{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := call.SendMsg([]byte("\x12\x7f")); err != nil {
		t.Fatal(err)
	}
	err = call.RecvMsg(&novapb.AppendSessionResponse{})
	if status.Code(err) != codes.InvalidArgument || reason.OutcomeOf(err) != reason.NotCommitted {
		t.Errorf("it ended with %v, outcome %q", err, reason.OutcomeOf(err))
	}
}
