package index

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// changed returns a copy of m that f changed.
func changed[M proto.Message](m M, f func(M)) M {
	m = proto.CloneOf(m)
	f(m)
	return m
}

func judge(t *testing.T, err error, ok bool) {
	t.Helper()
	switch {
	case ok && err != nil:
		t.Errorf("refused: %v", err)
	case !ok && err == nil:
		t.Error("accepted, and must be refused")
	case !ok && !reason.Is(err, reason.RuleBroken):
		t.Errorf("got %v, want %s", err, reason.RuleBroken)
	}
}

func TestLifeThatIsOverStaysSo(t *testing.T) {
	const live, released, dead = indexpb.LifeState_LIFE_STATE_LIVE, indexpb.LifeState_LIFE_STATE_RELEASED, indexpb.LifeState_LIFE_STATE_DEAD
	life := func(st indexpb.LifeState, n uint64) *indexpb.Life { return &indexpb.Life{State: st, Renewals: n} }
	for _, c := range []struct {
		what      string
		old, next *indexpb.Life
		ok        bool
	}{
		{"a new life begins", nil, life(live, 0), true},
		{"a life that never was is made dead", nil, life(dead, 0), true},
		{"a new life without a state", nil, life(0, 0), false},
		{"renewal", life(live, 3), life(live, 4), true},
		{"renewal that repeats a count", life(live, 3), life(live, 3), false},
		{"renewal that goes back", life(live, 3), life(live, 2), false},
		{"release", life(live, 3), life(released, 3), true},
		{"declared dead", life(live, 3), life(dead, 3), true},
		{"the dead renew", life(dead, 3), life(live, 4), false},
		{"the released renew", life(released, 3), life(live, 4), false},
		{"the dead release", life(dead, 3), life(released, 3), false},
		{"the state is lost", life(live, 3), life(0, 4), false},
	} {
		t.Run(c.what, func(t *testing.T) { judge(t, lifeRule(c.old, c.next, c.old != nil), c.ok) })
	}
}

func TestShardEpochsNeverDecreaseAndHaveOneHolder(t *testing.T) {
	const recovering, serving, released = indexpb.ShardState_SHARD_STATE_RECOVERING, indexpb.ShardState_SHARD_STATE_SERVING, indexpb.ShardState_SHARD_STATE_RELEASED
	base := &indexpb.Shard{
		Shard: 3, Profile: novapb.StorageProfile_STORAGE_PROFILE_STANDARD, Epoch: 5, State: serving, HolderLife: "a",
		Bindings: []*indexpb.Binding{{ChainId: "x"}, {ChainId: "y"}},
	}
	takeover := changed(base, func(s *indexpb.Shard) { s.Epoch, s.HolderLife, s.State = 6, "b", recovering })
	twice := changed(base, func(s *indexpb.Shard) {
		s.Bindings = []*indexpb.Binding{{ChainId: "x", Epoch: 1, Cut: 4, CutKnown: true}, {ChainId: "y", Epoch: 3, Cut: 7, CutKnown: true}, {ChainId: "x", Epoch: 4}}
	})
	cut := changed(base, func(s *indexpb.Shard) {
		s.Bindings = []*indexpb.Binding{{ChainId: "x", Epoch: 1, Cut: 4, CutKnown: true}, {ChainId: "y", Epoch: 3}}
	})
	for _, c := range []struct {
		what string
		old  *indexpb.Shard
		next *indexpb.Shard
		ok   bool
	}{
		{"the first epoch", nil, base, true},
		{"no epoch", nil, changed(base, func(s *indexpb.Shard) { s.Epoch = 0 }), false},
		{"no holder", nil, changed(base, func(s *indexpb.Shard) { s.HolderLife = "" }), false},
		{"takeover", base, takeover, true},
		{"takeover that adds a binding", base, changed(takeover, func(s *indexpb.Shard) { s.Bindings = append(s.Bindings, &indexpb.Binding{ChainId: "z"}) }), true},
		{"takeover of a released epoch", changed(base, func(s *indexpb.Shard) { s.State = released }), takeover, true},
		{"takeover that forgets a binding", base, changed(takeover, func(s *indexpb.Shard) { s.Bindings = s.Bindings[:1] }), false},
		{"takeover that does not recover", base, changed(takeover, func(s *indexpb.Shard) { s.State = serving }), false},
		{"the epoch goes back (I4)", takeover, base, false},
		{"two holders of an epoch (I4)", base, changed(base, func(s *indexpb.Shard) { s.HolderLife = "b" }), false},
		{"its holder drops settled bindings", base, changed(base, func(s *indexpb.Shard) { s.Bindings = s.Bindings[1:] }), true},
		{"its holder releases", base, changed(base, func(s *indexpb.Shard) { s.State = released }), true},
		{"a released epoch serves again", changed(base, func(s *indexpb.Shard) { s.State = released }), base, false},
		{"another profile", base, changed(base, func(s *indexpb.Shard) { s.Profile = novapb.StorageProfile_STORAGE_PROFILE_EXPRESS }), false},
		{"its holder drops the binding that it writes to (I2)", base, changed(base, func(s *indexpb.Shard) { s.Bindings = s.Bindings[:1] }), false},
		{"its holder drops all bindings (I2)", base, changed(base, func(s *indexpb.Shard) { s.Bindings = nil }), false},
		{"release drops a binding (I2)", base, changed(base, func(s *indexpb.Shard) { s.State, s.Bindings = released, s.Bindings[1:] }), false},
		{"a takeover keeps one of a chain's two segments (I2)", twice, changed(twice, func(s *indexpb.Shard) {
			s.Epoch, s.HolderLife, s.State, s.Bindings = 6, "b", recovering, s.Bindings[1:]
		}), false},
		{"a takeover gives a segment another epoch (I2)", twice, changed(twice, func(s *indexpb.Shard) {
			s.Epoch, s.HolderLife, s.State = 6, "b", recovering
			s.Bindings[0].Epoch = 2
		}), false},
		{"a takeover keeps both segments of a chain", twice, changed(twice, func(s *indexpb.Shard) { s.Epoch, s.HolderLife, s.State = 6, "b", recovering }), true},
		{"recovery decides a cut", takeover, changed(takeover, func(s *indexpb.Shard) { s.Bindings[0].Cut, s.Bindings[0].CutKnown = 4, true }), true},
		{"recovery drops a binding before it serves (I2)", takeover, changed(takeover, func(s *indexpb.Shard) { s.Bindings = s.Bindings[1:] }), false},
		{"recovery serves without the chains that hold nothing", takeover, changed(takeover, func(s *indexpb.Shard) {
			s.State, s.Bindings = serving, []*indexpb.Binding{{ChainId: "z", Epoch: 6}}
		}), true},
		{"a shard is served without a chain", takeover, changed(takeover, func(s *indexpb.Shard) { s.State, s.Bindings = serving, nil }), false},
		{"a cut that is decided is forgotten (I4)", cut, changed(cut, func(s *indexpb.Shard) { s.Bindings[0].CutKnown = false }), false},
		{"a cut that is decided moves (I4)", cut, changed(cut, func(s *indexpb.Shard) { s.Bindings[0].Cut = 5 }), false},
		{"a cut that is decided moves at a takeover (I4)", cut, changed(cut, func(s *indexpb.Shard) {
			s.Epoch, s.HolderLife, s.State = 6, "b", recovering
			s.Bindings[0].Cut = 5
		}), false},
		{"the last chain is bound again, and its cut is open again", changed(cut, func(s *indexpb.Shard) {
			s.State = recovering
			s.Bindings[1].Cut, s.Bindings[1].CutKnown = 8, true
		}), cut, true},
		{"an earlier chain's cut is open again (I4)", changed(cut, func(s *indexpb.Shard) { s.State = recovering }), changed(cut, func(s *indexpb.Shard) { s.Bindings[0].CutKnown = false }), false},
		{"bindings out of order (I1)", base, changed(twice, func(s *indexpb.Shard) { s.Bindings[0].Epoch = 5 }), false},
	} {
		t.Run(c.what, func(t *testing.T) { judge(t, shardRule(c.old, c.next, c.old != nil), c.ok) })
	}
}

func TestChainGoesForwardAndItsCutStays(t *testing.T) {
	const open, sealed, retired = indexpb.ChainState_CHAIN_STATE_OPEN, indexpb.ChainState_CHAIN_STATE_SEALED, indexpb.ChainState_CHAIN_STATE_RETIRED
	chain := func(st indexpb.ChainState, cut, settled, absorbed, absorbing uint64) *indexpb.Chain {
		return &indexpb.Chain{WriterLife: "w", State: st, Cut: cut, SettledTo: settled, AbsorbedTo: absorbed, AbsorbingTo: absorbing}
	}
	reclaimed := func(c *indexpb.Chain, to uint64) *indexpb.Chain { c.ReclaimedTo = to; return c }
	pinned := func(c *indexpb.Chain, pins ...*indexpb.ChainPin) *indexpb.Chain { c.Pins = pins; return c }
	pin := func(stream string, from, to uint64) *indexpb.ChainPin {
		return &indexpb.ChainPin{StreamId: stream, From: from, To: to}
	}
	var many []*indexpb.ChainPin
	for i := range uint64(MaxChainPins + 1) {
		many = append(many, pin("s", 2*i, 2*i+1))
	}
	for _, c := range []struct {
		what      string
		old, next *indexpb.Chain
		ok        bool
	}{
		{"a chain begins open", nil, chain(open, 0, 0, 0, 0), true},
		{"a chain begins sealed", nil, chain(sealed, 0, 0, 0, 0), false},
		{"no state", nil, chain(0, 0, 0, 0, 0), false},
		{"claim", chain(open, 0, 0, 4, 4), chain(open, 0, 0, 4, 9), true},
		{"a claim is finished", chain(open, 0, 0, 4, 9), chain(open, 0, 0, 9, 9), true},
		{"a claim is finished and the next made", chain(open, 0, 0, 4, 9), chain(open, 0, 0, 9, 12), true},
		{"a claim is replaced", chain(open, 0, 0, 4, 9), chain(open, 0, 0, 4, 8), false},
		{"a claim grows", chain(open, 0, 0, 4, 9), chain(open, 0, 0, 4, 10), false},
		{"a claim is dropped", chain(open, 0, 0, 4, 9), chain(open, 0, 0, 4, 4), false},
		{"a claim is absorbed in part", chain(open, 0, 0, 4, 9), chain(open, 0, 0, 8, 9), false},
		{"a claim is overtaken", chain(open, 0, 0, 4, 9), chain(open, 0, 0, 10, 10), false},
		{"sealing clips a claim at the cut", chain(open, 0, 0, 4, 9), chain(sealed, 7, 0, 4, 7), true},
		{"sealing keeps a claim above the cut", chain(open, 0, 0, 4, 9), chain(sealed, 7, 0, 4, 9), false},
		{"sealing keeps a claim below the cut", chain(open, 0, 0, 4, 9), chain(sealed, 12, 0, 4, 9), true},
		{"sealing clips a claim below the cut", chain(open, 0, 0, 4, 9), chain(sealed, 12, 0, 4, 8), false},
		{"absorbed above the cut (I3)", chain(open, 0, 0, 9, 9), chain(sealed, 7, 0, 9, 9), false},
		{"the cut rises (I4)", chain(sealed, 7, 0, 7, 7), chain(sealed, 8, 0, 7, 7), false},
		{"the cut falls (I2)", chain(sealed, 7, 0, 4, 4), chain(sealed, 6, 0, 4, 4), false},
		{"the cut changes with retirement", chain(sealed, 7, 7, 7, 7), chain(retired, 8, 7, 7, 7), false},
		{"retirement", chain(sealed, 7, 7, 7, 7), changed(chain(retired, 7, 7, 7, 7), func(c *indexpb.Chain) { c.ReclaimedTo = 7 }), true},
		{"retirement before the end is settled (I2)", chain(sealed, 7, 6, 7, 7), reclaimed(chain(retired, 7, 6, 7, 7), 6), false},
		{"retirement before all is reclaimed (I11)", chain(sealed, 7, 7, 7, 7), reclaimed(chain(retired, 7, 7, 7, 7), 6), false},
		{"retirement of an open chain (I4)", reclaimed(chain(open, 0, 7, 7, 7), 7), reclaimed(chain(retired, 7, 7, 7, 7), 7), false},
		{"retirement of a chain that has pins (I2)", pinned(chain(sealed, 7, 7, 7, 7), pin("s", 2, 4)), pinned(reclaimed(chain(retired, 7, 7, 7, 7), 7), pin("s", 2, 4)), false},
		{"reclaim", chain(open, 0, 5, 9, 9), reclaimed(chain(open, 0, 5, 9, 9), 5), true},
		{"reclaim above settled_to (I2)", chain(open, 0, 5, 9, 9), reclaimed(chain(open, 0, 5, 9, 9), 6), false},
		{"reclaimed_to goes back", reclaimed(chain(open, 0, 5, 9, 9), 5), reclaimed(chain(open, 0, 5, 9, 9), 4), false},
		{"a new chain is reclaimed", nil, reclaimed(chain(open, 0, 0, 0, 0), 1), false},
		{"settling pins", chain(open, 0, 2, 9, 9), pinned(chain(open, 0, 5, 9, 9), pin("s", 2, 3), pin("s", 4, 5), pin("t", 2, 5)), true},
		{"settling widens a pin", pinned(chain(open, 0, 5, 9, 9), pin("s", 2, 5)), pinned(chain(open, 0, 7, 9, 9), pin("s", 2, 7)), true},
		{"a pin goes with its quarantine", pinned(chain(open, 0, 5, 9, 9), pin("s", 2, 5)), chain(open, 0, 5, 9, 9), true},
		{"a pin of what is settled already (I2)", chain(open, 0, 5, 9, 9), pinned(chain(open, 0, 7, 9, 9), pin("s", 4, 7)), false},
		{"a pin of another stream's slots (I2)", pinned(chain(open, 0, 5, 9, 9), pin("s", 2, 5)), pinned(chain(open, 0, 7, 9, 9), pin("t", 2, 7)), false},
		{"a pin of what is not settled", chain(open, 0, 5, 9, 9), pinned(chain(open, 0, 5, 9, 9), pin("s", 5, 6)), false},
		{"an empty pin", chain(open, 0, 2, 9, 9), pinned(chain(open, 0, 5, 9, 9), pin("s", 3, 3)), false},
		{"a pin of no stream", chain(open, 0, 2, 9, 9), pinned(chain(open, 0, 5, 9, 9), pin("", 3, 4)), false},
		{"pins out of order", chain(open, 0, 2, 9, 9), pinned(chain(open, 0, 5, 9, 9), pin("s", 4, 5), pin("s", 2, 3)), false},
		{"pins that overlap", chain(open, 0, 2, 9, 9), pinned(chain(open, 0, 5, 9, 9), pin("s", 2, 4), pin("s", 3, 5)), false},
		{"streams of pins out of order", chain(open, 0, 2, 9, 9), pinned(chain(open, 0, 5, 9, 9), pin("t", 2, 3), pin("s", 3, 4)), false},
		{"too many pins (I8)", chain(open, 0, 0, 200, 200), pinned(chain(open, 0, 200, 200, 200), many...), false},
		{"a new chain has pins", nil, pinned(chain(open, 0, 0, 0, 0), pin("s", 0, 1)), false},
		{"a sealed chain opens again", chain(sealed, 7, 0, 7, 7), chain(open, 7, 0, 7, 7), false},
		{"a retired chain comes back", chain(retired, 7, 7, 7, 7), chain(sealed, 7, 7, 7, 7), false},
		{"absorbed_to goes back", chain(open, 0, 0, 9, 9), chain(open, 0, 0, 8, 9), false},
		{"settled_to goes back", chain(open, 0, 5, 9, 9), chain(open, 0, 4, 9, 9), false},
		{"settled before absorbed", chain(open, 0, 0, 9, 9), chain(open, 0, 10, 9, 9), false},
		{"absorbed beyond its claim", chain(open, 0, 0, 4, 4), chain(open, 0, 0, 5, 4), false},
		{"another writer", chain(open, 0, 0, 0, 0), changed(chain(open, 0, 0, 0, 0), func(c *indexpb.Chain) { c.WriterLife = "v" }), false},
		{"another profile", chain(open, 0, 0, 0, 0), changed(chain(open, 0, 0, 0, 0), func(c *indexpb.Chain) { c.Profile = 2 }), false},
	} {
		t.Run(c.what, func(t *testing.T) { judge(t, chainRule(c.old, c.next, c.old != nil), c.ok) })
	}
}

func TestHeadGoesForwardOnly(t *testing.T) {
	const deleted = indexpb.HeadState_HEAD_STATE_DELETED
	base := &indexpb.Head{
		Shard: 2, FoldedEpoch: 3, FoldedEntry: 10, Tail: 100, LastTimestamp: 5000, Trim: 7,
		State: indexpb.HeadState_HEAD_STATE_SEALED, OpenedEpoch: 4, ProducersForgotten: 5, ProducersForgottenUntil: 900,
	}
	type edit = func(*indexpb.Head)
	for _, c := range []struct {
		what string
		f    edit
		ok   bool
	}{
		{"nothing changes", func(*indexpb.Head) {}, true},
		{"all goes forward", func(h *indexpb.Head) {
			h.FoldedEntry, h.Tail, h.LastTimestamp, h.Trim, h.OpenedEpoch, h.State = 11, 101, 5001, 8, 5, indexpb.HeadState_HEAD_STATE_DELETED
		}, true},
		{"a higher epoch begins at entry 0", func(h *indexpb.Head) { h.FoldedEpoch, h.FoldedEntry = 4, 0 }, true},
		{"the folded entry goes back", func(h *indexpb.Head) { h.FoldedEntry = 9 }, false},
		{"the folded epoch goes back", func(h *indexpb.Head) { h.FoldedEpoch, h.FoldedEntry = 2, 50 }, false},
		{"the tail goes back (I1)", func(h *indexpb.Head) { h.Tail = 99 }, false},
		{"timestamps go back (I9)", func(h *indexpb.Head) { h.LastTimestamp = 4999 }, false},
		{"the trim goes back", func(h *indexpb.Head) { h.Trim = 6 }, false},
		{"it is unsealed", func(h *indexpb.Head) { h.State = indexpb.HeadState_HEAD_STATE_ACTIVE }, false},
		{"an older leader opens it (I4)", func(h *indexpb.Head) { h.OpenedEpoch = 3 }, false},
		{"a forgotten producer is known again (I5)", func(h *indexpb.Head) { h.ProducersForgotten = 4 }, false},
		{"forgotten producers may begin again (I5)", func(h *indexpb.Head) { h.ProducersForgottenUntil = 899 }, false},
		{"it moves to another shard", func(h *indexpb.Head) { h.Shard = 3 }, false},
		{"it gets its bucket", func(h *indexpb.Head) { h.BucketId = "b" }, true},
		{"it says where it was deleted", func(h *indexpb.Head) { h.State, h.DeletedChain, h.DeletedSlot = deleted, "c", 4 }, true},
		{"it says so before it is deleted", func(h *indexpb.Head) { h.DeletedChain, h.DeletedSlot = "c", 4 }, false},
		{"a slot of no chain", func(h *indexpb.Head) { h.State, h.DeletedSlot = deleted, 4 }, false},
	} {
		t.Run(c.what, func(t *testing.T) { judge(t, headRule(base, changed(base, c.f), true), c.ok) })
	}
	// What is set once.
	base = changed(base, func(h *indexpb.Head) { h.State, h.BucketId, h.DeletedChain, h.DeletedSlot = deleted, "b", "c", 4 })
	for what, f := range map[string]edit{
		"it moves to another bucket":        func(h *indexpb.Head) { h.BucketId = "d" },
		"it leaves its bucket":              func(h *indexpb.Head) { h.BucketId = "" },
		"it was deleted in another chain":   func(h *indexpb.Head) { h.DeletedChain = "d" },
		"it was deleted in another slot":    func(h *indexpb.Head) { h.DeletedSlot = 3 },
		"where it was deleted is forgotten": func(h *indexpb.Head) { h.DeletedChain, h.DeletedSlot = "", 0 },
	} {
		t.Run(what, func(t *testing.T) { judge(t, headRule(base, changed(base, f), true), false) })
	}
	t.Run("it is made without its stream", func(t *testing.T) { judge(t, headRule(&indexpb.Head{}, base, false), false) })
}

// Every change of a record is a compare-and-set with an attempt id (I6).
func TestChangeNeedsTheVersionAndRecognisesItself(t *testing.T) {
	w := newWorld(t)
	s, _ := w.process()
	ctx := t.Context()
	life := &indexpb.Life{LifeId: stream.NewLifeID().String(), State: indexpb.LifeState_LIFE_STATE_LIVE, Attempt: "one"}
	put := func(l *indexpb.Life, expected int64) (int64, error) {
		res, err := s.PutLife(ctx, &indexpb.PutLifeRequest{Life: l, ExpectedVersion: expected})
		return res.GetVersion(), err
	}
	if _, err := put(changed(life, func(l *indexpb.Life) { l.Attempt = "" }), int64(metastore.Absent)); !reason.Is(err, reason.RuleBroken) {
		t.Fatalf("a change without an attempt id: %v", err)
	}
	v, err := put(life, int64(metastore.Absent))
	if err != nil {
		t.Fatal(err)
	}
	again, err := put(life, int64(metastore.Absent))
	if err != nil || again != v {
		t.Fatalf("the same attempt again: version %d, %v; want %d", again, err, v)
	}
	other := changed(life, func(l *indexpb.Life) { l.Attempt, l.Renewals = "two", 1 })
	_, err = put(other, int64(metastore.Absent))
	wantReason(t, err, reason.VersionConflict)
	_, err = put(other, v+1)
	wantReason(t, err, reason.VersionConflict)
	if _, err := put(other, v); err != nil {
		t.Fatal(err)
	}
	_, err = put(&indexpb.Life{LifeId: "no ulid", Attempt: "x", State: 1}, int64(metastore.Absent))
	if err == nil {
		t.Fatal("an id that is no ULID was accepted")
	}
}

func TestRowsHaveTheirLimits(t *testing.T) {
	w := newWorld(t)
	s, _ := w.process()
	ctx := t.Context()
	chain := stream.NewChainID().String()
	for i, d := range []*indexpb.Directory{
		{ChainId: "x", To: 1, Object: "o", Attempt: "a"},
		{ChainId: chain, From: 1, To: 1, Object: "o", Attempt: "a"},
		{ChainId: chain, To: 1, Attempt: "a"},
		{ChainId: chain, To: 1, Object: "o"},
	} {
		if _, err := s.PutDirectory(ctx, &indexpb.PutDirectoryRequest{Directory: d}); err == nil {
			t.Errorf("directory %d was accepted: %v", i, d)
		}
	}
	if _, err := s.PutHead(ctx, &indexpb.PutHeadRequest{Head: &indexpb.Head{StreamId: "s", Quarantine: strings.Repeat("x", MaxHeadBytes)}}); err == nil {
		t.Error("a head above its limit was accepted (I8)")
	}
	for _, limit := range []uint32{0, metastore.MaxRangeLimit + 1} {
		if _, err := s.ListChains(ctx, &indexpb.ListChainsRequest{Limit: limit}); err == nil {
			t.Errorf("limit %d was accepted", limit)
		}
	}
	for i, d := range []*indexpb.Due{{DueId: "i"}, {Queue: "q"}, {Queue: "q", DueId: "i", At: -1}} {
		d.Attempt = "a"
		if _, err := s.PutDue(ctx, &indexpb.PutDueRequest{Due: d, ExpectedVersion: -1}); !reason.Is(err, reason.RuleBroken) {
			t.Errorf("due marker %d: %v", i, err)
		}
	}
}

// A directory's row is written once: the second absorber of a window loses.
func TestDirectoryRowIsWrittenOnce(t *testing.T) {
	w := newWorld(t)
	s, _ := w.process()
	ctx := t.Context()
	chain := stream.NewChainID().String()
	put := func(from, to uint64, object, attempt string) error {
		_, err := s.PutDirectory(ctx, &indexpb.PutDirectoryRequest{Directory: &indexpb.Directory{ChainId: chain, From: from, To: to, Object: object, Attempt: attempt}})
		return err
	}
	for i := range uint64(20) {
		if err := put(i*10, i*10+10, fmt.Sprint("o", i), fmt.Sprint("a", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := put(0, 10, "o0", "a0"); err != nil {
		t.Fatalf("its own row again: %v", err)
	}
	wantReason(t, put(0, 10, "other", "b"), reason.VersionConflict)
	res, err := s.ListDirectories(ctx, &indexpb.ListDirectoriesRequest{ChainId: chain, From: 50, To: 100, Limit: 3})
	if err != nil || len(res.GetDirectories()) != 3 || !res.GetHasMore() || res.GetDirectories()[0].GetFrom() != 50 {
		t.Fatalf("a page of directories: %v, %v", res, err)
	}
	res, err = s.ListDirectories(ctx, &indexpb.ListDirectoriesRequest{ChainId: chain, From: 80, To: 100, Limit: 3})
	if err != nil || len(res.GetDirectories()) != 2 || res.GetHasMore() {
		t.Fatalf("the last page of directories: %v, %v", res, err)
	}
}
