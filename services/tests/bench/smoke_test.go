package bench

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/objectstore/mem"
)

// complete fails the test if a figure was not measured.
func complete(t *testing.T, figures map[string]float64) {
	t.Helper()
	if len(figures) == 0 {
		t.Error("no figure")
	}
	for unit, v := range figures {
		// What is added to something by something may be less than nothing, by chance.
		if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 && !strings.HasPrefix(unit, "added") {
			t.Errorf("%s is %v", unit, v)
		}
	}
}

func TestAppendLines(t *testing.T) {
	complete(t, appendLinesDir(t, here{}, text(500), 1))
	complete(t, appendLinesDev(t, here{}, noise(500), 1))
}

func TestAck(t *testing.T) {
	complete(t, ack(t, mem.New(), 3))
	complete(t, delivery(t, mem.New(), 3))
	complete(t, throughput(t, mem.New(), 2, 2, 1))
	for _, settled := range []bool{false, true} {
		complete(t, catchUp(t, func() objectstore.Store { return mem.New() }, kept{"few", 2, 2, 1, settled}, 1))
	}
}

func TestNode(t *testing.T) {
	complete(t, start(t, here{}, 1))
	complete(t, idle(t, here{}, 0, time.Millisecond))
	complete(t, spread(t, []int{1, 4}, 8, 1000, 1))
}

func TestMemory(t *testing.T) {
	if v := heapPerStream(t, 10); len(v) != 1 {
		t.Errorf("got %v", v) // so few streams drown in what else changes
	}
	complete(t, residentPerStream(t, here{}, 10))
}

func TestBackground(t *testing.T) {
	complete(t, rowsPerRecord(t, load{streams: 3, calls: 6, perSecond: 1000, records: 2, spans: 2, rest: time.Millisecond}))
	complete(t, settleRate(t, mem.New(), textBatch(4, 100), 2, 2, 1))
	complete(t, amplification(t, []crowd{{1, 200 << 10}, {2, 2 << 10}}, 2))
	complete(t, absorbLag(t, mem.New(), 2, 10*time.Millisecond))
	complete(t, stored(t, text(300)))
}
