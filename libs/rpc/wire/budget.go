package wire

import (
	"container/list"
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/reason"
)

// BudgetConfig holds a budget's settings. Zero values take the defaults.
type BudgetConfig struct {
	// Bytes is the limit, default 256 MiB.
	Bytes int64
	// Stall is for how long a peer may take nothing of what was sent to it, and a
	// fetch may take, while others want room, default 5 s.
	Stall time.Duration
	// Patience is how long room is waited for, default 10 s.
	Patience time.Duration
	// Name is the budget's name in errors, default "delivery".
	Name string
	// Stalled is told of each call and connection that was ended, nil: nobody is.
	Stalled func(Victim)
}

// Victim says what a budget ended.
type Victim int

// The victims.
const (
	// VictimCall is a call under way: its handler ends it with [ErrStalled].
	VictimCall Victim = iota
	// VictimConnection is a connection with what a call left in it that is over.
	VictimConnection
)

// Budget limits the bytes of messages that a process holds for peers: from before
// a message is fetched until the transport has written it. Whoever wants to fetch
// one takes room first. While room is short, peers that take nothing are ended,
// the longest stalled first; and who asks gets less room than it wants, so that
// those who take what they get never wait for those who do not.
//
// The limit is kept at every moment, whatever peers do.
type Budget struct {
	cfg BudgetConfig

	mu      sync.Mutex // guards what follows, and every Call and Room
	used    int64
	floors  int64         // of open calls
	freed   chan struct{} // closed when used falls, and then another one
	waiting int           // who wait for room
	sent    list.List     // *Room of messages that are fetched, or with the transport, the oldest first
	ending  int           // what was ended and has not given back its room
	ended   time.Time     // when the last one was
}

// NewBudget returns a budget of which nothing is used.
func NewBudget(cfg BudgetConfig) *Budget {
	if cfg.Bytes == 0 {
		cfg.Bytes = 256 << 20
	}
	if cfg.Stall == 0 {
		cfg.Stall = 5 * time.Second
	}
	if cfg.Patience == 0 {
		cfg.Patience = 10 * time.Second
	}
	if cfg.Name == "" {
		cfg.Name = "delivery"
	}
	return &Budget{cfg: cfg, freed: make(chan struct{})}
}

// Used returns the bytes that are taken.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// ErrStalled is RESOURCE_EXHAUSTED of a subscription that was ended because its
// peer took nothing for too long. It says where to go on: behind the last message.
func (b *Budget) ErrStalled(next uint64, id string) error {
	how := "subscribe again"
	meta := []string{reason.KeyBudget, b.cfg.Name}
	if id != "" {
		how = fmt.Sprintf("resume at seq %d with stream_id %s", next, id)
		meta = append(meta, reason.KeyNextSeq, reason.Text(next))
	}
	return reason.New(codes.ResourceExhausted, reason.OverBudget,
		fmt.Sprintf("nothing was taken for %v while memory for messages is short; %s", b.cfg.Stall, how), meta...)
}

// ErrSlow is RESOURCE_EXHAUSTED of a read that was ended because it took too long.
func (b *Budget) ErrSlow() error {
	return reason.Over(b.cfg.Name, fmt.Sprintf("nothing came for %v while memory for messages is short", b.cfg.Stall), time.Second)
}

func (b *Budget) errShort() error {
	return reason.Over(b.cfg.Name, fmt.Sprintf("%d bytes of messages wait to be taken, the limit", b.cfg.Bytes), time.Second)
}

// shareOf is the part of what is free that one message may have: so much is left
// for others however many stall.
const shareOf = 8

// shortPoll is how often who waits for room looks for a peer to end, which
// becomes one by the passing of time.
const shortPoll = 50 * time.Millisecond

// Call is a call's part of a budget.
type Call struct {
	b     *Budget
	floor int64 // counted while it is open, used or not
	held  int64 // by rooms
	open  bool
	end   func() // called when the budget ends the call
	ended bool
	rooms map[*Room]struct{}
}

// Open counts a call whose rooms up to floor bytes together are granted whatever
// others do; all floors have half of the budget. It waits for so much, up to
// Patience. end is called when the budget ends the call, whose handler MUST then
// return soon; nil: it is never ended. Close MUST follow.
func (b *Budget) Open(ctx context.Context, floor int64, end func()) (*Call, error) {
	c := &Call{b: b, end: end, rooms: map[*Room]struct{}{}}
	b.mu.Lock()
	defer b.mu.Unlock()
	err := b.wait(ctx, func() bool {
		// The other half is for messages.
		if b.floors+floor > b.cfg.Bytes/2 || b.used+floor > b.cfg.Bytes {
			return false
		}
		c.floor, c.open = floor, true
		b.used += floor
		b.floors += floor
		return true
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Ended reports whether the budget has ended the call.
func (c *Call) Ended() bool {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	return c.ended
}

// Close gives back all that is not with the transport of a network.
func (c *Call) Close() {
	b := c.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if !c.open {
		return
	}
	for r := range c.rooms {
		if r.conn == nil {
			r.free()
		}
	}
	b.used -= max(c.floor, c.held) - c.held
	b.floors -= c.floor
	c.open = false
	if c.ended {
		b.ending--
	}
	b.wake()
}

// Room is what one message may hold.
type Room struct {
	call  *Call
	size  int64
	conn  *conn         // whose transport has the message; nil: none
	kill  func()        // ends what the message waits for
	taken chan struct{} // closed when it holds nothing any more
	over  bool
	since time.Time     // when its fetch began, or the transport got it
	sent  *list.Element // its place in Budget.sent
	dying bool          // kill was called
}

// Try returns room of at most want bytes without waiting: less if little is free,
// nil if it were less than least.
func (c *Call) Try(want, least int64) *Room {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	return c.grant(want, least, c.b.waiting > 0)
}

// Take returns room of at most want bytes, and at least least. It waits for that,
// up to Patience.
func (c *Call) Take(ctx context.Context, want, least int64) (*Room, error) {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	var r *Room
	err := c.b.wait(ctx, func() bool {
		r = c.grant(want, least, false)
		return r != nil
	})
	return r, err
}

// wait waits until done is, called with mu held.
func (b *Budget) wait(ctx context.Context, done func() bool) error {
	if done() {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return errEnded(err)
	}
	b.waiting++
	defer func() { b.waiting-- }()
	limit := time.NewTimer(b.cfg.Patience)
	defer limit.Stop()
	poll := time.NewTicker(min(shortPoll, b.cfg.Stall))
	defer poll.Stop()
	for {
		b.press()
		freed := b.freed
		b.mu.Unlock()
		var err error
		select {
		case <-freed:
		case <-poll.C:
		case <-limit.C:
			err = b.errShort()
		case <-ctx.Done():
			err = errEnded(ctx.Err())
		}
		b.mu.Lock()
		if done() {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func errEnded(err error) error {
	return reason.New(reason.Code(err), "", "wait for room: "+err.Error())
}

// grant is called with mu held. modest: only what the call's floor allows.
func (c *Call) grant(want, least int64, modest bool) *Room {
	b := c.b
	least = min(least, want)
	var spare int64
	if c.open {
		spare = max(0, c.floor-c.held)
	}
	free := max(0, b.cfg.Bytes-b.used)
	size := min(want, spare+free/shareOf)
	switch {
	case modest:
		size = min(want, spare)
	case size < least && spare+free >= least:
		size = least
	}
	if size < want && !modest {
		b.press()
	}
	if size <= 0 || size < least || !c.open {
		return nil
	}
	r := &Room{call: c, size: size, taken: make(chan struct{})}
	c.rooms[r] = struct{}{}
	c.hold(size)
	return r
}

// hold is called with mu held.
func (c *Call) hold(n int64) {
	floor := c.floor
	if !c.open {
		floor = 0
	}
	before := max(floor, c.held)
	c.held += n
	after := max(floor, c.held)
	c.b.used += after - before
	if after < before {
		c.b.wake()
	}
}

// wake is called with mu held.
func (b *Budget) wake() {
	if b.waiting > 0 {
		close(b.freed)
		b.freed = make(chan struct{})
	}
}

// press ends what is stalled the longest, if it is stalled for too long and
// nothing that was ended is still to give back its room. Called with mu held.
func (b *Budget) press() {
	now := time.Now()
	if b.ending > 0 && now.Sub(b.ended) < b.cfg.Stall {
		return
	}
	for e := b.sent.Front(); e != nil; e = e.Next() {
		r := e.Value.(*Room)
		if now.Sub(r.since) < b.cfg.Stall {
			return
		}
		switch c := r.call; {
		case c.open && !c.ended && c.end != nil:
			c.ended = true
			go c.end() // not with mu held; it ends at once
			// What the transport has stays until it is taken; that has its time anew.
			r.since = now
			b.sent.MoveToBack(e)
			b.victim(now, VictimCall)
			return
		case !c.open && r.kill != nil && !r.dying:
			r.dying = true
			go r.kill() // not with mu held; it ends at once
			b.victim(now, VictimConnection)
			return
		}
	}
}

// victim is called with mu held.
func (b *Budget) victim(now time.Time, v Victim) {
	b.ending++
	b.ended = now
	if b.cfg.Stalled != nil {
		b.cfg.Stalled(v)
	}
}

// Size returns the bytes that the message may hold.
func (r *Room) Size() int64 {
	r.call.b.mu.Lock()
	defer r.call.b.mu.Unlock()
	return r.size
}

// Shrink gives back what the message does not need. Room never grows.
func (r *Room) Shrink(size int64) {
	r.call.b.mu.Lock()
	defer r.call.b.mu.Unlock()
	if r.over || size >= r.size {
		return
	}
	r.call.hold(size - r.size)
	r.size = size
}

// Taken is closed when the transport has written the message, or will not.
func (r *Room) Taken() <-chan struct{} { return r.taken }

// Free gives it all back; a second time does nothing.
func (r *Room) Free() {
	if r == nil {
		return
	}
	b := r.call.b
	b.mu.Lock()
	defer b.mu.Unlock()
	r.free()
}

// free is called with mu held.
func (r *Room) free() {
	if r.over {
		return
	}
	r.over = true
	close(r.taken)
	b := r.call.b
	delete(r.call.rooms, r)
	if r.sent != nil {
		b.sent.Remove(r.sent)
		r.sent = nil
	}
	if r.dying {
		b.ending--
	}
	r.call.hold(-r.size)
}

// Fetching says that from now on something has to come for the room. What takes too
// long to come does not hold up what comes at once.
func (r *Room) Fetching() { r.Sending(nil) }

// Sending says that from now on the peer has to take the message. kill ends what
// the message is stuck in, if it stays there when its call is over.
func (r *Room) Sending(kill func()) {
	b := r.call.b
	b.mu.Lock()
	defer b.mu.Unlock()
	r.sending(kill)
}

// sending is called with mu held.
func (r *Room) sending(kill func()) {
	if r.over {
		return
	}
	if b := r.call.b; r.sent == nil {
		r.sent = b.sent.PushBack(r)
	} else {
		b.sent.MoveToBack(r.sent)
	}
	r.kill, r.since = kill, time.Now()
}

// detach makes the room outlive its call, which has no floor.
func (r *Room) detach() {
	b := r.call.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.over {
		return
	}
	size := r.size
	delete(r.call.rooms, r)
	r.call.hold(-size)
	r.call = &Call{b: b, rooms: map[*Room]struct{}{r: {}}}
	r.call.hold(size)
}
