package bench

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/libs/objectstore/mem"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// BenchmarkRows: calls to the metastore per 1 000 appended records at 1, 100, 1 000
// and 10 000 active streams, by what they are for, and per minute of a node at
// rest. Whoever appends calls 1 000 times per second with 10 records of 100 bytes,
// to the streams in turn; the object store takes 20 ms for a PUT, as remote ones do.
func BenchmarkRows(b *testing.B) {
	for _, k := range []struct{ streams, spans int }{{1, 20}, {100, 20}, {1000, 20}, {10_000, 0}} {
		b.Run(fmt.Sprint(k.streams), func(b *testing.B) {
			for b.Loop() {
				report(b, rowsPerRecord(b, load{streams: k.streams, calls: 20_000, perSecond: 1000, records: 10, spans: k.spans, rest: 30 * time.Second}))
			}
		})
	}
}

// load is what is measured.
type load struct {
	streams          int
	calls, perSecond int           // while absorption goes on
	records          int           // per call
	spans            int           // settled, each with one call to every stream; 0: no look at that
	rest             time.Duration // of the look at a node at rest
}

// rowsPerRecord has four parts, one after the other: a node that is at rest with all
// streams open, appends, settling, and reaping.
func rowsPerRecord(tb testing.TB, l load) map[string]float64 {
	b, n := newBackground(tb, slow{Store: mem.New(), delay: 20 * time.Millisecond})
	c := dial(tb, n.Addr())
	create(tb, c)
	openStreams(tb, c, l.streams)
	b.absorb()
	b.settle()
	b.reap()

	// Idle. The reaper that looks by itself is another one.
	polls := b.run(b.newReaper(5 * time.Second))
	b.take()
	begun := time.Now()
	time.Sleep(l.rest)
	idle, minutes := b.take(), time.Since(begun).Minutes()
	polls()
	figures := map[string]float64{
		"idle-node/min": idle.node.of() / minutes, "idle-absorb/min": idle.absorbs.of() / minutes, "idle-reap/min": idle.reaps.of() / minutes,
	}
	idle.tell(tb, "idle")

	// Appends and absorption.
	b.take()
	begun = time.Now()
	appendEvenly(tb, c, l)
	loaded, took := b.take(), time.Since(begun)
	loaded.tell(tb, "appends")
	thousands := float64(l.calls*l.records) / 1000
	atRest := func(perMinute float64) float64 { return perMinute * took.Minutes() }
	// What a node does at rest too: leases, and looks at others, shards and chains.
	looks := []string{"chain", "life", "shard Range", "constellation", "export"}
	figures["append/1000"] = (loaded.node.of() - loaded.node.of(looks...)) / thousands
	figures["looks/1000"] = max(loaded.node.of(looks...)-atRest(figures["idle-node/min"]), 0) / thousands
	figures["absorb/1000"] = max(loaded.absorbs.of()-atRest(figures["idle-absorb/min"]), 0) / thousands
	figures["PUTs/s"], figures["records/s"] = float64(len(loaded.flights))/took.Seconds(), float64(l.calls*l.records)/took.Seconds()
	figures["absorb/window"] = loaded.absorbs.of() / max(loaded.absorbs.of("directory Put"), 1)

	if l.spans == 0 {
		n.stop()
		return figures
	}
	// Settling, span by span, and then what is left behind.
	body := random(100)
	for range l.spans {
		appendEach(tb, c, l.streams, l.records, body)
		b.absorb()
		b.settle()
	}
	settled := b.take()
	settled.tell(tb, "settling")
	b.reap()
	reaped := b.take()
	reaped.tell(tb, "reaping")
	each := float64(l.streams * l.spans)
	figures["settle/stream-span"], figures["reap/stream-span"] = settled.settles.of()/each, reaped.reaps.of()/each
	// What that is for the records of a span of 10 minutes.
	perSpan := float64(l.perSecond*l.records) * 600 / float64(l.streams) / 1000
	figures["settle/1000"], figures["reap/1000"] = figures["settle/stream-span"]/perSpan, figures["reap/stream-span"]/perSpan
	figures["background/1000"] = figures["looks/1000"] + figures["absorb/1000"] + figures["settle/1000"] + figures["reap/1000"]
	n.stop()
	return figures
}

// taken is what the parts did since the last look.
type taken struct {
	node, absorbs, settles, reaps calls
	flights                       []putObject
}

func (b *background) take() taken {
	return taken{
		node: b.node.rows.take(), absorbs: b.absorbs.rows.take(), settles: b.settles.rows.take(), reaps: b.reaps.rows.take(),
		flights: b.node.objects.take()["chain"],
	}
}

// tell logs all calls, with -v.
func (t taken) tell(tb testing.TB, when string) {
	tb.Helper()
	if !testing.Verbose() {
		return
	}
	for _, p := range []struct {
		name string
		calls
	}{{"node", t.node}, {"absorb", t.absorbs}, {"settle", t.settles}, {"reap", t.reaps}} {
		var lines []string
		for k, v := range p.calls {
			lines = append(lines, fmt.Sprintf("%s=%d", k, v))
		}
		slices.Sort(lines)
		tb.Log(when, p.name, lines)
	}
}

// appendEvenly keeps the pace.
func appendEvenly(tb testing.TB, c *client.Client, l load) {
	body := random(100)
	begun := time.Now()
	var wg sync.WaitGroup
	for i := range l.calls {
		if wait := time.Duration(i)*time.Second/time.Duration(l.perSecond) - time.Since(begun); wait > 0 {
			time.Sleep(wait)
		}
		wg.Go(func() { appendTo(tb, c, i%l.streams, l.records, body) })
	}
	wg.Wait()
}

// appendEach appends to every stream once.
func appendEach(tb testing.TB, c *client.Client, streams, records int, body []byte) {
	next := make(chan int, streams)
	for i := range streams {
		next <- i
	}
	close(next)
	var wg sync.WaitGroup
	for range 256 {
		wg.Go(func() {
			for i := range next {
				appendTo(tb, c, i, records, body)
			}
		})
	}
	wg.Wait()
}

func appendTo(tb testing.TB, c *client.Client, stream, records int, body []byte) {
	req := &novapb.AppendRequest{Bucket: bucket, Stream: fmt.Sprintf("stream-%06d", stream)}
	for range records {
		req.Records = append(req.Records, &novapb.AppendRecord{Body: body})
	}
	if _, err := c.Appends.Append(tb.Context(), req); err != nil {
		tb.Error(err)
	}
}
