package bench

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/libs/objectstore/mem"
)

// crowd is streams that get as much each in every span.
type crowd struct{ streams, bytes int }

// mixes are steady loads. What a stream of the first kind of "mixed" gets per span
// is 14 KiB/s for 10 minutes.
var mixes = []struct {
	name   string
	crowds []crowd
	spans  int
}{
	{"mixed", []crowd{{2, 17 << 19}, {16, 128 << 10}, {200, 2 << 10}}, 34},
	{"large", []crowd{{2, 17 << 19}}, 10},
	{"medium", []crowd{{16, 128 << 10}}, 68},
	{"small", []crowd{{50, 2 << 10}}, 300},
}

// BenchmarkAmplification: bytes of all objects that are put, by whomever, over those
// of the flights, and over those of the records' bodies, while streams of some sizes
// get as much in every span and small runs are rewritten. The bodies are 1 KiB of
// random bytes. Metadata are in memory and not exported.
func BenchmarkAmplification(b *testing.B) {
	for _, m := range mixes {
		b.Run(m.name, func(b *testing.B) {
			for b.Loop() {
				report(b, amplification(b, m.crowds, m.spans))
			}
		})
	}
}

func amplification(tb testing.TB, crowds []crowd, spans int) map[string]float64 {
	// A PUT takes some time, as remote ones do: so flights hold several batches.
	b, n := newBackground(tb, slow{Store: mem.New(), delay: 20 * time.Millisecond})
	c := dial(tb, n.Addr())
	create(tb, c)
	bodies := batchOf(batchRecords, recordBytes)
	type appender struct {
		*client.Session
		bytes int
	}
	var all []appender
	appended := 0
	for _, k := range crowds {
		for range k.streams {
			name := fmt.Sprintf("crowd-%04d", len(all))
			all = append(all, appender{c.OpenSession(tb.Context(), client.SessionConfig{Bucket: bucket, Stream: name}), k.bytes})
			appended += k.bytes * spans
		}
	}
	for range spans {
		var wg sync.WaitGroup
		for _, a := range all {
			wg.Go(func() {
				for left := a.bytes; left > 0; left -= len(bodies) * recordBytes {
					if err := a.Send(tb.Context(), bodies[:min(len(bodies), left/recordBytes)]); err != nil {
						tb.Error(err)
						return
					}
				}
				if err := a.Flush(tb.Context()); err != nil {
					tb.Error(err)
				}
			})
		}
		wg.Wait()
		b.absorb()
		b.settle()
		b.reap()
	}
	for _, a := range all {
		if _, err := a.Close(tb.Context()); err != nil {
			tb.Error(err)
		}
	}
	flights, directories, made := b.node.objects.take(), b.absorbs.objects.take(), b.settles.objects.take()
	n.stop()
	stored := total(flights["chain"])
	// Whatever it is: nothing is left out.
	put := 0.0
	for _, kinds := range []map[string][]putObject{flights, directories, made, b.reaps.objects.take()} {
		for _, objects := range kinds {
			put += total(objects)
		}
	}
	return map[string]float64{
		"x-flights": put / stored, "x-bodies": put / float64(appended), "x-directories": total(directories["directory"]) / stored,
		"x-settled": total(made["settled"]) / stored, "x-pages": total(made["page"]) / stored,
	}
}
