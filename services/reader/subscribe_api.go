package reader

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

const defaultHeartbeat = 15 * time.Second

// Subscribe catches up from the start position, then follows the tail. It
// holds one message at a time: a slow client slows only itself.
func (s *Service) Subscribe(req *novapb.SubscribeRequest, srv novapb.ReadService_SubscribeServer) error {
	defer s.subscriptions.Add(-1)
	if n := s.subscriptions.Add(1); n > int64(s.cfg.MaxSubscriptions) {
		return s.over(srv.Context(), "subscriptions", fmt.Sprintf("%d subscriptions are open, the limit", s.cfg.MaxSubscriptions))
	}
	return s.whileRunning(srv.Context(), func(ctx context.Context) error { return s.subscribe(ctx, req, srv) })
}

func (s *Service) subscribe(ctx context.Context, req *novapb.SubscribeRequest, srv novapb.ReadService_SubscribeServer) error {
	var end error
	err := s.withStream(ctx, req, func(id stream.ID, key *sequencerpb.StreamKey) error {
		sub := subscription{svc: s, srv: srv, id: id, key: key, heartbeat: defaultHeartbeat}
		if ms := req.GetHeartbeatMs(); ms > 0 {
			sub.heartbeat = time.Duration(ms) * time.Millisecond
		}
		sub.cursor.limits = limitsOf(req)
		err := sub.run(ctx, sub.first(req))
		if sub.begun {
			// From the first message on, the subscription is of this stream: it does
			// not go on with another that got the name.
			end = err
			return nil
		}
		return err
	})
	if err == nil {
		err = end
	}
	return err
}

type subscription struct {
	cursor

	svc       *Service
	srv       novapb.ReadService_SubscribeServer
	id        stream.ID
	key       *sequencerpb.StreamKey
	heartbeat time.Duration
	begun     bool // a message was sent
}

// first is the fetch that resolves the start position.
func (sub *subscription) first(req *novapb.SubscribeRequest) *sequencerpb.FetchRequest {
	fetch := &sequencerpb.FetchRequest{Stream: sub.key, Clamp: req.GetClamp(), MaxBytes: messageBytes}
	switch at := req.GetStart().(type) {
	case *novapb.SubscribeRequest_Seq:
		fetch.Start = &sequencerpb.FetchRequest_Seq{Seq: at.Seq}
	case *novapb.SubscribeRequest_Timestamp:
		fetch.Start = &sequencerpb.FetchRequest_Timestamp{Timestamp: at.Timestamp}
		from := stream.Millis(at.Timestamp)
		sub.from = &from
	case *novapb.SubscribeRequest_TailOffset:
		fetch.Start = &sequencerpb.FetchRequest_TailOffset{TailOffset: at.TailOffset}
	}
	return fetch
}

func (sub *subscription) run(ctx context.Context, fetch *sequencerpb.FetchRequest) error {
	f, err := sub.fetch(ctx, fetch)
	if err != nil {
		return err
	}
	sub.next = f.start
	var lostSince time.Time
	for {
		if err == nil {
			lostSince = time.Time{}
			if err := sub.send(ctx, f); err != nil {
				return err
			}
			if sub.done || sub.exhausted() || f.state.GetSealed() && uint64(sub.next) == f.state.GetTail() {
				return nil
			}
			f = fetched{} // it is not held while the next is awaited
		}
		f, err = sub.fetch(ctx, &sequencerpb.FetchRequest{
			Stream: sub.key, Start: &sequencerpb.FetchRequest_Seq{Seq: uint64(sub.next)},
			MaxBytes: messageBytes, WaitMs: uint32(sub.heartbeat / time.Millisecond),
		})
		if err == nil {
			continue
		}
		if lostSince.IsZero() {
			lostSince = time.Now()
		}
		// A leader that moves is waited for; anything else is told at once.
		if reason.Code(err) != codes.Unavailable || time.Since(lostSince) > sub.svc.cfg.Patience {
			return err
		}
		select {
		case <-ctx.Done():
			return ended(ctx, "subscribe")
		case <-time.After(sub.svc.retry):
		}
	}
}

// fetch gets what about one message needs. The memory is given back before the
// message is sent: a client that does not take it must not hold up others.
func (sub *subscription) fetch(ctx context.Context, req *sequencerpb.FetchRequest) (fetched, error) {
	memory := sub.svc.share(messageBytes)
	defer memory.release()
	f, err := sub.svc.fetch(ctx, sub.id, req, memory, sub.demand(messageBytes))
	if err == nil {
		f.reach()
	}
	return f, err
}

// send sends what was fetched, in messages of bounded size, or a heartbeat.
func (sub *subscription) send(ctx context.Context, f fetched) error {
	for {
		var p page
		full, err := sub.fill(&p, f.chunks, messageBytes)
		if err != nil {
			return sub.svc.misfit(ctx, sub.id, err)
		}
		sub.begun = true
		err = sub.srv.Send(&novapb.SubscribeResponse{
			Records: p.records, NextSeq: uint64(sub.next), Tail: f.state.GetTail(), StreamId: sub.id.String(),
			HashBefore: uint64(p.before), HashAfter: uint64(p.after),
		})
		if err != nil {
			return err
		}
		sub.svc.records.Add(ctx, int64(len(p.records)))
		sub.svc.bytes.Add(ctx, int64(p.recordsSize))
		if !full || sub.done {
			return nil
		}
	}
}
