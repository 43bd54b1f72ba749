package chainwriter

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/libs/telemetry"
)

// writer writes one chain. It ends with the chain.
type writer struct {
	cfg      Config
	id       stream.ChainID
	appender *chain.Appender
	log      *slog.Logger
	metrics  *metrics
	tracer   trace.Tracer
	now      func() time.Time
	gone     chan struct{} // closed when run has returned
	hurry    chan struct{} // capacity 1: a flight need not linger any more
	landed   chan struct{} // capacity 1: no flight is in the air any more
	sealed   atomic.Bool   // the chain's cut is recorded, as this life knows

	mu       sync.Mutex // guards what follows
	changed  *sync.Cond // room, work, what limits flights, or ended changed
	shards   map[stream.Shard]*shardState
	ring     []*shardState // those with entries that wait, in turn
	waiting  int64         // bytes of entries that wait for a flight
	pooled   int64         // bytes of entries that wait or are in the air
	flying   int           // flights in the air
	fences   int           // fences that wait for a flight
	commits  stream.Slot   // slots committed
	absorbed stream.Slot   // as last learned
	ended    bool

	unsettled unsettled
}

// item is an entry in the pool or in the air.
type item struct {
	entry    bundle.Entry
	spans    [][]byte           // of the sampled requests that it carries
	at       stream.Coordinates // but for the slot, once it is in a flight
	sessions []*session         // who hear of it
	fence    *fence             // of a fence entry
}

func (it *item) bytes() int64 { return int64(len(it.entry.Body)) + bundle.EntryOverhead }

// fence is a fence entry on its way; cut and lost are valid once done is closed.
type fence struct {
	done chan struct{}
	cut  stream.Slot
	lost bool // the chain ended first
}

// shardState is what the writer knows of a shard in its chain.
type shardState struct {
	epoch   stream.Epoch
	next    stream.EntryNo           // of epoch, the only number that is taken
	pending map[stream.EntryNo]*item // of epoch
	recent  recentCommits            // of epoch
	fence   *fence                   // of epoch, if it began with one
	queue   []*item                  // waiting for a flight, of any epoch, in order
}

// begin raises the fence. What waits of the lower epoch stays before everything
// of this one in the chain, so it still counts.
func (st *shardState) begin(e stream.Epoch) {
	st.epoch, st.next, st.pending, st.recent, st.fence = e, 0, map[stream.EntryNo]*item{}, recentCommits{}, nil
}

// rememberedCommits is how many of its last commits a shard remembers, to
// answer a duplicate that comes late.
const rememberedCommits = 1024

// recentCommits remembers where the last entries of an epoch are. Entries are
// committed in the order of their numbers, from 0.
type recentCommits struct {
	next stream.EntryNo
	at   []stream.Coordinates // by number modulo rememberedCommits
}

func (r *recentCommits) add(at stream.Coordinates) {
	if len(r.at) < rememberedCommits {
		r.at = append(r.at, at)
	} else {
		r.at[r.next%rememberedCommits] = at
	}
	r.next++
}

func (r *recentCommits) get(n stream.EntryNo) (stream.Coordinates, bool) {
	if n >= r.next || r.next-n > rememberedCommits {
		return stream.Coordinates{}, false
	}
	return r.at[n%rememberedCommits], true
}

// refusal says that the chain will never hold an entry.
type refusal struct {
	why    reason.Reason
	detail string
}

// accept takes an entry in. While the pool is full it waits, and with it the
// sender, whose credit is used up anyway. spans are those of the requests in it.
func (w *writer) accept(ctx context.Context, e bundle.Entry, spans [][]byte, from *session) *refusal {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pooled >= w.cfg.PoolBytes {
		w.awaitRoom(ctx)
	}
	if w.ended || ctx.Err() != nil {
		return &refusal{why: reason.ChainSealed, detail: "the chain has ended"}
	}
	st := w.shard(e.Shard)
	next := st.next
	if e.Epoch > st.epoch {
		next = 0
	}
	switch {
	case e.Epoch < st.epoch:
		return &refusal{why: reason.EpochFenced, detail: fmt.Sprintf("epoch %d began", st.epoch)}
	case e.EntryNo > next:
		// The epoch is not raised by what the chain does not hold.
		return &refusal{why: reason.EntryGap, detail: fmt.Sprintf("entry %d is next", next)}
	case e.EntryNo < next:
		return st.repeated(e, from)
	}
	if e.Epoch > st.epoch {
		st.begin(e.Epoch)
	}
	it := &item{entry: e, spans: spans, sessions: []*session{from}}
	st.next++
	st.pending[e.EntryNo] = it
	w.enter(st, it)
	return nil
}

// repeated answers an entry that was taken before: with the pending one, or at
// once. The same number under the same epoch holds the same bytes.
func (st *shardState) repeated(e bundle.Entry, from *session) *refusal {
	if it := st.pending[e.EntryNo]; it != nil {
		it.sessions = append(it.sessions, from)
		return nil
	}
	at, ok := st.recent.get(e.EntryNo)
	if !ok {
		return &refusal{why: reason.EntryGap, detail: fmt.Sprintf("entry %d was committed too long ago to say where", e.EntryNo)}
	}
	from.committed(e, at)
	return nil
}

func (w *writer) awaitRoom(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.changed.Broadcast()
	})
	defer stop()
	w.metrics.poolFull.Add(ctx, 1)
	for w.pooled >= w.cfg.PoolBytes && !w.ended && ctx.Err() == nil {
		w.changed.Wait()
	}
}

func (w *writer) shard(n stream.Shard) *shardState {
	st := w.shards[n]
	if st == nil {
		st = &shardState{pending: map[stream.EntryNo]*item{}}
		w.shards[n] = st
	}
	return st
}

// landFence lands a fence entry for an epoch and returns the cut. Repeating it,
// also while the first is under way, gives the same cut.
func (w *writer) landFence(ctx context.Context, n stream.Shard, epoch stream.Epoch) (stream.Slot, error) {
	f, err := w.beginFence(n, epoch, telemetry.PackSpan(ctx))
	if err != nil {
		return 0, err
	}
	select {
	case <-f.done:
	case <-ctx.Done():
		return 0, reason.New(reason.Code(ctx.Err()), "", "the fence is under way: "+ctx.Err().Error())
	}
	if f.lost {
		return 0, w.errEnded()
	}
	return f.cut, nil
}

func (w *writer) beginFence(n stream.Shard, epoch stream.Epoch, span []byte) (*fence, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return nil, w.errEnded()
	}
	st := w.shard(n)
	if epoch == st.epoch && st.fence != nil {
		return st.fence, nil
	}
	if epoch <= st.epoch {
		// With an equal one: its leader has bound this chain already, so nobody
		// who may be believed asks where it begins.
		return nil, reason.New(codes.FailedPrecondition, reason.EpochFenced,
			fmt.Sprintf("epoch %d of shard %d began in the chain", st.epoch, n), reason.KeyEpoch, reason.Text(st.epoch))
	}
	st.begin(epoch)
	st.fence = &fence{done: make(chan struct{})}
	w.fences++
	it := &item{entry: bundle.Entry{Kind: bundle.KindFence, Shard: n, Epoch: epoch}, fence: st.fence}
	if span != nil {
		it.spans = [][]byte{span}
	}
	w.enter(st, it)
	return st.fence, nil
}

// sealedAt returns the cut, if the appender learned it.
func (w *writer) sealedAt() (stream.Slot, bool) {
	cut, err := w.appender.Cut()
	if err == nil {
		w.sealed.Store(true)
	}
	return cut, err == nil
}

// errEnded says where the chain ended, if it is known.
func (w *writer) errEnded() error {
	cut, ok := w.sealedAt()
	if !ok {
		return errSealed()
	}
	return reason.New(codes.FailedPrecondition, reason.ChainSealed, fmt.Sprintf("the chain has ended at slot %d", cut), reason.KeyCut, reason.Text(cut))
}

func errSealed() error {
	return reason.New(codes.FailedPrecondition, reason.ChainSealed, "the chain has ended")
}

// commit answers the entries of a committed flight of size bytes, in their order.
func (w *writer) commit(slot stream.Slot, items []*item, size int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.commits = slot + 1
	w.unsettled.committed(slot, int64(size))
	for _, it := range items {
		w.pooled -= it.bytes()
		it.at.Slot = slot
		if f := it.fence; f != nil {
			f.cut = slot + 1
			close(f.done)
			continue
		}
		if st := w.shards[it.entry.Shard]; st.epoch == it.entry.Epoch {
			delete(st.pending, it.entry.EntryNo)
			st.recent.add(it.at)
		}
		for _, s := range it.sessions {
			s.committed(it.entry, it.at)
		}
	}
	w.changed.Broadcast()
}

// lose drops the entries of a flight that was not committed. Their senders hear
// that the chain has ended, after everything that was.
func (w *writer) lose(items []*item) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, it := range items {
		w.pooled -= it.bytes()
		if it.fence != nil {
			it.fence.lost = true
			close(it.fence.done)
		}
	}
	w.changed.Broadcast()
}

// end marks the chain as ended and drops what waits.
func (w *writer) end() {
	w.mu.Lock()
	w.ended = true
	var left []*item
	for _, st := range w.ring {
		left = append(left, st.queue...)
		st.queue = nil
	}
	w.ring, w.waiting, w.fences = nil, 0, 0
	w.mu.Unlock()
	w.lose(left)
}

// isEnded reports whether the chain takes no more entries.
func (w *writer) isEnded() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ended
}
