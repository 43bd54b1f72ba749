package reaper

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// The leader wrote the DELETE entry; then the settler, on its way there, quarantines
// the stream. Nobody makes the head DELETED any more.
func TestDeletedThenQuarantined(t *testing.T) {
	f := newFarm(t)
	id := f.stream(nil)
	f.settle(id, 1)
	c := f.chain(10)
	asked := 0
	f.leader = func(string, proto.Message, proto.Message) error { asked++; return nil }
	f.arm(f.deleteMarker(id))
	s := f.process(Config{}).Service
	drainAll(t, s) // the leader has deleted it
	f.head(id, func(h *indexpb.Head) {
		h.Quarantine, h.Pins = "a block of a directory is damaged", []*indexpb.Pin{{ChainId: c.String(), From: 1, To: 2}}
	})
	f.update(c, func(c *indexpb.Chain) {
		c.SettledTo = 10
		c.Pins = []*indexpb.ChainPin{{StreamId: id.String(), From: 1, To: 10}}
	})
	for range 200 {
		f.pass(time.Hour)
		drainAll(t, s)
	}
	h, _, err := f.index.GetHead(t.Context(), id)
	if err == nil && h.GetState() != deletedState && asked == 1 {
		t.Errorf("after 200 h: the leader was asked %d times, the head is %v and stays quarantined; markers %v", asked, h.GetState(), f.queue("delete"))
	}
}
