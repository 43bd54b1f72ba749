package failover

import (
	"context"
	"time"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// batch is one of a producer's.
type batch struct {
	id      batchID
	records []*novapb.AppendRecord
	bodies  []digest
	blind   bool // a try of it may still take effect
}

// producer sends batches until each has a definite answer.
type producer struct {
	client
	id          string
	epoch, next uint64
	pending     *batch
	kept        []*batch // acknowledged; any may be sent again
}

// runProducer makes appends of a producer, one call each.
func (c *client) runProducer(id string) {
	p := &producer{client: *c, id: id, epoch: 1}
	for n := 0; n < p.plan.ops && p.pause(); n++ {
		if appends, _ := p.full(); appends || p.over {
			p.look()
			continue
		}
		p.turn()
	}
}

// turn sends what is pending, else something new, else something that deserves
// a refusal.
func (p *producer) turn() {
	switch {
	case p.pending != nil:
	case len(p.kept) > 0 && p.chance(20):
		again := p.kept[p.rand.IntN(len(p.kept))]
		p.try(again)
		return
	case p.chance(5): // a gap
		p.stray(batchID{p.id, p.epoch, p.next + 1 + p.rand.Uint64N(3)})
		return
	case len(p.kept) > 0 && p.epoch > 1 && p.chance(5): // of an old epoch, as the stream knows
		p.stray(batchID{p.id, p.epoch - 1, p.rand.Uint64N(5)})
		return
	case p.chance(5):
		p.renew()
		fallthrough
	default:
		p.pending = p.make(batchID{p.id, p.epoch, p.next})
	}
	o := p.try(p.pending)
	switch o.outcome {
	case done:
		p.kept = append(p.kept, p.pending)
		p.pending, p.next = nil, p.next+1
	case refused:
		// A try before may come yet, and then its number would mean something else.
		blind := p.pending.blind
		p.pending = nil
		if p.over = o.reason == reason.StreamSealed; blind || o.reason == reason.ProducerGap || o.reason == reason.ProducerFenced {
			p.renew()
		}
	case unknown:
		p.pending.blind = true
	case void:
	}
}

// renew begins an epoch: what is under way of the last one is fenced.
func (p *producer) renew() { p.epoch, p.next, p.pending, p.kept = p.epoch+1, 0, nil, nil }

func (p *producer) make(id batchID) *batch {
	b := &batch{id: id}
	b.records, b.bodies = p.records()
	return b
}

// stray sends a batch that must be refused.
func (p *producer) stray(id batchID) {
	if o := p.try(p.make(id)); o.outcome == unknown || o.outcome == done {
		p.renew()
	}
}

func (p *producer) try(b *batch) *op {
	o := p.begin(p.number, appendOp)
	o.bodies, o.producer = b.bodies, &b.id
	req := &novapb.AppendRequest{
		Bucket: bucket, Stream: p.stream, Records: b.records, ProducerId: b.id.producer, ProducerEpoch: b.id.epoch, BatchSeq: b.id.batch,
	}
	p.guards(o, req)
	o.seal, req.Seal = false, false // a resend would have to say the same
	o.call = int64(time.Since(p.began))
	return p.call(o, func(ctx context.Context, d *door) { o.append(ctx, d, req) })
}
