package cache

import (
	"bytes"
	"context"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/objectstore/mem"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/cache/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, objects objectstore.Store, bytes int64) *Service {
	t.Helper()
	s, err := New(Config{Bytes: bytes}, Deps{Objects: objects})
	if err != nil {
		t.Fatal(err)
	}
	run(t, s)
	return s
}

// run runs a cache until the test ends, or stop is called.
func run(t *testing.T, s *Service) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

func put(t *testing.T, o objectstore.Store, key string, size int) []byte {
	t.Helper()
	body := make([]byte, size)
	for i := range body {
		body[i] = byte(i*7 + i>>8)
	}
	if _, err := o.PutIfAbsent(context.Background(), key, body); err != nil {
		t.Fatal(err)
	}
	return body
}

func TestEveryRangeOfAnObjectComesBackAsItIs(t *testing.T) {
	objects := mem.New()
	body := put(t, objects, "chain/a/0", 3*PageBytes+100)
	s := start(t, objects, 64<<20)
	for _, c := range []struct{ offset, length int }{
		{0, 1}, {0, PageBytes}, {PageBytes - 1, 2}, {PageBytes, PageBytes}, {5, 2*PageBytes + 7}, {3 * PageBytes, 100}, {3 * PageBytes, 5000}, {0, 3*PageBytes + 100},
	} {
		res, err := s.ReadRange(context.Background(), &cachepb.ReadRangeRequest{Object: "chain/a/0", Offset: uint64(c.offset), Length: uint64(c.length)})
		if err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		want := body[c.offset:min(c.offset+c.length, len(body))]
		if !bytes.Equal(res.GetData(), want) || res.GetObjectSize() != uint64(len(body)) {
			t.Fatalf("%+v: got %d bytes of %d", c, len(res.GetData()), res.GetObjectSize())
		}
	}
}

func TestADeletedObjectIsGoneFromStoreAndMemory(t *testing.T) {
	objects := mem.New()
	put(t, objects, "chain/a/0", 2*PageBytes)
	put(t, objects, "chain/a/1", 10)
	s := start(t, objects, 64<<20)
	read := func(o string) error {
		_, err := s.ReadRange(context.Background(), &cachepb.ReadRangeRequest{Object: o, Offset: 0, Length: MaxReadBytes})
		return err
	}
	if err := read("chain/a/0"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.DeleteObjects(context.Background(), &cachepb.DeleteObjectsRequest{Objects: []string{"chain/a/0"}}); err != nil {
		t.Fatal(err)
	}
	if err := read("chain/a/0"); !reason.Is(err, reason.ObjectNotFound) {
		t.Fatalf("got %v", err)
	}
	if err := read("chain/a/1"); err != nil {
		t.Fatalf("another object went with it: %v", err)
	}
}

func TestAFailedReadIsTypedAndNotRemembered(t *testing.T) {
	faults := fault.New(mem.New())
	put(t, faults, "chain/a/0", 10)
	s := start(t, faults, 64<<20)
	faults.Script(fault.Rule{Op: fault.GetRange, Nth: 1, Do: fault.FailBefore})
	req := &cachepb.ReadRangeRequest{Object: "chain/a/0", Offset: 0, Length: 10}
	if _, err := s.ReadRange(context.Background(), req); reason.Code(err) != codes.Unavailable {
		t.Fatalf("got %v", err)
	}
	if _, err := s.ReadRange(context.Background(), req); err != nil {
		t.Fatalf("the failure stayed: %v", err)
	}
}

func TestMemoryStaysWithinTheLimit(t *testing.T) {
	objects := mem.New()
	put(t, objects, "chain/a/0", 64*PageBytes)
	s := start(t, objects, 8<<20)
	for i := range 64 {
		if _, err := s.ReadRange(context.Background(), &cachepb.ReadRangeRequest{Object: "chain/a/0", Offset: uint64(i * PageBytes), Length: 10}); err != nil {
			t.Fatal(err)
		}
	}
	s.pages.CleanUp()
	if w := s.pages.WeightedSize(); w > 8<<20 {
		t.Fatalf("holds %d bytes, the limit is %d", w, 8<<20)
	}
}

func TestBadRangesAreRefusedByField(t *testing.T) {
	s := start(t, mem.New(), 8<<20)
	for _, req := range []*cachepb.ReadRangeRequest{
		{Object: "", Length: 1}, {Object: "x", Length: 0}, {Object: "x", Length: MaxReadBytes + 1}, {Object: "x", Offset: 1 << 60, Length: 1},
	} {
		if _, err := s.ReadRange(context.Background(), req); reason.Code(err) != codes.InvalidArgument {
			t.Errorf("%v: got %v", req, err)
		}
	}
	if _, err := s.DeleteObjects(context.Background(), &cachepb.DeleteObjectsRequest{}); reason.Code(err) != codes.InvalidArgument {
		t.Errorf("got %v", err)
	}
}
