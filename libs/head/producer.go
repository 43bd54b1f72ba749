package head

import (
	"container/list"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/nova-stream/nova/libs/stream"
)

// Limits of the producer table of one stream.
const (
	// MaxProducers is how many producers a stream remembers.
	MaxProducers = 256
	// MaxBatches is how many of its last batches each producer may send again:
	// the pipeline limit of an append session.
	MaxBatches = 16
	// Horizon is how long a producer that sends nothing is remembered for sure.
	Horizon = 7 * 24 * time.Hour
)

// Batch is a stored batch, enough to repeat its first acknowledgement.
type Batch struct {
	Seq            uint64 // the producer's batch_seq
	First, Next    stream.Seq
	FirstTimestamp stream.Millis
	LastTimestamp  stream.Millis
	Hash           stream.Hash // after the batch
}

// Verdict says what to do with a producer's batch.
type Verdict uint8

// The verdicts of Producers.Check.
const (
	// Accept: the next batch of the producer.
	Accept Verdict = iota
	// Duplicate: stored before; repeat its acknowledgement.
	Duplicate
	// Fenced: a higher producer epoch was there.
	Fenced
	// Gap: not the next batch, or one too old to be remembered.
	Gap
	// Full: the table has no room for another producer.
	Full
)

// Producers remembers the last batches of a bounded number of producers.
//
// A producer that is not remembered may only start at batch 0. To forget one
// must therefore not make its batch 0 acceptable again (I5). A producer whose
// id is a ULID carries the time of its birth: when the table is full the one
// silent for longest is forgotten and Forgotten raised to its birth; unknown
// ULIDs born at or before Forgotten are refused from then on.
// Ids that are no ULIDs are forgotten only when they were silent for Horizon;
// a table full of younger ones is Full.
//
// The zero value is empty and ready.
type Producers struct {
	byID  map[string]*list.Element
	order *list.List // of *producer, least recently heard of first
	// Forgotten is the birth time, in milliseconds, up to which unknown ULID
	// producers are refused.
	Forgotten stream.Millis
	// clock is the latest time that Check was told. Silence is measured by it
	// and not by the records' timestamps, which may be the client's own.
	clock stream.Millis
}

type producer struct {
	id      string
	epoch   uint64
	heard   stream.Millis // by clock; 0: before the first Check, which is not known
	batches []Batch       // oldest first, at most MaxBatches, consecutive in Seq
}

// Check says what to do with a batch, and for Duplicate which one it repeats.
// expected is the epoch that fenced it, or the batch_seq that is due.
func (p *Producers) Check(b stream.Producer, now stream.Millis) (v Verdict, dup Batch, expected uint64) {
	p.clock = max(p.clock, now)
	el, known := p.byID[b.ID]
	if !known {
		switch {
		case b.Batch != 0:
			return Gap, Batch{}, 0
		case p.tooOld(b.ID):
			return Gap, Batch{}, 0
		case len(p.byID) >= MaxProducers && !p.canForget():
			return Full, Batch{}, 0
		}
		return Accept, Batch{}, 0
	}
	pr := el.Value.(*producer)
	switch {
	case b.Epoch < pr.epoch:
		return Fenced, Batch{}, pr.epoch
	case b.Epoch > pr.epoch:
		if b.Batch != 0 {
			return Gap, Batch{}, 0
		}
		return Accept, Batch{}, 0
	}
	last := pr.batches[len(pr.batches)-1].Seq
	switch {
	case b.Batch == last+1:
		return Accept, Batch{}, 0
	case b.Batch > last:
		return Gap, Batch{}, last + 1
	}
	if back := last - b.Batch; back < uint64(len(pr.batches)) {
		return Duplicate, pr.batches[len(pr.batches)-1-int(back)], 0
	}
	return Gap, Batch{}, last + 1
}

// Record notes a stored batch. The caller has checked it, or reads it from the
// log, which holds only checked ones.
func (p *Producers) Record(b stream.Producer, batch Batch) {
	if p.byID == nil {
		p.byID, p.order = map[string]*list.Element{}, list.New()
	}
	el, known := p.byID[b.ID]
	if !known {
		if len(p.byID) >= MaxProducers {
			p.forget()
		}
		el = p.order.PushBack(&producer{id: b.ID})
		p.byID[b.ID] = el
	}
	p.order.MoveToBack(el)
	pr := el.Value.(*producer)
	pr.heard = p.clock
	if b.Epoch != pr.epoch {
		pr.epoch, pr.batches = b.Epoch, pr.batches[:0]
	}
	if len(pr.batches) == MaxBatches {
		copy(pr.batches, pr.batches[1:])
		pr.batches = pr.batches[:MaxBatches-1]
	}
	pr.batches = append(pr.batches, batch)
}

// Len returns the number of remembered producers.
func (p *Producers) Len() int { return len(p.byID) }

// tooOld reports whether an unknown id may have been forgotten.
func (p *Producers) tooOld(id string) bool {
	born, isULID := birth(id)
	return isULID && p.Forgotten != 0 && born <= p.Forgotten
}

// canForget reports whether the producer silent for longest may be forgotten.
func (p *Producers) canForget() bool {
	oldest := p.order.Front().Value.(*producer)
	if _, isULID := birth(oldest.id); isULID {
		return true
	}
	if oldest.heard == 0 {
		// It comes from the log or a head: it has been silent from now at the
		// earliest.
		oldest.heard = p.clock
	}
	return p.clock-oldest.heard > stream.Millis(Horizon/time.Millisecond)
}

func (p *Producers) forget() {
	el := p.order.Front()
	pr := el.Value.(*producer)
	p.order.Remove(el)
	delete(p.byID, pr.id)
	if born, isULID := birth(pr.id); isULID {
		p.Forgotten = max(p.Forgotten, born)
	}
}

// birth returns the creation time in a ULID.
func birth(id string) (stream.Millis, bool) {
	u, err := ulid.ParseStrict(id)
	if err != nil {
		return 0, false
	}
	return stream.Millis(u.Time()), true
}
