package bench

import (
	"io"
	"testing"
	"time"

	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// BenchmarkStart: from the start of the program `novad --dev` to the first
// acknowledgement, with the bucket and the stream that it needs. The program
// that starts and ends at once is measured beside it.
func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		figures := start(b, processes{}, 11)
		b.StopTimer()
		var bare samples
		for range 11 {
			begun := time.Now()
			processes{}.nova(b, "127.0.0.1:1", nil, "--version")
			bare.addTime(time.Since(begun))
		}
		figures["bare-ms"] = bare.milliseconds(.5)
		report(b, figures)
		b.StartTimer()
	}
}

func start(tb testing.TB, l launcher, rounds int) map[string]float64 {
	var took samples
	m := machine{tb: tb}
	for range rounds {
		m.watch(0)
		n := l.node(tb, "--dev")
		c := dial(tb, n.address)
		create(tb, c)
		if _, err := c.Appends.Append(tb.Context(), &novapb.AppendRequest{
			Bucket: bucket, Stream: "start", Records: []*novapb.AppendRecord{{Body: []byte("first")}},
		}); err != nil {
			tb.Fatal(err)
		}
		took.addTime(time.Since(n.started))
		closeAll(tb, c)
		n.stop()
		m.end()
	}
	return map[string]float64{
		"first-ack-ms": took.milliseconds(.5), "best-ms": took.milliseconds(0), "others-%": m.othersShare(),
	}
}

func closeAll(tb testing.TB, all ...io.Closer) {
	tb.Helper()
	for _, c := range all {
		if err := c.Close(); err != nil {
			tb.Error(err)
		}
	}
}
