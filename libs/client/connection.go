package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// connect makes one AppendSession call: it sends everything that is not
// acknowledged, then what comes, until it breaks or nothing is left to do.
func (s *Session) connect() error {
	s.mu.Lock()
	s.tried = max(s.tried, s.sent)
	s.sent = 0
	s.mu.Unlock()
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	var opened atomic.Bool
	heard := &silence{limit: s.cfg.Silence, cancel: cancel, owed: func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return !opened.Load() || s.sent > 0 || s.closing
	}}
	defer heard.start()()
	call, err := s.client.Appends.AppendSession(ctx)
	if err != nil {
		return heard.explain(err)
	}
	open := &novapb.AppendSessionOpen{
		Bucket: s.cfg.Bucket, Stream: s.cfg.Stream, StreamId: s.cfg.StreamID, ProducerId: s.cfg.Producer, ProducerEpoch: s.cfg.Epoch,
	}
	if err := call.Send(&novapb.AppendSessionRequest{Message: &novapb.AppendSessionRequest_Open{Open: open}}); err != nil && !errors.Is(err, io.EOF) {
		return heard.explain(err)
	}
	first, err := call.Recv() // also has the reason of a Send that failed
	if err != nil {
		return heard.explain(unfinished(err))
	}
	if first.GetOpened() == nil {
		return fmt.Errorf("the server's first answer of a session is not opened: %w", ErrBroken)
	}
	// From here on the session is of this stream, whatever becomes of the name.
	s.cfg.StreamID = first.GetOpened().GetStreamId()
	heard.mark()
	opened.Store(true)
	halted, halt := context.WithCancel(ctx)
	defer halt()
	sending := make(chan struct{})
	go func() {
		defer close(sending)
		s.sendLoop(halted, call, heard)
	}()
	err = s.receiveLoop(call, heard, func() {
		halt()
		s.wake()
	})
	cancel()
	s.wake()
	<-sending
	var refused *refusal
	if errors.As(err, &refused) && refused.outcome == reason.NotCommitted {
		s.mu.Lock()
		if s.tried == 0 {
			s.sent = 0 // as if it had not been sent
		}
		s.mu.Unlock()
	}
	return heard.explain(err)
}

// receiveLoop takes answers until the call ends; nil if nothing is missing. It
// halts the sending once a batch has failed.
func (s *Session) receiveLoop(call novapb.AppendService_AppendSessionClient, heard *silence, halt func()) error {
	for index := uint64(0); ; index++ {
		res, err := call.Recv()
		if err != nil {
			s.mu.Lock()
			complete := errors.Is(err, io.EOF) && len(s.unacked) == 0
			s.mu.Unlock()
			if complete {
				return nil
			}
			return unfinished(err)
		}
		heard.mark()
		if res.GetBatchIndex() != index {
			return fmt.Errorf("the server answered batch %d of the connection, due is %d: %w", res.GetBatchIndex(), index, ErrBroken)
		}
		switch m := res.GetMessage().(type) {
		case *novapb.AppendSessionResponse_Failure:
			halt()
			return refusalOf(call, m.Failure)
		case *novapb.AppendSessionResponse_Ack:
			if err := s.acknowledge(m.Ack); err != nil {
				return err
			}
		default:
			return fmt.Errorf("the server's answer to a batch is neither ack nor failure: %w", ErrBroken)
		}
	}
}

// unfinished makes an error of a call that ended before it should.
func unfinished(err error) error {
	if errors.Is(err, io.EOF) {
		return status.Error(codes.Unavailable, "the server ended the session")
	}
	return err
}

// refusalOf returns the answer to a batch that failed, which those behind it
// share. The end of the call has the details, such as the tail.
func refusalOf(call novapb.AppendService_AppendSessionClient, f *novapb.AppendSessionFailure) error {
	r := &refusal{outcome: reason.Unknown}
	if f.GetOutcome() == novapb.Outcome_OUTCOME_NOT_COMMITTED {
		r.outcome = reason.NotCommitted
	}
	var end error
	for end == nil {
		_, end = call.Recv()
	}
	if f.GetReason() != "" && reason.Is(end, reason.Reason(f.GetReason())) {
		r.error = end
		return r
	}
	r.error = reason.New(codes.Code(uint32(f.GetCode())), reason.Reason(f.GetReason()), f.GetMessage())
	return r
}

// sendLoop sends what is in line; once the session closes and all of it is
// sent, or ctx ends, it half-closes the call.
func (s *Session) sendLoop(ctx context.Context, call novapb.AppendService_AppendSessionClient, heard *silence) {
	for {
		s.mu.Lock()
		for s.sent >= len(s.unacked) && !s.closing && ctx.Err() == nil {
			s.changed.Wait()
		}
		if ctx.Err() != nil {
			s.mu.Unlock()
			_ = call.CloseSend()
			return
		}
		if s.sent == 0 {
			heard.mark() // nothing was owed until now
		}
		if s.sent >= len(s.unacked) {
			s.mu.Unlock()
			_ = call.CloseSend()
			return
		}
		b := s.unacked[s.sent]
		s.sent++
		s.mu.Unlock()
		msg := novapb.AppendSessionBatch_builder{Records: b.records, BatchSeq: b.seq, MatchSeq: b.match, Seal: b.seal, FencingToken: s.cfg.FencingToken}.Build()
		if err := call.Send(&novapb.AppendSessionRequest{Message: &novapb.AppendSessionRequest_Batch{Batch: msg}}); err != nil {
			return // the receiving side gets the reason
		}
		heard.mark() // a slow line is no silence
	}
}

// acknowledge takes the ack of the first batch in line.
func (s *Session) acknowledge(ack *novapb.AppendAck) error {
	s.mu.Lock()
	if s.sent == 0 {
		s.mu.Unlock()
		return fmt.Errorf("the server acknowledged what was not sent: %w", ErrBroken)
	}
	b := s.unacked[0]
	if n := ack.GetNextSeq() - ack.GetFirstSeq(); n != uint64(len(b.records)) || ack.GetFirstSeq() < s.stored.NextSeq {
		s.mu.Unlock()
		return fmt.Errorf("the ack of batch %d with %d records after number %d says %d..%d: %w", b.seq, len(b.records), s.stored.NextSeq, ack.GetFirstSeq(), ack.GetNextSeq(), ErrBroken)
	}
	s.unacked[0] = nil
	s.unacked = s.unacked[1:]
	s.bytes -= b.size
	s.sent--
	s.tried = max(s.tried-1, 0)
	if s.stored.Records == 0 {
		s.stored.FirstSeq = ack.GetFirstSeq()
	}
	s.stored.Batches++
	s.stored.Records += uint64(len(b.records))
	s.stored.NextSeq = ack.GetNextSeq()
	s.moved, s.trouble = time.Now(), nil
	s.changed.Broadcast()
	s.mu.Unlock()
	if s.cfg.Acked != nil {
		s.cfg.Acked(ack)
	}
	return nil
}

// silence ends a call whose other side owes an answer and says nothing for too
// long. Keepalive notices dead connections; this notices live ones to a server
// that hangs.
type silence struct {
	limit  time.Duration
	cancel context.CancelFunc
	owed   func() bool
	began  time.Time
	last   atomic.Int64 // when something was heard, nanoseconds after began
	fired  atomic.Bool
}

// start starts the watch; the function it returns ends it.
func (h *silence) start() func() {
	h.began = time.Now()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		timer := time.NewTimer(h.limit)
		defer timer.Stop()
		for {
			select {
			case <-stop:
				return
			case <-timer.C:
			}
			quiet := time.Since(h.began) - time.Duration(h.last.Load())
			switch {
			case !h.owed():
				timer.Reset(h.limit)
			case quiet < h.limit:
				timer.Reset(h.limit - quiet)
			default:
				h.fired.Store(true)
				h.cancel()
				return
			}
		}
	}()
	return func() {
		close(stop)
		<-stopped
	}
}

func (h *silence) mark() { h.last.Store(int64(time.Since(h.began))) }

// explain puts the true reason in place of the cancellation that a silence
// led to.
func (h *silence) explain(err error) error {
	var refused *refusal
	if err != nil && h.fired.Load() && !errors.As(err, &refused) && !errors.Is(err, ErrBroken) {
		return status.Errorf(codes.Unavailable, "the server did not answer for %s", h.limit)
	}
	return err
}
