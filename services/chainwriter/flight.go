package chainwriter

import (
	"context"
	"time"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/libs/telemetry"
)

// enter puts an entry behind those of its shard. Called with mu held.
func (w *writer) enter(st *shardState, it *item) {
	if len(st.queue) == 0 {
		w.ring = append(w.ring, st)
	}
	st.queue = append(st.queue, it)
	w.waiting += it.bytes()
	w.pooled += it.bytes()
	if it.fence != nil || w.waiting >= int64(w.cfg.FlightBytes) {
		select {
		case w.hurry <- struct{}{}:
		default:
		}
	}
	w.changed.Broadcast()
}

// take removes a flight's worth of entries from the pool. Shards take turns of
// a quarter of a flight while others wait, and at least one entry; a shard's
// entries keep their order.
func (w *writer) take() []*item {
	w.mu.Lock()
	defer w.mu.Unlock()
	var taken []*item
	limit, total := int64(w.cfg.FlightBytes), int64(0)
	for full := false; len(w.ring) > 0 && !full; {
		st := w.ring[0]
		w.ring = w.ring[1:]
		turn, n := int64(0), 0
		for _, it := range st.queue {
			size := it.bytes()
			if full = total > 0 && total+size > limit; full {
				break
			}
			if turn > 0 && len(w.ring) > 0 && turn+size > limit/4 {
				break
			}
			turn += size
			total += size
			n++
			if it.fence != nil {
				w.fences--
			}
		}
		taken = append(taken, st.queue[:n]...)
		if st.queue = st.queue[n:]; len(st.queue) == 0 {
			st.queue = nil // its array holds what is in the air
		} else {
			w.ring = append(w.ring, st)
		}
	}
	w.waiting -= total
	return taken
}

// sealPatience is how long the senders of a chain that broke are kept, so that
// they hear which of their last entries lie below the cut.
const sealPatience = time.Second

// run sends flights until the chain ends. When ctx ends it takes nothing more,
// waits a while for what is in the air, and ends the chain itself: then its
// shards need not find out that the writer is gone.
func (w *writer) run(ctx context.Context) {
	defer close(w.gone)
	sending := make(chan struct{})
	go func() {
		defer close(sending)
		w.sendFlights()
	}()
	select {
	case <-w.appender.Done():
	case <-w.appender.Broken():
		// Its senders go on elsewhere, however long it takes to seal it: the cut will
		// tell them what became of their entries. Mostly that is at once.
		w.end()
		t := time.NewTimer(sealPatience)
		defer t.Stop()
		select {
		case <-w.appender.Done():
		case <-t.C:
		case <-ctx.Done():
		}
	case <-ctx.Done():
		w.appender.End()
		t := time.NewTimer(w.cfg.StopTimeout)
		defer t.Stop()
		select {
		case <-w.appender.Done():
		case <-t.C:
			w.log.WarnContext(ctx, "stopped without ending the chain; whoever recovers its shards ends it", "chain", w.id.String())
		}
	}
	w.appender.Close()
	w.end()
	<-sending
}

// sendFlights takes a lane first and entries then: while all lanes are busy
// entries gather, and the next flight carries them together.
func (w *writer) sendFlights() {
	ctx := context.Background()
	for w.awaitWork() {
		if w.appender.Lane(ctx) != nil {
			return
		}
		w.linger()
		items := w.take()
		if len(items) == 0 {
			w.appender.Unlane()
			continue
		}
		if !w.launch(ctx, items) {
			return
		}
	}
}

// awaitWork waits until there is something to send and room within the limits of
// what is not absorbed and not settled; false: the chain has ended. A fence may
// pass the limits: recovery waits for it, and there are few.
func (w *writer) awaitWork() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	warned := limitNone
	for !w.ended && w.fences == 0 {
		if len(w.ring) > 0 {
			at := w.atLimit()
			if at == limitNone {
				break
			}
			if at != warned {
				warned = at
				w.warnLimit(at)
			}
		}
		w.changed.Wait()
	}
	return !w.ended
}

// limit is one that flights are held up by.
type limit int

const (
	limitNone limit = iota
	limitBacklog
	limitUnsettled
)

// atLimit returns the limit that is reached. Called with mu held.
func (w *writer) atLimit() limit {
	switch u := &w.unsettled; {
	case w.backlog() >= w.cfg.BacklogFlights:
		return limitBacklog
	case u.bytes >= w.cfg.UnsettledBytes || len(u.windows) >= w.cfg.UnsettledWindows:
		return limitUnsettled
	}
	return limitNone
}

// warnLimit says that flights are held up. Called with mu held.
func (w *writer) warnLimit(at limit) {
	ctx, log := context.Background(), w.log.With("chain", w.id.String(), "committed", uint64(w.commits), "absorbed", uint64(w.absorbed))
	if at == limitBacklog {
		log.WarnContext(ctx, "too many slots wait to be absorbed; flights stop until some are", "limit", w.cfg.BacklogFlights)
		w.metrics.backlogFull.Add(ctx, 1)
		return
	}
	log.WarnContext(ctx, "too much waits to be settled; flights stop until some is", "bytes", w.unsettled.bytes, "limit", w.cfg.UnsettledBytes,
		"windows", len(w.unsettled.windows), "limit_windows", w.cfg.UnsettledWindows)
	w.metrics.unsettledFull.Add(ctx, 1)
}

// backlog is how many committed slots are not known to be absorbed.
func (w *writer) backlog() int { return int(w.commits) - int(w.absorbed) }

// gatherTime is how long a flight gathers at most while others are in the air: a
// small one costs the store and the processor as much as a large one. Where a
// flight takes less than that, it is as if there was one lane.
const gatherTime = 2 * time.Millisecond

// linger waits for more, unless there is enough or a fence waits.
func (w *writer) linger() {
	for _, c := range []chan struct{}{w.hurry, w.landed} { // of earlier flights
		select {
		case <-c:
		default:
		}
	}
	w.mu.Lock()
	enough := w.ended || w.fences > 0 || w.waiting >= int64(w.cfg.FlightBytes)
	wait, landed := w.cfg.Linger, (<-chan struct{})(nil)
	if wait <= 0 && w.flying > 0 {
		wait, landed = gatherTime, w.landed
	}
	w.mu.Unlock()
	if enough || wait <= 0 {
		return
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
	case <-landed:
	case <-w.hurry:
	case <-w.appender.Done():
	}
}

// fly counts a flight that is launched, 1, or decided, -1.
func (w *writer) fly(n int) {
	w.mu.Lock()
	w.flying += n
	none := w.flying == 0
	w.mu.Unlock()
	if none {
		select {
		case w.landed <- struct{}{}:
		default:
		}
	}
}

// launch builds a flight and sends it; false: the chain takes no more.
func (w *writer) launch(ctx context.Context, items []*item) bool {
	ctx, span := w.startFlight(ctx, items)
	b := bundle.NewBuilder(w.id, stream.NewFlightID(), stream.ProfileStandard)
	for _, it := range items {
		offset, length, err := b.Add(it.entry)
		if err != nil {
			// Entries are verified on arrival, so this is a fault of the program. The
			// chain must not go on without an entry that was taken.
			w.log.ErrorContext(ctx, "an entry that was taken does not fit a bundle; the chain ends", "chain", w.id.String(), "err", err)
			endFlight(span, err)
			w.appender.Unlane()
			w.appender.End()
			w.lose(items)
			return false
		}
		it.at = stream.Coordinates{Chain: w.id, Offset: offset, Length: length}
	}
	started, size := w.now(), b.Size()
	done := func(slot stream.Slot, err error) {
		defer w.fly(-1)
		if span != nil {
			span.SetAttributes(telemetry.AttrSlot.Int64(int64(slot)), telemetry.AttrBytes.Int(size))
			// Before the appends are answered, so that it ends within their spans.
			endFlight(span, err)
		}
		if err != nil {
			w.lose(items)
			return
		}
		w.metrics.landed(ctx, w.now().Sub(started), len(items), size)
		w.commit(slot, items, size)
	}
	w.fly(1)
	if err := w.appender.Launch(chain.Flight{Builder: b, Span: span, Done: done}); err != nil {
		w.fly(-1)
		endFlight(span, err)
		w.lose(items)
		return false
	}
	return true
}
