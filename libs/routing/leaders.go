package routing

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// Names says what the names of streams mean; catalog.Names does.
type Names interface {
	Resolve(ctx context.Context, bucket, name, wantID string, why catalog.Purpose) (catalog.Named, error)
	Invalidate(bucket, name string, id stream.ID)
}

// named is a request about a stream.
type named interface {
	proto.Message
	GetBucket() string
	GetStream() string
	GetStreamId() string
}

// Leaders returns a connection for the clients of AppendService. Each call goes
// to the leader of the stream that it names, a session to that of its first
// message. A failure always carries an outcome, except the end of a session
// that was opened: there, what is not answered is unknown. A session whose leader
// owes answers when another took its place ends with UNAVAILABLE, NO_LEADER.
func (r *Router) Leaders(names Names) grpc.ClientConnInterface { return leaders{r, names} }

type leaders struct {
	router *Router
	names  Names
}

// do calls f with the leader of the named stream. A name that turns out to mean
// a deleted stream is resolved once more.
//
// f gets the id that the name was resolved to, for its request: whoever leads
// another stream of that name refuses it.
func (l leaders) do(ctx context.Context, n named, f func(conn grpc.ClientConnInterface, id string) error) error {
	for again := false; ; again = true {
		found, err := l.names.Resolve(ctx, n.GetBucket(), n.GetStream(), n.GetStreamId(), catalog.ForAppend)
		if err != nil {
			return err
		}
		err = l.router.Do(ctx, found.Shard, func(conn grpc.ClientConnInterface) error { return f(conn, found.ID.String()) })
		if again || !reason.Is(err, reason.StreamNotFound) || reason.OutcomeOf(err) == reason.Unknown {
			return err
		}
		l.names.Invalidate(n.GetBucket(), n.GetStream(), found.ID)
	}
}

// Invoke makes one call.
func (l leaders) Invoke(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
	n, ok := req.(named)
	if !ok {
		return notOfStream(method)
	}
	sent := false
	err := l.do(ctx, n, func(conn grpc.ClientConnInterface, id string) error {
		sent = true
		return conn.Invoke(ctx, method, identified(n, id), reply, opts...)
	})
	switch {
	case err == nil:
		return nil
	case !sent:
		return reason.WithOutcome(err, reason.NotCommitted)
	}
	// A failure that says nothing of its outcome came from the way there.
	return reason.WithOutcome(err, reason.Unknown)
}

// NewStream begins a session. Nobody is called before its first message.
func (l leaders) NewStream(ctx context.Context, _ *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if method != novapb.AppendService_AppendSession_FullMethodName {
		return nil, notOfStream(method)
	}
	return &session{leaders: l, ctx: ctx, opts: opts, opened: make(chan struct{})}, nil
}

// identified is a request with the id of its stream: a copy that shares what is
// in it, as requests are not changed.
func identified(n named, id string) proto.Message {
	if n.GetStreamId() != "" {
		return n
	}
	from := n.ProtoReflect()
	to := from.New()
	from.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		to.Set(f, v)
		return true
	})
	to.Set(from.Descriptor().Fields().ByName("stream_id"), protoreflect.ValueOfString(id))
	return to.Interface()
}

func notOfStream(method string) error {
	return status.Error(codes.Unimplemented, method+" is not a call to the leader of a stream")
}

// session is an AppendSession that finds its leader by its first message.
type session struct {
	leaders leaders
	ctx     context.Context
	opts    []grpc.CallOption

	begun  bool          // of the sending side
	opened chan struct{} // closed when what follows is set

	up    novapb.AppendService_AppendSessionClient
	at    *attempt                      // that opened up
	first *novapb.AppendSessionResponse // of the receiving side, nil once taken
	err   error                         // why there is no leader's session
}

// open asks for the leader's session and waits for its first answer: until
// then nothing is lost by asking another.
func (s *session) open(m *novapb.AppendSessionRequest) error {
	o := m.GetOpen()
	if o == nil {
		return reason.Field("open", "must be the first message of a session")
	}
	return s.leaders.do(s.ctx, o, func(conn grpc.ClientConnInterface, id string) error {
		up, err := novapb.NewAppendServiceClient(conn).AppendSession(s.ctx, s.opts...)
		if err != nil {
			return err
		}
		open := identified(o, id).(*novapb.AppendSessionOpen)
		if err := up.Send(&novapb.AppendSessionRequest{Message: &novapb.AppendSessionRequest_Open{Open: open}}); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		first, err := up.Recv() // also has the reason of a Send that failed
		if err != nil {
			return err
		}
		s.up, s.first, s.at = up, first, conn.(*attempt)
		s.at.keep()
		context.AfterFunc(s.ctx, s.at.end)
		return nil
	})
}

// SendMsg waits for the leader's answer to the first message.
func (s *session) SendMsg(m any) error {
	if !s.begun {
		s.begun = true
		req, _ := m.(*novapb.AppendSessionRequest)
		// No batch left yet.
		s.err = reason.WithOutcome(s.open(req), reason.NotCommitted)
		close(s.opened)
		if s.err == nil {
			return nil
		}
	}
	if s.err != nil {
		return io.EOF // RecvMsg has the reason
	}
	// Before it is sent: a sequencer that hangs takes no more than fits in between.
	s.at.owe(1)
	return s.up.SendMsg(m)
}

// RecvMsg waits for the first message to be sent.
func (s *session) RecvMsg(m any) error {
	if err := s.wait(); err != nil {
		return err
	}
	if s.first == nil {
		err := s.up.RecvMsg(m)
		if err == nil {
			s.at.owe(-1)
			return nil
		}
		s.at.end()
		return s.at.explain(err)
	}
	if to, ok := m.(proto.Message); ok {
		proto.Merge(to, s.first)
	}
	s.first = nil
	return nil
}

func (s *session) wait() error {
	select {
	case <-s.opened:
		return s.err
	case <-s.ctx.Done():
		return status.FromContextError(s.ctx.Err()).Err()
	}
}

func (s *session) CloseSend() error {
	if !s.begun {
		_ = s.SendMsg(&novapb.AppendSessionRequest{}) // RecvMsg says what is missing
	}
	if s.err != nil {
		return nil
	}
	s.at.owe(1) // the end
	return s.up.CloseSend()
}

func (s *session) Header() (metadata.MD, error) {
	if err := s.wait(); err != nil {
		return nil, err
	}
	return s.up.Header()
}

// Trailer is asked for after the end only.
func (s *session) Trailer() metadata.MD {
	if s.up == nil {
		return nil
	}
	return s.up.Trailer()
}

func (s *session) Context() context.Context { return s.ctx }
