package rpc_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/discovery/local"
	"github.com/nova-stream/nova/libs/rpc"
	novapb "github.com/nova-stream/nova/proto/gen/nova/v1"
)

// Bytes arrive as they are, not as a copy; the message struct is another one.
func TestMessagesAreShared(t *testing.T) {
	var got *novapb.AppendRequest
	body := []byte("body")
	resp := &novapb.AppendResponse{Ack: &novapb.AppendAck{FirstSeq: 4}}
	svc := &service{append: func(_ context.Context, r *novapb.AppendRequest) (*novapb.AppendResponse, error) {
		got = r
		return resp, nil
	}}
	inShapes(t, svc, nil, func(t *testing.T, s *shape) {
		req := &novapb.AppendRequest{Bucket: "b", MatchSeq: proto.Uint64(3), Records: []*novapb.AppendRecord{{Body: body}}}
		req.ProtoReflect().SetUnknown([]byte{0xfa, 0x3f, 0x01, 'x'}) // field 1023
		want := proto.Clone(req)
		out, err := s.append().Append(within(t), req)
		if err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(want, got) || !proto.Equal(out, resp) {
			t.Errorf("got %v and %v, want %v and %v", got, out, want, resp)
		}
		if got == req || out == resp {
			t.Error("the struct itself came through")
		}
		inProcess := strings.HasPrefix(s.endpoint.Address(), rpc.Scheme)
		if shared := &got.GetRecords()[0].GetBody()[0] == &body[0]; shared != inProcess {
			t.Errorf("body shared: %v", shared)
		}
	})
}

func TestTakenPort(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, err = rpc.NewServer(rpc.ServerConfig{Listen: taken.Addr().String(), Flag: "--http-listen"})
	if err == nil {
		t.Fatal("a taken port was opened")
	}
	for _, want := range []string{"--http-listen", taken.Addr().String(), "taken", "choose another port"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %q", err, want)
		}
	}
	if _, err := rpc.NewServer(rpc.ServerConfig{Listen: "nonsense"}); err == nil || !strings.Contains(err.Error(), "host:port") {
		t.Errorf("a bad address: %v", err)
	}
}

func TestNameIsTakenUntilItsServerStops(t *testing.T) {
	i := rpc.NewInproc(rpc.Options{})
	first, err := i.Server("x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := i.Server("x"); err == nil {
		t.Error("two servers have one name")
	}
	first.Stop(context.Background())
	if _, err := i.Server("x"); err != nil {
		t.Error(err)
	}
}

// The price of a call in process, with metrics: the target is 5 µs.
func BenchmarkInprocUnary(b *testing.B) {
	meter := metric.NewMeterProvider(metric.WithReader(metric.NewManualReader()))
	i := rpc.NewInproc(rpc.Options{Meter: meter})
	s, err := i.Server("x")
	if err != nil {
		b.Fatal(err)
	}
	resp := &novapb.AppendResponse{Ack: &novapb.AppendAck{}}
	novapb.RegisterAppendServiceServer(s, &service{append: func(context.Context, *novapb.AppendRequest) (*novapb.AppendResponse, error) {
		return resp, nil
	}})
	s.Start()
	pool, err := rpc.NewPool(rpc.PoolConfig{Options: rpc.Options{Meter: meter}, Inproc: i, Registry: local.New()})
	if err != nil {
		b.Fatal(err)
	}
	defer pool.Close()
	conn, err := pool.Address(s.Address())
	if err != nil {
		b.Fatal(err)
	}
	client := novapb.NewAppendServiceClient(conn)
	req := &novapb.AppendRequest{Bucket: "b", Stream: "s", Records: []*novapb.AppendRecord{{Body: make([]byte, 1000)}}}
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := client.Append(ctx, req); err != nil {
			b.Fatal(err)
		}
	}
}
