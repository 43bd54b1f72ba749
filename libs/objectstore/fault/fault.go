// Package fault wraps an object store and does, on demand, what real ones do:
// lose replies, refuse, stall, tear, corrupt, and die with the process.
//
//	f := fault.New(inner)
//	f.Script(fault.Rule{Op: fault.Put, Prefix: "chains/", Nth: 3, Do: fault.LoseReply})
//
// The first rule that matches a call acts on it; rules that match count the call
// whether they act or not. Without rules every call passes.
package fault

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nova-stream/nova/libs/objectstore"
)

// Op selects operations.
type Op int

// The operations. Any matches all, Put and Read several.
const (
	Any Op = iota
	Put    // PutIfAbsent and PutIfMatch
	PutIfAbsent
	PutIfMatch
	Read // Get and GetRange
	Get
	GetRange
	Delete
	List
)

var opNames = [...]string{"Any", "Put", "PutIfAbsent", "PutIfMatch", "Read", "Get", "GetRange", "Delete", "List"}

func (o Op) String() string { return opNames[o] }

func (o Op) covers(call Op) bool {
	switch o {
	case Any:
		return true
	case Put:
		return call == PutIfAbsent || call == PutIfMatch
	case Read:
		return call == Get || call == GetRange
	}
	return o == call
}

// Action is what happens to a call.
type Action int

// The actions. Those without "after" happen before the inner store is asked,
// which it then is not, except for Pass, Delay, Truncate, Corrupt and Half.
const (
	// Pass: nothing; the rule only counts, or calls its Hook.
	Pass Action = iota
	// FailBefore: ErrUnavailable, nothing landed.
	FailBefore
	// LoseReply: the call takes effect, the caller gets ErrUnavailable. A repeated
	// PutIfAbsent then meets its own object: the 412 that is none.
	LoseReply
	// Delay: the call is passed on after Rule.Delay.
	Delay
	// Hang: no answer until the context ends; nothing landed.
	Hang
	// HangAfter: the call takes effect, then no answer until the context ends.
	HangAfter
	// LandLate: ErrUnavailable now; the put or delete takes effect when the test
	// calls Store.Land, however much later.
	LandLate
	// Conflict: 409 ConditionalRequestConflict, ErrUnavailable, nothing landed.
	Conflict
	// Throttle: 503 SlowDown, ErrThrottled, nothing landed.
	Throttle
	// Permanent: ErrPermanent, nothing landed.
	Permanent
	// Cut: the connection breaks within the body of the answer: ErrUnavailable,
	// as no implementation may return a short body as a success.
	Cut
	// Truncate: a read finds the second half of the object gone at rest.
	Truncate
	// Corrupt: a read returns one flipped bit, in the middle of its body.
	Corrupt
	// Half: a delete removes the first half of its keys, then ErrUnavailable. Any
	// other call passes.
	Half
)

// Rule says which calls something happens to, and what.
type Rule struct {
	Op     Op
	Prefix string // of the key; Delete matches if any of its keys does
	Nth    int    // the first call acted on, counting those that match from 1; 0 means 1
	Times  int    // how many calls from there are acted on; 0: one if Nth is set, else all
	Do     Action
	Delay  time.Duration // for Delay

	// Hook, if set, runs before Do, without locks; it may block. An error it
	// returns is the call's answer and nothing lands.
	Hook func(ctx context.Context, op Op, key string) error
}

// ErrKilled is the answer to every call after the kill of KillAt. Nothing
// reaches the store any more; what the killed call did is unknown to its caller,
// so it wraps ErrUnavailable.
var ErrKilled = fmt.Errorf("%w: the process was killed", objectstore.ErrUnavailable)

// Count is what one operation did.
type Count struct {
	Calls   int   // also those that failed
	Errors  int   // calls that returned an error
	Written int64 // bytes of bodies passed in, failed calls included
	Read    int64 // bytes of bodies returned
	Keys    int   // keys passed to Delete, objects returned by List, else Calls
}

// Store is the decorator; make one with New. Safe for concurrent use.
type Store struct {
	inner objectstore.Store

	mu     sync.Mutex
	rules  []*Scripted
	counts map[Op]Count
	late   []func(context.Context) error
	killIn int // calls until the kill; 0: none is planned
	after  bool
	killed chan struct{} // closed by the kill
}

var _ objectstore.Store = (*Store)(nil)

// New returns a decorator of inner without rules.
func New(inner objectstore.Store) *Store {
	return &Store{inner: inner, counts: map[Op]Count{}, killed: make(chan struct{})}
}

// Scripted is a rule at work.
type Scripted struct {
	store   *Store
	rule    Rule
	matched int
	acted   int
}

// Matched returns how many calls matched the rule so far, acted on or not.
func (r *Scripted) Matched() int {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	return r.matched
}

// Acted returns how many calls the rule has acted on.
func (r *Scripted) Acted() int {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	return r.acted
}

// Script adds a rule behind those there are.
func (s *Store) Script(rule Rule) *Scripted {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &Scripted{store: s, rule: rule}
	s.rules = append(s.rules, r)
	return r
}

// Clear removes all rules. Calls that hang go on hanging.
func (s *Store) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules = nil
}

// Counts returns what each operation did, by its single Op (not Any, Put, Read).
func (s *Store) Counts() map[Op]Count {
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := make(map[Op]Count, len(s.counts))
	for op, c := range s.counts {
		counts[op] = c
	}
	return counts
}

// When says on which side of its effect a call is killed.
type When int

// Before: the n-th call does not land. After: it does, its reply is lost.
const (
	Before When = iota
	After
)

// KillAt kills the process, as far as the store sees, at the n-th call from now,
// counting all operations from 1: that call, those under way and all later ones
// return ErrKilled. A new process is a new decorator of the same inner store.
func (s *Store) KillAt(n int, when When) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.killIn, s.after = n, when == After
}

// Killed is closed by the kill.
func (s *Store) Killed() <-chan struct{} { return s.killed }

// Land lets the calls that LandLate held back take effect, oldest first, and
// returns their answers, which nobody waits for. Also after a kill: what was on
// the wire arrives.
func (s *Store) Land(ctx context.Context) []error {
	s.mu.Lock()
	late := s.late
	s.late = nil
	s.mu.Unlock()
	errs := make([]error, len(late))
	for i, land := range late {
		errs[i] = land(ctx)
	}
	return errs
}

// Close implements objectstore.Store and closes the inner store.
func (s *Store) Close() error { return s.inner.Close() }

// plan is what is to happen to one call.
type plan struct {
	rule Rule
	kill bool // when it has landed
}

// arrive counts a call and decides about it.
func (s *Store) arrive(op Op, keys []string) (plan, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isKilled() {
		return plan{}, s.dead(op, keys)
	}
	var p plan
	if s.killIn > 0 {
		s.killIn--
		if p.kill = s.killIn == 0; p.kill && !s.after {
			close(s.killed)
			return plan{}, s.dead(op, keys)
		}
	}
	found := false
	for _, r := range s.rules {
		if !r.rule.Op.covers(op) || !matches(r.rule.Prefix, keys) {
			continue
		}
		r.matched++
		first, times := max(r.rule.Nth, 1), r.rule.Times
		if times == 0 && r.rule.Nth > 0 {
			times = 1
		}
		if found || r.matched < first || times > 0 && r.matched >= first+times {
			continue
		}
		r.acted++
		p.rule, found = r.rule, true
	}
	return p, nil
}

// depart ends a call: the process may have died meanwhile, or dies now.
func (s *Store) depart(op Op, keys []string, p plan, c Count, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.kill && !s.isKilled() {
		close(s.killed)
	}
	if s.isKilled() {
		err = s.dead(op, keys)
	}
	sum := s.counts[op]
	sum.Calls++
	sum.Written += c.Written
	sum.Read += c.Read
	sum.Keys += c.Keys
	if err != nil {
		sum.Errors++
	}
	s.counts[op] = sum
	return err
}

func (s *Store) isKilled() bool {
	select {
	case <-s.killed:
		return true
	default:
		return false
	}
}

func (s *Store) dead(op Op, keys []string) error {
	return objectstore.Fail(op.String(), first(keys), ErrKilled, "")
}

func matches(prefix string, keys []string) bool {
	if prefix == "" {
		return true
	}
	for _, key := range keys {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return false
}

func fail(op Op, keys []string, kind error, detail string) error {
	return objectstore.Fail(op.String(), first(keys), kind, "injected: %s", detail)
}

func first(keys []string) string {
	if len(keys) == 0 {
		return ""
	}
	return keys[0]
}
