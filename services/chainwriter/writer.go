package chainwriter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
)

// rememberedCommits is how many of its last commits a shard remembers, to
// answer a duplicate that comes late.
const rememberedCommits = 1024

// writer writes one chain. It ends with the chain.
type writer struct {
	cfg      Config
	id       stream.ChainID
	appender *chain.Appender
	log      *slog.Logger
	metrics  *metrics
	tracer   trace.Tracer
	now      func() time.Time

	mu       sync.Mutex
	changed  *sync.Cond // pool, backlog or ended changed
	shards   map[stream.Shard]*shardState
	pool     []*item
	pooled   int64 // bytes of items that wait or are in the air
	urgent   bool  // a fence waits: do not linger
	commits  stream.Slot
	absorbed stream.Slot
	ended    bool
	closing  bool
}

// shardState is what the writer knows of a shard in its chain.
type shardState struct {
	epoch   stream.Epoch
	next    stream.EntryNo
	pending map[stream.EntryNo]*item // of epoch
	recent  []committed              // of epoch, the last ones, in order
	fence   *item                    // of epoch, until it is committed
	cut     stream.Slot              // of the fence of epoch, once committed
	fenced  bool                     // cut is valid
}

type committed struct {
	no stream.EntryNo
	at stream.Coordinates
}

// item is an entry in the pool or in the air.
type item struct {
	entry    bundle.Entry
	at       stream.Coordinates // but for the slot, once it is in a flight
	sessions []*session         // who hear of it
	done     chan struct{}      // of a fence: closed when decided
	cut      stream.Slot        // of a fence
	lost     bool               // of a fence
}

func (it *item) bytes() int64 { return int64(len(it.entry.Body)) + bundle.EntryOverhead }

// refusal says that the chain will never hold an entry.
type refusal struct {
	why    reason.Reason
	detail string
}

// accept takes an entry in. While the pool is full it waits: the sender's
// credit is used up anyway.
func (w *writer) accept(ctx context.Context, e bundle.Entry, from *session) *refusal {
	w.mu.Lock()
	defer w.mu.Unlock()
	stop := context.AfterFunc(ctx, func() {
		w.mu.Lock()
		w.changed.Broadcast()
		w.mu.Unlock()
	})
	defer stop()
	for w.pooled >= w.cfg.PoolBytes && !w.ended && ctx.Err() == nil {
		w.metrics.poolFull.Add(ctx, 1)
		w.changed.Wait()
	}
	if w.ended || ctx.Err() != nil {
		return &refusal{why: reason.ChainSealed}
	}
	st := w.shard(e.Shard)
	if e.Epoch < st.epoch {
		return &refusal{why: reason.EpochFenced, detail: fmt.Sprintf("epoch %d began", st.epoch)}
	}
	if e.Epoch > st.epoch {
		st.begin(e.Epoch)
	}
	switch {
	case e.EntryNo == st.next:
	case e.EntryNo > st.next:
		return &refusal{why: reason.EntryGap, detail: fmt.Sprintf("entry %d is next", st.next)}
	default:
		if it := st.pending[e.EntryNo]; it != nil {
			it.sessions = append(it.sessions, from)
			return nil
		}
		for i := range st.recent {
			if st.recent[i].no == e.EntryNo {
				from.committed(e, st.recent[i].at)
				return nil
			}
		}
		return &refusal{why: reason.EntryGap, detail: fmt.Sprintf("entry %d was committed too long ago", e.EntryNo)}
	}
	it := &item{entry: e, sessions: []*session{from}}
	st.next++
	st.pending[e.EntryNo] = it
	w.enter(it)
	return nil
}

func (w *writer) shard(n stream.Shard) *shardState {
	st := w.shards[n]
	if st == nil {
		st = &shardState{pending: map[stream.EntryNo]*item{}}
		w.shards[n] = st
	}
	return st
}

// begin raises the fence. Entries of the lower epoch that are pending stay in
// the chain below everything of this one, so they still count.
func (st *shardState) begin(e stream.Epoch) {
	*st = shardState{epoch: e, pending: map[stream.EntryNo]*item{}}
}

func (w *writer) enter(it *item) {
	w.pool = append(w.pool, it)
	w.pooled += it.bytes()
	w.changed.Broadcast()
}

// fence lands a fence entry for an epoch and returns the cut. Repeating it, also
// while the first is under way, gives the same cut.
func (w *writer) fence(ctx context.Context, n stream.Shard, epoch stream.Epoch) (stream.Slot, error) {
	w.mu.Lock()
	st := w.shard(n)
	it := st.fence
	switch {
	case w.ended:
		w.mu.Unlock()
		return 0, errSealed()
	case epoch < st.epoch, epoch == st.epoch && it == nil && !st.fenced:
		// An entry of this epoch without its fence: the caller bound the chain
		// already, so it cannot be cutting it now.
		w.mu.Unlock()
		return 0, reason.New(codes.FailedPrecondition, reason.EpochFenced, fmt.Sprintf("epoch %d of shard %d began in the chain", st.epoch, n),
			reason.KeyEpoch, reason.Text(st.epoch))
	case epoch == st.epoch && st.fenced:
		cut := st.cut
		w.mu.Unlock()
		return cut, nil
	case epoch > st.epoch:
		st.begin(epoch)
		it = &item{entry: bundle.Entry{Kind: bundle.KindFence, Shard: n, Epoch: epoch}, done: make(chan struct{})}
		st.fence = it
		w.urgent = true
		w.enter(it)
	}
	w.mu.Unlock()
	select {
	case <-it.done:
	case <-ctx.Done():
		return 0, reason.New(reason.Code(ctx.Err()), "", "fence: "+ctx.Err().Error())
	}
	if it.lost {
		return 0, errSealed()
	}
	return it.cut, nil
}

func errSealed() error {
	return reason.New(codes.FailedPrecondition, reason.ChainSealed, "the chain has ended")
}

// run sends flights until the chain ends or ctx does.
func (w *writer) run(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() {
		w.mu.Lock()
		w.closing = true
		w.changed.Broadcast()
		w.mu.Unlock()
	})
	defer stop()
	flights := make(chan struct{})
	go func() {
		defer close(flights)
		w.sendFlights(ctx)
	}()
	select {
	case <-w.appender.Done():
	case <-ctx.Done():
		w.appender.Close()
	}
	w.end()
	<-flights
}

// sendFlights takes a lane first and entries then: while all lanes are busy
// entries gather, and the next flight carries them together.
func (w *writer) sendFlights(ctx context.Context) {
	for w.awaitWork() {
		if w.appender.Lane(ctx) != nil {
			return
		}
		w.linger(ctx)
		items := w.take()
		if len(items) == 0 {
			w.appender.Unlane()
			continue
		}
		if err := w.launch(ctx, items); err != nil {
			return
		}
	}
}

// awaitWork waits until there is something to send and room in the backlog.
func (w *writer) awaitWork() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	warned := false
	for !w.ended && !w.closing && (len(w.pool) == 0 || w.backlogFull()) {
		if len(w.pool) > 0 && !warned {
			warned = true
			w.log.Warn("too many slots wait to be absorbed; flights stop until some are", "chain", w.id.String(),
				"committed", uint64(w.commits), "absorbed", uint64(w.absorbed), "limit", w.cfg.BacklogFlights)
			w.metrics.backlogFull.Add(context.Background(), 1)
		}
		w.changed.Wait()
	}
	return !w.ended && !w.closing
}

func (w *writer) backlogFull() bool { return w.backlog() >= w.cfg.BacklogFlights }
func (w *writer) backlog() int      { return int(w.commits) - int(w.absorbed) }

func (w *writer) linger(ctx context.Context) {
	if w.cfg.Linger <= 0 {
		return
	}
	w.mu.Lock()
	full := w.urgent || w.pooled >= int64(w.cfg.FlightBytes)
	w.mu.Unlock()
	if full {
		return
	}
	t := time.NewTimer(w.cfg.Linger)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// take removes a flight's worth of entries from the pool, in order. While other
// shards wait, one shard gets at most a quarter of a flight; its entries keep
// their order, so once one stays, all later ones of the shard do.
func (w *writer) take() []*item {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.urgent = false
	many := false
	for _, it := range w.pool {
		many = many || it.entry.Shard != w.pool[0].entry.Shard
	}
	var taken, left []*item
	total, by, held := 0, map[stream.Shard]int{}, map[stream.Shard]bool{}
	for i, it := range w.pool {
		n := int(it.bytes())
		if total > 0 && total+n > w.cfg.FlightBytes {
			left = append(left, w.pool[i:]...)
			break
		}
		s := it.entry.Shard
		if held[s] || many && by[s] > 0 && by[s]+n > w.cfg.FlightBytes/4 {
			held[s] = true
			left = append(left, it)
			continue
		}
		taken = append(taken, it)
		total += n
		by[s] += n
	}
	w.pool = left
	return taken
}

// launch builds a flight and sends it.
func (w *writer) launch(ctx context.Context, items []*item) error {
	_, span := w.tracer.Start(ctx, "chainwriter.Flight", trace.WithSpanKind(trace.SpanKindInternal),
		trace.WithAttributes(attribute.String("nova.chain", w.id.String()), attribute.Int("nova.entries", len(items))))
	f := chain.Flight{Builder: bundle.NewBuilder(w.id, stream.NewFlightID(), stream.ProfileStandard)}
	kept := items[:0]
	for _, it := range items {
		offset, length, err := f.Builder.Add(it.entry)
		if err != nil {
			// Verified on arrival, so this is a fault of the program: the chain
			// must not go on without an entry that was accepted.
			w.log.Error("an accepted entry does not fit a bundle; the chain cannot go on", "chain", w.id.String(), "err", err)
			w.appender.Unlane()
			span.End()
			return errors.Join(errors.New("build flight"), err)
		}
		it.at = stream.Coordinates{Chain: w.id, Offset: offset, Length: length}
		kept = append(kept, it)
	}
	started, size := w.now(), f.Builder.Size()
	f.Done = func(slot stream.Slot, err error) {
		span.End()
		if err != nil {
			w.lose(kept)
			return
		}
		w.metrics.landed(ctx, w.now().Sub(started), len(kept), size)
		w.commit(slot, kept)
	}
	if err := w.appender.Launch(f); err != nil {
		span.End()
		w.lose(kept)
		return err
	}
	return nil
}

// commit answers the entries of a committed flight, in their order.
func (w *writer) commit(slot stream.Slot, items []*item) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.commits = slot + 1
	for _, it := range items {
		w.pooled -= it.bytes()
		it.at.Slot = slot
		st := w.shards[it.entry.Shard]
		if it.done != nil {
			it.cut = slot + 1
			if st.epoch == it.entry.Epoch {
				st.fence, st.cut, st.fenced = nil, it.cut, true
			}
			close(it.done)
			continue
		}
		if st.epoch == it.entry.Epoch {
			delete(st.pending, it.entry.EntryNo)
			if len(st.recent) == rememberedCommits {
				st.recent = append(st.recent[:0], st.recent[1:]...)
			}
			st.recent = append(st.recent, committed{no: it.entry.EntryNo, at: it.at})
		}
		for _, s := range it.sessions {
			s.committed(it.entry, it.at)
		}
	}
	w.changed.Broadcast()
}

// lose answers the entries of a flight that the chain will never hold. Their
// senders hear that the chain has ended, once everything before was answered.
func (w *writer) lose(items []*item) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, it := range items {
		w.pooled -= it.bytes()
		if it.done != nil {
			it.lost = true
			close(it.done)
		}
	}
	w.changed.Broadcast()
}

// end marks the chain as ended and tells everyone.
func (w *writer) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	for _, it := range w.pool {
		w.pooled -= it.bytes()
		if it.done != nil {
			it.lost = true
			close(it.done)
		}
	}
	w.pool = nil
	w.changed.Broadcast()
}

// isEnded reports whether the chain takes no more entries.
func (w *writer) isEnded() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ended
}
