package gateway

import (
	"context"
	"sync"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// How a gateway stops: when Run's context ends, the calls that may last for
// ever end with errStopping, which clients take as a reason to connect again
// and go on where they were. A call that ends by itself is left to its
// endpoint, which lets it.

// errStopping is UNAVAILABLE: another gateway, or this one's successor, serves
// what it refuses.
func errStopping() error {
	return reason.New(codes.Unavailable, reason.NoLeader, "the gateway is stopping")
}

// whileRunning returns a context that ends with ctx, or when a stop begins. The
// second result MUST be called.
func (s *Service) whileRunning(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	forget := context.AfterFunc(s.running, cancel)
	return ctx, func() { forget(); cancel() }
}

// ended returns what a call's caller hears of err, with which a call that it
// needs ended: of the stop, if that was the cause.
func (s *Service) ended(caller context.Context, err error) error {
	if reason.Code(err) == codes.Canceled && s.running.Err() != nil && caller.Err() == nil {
		return errStopping()
	}
	return err
}

// upward is the forwarding side of a session.
type upward struct {
	mu     sync.Mutex
	to     novapb.AppendService_AppendSessionClient
	closed bool
	cut    bool  // closed by a stop, not by the client
	failed error // why the client's next message is none
}

// send reports whether the message was taken; the answering side has the reason
// if not.
func (u *upward) send(msg *novapb.AppendSessionRequest) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return !u.closed && u.to.Send(msg) == nil
}

// close lets the leader answer what it has and then end the session; stop says
// that the client might have sent more.
func (u *upward) close(stop bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.closed {
		u.closed, u.cut = true, stop
		_ = u.to.CloseSend()
	}
}

// wasCut reports whether a stop closed it.
func (u *upward) wasCut() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.cut
}

// refuse closes it since the client sent what cannot be carried.
func (u *upward) refuse(err error) {
	u.mu.Lock()
	u.failed = err
	u.mu.Unlock()
	u.close(false)
}

// refusal is the error of refuse.
func (u *upward) refusal() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.failed
}
