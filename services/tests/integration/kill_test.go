package integration

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// Rounds of TestKilledUnderLoad; NOVA_KILL_ROUNDS says otherwise, for a soak.
const defaultKillRounds = 25

// producer appends to one stream, resends what was not acknowledged, and
// remembers every acknowledgement.
type producer struct {
	id, stream string
	epoch      uint64
	acked      []uint64 // number of the first record of batch i
}

const perBatch = 3

func (p *producer) bodies(batch int) []string {
	out := make([]string, perBatch)
	for i := range out {
		head := fmt.Sprintf("%s %d %d ", p.id, batch, i)
		out[i] = head + strings.Repeat("x", (batch*131+i*17)%2000)
	}
	return out
}

// run holds a session until it breaks or ctx ends. A wrong answer is an error.
func (p *producer) run(ctx context.Context, c *client) error {
	ses, _, err := c.session(ctx, &novapb.AppendSessionOpen{Stream: p.stream, ProducerId: p.id, ProducerEpoch: p.epoch})
	if err != nil {
		return nil
	}
	const pipeline = 4
	next := len(p.acked) // the first that has no ack is sent again
	for len(p.acked) < next || ctx.Err() == nil {
		for next < len(p.acked)+pipeline && ctx.Err() == nil {
			if ses.Send(batch(&novapb.AppendSessionBatch{Records: records(p.bodies(next)...), BatchSeq: uint64(next)})) != nil {
				break // Recv has the reason
			}
			next++
		}
		res, err := ses.Recv()
		if err != nil || res.GetFailure() != nil {
			return nil
		}
		a := res.GetAck()
		if a.GetNextSeq()-a.GetFirstSeq() != perBatch {
			return fmt.Errorf("%s batch %d: ack %v", p.id, len(p.acked), a)
		}
		p.acked = append(p.acked, a.GetFirstSeq())
	}
	return nil
}

// check finds each acknowledged batch where it was acknowledged, each batch
// once, batches of a producer in order, and nothing that nobody sent.
func checkRecords(got []*novapb.Record, producers []*producer) error {
	next := map[string]int{}
	by := map[string]*producer{}
	for _, p := range producers {
		by[p.id] = p
	}
	for at := 0; at < len(got); at += perBatch {
		id, rest, _ := strings.Cut(string(got[at].GetBody()), " ")
		number, _, _ := strings.Cut(rest, " ")
		n, err := strconv.Atoi(number)
		p := by[id]
		if err != nil || p == nil || at+perBatch > len(got) {
			return fmt.Errorf("record %d: nobody sent %.40q", at, got[at].GetBody())
		}
		if n != next[id] {
			return fmt.Errorf("record %d: batch %d of %s where %d belongs", at, n, id, next[id])
		}
		next[id]++
		for i, body := range p.bodies(n) {
			if !bytes.Equal(got[at+i].GetBody(), []byte(body)) {
				return fmt.Errorf("record %d: %.40q, want %.40q", at+i, got[at+i].GetBody(), body)
			}
		}
		if n < len(p.acked) && p.acked[n] != uint64(at) {
			return fmt.Errorf("batch %d of %s was acknowledged at %d and is at %d", n, id, p.acked[n], at)
		}
	}
	for _, p := range producers {
		if next[p.id] < len(p.acked) {
			return fmt.Errorf("%s: %d batches acknowledged, %d stored", p.id, len(p.acked), next[p.id])
		}
	}
	return nil
}

func killRounds(t *testing.T) int {
	v := os.Getenv("NOVA_KILL_ROUNDS")
	if v == "" {
		return defaultKillRounds
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 {
		t.Fatalf("NOVA_KILL_ROUNDS: %q is not a number above 0", v)
	}
	return n
}

// Whatever the moment of the kill: acknowledged records are there, once, byte
// for byte, where they were acknowledged (I1, I2).
func TestKilledUnderLoad(t *testing.T) {
	p := newProgram(t)
	const streams, perStream = 2, 3
	all := make([][]*producer, streams)
	for s := range all {
		for i := range perStream {
			all[s] = append(all[s], &producer{id: fmt.Sprintf("p%d.%d", s, i), stream: fmt.Sprint("s", s)})
		}
	}
	for round := range killRounds(t) {
		began := time.Now()
		p.start(t)
		ready := time.Since(began)
		conn := p.dial(t)
		c := clientOf(conn)
		if round == 0 {
			if _, err := c.buckets.CreateBucket(t.Context(), &novapb.CreateBucketRequest{Bucket: bucket}); err != nil {
				t.Fatal(err)
			}
			for s := range all {
				c.create(t, fmt.Sprint("s", s), nil)
			}
		}
		ctx, stop := context.WithCancel(t.Context())
		before := 0
		var work sync.WaitGroup
		for _, ps := range all {
			for _, p := range ps {
				before += len(p.acked)
				work.Go(func() {
					for ctx.Err() == nil {
						if err := p.run(ctx, c); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
		}
		time.Sleep(time.Duration(20+rand.IntN(300)) * time.Millisecond) // load, for a while
		p.kill()
		stop()
		work.Wait()
		_ = conn.Close()
		after := 0
		for _, ps := range all {
			for _, p := range ps {
				after += len(p.acked)
			}
		}
		t.Logf("round %d: ready after %v, %d batches acknowledged", round, ready.Round(time.Millisecond), after-before)
		if t.Failed() {
			return
		}
	}
	p.start(t)
	conn := p.dial(t)
	defer conn.Close()
	c := clientOf(conn)
	for s, ps := range all {
		got, err := c.readAll(t.Context(), fmt.Sprint("s", s), 0)
		if err == nil {
			err = checkRecords(got, ps)
		}
		if err != nil {
			t.Errorf("stream s%d: %v", s, err)
		}
	}
	c.mustVerify(t)
}
