package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/nova-stream/nova/libs/reason"
)

// ErrBroken means that a server's answer contradicts what it said before:
// records are missing, repeated or changed, or an ack is of another batch.
var ErrBroken = errors.New("the server's answers do not follow each other")

// SessionError says why a session is over, and what became of its batches.
// Package reason reads its reason, metadata and outcome.
type SessionError struct {
	// Outcome of the first batch that is not acknowledged, and of those after
	// it: NotCommitted, none of them is stored, nor will be; Unknown, some may
	// be, in order.
	Outcome reason.Outcome
	// Stored is what is stored for certain.
	Stored Progress

	cause error
}

func (e *SessionError) Error() string { return "append: " + e.cause.Error() }

func (e *SessionError) Unwrap() error { return e.cause }

// GRPCStatus returns the status of the cause with the session's outcome.
func (e *SessionError) GRPCStatus() *status.Status {
	st, ok := status.FromError(e.cause)
	if !ok {
		st = status.FromContextError(e.cause)
	}
	p := st.Proto()
	for i, d := range p.GetDetails() {
		info := &errdetails.ErrorInfo{}
		if d.UnmarshalTo(info) != nil {
			continue
		}
		if info.Metadata == nil {
			info.Metadata = map[string]string{}
		}
		info.Metadata[reason.KeyOutcome] = string(e.Outcome)
		if changed, err := anypb.New(info); err == nil {
			p.Details[i] = changed
		}
		return status.FromProto(p)
	}
	if info, err := anypb.New(&errdetails.ErrorInfo{Domain: reason.Domain, Metadata: map[string]string{reason.KeyOutcome: string(e.Outcome)}}); err == nil {
		p.Details = append(p.Details, info)
	}
	return status.FromProto(p)
}

// temporary reports whether what failed may succeed when it is done again.
func temporary(err error) bool {
	if errors.Is(err, ErrBroken) {
		return false
	}
	switch reason.Of(err) {
	case reason.Fenced: // ABORTED, as conflicts that pass are
		return false
	case reason.NotLeader, reason.NoLeader, reason.EpochFenced, reason.ChainSealed:
		return true // leadership moves
	}
	switch reason.Code(err) {
	case codes.Unavailable, codes.ResourceExhausted, codes.Aborted, codes.DeadlineExceeded, codes.Unknown, codes.Internal, codes.Canceled:
		return true
	}
	return false
}

// Waits between tries: short at first, since most failures are a connection
// that broke, and never so long that recovery goes unnoticed.
const (
	firstPause = 20 * time.Millisecond
	maxPause   = time.Second
	// maxHint limits what a server may ask for.
	maxHint = 10 * time.Second
)

// pause waits before try n, from 0, with jitter, and at least as long as the
// failure asks for; false when ctx ended first.
func pause(ctx context.Context, n int, failed error) bool {
	d := min(firstPause<<min(n, 6), maxPause)
	d = d/2 + rand.N(d)
	if hint := min(retryHint(failed), maxHint); hint > d {
		d = hint + rand.N(hint/4+1)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// retryHint returns the RetryInfo of an error.
func retryHint(err error) time.Duration {
	var g interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &g) {
		return 0
	}
	for _, d := range g.GRPCStatus().Details() {
		if r, ok := d.(*errdetails.RetryInfo); ok {
			return r.GetRetryDelay().AsDuration()
		}
	}
	return 0
}
