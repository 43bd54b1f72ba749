package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// SubscribeConfig holds a subscription's settings. Zero values take the
// defaults.
type SubscribeConfig struct {
	// Request says where to start and when to end. Without HeartbeatMs it asks
	// for one every 5 s.
	Request *novapb.SubscribeRequest
	// Patience is how long it tries to reconnect without receiving anything,
	// default 2 min.
	Patience time.Duration
	// Silence ends a connection that sends nothing, not even heartbeats, for so
	// long; default three heartbeats and 5 s.
	Silence time.Duration
}

// Subscription receives records in order. Use it from one goroutine.
type Subscription struct {
	client *Client
	cfg    SubscribeConfig
	req    *novapb.SubscribeRequest
	check  continuity
	ctx    context.Context
	cancel context.CancelFunc
	call   novapb.ReadService_SubscribeClient // nil: not connected
	hangUp context.CancelFunc                 // of call
	lost   time.Time                          // since when nothing is received; zero: it is
	try    int
	end    error // io.EOF or a failure: what every further Next returns
}

const defaultHeartbeat = 5 * time.Second

// Subscribe returns a subscription; it connects at the first Next. Close MUST
// follow.
func (c *Client) Subscribe(ctx context.Context, cfg SubscribeConfig) *Subscription {
	if cfg.Patience <= 0 {
		cfg.Patience = defaultPatience
	}
	s := &Subscription{client: c, cfg: cfg, req: proto.CloneOf(cfg.Request)}
	if s.req.HeartbeatMs == 0 {
		s.req.HeartbeatMs = uint32(defaultHeartbeat / time.Millisecond)
	}
	if s.cfg.Silence <= 0 {
		s.cfg.Silence = 3*time.Duration(s.req.GetHeartbeatMs())*time.Millisecond + 5*time.Second
	}
	if at, ok := s.req.GetStart().(*novapb.SubscribeRequest_Seq); ok && !s.req.GetClamp() {
		s.check.expect(at.Seq)
	}
	s.ctx, s.cancel = context.WithCancel(ctx)
	return s
}

// Next returns the next message, which holds records or, as a heartbeat, none.
// io.EOF means that a limit of the request or the end of a sealed stream was
// reached. It reconnects by itself, at the record that is due: one that was
// trimmed meanwhile is an error with reason TRIMMED, a stream that was deleted
// STREAM_NOT_FOUND or STREAM_DELETING. After an error it returns the same again.
func (s *Subscription) Next() (*novapb.SubscribeResponse, error) {
	for s.end == nil {
		msg, err := s.receive()
		if err == nil {
			s.lost, s.try = time.Time{}, 0
			if msg, s.end = s.take(msg); msg != nil {
				return msg, nil
			}
			continue
		}
		s.drop()
		switch {
		case s.ctx.Err() != nil:
			s.end = s.ctx.Err()
		case errors.Is(err, io.EOF) || !temporary(err):
			s.end = err
		default:
			if s.lost.IsZero() {
				s.lost = time.Now()
			}
			if time.Since(s.lost) >= s.cfg.Patience {
				s.end = fmt.Errorf("nothing received for %s: %w", s.cfg.Patience, err)
			} else if pause(s.ctx, s.try, err) {
				s.try++
			}
		}
	}
	s.Close()
	return nil, s.end
}

// take checks a message and notes where to go on. The message is nil if it
// says nothing to the caller; the error ends the subscription.
func (s *Subscription) take(msg *novapb.SubscribeResponse) (*novapb.SubscribeResponse, error) {
	_, byTime := s.req.GetStart().(*novapb.SubscribeRequest_Timestamp)
	run := run{records: msg.GetRecords(), before: msg.GetHashBefore(), after: msg.GetHashAfter(), next: msg.GetNextSeq()}
	n, err := s.check.follow(run, byTime, s.req)
	if err != nil {
		return nil, err
	}
	if n < len(msg.GetRecords()) {
		// A limit falls into a message only after a reconnection.
		if n == 0 {
			return nil, io.EOF
		}
		return &novapb.SubscribeResponse{
			Records: msg.GetRecords()[:n], NextSeq: msg.GetRecords()[n].GetSeq(), Tail: msg.GetTail(), StreamId: msg.GetStreamId(), HashBefore: msg.GetHashBefore(),
		}, io.EOF
	}
	s.req.StreamId = msg.GetStreamId()
	// A start by time stays one until a record was found by it.
	if s.check.any || !byTime {
		s.req.Start = &novapb.SubscribeRequest_Seq{Seq: msg.GetNextSeq()}
		s.req.Clamp = false // what follows must follow
	}
	return msg, nil
}

// receive connects if need be and receives one message. A connection that is
// silent for too long is ended.
func (s *Subscription) receive() (*novapb.SubscribeResponse, error) {
	if s.call == nil {
		var ctx context.Context
		ctx, s.hangUp = context.WithCancel(s.ctx)
		watch := time.AfterFunc(s.cfg.Silence, s.hangUp)
		call, err := s.client.Reads.Subscribe(ctx, s.req)
		if !watch.Stop() {
			return nil, s.silent()
		}
		if err != nil {
			return nil, err
		}
		s.call = call
	}
	watch := time.AfterFunc(s.cfg.Silence, s.hangUp)
	msg, err := s.call.Recv()
	if !watch.Stop() && err != nil {
		return nil, s.silent()
	}
	return msg, err
}

func (s *Subscription) silent() error {
	return status.Errorf(codes.Unavailable, "the subscription was silent for %s", s.cfg.Silence)
}

func (s *Subscription) drop() {
	s.call = nil
	if s.hangUp != nil {
		s.hangUp()
	}
}

// Close ends the subscription. It may be called while another goroutine waits in
// Next, which then returns an error.
func (s *Subscription) Close() { s.cancel() }
