package sequencer

import (
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/head"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// chunkTarget ends a chunk, in bytes of chunk.RawBound: a read fetches and holds
// whole chunks. Records without bytes count too, so that many of them end it.
const chunkTarget = 1 << 20

// maxChunkBatches ends a chunk of many small batches, well below the format's
// limit, so that its header stays small beside its records.
const maxChunkBatches = 256

// pump numbers what is queued until the queue is empty. One pump at a time
// works on a stream, so that numbers are given in one order; it owns
// st.assigned. While it encodes, new requests gather and share the next chunk.
func (st *openStream) pump() {
	for {
		st.mu.Lock()
		if st.gone != nil || len(st.queue) == 0 || !st.shard.serving.Load() {
			st.pumping = false
			st.mu.Unlock()
			return
		}
		batch := st.queue
		st.queue = nil
		mode, uncapped := timestamping(st.descriptor.GetConfig())
		st.mu.Unlock()

		n := numbering{st: st, mode: mode, uncapped: uncapped, arrival: millis(st.shard.svc.now())}
		for i, r := range batch {
			n.behind = len(batch) - 1 - i
			if !r.take() {
				// Its caller has left and was told NOT_COMMITTED.
				if r.session != nil {
					r.session.failed = true
				}
				r.answer(result{})
				continue
			}
			n.number(r)
		}
		n.flush()
	}
}

func timestamping(c *novapb.StreamConfig) (novapb.TimestampingMode, bool) {
	return c.GetTimestamping(), c.GetUncappedTimestamps()
}

func millis(t time.Time) stream.Millis { return stream.Millis(t.UnixMilli()) }

// numbering is one pass of the pump: it gathers batches into a chunk.
type numbering struct {
	st       *openStream
	mode     novapb.TimestampingMode
	uncapped bool
	arrival  stream.Millis
	behind   int // requests of this pass that are not numbered yet

	// The chunk being gathered.
	batches []chunk.Batch
	records [][]stream.Record
	waits   []waiter
	size    int           // chunk.RawBound of the records
	next    stream.Seq    // after the gathered records; valid while batches is not empty
	lastTS  stream.Millis // likewise
}

// number admits one request against everything numbered before it.
func (n *numbering) number(r *request) {
	a := &n.st.assigned
	// What the request is checked against includes the gathered chunk; producers
	// and control entries look at more than its numbers.
	next, size := false, 0
	if r.kind == bundle.KindChunk {
		size = chunk.RawBound(r.records)
	}
	if len(n.batches) > 0 {
		next = n.continues(r.producer)
		known := next || r.producer.ID == "" || a.Producers.Knows(r.producer.ID) && !n.gathered(r.producer.ID)
		full := n.size+size > chunkTarget || len(n.batches) == maxChunkBatches
		if r.kind != bundle.KindChunk || !known || full || n.batches[len(n.batches)-1].Seal {
			n.flush()
			next = false // if it was stored, the table knows
		}
	}
	if r.session != nil && r.session.failed {
		// A session is a sequence: what comes after a failure must not be stored.
		n.refuse(r, errSessionFailed(reason.NotCommitted))
		return
	}
	if a.Deleted {
		n.refuse(r, errDeleted())
		return
	}
	if r.kind == bundle.KindDelete {
		if r.match != nil && !n.emptyAt(stream.Seq(*r.match)) {
			n.refuse(r, reason.New(codes.FailedPrecondition, reason.SeqMismatch,
				fmt.Sprintf("the stream is not empty and at rest at %d, the next number is %d", *r.match, a.Tail), reason.KeyTail, reason.Text(a.Tail)))
			return
		}
		a.Deleted = true
		n.control(r, nil)
		return
	}
	if r.producer.ID != "" && !next {
		verdict, dup, expected := a.Producers.Check(r.producer, n.arrival)
		if verdict == head.Duplicate {
			// Before every other check: what was stored is not judged again by a
			// state that it changed itself.
			n.join(r, dup)
			return
		}
		if err := producerRefusal(verdict, r.producer, expected); err != nil {
			if s := n.st.shard.svc; verdict == head.Full {
				s.metrics.refused(s.running, "producers")
			}
			n.refuse(r, err)
			return
		}
	}
	if err := n.check(r); err != nil {
		n.refuse(r, err)
		return
	}
	switch r.kind {
	case bundle.KindTrim:
		if r.clamp {
			r.trim = min(r.trim, a.Tail)
		}
		if r.trim <= a.Trim {
			n.settle(r) // already so, once what was numbered is committed
			return
		}
		a.Trim = r.trim
		n.control(r, head.TrimArgument(r.trim))
	case bundle.KindToken:
		a.Token = r.setToken
		n.control(r, []byte(r.setToken))
	case bundle.KindSeal:
		if a.Sealed {
			n.settle(r)
			return
		}
		a.Sealed = true
		n.control(r, nil)
	default:
		n.gather(r, size)
	}
}

// check tests the preconditions of everything but deletes and duplicates.
func (n *numbering) check(r *request) error {
	a := &n.st.assigned
	tail := n.tail()
	if r.token != nil && *r.token != a.Token {
		return reason.New(codes.Aborted, reason.Fenced, "fencing_token is not the stream's token")
	}
	if r.match != nil && *r.match != uint64(tail) && !(r.kind == bundle.KindSeal && a.Sealed) {
		return reason.New(codes.FailedPrecondition, reason.SeqMismatch,
			fmt.Sprintf("match_seq is %d, the next number is %d", *r.match, tail), reason.KeyTail, reason.Text(tail))
	}
	switch r.kind {
	case bundle.KindChunk:
		if a.Sealed {
			return errSealed(tail)
		}
		if n.mode == novapb.TimestampingMode_TIMESTAMPING_MODE_CLIENT_REQUIRE {
			for i := range r.records {
				if r.records[i].Timestamp == noTimestamp {
					return reason.Field(fmt.Sprintf("records[%d].timestamp", i), "is required by the stream's timestamping")
				}
			}
		}
	case bundle.KindTrim:
		if r.trim > tail && !r.clamp {
			return reason.New(codes.OutOfRange, reason.BeyondTail,
				fmt.Sprintf("seq %d is beyond the tail %d", r.trim, tail), reason.KeyTail, reason.Text(tail))
		}
	default:
	}
	return nil
}

// emptyAt reports whether the stream holds no record and ends at a number, and
// nothing is on its way.
func (n *numbering) emptyAt(at stream.Seq) bool {
	st, a := n.st, &n.st.assigned
	if a.Tail != at || a.Trim != a.Tail || n.behind > 0 {
		return false
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	return len(st.queue) == 0 && len(st.inflight) == 0
}

func (n *numbering) tail() stream.Seq {
	if len(n.batches) > 0 {
		return n.next
	}
	return n.st.assigned.Tail
}

// gather numbers an append's records and puts them into the chunk, which has room.
func (n *numbering) gather(r *request, size int) {
	a := &n.st.assigned
	if len(n.batches) == 0 {
		n.next, n.lastTS = a.Tail, a.LastTimestamp
	}
	for i := range r.records {
		rec := &r.records[i]
		rec.Seq = n.next
		rec.Timestamp = n.timestamp(rec.Timestamp)
		n.lastTS = rec.Timestamp
		n.next++
	}
	n.waits = append(n.waits, waiter{req: r, batch: len(n.batches)})
	n.batches = append(n.batches, chunk.Batch{Producer: r.producer, Seal: r.seal})
	n.records = append(n.records, r.records)
	n.size += size
}

// timestamp applies the stream's timestamping; never decreasing beats "not
// later than arrival" (I9).
func (n *numbering) timestamp(client stream.Millis) stream.Millis {
	ts := client
	if ts == noTimestamp || n.mode == novapb.TimestampingMode_TIMESTAMPING_MODE_ARRIVAL {
		ts = n.arrival
	}
	if ts > n.arrival && !n.uncapped {
		ts = n.arrival
	}
	return max(ts, n.lastTS)
}

// flush encodes the gathered chunk and hands it on.
func (n *numbering) flush() {
	if len(n.batches) == 0 {
		return
	}
	st, a := n.st, &n.st.assigned
	in := chunk.Input{StreamID: st.id, BaseSeq: a.Tail, HashBefore: a.Hash}
	for i := range n.batches {
		in.Batches = append(in.Batches, chunk.InputBatch{Records: n.records[i], Producer: n.batches[i].Producer, Seal: n.batches[i].Seal})
	}
	waits := n.waits
	n.batches, n.records, n.waits, n.size = nil, nil, nil, 0
	body, header, err := chunk.Encode(nil, in)
	if err != nil {
		// Only a batch beyond the limits of the edge comes here; nothing was numbered.
		for i := range waits {
			if ses := waits[i].req.session; ses != nil {
				ses.failed = true
			}
			waits[i].fail(reason.New(codes.Internal, "", "encode: "+err.Error()), reason.NotCommitted)
		}
		return
	}
	a.AppendChunk(&header, n.arrival)
	n.hand(&entry{st: st, kind: bundle.KindChunk, ts: n.arrival, body: body, header: &header, spans: spansOf(waits), waits: waits})
}

// control hands on a control entry.
func (n *numbering) control(r *request, argument []byte) {
	waits := []waiter{{req: r}}
	n.hand(&entry{st: n.st, kind: r.kind, ts: n.arrival, body: argument, spans: spansOf(waits), waits: waits})
}

// hand puts the entry in line for its commit and gives it to the shard.
func (n *numbering) hand(e *entry) {
	st := n.st
	st.mu.Lock()
	if st.gone != nil {
		gone := st.gone
		st.mu.Unlock()
		for i := range e.waits {
			e.waits[i].fail(gone, reason.NotCommitted)
		}
		return
	}
	st.inflight = append(st.inflight, e)
	st.mu.Unlock()
	st.shard.submit(e)
}

// refuse answers with err once the state that led to it is committed.
func (n *numbering) refuse(r *request, err error) {
	if r.session != nil {
		r.session.failed = true
	}
	n.settleWith(waiter{req: r, refusal: err})
}

// settle answers with success once the state that led to it is committed.
func (n *numbering) settle(r *request) {
	n.settleWith(waiter{req: r, settled: true})
}

func (n *numbering) settleWith(w waiter) {
	if len(n.batches) > 0 {
		if w.refusal != nil {
			n.waits = append(n.waits, w)
			return
		}
		n.flush()
	}
	st := n.st
	st.mu.Lock()
	defer st.mu.Unlock()
	if k := len(st.inflight); k > 0 {
		last := st.inflight[k-1]
		last.waits = append(last.waits, w)
		return
	}
	if st.gone != nil {
		w.fail(st.gone, reason.NotCommitted)
		return
	}
	st.answerLocked(nil, &w)
}

func errSealed(tail stream.Seq) error {
	return reason.New(codes.FailedPrecondition, reason.StreamSealed,
		fmt.Sprintf("the stream is sealed at %d", tail), reason.KeyTail, reason.Text(tail))
}

func errDeleted() error {
	return reason.New(codes.NotFound, reason.StreamNotFound, "the stream is deleted")
}
