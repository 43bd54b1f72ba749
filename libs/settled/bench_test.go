package settled

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/nova-stream/nova/libs/chunk"
)

// benchChunks are small chunks of n records each: noise, or like log lines.
func benchChunks(b *testing.B, n, size int, random bool) (chunks [][]byte, l *log, bytes int64) {
	rng := rand.New(rand.NewPCG(1, 2))
	l = newLog(1, 0)
	for bytes < 8<<20 {
		var bodies []string
		for range n {
			body := make([]byte, size)
			for k := range body {
				body[k] = byte(rng.Uint32())
			}
			if !random {
				copy(body, fmt.Appendf(nil, `{"level":"info","request":%8d,"path":"/v1/streams","status":200,"ms":%d}`, rng.IntN(1e8), rng.IntN(100)))
			}
			bodies = append(bodies, string(body))
			bytes += int64(size)
		}
		c, _ := l.chunk(b, bodies...)
		chunks = append(chunks, c)
	}
	return chunks, l, bytes
}

func BenchmarkMerge(b *testing.B) {
	for _, c := range []struct {
		name    string
		n, size int
		random  bool
	}{
		{"1x100/random", 1, 100, true}, {"100x100/random", 100, 100, true}, {"100x100/text", 100, 100, false},
		{"100x1000/random", 100, 1000, true}, {"100x1000/text", 100, 1000, false}, {"4x64KiB/copied", 4, 64 << 10, true},
	} {
		chunks, l, bytes := benchChunks(b, c.n, c.size, c.random)
		var to []byte
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(bytes)
			b.ReportAllocs()
			for b.Loop() {
				to = to[:0]
				m := NewMerger(l.id, func(frame []byte, _ *chunk.Header) error {
					to = append(to, frame...)
					return nil
				})
				for _, c := range chunks {
					if err := m.Add(c); err != nil {
						b.Fatal(err)
					}
				}
				if err := m.Flush(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
