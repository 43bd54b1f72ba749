package failover

import (
	"hash/maphash"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"

	"github.com/nova-stream/nova/libs/reason"
)

// remembered is how many batches of a producer may be sent again (docs/invariants.md).
const remembered = 16

// state is the model of one stream: what the contract says, and nothing about
// how it is done. It is immutable.
type state struct {
	tail, trim uint64
	hash       uint64  // running, over all bodies since 0
	last       *record // the newest
	token      string
	sealed     bool
	producers  []producerState // by id
}

// record is one of a stream, and all before it.
type record struct {
	body   digest
	before *record
}

type producerState struct {
	id      string
	epoch   uint64
	next    uint64        // batch_seq that is due
	batches []storedBatch // the last ones, oldest first
}

type storedBatch struct{ first, next uint64 }

type verdict int

const (
	accept verdict = iota
	duplicate
	fenced
	gap
)

// check says what becomes of a producer's batch; where, if it is a duplicate;
// and which epoch or batch was expected, if it is refused.
func (s *state) check(b *batchID) (v verdict, where storedBatch, expected uint64) {
	if b == nil {
		return accept, where, 0
	}
	i, known := s.producer(b.producer)
	if !known || b.epoch > s.producers[i].epoch {
		if b.batch != 0 {
			return gap, where, 0
		}
		return accept, where, 0
	}
	p := &s.producers[i]
	switch {
	case b.epoch < p.epoch:
		return fenced, where, p.epoch
	case b.batch == p.next:
		return accept, where, 0
	case b.batch > p.next || p.next-b.batch > uint64(len(p.batches)):
		return gap, where, p.next
	}
	return duplicate, p.batches[uint64(len(p.batches))-(p.next-b.batch)], 0
}

func (s *state) producer(id string) (int, bool) {
	return slices.BinarySearchFunc(s.producers, id, func(p producerState, id string) int { return strings.Compare(p.id, id) })
}

// stored returns the state after the append.
func (s *state) stored(o *op) *state {
	n := *s
	for _, d := range o.bodies {
		n.last = &record{d, n.last}
		n.hash = mix(n.hash, uint64(d))
		n.tail++
	}
	n.sealed = s.sealed || o.seal
	if b := o.producer; b != nil {
		i, known := s.producer(b.producer)
		n.producers = slices.Clone(s.producers)
		if !known {
			n.producers = slices.Insert(n.producers, i, producerState{id: b.producer})
		}
		p := &n.producers[i]
		var old []storedBatch
		if p.epoch == b.epoch {
			old = p.batches[max(0, len(p.batches)-remembered+1):]
		}
		p.epoch, p.next = b.epoch, b.batch+1
		p.batches = append(slices.Clone(old), storedBatch{s.tail, n.tail})
	}
	return &n
}

func mix(hash, v uint64) uint64 {
	hash = (hash ^ v) * 0x9e3779b97f4a7c15
	return hash ^ hash>>29
}

func (s *state) tokenFits(o *op) bool { return o.token == nil || *o.token == s.token }

func (s *state) matches(o *op) bool { return o.match == nil || *o.match == s.tail }

// step is the model: whether the operation can happen now, and what is then.
func (s *state) step(o *op) (bool, *state) {
	if o.outcome == refused {
		return s.refuses(o), s
	}
	switch o.kind {
	case appendOp:
		return s.append(o)
	case tailOp:
		return o.tail == s.tail && o.trim == s.trim && o.sealed == s.sealed, s
	case readOp:
		return s.read(o), s
	case trimOp:
		if !s.tokenFits(o) || o.seq > s.tail {
			return o.outcome == unknown, s
		}
		n := *s
		n.trim = max(s.trim, o.seq)
		return o.outcome == unknown || o.trim == n.trim && o.tail == n.tail, &n
	case sealOp:
		if !s.tokenFits(o) || !s.sealed && !s.matches(o) {
			return o.outcome == unknown, s
		}
		n := *s
		n.sealed = true
		return o.outcome == unknown || o.tail == n.tail, &n
	case tokenOp:
		if !s.tokenFits(o) {
			return o.outcome == unknown, s
		}
		n := *s
		n.token = o.set
		return o.outcome == unknown || o.tail == n.tail, &n
	}
	panic("no such operation: " + o.kind)
}

func (s *state) append(o *op) (bool, *state) {
	v, where, _ := s.check(o.producer)
	fits := v == accept && s.tokenFits(o) && s.matches(o) && !s.sealed
	switch {
	case o.outcome == unknown && !fits:
		return true, s // it came and did nothing
	case o.outcome == unknown:
		return o.at == nil || *o.at == s.tail, s.stored(o)
	case v == duplicate:
		return o.duplicate && o.first == where.first && o.next == where.next, s
	}
	return fits && !o.duplicate && o.first == s.tail && o.next == s.tail+uint64(len(o.bodies)), s.stored(o)
}

func (s *state) read(o *op) bool {
	start := s.trim
	switch o.start {
	case fromFirst:
	case fromSeq:
		start = o.seq
		if o.clamp {
			start = min(max(start, s.trim), s.tail)
		}
	case fromTail:
		start = max(s.trim, s.tail-min(o.seq, s.tail))
	}
	if o.tail != s.tail || o.trim != s.trim || o.first != start || start < s.trim || start > s.tail ||
		o.next != start+uint64(len(o.records)) || o.next > s.tail || o.sealed != (s.sealed && o.next == s.tail) {
		return false
	}
	if len(o.records) == 0 {
		return start == s.tail // nothing there but at the tail
	}
	at := s.last
	for n := s.tail; n > o.next; n-- {
		at = at.before
	}
	for i := len(o.records) - 1; i >= 0; i-- {
		if at.body != o.records[i] {
			return false
		}
		at = at.before
	}
	return true
}

// refuses says whether the refusal is true now.
func (s *state) refuses(o *op) bool {
	claims := func(want uint64) bool { return o.claim == nil || *o.claim == want }
	v, expected := accept, uint64(0)
	if o.kind == appendOp {
		v, _, expected = s.check(o.producer)
	}
	if v == duplicate {
		return false // it is acknowledged again, whatever is so now (I5)
	}
	switch o.reason {
	case reason.SeqMismatch:
		return o.match != nil && *o.match != s.tail && claims(s.tail)
	case reason.Fenced:
		return !s.tokenFits(o)
	case reason.StreamSealed:
		return o.kind == appendOp && s.sealed && claims(s.tail)
	case reason.ProducerGap:
		return v == gap && claims(expected)
	case reason.ProducerFenced:
		return v == fenced && claims(expected)
	case reason.Trimmed:
		return o.kind == readOp && o.start == fromSeq && !o.clamp && o.seq < s.trim && claims(s.trim)
	case reason.BeyondTail:
		return (o.kind == readOp && o.start == fromSeq && !o.clamp || o.kind == trimOp) && o.seq > s.tail && claims(s.tail)
	}
	return false
}

// equal says whether two states have the same future. The hash stands for the
// records.
func (s *state) equal(t *state) bool {
	return s == t || s.tail == t.tail && s.trim == t.trim && s.hash == t.hash && s.token == t.token && s.sealed == t.sealed &&
		slices.EqualFunc(s.producers, t.producers, func(a, b producerState) bool {
			return a.id == b.id && a.epoch == b.epoch && a.next == b.next && slices.Equal(a.batches, b.batches)
		})
}

var hashSeed = maphash.MakeSeed()

// key is equal for equal states.
func (s *state) key() uint64 {
	k := mix(mix(s.hash, s.tail), s.trim) ^ maphash.String(hashSeed, s.token)
	if s.sealed {
		k = mix(k, 1)
	}
	for i := range s.producers {
		k = mix(mix(k, s.producers[i].epoch), s.producers[i].next)
	}
	return k
}

// model is state as Porcupine wants it.
var model = porcupine.Model{
	Init:  func() any { return &state{} },
	Step:  func(s, in, _ any) (bool, any) { return s.(*state).step(in.(*op)) },
	Equal: func(a, b any) bool { return a.(*state).equal(b.(*state)) },
	Hash:  func(s any) uint64 { return s.(*state).key() },
}
