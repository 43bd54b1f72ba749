// Package fault wraps a metastore and does, on demand, what real ones do: read
// stale, lose replies, report an own landed CAS as a conflict, stall, refuse,
// and die with the process.
//
//	f := fault.New(inner)
//	f.Script(fault.Rule{Op: fault.Put, Prefix: "heads/", Nth: 3, Do: fault.LoseReply})
//
// The first rule that matches a call acts on it; rules that match count the call
// whether they act or not. Without rules every call passes. The shape is that of
// objectstore/fault.
//
// A stale read needs the past: the decorator remembers the rows written through
// it and its forks, up to MaxStates per row. It is made for tests.
package fault

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/nova-stream/nova/libs/metastore"
)

// Op selects operations.
type Op = metastore.Op

// The operations. Any matches all, Read and Write several.
const (
	Any          Op = ""
	Read         Op = "Read"  // Get, Floor and Range
	Write        Op = "Write" // Put, PutEphemeral and Delete
	Get             = metastore.OpGet
	Floor           = metastore.OpFloor
	Range           = metastore.OpRange
	Put             = metastore.OpPut
	PutEphemeral    = metastore.OpPutEphemeral
	Delete          = metastore.OpDelete
	Watch           = metastore.OpWatch
)

func covers(o, call Op) bool {
	switch o {
	case Any:
		return true
	case Read:
		return call == Get || call == Floor || call == Range
	case Write:
		return call.Writes()
	}
	return o == call
}

// Action is what happens to a call.
type Action int

// The actions.
const (
	// Pass: nothing; the rule only counts, or calls its Hook.
	Pass Action = iota
	// FailBefore: ErrUnavailable, nothing landed.
	FailBefore
	// LoseReply: the call takes effect, the caller gets ErrUnavailable.
	LoseReply
	// OwnConflict: the write takes effect, the caller gets ErrConflict, as from
	// a client library that repeats a write whose reply it lost. A read passes.
	OwnConflict
	// Delay: the call is passed on after Rule.Delay.
	Delay
	// Hang: no answer until the context ends; nothing landed.
	Hang
	// HangAfter: the call takes effect, then no answer until the context ends.
	HangAfter
	// LandLate: ErrUnavailable now; the write takes effect, if its version still
	// fits, when the test calls Store.Land, however much later.
	LandLate
	// Stale: a read answers as it would have Rule.Back versions of each row ago.
	// A write passes.
	Stale
)

// Rule says which calls something happens to, and what.
type Rule struct {
	Op     Op
	Prefix string // of the path; of from, for Range
	Nth    int    // the first call acted on, counting those that match from 1; 0 means 1
	Times  int    // how many calls from there are acted on; 0: one if Nth is set, else all
	Do     Action
	Delay  time.Duration // for Delay
	Back   int           // for Stale: versions back, 0 means 1; the oldest known if there are fewer

	// Hook, if set, runs before Do, without locks; it may block. An error it
	// returns is the call's answer and nothing lands.
	Hook func(ctx context.Context, op Op, path string) error
}

// ErrKilled is the answer to every call after the kill of KillAt. Nothing
// reaches the store any more; what the killed call did is unknown to its caller,
// so it wraps ErrUnavailable.
var ErrKilled = fmt.Errorf("%w: the process was killed", metastore.ErrUnavailable)

// Count is what one operation did.
type Count struct {
	Calls   int   // also those that failed
	Errors  int   // calls that returned an error
	Written int64 // bytes of values passed in, failed calls included
	Read    int64 // bytes of values returned
	Rows    int   // rows returned
}

// Store is the decorator; make one with New. Safe for concurrent use.
type Store struct {
	inner metastore.Store
	past  *history

	mu     sync.Mutex // guards what follows
	rules  []*Scripted
	counts map[Op]Count
	late   []func(context.Context) error
	outage bool
	killIn int // calls until the kill; 0: none is planned
	after  bool
	killed chan struct{} // closed by the kill
}

var _ metastore.Store = (*Store)(nil)

// New returns a decorator of inner without rules.
func New(inner metastore.Store) *Store { return newStore(inner, newHistory()) }

// Fork returns what another process sees: the same inner store and the same
// past, but rules, counts and a kill of its own. Closing either closes inner.
func (s *Store) Fork() *Store { return newStore(s.inner, s.past) }

// ForkOf is Fork over another session with the rows of inner, for stores that
// tell sessions apart by their ephemeral rows.
func (s *Store) ForkOf(inner metastore.Store) *Store { return newStore(inner, s.past) }

func newStore(inner metastore.Store, past *history) *Store {
	return &Store{inner: inner, past: past, counts: map[Op]Count{}, killed: make(chan struct{})}
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

// SetOutage turns an outage on or off. During one every call is answered
// ErrUnavailable and nothing lands; watches stay open but lose their events.
func (s *Store) SetOutage(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outage = on
}

// Counts returns what each operation did, by its single Op (not Any, Read, Write).
func (s *Store) Counts() map[Op]Count {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.counts)
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
// return ErrKilled. A new process is a Fork.
func (s *Store) KillAt(n int, when When) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.killIn, s.after = n, when == After
}

// Killed is closed by the kill.
func (s *Store) Killed() <-chan struct{} { return s.killed }

// Land lets the writes that LandLate held back take effect, oldest first, and
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

// Close implements metastore.Store and closes the inner store.
func (s *Store) Close() error { return s.inner.Close() }

// plan is what is to happen to one call.
type plan struct {
	rule Rule
	kill bool // after it landed
}

// arrive counts a call and decides about it.
func (s *Store) arrive(op Op, path string) (plan, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isKilled() {
		return plan{}, s.dead(op, path)
	}
	var p plan
	if s.killIn > 0 {
		s.killIn--
		if s.killIn == 0 && !s.after {
			close(s.killed)
			return plan{}, s.dead(op, path)
		}
		p.kill = s.killIn == 0
	}
	if s.outage {
		return p, metastore.Fail(op, path, metastore.ErrUnavailable, "injected: outage")
	}
	found := false
	for _, r := range s.rules {
		if !covers(r.rule.Op, op) || !strings.HasPrefix(path, r.rule.Prefix) {
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
func (s *Store) depart(op Op, path string, p plan, c Count, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.kill && !s.isKilled() {
		close(s.killed)
	}
	if s.isKilled() {
		err = s.dead(op, path)
	}
	sum := s.counts[op]
	sum.Calls++
	sum.Written += c.Written
	if err != nil {
		sum.Errors++
	} else {
		sum.Read += c.Read
		sum.Rows += c.Rows
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

func (s *Store) dead(op Op, path string) error { return metastore.Fail(op, path, ErrKilled, "") }

// act does to one call what its plan says. call asks the inner store; with
// LandLate it runs after act has returned, so it must own what it uses.
func (s *Store) act(ctx context.Context, op Op, path string, rule Rule, call func(context.Context) error) error {
	if rule.Hook != nil {
		if err := rule.Hook(ctx, op, path); err != nil {
			return err
		}
	}
	lost := func(detail string) error {
		return metastore.Fail(op, path, metastore.ErrUnavailable, "injected: "+detail)
	}
	switch rule.Do {
	case FailBefore:
		return lost("nothing landed")
	case LoseReply:
		// What the inner store would have said is lost with the reply.
		if err := call(ctx); err != nil && ctx.Err() != nil {
			return err
		}
		return lost("the reply was lost")
	case OwnConflict:
		if err := call(ctx); err != nil || !op.Writes() {
			return err
		}
		return metastore.Fail(op, path, metastore.ErrConflict, "injected: it was one's own")
	case HangAfter:
		err := call(ctx)
		if errors.Is(err, metastore.ErrInvalid) {
			return err
		}
		return s.wait(ctx, op, path, nil)
	case Hang:
		return s.wait(ctx, op, path, nil)
	case LandLate:
		s.mu.Lock()
		s.late = append(s.late, call)
		s.mu.Unlock()
		return lost("it lands later")
	case Delay:
		timer := time.NewTimer(rule.Delay)
		defer timer.Stop()
		if err := s.wait(ctx, op, path, timer.C); err != nil {
			return err
		}
	case Pass, Stale:
	}
	return call(ctx)
}

// wait waits for until, the kill or the end of ctx.
func (s *Store) wait(ctx context.Context, op Op, path string, until <-chan time.Time) error {
	select {
	case <-until:
		return nil
	case <-s.killed:
		return s.dead(op, path)
	case <-ctx.Done():
		return metastore.Ended(ctx, op, path)
	}
}
