package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// follow receives records until there are n, checking order and hashes.
func follow(sub novapb.ReadService_SubscribeClient, next uint64, n int) ([]string, error) {
	var out []string
	var hash uint64
	for len(out) < n {
		res, err := sub.Recv()
		if err != nil {
			return out, err
		}
		if len(res.GetRecords()) == 0 {
			continue
		}
		if len(out) > 0 && res.GetHashBefore() != hash {
			return out, fmt.Errorf("content hash %016x does not continue %016x at %d", res.GetHashBefore(), hash, next)
		}
		hash = res.GetHashAfter()
		for _, r := range res.GetRecords() {
			if r.GetSeq() != next {
				return out, fmt.Errorf("record %d where %d belongs", r.GetSeq(), next)
			}
			next++
			out = append(out, string(r.GetBody()))
		}
	}
	return out, nil
}

func (c *client) subscribe(ctx context.Context, t *testing.T, req *novapb.SubscribeRequest) novapb.ReadService_SubscribeClient {
	t.Helper()
	req.Bucket = bucket
	sub, err := c.reads.Subscribe(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	return sub
}

// Followers see every record once and in order, from the first and from the
// tail, and the end of a sealed stream.
func TestFollowWhileAppending(t *testing.T) {
	eachShape(t, func(t *testing.T, _ deployment, c *client) {
		c.create(t, "s", nil)
		const before, after = 50, 300
		for i := range before {
			c.append(t, uint64(i), "s", fmt.Sprint(i))
		}
		ctx := within(t, 60*time.Second)
		type end struct {
			from int
			got  []string
			err  error
		}
		ends := make(chan end)
		// A relative start is resolved when it is served: then there are 50 records.
		run := func(from int, req *novapb.SubscribeRequest) {
			req.Stream = "s"
			sub := c.subscribe(ctx, t, req)
			early, err := follow(sub, uint64(from), before-from)
			if err != nil {
				t.Fatalf("follower from %d: %v", from, err)
			}
			go func() {
				late, err := follow(sub, before, after+1)
				if err == nil {
					if _, err = sub.Recv(); errors.Is(err, io.EOF) {
						err = nil
					}
				}
				ends <- end{from, append(early, late...), err}
			}()
		}
		run(0, &novapb.SubscribeRequest{})
		run(20, &novapb.SubscribeRequest{Start: &novapb.SubscribeRequest_Seq{Seq: 20}})
		run(40, &novapb.SubscribeRequest{Start: &novapb.SubscribeRequest_TailOffset{TailOffset: 10}})
		tailEnd := c.subscribe(ctx, t, &novapb.SubscribeRequest{Stream: "s", Start: &novapb.SubscribeRequest_Seq{Seq: before}})
		for i := before; i < before+after; i++ {
			c.append(t, uint64(i), "s", fmt.Sprint(i))
		}
		req := request("s", "last")
		req.Seal = true
		if err := c.appendErr(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			e := <-ends
			if e.err != nil {
				t.Errorf("follower from %d: %v after %d records", e.from, e.err, len(e.got))
				continue
			}
			for i, b := range e.got {
				want := fmt.Sprint(e.from + i)
				if e.from+i == before+after {
					want = "last"
				}
				if b != want {
					t.Fatalf("follower from %d: record %d is %q, want %q", e.from, e.from+i, b, want)
				}
			}
		}
		if _, err := follow(tailEnd, before, after+1); err != nil {
			t.Fatal(err)
		}
	})
}

func TestSubscriptionLimitsAndHeartbeats(t *testing.T) {
	eachShape(t, func(t *testing.T, _ deployment, c *client) {
		c.create(t, "s", nil)
		c.append(t, 0, "s", "a", "b", "c")
		ctx := within(t, 20*time.Second)
		limited := []*novapb.SubscribeRequest{
			{Stream: "s", CountPresence: &novapb.SubscribeRequest_Count{Count: uint64(2)}},
			{Stream: "s", BytesPresence: &novapb.SubscribeRequest_Bytes{Bytes: uint64(2)}},
		}
		for _, req := range limited {
			sub := c.subscribe(ctx, t, req)
			if got, err := follow(sub, 0, 2); err != nil || len(got) != 2 {
				t.Fatalf("%v: %v, %v", req, got, err)
			}
			if _, err := sub.Recv(); !errors.Is(err, io.EOF) {
				t.Fatalf("%v: ended with %v", req, err)
			}
		}
		sub := c.subscribe(ctx, t, &novapb.SubscribeRequest{Stream: "s", Start: &novapb.SubscribeRequest_Seq{Seq: 3}, HeartbeatMs: 100})
		for range 3 {
			res, err := sub.Recv()
			if err != nil || len(res.GetRecords()) != 0 || res.GetNextSeq() != 3 || res.GetTail() != 3 {
				t.Fatalf("heartbeat: %v, %v", res, err)
			}
		}
		beyond := c.subscribe(ctx, t, &novapb.SubscribeRequest{Stream: "s", Start: &novapb.SubscribeRequest_Seq{Seq: 4}})
		_, err := beyond.Recv()
		wantErr(t, err, codes.OutOfRange, reason.BeyondTail)
	})
}

// Who follows a stream that is deleted, or appends to it, is told soon; the name is
// free at once and means another stream.
func TestDeleteAndRecreate(t *testing.T) {
	const soon = 10 * time.Second // for a busy machine; else nobody is told
	eachShape(t, func(t *testing.T, d deployment, c *client) {
		old := c.create(t, "s", nil)
		c.append(t, 0, "s", "a", "b")
		ctx := within(t, 30*time.Second)
		sub := c.subscribe(ctx, t, &novapb.SubscribeRequest{Stream: "s"})
		if _, err := follow(sub, 0, 2); err != nil {
			t.Fatal(err)
		}
		ses, _, err := c.session(ctx, &novapb.AppendSessionOpen{Stream: "s"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.streams.DeleteStream(ctx, &novapb.DeleteStreamRequest{Bucket: bucket, Stream: "s"}); err != nil {
			t.Fatalf("delete: %v", err)
		}
		told := time.Now()
		_, err = sub.Recv()
		for err == nil { // a heartbeat may be on its way
			_, err = sub.Recv()
		}
		if took := time.Since(told); took > soon {
			t.Errorf("the subscription was told after %v", took)
		}
		wantDeleted(t, err)
		told = time.Now()
		if err := ses.Send(batch(&novapb.AppendSessionBatch{Records: records("no")})); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		res, err := ses.Recv()
		if took := time.Since(told); took > soon {
			t.Errorf("the session was told after %v", took)
		}
		if err == nil {
			if res.GetFailure() == nil {
				t.Fatalf("a deleted stream took a batch: %v", res)
			}
			// It stays for batches that are on their way; there are none.
			_ = ses.CloseSend()
			_, err = ses.Recv()
		}
		wantDeleted(t, err)
		wantDeleted(t, c.appendErr(ctx, request("s", "no")))

		id := c.create(t, "s", nil)
		if id == old {
			t.Fatalf("the new stream has the old id %s", id)
		}
		if tail := c.tail(t, "s"); tail.GetTail() != 0 || tail.GetStreamId() != id {
			t.Fatalf("the new stream's tail: %v", tail)
		}
		c.append(t, 0, "s", "new")
		req := request("s", "no")
		req.StreamId = old
		wantDeleted(t, c.appendErr(ctx, req))
		d.restart(t)
		c = dial(t, d.address())
		c.expect(t, "s", 0, "new")
		_, err = c.reads.Read(ctx, &novapb.ReadRequest{Bucket: bucket, Stream: "s", StreamId: old})
		wantDeleted(t, err)
		if _, err := c.streams.DeleteStream(t.Context(), &novapb.DeleteStreamRequest{Bucket: bucket, Stream: "s"}); err != nil {
			t.Fatalf("delete: %v", err)
		}
		_, err = c.reads.CheckTail(t.Context(), &novapb.CheckTailRequest{Bucket: bucket, Stream: "s"})
		wantDeleted(t, err)
		c.mustVerify(t)
	})
}

func wantDeleted(t *testing.T, err error) {
	t.Helper()
	if r := reason.Of(err); r != reason.StreamNotFound && r != reason.StreamDeleting {
		t.Fatalf("got %s %q (%v), want that the stream is not there", status.Code(err), r, err)
	}
}
