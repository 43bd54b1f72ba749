package bench

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"

	"github.com/nova-stream/nova/libs/client"
	metamem "github.com/nova-stream/nova/libs/metastore/mem"
	"github.com/nova-stream/nova/libs/objectstore/mem"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// BenchmarkMemory: what an open stream that is idle costs in memory.
func BenchmarkMemory(b *testing.B) {
	b.Run("heap", func(b *testing.B) {
		for b.Loop() {
			report(b, heapPerStream(b, 10_000))
		}
	})
	b.Run("program", func(b *testing.B) {
		for b.Loop() {
			report(b, residentPerStream(b, processes{}, 10_000))
		}
	})
}

// warm is how many streams are open before the first look, so that what is
// there only once does not count.
const warm = 100

// heapPerStream looks at the live heap of a node in this process. What the
// stores in memory hold is left when the node is gone, and taken off.
func heapPerStream(tb testing.TB, streams int) map[string]float64 {
	nodeHeap := func(streams int) float64 {
		store, metadata := mem.New(), metamem.New()
		n, _ := nodeOn(tb, store, metadata)
		c := dial(tb, n.Addr())
		create(tb, c)
		openStreams(tb, c, streams)
		open := liveHeap()
		n.stop()
		n = inside{}
		closeAll(tb, c)
		left := liveHeap()
		runtime.KeepAlive(store)
		runtime.KeepAlive(metadata)
		return open - left
	}
	few := nodeHeap(warm)
	return map[string]float64{"B/stream": (nodeHeap(streams+warm) - few) / float64(streams)}
}

func liveHeap() float64 {
	// What the first collection frees, finalizers and pools may hold for one more.
	for range 3 {
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// openStreams makes streams and appends a record to each, so that the leader has
// them open.
func openStreams(tb testing.TB, c *client.Client, streams int) {
	names := make(chan int, streams)
	for i := range streams {
		names <- i
	}
	close(names)
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for i := range names {
				if _, err := c.Appends.Append(tb.Context(), &novapb.AppendRequest{
					Bucket: bucket, Stream: fmt.Sprintf("stream-%06d", i), Records: []*novapb.AppendRecord{{Body: []byte("x")}},
				}); err != nil {
					tb.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// residentPerStream looks at the memory of a program on a directory, whose
// collector is told to keep little garbage. Pages of files are left out.
func residentPerStream(tb testing.TB, l launcher, streams int) map[string]float64 {
	n := l.node(tb, "--dir", tb.TempDir())
	pid := n.pid
	if pid == 0 {
		pid = os.Getpid()
	}
	c := dial(tb, n.address)
	create(tb, c)
	openStreams(tb, c, warm)
	few, fewAll := memory(tb, pid, "RssAnon"), memory(tb, pid, "VmRSS")
	openStreams(tb, c, streams+warm)
	figures := map[string]float64{
		"B/stream": max(memory(tb, pid, "RssAnon")-few, 0) / float64(streams), "rss-MiB-before": fewAll / (1 << 20), "rss-MiB-after": memory(tb, pid, "VmRSS") / (1 << 20),
	}
	closeAll(tb, c)
	n.stop()
	return figures
}
