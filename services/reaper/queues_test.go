package reaper

import (
	"slices"
	"testing"

	"github.com/nova-stream/nova/libs/catalog"
)

// What others list by name is what the reaper works on.
func TestQueuesAreKnown(t *testing.T) {
	_, s := newWorld(t, Config{})
	var names []string
	for _, q := range s.queues {
		names = append(names, q.name)
		if catalog.DeadQueue(q.name) != "dead-"+q.name || catalog.ListAtOnce(q.name) != q.dead() {
			t.Errorf("%s: set aside in %s, %d at once; want %s, %d", q.name, catalog.DeadQueue(q.name), catalog.ListAtOnce(q.name), "dead-"+q.name, q.dead())
		}
	}
	slices.Sort(names)
	if !slices.Equal(names, catalog.Queues()) {
		t.Errorf("%v, want %v", catalog.Queues(), names)
	}
}
