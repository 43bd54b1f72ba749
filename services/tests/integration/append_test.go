package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

func TestAppendAndReadBack(t *testing.T) {
	eachShape(t, func(t *testing.T, d deployment, c *client) {
		c.create(t, "s", nil)
		c.append(t, 0, "s", "a", "b")
		big := strings.Repeat("x", 1<<20)
		c.append(t, 2, "s", "", big)
		req := request("s", "with headers")
		req.Records[0].Headers = []*novapb.Header{{Name: []byte("k"), Value: []byte{0, 255}}, {Name: []byte("k")}, {Name: []byte("a"), Value: []byte("z")}}
		if err := c.appendErr(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		for range 2 { // from the tail window, then from storage
			c.expect(t, "s", 0, "a", "b", "", big, "with headers")
			got, err := c.readAll(t.Context(), "s", 4)
			if err != nil {
				t.Fatal(err)
			}
			for i, h := range got[0].GetHeaders() {
				if w := req.Records[0].Headers[i]; !bytes.Equal(h.GetName(), w.GetName()) || !bytes.Equal(h.GetValue(), w.GetValue()) {
					t.Fatalf("header %d is %v, want %v", i, h, w)
				}
			}
			if tail := c.tail(t, "s"); tail.GetTail() != 5 || tail.GetFirstSeq() != 0 || tail.GetSealed() {
				t.Fatalf("tail %v", tail)
			}
			d.restart(t)
			c = dial(t, d.address())
		}
		c.append(t, 5, "s", "after the restarts")
		c.mustVerify(t)
	})
}

// Acknowledgements, pages and tail checks tell one content hash.
func TestContentHashIsOne(t *testing.T) {
	eachShape(t, func(t *testing.T, d deployment, c *client) {
		c.create(t, "s", nil)
		c.append(t, 0, "s", "a")
		ack := c.append(t, 1, "s", "b", "c")
		if h := c.tail(t, "s").GetContentHash(); h != ack.GetContentHash() {
			t.Fatalf("tail has hash %016x, the ack %016x", h, ack.GetContentHash())
		}
		d.restart(t)
		c = dial(t, d.address())
		if h := c.tail(t, "s").GetContentHash(); h != ack.GetContentHash() {
			t.Fatalf("after a restart the tail has hash %016x, the ack %016x", h, ack.GetContentHash())
		}
		res, err := c.reads.Read(t.Context(), &novapb.ReadRequest{Bucket: bucket, Stream: "s", Start: &novapb.ReadRequest_Seq{Seq: 1}})
		if err != nil || res.GetHashAfter() != ack.GetContentHash() {
			t.Fatalf("page ends with hash %016x (%v), want %016x", res.GetHashAfter(), err, ack.GetContentHash())
		}
	})
}

func TestConcurrentAppendsAreContiguous(t *testing.T) {
	eachShape(t, func(t *testing.T, _ deployment, c *client) {
		c.create(t, "s", nil)
		const writers, each = 16, 25
		at := make([][]uint64, writers)
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				for i := range each {
					res, err := c.appends.Append(t.Context(), request("s", fmt.Sprintf("%d/%d/a", w, i), fmt.Sprintf("%d/%d/b", w, i)))
					if err != nil {
						t.Errorf("append: %v", err)
						return
					}
					at[w] = append(at[w], res.GetAck().GetFirstSeq())
				}
			})
		}
		wg.Wait()
		got, err := c.readAll(t.Context(), "s", 0)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != 2*writers*each {
			t.Fatalf("%d records, want %d", len(got), 2*writers*each)
		}
		for w := range at {
			for i, first := range at[w] {
				for k, letter := range []string{"a", "b"} {
					if want := fmt.Sprintf("%d/%d/%s", w, i, letter); string(got[first+uint64(k)].GetBody()) != want {
						t.Fatalf("record %d is %q, want %q", first+uint64(k), got[first+uint64(k)].GetBody(), want)
					}
				}
			}
		}
		c.mustVerify(t)
	})
}

// session opens an append session and returns it with its first answer.
func (c *client) session(ctx context.Context, open *novapb.AppendSessionOpen) (novapb.AppendService_AppendSessionClient, *novapb.AppendSessionOpened, error) {
	open.Bucket = bucket
	s, err := c.appends.AppendSession(ctx)
	if err != nil {
		return nil, nil, err
	}
	if err := s.Send(&novapb.AppendSessionRequest{Message: &novapb.AppendSessionRequest_Open{Open: open}}); err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	res, err := s.Recv()
	return s, res.GetOpened(), err
}

func batch(b *novapb.AppendSessionBatch) *novapb.AppendSessionRequest {
	return &novapb.AppendSessionRequest{Message: &novapb.AppendSessionRequest_Batch{Batch: b}}
}

func TestSessionPipelines(t *testing.T) {
	eachShape(t, func(t *testing.T, _ deployment, c *client) {
		id := c.create(t, "s", nil)
		c.append(t, 0, "s", "before")
		ses, opened, err := c.session(within(t, 30*time.Second), &novapb.AppendSessionOpen{Stream: "s"})
		if err != nil || opened.GetStreamId() != id || opened.GetTail() != 1 {
			t.Fatalf("opened %v, %v", opened, err)
		}
		want := []string{"before"}
		const n = 200
		for i := range n {
			want = append(want, fmt.Sprint("r", i))
			if err := ses.Send(batch(&novapb.AppendSessionBatch{Records: records(want[i+1])})); err != nil {
				t.Fatal(err)
			}
		}
		if err := ses.CloseSend(); err != nil {
			t.Fatal(err)
		}
		for i := range uint64(n) {
			res, err := ses.Recv()
			if err != nil || res.GetBatchIndex() != i || res.GetAck().GetFirstSeq() != i+1 {
				t.Fatalf("answer %d: %v, %v", i, res, err)
			}
		}
		if _, err := ses.Recv(); !errors.Is(err, io.EOF) {
			t.Fatalf("the session ended with %v", err)
		}
		c.expect(t, "s", 0, want...)
	})
}

// After the first failure nothing of a session is stored, and each batch is
// told so.
func TestSessionStopsAtItsFirstFailure(t *testing.T) {
	eachShape(t, func(t *testing.T, _ deployment, c *client) {
		c.create(t, "s", nil)
		ses, _, err := c.session(within(t, 30*time.Second), &novapb.AppendSessionOpen{Stream: "s"})
		if err != nil {
			t.Fatal(err)
		}
		batches := []*novapb.AppendSessionBatch{
			{Records: records("a")},
			{Records: records("no"), MatchSeqPresence: &novapb.AppendSessionBatch_MatchSeq{MatchSeq: uint64(7)}},
			{Records: records("no")},
			{Records: records("no"), MatchSeqPresence: &novapb.AppendSessionBatch_MatchSeq{MatchSeq: uint64(1)}},
		}
		for _, b := range batches {
			if err := ses.Send(batch(b)); err != nil {
				break // the session may have ended already
			}
		}
		_ = ses.CloseSend()
		res, err := ses.Recv()
		if err != nil || res.GetAck() == nil {
			t.Fatalf("first answer: %v, %v", res, err)
		}
		res, err = ses.Recv()
		if f := res.GetFailure(); err != nil || f.GetReason() != string(reason.SeqMismatch) || f.GetCode() != int32(codes.FailedPrecondition) || f.GetOutcome() != novapb.Outcome_OUTCOME_NOT_COMMITTED {
			t.Fatalf("second answer: %v, %v", res, err)
		}
		for i := 2; ; i++ {
			res, err = ses.Recv()
			if err != nil {
				wantErr(t, err, codes.FailedPrecondition, reason.SeqMismatch)
				wantNumber(t, err, reason.KeyTail, 1)
				break
			}
			if f := res.GetFailure(); f.GetOutcome() != novapb.Outcome_OUTCOME_NOT_COMMITTED || res.GetBatchIndex() != uint64(i) {
				t.Fatalf("answer %d: %v", i, res)
			}
		}
		c.expect(t, "s", 0, "a")
	})
}

// One of many who want the same number gets it; the others are told the tail
// as it is.
func TestMatchSeqHasOneWinner(t *testing.T) {
	eachShape(t, func(t *testing.T, _ deployment, c *client) {
		c.create(t, "s", nil)
		const racers = 100
		for round := range uint64(3) {
			var mu sync.Mutex
			var winner []string
			var wg sync.WaitGroup
			for i := range racers {
				wg.Go(func() {
					req := request("s", fmt.Sprint(round, "/", i))
					req.SetMatchSeq(round)
					err := c.appendErr(t.Context(), req)
					if err == nil {
						mu.Lock()
						winner = append(winner, string(req.GetRecords()[0].GetBody()))
						mu.Unlock()
						return
					}
					tail, ok := reason.Number(err, reason.KeyTail)
					if reason.Of(err) != reason.SeqMismatch || !ok || tail != round+1 || reason.OutcomeOf(err) != reason.NotCommitted {
						t.Errorf("loser: %v, tail %d", err, tail)
					}
				})
			}
			wg.Wait()
			if len(winner) != 1 {
				t.Fatalf("round %d: %d winners", round, len(winner))
			}
			c.expect(t, "s", round, winner...)
		}
	})
}

func TestRefusedRequests(t *testing.T) {
	eachShape(t, func(t *testing.T, _ deployment, c *client) {
		c.create(t, "s", nil)
		wantRefused(t, c.appendErr(t.Context(), request("missing", "a")), codes.NotFound, reason.StreamNotFound)
		wantErr(t, c.appendErr(t.Context(), &novapb.AppendRequest{Bucket: "nothing-here", Stream: "s", Records: records("a")}), codes.NotFound, reason.BucketNotFound)
		wantErr(t, c.appendErr(t.Context(), request("s")), codes.InvalidArgument, "")
		wantErr(t, c.appendErr(t.Context(), request("s", strings.Repeat("x", 1<<20+1))), codes.InvalidArgument, "")
		req := request("s", "a")
		req.StreamId = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
		wantErr(t, c.appendErr(t.Context(), req), codes.NotFound, reason.StreamNotFound)
		c.expect(t, "s", 0)
	})
}
