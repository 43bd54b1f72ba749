package chainwriter

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// How a chain follows the one before. A chain that has its cut is followed at
// once. One that broke and could not be sealed within sealPatience is sealed in
// the background, and the store is in doubt: it may refuse this one object, or
// whatever this process puts. So the next chain is offered once its first slot
// holds a bundle, an empty one. Until then callers hear UNAVAILABLE and choose
// another chain-writer.

// maxUnsealed limits the chains that are sealed in the background.
const maxUnsealed = 16

// proofPatience is how long the first PUT of a chain may take when the store is
// in doubt.
const proofPatience = 5 * time.Second

// trials spaces the chains that are tried while the store is in doubt.
type trials struct {
	pause time.Duration
	next  time.Time
}

const (
	leastTrialPause = time.Second
	mostTrialPause  = 30 * time.Second
)

func (t *trials) failed(now time.Time) {
	t.pause = min(max(2*t.pause, leastTrialPause), mostTrialPause)
	t.next = now.Add(t.pause)
}

// queueChain holds the markers of chains, so that one whose writer died before
// anybody was bound to it is found.
const queueChain = "chain"

// chainPatience is when a chain is first looked after.
const chainPatience = 24 * time.Hour

// writer returns the writer of the present chain, making one if there is none
// or the last has ended. Callers at the same time get the same one.
func (s *Service) writer(ctx context.Context) (*writer, error) {
	for {
		s.mu.Lock()
		switch w, wait := s.current, s.opening; {
		case s.closed:
			s.mu.Unlock()
			return nil, errStopping()
		case w != nil && !w.isEnded():
			s.mu.Unlock()
			return w, nil
		case wait == nil:
			s.opening = make(chan struct{})
			s.mu.Unlock()
			return s.openWriter(ctx, w)
		default:
			s.mu.Unlock()
			select {
			case <-wait:
			case <-ctx.Done():
				return nil, reason.New(reason.Code(ctx.Err()), "", ctx.Err().Error())
			}
		}
	}
}

// openWriter makes a chain and its writer the present ones, after last.
func (s *Service) openWriter(ctx context.Context, last *writer) (*writer, error) {
	w, err := s.follow(ctx, last)
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.opening)
	s.opening = nil
	if err == nil {
		s.current, s.trials = w, trials{}
	}
	return w, err
}

func (s *Service) follow(ctx context.Context, last *writer) (*writer, error) {
	doubt, err := s.inDoubt(ctx, last)
	if err != nil {
		return nil, err
	}
	id, err := s.makeChain(ctx)
	if err != nil {
		return nil, err
	}
	w, err := s.startWriter(ctx, id)
	if err != nil || !doubt {
		return w, err
	}
	if err := w.prove(s.running); err != nil {
		w.appender.Close() // ends it; it is sealed like any that broke
		s.mu.Lock()
		s.trials.failed(s.now())
		s.mu.Unlock()
		return nil, errRefused(err.Error())
	}
	return w, nil
}

// inDoubt reports whether the chain before ended without a cut; its error says
// that no other may be made yet.
func (s *Service) inDoubt(ctx context.Context, last *writer) (bool, error) {
	if last == nil {
		return false, nil
	}
	select {
	case <-last.gone:
	case <-ctx.Done():
		return false, reason.New(reason.Code(ctx.Err()), "", ctx.Err().Error())
	}
	_, known := last.sealedAt()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case known || last.sealed.Load():
		return false, nil
	case s.now().Before(s.trials.next):
		return true, errRefused("it is tried again soon")
	case s.unsealed >= maxUnsealed:
		return true, errRefused(fmt.Sprintf("%d chains wait to be sealed", s.unsealed))
	}
	return true, nil
}

func errRefused(detail string) error {
	return reason.New(codes.Unavailable, reason.StorageDown, "the object store takes nothing from this chain-writer: "+detail)
}

// startWriter starts the writer of a new chain.
func (s *Service) startWriter(ctx context.Context, id stream.ChainID) (*writer, error) {
	w := &writer{
		cfg: s.cfg, id: id, log: s.log, metrics: s.metrics, tracer: s.tracer, now: s.now, shards: map[stream.Shard]*shardState{},
		gone: make(chan struct{}), hurry: make(chan struct{}, 1), landed: make(chan struct{}, 1),
	}
	w.changed = sync.NewCond(&w.mu)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errStopping() // the chain's marker leads to it
	}
	w.appender = s.chains.NewAppender(chain.AppenderConfig{
		Chain: id, Writer: s.life, Lanes: s.cfg.Lanes, StuckAfter: s.cfg.StuckAfter, HedgeAfter: s.cfg.HedgeAfter,
	})
	s.writers.Go(func() {
		w.run(s.running)
		s.sealLeft(w)
	})
	s.log.InfoContext(ctx, "opened chain", "chain", id.String())
	return w, nil
}

// sealLeft seals a chain that broke, however long it takes; nobody waits for it
// but who recovers from the chain.
func (s *Service) sealLeft(w *writer) {
	if _, ok := w.sealedAt(); ok || s.running.Err() != nil {
		return
	}
	s.mu.Lock()
	s.unsealed++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.unsealed--
		s.mu.Unlock()
	}()
	for pause := time.Second; ; pause = min(2*pause, time.Minute) {
		cut, err := s.chains.Seal(s.running, w.id, s.life)
		switch {
		case err == nil:
			w.sealed.Store(true)
			s.log.InfoContext(s.running, "sealed the chain that broke", "chain", w.id.String(), "cut", uint64(cut))
			return
		case s.running.Err() != nil:
			return
		}
		s.log.ErrorContext(s.running, "a chain that broke cannot be sealed yet", "chain", w.id.String(), "err", err)
		select {
		case <-s.running.Done():
			return
		case <-time.After(pause):
		}
	}
}

// unsealedChains counts them.
func (s *Service) unsealedChains() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(s.unsealed)
}

// prove puts an empty flight into the first slot.
func (w *writer) prove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, proofPatience)
	defer cancel()
	if err := w.appender.Lane(ctx); err != nil {
		return fmt.Errorf("first slot: %w", err)
	}
	landed := make(chan error, 1)
	b := bundle.NewBuilder(w.id, stream.NewFlightID(), stream.ProfileStandard)
	size := b.Size()
	if err := w.appender.Launch(chain.Flight{
		Builder: b,
		Done: func(slot stream.Slot, err error) {
			if err == nil {
				w.commit(slot, nil, size)
			}
			landed <- err
		},
	}); err != nil {
		return fmt.Errorf("first slot: %w", err)
	}
	select {
	case err := <-landed:
		return err
	case <-w.appender.Broken():
		return chain.ErrStopped
	case <-ctx.Done():
		return fmt.Errorf("first slot: %w", ctx.Err())
	}
}

func errStopping() error {
	return reason.New(codes.Unavailable, "", "the chain-writer is stopping")
}

// makeChain records a new chain, a marker for it first: a crash between leaves
// a marker of no chain, and after it a chain that the marker leads to.
func (s *Service) makeChain(ctx context.Context) (stream.ChainID, error) {
	id := stream.NewChainID()
	if _, err := s.index.ArmDue(ctx, &indexpb.Due{Queue: queueChain, At: s.now().Add(chainPatience).UnixMilli(), ChainId: id.String()}); err != nil {
		return id, fmt.Errorf("open chain: arm marker: %w", err)
	}
	if _, err := s.index.PutChain(ctx, &indexpb.Chain{
		ChainId: id.String(), Profile: novapb.StorageProfile_STORAGE_PROFILE_STANDARD, WriterLife: s.life.String(), WriterAddress: s.cfg.Address,
		Zone: s.cfg.Zone, State: indexpb.ChainState_CHAIN_STATE_OPEN, CreatedAt: s.now().UnixMilli(), Lanes: uint32(s.cfg.Lanes),
	}, catalog.Absent); err != nil {
		return id, fmt.Errorf("open chain: record it: %w", err)
	}
	return id, nil
}
