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

	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// ErrBroken means that what was received does not continue what was received
// before: records are missing, repeated or changed.
var ErrBroken = errors.New("the records received do not follow each other")

// SubscribeConfig holds a subscription's settings.
type SubscribeConfig struct {
	// Request says where to start and when to end.
	Request *novapb.SubscribeRequest
	// Patience is how long it tries to reconnect without receiving anything,
	// default 2 min.
	Patience time.Duration
}

// Subscription receives records in order. Use it from one goroutine.
type Subscription struct {
	client *Client
	cfg    SubscribeConfig
	req    *novapb.SubscribeRequest
	check  checker
	call   novapb.ReadService_SubscribeClient
	cancel context.CancelFunc
	ctx    context.Context
	lost   time.Time // since when nothing is received; zero: it is
	try    int
	// silence ends a connection that sends nothing, not even heartbeats.
	silence time.Duration
}

// Subscribe returns a subscription; it connects at the first Next. Close MUST
// follow.
func (c *Client) Subscribe(ctx context.Context, cfg SubscribeConfig) *Subscription {
	if cfg.Patience == 0 {
		cfg.Patience = 2 * time.Minute
	}
	s := &Subscription{client: c, cfg: cfg, req: proto.CloneOf(cfg.Request)}
	const heartbeat = 5000
	if s.req.HeartbeatMs == 0 {
		s.req.HeartbeatMs = heartbeat
	}
	s.silence = 3*time.Duration(s.req.GetHeartbeatMs())*time.Millisecond + 5*time.Second
	s.ctx, s.cancel = context.WithCancel(ctx)
	return s
}

// Next returns the next message, which holds records or, as a heartbeat, none.
// io.EOF means that a limit of the request or the end of a sealed stream was
// reached. It reconnects by itself.
func (s *Subscription) Next() (*novapb.SubscribeResponse, error) {
	for {
		msg, err := s.receive()
		if err == nil {
			s.lost, s.try = time.Time{}, 0
			if err := s.check.follow(msg.GetRecords(), msg.GetHashBefore(), msg.GetHashAfter(), &s.req.Count, &s.req.Bytes); err != nil {
				return nil, err
			}
			s.req.StreamId = msg.GetStreamId()
			// A start by time stays one until a record was found by it.
			if _, byTime := s.req.GetStart().(*novapb.SubscribeRequest_Timestamp); s.check.any || !byTime {
				s.req.Start = &novapb.SubscribeRequest_Seq{Seq: msg.GetNextSeq()}
				s.req.Clamp = false // what follows must follow
			}
			return msg, nil
		}
		s.call = nil
		if errors.Is(err, io.EOF) || s.ctx.Err() != nil || !temporary(err) {
			return nil, err
		}
		if s.lost.IsZero() {
			s.lost = time.Now()
		}
		if time.Since(s.lost) > s.cfg.Patience {
			return nil, fmt.Errorf("nothing received for %s: %w", s.cfg.Patience, err)
		}
		if !pause(s.ctx, s.try) {
			return nil, s.ctx.Err()
		}
		s.try++
	}
}

// receive connects if need be and receives one message. A connection that is
// silent for too long is ended.
func (s *Subscription) receive() (*novapb.SubscribeResponse, error) {
	if s.call == nil {
		call, err := s.client.Reads.Subscribe(s.ctx, s.req)
		if err != nil {
			return nil, err
		}
		s.call = call
	}
	type answer struct {
		msg *novapb.SubscribeResponse
		err error
	}
	got := make(chan answer, 1)
	call := s.call
	go func() {
		msg, err := call.Recv()
		got <- answer{msg, err}
	}()
	timer := time.NewTimer(s.silence)
	defer timer.Stop()
	select {
	case a := <-got:
		return a.msg, a.err
	case <-timer.C:
		return nil, status.Error(codes.Unavailable, "the subscription is silent")
	}
}

// Close ends the subscription.
func (s *Subscription) Close() { s.cancel() }

// checker sees that records follow each other.
type checker struct {
	any  bool
	next uint64
	hash uint64
}

// follow checks records against those before, and their content hash, and
// lowers what is left of the limits for a reconnection.
func (c *checker) follow(records []*novapb.Record, before, after uint64, count, bytes **uint64) error {
	if len(records) == 0 {
		return nil
	}
	if c.any && (records[0].GetSeq() != c.next || before != c.hash) {
		return fmt.Errorf("record %d with content hash %016x before it, want %d with %016x: %w", records[0].GetSeq(), before, c.next, c.hash, ErrBroken)
	}
	hash := stream.Hash(before)
	var scratch []byte
	for i, r := range records {
		if r.GetSeq() != records[0].GetSeq()+uint64(i) {
			return fmt.Errorf("record %d, want %d: %w", r.GetSeq(), records[0].GetSeq()+uint64(i), ErrBroken)
		}
		rec := recordOf(r)
		hash, scratch = chunk.HashRecord(hash, &rec, scratch)
		take(count, 1)
		take(bytes, uint64(rec.Size()))
	}
	if uint64(hash) != after {
		return fmt.Errorf("records %d..%d have content hash %016x, want %016x: %w", records[0].GetSeq(), records[len(records)-1].GetSeq(), hash, after, ErrBroken)
	}
	c.any, c.next, c.hash = true, records[len(records)-1].GetSeq()+1, after
	return nil
}

func take(limit **uint64, n uint64) {
	if *limit != nil {
		left := **limit - min(**limit, n)
		*limit = &left
	}
}

func recordOf(r *novapb.Record) stream.Record {
	out := stream.Record{Seq: stream.Seq(r.GetSeq()), Timestamp: stream.Millis(r.GetTimestamp()), Body: r.GetBody()}
	for _, h := range r.GetHeaders() {
		out.Headers = append(out.Headers, stream.Header{Name: h.GetName(), Value: h.GetValue()})
	}
	return out
}

// ReadConfig holds a bounded read's settings.
type ReadConfig struct {
	// Request says where to start and when to end.
	Request *novapb.ReadRequest
	// Patience is how long a page is asked for again while nothing answers,
	// default 2 min.
	Patience time.Duration
}

// Read calls each with every page of records from the start position to the
// tail as of the first page, or a limit. It retries what fails in passing and
// checks that pages follow each other.
func (c *Client) Read(ctx context.Context, cfg ReadConfig, each func(*novapb.ReadResponse) error) error {
	if cfg.Patience == 0 {
		cfg.Patience = 2 * time.Minute
	}
	req := proto.CloneOf(cfg.Request)
	var check checker
	var end *uint64
	failing, try := time.Time{}, 0
	for {
		page, err := c.Reads.Read(ctx, req)
		if err != nil {
			if failing.IsZero() {
				failing = time.Now()
			}
			if ctx.Err() != nil || !temporary(err) || time.Since(failing) > cfg.Patience || !pause(ctx, try) {
				return err
			}
			try++
			continue
		}
		failing, try = time.Time{}, 0
		if end == nil {
			tail := page.GetTail()
			end = &tail
		}
		if n := beyond(page.GetRecords(), *end); n < len(page.GetRecords()) {
			// The stream grew while it was read: stop where it ended at the start.
			page = &novapb.ReadResponse{Records: page.GetRecords()[:n], NextSeq: *end, Tail: page.GetTail(), StreamId: page.GetStreamId(), LimitReached: true}
			return each(page)
		}
		if err := check.follow(page.GetRecords(), page.GetHashBefore(), page.GetHashAfter(), &req.Count, &req.Bytes); err != nil {
			return err
		}
		if err := each(page); err != nil {
			return err
		}
		if page.GetLimitReached() || page.GetNextSeq() >= *end {
			return nil
		}
		req.StreamId, req.Clamp = page.GetStreamId(), false
		req.Start = &novapb.ReadRequest_Seq{Seq: page.GetNextSeq()}
	}
}

// beyond returns the index of the first record at or beyond end.
func beyond(records []*novapb.Record, end uint64) int {
	for i, r := range records {
		if r.GetSeq() >= end {
			return i
		}
	}
	return len(records)
}
