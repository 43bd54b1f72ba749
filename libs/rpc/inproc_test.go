package rpc_test

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
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
		req := &novapb.AppendRequest{Bucket: "b", MatchSeqPresence: &novapb.AppendRequest_MatchSeq{MatchSeq: 3}, Records: []*novapb.AppendRecord{{Body: body}}}
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
	defer s.Stop(context.Background())
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

// A handler sees the caller's deadline and metadata, and nothing else of its
// context; its own end ends what it derived.
func TestUnaryContext(t *testing.T) {
	type key struct{}
	derived := make(chan context.Context, 1)
	svc := &service{append: func(ctx context.Context, _ *novapb.AppendRequest) (*novapb.AppendResponse, error) {
		if ctx.Value(key{}) != nil {
			t.Error("a value of the caller's came through")
		}
		if at, ok := ctx.Deadline(); !ok || time.Until(at) > patience {
			t.Errorf("deadline %v, %v", at, ok)
		}
		if got := metadata.ValueFromIncomingContext(ctx, "who"); len(got) != 1 || got[0] != "me" {
			t.Errorf("metadata %v", got)
		}
		// Taken by nobody, and no mistake.
		if err := grpc.SetHeader(ctx, metadata.Pairs("a", "b")); err != nil {
			t.Error(err)
		}
		derived <- ctx
		return &novapb.AppendResponse{}, nil
	}}
	inShapes(t, svc, nil, func(t *testing.T, s *shape) {
		ctx := metadata.AppendToOutgoingContext(context.WithValue(within(t), key{}, 1), "who", "me")
		if _, err := s.append().Append(ctx, &novapb.AppendRequest{Bucket: "b"}); err != nil {
			t.Fatal(err)
		}
		select {
		case <-(<-derived).Done():
		case <-time.After(patience):
			t.Error("the handler's context lives on")
		}
		// Who asks for headers gets them.
		var header metadata.MD
		if _, err := s.append().Append(ctx, &novapb.AppendRequest{Bucket: "b"}, grpc.Header(&header)); err != nil || len(header.Get("a")) != 1 {
			t.Errorf("headers %v, %v", header, err)
		}
		<-derived
	})
}

// A caller that gives up goes at once, though the handler does not look at its
// context; calls side by side do not wait for each other.
func TestUnaryCallersDoNotWaitForHandlers(t *testing.T) {
	var release chan struct{}
	svc := &service{append: func(_ context.Context, r *novapb.AppendRequest) (*novapb.AppendResponse, error) {
		if r.GetStream() == "stuck" {
			<-release
		}
		return &novapb.AppendResponse{}, nil
	}}
	inShapes(t, svc, nil, func(t *testing.T, s *shape) {
		release = make(chan struct{})
		defer close(release) // the server waits for its handlers
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
				defer cancel()
				if _, err := s.append().Append(ctx, &novapb.AppendRequest{Stream: "stuck"}); status.Code(err) != codes.DeadlineExceeded {
					t.Errorf("got %v", err)
				}
			})
			wg.Go(func() {
				if _, err := s.append().Append(within(t), &novapb.AppendRequest{}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
}

// An answer that is not there is an error, not a crash.
func TestNilAnswer(t *testing.T) {
	svc := &service{append: func(context.Context, *novapb.AppendRequest) (*novapb.AppendResponse, error) { return nil, nil }}
	inShapes(t, svc, nil, func(t *testing.T, s *shape) {
		if strings.HasPrefix(s.endpoint.Address(), rpc.Scheme) {
			if _, err := s.append().Append(within(t), &novapb.AppendRequest{}); status.Code(err) != codes.Internal {
				t.Errorf("got %v", err)
			}
		}
	})
}
