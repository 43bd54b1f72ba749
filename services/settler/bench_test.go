package settler

import (
	"testing"
	"time"
)

// BenchmarkSettle settles a span of many streams with small chunks, which are
// merged, and with large ones, which are copied.
func BenchmarkSettle(b *testing.B) {
	for _, c := range []struct {
		name                           string
		streams, chunks, records, size int
	}{
		{"small", 500, 20, 4, 250},
		{"large", 16, 4, 10, 50_000},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				w := newWorld(b.Context(), b)
				ch := w.newChain()
				w.lead(0, ch)
				var logs []*log
				for range c.streams {
					logs = append(logs, w.open("first", 0))
				}
				for range c.chunks {
					for _, l := range logs {
						l.append(c.records, c.size)
					}
					ch.land()
				}
				ch.absorb()
				p := w.process(Config{SettleAge: time.Second})
				b.StartTimer()
				if _, err := p.settle(b.Context(), ch.id); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				b.SetBytes(int64(p.metrics.settledBytes.Load()))
				w.close()
				b.StartTimer()
			}
		})
	}
}
