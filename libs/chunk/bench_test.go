package chunk

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/nova-stream/nova/libs/stream"
)

// load is a batch of n records of size bytes: random, or like log lines.
func load(n, size int, random bool) Input {
	rng := rand.New(rand.NewPCG(1, 2))
	in := Input{StreamID: testStream, Batches: []InputBatch{{}}}
	for i := range n {
		body := make([]byte, size)
		for k := range body {
			body[k] = byte(rng.Uint32())
		}
		if !random {
			copy(body, fmt.Appendf(nil, `{"level":"info","request":%8d,"path":"/v1/streams","status":200,"ms":%d}`, rng.IntN(1e8), rng.IntN(100)))
		}
		in.Batches[0].Records = append(in.Batches[0].Records, stream.Record{Seq: stream.Seq(i), Timestamp: stream.Millis(i), Body: body})
	}
	return in
}

var loads = []struct {
	name    string
	n, size int
	random  bool
}{
	{"1x50", 1, 50, true},
	{"1000x50/random", 1000, 50, true},
	{"1000x50/text", 1000, 50, false},
	{"100x1000/text", 100, 1000, false},
	{"3x1MB/random", 3, 1 << 20, true},
}

func BenchmarkEncode(b *testing.B) {
	for _, l := range loads {
		b.Run(l.name, func(b *testing.B) {
			in := load(l.n, l.size, l.random)
			b.SetBytes(int64(l.n * l.size))
			b.ReportAllocs()
			var dst []byte
			for b.Loop() {
				var err error
				if dst, _, err = Encode(dst[:0], in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, l := range loads {
		b.Run(l.name, func(b *testing.B) {
			c, _ := mustEncode(b, load(l.n, l.size, l.random))
			b.SetBytes(int64(l.n * l.size))
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := Decode(c); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Encode allocates per chunk, never per record.
func TestAllocations(t *testing.T) {
	in := load(1000, 50, true)
	var dst []byte
	encode := func() { dst, _, _ = Encode(dst[:0], in) }
	encode()
	if n := testing.AllocsPerRun(20, encode); n > 20 {
		t.Errorf("%v allocations to encode 1000 records", n)
	}
	if n := testing.AllocsPerRun(20, func() { _, _, _ = Decode(dst) }); n > 20 {
		t.Errorf("%v allocations to decode 1000 records", n)
	}
}

// Samples decide whether a large payload is compressed: those that would gain
// nothing are not, those that gain in part are.
func TestWhatIsCompressed(t *testing.T) {
	noise, text := load(100, 1000, true), load(1000, 100, false)
	mixed := load(100, 1000, true)
	for i := range 40 {
		mixed.Batches[0].Records[i].Body = bytes.Repeat([]byte("all the same "), 80)
	}
	for _, c := range []struct {
		name string
		in   Input
		want Compression
	}{{"noise", noise, CompressionNone}, {"text", text, CompressionZstd}, {"mixed", mixed, CompressionZstd}} {
		b, h := mustEncode(t, c.in)
		if h.Compression != c.want || h.RawLength < sampleFrom {
			t.Errorf("%s: %d bytes with compression %d, want %d", c.name, h.RawLength, h.Compression, c.want)
		}
		if _, records, err := Decode(b); err != nil || len(records) != len(c.in.Batches[0].Records) {
			t.Errorf("%s: %d records, %v", c.name, len(records), err)
		}
	}
}
