package reader

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/rpc/wire"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

const defaultHeartbeat = 15 * time.Second

// Subscribe catches up from the start position, then follows the tail. It fetches
// only what it has room for, and nothing more before that was taken: a slow client
// slows only itself. One that takes nothing while room is short is ended.
func (s *Service) Subscribe(req *novapb.SubscribeRequest, srv novapb.ReadService_SubscribeServer) error {
	return s.subscribed(srv.Context(), func(ctx context.Context, call *wire.Call) error {
		out := &pushed{srv: srv, pace: wire.NewPace(call), call: call}
		err := s.subscribe(ctx, req, call, out)
		if call.Ended() {
			return s.delivery.ErrStalled(out.next, out.id)
		}
		return err
	})
}

// subscribed calls f with a subscription's part of the budget, unless there are
// too many.
func (s *Service) subscribed(ctx context.Context, f func(context.Context, *wire.Call) error) error {
	defer s.subscriptions.Add(-1)
	if n := s.subscriptions.Add(1); n > int64(s.cfg.MaxSubscriptions) {
		return s.over(ctx, "subscriptions", fmt.Sprintf("%d subscriptions are open, the limit", s.cfg.MaxSubscriptions))
	}
	return s.whileRunning(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		call, err := s.delivery.Open(ctx, wire.Cost(wire.LeastMessage), cancel)
		if err != nil {
			return err
		}
		defer call.Close()
		return f(ctx, call)
	})
}

func (s *Service) subscribe(ctx context.Context, req *novapb.SubscribeRequest, call *wire.Call, out outlet) error {
	var end error
	err := s.withStream(ctx, req, func(id stream.ID, key *sequencerpb.StreamKey) error {
		sub := subscription{svc: s, out: out, call: call, id: id, key: key, heartbeat: defaultHeartbeat}
		if ms := req.GetHeartbeatMs(); ms > 0 {
			sub.heartbeat = time.Duration(ms) * time.Millisecond
		}
		sub.cursor.limits = limitsOf(req)
		sub.start = sub.first(req)
		err := sub.run(ctx)
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

// outlet is where a subscription's messages go.
type outlet interface {
	// room returns room for the next message, once one may be sent. It gives back
	// what drop does if that takes long, and before it waits for others to give back
	// theirs: who waits for room holds none.
	room(ctx context.Context, atTail bool, drop func()) (*wire.Room, error)
	// larger is room for a message of at least need encoded bytes, instead of a room
	// that was given back.
	larger(ctx context.Context, need int64, drop func()) (*wire.Room, error)
	send(msg *novapb.SubscribeResponse, room *wire.Room) error
}

// pushed is an outlet whose peer takes what comes.
type pushed struct {
	srv  wire.ServerStream
	call *wire.Call
	pace *wire.Pace
	next uint64 // behind the last message
	id   string // "": none was sent
}

func (o *pushed) room(ctx context.Context, atTail bool, drop func()) (*wire.Room, error) {
	soon, cancel := context.WithTimeout(ctx, keepFetched)
	defer cancel()
	if o.pace.Wait(soon) != nil {
		drop()
		if err := o.pace.Wait(ctx); err != nil {
			return nil, err
		}
	}
	if r := o.pace.Try(atTail); r != nil {
		return r, nil
	}
	drop()
	return o.pace.Next(ctx, atTail)
}

func (o *pushed) larger(ctx context.Context, need int64, drop func()) (*wire.Room, error) {
	if r := o.call.Try(wire.Cost(need), wire.Cost(need)); r != nil {
		return r, nil
	}
	drop()
	return o.call.Take(ctx, wire.Cost(need), wire.Cost(need))
}

func (o *pushed) send(msg *novapb.SubscribeResponse, room *wire.Room) error {
	o.next, o.id = msg.GetNextSeq(), msg.GetStreamId()
	return o.pace.Send(o.srv, msg, room)
}

type subscription struct {
	cursor

	svc       *Service
	out       outlet
	call      *wire.Call
	id        stream.ID
	key       *sequencerpb.StreamKey
	heartbeat time.Duration
	begun     bool                      // a message was sent
	start     *sequencerpb.FetchRequest // resolves the start position; nil: it is known

	f    fetched
	rest *wire.Room // for f, while it is kept for the next message; nil: it is not
}

// first is the fetch that resolves the start position.
func (sub *subscription) first(req *novapb.SubscribeRequest) *sequencerpb.FetchRequest {
	fetch := &sequencerpb.FetchRequest{Stream: sub.key, Clamp: req.GetClamp()}
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

func (sub *subscription) run(ctx context.Context) error {
	defer sub.drop()
	atTail := true // until it is known
	for {
		room, err := sub.out.room(ctx, atTail, sub.drop)
		if err != nil {
			return err
		}
		if room, err = sub.fit(ctx, room); err != nil {
			return err
		}
		full, err := sub.send(ctx, room)
		if err != nil {
			return err
		}
		tail := sub.f.state.GetTail()
		atTail = uint64(sub.next) >= tail
		if sub.done || !full && (sub.exhausted() || sub.f.state.GetSealed() && atTail) {
			return nil
		}
		sub.keep(full)
	}
}

// fit fetches what the next message has, unless it is kept, and exchanges room
// that is too small for it. What was fetched is counted while that takes, or
// fetched again after it.
func (sub *subscription) fit(ctx context.Context, room *wire.Room) (*wire.Room, error) {
	for {
		if sub.rest == nil {
			if err := sub.fetch(ctx, int(room.Size()/wire.Cost(1))); err != nil {
				room.Free()
				return nil, err
			}
			if sub.start != nil {
				sub.next, sub.start = sub.f.start, nil
			}
		}
		need := sub.due(sub.f.chunks)
		if wire.Cost(need) <= room.Size() {
			return room, nil
		}
		room.Free()
		sub.keep(true)
		var err error
		if room, err = sub.out.larger(ctx, need, sub.drop); err != nil {
			return nil, err
		}
	}
}

// keep keeps what was fetched for the next message, if there is more in it and
// room for it.
func (sub *subscription) keep(more bool) {
	sub.rest.Free()
	sub.rest = nil
	if more {
		n := int64(sub.f.size())
		sub.rest = sub.call.Try(n, n)
	}
	if sub.rest == nil {
		sub.f = fetched{} // it is not held while the next is awaited
	}
}

// drop gives up what is kept: it can be fetched again.
func (sub *subscription) drop() { sub.keep(false) }

// fetch gets what a message of size bytes needs: from the start, or where it
// goes on, and then waits at the tail. The memory is given back before the message is
// sent: a client that does not take it must not hold up others.
func (sub *subscription) fetch(ctx context.Context, size int) error {
	var lostSince time.Time
	for {
		req := sub.start
		if req == nil {
			req = &sequencerpb.FetchRequest{
				Stream: sub.key, Start: &sequencerpb.FetchRequest_Seq{Seq: uint64(sub.next)}, WaitMs: uint32(sub.heartbeat / time.Millisecond),
			}
		}
		req.MaxBytes = uint64(size)
		err := sub.fetchOnce(ctx, req, size)
		if err == nil || sub.start != nil {
			return err
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

func (sub *subscription) fetchOnce(ctx context.Context, req *sequencerpb.FetchRequest, size int) error {
	memory := sub.svc.share(messageBytes)
	defer memory.release()
	f, err := sub.svc.fetch(ctx, sub.id, req, memory, sub.demand(size))
	if err == nil {
		f.reach()
		sub.f = f
	}
	return err
}

// due returns the bytes of the next record that a message may have, 0 if there is
// none.
func (sub *subscription) due(chunks []decoded) int64 {
	for i := range chunks {
		for j := range chunks[i].records {
			r := &chunks[i].records[j]
			if r.Seq >= sub.next && (sub.from == nil || r.Timestamp >= *sub.from) {
				return int64(r.Size()) + recordCost + int64(len(r.Headers))*headerCost + messageCost
			}
		}
	}
	return 0
}

// messageCost is what a message has besides its records, in bytes, at most.
const messageCost = 128

// send sends one message of what was fetched, or a heartbeat. It reports whether
// there is more.
func (sub *subscription) send(ctx context.Context, room *wire.Room) (more bool, err error) {
	var p page
	size := room.Size()/wire.Cost(1) - messageCost
	more, err = sub.fill(&p, sub.f.chunks, int(size))
	if err != nil {
		room.Free()
		return false, sub.svc.misfit(ctx, sub.id, err)
	}
	if sub.f.size() > 2*p.size {
		p.own()
	}
	sub.begun = true
	err = sub.out.send(&novapb.SubscribeResponse{
		Records: p.records, NextSeq: uint64(sub.next), Tail: sub.f.state.GetTail(), StreamId: sub.id.String(),
		HashBefore: uint64(p.before), HashAfter: uint64(p.after),
	}, room)
	if err != nil {
		return false, err
	}
	sub.svc.records.Add(ctx, int64(len(p.records)))
	sub.svc.bytes.Add(ctx, int64(p.recordsSize))
	return more, nil
}

// own copies bodies and headers, so that a message that waits within the process
// does not hold all of the chunk that it is a small part of.
func (p *page) own() {
	n := 0
	for _, r := range p.records {
		n += len(r.GetBody())
	}
	all := make([]byte, 0, n)
	for _, r := range p.records {
		at := len(all)
		all = append(all, r.GetBody()...)
		r.Body = all[at:len(all):len(all)]
		for _, h := range r.GetHeaders() {
			h.Value = append([]byte(nil), h.GetValue()...)
		}
	}
}
