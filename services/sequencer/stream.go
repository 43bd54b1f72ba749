package sequencer

import (
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/head"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// piece says where one committed chunk lies.
type piece struct {
	base   stream.Seq
	count  uint32
	length uint32
	offset uint32
	slot   stream.Slot
	lastTS stream.Millis
	chain  *stream.ChainID // shared by the pieces of a chain
	window *windowed
}

func (p *piece) next() stream.Seq { return p.base + stream.Seq(p.count) }

// pieceBytes is what a piece costs in memory, for the coordinate budget.
const pieceBytes = 64

// openStream is a stream in the memory of its leader.
type openStream struct {
	id    stream.ID
	shard *shard
	// broken is why it is not served, until lookAgain; see quarantine.go.
	broken    error
	lookAgain time.Time
	deleting  atomic.Bool // a DELETE of the broken stream is under way

	// assigned is the state after everything numbered. It belongs to the pump;
	// while pumping is false, to whoever sets pumping under mu.
	assigned head.State

	mu         sync.Mutex
	descriptor *indexpb.StreamDescriptor
	queue      []*request
	pumping    bool
	inflight   []*entry // numbered, not yet committed, in order
	gone       error    // set once: why the stream is no longer served from here
	atRest     bool     // with gone: nothing was under way

	// The committed state; everything that readers see.
	tail    stream.Seq
	lastTS  stream.Millis
	hash    stream.Hash
	trim    stream.Seq
	sealed  bool
	deleted bool
	// Records below settledTo are settled: the head names where they are, and its
	// tail is at least that. settledTS is the timestamp of the last of them. Pieces
	// are of the records from there on, without gaps, but for those that are
	// trimmed.
	settledTo stream.Seq
	settledTS stream.Millis
	pieces    []piece
	stored    uint64        // bytes of pieces
	changed   chan struct{} // closed when the committed state changes; nil: nobody asked
	waiters   int           // who wait for changed now
	used      time.Time
}

// entry is one item of the chain, with whom to tell when it is committed.
type entry struct {
	st     *openStream
	kind   bundle.Kind
	no     stream.EntryNo // under the epoch it was last sent in
	sent   bool           // ever: its outcome is open
	ts     stream.Millis
	body   []byte        // the encoded chunk, or the control argument
	header *chunk.Header // of a chunk
	spans  [][]byte      // of the requests it carries, those that are sampled
	waits  []waiter
}

// waiter is a request that is answered when an entry is committed.
type waiter struct {
	req     *request
	batch   int         // index into header.Batches, of the request's own records
	dup     *head.Batch // answer with this earlier batch instead
	refusal error       // answer with it: what it promises is committed now
	settled bool        // nothing to do but to wait: answer with the extent
}

// enqueue puts a request in line and sees that somebody works on it.
func (st *openStream) enqueue(r *request) {
	st.mu.Lock()
	if st.gone != nil {
		st.mu.Unlock()
		r.answer(result{err: reason.WithOutcome(st.gone, reason.NotCommitted)})
		return
	}
	st.queue = append(st.queue, r)
	st.used = st.shard.svc.now()
	st.kickLocked()
	st.mu.Unlock()
}

// kickLocked starts the pump if there is work, nobody pumps, and the shard serves.
func (st *openStream) kickLocked() {
	if st.pumping || len(st.queue) == 0 || !st.shard.serving.Load() {
		return
	}
	st.pumping = true
	st.shard.svc.work.Go(st.pump)
}

// commit moves the committed state over an entry and answers who waits for it.
// It is called in stream order. A chunk that was settled while it was pending has
// no coordinates: the zero piece.
func (st *openStream) commit(e *entry, at piece) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.gone != nil {
		return // it left meanwhile, and answered for what was in flight
	}
	st.inflight[0] = nil
	st.inflight = st.inflight[1:]
	switch e.kind {
	case bundle.KindChunk:
		h := e.header
		st.tail = h.BaseSeq + stream.Seq(h.Count)
		st.lastTS, st.hash = h.LastTimestamp, h.HashAfter
		if at.chain == nil {
			// So is everything before it.
			st.uncountLocked(st.dropFirstLocked(len(st.pieces)))
			st.settledTo, st.settledTS = st.tail, st.lastTS
		} else {
			at.base, at.count, at.lastTS = h.BaseSeq, h.Count, h.LastTimestamp
			at.window = st.shard.svc.window.add(e.body)
			st.addPieceLocked(at)
			st.shard.svc.coordinates.Add(pieceBytes)
		}
		for i := range h.Batches {
			st.sealed = st.sealed || h.Batches[i].Seal
		}
	case bundle.KindSeal:
		st.sealed = true
	case bundle.KindDelete:
		st.deleted = true
	case bundle.KindTrim:
		// The argument was made by pump; see head.State.Fold for the same rule.
		if to, err := head.ParseTrim(e.body); err == nil {
			st.trim = max(st.trim, min(to, st.tail))
			st.uncountLocked(st.dropTrimmedLocked())
		}
	case bundle.KindFence, bundle.KindToken:
	}
	for i := range e.waits {
		st.answerLocked(e, &e.waits[i])
	}
	st.notifyLocked()
}

// answerLocked answers one waiter of a committed entry; without an entry, one
// that waits for nothing. What is answered from memory needs a valid lease:
// without it another leader may know better. It is looked at here, after the
// state was read.
func (st *openStream) answerLocked(e *entry, w *waiter) {
	switch {
	case (w.refusal != nil || w.settled) && !st.shard.svc.lease.valid():
		w.fail(errNoLease(), reason.NotCommitted)
	case w.refusal != nil:
		w.fail(w.refusal, reason.NotCommitted)
	case w.dup != nil:
		w.req.answer(result{ack: st.ackLocked(w.dup, true)})
	case !w.settled && e.kind == bundle.KindChunk:
		b := batchOf(e.header, w.batch)
		w.req.answer(result{ack: st.ackLocked(&b, false), tail: st.tail, trim: st.trim})
	default:
		w.req.answer(result{tail: st.tail, trim: st.trim})
	}
}

// fail answers with an error and an outcome. A refusal that was to say UNKNOWN
// says so whatever came between: it is about a batch that an earlier try may
// have stored.
func (w *waiter) fail(err error, o reason.Outcome) {
	if reason.OutcomeOf(w.refusal) != "" {
		o = reason.OutcomeOf(w.refusal)
	}
	w.req.answer(result{err: reason.WithOutcome(err, o)})
}

func errNoLease() error {
	return reason.New(codes.Unavailable, reason.NoLeader, "the shard's leader could not renew its lease")
}

func batchOf(h *chunk.Header, index int) head.Batch {
	first := h.BaseSeq
	for i := range index {
		first += stream.Seq(h.Batches[i].Count)
	}
	b := &h.Batches[index]
	return head.Batch{
		Seq: b.Producer.Batch, First: first, Next: first + stream.Seq(b.Count),
		FirstTimestamp: b.FirstTimestamp, LastTimestamp: b.LastTimestamp, Hash: b.HashAfter,
	}
}

func (st *openStream) ackLocked(b *head.Batch, duplicate bool) *novapb.AppendAck {
	return &novapb.AppendAck{
		FirstSeq: uint64(b.First), NextSeq: uint64(b.Next), Tail: uint64(st.tail),
		FirstTimestamp: int64(b.FirstTimestamp), LastTimestamp: int64(b.LastTimestamp),
		ContentHash: uint64(b.Hash), Duplicate: duplicate,
	}
}

func (st *openStream) addPieceLocked(p piece) {
	st.pieces = append(st.pieces, p)
	st.stored += uint64(p.length)
}

// dropTrimmedLocked forgets pieces wholly below the trim point and returns how
// many.
func (st *openStream) dropTrimmedLocked() int {
	n := 0
	for n < len(st.pieces) && st.pieces[n].next() <= st.trim {
		n++
	}
	return st.dropFirstLocked(n)
}

// dropFirstLocked forgets the first n pieces and returns n.
func (st *openStream) dropFirstLocked(n int) int {
	for i := range st.pieces[:n] {
		st.stored -= uint64(st.pieces[i].length)
	}
	if n > 0 {
		// A copy, so that the memory goes too.
		st.pieces = append([]piece(nil), st.pieces[n:]...)
	}
	return n
}

// uncountLocked gives back what n pieces took of the budget for coordinates.
func (st *openStream) uncountLocked(n int) {
	st.shard.svc.coordinates.Add(int64(-n * pieceBytes))
}

// notifyLocked wakes everyone who waits for a change.
func (st *openStream) notifyLocked() {
	if st.changed != nil {
		close(st.changed)
		st.changed = nil
	}
}

// addWaiters counts who wait; a stream with waiters stays in memory.
func (st *openStream) addWaiters(n int) {
	st.mu.Lock()
	st.waiters += n
	st.mu.Unlock()
}

// waitLocked returns a channel that is closed at the next change.
func (st *openStream) waitLocked() <-chan struct{} {
	if st.changed == nil {
		st.changed = make(chan struct{})
	}
	return st.changed
}

// leave ends the stream's service from here. What is numbered and not decided
// is UNKNOWN, what is queued was never numbered.
func (st *openStream) leave(why error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.gone != nil {
		return
	}
	st.gone = why
	for _, e := range st.inflight {
		for i := range e.waits {
			w := &e.waits[i]
			outcome := reason.Unknown
			if w.refusal != nil || w.settled || !e.sent && w.dup == nil {
				outcome = reason.NotCommitted
			}
			w.fail(why, outcome)
		}
	}
	st.inflight = nil
	for _, r := range st.queue {
		r.answer(result{err: reason.WithOutcome(why, reason.NotCommitted)})
	}
	st.queue = nil
	st.uncountLocked(len(st.pieces))
	st.pieces = nil
	st.notifyLocked()
}
