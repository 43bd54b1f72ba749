//go:build soak

package failover

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
	"github.com/nova-stream/nova/services/tests/constellation"
)

// flow is a session that appends at a steady pace, and what was acknowledged of
// it by when.
type flow struct {
	session *sdk.Session

	mu       sync.Mutex
	acked    uint64
	last     time.Time
	longest  time.Duration // between two acknowledgements, since clear
	received []uint64      // acknowledged, once per tick
}

const (
	flowTick    = 100 * time.Millisecond
	flowPace    = 10 * time.Millisecond
	flowRecords = 20
)

func startFlow(ctx context.Context, c *sdk.Client, name string, work *sync.WaitGroup) *flow {
	f := &flow{last: time.Now()}
	f.session = c.OpenSession(ctx, sdk.SessionConfig{Bucket: bucket, Stream: name, Acked: func(a *novapb.AppendAck) {
		f.mu.Lock()
		defer f.mu.Unlock()
		now := time.Now()
		f.longest, f.last, f.acked = max(f.longest, now.Sub(f.last)), now, a.GetNextSeq()
	}})
	work.Go(func() {
		body := []byte(strings.Repeat("x", 200))
		records := make([]*novapb.AppendRecord, flowRecords)
		for i := range records {
			records[i] = &novapb.AppendRecord{Body: body}
		}
		pace := time.NewTicker(flowPace)
		defer pace.Stop()
		for ctx.Err() == nil {
			<-pace.C
			if f.session.Send(ctx, records) != nil {
				return
			}
		}
	})
	work.Go(func() {
		tick := time.NewTicker(flowTick)
		defer tick.Stop()
		for ctx.Err() == nil {
			<-tick.C
			f.mu.Lock()
			f.received = append(f.received, f.acked)
			f.mu.Unlock()
		}
	})
	return f
}

// clear begins a measurement.
func (f *flow) clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.longest, f.received = 0, nil
}

// rates are records acknowledged per second of all flows, second by second, and
// the longest silence of any.
func rates(flows []*flow) (all []float64, silence time.Duration) {
	const second = int(time.Second / flowTick)
	for _, f := range flows {
		f.mu.Lock()
		silence = max(silence, f.longest)
		for i := second; i < len(f.received); i += second {
			n := i/second - 1
			if n == len(all) {
				all = append(all, 0)
			}
			all[n] += float64(f.received[i] - f.received[i-second])
		}
		f.mu.Unlock()
	}
	return all, silence
}

// Every sequencer and chain-writer is drained, restarted and waited for, one
// after the other, under a steady load: how much that costs.
func TestSoakRollingRestart(t *testing.T) {
	const patience = 2 * time.Minute
	c := split.For(t)
	doors := splitDoors(t, c)
	(&plan{patience: patience}).makeBucket(t, doors[0])
	sender, err := sdk.Dial(c.Endpoint("NOVA_ADDR"), sdk.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sender.Close() }()
	ctx, stop := context.WithCancel(t.Context())
	var work sync.WaitGroup
	defer work.Wait()
	defer stop()
	var flows []*flow
	for i := range 8 {
		name := fmt.Sprintf("rolling-%d-%d", time.Now().UnixNano(), i)
		if err := within(ctx, patience, func(ctx context.Context) error {
			_, err := doors[0].streams.CreateStream(ctx, &novapb.CreateStreamRequest{Bucket: bucket, Stream: name, RequestToken: name})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		flows = append(flows, startFlow(ctx, sender, name, &work))
	}
	measure := func(what string, base float64, during func()) float64 {
		for _, f := range flows {
			f.clear()
		}
		during()
		all, silence := rates(flows)
		sum, least := 0.0, -1.0
		for _, r := range all {
			sum += r
			if least < 0 || r < least {
				least = r
			}
		}
		mean := sum / float64(len(all))
		if base == 0 {
			base = mean
		}
		t.Logf("%-28s mean %.2f, worst second %.2f of the rate before; longest silence of a stream %v", what, mean/base, least/base, silence.Round(time.Millisecond))
		return mean
	}
	measure("warming up", 0, func() { time.Sleep(5 * time.Second) })
	base := measure("nothing happens", 0, func() { time.Sleep(15 * time.Second) })
	for _, name := range []string{"sequencer-1", "sequencer-2", "chain-writer-1", "chain-writer-2"} {
		measure(name+" drains and restarts", base, func() {
			if err := drainAndWait(ctx, c, doors[0], name); err != nil {
				t.Fatal(err)
			}
			if kindOf(name) == "sequencer" {
				logPauses(t, c, name)
			}
			if err := c.Down(ctx, name); err != nil {
				t.Fatal(err)
			}
			if err := c.Restart(ctx, name); err != nil {
				t.Fatal(err)
			}
			time.Sleep(3 * splitLease) // what moves back does
		})
	}
	measure("a sequencer stops undrained", base, func() {
		if err := c.Down(ctx, "sequencer-1"); err != nil {
			t.Fatal(err)
		}
		if err := c.Restart(ctx, "sequencer-1"); err != nil {
			t.Fatal(err)
		}
	})
}

// drainAndWait drains a node; a sequencer until it leads nothing, a chain-writer
// for as long as moving takes.
func drainAndWait(ctx context.Context, c *constellation.Constellation, d *door, name string) error {
	id := name + "." + kindOf(name)
	if _, err := d.admin.DrainNode(ctx, &novapb.DrainNodeRequest{NodeId: id}); err != nil {
		return fmt.Errorf("drain %s: %w", id, err)
	}
	if kindOf(name) != "sequencer" {
		time.Sleep(2 * splitLease)
		return nil
	}
	address := c.Endpoint("NOVA_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_")) + "_GRPC")
	return within(ctx, 2*time.Minute, func(ctx context.Context) error {
		for start, more := uint32(0), true; more; {
			res, err := d.admin.ListShards(ctx, &novapb.ListShardsRequest{Start: start})
			if err != nil {
				return err
			}
			for _, s := range res.GetShards() {
				if start = s.GetShard() + 1; s.GetLeader() == address && s.GetState() != "released" {
					return fmt.Errorf("%s still leads shard %d", name, s.GetShard())
				}
			}
			more = res.GetHasMore()
		}
		return nil
	})
}

// logPauses prints the bounds below which handoff pauses of a sequencer were.
func logPauses(t *testing.T, c *constellation.Constellation, name string) {
	t.Helper()
	address := c.Endpoint("NOVA_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_")) + "_METRICS")
	res, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	const bucketLine = "nova_sequencer_handoff_duration_seconds_bucket{"
	var bounds []string
	var counts []float64
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		if !strings.HasPrefix(lines.Text(), bucketLine) {
			continue
		}
		_, rest, _ := strings.Cut(lines.Text(), `le="`)
		bound, value, _ := strings.Cut(rest, `"`)
		_, value, _ = strings.Cut(value, "} ")
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatal(err)
		}
		bounds, counts = append(bounds, bound), append(counts, n)
	}
	if len(counts) == 0 || counts[len(counts)-1] == 0 {
		t.Errorf("%s handed nothing over", name)
		return
	}
	total := counts[len(counts)-1]
	below := func(share float64) string {
		for i, n := range counts {
			if n >= share*total {
				return bounds[i]
			}
		}
		return "+Inf"
	}
	t.Logf("%s handed over %.0f shards: p50 below %s s, p99 below %s s", name, total, below(.5), below(.99))
}
