package reader

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/rpc"
	"github.com/nova-stream/nova/proto/gen/nova/reader/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// serve has the reader of a world on a network.
func (w *world) serve() readerpb.ReaderServiceClient {
	w.t.Helper()
	srv, err := rpc.NewServer(rpc.ServerConfig{Listen: "127.0.0.1:0"})
	if err != nil {
		w.t.Fatal(err)
	}
	readerpb.RegisterReaderServiceServer(srv, w.svc)
	srv.Start()
	pool, err := rpc.NewPool(rpc.PoolConfig{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		_ = pool.Close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		srv.Stop(ctx)
	})
	conn, err := pool.Address(srv.Address())
	if err != nil {
		w.t.Fatal(err)
	}
	return readerpb.NewReaderServiceClient(conn)
}

// Nothing is sent that was not asked for, nor more of it; what does not fit is
// announced; records are contiguous; and all room is given back (I1, I8).
func TestFollowSendsWhatIsAskedFor(t *testing.T) {
	w, s := tenRecords(t, Config{})
	c := w.serve()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	up, err := c.Follow(ctx)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(first *novapb.SubscribeRequest, room uint64) *readerpb.FollowResponse {
		t.Helper()
		if err := up.Send(&readerpb.FollowRequest{Subscribe: first, Room: room}); err != nil {
			t.Fatal(err)
		}
		res, err := up.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	res := ask(&novapb.SubscribeRequest{Bucket: "b", Stream: "s", HeartbeatMs: 60000}, 10)
	if res.GetMessage() != nil || res.GetNeeds() <= 10 {
		t.Fatalf("a room of 10 bytes: %v", res)
	}
	next := uint64(0)
	for next < 10 {
		room := res.GetNeeds() // of the first: each has one record, or more if they are small
		res := ask(nil, room)
		if n := len(res.GetMessage().GetRecords()); n == 0 {
			t.Fatalf("at %d: %v", next, res)
		}
		for _, r := range res.GetMessage().GetRecords() {
			if r.GetSeq() != next {
				t.Fatalf("record %d where %d is due", r.GetSeq(), next)
			}
			next++
		}
	}
	w.chunk(s, numbered(10, 1)...)
	if res := ask(nil, 1<<20); len(res.GetMessage().GetRecords()) != 1 || res.GetMessage().GetNextSeq() != 11 {
		t.Fatalf("at the tail: %v", res)
	}
	if err := up.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := up.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the end: %v", err)
	}
	eventually(t, "all room is given back", func() bool { return w.svc.delivery.Used() == 0 })
}

// A subscription that is not asked for anything ends with its caller, and gives
// back its room; a first message without a subscription is refused.
func TestFollowEndsWithItsCaller(t *testing.T) {
	w, _ := tenRecords(t, Config{})
	c := w.serve()
	ctx, cancel := context.WithCancel(t.Context())
	up, err := c.Follow(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := up.Send(&readerpb.FollowRequest{Subscribe: &novapb.SubscribeRequest{Bucket: "b", Stream: "s"}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is open", func() bool { return w.svc.delivery.Used() > 0 })
	cancel()
	eventually(t, "all room is given back", func() bool { return w.svc.delivery.Used() == 0 })

	up, err = c.Follow(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := up.Send(&readerpb.FollowRequest{Room: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := up.Recv(); reason.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
}

// A wait for records ends when there are some, and holds none of them.
func TestAwaitRecords(t *testing.T) {
	w, s := tenRecords(t, Config{})
	read := &novapb.ReadRequest{Bucket: "b", Stream: "s", Start: &novapb.ReadRequest_Seq{Seq: 10}, WaitMs: 50}
	res, err := w.svc.AwaitRecords(t.Context(), &readerpb.AwaitRecordsRequest{Read: read})
	if err != nil || res.GetFound() {
		t.Fatalf("%v, %v", res, err)
	}
	read.WaitMs = 60000
	done := make(chan error, 1)
	go func() {
		res, err := w.svc.AwaitRecords(t.Context(), &readerpb.AwaitRecordsRequest{Read: read})
		if err == nil && !res.GetFound() {
			err = io.ErrNoProgress
		}
		done <- err
	}()
	w.chunk(s, numbered(10, 1)...)
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(limit):
		t.Error("it waits still")
	}
}
