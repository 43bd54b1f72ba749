package sequencer

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nova-stream/nova/libs/validate"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// Timestamps never decrease, also for a leader whose clock is behind what the
// stream has seen: after a failover, from the settled head, when no record is
// left, and at the last timestamp that there is (I9).
func TestTimestampsNeverDecreaseOverFailovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := w.lead(Config{})
		d := w.stream(&novapb.StreamConfig{UncappedTimestampsPresence: &novapb.StreamConfig_UncappedTimestamps{UncappedTimestamps: true}})
		at := func(l *leader, n uint64, ts time.Time, want time.Time) {
			t.Helper()
			req := batch(d, "x")
			if !ts.IsZero() {
				req.Records[0].SetTimestamp(ts.UnixMilli())
			}
			if ack := l.append(req, n, n+1); ack.GetFirstTimestamp() != want.UnixMilli() {
				t.Errorf("record %d is of %d, want %d", n, ack.GetFirstTimestamp(), want.UnixMilli())
			}
		}
		ahead := time.Now().Add(time.Minute)
		at(l, 0, ahead, ahead)
		at(l, 1, time.Time{}, ahead)
		next := l.die()
		at(next, 2, time.Time{}, ahead)
		at(next, 3, time.Now(), ahead)
		if _, err := next.trim(d, 4); err != nil {
			t.Fatal(err)
		}
		w.settle(d)
		third := next.die()
		at(third, 4, time.Time{}, ahead)
		time.Sleep(2 * time.Minute)
		at(third, 5, time.Time{}, time.Now())
		last := time.UnixMilli(validate.MaxTimestamp)
		at(third, 6, last, last)
		fourth := third.die()
		at(fourth, 7, time.Time{}, last)
		w.wantStored(d, "x", "x", "x", "x", "x", "x", "x", "x")
		for _, l := range []*leader{fourth, third, next, l} {
			l.stop()
		}
	})
}
