package failover

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// pulse appends to one stream without a pause and remembers when it was
// acknowledged.
type pulse struct {
	stream string
	doors  []*door

	mu    sync.Mutex
	began time.Time // of the append that was acknowledged last
	acked time.Time
	next  uint64
	wrong error
}

// run appends until ctx ends. A call that has no answer within a second is given
// up, as one that failed.
func (p *pulse) run(ctx context.Context) {
	for n := 0; ctx.Err() == nil; {
		call, cancel := context.WithTimeout(ctx, time.Second)
		began := time.Now()
		res, err := p.doors[n%len(p.doors)].appends.Append(call, &novapb.AppendRequest{
			Bucket: bucket, Stream: p.stream, Records: []*novapb.AppendRecord{{Body: []byte(p.stream)}},
		})
		cancel()
		if err != nil {
			n++ // another door
			time.Sleep(5 * time.Millisecond)
			continue
		}
		p.mu.Lock()
		if a := res.GetAck(); a.GetFirstSeq() < p.next {
			p.wrong = fmt.Errorf("%s: number %d is given again, %d is next", p.stream, a.GetFirstSeq(), p.next)
		}
		p.began, p.acked, p.next = began, time.Now(), res.GetAck().GetNextSeq()
		p.mu.Unlock()
		time.Sleep(2 * time.Millisecond)
	}
}

// after returns how long after t an append that began after it was acknowledged.
func (p *pulse) after(t time.Time) (time.Duration, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.wrong != nil:
		return 0, p.wrong
	case !p.began.After(t):
		return 0, fmt.Errorf("%s: no append was acknowledged since", p.stream)
	}
	return p.acked.Sub(t), nil
}

// silences are how long streams were silent, by the kind of process killed.
type silences map[string][]time.Duration

func (s silences) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-14s %6s %8s %8s", "killed", "n", "p50", "p100")
	for _, kind := range slices.Sorted(maps.Keys(s)) {
		all := slices.Sorted(slices.Values(s[kind]))
		fmt.Fprintf(&b, "\n%-14s %6d %8v %8v", kind, len(all), all[len(all)/2].Round(time.Millisecond), all[len(all)-1].Round(time.Millisecond))
	}
	return b.String()
}

// killRounds kills a process of each kind, rounds times, under load, and
// measures until each stream is acknowledged again.
func killRounds(t *testing.T, rounds int, kinds []string) silences {
	t.Helper()
	const streams, patience = 8, 2 * time.Minute
	r := rand.New(rand.NewPCG(seed(t), 0))
	c := split.For(t)
	n := &splitNemesis{Constellation: c, doors: splitDoors(t, c)}
	(&plan{patience: patience}).makeBucket(t, n.doors[0])
	var pulses []*pulse
	ctx, stop := context.WithCancel(t.Context())
	var work sync.WaitGroup
	defer work.Wait()
	defer stop()
	for i := range streams {
		p := &pulse{stream: fmt.Sprintf("pulse-%d-%d", time.Now().UnixNano(), i), doors: n.doors}
		if err := within(ctx, patience, func(ctx context.Context) error {
			_, err := n.doors[0].streams.CreateStream(ctx, &novapb.CreateStreamRequest{Bucket: bucket, Stream: p.stream, RequestToken: p.stream})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		pulses = append(pulses, p)
		work.Go(func() { p.run(ctx) })
	}
	all := silences{}
	for range rounds {
		for _, kind := range kinds {
			// Each begins with everything at work.
			if _, err := awaitPulses(ctx, pulses, time.Now(), patience); err != nil {
				t.Fatalf("before a %s is killed: %v", kind, err)
			}
			name, err := n.oneOf(ctx, kind, r)
			if err != nil {
				t.Fatal(err)
			}
			killed := time.Now()
			if err := c.Kill(name); err != nil {
				t.Fatal(err)
			}
			if server(kind) { // nobody stands in for it
				if err := n.revive(ctx, name); err != nil {
					t.Fatal(err)
				}
			}
			took, err := awaitPulses(ctx, pulses, killed, patience)
			if err != nil {
				t.Fatalf("%s was killed: %v", name, err)
			}
			all[kind] = append(all[kind], took...)
			if !server(kind) {
				if err := n.revive(ctx, name); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	return all
}

// awaitPulses waits until each stream was acknowledged after t.
func awaitPulses(ctx context.Context, pulses []*pulse, t time.Time, patience time.Duration) (took []time.Duration, err error) {
	for _, p := range pulses {
		if err := within(ctx, patience, func(context.Context) error {
			d, err := p.after(t)
			if err == nil {
				took = append(took, d)
			}
			return err
		}); err != nil {
			return nil, err
		}
	}
	return took, nil
}

// oneOf names a process of a kind: of those that decide, one that has work.
func (n *splitNemesis) oneOf(ctx context.Context, kind string, r *rand.Rand) (string, error) {
	if kind == "sequencer" || kind == "chain-writer" {
		leader, writer, err := n.busiest(ctx)
		if kind == "sequencer" {
			return leader, err
		}
		return writer, err
	}
	names, err := n.All()
	names = slices.DeleteFunc(names, func(name string) bool { return kindOf(name) != kind })
	if err != nil || len(names) == 0 {
		return "", fmt.Errorf("no process of kind %s: %w", kind, err)
	}
	return names[r.IntN(len(names))], nil
}

// server says whether a kind is one of the servers that Nova needs.
func server(kind string) bool { return slices.Contains(servers, kind) }

var servers = []string{"oxia", "consul", "s3"}

// A sequencer and a chain-writer are killed under load; streams go on. How long
// that may take is asserted by the soak, on a machine of its own.
func TestStreamsGoOnAfterKills(t *testing.T) {
	if testing.Short() {
		return // the long run kills
	}
	t.Logf("\n%v", killRounds(t, 1, []string{"sequencer", "chain-writer"}))
}
