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
	// MaxTableBytes limits the table as it stands in a head's record. Beyond it
	// the producers that were silent for longest keep fewer batches, each at least
	// its last one.
	MaxTableBytes = 40 << 10
	// Horizon is how long a producer that sends nothing is remembered for sure.
	Horizon = 7 * 24 * time.Hour
)

const horizon = stream.Millis(Horizon / time.Millisecond)

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
	// Fenced: a higher producer epoch was there. The batch may have been stored
	// before it.
	Fenced
	// Gap: not the next batch; it was never stored.
	Gap
	// Lost: not the next batch; it may have been stored, by a producer or further
	// back than what is remembered.
	Lost
	// Old: a ULID born before the horizon that is not remembered; its batch was
	// never stored.
	Old
	// Full: the table has no room for another producer.
	Full
)

// Producers remembers the last batches of a bounded number of producers.
//
// A producer that is not remembered may only start at batch 0. To forget one
// must therefore not make its batch 0 acceptable again (I5). A producer whose
// id is a ULID carries the time of its birth: when the table is full the one
// silent for longest is forgotten and its birth noted; unknown ULIDs born at or
// before that are refused from then on, as are those born before the horizon.
// Ids that are no ULIDs, and ULIDs whose birth is still to come, cannot be told
// from newcomers that way: they are forgotten only when they were silent for
// Horizon. A table full of them is Full.
//
// Time is that of the log: when each batch was numbered, by its leader's clock.
// Records' timestamps may be the client's own and count for nothing here. So
// whoever folds a log forgets what its leader forgot.
//
// The zero value is empty and ready.
type Producers struct {
	byID  map[string]*list.Element
	order *list.List // of *producer, least recently heard of first
	bytes int        // of the producers in a head's record

	// forgottenUntil is the latest birth of a forgotten ULID; forgotten counts
	// the producers that were forgotten.
	forgottenUntil stream.Millis
	forgotten      uint64
}

type producer struct {
	id      string
	born    stream.Millis // of a ULID; notBorn for other ids
	epoch   uint64
	heard   stream.Millis
	batches []Batch // oldest first, at most MaxBatches, consecutive in Seq
	bytes   int     // of batches in a head's record
}

// notBorn is the birth of ids that carry none: no time reaches it.
const notBorn = stream.Millis(1<<63 - 1)

// Check says what to do with a batch that arrives now, and for Duplicate which
// one it repeats. expected is the epoch that fenced it, or the batch_seq that is
// due. It changes nothing.
func (p *Producers) Check(b stream.Producer, now stream.Millis) (v Verdict, dup Batch, expected uint64) {
	el, known := p.byID[b.ID]
	if !known {
		return p.checkUnknown(b, now), Batch{}, 0
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
	return Lost, Batch{}, last + 1
}

func (p *Producers) checkUnknown(b stream.Producer, now stream.Millis) Verdict {
	born := birth(b.ID)
	switch {
	case p.forgotten > 0 && (b.Batch != 0 || born <= p.forgottenUntil):
		return Lost
	case b.Batch != 0:
		return Gap
	case born < now-horizon:
		return Old
	case len(p.byID) >= MaxProducers && p.victim(p.at(now)) == nil:
		return Full
	}
	return Accept
}

// Record notes a stored batch that was numbered at a time. The caller has
// checked it, or reads it from the log, which holds only checked ones.
func (p *Producers) Record(b stream.Producer, batch Batch, at stream.Millis) {
	at = p.at(at)
	el, known := p.byID[b.ID]
	if !known {
		if len(p.byID) >= MaxProducers {
			p.forget(at)
		}
		el = p.insert(&producer{id: b.ID, born: birth(b.ID)})
	}
	p.order.MoveToBack(el)
	pr := el.Value.(*producer)
	p.bytes -= pr.size()
	pr.heard = at
	if b.Epoch != pr.epoch {
		pr.epoch, pr.batches, pr.bytes = b.Epoch, pr.batches[:0], 0
	}
	if len(pr.batches) == MaxBatches {
		pr.dropOldest()
	}
	pr.batches = append(pr.batches, batch)
	pr.bytes += batch.size()
	p.bytes += pr.size()
	p.shed()
}

func (p *Producers) insert(pr *producer) *list.Element {
	if p.byID == nil {
		p.byID, p.order = map[string]*list.Element{}, list.New()
	}
	el := p.order.PushBack(pr)
	p.byID[pr.id] = el
	p.bytes += pr.size()
	return el
}

// Knows reports whether a producer is remembered.
func (p *Producers) Knows(id string) bool { return p.byID[id] != nil }

// Len returns the number of remembered producers.
func (p *Producers) Len() int { return len(p.byID) }

// at is a time that does not go back: the clock of a new leader may.
func (p *Producers) at(t stream.Millis) stream.Millis {
	if len(p.byID) == 0 {
		return t
	}
	return max(t, p.order.Back().Value.(*producer).heard)
}

// victim returns the producer to forget for another: the one silent for longest
// of those that may be forgotten; nil: none.
func (p *Producers) victim(at stream.Millis) *list.Element {
	for el := p.order.Front(); el != nil; el = el.Next() {
		if pr := el.Value.(*producer); pr.born <= at || at-pr.heard > horizon {
			return el
		}
	}
	return nil
}

func (p *Producers) forget(at stream.Millis) {
	el := p.victim(at)
	if el == nil {
		// No leader stores a batch that needs this; the bound holds even so (I8).
		el = p.order.Front()
	}
	pr := el.Value.(*producer)
	p.order.Remove(el)
	delete(p.byID, pr.id)
	p.bytes -= pr.size()
	p.forgotten++
	if pr.born <= at {
		p.forgottenUntil = max(p.forgottenUntil, pr.born)
	}
}

// shed has those that were silent for longest keep fewer batches.
func (p *Producers) shed() {
	for el := p.order.Front(); el != nil && p.bytes > MaxTableBytes; el = el.Next() {
		pr := el.Value.(*producer)
		p.bytes -= pr.size()
		for len(pr.batches) > 1 && p.bytes+pr.size() > MaxTableBytes {
			pr.dropOldest()
		}
		p.bytes += pr.size()
	}
}

func (pr *producer) dropOldest() {
	pr.bytes -= pr.batches[0].size()
	n := copy(pr.batches, pr.batches[1:])
	pr.batches = pr.batches[:n]
}

// birth returns the creation time in a ULID, or notBorn.
func birth(id string) stream.Millis {
	u, err := ulid.ParseStrict(id)
	if err != nil {
		return notBorn
	}
	return stream.Millis(u.Time())
}
