package failover

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

const bucket = "failover"

// door is one way into the constellation.
type door struct {
	conn    *grpc.ClientConn
	buckets novapb.BucketServiceClient
	streams novapb.StreamServiceClient
	appends novapb.AppendServiceClient
	reads   novapb.ReadServiceClient
	admin   novapb.AdminServiceClient
}

func openDoor(address string) (*door, error) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		// A node that is back is used soon.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 300 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}))
	if err != nil {
		return nil, err
	}
	return &door{
		conn: conn, buckets: novapb.NewBucketServiceClient(conn), streams: novapb.NewStreamServiceClient(conn),
		appends: novapb.NewAppendServiceClient(conn), reads: novapb.NewReadServiceClient(conn), admin: novapb.NewAdminServiceClient(conn),
	}, nil
}

// judged are the refusals that say something about the stream.
var judged = map[reason.Reason]string{ // the metadata with what is claimed
	reason.SeqMismatch: reason.KeyTail, reason.Fenced: "", reason.StreamSealed: reason.KeyTail,
	reason.ProducerGap: reason.KeyExpectedBatchSeq, reason.ProducerFenced: reason.KeyExpectedEpoch,
	reason.Trimmed: reason.KeyFirstSeq, reason.BeyondTail: reason.KeyTail,
}

// failed notes the error that a call ended with.
func (o *op) failed(err error) {
	claim, known := reason.Number(err, judged[reason.Of(err)])
	o.fail(reason.Code(err), reason.Of(err), reason.OutcomeOf(err), err.Error())
	if o.outcome == refused && known {
		o.claim = &claim
	}
	if o.outcome == refused && !known && judged[o.reason] != "" {
		o.broken = "a refusal without its number"
	}
}

func (o *op) fail(code codes.Code, why reason.Reason, became reason.Outcome, text string) {
	o.reason, o.text = why, text
	_, judges := judged[why]
	changes := o.kind != tailOp && o.kind != readOp
	switch {
	case judges:
		o.outcome = refused
	case changes && became != reason.NotCommitted:
		o.outcome = unknown
	default:
		o.outcome = void
	}
	switch code {
	case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Canceled, codes.Aborted:
		return
	}
	if !judges {
		// Nothing that these clients do deserves it.
		o.broken, o.outcome = fmt.Sprintf("answered %s: %s", code, text), unknown
	}
}

func (o *op) appended(a *novapb.AppendAck) {
	o.outcome = done
	o.first, o.next, o.duplicate, o.ackTail = a.GetFirstSeq(), a.GetNextSeq(), a.GetDuplicate(), a.GetTail()
	o.firstStamp, o.lastStamp, o.hashAfter = a.GetFirstTimestamp(), a.GetLastTimestamp(), a.GetContentHash()
	if len(o.bodies) == 1 && o.firstStamp != o.lastStamp {
		o.broken = "one record with two timestamps"
	}
}

func (o *op) append(ctx context.Context, d *door, req *novapb.AppendRequest) {
	res, err := d.appends.Append(ctx, req)
	if err != nil {
		o.failed(err)
		return
	}
	o.appended(res.GetAck())
}

func (o *op) checkTail(ctx context.Context, d *door, name string) {
	res, err := d.reads.CheckTail(ctx, &novapb.CheckTailRequest{Bucket: bucket, Stream: name})
	if err != nil {
		o.failed(err)
		return
	}
	o.outcome = done
	o.tail, o.trim, o.sealed = res.GetTail(), res.GetFirstSeq(), res.GetSealed()
	o.lastStamp, o.hashAfter = res.GetLastTimestamp(), res.GetContentHash()
}

func (o *op) read(ctx context.Context, d *door, name string) {
	req := &novapb.ReadRequest{Bucket: bucket, Stream: name, Clamp: o.clamp}
	switch o.start {
	case fromFirst:
	case fromSeq:
		req.Start = &novapb.ReadRequest_Seq{Seq: o.seq}
	case fromTail:
		req.Start = &novapb.ReadRequest_TailOffset{TailOffset: o.seq}
	}
	res, err := d.reads.Read(ctx, req)
	if err != nil {
		o.failed(err)
		return
	}
	o.outcome = done
	o.tail, o.trim, o.sealed = res.GetTail(), res.GetFirstSeq(), res.GetEndOfStream()
	o.hashBefore, o.hashAfter = res.GetHashBefore(), res.GetHashAfter()
	o.next = res.GetNextSeq()
	o.first = o.next - min(o.next, uint64(len(res.GetRecords())))
	hash, scratch := stream.Hash(o.hashBefore), []byte(nil)
	for i, r := range res.GetRecords() {
		o.records = append(o.records, digestOf(r.GetBody()))
		o.stamps = append(o.stamps, r.GetTimestamp())
		if want := o.first + uint64(i); r.GetSeq() != want {
			o.broken = fmt.Sprintf("record %d is where %d belongs (I1)", r.GetSeq(), want)
		}
		rec := stream.Record{Seq: stream.Seq(r.GetSeq()), Timestamp: stream.Millis(r.GetTimestamp()), Body: r.GetBody()}
		for _, h := range r.GetHeaders() {
			rec.Headers = append(rec.Headers, stream.Header{Name: h.GetName(), Value: h.GetValue()})
		}
		hash, scratch = chunk.HashRecord(hash, &rec, scratch)
	}
	if len(o.records) > 0 && uint64(hash) != o.hashAfter {
		o.broken = fmt.Sprintf("the content hash of the records is %016x, and is said to be %016x", hash, o.hashAfter)
	}
}

func (o *op) trimTo(ctx context.Context, d *door, name string) {
	req := &novapb.TrimRequest{Bucket: bucket, Stream: name, Seq: o.seq}
	if o.token != nil {
		req.FencingTokenPresence = &novapb.TrimRequest_FencingToken{FencingToken: *o.token}
	}
	res, err := d.appends.Trim(ctx, req)
	if err != nil {
		o.failed(err)
		return
	}
	o.outcome, o.trim, o.tail = done, res.GetFirstSeq(), res.GetTail()
}

func (o *op) sealStream(ctx context.Context, d *door, name string) {
	req := &novapb.SealStreamRequest{Bucket: bucket, Stream: name}
	if o.match != nil {
		req.MatchSeqPresence = &novapb.SealStreamRequest_MatchSeq{MatchSeq: *o.match}
	}
	res, err := d.appends.SealStream(ctx, req)
	if err != nil {
		o.failed(err)
		return
	}
	o.outcome, o.tail = done, res.GetTail()
}

func (o *op) setToken(ctx context.Context, d *door, name string) {
	req := &novapb.SetFencingTokenRequest{Bucket: bucket, Stream: name, Token: o.set}
	if o.token != nil {
		req.FencingTokenPresence = &novapb.SetFencingTokenRequest_FencingToken{FencingToken: *o.token}
	}
	res, err := d.appends.SetFencingToken(ctx, req)
	if err != nil {
		o.failed(err)
		return
	}
	o.outcome, o.tail = done, res.GetTail()
}
