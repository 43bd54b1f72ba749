package sequencer

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// noTimestamp marks a record for which the client gave no time.
const noTimestamp stream.Millis = -1

// request is one append batch or control operation on its way through a
// stream's queue.
type request struct {
	kind     bundle.Kind // KindChunk for an append
	records  []stream.Record
	size     int64 // bytes of headers and bodies
	producer stream.Producer
	seal     bool
	match    *uint64 // of a DELETE: only if the stream is empty and at rest there
	token    *string
	trim     stream.Seq // of a TRIM
	clamp    bool       // of a TRIM: beyond the tail it is the tail
	setToken string     // of a TOKEN

	session *session // nil: a request of its own
	span    []byte   // see telemetry.PackSpan; nil: not sampled

	reserved int64 // bytes of the append pool, given back when it is answered
	release  func(int64)

	taken atomic.Int32 // requestQueued, requestTaken, requestAbandoned
	done  chan result  // capacity 1; answered exactly once
}

const (
	requestQueued int32 = iota
	requestTaken
	requestAbandoned
)

// result answers a request.
type result struct {
	ack  *novapb.AppendAck // of an append
	tail stream.Seq
	trim stream.Seq
	err  error // carries an outcome
}

func newRequest(kind bundle.Kind) *request {
	return &request{kind: kind, done: make(chan result, 1)}
}

// take claims the request for numbering; false if its caller has gone.
func (r *request) take() bool { return r.taken.CompareAndSwap(requestQueued, requestTaken) }

func (r *request) answer(res result) {
	if r.release != nil {
		r.release(r.reserved)
	}
	r.done <- res
}

// wait returns the answer, or a typed error when ctx ends or limit is over
// first: NOT_COMMITTED if the request was never numbered, else UNKNOWN. It may
// then still be stored; what it reserved is given back when it is answered.
func (r *request) wait(ctx context.Context, limit time.Duration) result {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	var err error
	select {
	case res := <-r.done:
		return res
	case <-ctx.Done():
		err = reason.New(reason.Code(ctx.Err()), "", "append: "+ctx.Err().Error())
	case <-timer.C:
		err = reason.New(codes.DeadlineExceeded, reason.StorageDown, "append: storage did not confirm it within "+limit.String())
	}
	if r.taken.CompareAndSwap(requestQueued, requestAbandoned) {
		return result{err: reason.WithOutcome(err, reason.NotCommitted)}
	}
	// The answer may have come in the same moment; it is the better one.
	select {
	case res := <-r.done:
		return res
	default:
		return result{err: reason.WithOutcome(err, reason.Unknown)}
	}
}
