package sequencer

import (
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/head"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
)

// What the pump knows of producers beside libs/head.

// continues reports whether a batch follows its producer's last one in the
// gathered chunk: what the table would say once that is in it.
func (n *numbering) continues(p stream.Producer) bool {
	for i := len(n.batches) - 1; i >= 0 && p.ID != ""; i-- {
		if last := &n.batches[i].Producer; last.ID == p.ID {
			return last.Epoch == p.Epoch && last.Batch+1 == p.Batch
		}
	}
	return false
}

// gathered reports whether the chunk has a batch of a producer.
func (n *numbering) gathered(id string) bool {
	for i := range n.batches {
		if n.batches[i].Producer.ID == id {
			return true
		}
	}
	return false
}

// join answers a repeated batch with its first acknowledgement, at once if it
// is committed, else together with it.
func (n *numbering) join(r *request, dup head.Batch) {
	if stored := uint64(dup.Next - dup.First); uint64(len(r.records)) != stored {
		// Only this much of the content is remembered. To acknowledge it would
		// lose the records of a producer that counts its batches wrongly.
		n.refuse(r, reason.Field("batch_seq",
			fmt.Sprintf("%d was stored before with %d records, this batch has %d", r.producer.Batch, stored, len(r.records))))
		return
	}
	st := n.st
	st.mu.Lock()
	defer st.mu.Unlock()
	if dup.Next <= st.tail {
		r.answer(result{ack: st.ackLocked(&dup, true)})
		return
	}
	for _, e := range st.inflight {
		if e.kind == bundle.KindChunk && e.header.BaseSeq <= dup.First && dup.Next <= e.header.BaseSeq+stream.Seq(e.header.Count) {
			e.waits = append(e.waits, waiter{req: r, dup: &dup})
			return
		}
	}
	// The stream left this leader between numbering and here.
	gone := st.gone
	if gone == nil {
		gone = errNoLease()
	}
	r.answer(result{err: reason.WithOutcome(gone, reason.Unknown)})
}

// producerRefusal says why a producer's batch is refused. Its outcome is UNKNOWN
// where the batch may have been stored by an earlier try.
func producerRefusal(v head.Verdict, p stream.Producer, expected uint64) error {
	gap := func(what string) error {
		return reason.New(codes.FailedPrecondition, reason.ProducerGap, what, reason.KeyExpectedBatchSeq, reason.Text(expected))
	}
	switch v {
	case head.Fenced:
		return reason.WithOutcome(reason.New(codes.FailedPrecondition, reason.ProducerFenced,
			fmt.Sprintf("producer_epoch %d was fenced by epoch %d", p.Epoch, expected), reason.KeyExpectedEpoch, reason.Text(expected)), reason.Unknown)
	case head.Gap:
		return gap(fmt.Sprintf("batch_seq %d does not follow, %d is expected", p.Batch, expected))
	case head.Lost:
		return reason.WithOutcome(gap(fmt.Sprintf("what became of batch_seq %d is not remembered, %d is expected; a new producer_id begins anew", p.Batch, expected)), reason.Unknown)
	case head.Old:
		return gap("producer_id is a ULID of more than 7 days ago and not remembered; a new producer_id begins anew")
	case head.Full:
		return reason.Over("producers", fmt.Sprintf("the stream remembers %d producers, the limit", head.MaxProducers), time.Hour)
	case head.Accept, head.Duplicate:
	}
	return nil
}
