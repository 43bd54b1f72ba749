package failover

import (
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/nova-stream/nova/libs/reason"
)

// A script makes a history by hand. Operations follow each other unless they
// are said to overlap.
type script struct {
	ops []*op
	now int64
}

func (s *script) add(o *op) *op {
	s.now += 10
	o.call, o.ret = s.now, s.now+5
	if o.outcome == "" {
		o.outcome = done
	}
	if o.outcome == unknown {
		o.ret = never
	}
	s.ops = append(s.ops, o)
	return o
}

// during makes o last from the call of first to the end of last.
func (o *op) during(first, last *op) *op {
	o.call, o.ret = first.call-1, last.ret+1
	return o
}

func bodies(text string) []digest {
	var out []digest
	for _, c := range text {
		out = append(out, digest(c))
	}
	return out
}

// stored is an acknowledged append of one-letter records.
func (s *script) stored(first uint64, text string) *op {
	n := first + uint64(len(text))
	return s.add(&op{kind: appendOp, bodies: bodies(text), first: first, next: n, ackTail: n, firstStamp: int64(first), lastStamp: int64(n - 1), hashAfter: n})
}

func (s *script) lost(text string) *op {
	return s.add(&op{kind: appendOp, bodies: bodies(text), outcome: unknown})
}

func (s *script) read(text string) *op { return s.readFrom(0, text) }

func (s *script) readFrom(first uint64, text string) *op {
	n := first + uint64(len(text))
	o := &op{kind: readOp, first: first, next: n, tail: n, trim: first, records: bodies(text), hashBefore: first, hashAfter: n}
	for i := range text {
		o.stamps = append(o.stamps, int64(first)+int64(i))
	}
	return s.add(o)
}

func (s *script) tail(n uint64) *op {
	return s.add(&op{kind: tailOp, tail: n, hashAfter: n, lastStamp: max(0, int64(n)-1)})
}

func (s *script) trim(seq, tail uint64) *op {
	return s.add(&op{kind: trimOp, seq: seq, trim: seq, tail: tail})
}

func (s *script) token(token string, tail uint64) *op {
	return s.add(&op{kind: tokenOp, set: token, tail: tail})
}

func (s *script) sealStream(tail uint64) *op { return s.add(&op{kind: sealOp, tail: tail}) }

func (s *script) refused(r reason.Reason, claim uint64, text string) *op {
	o := &op{kind: appendOp, bodies: bodies(text), outcome: refused, reason: r}
	if r != reason.Fenced {
		o.claim = &claim
	}
	return s.add(o)
}

func (o *op) by(producer string, epoch, batch uint64) *op {
	o.producer = &batchID{producer, epoch, batch}
	return o
}

func (o *op) again() *op { o.duplicate = true; return o }

func (o *op) matching(n uint64) *op { o.match = &n; return o }

func (o *op) with(token string) *op { o.token = &token; return o }

func (o *op) sealing() *op { o.seal = true; return o }

func (o *op) closed() *op { o.sealed = true; return o }

func (o *op) ackTailed(n uint64) *op { o.ackTail = n; return o }

func (o *op) stamped(at int64) *op { o.firstStamp, o.lastStamp = at, at; return o }

func (o *op) hashed(h uint64) *op { o.hashAfter = h; return o }

// What no correct stream can have told its clients.
func TestBadHistoriesAreRejected(t *testing.T) {
	for name, write := range map[string]func(s *script){
		"an acknowledged record is lost":            func(s *script) { s.stored(0, "a"); s.read("") },
		"an acknowledged record is lost at the end": func(s *script) { s.stored(0, "a"); s.stored(1, "b"); s.read("a") },
		"an acknowledged record is not yet there":   func(s *script) { s.stored(0, "a"); s.tail(0); s.read("a") },
		"a record is stored twice":                  func(s *script) { s.stored(0, "a"); s.read("aa") },
		"a resend is stored twice":                  func(s *script) { s.stored(0, "a").by("p", 1, 0); s.stored(1, "a").by("p", 1, 0) },
		"a resend is stored twice, both unknown":    func(s *script) { s.lost("a").by("p", 1, 0); s.lost("a").by("p", 1, 0); s.tail(2) },
		"a resend is acknowledged elsewhere": func(s *script) {
			s.stored(0, "a").by("p", 1, 0)
			s.stored(1, "b")
			s.stored(1, "a").by("p", 1, 0).again()
		},
		"a first send is said to be a duplicate":  func(s *script) { s.stored(0, "a").by("p", 1, 0).again(); s.read("a") },
		"records are reordered":                   func(s *script) { s.stored(0, "ab"); s.read("ba") },
		"appends are reordered":                   func(s *script) { s.stored(1, "b"); s.stored(0, "a"); s.read("ab") },
		"a record is altered":                     func(s *script) { s.stored(0, "ab"); s.read("ax") },
		"a record nobody sent":                    func(s *script) { s.stored(0, "a"); s.read("ax") },
		"two records under one number":            func(s *script) { s.stored(0, "a"); s.stored(0, "b") },
		"a batch in two pieces":                   func(s *script) { s.lost("ab"); s.stored(1, "c"); s.read("acb") },
		"half a batch":                            func(s *script) { s.lost("ab"); s.read("a") },
		"an unknown append comes twice":           func(s *script) { s.lost("a"); s.read("a"); s.tail(2) },
		"a number is left out":                    func(s *script) { s.stored(0, "a"); s.stored(2, "b"); s.read("a") },
		"a number is given again after a trim":    func(s *script) { s.stored(0, "ab"); s.trim(2, 2); s.stored(1, "c") },
		"SEQ_MISMATCH although it matches":        func(s *script) { s.stored(0, "a"); s.refused(reason.SeqMismatch, 1, "b").matching(1); s.read("a") },
		"SEQ_MISMATCH with a tail that never was": func(s *script) { s.stored(0, "a"); s.refused(reason.SeqMismatch, 3, "b").matching(0); s.read("a") },
		"SEQ_MISMATCH with a tail that is lost":   func(s *script) { s.lost("x"); s.refused(reason.SeqMismatch, 1, "b").matching(0); s.read("") },
		"match_seq did not match":                 func(s *script) { s.stored(0, "a"); s.stored(1, "b").matching(0); s.read("ab") },
		"FENCED by the right token":               func(s *script) { s.token("t", 0); s.refused(reason.Fenced, 0, "a").with("t"); s.read("") },
		"FENCED by a token that is not yet set":   func(s *script) { s.refused(reason.Fenced, 0, "a").with(""); s.token("t", 0); s.read("") },
		"the wrong token passes":                  func(s *script) { s.token("t", 0); s.stored(0, "a").with("u"); s.read("a") },
		"a token is forgotten": func(s *script) {
			s.token("t", 0)
			s.stored(0, "a").with("t")
			s.refused(reason.Fenced, 0, "b").with("t")
			s.read("a")
		},
		"sealed, and it is not": func(s *script) {
			s.stored(0, "a")
			s.refused(reason.StreamSealed, 1, "b")
			s.stored(1, "c")
			s.read("ac")
		},
		"an ack after the seal": func(s *script) { s.sealStream(0); s.stored(0, "a"); s.read("a").closed() },
		"an ack after a refusal by the seal": func(s *script) {
			s.lost("a").sealing()
			s.refused(reason.StreamSealed, 1, "b")
			s.stored(1, "c")
			s.read("ac")
		},
		"an ack after the append that sealed": func(s *script) { s.stored(0, "a").sealing(); s.stored(1, "b"); s.read("ab").closed() },
		"a seal is forgotten":                 func(s *script) { s.stored(0, "a").sealing(); s.tail(1) },
		"PRODUCER_GAP although it is the next": func(s *script) {
			s.stored(0, "a").by("p", 1, 0)
			s.refused(reason.ProducerGap, 1, "b").by("p", 1, 1)
			s.read("a")
		},
		"PRODUCER_GAP expects what is stored": func(s *script) {
			s.stored(0, "a").by("p", 1, 0)
			s.refused(reason.ProducerGap, 0, "c").by("p", 1, 2)
			s.read("a")
		},
		"a gap is stored": func(s *script) { s.stored(0, "a").by("p", 1, 0); s.stored(1, "c").by("p", 1, 2); s.read("ac") },
		"PRODUCER_FENCED by a lower epoch": func(s *script) {
			s.stored(0, "a").by("p", 1, 0)
			s.refused(reason.ProducerFenced, 1, "b").by("p", 2, 0)
			s.read("a")
		},
		"a fenced producer is stored": func(s *script) { s.stored(0, "a").by("p", 2, 0); s.stored(1, "b").by("p", 1, 0); s.read("ab") },
		"a refusal of a duplicate": func(s *script) {
			s.stored(0, "a").by("p", 1, 0)
			s.refused(reason.SeqMismatch, 1, "a").by("p", 1, 0).matching(0)
			s.read("a")
		},
		"a trimmed record is shown": func(s *script) { s.stored(0, "ab"); s.trim(1, 2); s.read("ab") },
		"a trim is forgotten":       func(s *script) { s.stored(0, "ab"); s.trim(1, 2); s.tail(2); s.read("ab") },
		"TRIMMED although it is not": func(s *script) {
			s.stored(0, "a")
			o := s.refused(reason.Trimmed, 1, "")
			o.kind, o.start = readOp, fromSeq
		},
		"BEYOND_TAIL although it is not": func(s *script) {
			s.stored(0, "a")
			o := s.refused(reason.BeyondTail, 0, "")
			o.kind, o.start, o.seq = readOp, fromSeq, 1
		},
		"the tail goes backwards": func(s *script) { s.lost("a"); s.tail(1); s.tail(0); s.read("a") },
		"what was seen is lost":   func(s *script) { s.lost("a"); s.read("a"); s.read("") },
		"the tail in an ack is behind": func(s *script) {
			s.stored(0, "a").by("p", 1, 0)
			s.stored(1, "b")
			s.stored(0, "a").again().ackTailed(1).by("p", 1, 0)
		},
		"the tail in an ack is ahead":                func(s *script) { s.stored(0, "a").ackTailed(2); s.stored(1, "b") },
		"timestamps decrease":                        func(s *script) { s.stored(0, "a").stamped(7); s.stored(1, "b").stamped(6) },
		"a timestamp changes":                        func(s *script) { s.stored(0, "a").stamped(7); s.read("a") },
		"a content hash changes":                     func(s *script) { s.stored(0, "a").hashed(8); s.read("a") },
		"NOT_COMMITTED of what is stored":            func(s *script) { s.lost("a").outcome = void; s.read("a") },
		"an answer that contradicts itself":          func(s *script) { s.stored(0, "a").broken = "it does" },
		"a later append is seen before it was asked": func(s *script) { s.read("a"); s.lost("a") },
	} {
		t.Run(name, func(t *testing.T) {
			s := &script{}
			write(s)
			if j := judge(s.ops, time.Minute); j.good() {
				t.Errorf("judged %s:\n%s", j.result, listing(s.ops))
			}
		})
	}
}

// What may happen to clients of a correct stream.
func TestGoodHistoriesAreAccepted(t *testing.T) {
	for name, write := range map[string]func(s *script){
		"one after another":               func(s *script) { s.stored(0, "ab"); s.tail(2); s.stored(2, "c"); s.read("abc") },
		"an unknown append never comes":   func(s *script) { s.lost("x"); s.stored(0, "a"); s.read("a") },
		"an unknown append comes at once": func(s *script) { s.lost("x"); s.stored(1, "a"); s.read("xa") },
		"an unknown append comes late": func(s *script) {
			s.lost("xy")
			s.stored(0, "a")
			s.read("a")
			s.tail(3)
			s.stored(3, "b")
			s.read("axyb")
		},
		"unknown appends in another order": func(s *script) { s.lost("x"); s.lost("y"); s.lost("z"); s.read("zx") },
		"an unknown append seals": func(s *script) {
			s.lost("x").sealing()
			s.stored(0, "a")
			s.refused(reason.StreamSealed, 2, "b")
			s.read("ax").closed()
		},
		"an unknown append behind a seal":   func(s *script) { s.lost("x"); s.sealStream(0); s.read("").closed() },
		"an unknown append is trimmed away": func(s *script) { s.lost("x"); s.stored(1, "a"); s.trim(1, 2); s.readFrom(1, "a") },
		"an unknown seal comes late": func(s *script) {
			s.add(&op{kind: sealOp, outcome: unknown})
			s.stored(0, "a")
			s.refused(reason.StreamSealed, 1, "b")
			s.read("a").closed()
		},
		"an unknown token comes late": func(s *script) {
			s.add(&op{kind: tokenOp, set: "t", outcome: unknown})
			s.stored(0, "a").with("")
			s.refused(reason.Fenced, 0, "b").with("")
			s.stored(1, "c").with("t")
			s.read("ac")
		},
		"an unknown trim comes late": func(s *script) {
			s.stored(0, "ab")
			s.add(&op{kind: trimOp, seq: 1, outcome: unknown})
			s.read("ab")
			o := s.readFrom(1, "b")
			o.tail, o.trim = 2, 1
		},
		"a resend finds the first": func(s *script) {
			s.lost("a").by("p", 1, 0)
			s.lost("a").by("p", 1, 0)
			s.stored(0, "a").by("p", 1, 0).again()
			s.stored(1, "b").by("p", 1, 1)
			s.read("ab")
		},
		"a resend after NOT_COMMITTED": func(s *script) {
			s.lost("a").by("p", 1, 0).outcome = void
			s.stored(0, "a").by("p", 1, 0)
			s.read("a")
		},
		"a resend is the first": func(s *script) { s.lost("a").by("p", 1, 0); s.stored(0, "a").by("p", 1, 0); s.read("a") },
		"a resend behind the seal": func(s *script) {
			s.stored(0, "a").by("p", 1, 0).sealing()
			s.stored(0, "a").by("p", 1, 0).again()
			s.read("a").closed()
		},
		"true refusals": func(s *script) {
			s.token("t", 0)
			s.refused(reason.Fenced, 0, "a").with("u")
			s.stored(0, "a").with("t").by("p", 3, 0)
			s.refused(reason.SeqMismatch, 1, "b").matching(0)
			s.refused(reason.ProducerGap, 1, "b").by("p", 3, 2)
			s.refused(reason.ProducerGap, 0, "b").by("q", 0, 1)
			s.refused(reason.ProducerFenced, 3, "b").by("p", 2, 7)
			s.sealStream(1)
			s.refused(reason.StreamSealed, 1, "b")
			s.read("a").closed()
		},
		"a refusal that was true in between": func(s *script) {
			first, last := s.stored(0, "a"), s.stored(1, "b")
			s.refused(reason.SeqMismatch, 1, "c").matching(2).during(first, last)
			s.read("ab")
		},
		"an ack names a later tail": func(s *script) {
			a, b := s.stored(0, "a").ackTailed(2), s.stored(1, "b")
			a.during(a, b)
			s.read("ab")
		},
		"overlapping appends": func(s *script) {
			a, b := s.stored(1, "b"), s.stored(0, "a")
			a.during(a, b)
			s.read("ab")
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := &script{}
			write(s)
			if j := judge(s.ops, time.Minute); !j.good() || j.result != porcupine.Ok {
				t.Errorf("judged %s %q\n%s\n%s", j.result, j.wrong, j.why, listing(s.ops))
			}
		})
	}
}
