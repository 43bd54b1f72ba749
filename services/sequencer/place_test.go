package sequencer

import (
	"testing"
	"time"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
)

// The holder of a shard that the list of lives does not show may be a newcomer,
// or the list an old read: its shard is not taken before its life is over (I4).
func TestAHolderThatIsNotListedIsProvenGone(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{})
	none := func() *census { return &census{live: map[string]peer{}, over: map[string]int64{}} }
	newcomer := stream.NewLifeID().String()
	live := &indexpb.Life{LifeId: newcomer, State: indexpb.LifeState_LIFE_STATE_LIVE, Renewals: 1, TtlMs: 1000}
	if _, err := l.index.PutLife(t.Context(), live, catalog.Absent); err != nil {
		t.Fatal(err)
	}
	if gone, err := l.gone(t.Context(), none(), newcomer); gone || err != nil {
		t.Errorf("a newcomer: gone %v, %v", gone, err)
	}
	absent := stream.NewLifeID().String()
	if gone, err := l.gone(t.Context(), none(), absent); !gone || err != nil {
		t.Errorf("a life without a row: gone %v, %v", gone, err)
	}
	live.LifeId = absent
	if _, err := l.index.PutLife(t.Context(), live, catalog.Absent); err == nil {
		t.Error("a life that was taken for gone began")
	}
	if gone, err := l.gone(t.Context(), none(), ""); !gone || err != nil {
		t.Errorf("no holder: gone %v, %v", gone, err)
	}
}

// A shard falls to the node that ranks first among those that live; to any, if
// that one leaves it alone for long.
func TestWhoAShardFallsTo(t *testing.T) {
	now := time.UnixMilli(0)
	s := &Service{cfg: Config{NodeID: "a"}, now: func() time.Time { return now }, vacant: map[stream.Shard]time.Time{}, lease: newLease(time.Second, false, nil)}
	peers := map[string]peer{"a": {node: "a"}, "b": {node: "b"}, "c": {node: "c", weight: 2}}
	mine, heavy := 0, 0
	for n := range stream.Shard(400) {
		if s.fallsHere(peers, n) {
			mine++
		}
		if first(peers, n).node == "c" {
			heavy++
		}
	}
	if mine < 70 || mine > 130 || heavy < 160 || heavy > 240 {
		t.Errorf("of 400 shards %d fall to a node, and %d to one of twice the weight; 100 and 200 would be even", mine, heavy)
	}
	now = now.Add(vacantLeases*time.Second + 1)
	for n := range stream.Shard(400) {
		if !s.fallsHere(peers, n) {
			t.Fatalf("shard %d stays without a leader", n)
		}
	}
}

// A read at the tail leaves nothing behind that keeps an idle stream in memory.
func TestAReadAtTheTailDoesNotKeepAStream(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{IdleStream: time.Millisecond})
	d := w.stream(nil)
	l.append(batch(d, "a"), 0, 1)
	req := &sequencerpb.FetchRequest{Stream: key(d), MaxBytes: 1 << 20, Start: &sequencerpb.FetchRequest_Seq{Seq: 1}}
	for _, req.WaitMs = range []uint32{0, 1} {
		if res, err := l.Fetch(t.Context(), req); err != nil || len(res.GetPieces()) != 0 {
			t.Fatalf("%v, %v", res, err)
		}
	}
	eventually(t, "the stream leaves memory", func() bool {
		l.evictIdle()
		sh := l.shard()
		sh.mu.Lock()
		defer sh.mu.Unlock()
		return len(sh.streams) == 0
	})
	l.append(batch(d, "b"), 1, 2)
}
