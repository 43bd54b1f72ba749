package chain

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/stream"
)

// MaxLanes limits AppenderConfig.Lanes.
const MaxLanes = 64

// AppenderConfig holds an appender's settings. Zero values take the defaults.
type AppenderConfig struct {
	Chain  stream.ChainID
	Writer stream.LifeID
	// Lanes is how many flights are in the air at once, default 4, at most
	// MaxLanes. A flight is in the air until all below it are decided, so no slot
	// so many above an empty one was ever written: sealers rely on it.
	Lanes int
	// StuckAfter is how long a slot may stay undecided before the writer seals
	// its own chain, default 30 s.
	StuckAfter time.Duration
	// HedgeAfter is the least time after which a PUT that has no answer is sent a
	// second time, same bytes to the same slot; it is so once it takes twice the
	// recent 99th percentile. Default 250 ms, negative: never.
	HedgeAfter time.Duration
}

func (c AppenderConfig) withDefaults() AppenderConfig {
	if c.Lanes == 0 {
		c.Lanes = 4
	}
	c.Lanes = min(c.Lanes, MaxLanes)
	if c.StuckAfter == 0 {
		c.StuckAfter = 30 * time.Second
	}
	if c.HedgeAfter == 0 {
		c.HedgeAfter = 250 * time.Millisecond
	}
	return c
}

var (
	// ErrStopped means that the appender takes no more flights. Of a flight that
	// was launched it means that its outcome is open: the chain's cut decides it.
	ErrStopped = errors.New("appender stopped")
	// ErrCut means that the chain ended below a flight's slot: it will never hold
	// the flight.
	ErrCut = errors.New("the chain was cut below the flight")
)

// Flight is a batch on its way into a slot.
type Flight struct {
	Builder *bundle.Builder
	// Span, if not nil, is the parent of the spans of the PUTs.
	Span trace.Span
	// Done is called once for every flight that was launched, in slot order: nil
	// says that the slot is committed, for ever; ErrCut that it never will be;
	// ErrStopped that it is open.
	Done func(slot stream.Slot, err error)
}

// Appender puts flights into consecutive slots of one chain, several at once,
// and releases their commits in slot order.
//
// It MUST be the only appender of its chain, from the chain's beginning. A
// flight keeps its slot: a slot is never skipped, nor a flight put elsewhere,
// whatever happens to the PUT.
type Appender struct {
	cfg    AppenderConfig
	chains *Store

	lanes   chan struct{}  // a token per flight in the air
	flights chan *airborne // in slot order, to deliver; a place per lane
	ending  chan struct{}  // closed by End
	broken  chan struct{}  // closed when a flight did not land
	ctx     context.Context
	cancel  context.CancelFunc
	done    chan struct{} // closed when deliver has ended
	puts    sync.WaitGroup
	recent  latencies

	mu      sync.Mutex // guards what follows
	next    stream.Slot
	stopped bool
	ended   bool        // ending is closed
	cut     stream.Slot // valid if known
	known   bool
}

type airborne struct {
	Flight

	slot   stream.Slot
	landed chan error // capacity 1
}

// NewAppender returns the appender of a chain that has no slot yet.
func (s *Store) NewAppender(cfg AppenderConfig) *Appender {
	cfg = cfg.withDefaults()
	ctx, cancel := context.WithCancel(context.Background())
	a := &Appender{
		cfg: cfg, chains: s, lanes: make(chan struct{}, cfg.Lanes), flights: make(chan *airborne, cfg.Lanes), ending: make(chan struct{}),
		broken: make(chan struct{}), ctx: ctx, cancel: cancel, done: make(chan struct{}),
	}
	go a.deliver()
	return a
}

// Lane waits for room for one more flight. Every success is followed by one
// Launch or one Unlane.
func (a *Appender) Lane(ctx context.Context) error {
	a.mu.Lock()
	stopped := a.stopped
	a.mu.Unlock()
	if stopped {
		return ErrStopped
	}
	select {
	case a.lanes <- struct{}{}:
		return nil
	case <-a.done:
		return ErrStopped
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Unlane gives the room back.
func (a *Appender) Unlane() { <-a.lanes }

// Launch sends a flight into the next slot. It fails with ErrStopped only; then
// nothing of the flight was sent, and Done is not called. Either way the lane
// is used up.
func (a *Appender) Launch(f Flight) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopped {
		a.Unlane()
		return ErrStopped
	}
	fl := &airborne{Flight: f, slot: a.next, landed: make(chan error, 1)}
	a.next++
	a.flights <- fl // never waits: there are as many places as lanes
	ctx := a.ctx
	if f.Span != nil {
		ctx = trace.ContextWithSpan(ctx, f.Span)
	}
	a.puts.Go(func() { fl.landed <- a.land(ctx, fl.slot, fl.Builder.Finish(fl.slot)) })
	return nil
}

// Broken is closed when a flight did not land: the chain takes no more, and
// every commit before that flight was told. Sealing it, which Done and the
// outcomes of the rest wait for, may take for ever.
func (a *Appender) Broken() <-chan struct{} { return a.broken }

// Done is closed once the chain has ended, or Close was called, and every
// flight was answered.
func (a *Appender) Done() <-chan struct{} { return a.done }

// Cut returns where the chain ended, once Done is closed; ErrStopped if that is
// open.
func (a *Appender) Cut() (stream.Slot, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.known {
		return 0, ErrStopped
	}
	return a.cut, nil
}

// End takes no more flights, and once those in the air are decided seals the
// chain. It does not wait; Done tells.
func (a *Appender) End() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stopped = true
	if !a.ended {
		a.ended = true
		close(a.ending)
	}
}

// Close stops everything at once; flights in the air are answered ErrStopped. It
// returns when nothing runs any more.
func (a *Appender) Close() {
	a.stop()
	a.cancel()
	<-a.done
	a.puts.Wait()
}

func (a *Appender) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stopped = true
}

// deliver answers the flights in slot order, until the chain ends.
func (a *Appender) deliver() {
	defer close(a.done)
	defer a.cancel()
	for {
		f := a.head()
		var err error
		switch {
		case f != nil:
			err = a.outcome(f)
			if err == nil {
				f.Done(f.slot, nil)
				a.Unlane()
				continue
			}
		case a.ctx.Err() != nil:
			err = ErrStopped
		}
		a.stop()
		if err != nil {
			close(a.broken)
		}
		a.finish(f, err)
		return
	}
}

// head waits for the next flight; nil means that none comes any more.
func (a *Appender) head() *airborne {
	select {
	case f := <-a.flights:
		return f
	case <-a.ctx.Done():
		a.stop()
	case <-a.ending:
	}
	// No flight is launched any more, but some may have been.
	select {
	case f := <-a.flights:
		return f
	default:
		return nil
	}
}

func (a *Appender) outcome(f *airborne) error {
	select {
	case err := <-f.landed:
		return err
	case <-a.ctx.Done():
		return ErrStopped
	}
}

// finish answers the first flight that did not land and all after it. Unless
// the appender was closed the chain is sealed first, by the common path, and
// the recorded cut is their answer: a SEAL alone is none, and a PUT without an
// answer may have landed before the sealer came.
func (a *Appender) finish(f *airborne, why error) {
	answer := func(stream.Slot) error { return ErrStopped }
	if a.ctx.Err() == nil {
		if why != nil {
			a.chains.cfg.Log.Warn("a slot was not written; the chain ends", "chain", a.cfg.Chain.String(), "slot", uint64(f.slot), "err", why)
		}
		cut, err := a.seal()
		switch {
		case err != nil:
		case errors.Is(why, ErrForeign):
			// Nothing that this chain says is acknowledged any more.
		default:
			answer = func(slot stream.Slot) error {
				if slot < cut {
					return nil
				}
				return ErrCut
			}
		}
	}
	for ; f != nil; f = a.left() {
		f.Done(f.slot, answer(f.slot))
	}
}

func (a *Appender) left() *airborne {
	select {
	case f := <-a.flights:
		return f
	default:
		return nil
	}
}

// seal ends the own chain and learns the cut, however long it takes.
func (a *Appender) seal() (stream.Slot, error) {
	for n := 0; ; n++ {
		cut, err := a.chains.Seal(a.ctx, a.cfg.Chain, a.cfg.Writer)
		if err == nil {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.cut, a.known = cut, true
			return cut, nil
		}
		if a.ctx.Err() != nil {
			return 0, ErrStopped
		}
		a.chains.cfg.Log.Error("the own chain cannot be sealed yet", "chain", a.cfg.Chain.String(), "err", err)
		if sleep(a.ctx, backoff(n, 5*time.Second)) != nil {
			return 0, fmt.Errorf("seal own chain: %w", ErrStopped)
		}
	}
}
