package head

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// Read returns the state that a head's record holds.
func Read(r *indexpb.Head) State {
	s := State{
		Folded:        stream.Position{Epoch: stream.Epoch(r.GetFoldedEpoch()), Entry: stream.EntryNo(r.GetFoldedEntry())},
		Tail:          stream.Seq(r.GetTail()),
		LastTimestamp: stream.Millis(r.GetLastTimestamp()),
		Hash:          stream.Hash(r.GetContentHash()),
		Trim:          stream.Seq(r.GetTrim()),
		Token:         r.GetFencingToken(),
		Sealed:        r.GetState() >= indexpb.HeadState_HEAD_STATE_SEALED,
		Deleted:       r.GetState() == indexpb.HeadState_HEAD_STATE_DELETED,
	}
	s.Producers.forgottenUntil = stream.Millis(r.GetProducersForgottenUntil())
	s.Producers.forgotten = r.GetProducersForgotten()
	for _, in := range r.GetProducers() {
		if len(in.GetBatches()) == 0 || s.Producers.byID[in.GetProducerId()] != nil {
			continue // nobody writes such; a producer has a last batch
		}
		pr := &producer{id: in.GetProducerId(), born: birth(in.GetProducerId()), epoch: in.GetEpoch(), heard: stream.Millis(in.GetHeard())}
		for _, b := range in.GetBatches() {
			batch := Batch{
				Seq: b.GetBatchSeq(), First: stream.Seq(b.GetFirstSeq()), Next: stream.Seq(b.GetNextSeq()),
				FirstTimestamp: stream.Millis(b.GetFirstTimestamp()), LastTimestamp: stream.Millis(b.GetLastTimestamp()),
				Hash: stream.Hash(b.GetContentHash()),
			}
			pr.batches = append(pr.batches, batch)
			pr.bytes += batch.size()
		}
		s.Producers.insert(pr)
	}
	return s
}

// Write puts the state into a head's record. What else a record holds (whose it
// is, who opened it, its quarantine) stays as it is.
func (s *State) Write(r *indexpb.Head) {
	r.FoldedEpoch, r.FoldedEntry = uint64(s.Folded.Epoch), uint64(s.Folded.Entry)
	r.Tail, r.LastTimestamp, r.ContentHash, r.Trim = uint64(s.Tail), int64(s.LastTimestamp), uint64(s.Hash), uint64(s.Trim)
	r.FencingToken = s.Token
	switch {
	case s.Deleted:
		r.State = indexpb.HeadState_HEAD_STATE_DELETED
	case s.Sealed:
		r.State = indexpb.HeadState_HEAD_STATE_SEALED
	default:
		r.State = indexpb.HeadState_HEAD_STATE_ACTIVE
	}
	p := &s.Producers
	r.ProducersForgottenUntil, r.ProducersForgotten = int64(p.forgottenUntil), p.forgotten
	r.Producers = make([]*indexpb.ProducerState, 0, len(p.byID))
	if p.order == nil {
		return
	}
	for el := p.order.Front(); el != nil; el = el.Next() {
		pr := el.Value.(*producer)
		out := &indexpb.ProducerState{ProducerId: pr.id, Epoch: pr.epoch, Heard: int64(pr.heard)}
		for i := range pr.batches {
			b := &pr.batches[i]
			out.Batches = append(out.Batches, &indexpb.ProducerBatch{
				BatchSeq: b.Seq, FirstSeq: uint64(b.First), NextSeq: uint64(b.Next),
				FirstTimestamp: int64(b.FirstTimestamp), LastTimestamp: int64(b.LastTimestamp), ContentHash: uint64(b.Hash),
			})
		}
		r.Producers = append(r.Producers, out)
	}
}

// The sizes are exact, so that the table's limit is that of the record.

// size returns the bytes of a batch within its producer.
func (b *Batch) size() int {
	n := number(b.Seq) + number(uint64(b.First)) + number(uint64(b.Next)) + number(uint64(b.FirstTimestamp)) + number(uint64(b.LastTimestamp))
	if b.Hash != 0 {
		n += 1 + 8
	}
	return 1 + protowire.SizeBytes(n)
}

// size returns the bytes of a producer within a head.
func (pr *producer) size() int {
	return 1 + protowire.SizeBytes(1+protowire.SizeBytes(len(pr.id))+number(pr.epoch)+number(uint64(pr.heard))+pr.bytes)
}

// number returns the bytes of a field that is left out when it is 0.
func number(v uint64) int {
	if v == 0 {
		return 0
	}
	return 1 + protowire.SizeVarint(v)
}
