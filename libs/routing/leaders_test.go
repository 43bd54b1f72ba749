package routing_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/discovery/local"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/routing"
	"github.com/nova-stream/nova/libs/rpc"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// names is a cache of what "log" means: a stream of shard 3.
type names struct {
	cached, current stream.ID
	forgotten       int
}

func (n *names) Resolve(_ context.Context, _, name, _ string, why catalog.Purpose) (catalog.Named, error) {
	if name != "log" {
		return catalog.Named{}, reason.New(codes.NotFound, reason.StreamNotFound, "there is no stream "+name)
	}
	if why != catalog.ForAppend {
		return catalog.Named{}, errors.New("not for an append")
	}
	return catalog.Named{ID: n.cached, Shard: 3}, nil
}

func (n *names) Invalidate(_, _ string, id stream.ID) {
	if id == n.cached {
		n.forgotten++
		n.cached = n.current
	}
}

// sequencer answers appends as its functions say.
type sequencer struct {
	novapb.UnimplementedAppendServiceServer

	append  func(*novapb.AppendRequest) error
	session func(novapb.AppendService_AppendSessionServer) error
	asked   int
}

func (s *sequencer) Append(_ context.Context, r *novapb.AppendRequest) (*novapb.AppendResponse, error) {
	s.asked++
	if err := s.append(r); err != nil {
		return nil, err
	}
	return &novapb.AppendResponse{Ack: &novapb.AppendAck{NextSeq: 1}}, nil
}

func (s *sequencer) AppendSession(srv novapb.AppendService_AppendSessionServer) error {
	s.asked++
	return s.session(srv)
}

// dial returns a client of the leaders among sequencers "inproc:a", "inproc:b"
// and so on. The first is believed to lead.
func dial(t *testing.T, n *names, all ...*sequencer) novapb.AppendServiceClient {
	t.Helper()
	return dialOn(t, local.New(), n, all...)
}

func dialOn(t *testing.T, registry *local.Registry, n *names, all ...*sequencer) novapb.AppendServiceClient {
	t.Helper()
	inproc := rpc.NewInproc(rpc.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	for i, s := range all {
		e, err := inproc.Server(string(rune('a' + i)))
		if err != nil {
			t.Fatal(err)
		}
		novapb.RegisterAppendServiceServer(e, s)
		e.Start()
		t.Cleanup(func() { e.Stop(context.Background()) })
	}
	if err := registry.PutHint(ctx, discovery.Hint{Shard: 3, Epoch: 1, Address: "inproc:a"}); err != nil {
		t.Fatal(err)
	}
	pool, err := rpc.NewPool(rpc.PoolConfig{Inproc: inproc, Registry: registry})
	if err != nil {
		t.Fatal(err)
	}
	r := routing.New(routing.Config{}, routing.Deps{Conns: pool, Registry: registry})
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, pool.Close(), registry.Close()); err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
	return novapb.NewAppendServiceClient(r.Leaders(n))
}

// echo opens a session and acknowledges its batches, one record each.
func echo(srv novapb.AppendService_AppendSessionServer) error {
	if m, err := srv.Recv(); err != nil || m.GetOpen().GetStream() != "log" {
		return fmt.Errorf("first message: %v, %w", m, err)
	}
	opened := &novapb.AppendSessionOpened{StreamId: "id"}
	if err := srv.Send(&novapb.AppendSessionResponse{Message: &novapb.AppendSessionResponse_Opened{Opened: opened}}); err != nil {
		return err
	}
	for i := uint64(0); ; i++ {
		if _, err := srv.Recv(); err != nil {
			return nil //nolint:nilerr // half-closed
		}
		ack := &novapb.AppendAck{FirstSeq: i, NextSeq: i + 1}
		if err := srv.Send(&novapb.AppendSessionResponse{BatchIndex: i, Message: &novapb.AppendSessionResponse_Ack{Ack: ack}}); err != nil {
			return err
		}
	}
}

func redirect(srv novapb.AppendService_AppendSessionServer) error {
	if _, err := srv.Recv(); err != nil {
		return err
	}
	return notLeader("inproc:b", 2)()
}

func message(m any) *novapb.AppendSessionRequest {
	switch m := m.(type) {
	case *novapb.AppendSessionOpen:
		return &novapb.AppendSessionRequest{Message: &novapb.AppendSessionRequest_Open{Open: m}}
	case *novapb.AppendSessionBatch:
		return &novapb.AppendSessionRequest{Message: &novapb.AppendSessionRequest_Batch{Batch: m}}
	}
	return nil
}

func TestAppendsFindTheLeaderAndSayTheirOutcome(t *testing.T) {
	old, current := stream.NewID(), stream.NewID()
	notFound := reason.New(codes.NotFound, reason.StreamNotFound, "deleted")
	for _, c := range []struct {
		name      string
		stream    string
		a, b      func() error
		code      codes.Code
		outcome   reason.Outcome
		forgotten int
		asked     [2]int
	}{
		{name: "the leader", a: leads, asked: [2]int{1, 0}},
		{name: "another leads", a: notLeader("inproc:b", 2), b: leads, asked: [2]int{1, 1}},
		{name: "no such name", stream: "other", code: codes.NotFound, outcome: reason.NotCommitted},
		{name: "the name was old", a: times(1, notFound), forgotten: 1, asked: [2]int{2, 0}},
		{name: "the stream is gone", a: fail(notFound), code: codes.NotFound, outcome: reason.Unknown, forgotten: 1, asked: [2]int{2, 0}},
		{name: "refused", a: fail(mismatch), code: codes.FailedPrecondition, outcome: reason.NotCommitted, asked: [2]int{1, 0}},
		{name: "the answer was lost", a: fail(gone), code: codes.Unavailable, outcome: reason.Unknown, asked: [2]int{1, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &names{cached: old, current: current}
				a := &sequencer{append: func(*novapb.AppendRequest) error { return c.a() }}
				b := &sequencer{append: func(*novapb.AppendRequest) error { return c.b() }}
				if c.stream == "" {
					c.stream = "log"
				}
				res, err := dial(t, n, a, b).Append(t.Context(), &novapb.AppendRequest{Stream: c.stream})
				if status.Code(err) != c.code || reason.OutcomeOf(err) != c.outcome {
					t.Errorf("got %v with outcome %q, want %s with %q", err, reason.OutcomeOf(err), c.code, c.outcome)
				}
				if err == nil && res.GetAck().GetNextSeq() != 1 {
					t.Errorf("answer %v", res)
				}
				if got := [2]int{a.asked, b.asked}; got != c.asked || n.forgotten != c.forgotten {
					t.Errorf("asked %v, want %v; forgot %d names, want %d", got, c.asked, n.forgotten, c.forgotten)
				}
			})
		})
	}
}

func TestSessionOpensAtTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := &sequencer{session: redirect}, &sequencer{session: echo}
		call, err := dial(t, &names{}, a, b).AppendSession(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		// The receiving side may wait before anything is sent.
		answers := make(chan string, 10)
		go func() {
			defer close(answers)
			for {
				m, err := call.Recv()
				if err != nil {
					answers <- err.Error()
					return
				}
				answers <- fmt.Sprint(m.GetOpened().GetStreamId(), m.GetAck().GetNextSeq())
			}
		}()
		for _, m := range []any{&novapb.AppendSessionOpen{Stream: "log"}, &novapb.AppendSessionBatch{}, &novapb.AppendSessionBatch{}} {
			if err := call.Send(message(m)); err != nil {
				t.Fatal(err)
			}
		}
		if err := call.CloseSend(); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"id0", "1", "2", io.EOF.Error()} {
			if got := <-answers; got != want {
				t.Errorf("answer %q, want %q", got, want)
			}
		}
		if a.asked != 1 || b.asked != 1 {
			t.Errorf("asked %d and %d times", a.asked, b.asked)
		}
	})
}

// A session that finds no leader ends with the reason, and nothing is stored.
func TestSessionThatDoesNotOpen(t *testing.T) {
	for _, c := range []struct {
		name  string
		first any
		a     func() error
		code  codes.Code
	}{
		{"no such name", &novapb.AppendSessionOpen{Stream: "other"}, leads, codes.NotFound},
		{"never a leader", &novapb.AppendSessionOpen{Stream: "log"}, fail(noLeader), codes.Unavailable},
		{"refused", &novapb.AppendSessionOpen{Stream: "log"}, fail(mismatch), codes.FailedPrecondition},
		{"a batch comes first", &novapb.AppendSessionBatch{}, leads, codes.InvalidArgument},
		{"nothing comes", nil, leads, codes.InvalidArgument},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &sequencer{session: func(novapb.AppendService_AppendSessionServer) error { return c.a() }}
				call, err := dial(t, &names{}, a).AppendSession(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if c.first != nil {
					if err := call.Send(message(c.first)); !errors.Is(err, io.EOF) {
						t.Errorf("send: %v, want io.EOF", err)
					}
				}
				if err := call.CloseSend(); err != nil {
					t.Error(err)
				}
				if _, err := call.Recv(); status.Code(err) != c.code || reason.OutcomeOf(err) != reason.NotCommitted {
					t.Errorf("got %v with outcome %q, want %s", err, reason.OutcomeOf(err), c.code)
				}
			})
		})
	}
}

// The end of its context ends a session that waits for its first message.
func TestSessionEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		call, err := dial(t, &names{}, &sequencer{session: echo}).AppendSession(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := call.Recv(); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("got %v", err)
		}
	})
}

func TestOnlyAppendsHaveALeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := routing.New(routing.Config{}, routing.Deps{}).Leaders(&names{})
		if err := r.Invoke(t.Context(), novapb.BucketService_ListBuckets_FullMethodName, &novapb.ListBucketsRequest{}, nil); status.Code(err) != codes.Unimplemented {
			t.Errorf("a call: %v", err)
		}
		if _, err := r.NewStream(t.Context(), &grpc.StreamDesc{}, novapb.ReadService_Subscribe_FullMethodName); status.Code(err) != codes.Unimplemented {
			t.Errorf("a stream: %v", err)
		}
	})
}
