package main

import (
	"context"
	"sync"

	"google.golang.org/grpc"

	"github.com/oxia-db/oxia/proto"
)

// orderWrites lets one write at a time into the server's log.
//
// A leader of Oxia v0.14.0 takes a write's offset under its lock and appends the
// entry after it let go (leaderController.write). When two clients write at
// once, the later offset may reach the log first; it is refused, and so is every
// write from then on. Only the entry into the log is ordered here: writes still
// wait for the disk together.
func orderWrites(desc *grpc.ServiceDesc) {
	var order sync.Mutex
	for i, m := range desc.Methods {
		switch m.MethodName {
		case "Write", "CreateSession", "CloseSession":
			desc.Methods[i].Handler = func(srv any, ctx context.Context, dec func(any) error, in grpc.UnaryServerInterceptor) (any, error) {
				order.Lock()
				defer order.Unlock()
				return m.Handler(srv, ctx, dec, in)
			}
		}
	}
	for i, s := range desc.Streams {
		if s.StreamName == "WriteStream" {
			desc.Streams[i].Handler = func(srv any, stream grpc.ServerStream) error {
				return srv.(proto.OxiaClientServer).WriteStream(&writeStream{ServerStream: stream, order: &order})
			}
		}
	}
}

// writeStream holds order from the receipt of a write until the server asks for
// the next one, which it does when the write is in the log. One goroutine
// receives, until there is an error.
type writeStream struct {
	grpc.ServerStream
	order *sync.Mutex
	holds bool
}

func (s *writeStream) Send(m *proto.WriteResponse) error { return s.SendMsg(m) }

func (s *writeStream) Recv() (*proto.WriteRequest, error) {
	if s.holds {
		s.holds = false
		s.order.Unlock()
	}
	m := new(proto.WriteRequest)
	if err := s.RecvMsg(m); err != nil {
		return nil, err
	}
	s.order.Lock()
	s.holds = true
	return m, nil
}
