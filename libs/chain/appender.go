package chain

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/stream"
)

// AppenderConfig holds an appender's settings. Zero values take the defaults.
type AppenderConfig struct {
	Chain  stream.ChainID
	Writer stream.LifeID
	// Lanes is how many flights are in the air at once, default 4.
	Lanes int
	// StuckAfter is how long a slot may stay undecided before the writer seals
	// its own chain, default 30 s.
	StuckAfter time.Duration
	// AttemptTimeout ends one PUT that does not answer, default 10 s.
	AttemptTimeout time.Duration
	// HedgeAfter sends a second PUT of the same bytes to the same slot when the
	// first is this slow; 0 never does.
	HedgeAfter time.Duration
	Log        *slog.Logger
	Now        func() time.Time
}

func (c AppenderConfig) withDefaults() AppenderConfig {
	if c.Lanes == 0 {
		c.Lanes = 4
	}
	if c.StuckAfter == 0 {
		c.StuckAfter = 30 * time.Second
	}
	if c.AttemptTimeout == 0 {
		c.AttemptTimeout = 10 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// errMetSeal means that a slot holds a SEAL: somebody ends the chain.
var errMetSeal = errors.New("slot holds a SEAL")

// errStuck means that a slot stayed undecided for too long.
var errStuck = errors.New("slot stays undecided")

// Flight is a batch on its way into a slot.
type Flight struct {
	ID      stream.FlightID
	Builder *bundle.Builder
	// Committed is called once the slot is committed, in slot order; then it is
	// certain that the chain holds the flight for ever.
	Committed func(stream.Slot)
	// Lost is called instead, in slot order, once it is certain that it never
	// will: the chain was cut below its slot.
	Lost func()
}

// Appender puts flights into consecutive slots of one chain, several at once,
// and releases their commits in slot order.
//
// It MUST be the only appender of its chain. A flight keeps its slot: a slot is
// never skipped, nor a flight put elsewhere while its slot is undecided.
type Appender struct {
	cfg     AppenderConfig
	objects objectstore.Store
	index   Index

	lanes   chan struct{}   // a token per flight in the air
	flights chan *airborne  // in slot order, to deliver
	ctx     context.Context // ends with the chain's fate decided, or Close
	cancel  context.CancelFunc
	done    chan struct{} // closed when deliver has ended
	puts    sync.WaitGroup

	mu      sync.Mutex
	next    stream.Slot
	stopped bool
	cut     stream.Slot // valid when err is nil and done is closed
	err     error
}

type airborne struct {
	Flight

	slot   stream.Slot
	landed chan error // capacity 1
}

// NewAppender returns an appender of a chain that has no slot yet.
func NewAppender(cfg AppenderConfig, objects objectstore.Store, index Index) *Appender {
	cfg = cfg.withDefaults()
	ctx, cancel := context.WithCancel(context.Background())
	a := &Appender{
		cfg: cfg, objects: objects, index: index, lanes: make(chan struct{}, cfg.Lanes), flights: make(chan *airborne, cfg.Lanes),
		ctx: ctx, cancel: cancel, done: make(chan struct{}),
	}
	go a.deliver()
	return a
}

// ErrStopped means that the chain has ended, or the appender was closed.
var ErrStopped = errors.New("appender stopped")

// Lane waits for room for one more flight. Every success is followed by one
// Launch or one Unlane.
func (a *Appender) Lane(ctx context.Context) error {
	select {
	case a.lanes <- struct{}{}:
		return nil
	case <-a.ctx.Done():
		return ErrStopped
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Unlane gives the room back.
func (a *Appender) Unlane() { <-a.lanes }

// Launch sends a flight into the next slot. It fails only when the appender
// has stopped; then nothing of the flight was sent, and neither Committed nor
// Lost is called.
func (a *Appender) Launch(f Flight) error {
	a.mu.Lock()
	if a.stopped {
		a.mu.Unlock()
		a.Unlane()
		return ErrStopped
	}
	fl := &airborne{Flight: f, slot: a.next, landed: make(chan error, 1)}
	a.next++
	// Cannot block: there are as many places as lanes.
	a.flights <- fl
	a.puts.Add(1)
	a.mu.Unlock()
	go func() {
		defer a.puts.Done()
		fl.landed <- a.land(fl.slot, fl.Builder.Finish(fl.slot))
	}()
	return nil
}

// Done is closed once the appender has stopped and every flight was answered.
func (a *Appender) Done() <-chan struct{} { return a.done }

// Cut returns where the chain ended, once Done is closed; an error if the
// appender was closed before the chain ended.
func (a *Appender) Cut() (stream.Slot, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.cut, a.err
}

// Close stops the appender. Flights in the air get neither Committed nor Lost:
// their outcome is open. It returns when nothing runs any more.
func (a *Appender) Close() {
	a.stop()
	a.cancel()
	<-a.done
	a.puts.Wait()
}

func (a *Appender) stop() {
	a.mu.Lock()
	a.stopped = true
	a.mu.Unlock()
}

// deliver releases the flights in slot order, until one does not land: then
// the chain is sealed, and its recorded cut decides that flight and the rest.
func (a *Appender) deliver() {
	defer close(a.done)
	defer a.cancel()
	for {
		var f *airborne
		select {
		case f = <-a.flights:
		case <-a.ctx.Done():
			a.closed()
			return
		}
		var err error
		select {
		case err = <-f.landed:
		case <-a.ctx.Done():
			a.closed()
			return
		}
		if err == nil {
			f.Committed(f.slot)
			a.Unlane()
			continue
		}
		a.stop()
		a.cfg.Log.Warn("chain ends", "chain", a.cfg.Chain.String(), "slot", uint64(f.slot), "err", err)
		a.end(f, err)
		return
	}
}

func (a *Appender) closed() {
	a.mu.Lock()
	a.err = ErrStopped
	a.mu.Unlock()
}

// end learns the cut and answers what is left by it. A flight whose slot holds
// foreign bytes is lost whatever the cut.
func (a *Appender) end(f *airborne, why error) {
	var cut stream.Slot
	for n := 0; ; n++ {
		var err error
		if cut, err = Seal(a.ctx, a.objects, a.index, a.cfg.Chain, a.cfg.Writer); err == nil {
			break
		}
		if a.ctx.Err() != nil {
			a.closed()
			return
		}
		a.cfg.Log.Error("sealing the own chain; will try again", "chain", a.cfg.Chain.String(), "err", err)
		if sleep(a.ctx, backoff(n)) != nil {
			a.closed()
			return
		}
	}
	a.mu.Lock()
	a.cut = cut
	a.mu.Unlock()
	for foreign := errors.Is(why, ErrForeign); ; foreign = false {
		if f.slot < cut && !foreign {
			f.Committed(f.slot)
		} else {
			f.Lost()
		}
		select {
		case f = <-a.flights:
		default:
			return
		}
	}
}

// land puts one flight into its slot until that is decided: nil means that the
// slot holds it. Any error means that this slot will not be decided by trying
// on, and the chain must end.
func (a *Appender) land(slot stream.Slot, body []byte) error {
	key := SlotKey(a.cfg.Chain, slot)
	first := a.cfg.Now()
	for n := 0; ; n++ {
		err := a.attempt(key, body)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, objectstore.ErrExists):
			if err = a.compare(slot, key, body); err == nil || errors.Is(err, errMetSeal) || errors.Is(err, ErrForeign) {
				return err
			}
		case errors.Is(err, objectstore.ErrPermanent):
			return fmt.Errorf("slot %d: %w", slot, err)
		}
		if a.ctx.Err() != nil {
			return a.ctx.Err()
		}
		a.cfg.Log.Warn("slot undecided; same bytes, same slot, again", "chain", a.cfg.Chain.String(), "slot", uint64(slot), "try", n, "err", err)
		if waited := a.cfg.Now().Sub(first); waited > a.cfg.StuckAfter {
			return fmt.Errorf("slot %d for %s: %w: %w", slot, waited, errStuck, err)
		}
		if sleep(a.ctx, backoff(n)) != nil {
			return a.ctx.Err()
		}
	}
}

// attempt is one PUT, hedged by a second of the same bytes when it is slow. The
// first decisive answer counts: a hedge that finds the other's object is told
// ErrExists and compared like any other.
func (a *Appender) attempt(key string, body []byte) error {
	ctx, cancel := context.WithTimeout(a.ctx, a.cfg.AttemptTimeout)
	defer cancel()
	if a.cfg.HedgeAfter == 0 {
		_, err := a.objects.PutIfAbsent(ctx, key, body)
		return err
	}
	answers := make(chan error, 2)
	put := func() {
		_, err := a.objects.PutIfAbsent(ctx, key, body)
		answers <- err
	}
	a.puts.Go(put)
	under := 1
	timer := time.NewTimer(a.cfg.HedgeAfter)
	defer timer.Stop()
	var last error
	for under > 0 {
		select {
		case last = <-answers:
			under--
			if last == nil || errors.Is(last, objectstore.ErrExists) || errors.Is(last, objectstore.ErrPermanent) {
				return last
			}
		case <-timer.C:
			a.puts.Go(put)
			under++
		}
	}
	return last
}

// compare decides a slot that holds something: the own flight has landed.
func (a *Appender) compare(slot stream.Slot, key string, body []byte) error {
	ctx, cancel := context.WithTimeout(a.ctx, a.cfg.AttemptTimeout)
	defer cancel()
	o, err := a.objects.Get(ctx, key)
	if err != nil {
		return err
	}
	if bytes.Equal(o.Body, body) {
		return nil
	}
	what, _, err := identify(ctx, a.objects, a.cfg.Chain, slot)
	switch {
	case err != nil:
		return err
	case what == holdsSeal:
		return fmt.Errorf("slot %d: %w", slot, errMetSeal)
	}
	a.cfg.Log.Error("a slot of the own chain holds foreign bytes", "object", key, "size", o.Size)
	return fmt.Errorf("slot %d: %w", slot, ErrForeign)
}
