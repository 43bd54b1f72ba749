package chainwriter

import (
	"sync"
	"testing"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/stream"
)

// An entry that comes again is stored once; all who sent it hear of it (I2).
func TestRepeatedEntryIsTakenOnce(t *testing.T) {
	w := &writer{cfg: Config{}.withDefaults(), shards: map[stream.Shard]*shardState{}, hurry: make(chan struct{}, 1)}
	w.changed = sync.NewCond(&w.mu)
	senders := []*session{newSession(), newSession(), newSession()}
	e := bundle.Entry{Kind: bundle.KindToken, Shard: 3, Epoch: 2, StreamID: testStream}
	for _, s := range senders[:2] {
		if r := w.accept(t.Context(), e, nil, s); r != nil {
			t.Fatalf("refused: %v", r)
		}
	}
	items := w.take()
	if len(items) != 1 || len(w.take()) != 0 {
		t.Fatalf("%d entries are in the flight", len(items))
	}
	// In the air it is still pending.
	if r := w.accept(t.Context(), e, nil, senders[2]); r != nil || len(w.take()) != 0 {
		t.Fatalf("refused: %v", r)
	}
	for i, s := range senders {
		if m := s.take(); m != nil {
			t.Fatalf("sender %d was told %v of what is not committed", i, m)
		}
	}
	w.commit(7, items, 100)
	late := newSession()
	if r := w.accept(t.Context(), e, nil, late); r != nil {
		t.Fatalf("refused: %v", r)
	}
	for i, s := range append(senders, late) {
		m := s.take()
		if len(m.GetCommits()) != 1 || m.GetCommits()[0].GetAt().GetSlot() != 7 || m.GetCommits()[0].GetShard() != 3 {
			t.Errorf("sender %d was told %v", i, m)
		}
	}
	// Of another epoch it is another entry.
	e.Epoch = 3
	if r := w.accept(t.Context(), e, nil, senders[0]); r != nil || len(w.take()) != 1 {
		t.Errorf("entry 0 of the next epoch: %v", r)
	}
}
