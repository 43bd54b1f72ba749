package failover

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// elder is a stream that lives as long as a run: what it stored is settled many
// times over, and its head needs pages. It has one writer, which knows what must
// be there.
type elder struct {
	stream string
	made   bool
	sent   int            // bodies
	acked  map[uint64]int // body, by number
	trim   uint64
	next   uint64 // tail, as last told
}

// elderKeeps is how many records it keeps at least: many enough for pages of refs.
const elderKeeps = 2500

func newElder(stream string) *elder { return &elder{stream: stream, acked: map[uint64]int{}} }

func (e *elder) body(n int) string {
	return fmt.Sprintf("%s %d %s", e.stream, n, strings.Repeat("y", n%300))
}

// grow appends until the time is over. It trims now and then.
func (e *elder) grow(ctx context.Context, doors []*door, until time.Time) {
	for i := 0; time.Now().Before(until); i++ {
		d := doors[i%len(doors)]
		call, cancel := context.WithTimeout(ctx, 2*time.Second)
		if !e.made {
			_, err := d.streams.CreateStream(call, &novapb.CreateStreamRequest{Bucket: bucket, Stream: e.stream, RequestToken: e.stream})
			e.made = err == nil
		}
		n := e.sent
		e.sent++
		if res, err := d.appends.Append(call, &novapb.AppendRequest{
			Bucket: bucket, Stream: e.stream, Records: []*novapb.AppendRecord{{Body: []byte(e.body(n))}},
		}); err == nil {
			e.acked[res.GetAck().GetFirstSeq()] = n
			e.next = res.GetAck().GetNextSeq()
		}
		if n%50 == 49 && e.next > elderKeeps {
			seq := max(e.trim, e.next-elderKeeps)
			if _, err := d.appends.Trim(call, &novapb.TrimRequest{Bucket: bucket, Stream: e.stream, Seq: seq}); err == nil {
				e.trim = seq
			}
		}
		cancel()
		time.Sleep(10 * time.Millisecond) // its pace
	}
}

// check reads all of it: every body that was acknowledged is where it was said to
// be, and none is there twice.
func (e *elder) check(ctx context.Context, d *door, patience time.Duration) error {
	if !e.made {
		return nil
	}
	seen, at, first := map[string]uint64{}, uint64(0), true
	var wrong error
	err := within(ctx, patience, func(ctx context.Context) error {
		for {
			req := &novapb.ReadRequest{Bucket: bucket, Stream: e.stream, Start: &novapb.ReadRequest_Seq{Seq: at}, Clamp: first}
			res, err := d.reads.Read(ctx, req)
			if reason.Is(err, reason.Trimmed) {
				first = true // by a trim whose answer was lost
				continue
			}
			if err != nil {
				return err
			}
			for _, r := range res.GetRecords() {
				if !first && r.GetSeq() != at {
					wrong = fmt.Errorf("record %d follows %d", r.GetSeq(), at-1)
					return nil
				}
				first, at = false, r.GetSeq()+1
				body := string(r.GetBody())
				if was, twice := seen[body]; twice {
					wrong = fmt.Errorf("%.40q is at %d and at %d", body, was, r.GetSeq())
					return nil
				}
				seen[body] = r.GetSeq()
				if n, ok := e.acked[r.GetSeq()]; ok && e.body(n) != body {
					wrong = fmt.Errorf("record %d is %.40q, %.40q was acknowledged", r.GetSeq(), body, e.body(n))
					return nil
				}
			}
			if len(res.GetRecords()) > 0 {
				continue
			}
			if at < e.next {
				return fmt.Errorf("it ends at %d, %d was acknowledged", at, e.next)
			}
			return nil
		}
	})
	return errors.Join(err, wrong)
}
