package sequencer

import (
	"context"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/optional"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/libs/telemetry"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// Append stores one batch. The request was validated at the edge.
func (s *Service) Append(ctx context.Context, req *novapb.AppendRequest) (*novapb.AppendResponse, error) {
	ctx, span := startAppend(ctx, req.GetBucket(), req.GetStream())
	res, err := s.appendOne(ctx, req)
	endAppend(span, len(req.GetRecords()), res.GetAck(), err)
	return res, err
}

func (s *Service) appendOne(ctx context.Context, req *novapb.AppendRequest) (*novapb.AppendResponse, error) {
	st, err := s.openNamed(ctx, req)
	if err != nil {
		return nil, reason.WithOutcome(err, reason.NotCommitted)
	}
	r := appendRequest(batchFields{
		records: req.GetRecords(), match: optional.Of(req.HasMatchSeq(), req.GetMatchSeq()), token: optional.Of(req.HasFencingToken(), req.GetFencingToken()), seal: req.GetSeal(),
		producer: stream.Producer{ID: req.GetProducerId(), Epoch: req.GetProducerEpoch(), Batch: req.GetBatchSeq()},
	})
	r.span = telemetry.PackSpan(ctx)
	if err := s.reserve(ctx, r); err != nil {
		return nil, err
	}
	started := s.now()
	st.enqueue(r)
	res := r.wait(ctx, s.cfg.AppendTimeout)
	s.metrics.appended(ctx, r, s.now().Sub(started), res.err)
	if res.err != nil {
		return nil, res.err
	}
	return &novapb.AppendResponse{Ack: ackOf(res), StreamId: st.id.String()}, nil
}

// ackOf returns the ack of an append; one that only sealed has no records.
func ackOf(res result) *novapb.AppendAck {
	if res.ack != nil {
		return res.ack
	}
	return &novapb.AppendAck{FirstSeq: uint64(res.tail), NextSeq: uint64(res.tail), Tail: uint64(res.tail)}
}

// batchFields are what Append and AppendSession say of a batch.
type batchFields struct {
	records  []*novapb.AppendRecord
	match    *uint64
	token    *string
	seal     bool
	producer stream.Producer
}

// appendRequest takes a batch over; bodies and header bytes are shared with
// the message, which nobody changes.
func appendRequest(b batchFields) *request {
	if len(b.records) == 0 {
		// Only with seal: an entry without records that closes the stream. It is
		// idempotent by itself and needs no producer.
		r := newRequest(bundle.KindSeal)
		r.match, r.token, r.seal = b.match, b.token, true
		return r
	}
	r := newRequest(bundle.KindChunk)
	r.match, r.token, r.seal = b.match, b.token, b.seal
	if b.producer.ID != "" {
		r.producer = b.producer
	}
	r.records = make([]stream.Record, len(b.records))
	for i, in := range b.records {
		rec := &r.records[i]
		rec.Body = in.GetBody()
		rec.Timestamp = noTimestamp
		if in.HasTimestamp() {
			rec.Timestamp = stream.Millis(in.GetTimestamp())
		}
		if hs := in.GetHeaders(); len(hs) > 0 {
			rec.Headers = make([]stream.Header, len(hs))
			for j, h := range hs {
				rec.Headers[j] = stream.Header{Name: h.GetName(), Value: h.GetValue()}
			}
		}
		r.size += int64(rec.Size())
	}
	return r
}
