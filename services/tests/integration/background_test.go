package integration

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// The background is seen from outside, in one process and in many: what was appended
// is in the figures, is absorbed and settled, and every process answers.
func TestBackgroundIsSeen(t *testing.T) {
	for _, shape := range []struct {
		name  string
		start func(t *testing.T) settling
		slow  bool
	}{
		{"memory", func(t *testing.T) settling { return settlingNode(t, newStorage().config) }, false},
		{"split", settlingSplit, true},
	} {
		if shape.slow && testing.Short() {
			continue
		}
		t.Run(shape.name, func(t *testing.T) {
			s := shape.start(t)
			c := dial(t, s.address())
			id := c.create(t, "s", nil)
			const size, batches = 10_000, 5
			source := rand.New(rand.NewPCG(1, 2))
			for i := range batches {
				body := make([]byte, size) // that does not compress
				for k := range body {
					body[k] = byte('0' + source.Uint32()%64)
				}
				c.append(t, uint64(i), "s", string(body))
			}
			admin := novapb.NewAdminServiceClient(c.conn)
			s.await(t, map[string]uint64{id: batches})
			eventually(t, readyLimit, func() error {
				b, err := admin.GetBackground(t.Context(), &novapb.GetBackgroundRequest{})
				if err != nil {
					return err
				}
				if len(b.GetUnanswered()) > 0 || b.GetSettlers() == 0 || b.GetReapers() == 0 {
					return fmt.Errorf("no answer from %v", b.GetUnanswered())
				}
				if at := time.UnixMilli(b.GetNow()); time.Since(at).Abs() > time.Minute {
					return fmt.Errorf("gathered at %v", at)
				}
				tot := b.GetTotals()
				switch {
				case tot.GetAppendedBytes() < size*batches || tot.GetAppendedBytes() > 2*size*batches:
					return fmt.Errorf("%d bytes appended, want about %d", tot.GetAppendedBytes(), size*batches)
				case tot.GetTransitWrittenBytes() < size*batches/2, tot.GetSettledBytes() < size*batches/2, tot.GetSettledWrittenBytes() == 0:
					return fmt.Errorf("written: %v", tot)
				case tot.GetWriteAmplification() <= 1 || tot.GetWriteAmplification() > 10:
					return fmt.Errorf("amplification %v", tot.GetWriteAmplification())
				case time.Since(time.UnixMilli(tot.GetSettledSince())) > 10*time.Minute:
					return fmt.Errorf("settled since %v", tot.GetSettledSince())
				case tot.GetUnsettledBytes() > 0 || tot.GetSettleLagMs() > 0 || tot.GetBlockedChains() > 0:
					return fmt.Errorf("still waiting: %v", tot)
				}
				settled := uint64(0)
				for _, ch := range b.GetChains() {
					if !ch.GetKnown() || ch.GetState() != "open" && ch.GetState() != "sealed" {
						return fmt.Errorf("chain %v", ch)
					}
					settled += ch.GetSettledTo()
				}
				if settled == 0 {
					return fmt.Errorf("no chain is settled: %v", b.GetChains())
				}
				if len(b.GetQueues()) != len(catalog.Queues()) {
					return fmt.Errorf("queues %v", b.GetQueues())
				}
				for _, q := range b.GetQueues() {
					// Every chain in use has its marker.
					if q.GetQueue() == "chain" && (int(q.GetWaiting()) < len(b.GetChains()) || q.GetOldestAt() <= b.GetNow() && q.GetDue()+q.GetInWork() == 0) {
						return fmt.Errorf("queue %v of %d chains", q, len(b.GetChains()))
					}
					if q.GetDead() > 0 {
						return fmt.Errorf("queue %v", q)
					}
				}
				return nil
			})
			if res, err := admin.ListDeadLetters(t.Context(), &novapb.ListDeadLettersRequest{}); err != nil || len(res.GetLetters()) > 0 || res.GetHasMore() {
				t.Errorf("dead letters: %v, %v", res, err)
			}
			res, err := admin.ReviveDeadLetter(t.Context(), &novapb.ReviveDeadLetterRequest{Queue: "reclaim", DueId: stream.NewID().String()})
			if err != nil || res.GetRevived() != 0 {
				t.Errorf("of what was not set aside: %v, %v", res, err)
			}
			_, err = admin.ReviveDeadLetter(t.Context(), &novapb.ReviveDeadLetterRequest{Queue: "reclaims"})
			wantErr(t, err, codes.InvalidArgument, reason.Reason(""))
		})
	}
}
