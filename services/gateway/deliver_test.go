package gateway

import (
	"context"
	"log/slog"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/rpc/wire"
	"github.com/nova-stream/nova/proto/gen/nova/reader/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// lateReader has one record, once it was waited for.
type lateReader struct {
	novapb.ReadServiceClient
	readerpb.ReaderServiceClient
	delivery *wire.Budget
	there    bool
	counted  int64 // when a page was asked for last
}

func (l *lateReader) Read(context.Context, *novapb.ReadRequest, ...grpc.CallOption) (*novapb.ReadResponse, error) {
	l.counted = l.delivery.Used()
	if !l.there {
		return &novapb.ReadResponse{NextSeq: 7, Tail: 7}, nil
	}
	return &novapb.ReadResponse{Records: []*novapb.Record{{Seq: 7, Body: []byte("x")}}, NextSeq: 8, Tail: 8}, nil
}

func (l *lateReader) AwaitRecords(context.Context, *readerpb.AwaitRecordsRequest, ...grpc.CallOption) (*readerpb.AwaitRecordsResponse, error) {
	l.there = true
	return &readerpb.AwaitRecordsResponse{Found: true}, nil
}

func readingFrom(t *testing.T, l *lateReader) *Service {
	l.delivery = wire.NewBudget(wire.BudgetConfig{Bytes: MinDeliveryBytes})
	return &Service{
		cfg:  Config{DeliveryBytes: MinDeliveryBytes, Patience: time.Minute},
		read: l, readers: l, delivery: l.delivery, running: t.Context(), log: slog.New(slog.DiscardHandler),
	}
}

// A read that waited gives back the room of both its pages (I8).
func TestWaitedReadsGiveBackTheirRoom(t *testing.T) {
	for _, found := range []bool{false, true} {
		l := &lateReader{there: found}
		s := readingFrom(t, l)
		reply := &wire.Replying{}
		res, err := s.Read(reply.In(t.Context()), &novapb.ReadRequest{WaitMs: 1000})
		if err != nil || len(res.GetRecords()) != 1 {
			t.Fatalf("%v, %v", res, err)
		}
		if s.delivery.Used() == 0 {
			t.Error("the answer is not counted")
		}
		reply.Free()
		if used := s.delivery.Used(); used != 0 {
			t.Errorf("%d bytes are not given back", used)
		}
	}
}

// Room for a page is as large as a page may be, whatever number of records is asked
// for (I8).
func TestRoomForAPage(t *testing.T) {
	for count, want := range map[uint64]int64{
		0: 2 * mostRecord, 1: 2 * mostRecord, 2: 4 * mostRecord, 3: 2 * mostPage, 1000: 2 * mostPage,
		// Times the largest record these are more than a number holds.
		1 << 52: 2 * mostPage, 1<<52 + 1: 2 * mostPage, 1 << 63: 2 * mostPage, math.MaxUint64: 2 * mostPage,
	} {
		l := &lateReader{there: true}
		req := &novapb.ReadRequest{}
		req.SetCount(count)
		if _, err := readingFrom(t, l).Read(t.Context(), req); err != nil || l.counted != want {
			t.Errorf("%d records: room for %d, want %d; %v", count, l.counted, want, err)
		}
	}
}

// ledSome answers at once, but not of a stream without a leader.
type ledSome struct{ novapb.ReadServiceClient }

func (ledSome) Read(ctx context.Context, r *novapb.ReadRequest, _ ...grpc.CallOption) (*novapb.ReadResponse, error) {
	if r.GetStream() == "no leader" {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &novapb.ReadResponse{}, nil
}

// Reads that nobody answers hold up others for a moment only, however many there
// are, and no more of them are ended than are in the way.
func TestReadsThatHangDoNotHoldUpOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const hang = MinDeliveryBytes / (2 * mostPage)
		s := readingFrom(t, &lateReader{})
		s.read = ledSome{}
		var all sync.WaitGroup
		errs := make([]error, hang)
		for i := range errs {
			all.Go(func() { _, errs[i] = s.Read(t.Context(), &novapb.ReadRequest{Stream: "no leader"}) })
		}
		synctest.Wait()
		start := time.Now()
		for range 100 {
			if _, err := s.Read(t.Context(), &novapb.ReadRequest{Stream: "led"}); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took > 6*time.Second {
			t.Errorf("others waited %v", took)
		}
		all.Wait()
		over := 0
		for _, err := range errs {
			if reason.Is(err, reason.OverBudget) {
				over++
			}
		}
		if over != 1 || s.delivery.Used() != 0 {
			t.Errorf("%d of %d were ended, %d bytes are left: %v", over, hang, s.delivery.Used(), errs)
		}
	})
}
