package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/libs/client/clienttest"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

var config = client.SessionConfig{Bucket: bucket, Stream: name}

func send(t *testing.T, s *client.Session, batches ...[]*novapb.AppendRecord) {
	t.Helper()
	for i, b := range batches {
		if err := s.Send(limit(t), b); err != nil {
			t.Fatalf("send batch %d: %v", i, err)
		}
	}
}

func TestSessionAppendsInOrderAndAcksInOrder(t *testing.T) {
	srv, c := start(t)
	var acks []uint64
	cfg := config
	cfg.MatchSeq = ptr(uint64(0))
	cfg.Acked = func(a *novapb.AppendAck) { acks = append(acks, a.GetFirstSeq()) }
	s := c.OpenSession(limit(t), cfg)
	const batches = 60
	for i := range batches {
		send(t, s, batchOf(fmt.Sprint(2*i), fmt.Sprint(2*i+1)))
	}
	if err := s.Flush(limit(t)); err != nil || s.Progress().Batches != batches {
		t.Fatalf("flush: %v, progress %+v", err, s.Progress())
	}
	p, err := s.Close(limit(t))
	if err != nil || p != (client.Progress{Batches: batches, Records: 2 * batches, NextSeq: 2 * batches}) {
		t.Fatalf("close: %+v, %v", p, err)
	}
	if got := bodies(srv.Records(bucket, name)); !slices.Equal(got, counted(2*batches)) {
		t.Errorf("stored %v", got)
	}
	if len(acks) != batches || !slices.IsSorted(acks) {
		t.Errorf("acks of %v", acks)
	}
	if srv.Opened != 1 {
		t.Errorf("%d connections", srv.Opened)
	}
}

// Twenty answers and one error arrive together (as many as the window lets
// through): only what is not acknowledged is sent again.
func TestSessionResendsOnlyWhatIsNotAcknowledged(t *testing.T) {
	for _, c := range []struct {
		at         clienttest.Step
		err        error
		duplicates int
	}{
		{clienttest.Taking, reason.New(codes.Unavailable, reason.NoLeader, "no leader"), 0},
		{clienttest.Stored, reason.New(codes.DeadlineExceeded, "", "too slow"), 1},
		{clienttest.Stored, clienttest.Cut, 1},
	} {
		t.Run(fmt.Sprintf("%s %v", c.at, c.err), func(t *testing.T) {
			srv, cl := start(t)
			const batches = 16
			var seen atomic.Int32
			all := make(chan struct{})
			srv.SetFault(func(step clienttest.Step) error {
				switch {
				case step == clienttest.Acking:
					<-all // every answer waits for the last
				case step == c.at && seen.Add(1) == batches:
					close(all)
					return c.err
				}
				return nil
			})
			s := cl.OpenSession(limit(t), config)
			for i := range batches {
				send(t, s, batchOf(fmt.Sprint(i)))
			}
			p, err := s.Close(limit(t))
			if err != nil || p.Records != batches {
				t.Fatalf("close: %+v, %v", p, err)
			}
			if got := bodies(srv.Records(bucket, name)); !slices.Equal(got, counted(batches)) {
				t.Errorf("stored %v", got)
			}
			if srv.Duplicates != c.duplicates {
				t.Errorf("%d batches were stored and sent again, want %d", srv.Duplicates, c.duplicates)
			}
		})
	}
}

func TestSessionCountsItsOwnRecordsOnly(t *testing.T) {
	srv, c := start(t)
	srv.Store(bucket, name, "before")
	s := c.OpenSession(limit(t), config)
	send(t, s, batchOf("a"))
	if err := s.Flush(limit(t)); err != nil {
		t.Fatal(err)
	}
	srv.Store(bucket, name, "between", "between")
	send(t, s, batchOf("b"))
	p, err := s.Close(limit(t))
	if err != nil || p != (client.Progress{Batches: 2, Records: 2, FirstSeq: 1, NextSeq: 5}) {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestSessionFailsForGood(t *testing.T) {
	big := []*novapb.AppendRecord{{Body: make([]byte, stream.MaxRecordBytes+1)}}
	for _, c := range []struct {
		name    string
		prepare func(*testing.T, *clienttest.Server, *client.Client, *client.SessionConfig)
		batch   []*novapb.AppendRecord
		code    codes.Code
		reason  reason.Reason
		tail    string
	}{
		{name: "match_seq", prepare: func(_ *testing.T, _ *clienttest.Server, _ *client.Client, cfg *client.SessionConfig) {
			cfg.MatchSeq = ptr(uint64(7))
		}, code: codes.FailedPrecondition, reason: reason.SeqMismatch, tail: "0"},
		{name: "fenced", prepare: func(_ *testing.T, _ *clienttest.Server, _ *client.Client, cfg *client.SessionConfig) {
			cfg.FencingToken = ptr("mine")
		}, code: codes.Aborted, reason: reason.Fenced},
		{name: "sealed", prepare: func(t *testing.T, _ *clienttest.Server, c *client.Client, _ *client.SessionConfig) {
			if _, err := c.Appends.SealStream(t.Context(), &novapb.SealStreamRequest{Bucket: bucket, Stream: name}); err != nil {
				t.Fatal(err)
			}
		}, code: codes.FailedPrecondition, reason: reason.StreamSealed, tail: "0"},
		{name: "no stream", prepare: func(_ *testing.T, _ *clienttest.Server, _ *client.Client, cfg *client.SessionConfig) {
			cfg.Stream = "other"
		}, code: codes.NotFound, reason: reason.StreamNotFound},
		{name: "another stream", prepare: func(_ *testing.T, _ *clienttest.Server, _ *client.Client, cfg *client.SessionConfig) {
			cfg.StreamID = stream.NewID().String()
		}, code: codes.NotFound, reason: reason.StreamNotFound},
		{name: "producer fenced", prepare: func(t *testing.T, _ *clienttest.Server, c *client.Client, cfg *client.SessionConfig) {
			cfg.Producer, cfg.Epoch = "p", 2
			if _, err := c.Append(limit(t), *cfg, batchOf("newer")); err != nil {
				t.Fatal(err)
			}
			cfg.Epoch = 1
		}, code: codes.FailedPrecondition, reason: reason.ProducerFenced},
		{name: "too large", batch: big, code: codes.InvalidArgument},
		{name: "denied", prepare: func(_ *testing.T, s *clienttest.Server, _ *client.Client, _ *client.SessionConfig) {
			s.SetFault(func(clienttest.Step) error { return reason.New(codes.PermissionDenied, "", "no") })
		}, code: codes.PermissionDenied},
	} {
		t.Run(c.name, func(t *testing.T) {
			srv, cl := start(t)
			cfg := config
			if c.prepare != nil {
				c.prepare(t, srv, cl, &cfg)
			}
			stored := len(srv.Records(bucket, name))
			if c.batch == nil {
				c.batch = batchOf("x")
			}
			s := cl.OpenSession(limit(t), cfg)
			send(t, s, c.batch)
			_ = s.Send(limit(t), batchOf("after it")) // may find the session over
			p, err := s.Close(limit(t))
			if reason.Code(err) != c.code || reason.Of(err) != c.reason || reason.Meta(err, reason.KeyTail) != c.tail {
				t.Errorf("failed with %v: code %v, reason %q", err, reason.Code(err), reason.Of(err))
			}
			if o := reason.OutcomeOf(err); o != reason.NotCommitted {
				t.Errorf("outcome %q", o)
			}
			var failed *client.SessionError
			if !errors.As(err, &failed) || failed.Stored != p || p.Records != 0 {
				t.Errorf("progress %+v, error %#v", p, err)
			}
			if n := len(srv.Records(bucket, name)); n != stored {
				t.Errorf("%d records were stored", n-stored)
			}
			if err := s.Send(limit(t), batchOf("late")); !errors.As(err, &failed) {
				t.Errorf("send on a failed session: %v", err)
			}
		})
	}
}

// What a session says when it gives up is true, also when the last failure is
// about another attempt than the one that may have landed.
func TestSessionGivesUpTruthfully(t *testing.T) {
	unavailable := reason.New(codes.Unavailable, reason.NoLeader, "no leader")
	after := func(first clienttest.Step, firstErr error, then clienttest.Step, thenErr error) func(clienttest.Step) error {
		var done atomic.Bool
		return func(step clienttest.Step) error {
			if step == first && done.CompareAndSwap(false, true) {
				return firstErr
			}
			if step == then && done.Load() {
				return thenErr
			}
			return nil
		}
	}
	for _, c := range []struct {
		name    string
		fault   func(clienttest.Step) error
		outcome reason.Outcome
		stored  int
	}{
		{"never opened", after(clienttest.Opening, unavailable, clienttest.Opening, unavailable), reason.NotCommitted, 0},
		{"always refused for now", after(clienttest.Taking, unavailable, clienttest.Taking, unavailable), reason.NotCommitted, 0},
		{"answer lost, then unreachable", after(clienttest.Stored, clienttest.Cut, clienttest.Opening, unavailable), reason.Unknown, 1},
		{"answer lost, then refused for now", after(clienttest.Stored, clienttest.Cut, clienttest.Taking, unavailable), reason.Unknown, 1},
		{"answer lost, then deleted", after(clienttest.Stored, clienttest.Cut, clienttest.Opening, reason.New(codes.NotFound, reason.StreamNotFound, "gone")), reason.Unknown, 1},
		{"lost on the way, then refused", after(clienttest.Taking, clienttest.Cut, clienttest.Taking, reason.New(codes.Aborted, reason.Fenced, "fenced")), reason.Unknown, 0},
		{"lost on the way, then another won", after(clienttest.Taking, clienttest.Cut, clienttest.Taking, reason.New(codes.FailedPrecondition, reason.SeqMismatch, "no")), reason.NotCommitted, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, srv *clienttest.Server, cl *client.Client) {
				srv.SetFault(c.fault)
				cfg := config
				cfg.Patience = 3 * time.Second
				s := cl.OpenSession(limit(t), cfg)
				send(t, s, batchOf("x"))
				p, err := s.Close(limit(t))
				if err == nil || p.Batches != 0 || reason.OutcomeOf(err) != c.outcome {
					t.Errorf("%+v, %v: outcome %q, want %q", p, err, reason.OutcomeOf(err), c.outcome)
				}
				if n := len(srv.Records(bucket, name)); n != c.stored {
					t.Errorf("%d records are stored, the test expects %d", n, c.stored)
				}
			})
		})
	}
}

func TestSessionLeavesAServerThatHangs(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, srv *clienttest.Server, c *client.Client) {
		release := make(chan struct{})
		defer close(release)
		var hung atomic.Bool
		srv.SetFault(func(step clienttest.Step) error {
			if step == clienttest.Stored && hung.CompareAndSwap(false, true) {
				<-release
			}
			return nil
		})
		cfg := config
		cfg.Silence = 10 * time.Second
		began := time.Now()
		s := c.OpenSession(limit(t), cfg)
		send(t, s, batchOf("x"))
		if p, err := s.Close(limit(t)); err != nil || p.Records != 1 || srv.Duplicates != 1 {
			t.Errorf("%+v, %v, %d duplicates", p, err, srv.Duplicates)
		}
		if took := time.Since(began); took < cfg.Silence || took > 2*cfg.Silence {
			t.Errorf("left after %v", took)
		}
	})
}

func TestIdleSessionOutlivesItsPatience(t *testing.T) {
	var conn atomic.Pointer[net.Conn]
	inBubble(t, func(c net.Conn) { conn.Store(&c) }, func(t *testing.T, _ *clienttest.Server, c *client.Client) {
		cfg := config
		cfg.Patience, cfg.Silence = 10*time.Second, 5*time.Second
		s := c.OpenSession(t.Context(), cfg)
		send(t, s, batchOf("0"))
		if err := s.Flush(limit(t)); err != nil {
			t.Fatal(err)
		}
		stays := func() {
			t.Helper()
			select {
			case <-s.Done():
				t.Fatal("the session is over without reason")
			case <-time.After(3 * cfg.Patience):
			}
		}
		stays()
		_ = (*conn.Load()).Close() // nothing is under way
		stays()
		send(t, s, batchOf("1"))
		if p, err := s.Close(limit(t)); err != nil || p.Records != 2 {
			t.Errorf("%+v, %v", p, err)
		}
	})
}

func TestSessionHoldsNoMoreThanItsWindow(t *testing.T) {
	srv, c := start(t)
	release := make(chan struct{})
	srv.SetFault(func(step clienttest.Step) error {
		if step == clienttest.Acking {
			<-release
		}
		return nil
	})
	cfg := config
	cfg.WindowBytes = 10
	s := c.OpenSession(limit(t), cfg)
	send(t, s, batchOf("12345"), batchOf("12345"))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.Send(ctx, batchOf("x")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a third batch was taken: %v", err)
	}
	close(release)
	send(t, s, batchOf("larger than the whole window"))
	if p, err := s.Close(limit(t)); err != nil || p.Records != 3 {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestSessionEndsWithItsContext(t *testing.T) {
	srv, c := start(t)
	release := make(chan struct{})
	defer close(release)
	srv.SetFault(func(step clienttest.Step) error {
		if step == clienttest.Acking {
			<-release
		}
		return nil
	})
	s := c.OpenSession(limit(t), config)
	send(t, s, batchOf("x"))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if p, err := s.Close(ctx); !errors.Is(err, context.Canceled) || p.Records != 0 {
		t.Errorf("%+v, %v", p, err)
	}
	if err := s.Flush(limit(t)); err == nil {
		t.Error("flush of a session that is over succeeded")
	}
}

func TestSessionSeals(t *testing.T) {
	srv, c := start(t)
	s := c.OpenSession(limit(t), config)
	send(t, s, batchOf("last"))
	if err := s.SendSealing(limit(t), nil); err != nil {
		t.Fatal(err)
	}
	if p, err := s.Close(limit(t)); err != nil || p.Records != 1 || p.Batches != 2 {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := c.Append(limit(t), config, batchOf("x")); !reason.Is(err, reason.StreamSealed) {
		t.Errorf("append after the seal: %v", err)
	}
	if n := len(srv.Records(bucket, name)); n != 1 {
		t.Errorf("%d records", n)
	}
}

func TestLaterRunOfAProducerFencesTheEarlier(t *testing.T) {
	_, c := start(t)
	cfg := config
	cfg.Producer = "worker"
	first := c.OpenSession(limit(t), cfg)
	send(t, first, batchOf("a"))
	if err := first.Flush(limit(t)); err != nil {
		t.Fatal(err)
	}
	for was := time.Now().UnixMilli(); time.Now().UnixMilli() == was; { // epochs are milliseconds
		runtime.Gosched()
	}
	if _, err := c.Append(limit(t), cfg, batchOf("b")); err != nil {
		t.Fatal(err)
	}
	send(t, first, batchOf("zombie"))
	if _, err := first.Close(limit(t)); !reason.Is(err, reason.ProducerFenced) {
		t.Errorf("the earlier run: %v", err)
	}
}
