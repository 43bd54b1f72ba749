package chain

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/stream"
)

var (
	// errMetSeal means that a slot holds a SEAL: somebody ends the chain.
	errMetSeal = errors.New("slot holds a SEAL")
	// errStuck means that a slot stayed undecided for too long.
	errStuck = errors.New("slot stays undecided")
)

// land puts one flight into its slot until that is decided: nil means that the
// slot holds it. Any error means that trying on does not decide it, and the
// chain must end. ErrExists is an answer; ErrUnavailable, which is also what a
// 409 ConditionalRequestConflict and a RequestTimeout are, is none. ctx is the
// appender's, with the flight's span.
func (a *Appender) land(ctx context.Context, slot stream.Slot, body []byte) error {
	first := time.Now()
	for n := 0; ; n++ {
		err := a.put(ctx, slot, body)
		if errors.Is(err, objectstore.ErrExists) {
			err = a.compare(ctx, slot, body)
		}
		switch {
		case err == nil, errors.Is(err, errMetSeal), errors.Is(err, ErrForeign), errors.Is(err, objectstore.ErrPermanent):
			return err
		case ctx.Err() != nil:
			return ErrStopped
		}
		if waited := time.Since(first); waited >= a.cfg.StuckAfter {
			return fmt.Errorf("slot %d for %s: %w: %w", slot, waited, errStuck, err)
		}
		a.chains.cfg.Log.DebugContext(ctx, "slot undecided; the same bytes go to the same slot again", "chain", a.cfg.Chain.String(), "slot", uint64(slot), "try", n, "err", err)
		if sleep(ctx, backoff(n, time.Second)) != nil {
			return ErrStopped
		}
	}
}

// put is one PUT, hedged by a second one of the same bytes when it is slow. The
// first answer that decides counts. The slower PUT is canceled, but may still
// land: in the same slot, the same bytes.
func (a *Appender) put(ctx context.Context, slot stream.Slot, body []byte) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan error, 2)
	send := func() {
		a.puts.Go(func() {
			began := time.Now()
			err := a.chains.reg.Put(ctx, a.cfg.Chain, slot, body)
			if err == nil {
				a.recent.add(time.Since(began))
			}
			answers <- err
		})
	}
	send()
	under := 1
	var hedge <-chan time.Time
	if a.cfg.HedgeAfter > 0 {
		t := time.NewTimer(max(2*a.recent.p99(), a.cfg.HedgeAfter))
		defer t.Stop()
		hedge = t.C
	}
	for {
		select {
		case err := <-answers:
			if under--; under == 0 || !passing(err) {
				return err
			}
		case <-hedge:
			hedge = nil
			send()
			under++
		}
	}
}

// compare decides a slot that holds something: it is the own flight if flight
// id, size and checksums are its own.
func (a *Appender) compare(ctx context.Context, slot stream.Slot, body []byte) error {
	o, err := a.chains.reg.Read(ctx, a.cfg.Chain, slot, objectstore.Range{Length: bundle.IdentBytes})
	if err != nil {
		return err // also when it was reclaimed: the same bytes go there again
	}
	if int64(len(body)) == o.Size && bytes.Equal(o.Body, body[:bundle.IdentBytes]) {
		// The end of a bundle holds its checksums.
		end := body[len(body)-bundle.IdentBytes:]
		tail, err := a.chains.reg.Read(ctx, a.cfg.Chain, slot, objectstore.Range{Offset: -bundle.IdentBytes})
		if err != nil || bytes.Equal(tail.Body, end) {
			return err
		}
	}
	what, err := identify(ctx, a.chains.reg, a.cfg.Chain, slot)
	switch {
	case err == nil && what == holdsSeal:
		return fmt.Errorf("slot %d: %w", slot, errMetSeal)
	case err == nil && what == holdsNothing:
		return fmt.Errorf("slot %d was emptied: %w", slot, objectstore.ErrUnavailable)
	case err == nil:
		err = fmt.Errorf("slot %d holds another bundle: %w", slot, ErrForeign)
	}
	if errors.Is(err, ErrForeign) {
		a.chains.cfg.Log.ErrorContext(ctx, "a slot of the own chain holds foreign bytes; nothing more is acknowledged from this chain",
			"object", SlotKey(a.cfg.Chain, slot), "err", err)
	}
	return err
}

// latencies are the last successful PUTs.
type latencies struct {
	mu   sync.Mutex
	last [64]time.Duration
	n    int // added so far
}

func (l *latencies) add(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last[l.n%len(l.last)] = d
	l.n++
}

// p99 returns the 99th percentile of the last PUTs, 0 before the first.
func (l *latencies) p99() time.Duration {
	l.mu.Lock()
	known := l.last
	n := min(l.n, len(l.last))
	l.mu.Unlock()
	if n == 0 {
		return 0
	}
	slices.Sort(known[:n])
	return known[(n-1)*99/100]
}
