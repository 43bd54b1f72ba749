package integration

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// A resent batch is stored once and answered with its first ack, also by the
// next life of the leader.
func TestResentBatchIsStoredOnce(t *testing.T) {
	eachShape(t, func(t *testing.T, d deployment, c *client) {
		c.create(t, "s", nil)
		send := func(epoch, seq uint64, bodies ...string) (*novapb.AppendAck, error) {
			req := request("s", bodies...)
			req.ProducerId, req.ProducerEpoch, req.BatchSeq = "p", epoch, seq
			res, err := c.appends.Append(t.Context(), req)
			return res.GetAck(), err
		}
		var first []*novapb.AppendAck
		for i := range uint64(5) {
			a, err := send(1, i, fmt.Sprint(i, "a"), fmt.Sprint(i, "b"))
			if err != nil || a.GetFirstSeq() != 3*i || a.GetDuplicate() {
				t.Fatalf("batch %d: %v, %v", i, a, err)
			}
			first = append(first, a)
			c.append(t, 3*i+2, "s", "other")
		}
		check := func() {
			t.Helper()
			for i := range first {
				a, err := send(1, uint64(i), fmt.Sprint(i, "a"), fmt.Sprint(i, "b"))
				if err != nil {
					t.Fatalf("resent batch %d: %v", i, err)
				}
				want := proto.CloneOf(first[i])
				want.Duplicate, want.Tail = true, 15
				if !proto.Equal(a, want) {
					t.Fatalf("resent batch %d: %v, want %v", i, a, want)
				}
			}
			_, err := send(1, 6, "gap")
			wantRefused(t, err, codes.FailedPrecondition, reason.ProducerGap)
			wantNumber(t, err, reason.KeyExpectedBatchSeq, 5)
			_, err = send(0, 0, "old epoch")
			wantErr(t, err, codes.FailedPrecondition, reason.ProducerFenced)
			wantNumber(t, err, reason.KeyExpectedEpoch, 1)
		}
		check()
		d.restart(t)
		c = dial(t, d.address())
		check()
		if a, err := send(2, 0, "new epoch"); err != nil || a.GetFirstSeq() != 15 {
			t.Fatalf("a higher epoch: %v, %v", a, err)
		}
		_, err := send(1, 5, "fenced")
		wantErr(t, err, codes.FailedPrecondition, reason.ProducerFenced)
		wantNumber(t, err, reason.KeyExpectedEpoch, 2)
		if tail := c.tail(t, "s").GetTail(); tail != 16 {
			t.Fatalf("tail %d, want 16", tail)
		}
		c.mustVerify(t)
	})
}

// A session that breaks is opened again and resends; nothing is doubled.
func TestSessionResends(t *testing.T) {
	eachShape(t, func(t *testing.T, d deployment, c *client) {
		c.create(t, "s", nil)
		ctx := within(t, 30*time.Second)
		var want []string
		for round := range 3 {
			ses, _, err := c.session(ctx, &novapb.AppendSessionOpen{Stream: "s", ProducerId: "p", ProducerEpoch: 1})
			if err != nil {
				t.Fatal(err)
			}
			const per, overlap = 10, 5
			from := 0
			if round > 0 {
				from = round*per - overlap
			}
			for i := from; i < (round+1)*per; i++ {
				if err := ses.Send(batch(&novapb.AppendSessionBatch{Records: records(fmt.Sprint(i)), BatchSeq: uint64(i)})); err != nil {
					t.Fatal(err)
				}
			}
			_ = ses.CloseSend()
			for i := from; i < (round+1)*per; i++ {
				res, err := ses.Recv()
				if err != nil || res.GetAck().GetFirstSeq() != uint64(i) || res.GetAck().GetDuplicate() != (i < round*per) {
					t.Fatalf("batch %d: %v, %v", i, res, err)
				}
				if i >= round*per {
					want = append(want, fmt.Sprint(i))
				}
			}
			if _, err := ses.Recv(); !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			d.restart(t)
			c = dial(t, d.address())
		}
		c.expect(t, "s", 0, want...)
	})
}
