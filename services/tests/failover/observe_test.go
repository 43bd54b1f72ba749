package failover

import (
	"fmt"
	"maps"
	"slices"
)

// observations are all that was said about the records of one stream, whoever
// said it and whenever.
type observations struct {
	body  map[uint64]digest // by number
	where map[digest]uint64 // the number, by body
	stamp map[uint64]int64  // by number
	hash  map[uint64]uint64 // content hash before this number
	seen  map[digest]int64  // when the first read that saw it had ended
	tail  uint64            // the highest number that was named as the next
	wrong []string
}

// observe gathers what the operations say, and finds what does not agree.
func observe(ops []*op) *observations {
	v := &observations{
		body: map[uint64]digest{}, where: map[digest]uint64{}, stamp: map[uint64]int64{},
		hash: map[uint64]uint64{0: 0}, seen: map[digest]int64{},
	}
	for _, o := range ops {
		if o.broken != "" {
			v.fault(o, "%s", o.broken)
		}
		if o.outcome != done {
			continue
		}
		v.tail = max(v.tail, o.tail, o.next)
		switch o.kind {
		case appendOp:
			v.ack(o)
		case readOp:
			v.read(o)
		case tailOp:
			v.hashAt(o, o.tail, o.hashAfter)
			if o.tail > 0 {
				v.stampAt(o, o.tail-1, o.lastStamp)
			}
		case trimOp, sealOp, tokenOp:
		}
	}
	v.order()
	v.ackTails(ops)
	v.denials(ops)
	return v
}

func (v *observations) fault(o *op, format string, args ...any) {
	v.wrong = append(v.wrong, fmt.Sprintf(format, args...)+": "+o.String())
}

func (v *observations) ack(o *op) {
	if n := uint64(len(o.bodies)); o.next != o.first+n {
		v.fault(o, "a batch of %d records is acknowledged as [%d,%d)", n, o.first, o.next)
		return
	}
	for i, d := range o.bodies {
		v.bodyAt(o, o.first+uint64(i), d)
	}
	v.stampAt(o, o.first, o.firstStamp)
	v.stampAt(o, o.next-1, o.lastStamp)
	v.hashAt(o, o.next, o.hashAfter)
}

func (v *observations) read(o *op) {
	for i, d := range o.records {
		v.bodyAt(o, o.first+uint64(i), d)
		v.stampAt(o, o.first+uint64(i), o.stamps[i])
		if at, ok := v.seen[d]; !ok || o.ret < at {
			v.seen[d] = o.ret
		}
	}
	if len(o.records) > 0 {
		v.hashAt(o, o.first, o.hashBefore)
		v.hashAt(o, o.next, o.hashAfter)
	}
}

// bodyAt: a number has one body (I2), a body one number (I5): all bodies are
// different.
func (v *observations) bodyAt(o *op, seq uint64, d digest) {
	if known, ok := v.body[seq]; ok && known != d {
		v.fault(o, "record %d is %x, elsewhere it is %x", seq, d, known)
		return
	}
	if at, ok := v.where[d]; ok && at != seq {
		v.fault(o, "record %x is at %d and at %d", d, at, seq)
		return
	}
	v.body[seq], v.where[d] = d, seq
}

func (v *observations) stampAt(o *op, seq uint64, stamp int64) {
	if known, ok := v.stamp[seq]; ok && known != stamp {
		v.fault(o, "record %d has timestamp %d, elsewhere %d", seq, stamp, known)
	}
	v.stamp[seq] = stamp
}

func (v *observations) hashAt(o *op, seq, hash uint64) {
	if known, ok := v.hash[seq]; ok && known != hash {
		v.fault(o, "the content hash before %d is %016x, elsewhere %016x", seq, hash, known)
	}
	v.hash[seq] = hash
}

// order: timestamps never decrease (I9).
func (v *observations) order() {
	var last int64
	for _, seq := range slices.Sorted(maps.Keys(v.stamp)) {
		if s := v.stamp[seq]; s < last {
			v.wrong = append(v.wrong, fmt.Sprintf("record %d has timestamp %d, one before it %d", seq, s, last))
		}
		last = v.stamp[seq]
	}
}

// ackTails: the tail in an ack may be of any moment after the batch was stored,
// so it is not part of the linearized operation. It must not be behind what was
// acknowledged before the request, nor ahead of what was asked for.
func (v *observations) ackTails(ops []*op) {
	for _, o := range ops {
		if o.kind != appendOp || o.outcome != done {
			continue
		}
		if o.ackTail < o.next {
			v.fault(o, "the tail of an ack is below the batch")
		}
		v.tail = max(v.tail, o.ackTail)
		for _, p := range ops {
			if p.kind != appendOp {
				continue
			}
			if p.outcome == done && p.first >= o.ackTail && p.ret < o.call {
				v.fault(o, "its tail is behind %d, which was acknowledged before", p.next)
			}
		}
		// Who may have stored the last record before the tail?
		d, known := v.body[o.ackTail-1]
		if known && !slices.ContainsFunc(ops, func(p *op) bool {
			return p.kind == appendOp && p.call < o.ret && slices.Contains(p.bodies, d)
		}) {
			v.fault(o, "its tail counts a record that nobody had asked for")
		}
	}
}

// denials: nobody was told NOT_COMMITTED of what is stored.
func (v *observations) denials(ops []*op) {
	for _, o := range ops {
		if o.kind != appendOp || o.outcome != void {
			continue
		}
		at, stored := v.where[o.bodies[0]]
		if stored && !slices.ContainsFunc(ops, func(p *op) bool {
			return p.kind == appendOp && (p.outcome == done || p.outcome == unknown) && p.bodies[0] == o.bodies[0]
		}) {
			v.fault(o, "it is stored, at %d", at)
		}
	}
}

// holes says whether the stream has records of which nobody saw the body.
func (v *observations) holes() bool {
	for seq := range v.tail {
		if _, ok := v.body[seq]; !ok {
			return true
		}
	}
	return false
}

// resolve returns the operations for Porcupine: where unknown appends are known
// to be is filled in, and those that are certainly not there are left out. To
// take effect after the last answer, or never, is the same.
func (v *observations) resolve(ops []*op) []*op {
	out := make([]*op, 0, len(ops))
	holes := v.holes()
	for _, o := range ops {
		if o.outcome == void {
			continue
		}
		if o.outcome == unknown && o.kind == appendOp {
			at, stored := v.where[o.bodies[0]]
			if !stored && !holes {
				continue
			}
			c := *o
			if stored {
				c.at = &at
			}
			// It had happened when the first read that saw it ended.
			if end, ok := v.seen[o.bodies[0]]; ok && end > o.call {
				c.ret = end
			}
			o = &c
		}
		out = append(out, o)
	}
	return out
}
