package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// SessionConfig holds a session's settings. Zero values take the defaults.
type SessionConfig struct {
	Bucket, Stream string
	// StreamID, a ULID: fail if the name means another stream. After the first
	// connection the session keeps to the stream it found.
	StreamID string
	// Producer names the session, 1..64 bytes, default a fresh ULID. With a name
	// of its own choosing a caller must also give Epoch, higher than any before.
	Producer string
	Epoch    uint64
	// MatchSeq: the first batch must get this number.
	MatchSeq *uint64
	// FencingToken of every batch.
	FencingToken *string
	// Patience is how long a session that makes no progress tries again, default
	// 2 min.
	Patience time.Duration
	// Window limits the batches sent and not acknowledged, default and at most
	// 16: as many as the stream remembers of a producer.
	Window int
	// Acked, if set, is called for each batch in order, from the session's own
	// goroutine. It must not block for long.
	Acked func(*novapb.AppendAck)
}

// maxWindow is how many of its last batches a stream remembers of a producer.
const maxWindow = 16

// Session appends batches in order, each stored once. Send may be called from
// one goroutine at a time.
type Session struct {
	client *Client
	cfg    SessionConfig
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	changed *sync.Cond
	unacked []*batch // in order
	sent    int      // of unacked, on the present connection
	next    uint64   // batch_seq
	closing bool
	err     error // set once: the session is over

	acked    uint64 // batches
	firstSeq uint64 // of the first acknowledged record
	nextSeq  uint64 // after the last acknowledged record
	progress time.Time
}

type batch struct {
	seq     uint64
	records []*novapb.AppendRecord
	match   *uint64
	seal    bool
}

// Progress says what a session has stored.
type Progress struct {
	Batches  uint64
	Records  uint64
	FirstSeq uint64 // valid when Records > 0
	NextSeq  uint64
}

// OpenSession returns a session; it connects in the background.
func (c *Client) OpenSession(ctx context.Context, cfg SessionConfig) *Session {
	if cfg.Producer == "" {
		cfg.Producer = stream.NewID().String()
	}
	if cfg.Patience == 0 {
		cfg.Patience = 2 * time.Minute
	}
	if cfg.Window <= 0 || cfg.Window > maxWindow {
		cfg.Window = maxWindow
	}
	s := &Session{client: c, cfg: cfg, done: make(chan struct{}), progress: time.Now()}
	s.changed = sync.NewCond(&s.mu)
	s.ctx, s.cancel = context.WithCancel(ctx)
	go s.run()
	return s
}

// Send puts a batch in line and returns once there is room for it in the
// window; the records must not be changed afterwards. An error means that the
// session is over: see Close for what was stored.
func (s *Session) Send(ctx context.Context, records []*novapb.AppendRecord) error {
	return s.send(ctx, records, false)
}

// SendSealing is Send, and closes the stream with the batch.
func (s *Session) SendSealing(ctx context.Context, records []*novapb.AppendRecord) error {
	return s.send(ctx, records, true)
}

func (s *Session) send(ctx context.Context, records []*novapb.AppendRecord, seal bool) error {
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		s.changed.Broadcast()
		s.mu.Unlock()
	})
	defer stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.unacked) >= s.cfg.Window && s.err == nil && ctx.Err() == nil {
		s.changed.Wait()
	}
	switch {
	case s.err != nil:
		return s.err
	case ctx.Err() != nil:
		return ctx.Err()
	case s.closing:
		return errors.New("send on a closed session")
	}
	b := &batch{seq: s.next, records: records, seal: seal}
	if s.next == 0 {
		b.match = s.cfg.MatchSeq
	}
	if len(s.unacked) == 0 {
		s.progress = time.Now()
	}
	s.next++
	s.unacked = append(s.unacked, b)
	s.changed.Broadcast()
	return nil
}

// Close waits until everything sent is acknowledged, or the session failed, or
// ctx ended, and returns what is certainly stored, with the failure.
func (s *Session) Close(ctx context.Context) (Progress, error) {
	s.mu.Lock()
	s.closing = true
	s.changed.Broadcast()
	s.mu.Unlock()
	select {
	case <-s.done:
	case <-ctx.Done():
		s.cancel()
		<-s.done
	}
	s.cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.progressLocked(), s.err
}

// Progress returns what is certainly stored by now.
func (s *Session) Progress() Progress {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.progressLocked()
}

func (s *Session) progressLocked() Progress {
	return Progress{Batches: s.acked, Records: s.nextSeq - s.firstSeq, FirstSeq: s.firstSeq, NextSeq: s.nextSeq}
}

// run keeps a connection until everything is acknowledged and the session
// closed, or it fails for good.
func (s *Session) run() {
	defer close(s.done)
	stop := context.AfterFunc(s.ctx, func() {
		s.mu.Lock()
		s.changed.Broadcast()
		s.mu.Unlock()
	})
	defer stop()
	for try := 0; s.wanted(); try++ {
		before := s.Progress().Batches
		err := s.connection()
		if err == nil {
			continue
		}
		if s.Progress().Batches > before {
			try = 0
		}
		if s.ctx.Err() != nil {
			s.fail(fmt.Errorf("append: %w", s.ctx.Err()))
			return
		}
		if !temporary(err) {
			s.fail(err)
			return
		}
		s.mu.Lock()
		stuck := time.Since(s.progress) > s.cfg.Patience
		s.mu.Unlock()
		if stuck {
			s.fail(fmt.Errorf("no progress for %s: %w", s.cfg.Patience, err))
			return
		}
		if !pause(s.ctx, try) {
			s.fail(fmt.Errorf("append: %w", s.ctx.Err()))
			return
		}
	}
}

// wanted waits until there is something to send; false when the session is over.
func (s *Session) wanted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.unacked) == 0 && !s.closing && s.ctx.Err() == nil {
		s.changed.Wait()
	}
	if s.ctx.Err() != nil && s.err == nil && !(s.closing && len(s.unacked) == 0) {
		s.err = fmt.Errorf("append: %w", s.ctx.Err())
	}
	return s.err == nil && len(s.unacked) > 0
}

func (s *Session) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
	s.changed.Broadcast()
}

// connection is one AppendSession call: it sends everything that is not
// acknowledged, then what comes, until it breaks or nothing is left to do.
func (s *Session) connection() error {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	call, err := s.client.Appends.AppendSession(ctx)
	if err != nil {
		return err
	}
	open := &novapb.AppendSessionOpen{
		Bucket: s.cfg.Bucket, Stream: s.cfg.Stream, StreamId: s.cfg.StreamID, ProducerId: s.cfg.Producer, ProducerEpoch: s.cfg.Epoch,
	}
	if err := call.Send(&novapb.AppendSessionRequest{Message: &novapb.AppendSessionRequest_Open{Open: open}}); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	first, err := call.Recv()
	if err != nil {
		return err
	}
	// From here on the session is of this stream, whatever becomes of the name.
	s.cfg.StreamID = first.GetOpened().GetStreamId()
	s.mu.Lock()
	s.sent = 0
	s.mu.Unlock()
	sending := make(chan struct{})
	go func() {
		defer close(sending)
		s.sendLoop(ctx, call)
	}()
	defer func() {
		cancel()
		s.mu.Lock()
		s.changed.Broadcast()
		s.mu.Unlock()
		<-sending
	}()
	for {
		res, err := call.Recv()
		if errors.Is(err, io.EOF) {
			s.mu.Lock()
			left := len(s.unacked)
			s.mu.Unlock()
			if left > 0 {
				return status.Error(codes.Unavailable, "the server ended the session")
			}
			return nil
		}
		if err != nil {
			return err
		}
		if f := res.GetFailure(); f != nil {
			outcome := reason.Unknown
			if f.GetOutcome() == novapb.Outcome_OUTCOME_NOT_COMMITTED {
				outcome = reason.NotCommitted
			}
			// The end of the call has the details, such as the tail.
			if _, end := call.Recv(); end != nil && reason.Of(end) == reason.Reason(f.GetReason()) && reason.Of(end) != "" {
				return reason.WithOutcome(end, outcome)
			}
			return reason.WithOutcome(reason.New(codes.Code(uint32(f.GetCode())), reason.Reason(f.GetReason()), f.GetMessage()), outcome)
		}
		s.acknowledge(res.GetAck())
	}
}

// sendLoop sends what is in line; once the session closes and all of it is
// sent, it half-closes the call.
func (s *Session) sendLoop(ctx context.Context, call novapb.AppendService_AppendSessionClient) {
	for {
		s.mu.Lock()
		for s.sent >= len(s.unacked) && !s.closing && ctx.Err() == nil {
			s.changed.Wait()
		}
		if ctx.Err() != nil {
			s.mu.Unlock()
			return
		}
		if s.sent >= len(s.unacked) {
			s.mu.Unlock()
			_ = call.CloseSend()
			return
		}
		b := s.unacked[s.sent]
		s.sent++
		s.mu.Unlock()
		msg := &novapb.AppendSessionBatch{Records: b.records, BatchSeq: b.seq, MatchSeq: b.match, Seal: b.seal, FencingToken: s.cfg.FencingToken}
		if err := call.Send(&novapb.AppendSessionRequest{Message: &novapb.AppendSessionRequest_Batch{Batch: msg}}); err != nil {
			return // the receiving side gets the reason
		}
	}
}

func (s *Session) acknowledge(ack *novapb.AppendAck) {
	s.mu.Lock()
	if len(s.unacked) == 0 {
		s.mu.Unlock()
		return
	}
	s.unacked[0] = nil
	s.unacked = s.unacked[1:]
	s.sent--
	if s.acked == 0 {
		s.firstSeq = ack.GetFirstSeq()
	}
	s.acked++
	s.nextSeq = ack.GetNextSeq()
	s.progress = time.Now()
	s.changed.Broadcast()
	s.mu.Unlock()
	if s.cfg.Acked != nil {
		s.cfg.Acked(ack)
	}
}
