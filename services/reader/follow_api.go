package reader

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/rpc/wire"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/reader/v1"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// keepFetched is for how long what was fetched is kept for a message that is not
// asked for.
const keepFetched = time.Second

// Follow is a subscription of which no message is sent that was not asked for, nor
// larger: whoever passes it on to a client that does not read stops to ask, and
// then nothing of it waits here.
func (s *Service) Follow(srv readerpb.ReaderService_FollowServer) error {
	first, err := srv.Recv()
	if errors.Is(err, io.EOF) || err == nil && first.GetSubscribe() == nil {
		return reason.Field("subscribe", "must be in the first message")
	}
	if err != nil {
		return err
	}
	return s.subscribed(srv.Context(), func(ctx context.Context, call *wire.Call) error {
		out := &pulled{srv: srv, call: call, asks: make(chan int64)}
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		// It ends with the call, which ends its Recv; it is not waited for.
		go func() {
			for msg := first; ; {
				if n := int64(min(msg.GetRoom(), 2*maxPart)); n > 0 {
					select {
					case out.asks <- n:
					case <-ctx.Done():
						return
					}
				}
				var err error
				if msg, err = srv.Recv(); err != nil {
					cancel(err)
					return
				}
			}
		}()
		err := s.subscribe(ctx, first.GetSubscribe(), call, out)
		if call.Ended() {
			return s.delivery.ErrStalled(out.next, out.id)
		}
		if errors.Is(context.Cause(ctx), io.EOF) {
			return nil // nothing more is asked for
		}
		return err
	})
}

// pulled is an outlet whose peer asks for each message.
type pulled struct {
	srv   readerpb.ReaderService_FollowServer
	call  *wire.Call
	asks  chan int64
	asked int64      // what was asked for and not sent; 0: nothing
	last  *wire.Room // of the last message
	next  uint64     // behind the last message
	id    string     // "": none was sent
}

// ask waits until a message is asked for.
func (o *pulled) ask(ctx context.Context, drop func()) error {
	if o.asked > 0 {
		return nil
	}
	timer := time.NewTimer(keepFetched)
	defer timer.Stop()
	for {
		select {
		case o.asked = <-o.asks:
			return nil
		case <-timer.C:
			drop()
		case <-ctx.Done():
			return ended(ctx, "follow")
		}
	}
}

func (o *pulled) room(ctx context.Context, _ bool, drop func()) (*wire.Room, error) {
	if err := o.ask(ctx, drop); err != nil {
		return nil, err
	}
	return o.take(ctx, min(o.asked, wire.LeastMessage), drop)
}

// take returns room for at most what was asked for.
func (o *pulled) take(ctx context.Context, least int64, drop func()) (*wire.Room, error) {
	if r := o.call.Try(wire.Cost(o.asked), wire.Cost(least)); r != nil {
		return r, nil
	}
	drop()
	if o.last != nil {
		// Who asks has it; its transport may not have told yet.
		select {
		case <-o.last.Taken():
		case <-ctx.Done():
			return nil, ended(ctx, "follow")
		}
	}
	return o.call.Take(ctx, wire.Cost(o.asked), wire.Cost(least))
}

func (o *pulled) larger(ctx context.Context, need int64, drop func()) (*wire.Room, error) {
	for o.asked < need {
		o.asked = 0
		if err := o.srv.Send(&readerpb.FollowResponse{Needs: uint64(need)}); err != nil {
			return nil, err
		}
		if err := o.ask(ctx, drop); err != nil {
			return nil, err
		}
	}
	return o.take(ctx, need, drop)
}

func (o *pulled) send(msg *novapb.SubscribeResponse, room *wire.Room) error {
	o.asked, o.last, o.next, o.id = 0, room, msg.GetNextSeq(), msg.GetStreamId()
	return wire.Send(o.srv, &readerpb.FollowResponse{Message: msg}, room)
}

// AwaitRecords returns when there is something where a read starts, or when its
// wait is over. It holds no records meanwhile.
func (s *Service) AwaitRecords(ctx context.Context, req *readerpb.AwaitRecordsRequest) (*readerpb.AwaitRecordsResponse, error) {
	out := &readerpb.AwaitRecordsResponse{}
	err := s.whileRunning(ctx, func(ctx context.Context) error {
		return s.await(ctx, req.GetRead(), out)
	})
	return out, err
}

func (s *Service) await(ctx context.Context, req *novapb.ReadRequest, out *readerpb.AwaitRecordsResponse) error {
	return s.withStream(ctx, req, func(_ stream.ID, key *sequencerpb.StreamKey) error {
		fetch := &sequencerpb.FetchRequest{Stream: key, Clamp: req.GetClamp(), MaxBytes: 1, WaitMs: req.GetWaitMs()}
		switch at := req.GetStart().(type) {
		case *novapb.ReadRequest_Seq:
			fetch.Start = &sequencerpb.FetchRequest_Seq{Seq: at.Seq}
		case *novapb.ReadRequest_Timestamp:
			fetch.Start = &sequencerpb.FetchRequest_Timestamp{Timestamp: at.Timestamp}
		case *novapb.ReadRequest_TailOffset:
			fetch.Start = &sequencerpb.FetchRequest_TailOffset{TailOffset: at.TailOffset}
		}
		res, err := s.ask(ctx, fetch)
		if err == nil {
			out.Found = len(res.GetPieces()) > 0 || res.GetStartSeq() < res.GetSettledTo() || res.GetState().GetSealed()
		}
		return err
	})
}
