package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/discovery/local"
	"github.com/nova-stream/nova/libs/discovery/resolver"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/rpc"
	novapb "github.com/nova-stream/nova/proto/gen/nova/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// service answers as its fields say; what is nil is not called by the test.
type service struct {
	novapb.UnimplementedAppendServiceServer
	novapb.UnimplementedReadServiceServer
	append    func(context.Context, *novapb.AppendRequest) (*novapb.AppendResponse, error)
	session   func(novapb.AppendService_AppendSessionServer) error
	subscribe func(*novapb.SubscribeRequest, novapb.ReadService_SubscribeServer) error
}

func (s *service) Append(ctx context.Context, r *novapb.AppendRequest) (*novapb.AppendResponse, error) {
	return s.append(ctx, r)
}

func (s *service) AppendSession(srv novapb.AppendService_AppendSessionServer) error {
	return s.session(srv)
}

func (s *service) Subscribe(r *novapb.SubscribeRequest, srv novapb.ReadService_SubscribeServer) error {
	return s.subscribe(r, srv)
}

// log is a buffer that several goroutines may write.
type log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// shape is a running server of one kind and a pool that reaches it.
type shape struct {
	endpoint rpc.Endpoint
	pool     *rpc.Pool
	registry discovery.Registry
	log      *log
	spans    *tracetest.SpanRecorder
	metrics  *sdkmetric.ManualReader
	conn     grpc.ClientConnInterface
}

func (s *shape) append() novapb.AppendServiceClient { return novapb.NewAppendServiceClient(s.conn) }

// inShapes runs a test over a network and in process.
func inShapes(t *testing.T, svc *service, validate func(proto.Message) error, f func(*testing.T, *shape)) {
	for _, name := range []string{"network", "inproc"} {
		t.Run(name, func(t *testing.T) {
			s := &shape{log: &log{}, spans: tracetest.NewSpanRecorder(), metrics: sdkmetric.NewManualReader(), registry: local.New()}
			tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(s.spans))
			opts := rpc.Options{
				Log:      slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
				Tracer:   tracer,
				Meter:    sdkmetric.NewMeterProvider(sdkmetric.WithReader(s.metrics)),
				Validate: validate,
			}
			pool := rpc.PoolConfig{Options: rpc.Options{Tracer: tracer}, Registry: s.registry, Resolver: resolver.New(s.registry)}
			var err error
			if name == "network" {
				s.endpoint, err = rpc.NewServer(rpc.ServerConfig{Options: opts, Listen: "127.0.0.1:0"})
			} else {
				pool.Inproc = rpc.NewInproc(opts)
				s.endpoint, err = pool.Inproc.Server("append")
			}
			if err != nil {
				t.Fatal(err)
			}
			novapb.RegisterAppendServiceServer(s.endpoint, svc)
			novapb.RegisterReadServiceServer(s.endpoint, svc)
			if s.pool, err = rpc.NewPool(pool); err != nil {
				t.Fatal(err)
			}
			s.endpoint.Start()
			t.Cleanup(func() {
				if err := s.pool.Close(); err != nil {
					t.Error(err)
				}
				ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
				defer cancel()
				s.endpoint.Stop(ctx)
				if err := s.registry.Close(); err != nil {
					t.Error(err)
				}
			})
			if s.conn, err = s.pool.Address(s.endpoint.Address()); err != nil {
				t.Fatal(err)
			}
			f(t, s)
		})
	}
}

// patience is how long something may take that must happen: long enough for a slow
// machine.
const patience = 30 * time.Second

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

func TestErrors(t *testing.T) {
	secret := errors.New("bucket password is swordfish")
	for _, c := range []struct {
		name    string
		err     error
		code    codes.Code
		message string
		logged  string
	}{
		{"status with details", reason.New(codes.FailedPrecondition, reason.SeqMismatch, "not next", reason.KeyTail, "7"), codes.FailedPrecondition, "not next", "level=DEBUG"},
		{"wrapped status", fmt.Errorf("append: %w", reason.New(codes.Aborted, reason.Fenced, "fenced")), codes.Aborted, "append: rpc error: code = Aborted desc = fenced", "level=DEBUG"},
		{"bad field", reason.Field("bucket", "too long"), codes.InvalidArgument, "bucket: too long", "level=INFO"},
		{"unavailable", reason.New(codes.Unavailable, reason.NoLeader, "soon"), codes.Unavailable, "soon", "level=WARN"},
		{"bare", secret, codes.Internal, "internal error", "swordfish"},
		{"deadline", fmt.Errorf("put %w: %w", context.DeadlineExceeded, secret), codes.DeadlineExceeded, "the deadline passed", "swordfish"},
		{"canceled", fmt.Errorf("put: %w", context.Canceled), codes.Canceled, "the call was canceled", "put: context canceled"},
	} {
		t.Run(c.name, func(t *testing.T) {
			svc := &service{append: func(context.Context, *novapb.AppendRequest) (*novapb.AppendResponse, error) { return nil, c.err }}
			inShapes(t, svc, nil, func(t *testing.T, s *shape) {
				_, err := s.append().Append(within(t), &novapb.AppendRequest{})
				if status.Code(err) != c.code || status.Convert(err).Message() != c.message {
					t.Errorf("got %v, want %s %q", err, c.code, c.message)
				}
				if errors.Is(err, secret) || errors.Is(err, context.DeadlineExceeded) {
					t.Error("the Go error came through")
				}
				if rpc.NotSent(err) {
					t.Error("an answered call counts as not sent")
				}
				if got, want := reason.Of(err), reason.Of(c.err); got != want {
					t.Errorf("reason %q, want %q", got, want)
				}
				eventually(t, "the cause is logged", func() bool { return strings.Contains(s.log.String(), c.logged) })
			})
		})
	}
}

func TestPanic(t *testing.T) {
	svc := &service{
		append: func(context.Context, *novapb.AppendRequest) (*novapb.AppendResponse, error) { panic("boom unary") },
		session: func(novapb.AppendService_AppendSessionServer) error {
			panic("boom stream")
		},
	}
	inShapes(t, svc, nil, func(t *testing.T, s *shape) {
		_, err := s.append().Append(within(t), &novapb.AppendRequest{})
		if status.Code(err) != codes.Internal || strings.Contains(err.Error(), "boom") {
			t.Errorf("unary: %v", err)
		}
		ss, err := s.append().AppendSession(within(t))
		if err == nil {
			_, err = ss.Recv()
		}
		if status.Code(err) != codes.Internal || strings.Contains(err.Error(), "boom") {
			t.Errorf("stream: %v", err)
		}
		for _, want := range []string{"boom unary", "boom stream", "shape_test.go"} {
			if !strings.Contains(s.log.String(), want) {
				t.Errorf("the log lacks %q", want)
			}
		}
		if got := sum(t, s.metrics, "nova.rpc.server.panics"); got != 2 {
			t.Errorf("%d panics counted, want 2", got)
		}
	})
}

func TestValidation(t *testing.T) {
	svc := &service{
		append: func(context.Context, *novapb.AppendRequest) (*novapb.AppendResponse, error) {
			return &novapb.AppendResponse{}, nil
		},
		session: func(srv novapb.AppendService_AppendSessionServer) error {
			_, err := srv.Recv()
			return err
		},
	}
	refuse := func(m proto.Message) error {
		switch m := m.(type) {
		case *novapb.AppendRequest:
			if m.GetBucket() != "" {
				return nil
			}
		}
		return reason.Field("bucket", "must be set")
	}
	inShapes(t, svc, refuse, func(t *testing.T, s *shape) {
		if _, err := s.append().Append(within(t), &novapb.AppendRequest{}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("unary: %v", err)
		}
		if _, err := s.append().Append(within(t), &novapb.AppendRequest{Bucket: "b"}); err != nil {
			t.Errorf("valid: %v", err)
		}
		ss, err := s.append().AppendSession(within(t))
		if err != nil {
			t.Fatal(err)
		}
		if err := ss.Send(&novapb.AppendSessionRequest{}); err != nil {
			t.Fatal(err)
		}
		if _, err := ss.Recv(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("stream: %v", err)
		}
	})
}

type key struct{}

func TestContext(t *testing.T) {
	type seen struct {
		value    any
		deadline time.Time
		auth     []string
	}
	got := make(chan seen, 1)
	svc := &service{append: func(ctx context.Context, _ *novapb.AppendRequest) (*novapb.AppendResponse, error) {
		d, _ := ctx.Deadline()
		got <- seen{ctx.Value(key{}), d, metadata.ValueFromIncomingContext(ctx, "authorization")}
		return &novapb.AppendResponse{}, grpc.SetHeader(ctx, metadata.Pairs("life", "9"))
	}}
	inShapes(t, svc, nil, func(t *testing.T, s *shape) {
		ctx := context.WithValue(within(t), key{}, "of the caller")
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer x")
		var header metadata.MD
		if _, err := s.append().Append(ctx, &novapb.AppendRequest{}, grpc.Header(&header)); err != nil {
			t.Fatal(err)
		}
		g := <-got
		want, _ := ctx.Deadline()
		if g.value != nil {
			t.Error("a context value came through")
		}
		if d := g.deadline.Sub(want).Abs(); d > patience/2 { // of what a network sends on, its way is missing
			t.Errorf("deadline is off by %s", d)
		}
		if len(g.auth) != 1 || g.auth[0] != "Bearer x" {
			t.Errorf("metadata %v", g.auth)
		}
		if v := header.Get("life"); len(v) != 1 || v[0] != "9" {
			t.Errorf("header %v", header)
		}
	})
}

func TestCallerCancels(t *testing.T) {
	var entered atomic.Int64
	unary, started, session := make(chan error, 100), make(chan struct{}, 1), make(chan error, 1)
	svc := &service{
		append: func(ctx context.Context, _ *novapb.AppendRequest) (*novapb.AppendResponse, error) {
			entered.Add(1)
			<-ctx.Done()
			unary <- ctx.Err()
			return nil, ctx.Err()
		},
		session: func(srv novapb.AppendService_AppendSessionServer) error {
			started <- struct{}{}
			_, err := srv.Recv()
			session <- err
			return err
		},
	}
	inShapes(t, svc, nil, func(t *testing.T, s *shape) {
		entered.Store(0)
		// On a busy machine the deadline may be over before the call is there.
		for limit := 20 * time.Millisecond; entered.Load() == 0 && limit < time.Minute; limit *= 2 {
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			if _, err := s.append().Append(ctx, &novapb.AppendRequest{}); status.Code(err) != codes.DeadlineExceeded {
				t.Errorf("unary: %v", err)
			}
			cancel()
		}
		if err := receive(t, unary); err == nil {
			t.Error("unary: the handler's context did not end")
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		ss, err := s.append().AppendSession(ctx)
		if err != nil {
			t.Fatal(err)
		}
		receive(t, started)
		cancel()
		if _, err := ss.Recv(); status.Code(err) != codes.Canceled {
			t.Errorf("stream: the caller got %v", err)
		}
		if err := ss.Send(&novapb.AppendSessionRequest{}); !errors.Is(err, io.EOF) {
			t.Errorf("send after the end: %v, want EOF", err)
		}
		if err := receive(t, session); status.Code(err) != codes.Canceled {
			t.Errorf("stream: the handler got %v", err)
		}
	})
}

// A call with one request and many answers that ends before its request is sent says
// why it ended, by its first answer: io.EOF would be an answer of its own.
func TestACallThatEndsBeforeItsRequest(t *testing.T) {
	svc := &service{subscribe: func(*novapb.SubscribeRequest, novapb.ReadService_SubscribeServer) error { return nil }}
	inShapes(t, svc, nil, func(t *testing.T, s *shape) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		cs, err := s.conn.NewStream(ctx, &novapb.ReadService_ServiceDesc.Streams[0], novapb.ReadService_Subscribe_FullMethodName)
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := cs.SendMsg(&novapb.SubscribeRequest{}); err != nil {
			t.Errorf("send: %v", err)
		}
		if err := cs.CloseSend(); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := cs.RecvMsg(&novapb.SubscribeResponse{}); status.Code(err) != codes.Canceled {
			t.Errorf("receive: %v", err)
		}
	})
}

// receive returns what comes from a channel, within the time of a test.
func receive[T any](t *testing.T, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(time.Minute):
		t.Fatal("nothing came")
	}
	return v
}

// A handler that reads nothing stops its caller after a bounded number of messages.
func TestBackpressure(t *testing.T) {
	release := make(chan struct{})
	svc := &service{session: func(srv novapb.AppendService_AppendSessionServer) error {
		<-release
		for {
			if _, err := srv.Recv(); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
		}
	}}
	inShapes(t, svc, nil, func(t *testing.T, s *shape) {
		release = make(chan struct{})
		ss, err := s.append().AppendSession(within(t))
		if err != nil {
			t.Fatal(err)
		}
		big := &novapb.AppendSessionRequest{Message: &novapb.AppendSessionRequest_Batch{Batch: &novapb.AppendSessionBatch{
			Records: []*novapb.AppendRecord{{Body: make([]byte, 1<<20)}}}}}
		sent := make(chan int, 100)
		go func() {
			defer close(sent)
			for i := range 50 {
				if err := ss.Send(big); err != nil {
					t.Errorf("send %d: %v", i, err)
					return
				}
				sent <- i
			}
			if err := ss.CloseSend(); err != nil {
				t.Error(err)
			}
		}()
		// It stops: nothing is sent for a while, though the sender wants to.
		last := -1
		for quiet := false; !quiet; {
			select {
			case last = <-sent:
			case <-time.After(300 * time.Millisecond):
				quiet = true
			}
		}
		if last > 40 {
			t.Errorf("%d MiB sent with nobody reading", last+1)
		}
		t.Logf("%d messages of 1 MiB are buffered", last+1)
		close(release)
		for range sent {
		}
		if _, err := ss.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("at the end: %v", err)
		}
	})
}

func TestStopIsGracefulThenHard(t *testing.T) {
	began := make(chan struct{}, 2)
	finish := make(chan struct{})
	svc := &service{
		append: func(context.Context, *novapb.AppendRequest) (*novapb.AppendResponse, error) {
			began <- struct{}{}
			<-finish
			return &novapb.AppendResponse{}, nil
		},
		session: func(srv novapb.AppendService_AppendSessionServer) error {
			began <- struct{}{}
			_, err := srv.Recv()
			return err
		},
	}
	inShapes(t, svc, nil, func(t *testing.T, s *shape) {
		finish = make(chan struct{})
		unary := make(chan error, 1)
		go func() {
			_, err := s.append().Append(context.Background(), &novapb.AppendRequest{})
			unary <- err
		}()
		ss, err := s.append().AppendSession(within(t))
		if err != nil {
			t.Fatal(err)
		}
		<-began
		<-began
		ctx, cancel := context.WithCancel(context.Background())
		stopped := make(chan struct{})
		go func() { defer close(stopped); s.endpoint.Stop(ctx) }()
		eventually(t, "new calls are refused", func() bool {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
			defer cancel()
			sub, err := novapb.NewReadServiceClient(s.conn).CheckTail(ctx, &novapb.CheckTailRequest{})
			return sub == nil && status.Code(err) != codes.Unimplemented
		})
		close(finish)
		if err := <-unary; err != nil {
			t.Errorf("the call under way: %v", err)
		}
		select {
		case <-stopped:
			t.Fatal("stopped while a stream is open")
		default:
		}
		cancel()
		<-stopped
		if _, err := ss.Recv(); status.Code(err) != codes.Unavailable {
			t.Errorf("the stream ended with %v, want UNAVAILABLE", err)
		}
		_, err = s.append().Append(within(t), &novapb.AppendRequest{})
		if status.Code(err) != codes.Unavailable || !rpc.NotSent(err) {
			t.Errorf("after the stop: %v, not sent: %v", err, rpc.NotSent(err))
		}
	})
}

func TestServiceWaitsForItsFirstNode(t *testing.T) {
	svc := &service{append: func(context.Context, *novapb.AppendRequest) (*novapb.AppendResponse, error) {
		return &novapb.AppendResponse{}, nil
	}}
	inShapes(t, svc, nil, func(t *testing.T, s *shape) {
		client := novapb.NewAppendServiceClient(s.pool.Service(discovery.Sequencer))
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		if _, err := client.Append(ctx, &novapb.AppendRequest{}); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("without a node: %v", err)
		}
		got := make(chan error, 1)
		go func() {
			_, err := client.Append(within(t), &novapb.AppendRequest{})
			got <- err
		}()
		node := discovery.Node{ID: "a", Service: discovery.Sequencer, Address: s.endpoint.Address()}
		if err := s.registry.Register(within(t), node); err != nil {
			t.Fatal(err)
		}
		if err := <-got; err != nil {
			t.Errorf("after registration: %v", err)
		}
	})
}

func TestTrace(t *testing.T) {
	var client novapb.ReadServiceClient
	svc := &service{
		append: func(ctx context.Context, _ *novapb.AppendRequest) (*novapb.AppendResponse, error) {
			sub, err := client.Subscribe(ctx, &novapb.SubscribeRequest{})
			if err != nil {
				return nil, err
			}
			_, err = sub.Recv()
			return &novapb.AppendResponse{}, err
		},
		subscribe: func(_ *novapb.SubscribeRequest, srv novapb.ReadService_SubscribeServer) error {
			return srv.Send(&novapb.SubscribeResponse{})
		},
	}
	inShapes(t, svc, nil, func(t *testing.T, s *shape) {
		client = novapb.NewReadServiceClient(s.conn)
		if _, err := s.append().Append(within(t), &novapb.AppendRequest{}); err != nil {
			t.Fatal(err)
		}
		// The inner client only took one message and went away; its span ends
		// with the context of the outer call.
		eventually(t, "four spans", func() bool { return len(s.spans.Ended()) == 4 })
		trace := s.spans.Ended()[0].SpanContext().TraceID()
		names := map[string]int{}
		for _, span := range s.spans.Ended() {
			names[span.Name()]++
			if span.SpanContext().TraceID() != trace {
				t.Errorf("%s is in another trace", span.Name())
			}
		}
		if names["nova.v1.AppendService/Append"] != 2 || names["nova.v1.ReadService/Subscribe"] != 2 {
			t.Errorf("spans %v", names)
		}
	})
}
