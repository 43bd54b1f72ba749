package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

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
	// Producer names the session, 1..64 bytes, default a fresh ULID.
	Producer string
	// Epoch fences sessions of the same Producer with lower ones, and starts its
	// batch numbers anew. Default, with a Producer: the present time in
	// milliseconds, so that a later run fences an earlier one.
	Epoch uint64
	// MatchSeq: the first batch must get this number.
	MatchSeq *uint64
	// FencingToken of every batch.
	FencingToken *string
	// Patience is how long a session that waits for an acknowledgement and gets
	// none tries again, default 2 min.
	Patience time.Duration
	// Silence is how long a connection may owe an answer before another is made,
	// default 45 s: servers answer within 30 s, be it with UNKNOWN.
	Silence time.Duration
	// Window limits the batches sent and not acknowledged, default and at most
	// 16: as many as the stream remembers of a producer.
	Window int
	// WindowBytes limits the headers and bodies held until they are
	// acknowledged, default 24 MiB. One batch may always be sent.
	WindowBytes int
	// Acked, if set, is called for each batch in order, from the session's own
	// goroutine: it must not block for long, nor wait for the session.
	Acked func(*novapb.AppendAck)
}

const (
	defaultPatience    = 2 * time.Minute
	defaultSilence     = 45 * time.Second
	defaultWindowBytes = 24 << 20
	// maxWindow is how many of its last batches a stream remembers of a producer.
	maxWindow = 16
)

// Session appends batches in order, each stored once. Send may be called from
// one goroutine at a time, the rest from any.
type Session struct {
	client *Client
	cfg    SessionConfig
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	changed *sync.Cond
	unacked []*batch // in order
	bytes   int      // of unacked
	sent    int      // of unacked, from the first on: handed to the present connection
	tried   int      // of unacked, from the first on: handed to an earlier connection
	next    uint64   // batch_seq
	closing bool
	err     error // set once: the session is over
	stored  Progress
	moved   time.Time // since when the first of unacked is the first
	trouble error     // why the last connection ended, nil once it acknowledges
}

type batch struct {
	seq     uint64
	records []*novapb.AppendRecord
	size    int
	match   *uint64
	seal    bool
}

// Progress says what a session has stored for certain.
type Progress struct {
	Batches  uint64
	Records  uint64
	FirstSeq uint64 // of the first record; valid when Records > 0
	// NextSeq is one more than the number of the last record. Others may have
	// appended in between: NextSeq - FirstSeq can exceed Records.
	NextSeq uint64
}

// OpenSession returns a session; it connects when there is something to send.
// Close MUST follow. The end of ctx ends the session as a failure.
func (c *Client) OpenSession(ctx context.Context, cfg SessionConfig) *Session {
	if cfg.Producer == "" {
		cfg.Producer = stream.NewID().String()
	} else if cfg.Epoch == 0 {
		cfg.Epoch = uint64(time.Now().UnixMilli())
	}
	if cfg.Patience <= 0 {
		cfg.Patience = defaultPatience
	}
	if cfg.Silence <= 0 {
		cfg.Silence = defaultSilence
	}
	cfg.Silence = min(cfg.Silence, cfg.Patience)
	if cfg.Window <= 0 || cfg.Window > maxWindow {
		cfg.Window = maxWindow
	}
	if cfg.WindowBytes <= 0 {
		cfg.WindowBytes = defaultWindowBytes
	}
	s := &Session{client: c, cfg: cfg, done: make(chan struct{})}
	s.changed = sync.NewCond(&s.mu)
	s.ctx, s.cancel = context.WithCancel(ctx)
	go s.run()
	return s
}

// Append stores one batch, once, as a session of its own: it tries again what
// fails in passing. cfg.Acked is not called.
func (c *Client) Append(ctx context.Context, cfg SessionConfig, records []*novapb.AppendRecord) (*novapb.AppendAck, error) {
	var got *novapb.AppendAck
	cfg.Acked = func(a *novapb.AppendAck) { got = a }
	s := c.OpenSession(ctx, cfg)
	// What fails Send fails Close too.
	_ = s.Send(ctx, records)
	if _, err := s.Close(ctx); err != nil {
		return nil, err
	}
	return got, nil
}

// Send puts a batch in line and returns once there is room for it in the
// window; the records must not be changed afterwards. An error means that the
// batch was not taken: the session is over, or ctx is. See Close for what was
// stored.
func (s *Session) Send(ctx context.Context, records []*novapb.AppendRecord) error {
	return s.send(ctx, records, false)
}

// SendSealing is Send, and closes the stream with the batch, which may be empty.
func (s *Session) SendSealing(ctx context.Context, records []*novapb.AppendRecord) error {
	return s.send(ctx, records, true)
}

func (s *Session) send(ctx context.Context, records []*novapb.AppendRecord, seal bool) error {
	b := &batch{records: records, seal: seal}
	for _, r := range records {
		b.size += AppendSize(r)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.await(ctx, func() bool {
		return len(s.unacked) == 0 || len(s.unacked) < s.cfg.Window && s.bytes+b.size <= s.cfg.WindowBytes
	})
	switch {
	case s.err != nil:
		return s.err
	case err != nil:
		return err
	case s.closing:
		return errors.New("send on a closed session")
	}
	b.seq = s.next
	if s.next == 0 {
		// Later batches follow by their batch_seq.
		b.match = s.cfg.MatchSeq
	}
	if len(s.unacked) == 0 {
		s.moved = time.Now()
	}
	s.next++
	s.bytes += b.size
	s.unacked = append(s.unacked, b)
	s.changed.Broadcast()
	return nil
}

// Flush waits until everything sent so far is acknowledged.
func (s *Session) Flush(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	due := s.next
	err := s.await(ctx, func() bool { return s.stored.Batches >= due })
	if s.err != nil {
		return s.err
	}
	return err
}

// await waits, with mu held, until ready, or the session or ctx ended.
func (s *Session) await(ctx context.Context, ready func() bool) error {
	stop := context.AfterFunc(ctx, s.wake)
	defer stop()
	for !ready() && s.err == nil && ctx.Err() == nil {
		s.changed.Wait()
	}
	return ctx.Err()
}

func (s *Session) wake() {
	s.mu.Lock()
	s.changed.Broadcast()
	s.mu.Unlock()
}

// Done is closed when the session is over: it failed, or Close is complete.
func (s *Session) Done() <-chan struct{} { return s.done }

// Close waits until everything sent is acknowledged, or the session failed, or
// ctx ended. It returns what is stored for certain, and a *SessionError that
// says what became of the rest.
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
	return s.stored, s.err
}

// Progress returns what is stored for certain by now.
func (s *Session) Progress() Progress {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stored
}

// Waiting returns for how long the first batch that is not acknowledged waits, 0
// if there is none, and why: what ended the last connection, nil if that is not
// known or nothing has failed.
func (s *Session) Waiting() (time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.unacked) == 0 {
		return 0, nil
	}
	return time.Since(s.moved), s.trouble
}

// run keeps a connection until everything is acknowledged and the session
// closed, or it fails for good.
func (s *Session) run() {
	defer close(s.done)
	stop := context.AfterFunc(s.ctx, s.wake)
	defer stop()
	for try := 0; s.wanted(); try++ {
		before := s.Progress().Batches
		err := s.connect()
		if s.Progress().Batches > before {
			try = 0
		}
		s.mu.Lock()
		s.trouble = err
		s.mu.Unlock()
		switch {
		case err == nil:
			continue
		case s.ctx.Err() != nil:
			s.fail(s.ctx.Err())
			return
		case !temporary(err):
			s.fail(err)
			return
		case s.impatient():
			s.fail(fmt.Errorf("no acknowledgement for %s: %w", s.cfg.Patience, err))
			return
		}
		// The end of ctx is seen by wanted.
		_ = pause(s.ctx, try, err)
	}
}

// wanted waits until there is something to send; false when the session is over.
func (s *Session) wanted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.unacked) == 0 && !s.closing && s.ctx.Err() == nil {
		s.changed.Wait()
	}
	if len(s.unacked) == 0 && s.closing {
		return false
	}
	if err := s.ctx.Err(); err != nil {
		s.failLocked(err)
		return false
	}
	return true
}

// impatient reports whether the first batch waits for too long.
func (s *Session) impatient() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.unacked) > 0 && time.Since(s.moved) >= s.cfg.Patience
}

func (s *Session) fail(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failLocked(cause)
}

// failLocked ends the session. A batch that was refused for certain takes those
// after it along, since their batch_seq cannot be accepted any more.
func (s *Session) failLocked(cause error) {
	outcome := reason.Unknown
	var refused *refusal
	switch {
	case s.sent == 0 && s.tried == 0:
		outcome = reason.NotCommitted // it never left
	case !errors.As(cause, &refused) || refused.outcome != reason.NotCommitted:
	case s.tried == 0:
		outcome = reason.NotCommitted
	case reason.Is(refused, reason.SeqMismatch), reason.Is(refused, reason.StreamSealed):
		// Batches that are stored are recognised before these are looked at, and
		// neither condition ever ends: an earlier copy still on its way fails too.
		outcome = reason.NotCommitted
	}
	s.err = &SessionError{Outcome: outcome, Stored: s.stored, cause: cause}
	s.changed.Broadcast()
}

// refusal is the server's answer to the first unacknowledged batch.
type refusal struct {
	error
	outcome reason.Outcome
}

func (r *refusal) Unwrap() error { return r.error }
