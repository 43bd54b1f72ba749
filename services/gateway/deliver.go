package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/rpc/wire"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/reader/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// What a gateway holds of records for its callers is counted from before a reader
// is asked for it until the transport has written it (libs/rpc/wire, Budget).
// Readers send it nothing that it did not ask for. So memory is bounded whatever
// callers do.

const (
	// mostPage is the largest page, in encoded bytes.
	mostPage = 3 << 20
	// mostRecord is the largest record, in encoded bytes.
	mostRecord = stream.MaxRecordBytes + 4<<10
	// jsonCost is how often a page is held, nearly, while JSON is made of it.
	jsonCost = 6
)

// page reads one page into room that is kept until it was taken. Reads that nobody
// answers, as of a shard without a leader, do not keep room from others.
func (s *Service) page(ctx context.Context, req *novapb.ReadRequest) (*novapb.ReadResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	call, err := s.delivery.Open(ctx, 0, cancel)
	if err != nil {
		return nil, err
	}
	defer call.Close()
	times := wire.Cost(1)
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil && p.Addr.Network() == "inproc" {
		times = jsonCost
	}
	most := int64(mostPage)
	if req.HasCount() {
		most = min(mostPage, int64(min(max(1, req.GetCount()), mostPage/mostRecord+1))*mostRecord)
	}
	most = min(s.cfg.DeliveryBytes, times*most)
	room, err := call.Take(ctx, most, most)
	if err != nil {
		return nil, err
	}
	room.Fetching()
	res, err := s.read.Read(ctx, req)
	if err != nil && call.Ended() {
		return nil, s.delivery.ErrSlow()
	}
	if err != nil {
		return nil, err
	}
	room.Shrink(times * int64(proto.Size(res)))
	wire.Reply(ctx, room)
	return res, nil
}

// waited is a read that waits for records at the tail.
func (s *Service) waited(ctx context.Context, req *novapb.ReadRequest) (*novapb.ReadResponse, error) {
	now := proto.CloneOf(req)
	now.WaitMs = 0
	res, err := s.page(ctx, now)
	if err != nil || len(res.GetRecords()) > 0 || len(res.GetChunks()) > 0 || res.GetLimitReached() || res.GetEndOfStream() {
		return res, err
	}
	wait := proto.CloneOf(req)
	wait.StreamId = res.GetStreamId()
	if _, byTime := req.GetStart().(*novapb.ReadRequest_Timestamp); !byTime {
		wait.Start = &novapb.ReadRequest_Seq{Seq: res.GetNextSeq()}
	}
	found, err := s.readers.AwaitRecords(ctx, &readerpb.AwaitRecordsRequest{Read: wait})
	if err != nil {
		return nil, err
	}
	if !found.GetFound() {
		return res, nil
	}
	wait.WaitMs = 0
	return s.page(ctx, wait)
}

// Subscribe follows a stream. One message is on its way to the client while the
// next is fetched; a client that takes none has none fetched.
func (s *Service) Subscribe(req *novapb.SubscribeRequest, srv novapb.ReadService_SubscribeServer) error {
	ctx, cancel := s.whileRunning(srv.Context())
	defer cancel()
	call, err := s.delivery.Open(ctx, wire.Cost(wire.LeastMessage), cancel)
	if err != nil {
		return s.ended(srv.Context(), err)
	}
	defer call.Close()
	sub := subscription{call: call, pace: wire.NewPace(call), srv: srv}
	err = sub.run(ctx, s.readers, req)
	if call.Ended() {
		return s.delivery.ErrStalled(sub.next, sub.id)
	}
	return s.ended(srv.Context(), err)
}

// subscription is a client's.
type subscription struct {
	call *wire.Call
	pace *wire.Pace
	srv  novapb.ReadService_SubscribeServer
	up   readerpb.ReaderService_FollowClient
	next uint64 // behind the last message
	id   string // "": none was sent
}

func (sub *subscription) run(ctx context.Context, readers readerpb.ReaderServiceClient, req *novapb.SubscribeRequest) error {
	up, err := readers.Follow(ctx)
	if err != nil {
		return err
	}
	sub.up = up
	room, err := sub.pace.Next(ctx, true)
	if err != nil {
		return err
	}
	if err := sub.ask(&readerpb.FollowRequest{Subscribe: req}, room); err != nil {
		return err
	}
	for {
		res, err := up.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		msg := res.GetMessage()
		if msg == nil {
			need := wire.Cost(int64(res.GetNeeds()))
			room.Free()
			if err := sub.pace.Wait(ctx); err != nil {
				return err
			}
			if room, err = sub.call.Take(ctx, need, need); err != nil {
				return err
			}
			if err := sub.ask(&readerpb.FollowRequest{}, room); err != nil {
				return err
			}
			continue
		}
		if room, err = sub.pass(ctx, msg, room); err != nil {
			return err
		}
	}
}

// ask asks for a message that room holds.
func (sub *subscription) ask(req *readerpb.FollowRequest, room *wire.Room) error {
	req.Room = uint64(room.Size() / wire.Cost(1))
	if err := sub.up.Send(req); err != nil && !errors.Is(err, io.EOF) { // Recv has the reason
		return err
	}
	return nil
}

// pass sends a message on, once the one before was taken, and asks for the next:
// before, if there is room for both.
func (sub *subscription) pass(ctx context.Context, msg *novapb.SubscribeResponse, room *wire.Room) (next *wire.Room, err error) {
	room.Shrink(wire.Cost(int64(proto.Size(msg))))
	if err := sub.pace.Wait(ctx); err != nil {
		return nil, err
	}
	sub.next, sub.id = msg.GetNextSeq(), msg.GetStreamId()
	atTail := msg.GetNextSeq() >= msg.GetTail()
	next = sub.pace.Try(atTail)
	if next != nil {
		if err := sub.ask(&readerpb.FollowRequest{}, next); err != nil {
			return nil, err
		}
	}
	if err := sub.pace.Send(sub.srv, msg, room); err != nil || next != nil {
		return next, err
	}
	if next, err = sub.pace.Next(ctx, atTail); err != nil {
		return nil, err
	}
	return next, sub.ask(&readerpb.FollowRequest{}, next)
}

// measure opens the budget and its metrics.
func (s *Service) measure(meter metric.Meter) error {
	if meter == nil {
		meter = noop.Meter{}
	}
	cfg := wire.BudgetConfig{Bytes: s.cfg.DeliveryBytes}
	var err error
	if s.delivery, err = wire.NewMeteredBudget(cfg, meter, "nova.gateway"); err != nil {
		return fmt.Errorf("gateway: metrics: %w", err)
	}
	return nil
}
