package routing

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
)

// grace is what a sequencer that was replaced has to answer what it was asked:
// one that hands its shard over does so before, one that hangs never does.
const grace = 300 * time.Millisecond

// attempt is a call to a sequencer. It is given up when another is known to lead
// at a higher epoch, also when its connection seems to be alive: a process that
// hangs keeps it open. What was sent may have been done: only the caller knows
// whether it may be sent again.
//
// It is the connection that the call is made on.
type attempt struct {
	router  *Router
	shard   stream.Shard
	address string
	epoch   uint64 // the highest known when it began
	known   bool   // the address was the leader's
	version uint64
	conn    grpc.ClientConnInterface

	mu      sync.Mutex // guards what follows; may be taken with Router.mu held
	cancel  context.CancelFunc
	sent    bool   // what it asked for may be done
	session bool   // a session that was opened: it lives on
	owed    int    // answers that the session waits for
	late    bool   // another leads
	rival   uint64 // its epoch
	timer   *time.Timer
	cut     bool
}

// Invoke makes the call.
func (a *attempt) Invoke(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a.bind(cancel, true)
	return a.conn.Invoke(ctx, method, req, reply, opts...)
}

// NewStream begins the call, which ends with ctx.
func (a *attempt) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	ctx, cancel := context.WithCancel(ctx)
	a.bind(cancel, false)
	s, err := a.conn.NewStream(ctx, desc, method, opts...)
	if err != nil {
		cancel()
	}
	return s, err
}

func (a *attempt) bind(cancel context.CancelFunc, sent bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cancel, a.sent = cancel, sent
	if a.cut {
		cancel()
	}
}

// leaderIs tells who leads; Router.mu is held.
func (a *attempt) leaderIs(epoch uint64, address string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	// Whoever was asked in turn, and was not yet given anything to do, is left for
	// anybody who is known to lead.
	if address == a.address || epoch <= a.epoch && (a.known || a.sent || a.session) {
		return
	}
	a.late, a.rival = true, epoch
	a.arm()
}

// arm starts the grace of an attempt that waits for answers in vain; mu is held.
func (a *attempt) arm() {
	if !a.late || a.timer != nil || a.session && a.owed == 0 {
		return
	}
	a.timer = time.AfterFunc(grace, a.giveUp)
}

func (a *attempt) disarm() {
	if a.timer != nil {
		a.timer.Stop()
		a.timer = nil
	}
}

func (a *attempt) giveUp() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.timer == nil || a.session && a.owed == 0 {
		return // it was answered meanwhile
	}
	a.cut = true
	if a.cancel != nil {
		a.cancel()
	}
}

func (a *attempt) wasCut() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.cut
}

// explain puts the true reason in place of a cancellation.
func (a *attempt) explain(err error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil || !a.cut {
		return err
	}
	out := reason.New(codes.Unavailable, reason.NoLeader, "the leader of shard "+reason.Text(a.shard)+" does not answer, and another has taken its place")
	if a.sent || a.session {
		return reason.WithOutcome(out, reason.Unknown)
	}
	return reason.WithOutcome(out, reason.NotCommitted)
}

// keep lets a session live on that the attempt opened, until end.
func (a *attempt) keep() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.session = true
	a.late = a.late && a.rival > a.epoch // else it was wrong that another leads
	a.disarm()
}

// owe notes that the session waits for so many more answers, or fewer.
func (a *attempt) owe(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.owed += n
	if n < 0 {
		a.disarm() // it does answer
	}
	a.arm()
}

// returned ends the attempt, unless it is kept.
func (a *attempt) returned() {
	a.mu.Lock()
	kept := a.session
	a.mu.Unlock()
	if !kept {
		a.end()
	}
}

func (a *attempt) end() {
	a.router.mu.Lock()
	delete(a.router.shard(a.shard).attempts, a)
	a.router.mu.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.disarm()
}
