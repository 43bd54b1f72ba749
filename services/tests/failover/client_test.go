package failover

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// crowd is all that uses one stream in one round.
type crowd struct {
	*history
	plan  *plan
	doors []*door
	until time.Time // clients begin nothing new after it
	ends  bool      // somebody will seal the stream

	mu    sync.Mutex
	tail  uint64 // what a client saw last, right or wrong by now
	token string
	seen  uint64 // below it all was read
}

func (c *crowd) hint() (tail, seen uint64, token string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tail, c.seen, c.token
}

// learn keeps what an operation said.
func (c *crowd) learn(o *op) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o.outcome != done {
		return
	}
	if o.kind == appendOp {
		c.tail = o.ackTail
	} else {
		c.tail = o.tail
	}
	if o.kind == readOp && o.first <= max(c.seen, o.trim) {
		c.seen = max(c.seen, o.next)
	}
	if o.kind == tokenOp {
		c.token = o.set
	}
}

// client is one of a crowd.
type client struct {
	*crowd
	number int
	rand   *rand.Rand
	door   int
	bodies int
	over   bool // it was told that the stream is sealed
}

// call makes an operation, in time, through a door that works.
func (c *client) call(o *op, f func(ctx context.Context, d *door)) *op {
	ctx, cancel := context.WithTimeout(context.Background(), c.plan.timeout)
	defer cancel()
	f(ctx, c.doors[c.door])
	c.answered(o)
	return o
}

func (c *client) answered(o *op) {
	c.end(o)
	c.learn(o)
	c.plan.report.count(o)
	if o.outcome != done && o.outcome != refused {
		c.door = (c.door + 1) % len(c.doors)
	}
}

// pause waits until the next operation; false when the round is over.
func (c *client) pause() bool {
	time.Sleep(some(c.rand, 2*c.plan.length/time.Duration(c.plan.ops))) // part of the schedule
	return time.Now().Before(c.until)
}

// late is when the stream may be sealed.
func (c *client) late() bool { return time.Until(c.until) < c.plan.length/4 }

func (c *client) chance(percent int) bool { return c.rand.IntN(100) < percent }

// records makes some that nobody else makes.
func (c *client) records() ([]*novapb.AppendRecord, []digest) {
	var recs []*novapb.AppendRecord
	var digests []digest
	for range 1 + c.rand.IntN(3) {
		c.bodies++
		size := c.rand.IntN(200)
		if c.chance(3) {
			size = 30_000
		}
		body := fmt.Sprintf("%s client %d record %d %s", c.stream, c.number, c.bodies, strings.Repeat("x", size))
		r := &novapb.AppendRecord{Body: []byte(body)}
		if c.chance(30) {
			at := time.Now().UnixMilli() + int64(c.rand.IntN(4000)) - 2000
			r.TimestampPresence = &novapb.AppendRecord_Timestamp{Timestamp: at}
		}
		if c.chance(20) {
			r.Headers = []*novapb.Header{{Name: []byte("n"), Value: []byte(body[:10])}}
		}
		recs, digests = append(recs, r), append(digests, digestOf(r.GetBody()))
	}
	return recs, digests
}

// guards gives an append preconditions, often wrong ones.
func (c *client) guards(o *op, req *novapb.AppendRequest) {
	tail, _, token := c.hint()
	if c.chance(25) {
		if c.chance(20) {
			tail = uint64(c.rand.Int64N(int64(tail) + 2))
		}
		o.match, req.MatchSeqPresence = &tail, &novapb.AppendRequest_MatchSeq{MatchSeq: tail}
	}
	if c.chance(30) {
		if c.chance(20) {
			token = tokens[c.rand.IntN(len(tokens))]
		}
		o.token, req.FencingTokenPresence = &token, &novapb.AppendRequest_FencingToken{FencingToken: token}
	}
	o.seal = c.ends && c.late() && c.chance(10)
	req.Seal = o.seal
}

var tokens = []string{"", "a", "b"}

// append makes one that no producer vouches for.
func (c *client) append() {
	o := c.begin(c.number, appendOp)
	req := &novapb.AppendRequest{Bucket: bucket, Stream: c.stream}
	req.Records, o.bodies = c.records()
	c.guards(o, req)
	o.call = int64(time.Since(c.began))
	c.call(o, func(ctx context.Context, d *door) { o.append(ctx, d, req) })
}

// look reads something.
func (c *client) look() {
	tail, _, _ := c.hint()
	if c.chance(25) {
		o := c.begin(c.number, tailOp)
		c.call(o, func(ctx context.Context, d *door) { o.checkTail(ctx, d, c.stream) })
		return
	}
	o := c.begin(c.number, readOp)
	switch c.rand.IntN(5) {
	case 0:
		o.start, o.seq = fromTail, c.rand.Uint64N(10)
	case 1:
		o.start, o.seq, o.clamp = fromSeq, c.rand.Uint64N(tail+3), c.chance(30)
	}
	c.call(o, func(ctx context.Context, d *door) { o.read(ctx, d, c.stream) })
}

// control changes something else than records.
func (c *client) control() {
	_, seen, token := c.hint()
	switch {
	case c.ends && c.late() && c.chance(20):
		o := c.begin(c.number, sealOp)
		if tail, _, _ := c.hint(); c.chance(30) {
			o.match = &tail
		}
		c.call(o, func(ctx context.Context, d *door) { o.sealStream(ctx, d, c.stream) })
	case c.chance(50):
		o := c.begin(c.number, tokenOp)
		o.set = tokens[c.rand.IntN(len(tokens))]
		if c.chance(50) {
			o.token = &token
		}
		c.call(o, func(ctx context.Context, d *door) { o.setToken(ctx, d, c.stream) })
	default:
		o := c.begin(c.number, trimOp)
		// Only what was read: else nobody could tell what it was.
		if o.seq = c.rand.Uint64N(seen + 1); c.chance(10) {
			o.seq += 1000
		}
		if c.chance(30) {
			o.token = &token
		}
		c.call(o, func(ctx context.Context, d *door) { o.trimTo(ctx, d, c.stream) })
	}
}

// The kinds of clients. Each makes operations until the round is over.

func (c *client) runPlain() {
	for n := 0; n < c.plan.ops && c.pause(); n++ {
		if appends, _ := c.full(); appends || c.chance(20) {
			c.look()
		} else {
			c.append()
		}
	}
}

func (c *client) runController() {
	for n := 0; n < c.plan.ops && c.pause(); n++ {
		if _, others := c.full(); others || c.chance(65) {
			c.look()
		} else {
			c.control()
		}
	}
}

func (c *client) runReader() {
	for n := 0; n < c.plan.ops && c.pause(); n++ {
		c.look()
	}
}
