package failover

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// pipeline is how many batches of a session are under way.
const pipeline = 4

// sender appends through sessions, one after another.
type sender struct {
	producer
	queue []*batch // not acknowledged, in order
}

// runSender makes appends of a producer through sessions.
func (c *client) runSender(id string) {
	s := &sender{producer: producer{client: *c, id: id, epoch: 1}}
	for n := 0; n < s.plan.ops && s.pause(); {
		if appends, _ := s.full(); appends || s.over {
			s.look()
			n++
			continue
		}
		n += s.session(s.plan.ops - n)
	}
}

// session sends until it fails, or for a while; it returns how many batches it
// sent.
func (s *sender) session(most int) (sent int) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	silence := time.AfterFunc(s.plan.timeout, cancel)
	defer silence.Stop()
	var under []*op
	// What has no answer has the outcome that the call ends with.
	failed := func(err error) {
		for _, o := range under {
			o.failed(err)
			s.finish(o)
		}
		if len(under) == 0 {
			s.door = (s.door + 1) % len(s.doors)
		}
	}
	call, err := s.doors[s.door].appends.AppendSession(ctx)
	if err == nil {
		err = call.Send(&novapb.AppendSessionRequest{Message: &novapb.AppendSessionRequest_Open{
			Open: &novapb.AppendSessionOpen{Bucket: bucket, Stream: s.stream, ProducerId: s.id, ProducerEpoch: s.epoch},
		}})
	}
	if err == nil || errors.Is(err, io.EOF) {
		_, err = call.Recv()
	}
	if err != nil {
		failed(err)
		return 1
	}
	end := 5 + s.rand.IntN(20)
	for {
		for len(under) < pipeline && sent < min(end, most) && (len(under) == 0 || s.chance(60)) {
			if len(s.queue) == len(under) {
				if !s.pause() {
					break
				}
				s.queue = append(s.queue, s.make(batchID{s.id, s.epoch, s.next}))
				s.next++
			}
			under = append(under, s.send(call, s.queue[len(under)]))
			sent++
		}
		if len(under) == 0 {
			_ = call.CloseSend()
			return max(sent, 1)
		}
		silence.Reset(s.plan.timeout)
		res, err := call.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("the session ended without an error")
			}
			failed(err)
			return sent
		}
		o := under[0]
		under = under[1:]
		switch {
		case res.GetAck() != nil:
			o.appended(res.GetAck())
		default:
			o.failure(res.GetFailure())
		}
		s.finish(o)
		if o.outcome == done {
			s.queue = s.queue[1:]
			continue
		}
		if o.outcome == refused {
			// Whatever was refused of a session, it begins anew.
			s.over = o.reason == reason.StreamSealed
		}
		s.drain(call, under, silence)
		if o.outcome == refused {
			s.renew()
			s.queue = nil
		}
		return sent
	}
}

// drain takes the failures of what was sent behind a failure.
func (s *sender) drain(call novapb.AppendService_AppendSessionClient, under []*op, silence *time.Timer) {
	_ = call.CloseSend()
	for i, o := range under {
		silence.Reset(s.plan.timeout)
		res, err := call.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("the session ended without an error")
			}
			for _, o := range under[i:] {
				o.failed(err)
				s.finish(o)
			}
			return
		}
		if res.GetAck() != nil {
			o.appended(res.GetAck())
			o.broken = "a batch behind a failed one is acknowledged"
		} else {
			o.failure(res.GetFailure())
		}
		s.finish(o)
	}
}

func (s *sender) send(call novapb.AppendService_AppendSessionClient, b *batch) *op {
	o := s.begin(s.number, appendOp)
	o.bodies, o.producer = b.bodies, &b.id
	// The reason of a failed Send is with Recv.
	_ = call.Send(&novapb.AppendSessionRequest{Message: &novapb.AppendSessionRequest_Batch{
		Batch: &novapb.AppendSessionBatch{Records: b.records, BatchSeq: b.id.batch},
	}})
	return o
}

func (s *sender) finish(o *op) { s.answered(o) }

// failure notes how a batch of a session failed.
func (o *op) failure(f *novapb.AppendSessionFailure) {
	became := reason.Unknown
	if f.GetOutcome() == novapb.Outcome_OUTCOME_NOT_COMMITTED {
		became = reason.NotCommitted
	}
	o.fail(codes.Code(f.GetCode()), reason.Reason(f.GetReason()), became, f.GetMessage())
}
