package sequencer

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// A shard that comes back to a chain it has left has two segments there, in the
// order of their epochs, so that its log is settled in its order; and one that
// stays has one (I1).
func TestBindingsAreSegments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.another("writer2")
		l := w.lead(Config{IdleStream: time.Microsecond, SettledEvery: time.Hour})
		start := l.writesTo()
		if start != w.writer.address {
			l.moveTo("writer2", "writer")
		}
		d := w.stream(nil)
		l.append(batch(d, "0"), 0, 1)
		a := w.bindings()[len(w.bindings())-1].GetChainId()
		epoch := l.epoch()
		w.writer.disconnect()
		l.later(epoch)
		l.append(batch(d, "1"), 1, 2)
		if b := w.bindings(); b[len(b)-1].GetChainId() == a && (len(b) != 1 || b[0].GetEpoch() > uint64(epoch)) {
			t.Errorf("a shard that stays has the bindings %v", b)
		}
		l.moveTo("writer", "writer2")
		l.append(batch(d, "2"), 2, 3)
		l.moveTo("writer2", "writer")
		l.append(batch(d, "3"), 3, 4)
		names := map[string]string{a: "A"}
		for _, b := range w.bindings() {
			if names[b.GetChainId()] == "" {
				names[b.GetChainId()] = "B"
			}
		}
		if got := segments(w.bindings(), names); got != "ABA" {
			t.Fatalf("the segments are %s: %v", got, w.bindings())
		}
		for i, b := range w.bindings() {
			if i > 0 && b.GetEpoch() <= w.bindings()[i-1].GetEpoch() || b.GetCutKnown() != (i < 2) {
				t.Errorf("the bindings are %v", w.bindings())
			}
		}
		l.evict()
		l.append(batch(d, "4"), 4, 5) // found in both segments of the one chain
		if got := l.open(d); len(got.pieces) != 5 {
			t.Errorf("%d pieces", len(got.pieces))
		}
		// What is behind the other chain's part waits for it.
		first := w.span(a, 1<<40)
		if end := w.bindings()[0].GetCut(); first.to != end {
			t.Errorf("of %v the first chain may be settled up to %d", w.bindings(), first.to)
		}
		w.settleAll()
		if h := w.headOf(d); h.GetTail() != 5 {
			t.Fatalf("the head is %v", h)
		}
		l.followSettled(t.Context())
		if got := segments(w.bindings(), names); got != "A" {
			t.Errorf("the segments are %s when all is settled: %v", got, w.bindings())
		}
		l.wantReadable(d, 0, 5)
		l.evict()
		l.append(batch(d, "5"), 5, 6)
		l.wantReadable(d, 0, 6)
		w.wantStored(d, "0", "1", "2", "3", "4", "5")
		l.stop()
	})
}

// twoChains is a leader that left one chain for another; the first is settled.
func twoChains(t *testing.T, cfg Config) (*world, *leader, *cable, *indexpb.StreamDescriptor) {
	t.Helper()
	w := newWorld(t)
	cfg.SettledEvery = time.Hour
	l, out := w.leadOver(cfg)
	d := w.stream(nil)
	l.append(batch(d, "0"), 0, 1)
	epoch := l.epoch()
	if err := w.writer.end(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.later(epoch)
	l.append(batch(d, "1"), 1, 2)
	w.span(w.writer.chainIDs()[0], 1<<40).settle()
	if n := len(w.bindings()); n != 2 {
		t.Fatalf("%d bindings", n)
	}
	return w, l, out, d
}

// A shard is unbound from what is settled, whatever becomes of the change of its
// record, and its leader neither stops nor believes that the shard is lost.
func TestUnbindingMeetsFaults(t *testing.T) {
	for what, rule := range map[string]fault.Rule{
		"nothing":          {Do: fault.Pass},
		"fails":            {Do: fault.FailBefore},
		"loses its reply":  {Do: fault.LoseReply},
		"meets itself":     {Do: fault.OwnConflict},
		"hangs":            {Do: fault.Hang},
		"lands, and hangs": {Do: fault.HangAfter},
		"lands later":      {Do: fault.LandLate},
	} {
		for _, then := range []string{"goes on", "loses its connection", "is handed over"} {
			t.Run(what+", then the shard "+then, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w, l, _, d := twoChains(t, Config{LeaseTTL: time.Second})
					epoch := l.epoch()
					rule.Op, rule.Prefix, rule.Nth, rule.Times = fault.Put, "shard/", 1, 100
					l.rows.Script(rule)
					l.followSettled(t.Context())
					l.rows.Clear()
					if _, version, err := w.writer.index.GetShard(t.Context(), 0); err != nil || version != l.shard().version {
						t.Errorf("it knows version %d of the record, %d is there, %v", l.shard().version, version, err)
					}
					if l.epoch() != epoch || !l.shard().serving.Load() {
						t.Errorf("it leads under %d after %d, serves %v", l.epoch(), epoch, l.shard().serving.Load())
					}
					l.append(batch(d, "2"), 2, 3)
					leader := l
					defer func() {
						l.rows.Land(t.Context()) // what comes so late changes nothing
						leader.append(batch(d, "4"), 4, 5)
						w.wantStored(d, "0", "1", "2", "3", "4")
						leader.stop()
						l.stop()
					}()
					if then == "goes on" {
						l.rows.Land(t.Context())
					}
					switch then {
					case "goes on":
						l.followSettled(t.Context()) // finds out
						l.followSettled(t.Context()) // and does it
						if b := w.bindings(); len(b) != 1 || l.epoch() != epoch {
							t.Errorf("epoch %d after %d, bindings %v", l.epoch(), epoch, b)
						}
					case "loses its connection":
						w.writer.disconnect()
						l.later(epoch)
						l.followSettled(t.Context())
						l.followSettled(t.Context())
						if b := w.bindings(); len(b) != 1 {
							t.Errorf("bindings %v", b)
						}
					case "is handed over":
						leader = w.start(Config{LeaseTTL: time.Second})
						eventually(t, "the successor lives", func() bool { return leader.lease.valid() })
						l.SetDraining(true)
						eventually(t, "it is handed over", serves(leader))
						if l.holds() || leader.epoch() != epoch+1 {
							t.Errorf("both hold the shard: %v; the successor has epoch %d after %d", l.holds(), leader.epoch(), epoch)
						}
					}
					leader.append(batch(d, "3"), 3, 4)
					w.wantStored(d, "0", "1", "2", "3")
					leader.wantReadable(d, 0, 4)
				})
			})
		}
	}
}

// While the shard's record is being changed, the shard's chain is lost, or another
// life takes the shard: recovery goes its way, and nothing comes back that was
// decided.
func TestUnbindingBesideRecovery(t *testing.T) {
	for _, what := range []string{"its chain ends", "another takes the shard"} {
		for _, does := range []meeting{passes, fails, unasked} {
			t.Run(what+" while the change "+does.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w, l, out, d := twoChains(t, Config{})
					epoch := l.epoch()
					leader := l
					var puts atomic.Int64
					out.follow(func(method string) meeting {
						if method != "PutShard" || puts.Add(1) > 1 {
							return passes
						}
						if what == "its chain ends" {
							if err := w.writer.end(t.Context()); err != nil {
								t.Error(err)
							}
							time.Sleep(100 * time.Millisecond)
						} else {
							leader, _ = w.startOver(Config{FormerLivesDead: true})
							eventually(t, "another leads", serves(leader))
						}
						return does
					})
					l.followSettled(t.Context())
					out.follow(nil)
					if leader == l {
						l.later(epoch)
					}
					leader.append(batch(d, "2"), 2, 3)
					leader.followSettled(t.Context())
					leader.followSettled(t.Context())
					leader.append(batch(d, "3"), 3, 4)
					w.wantStored(d, "0", "1", "2", "3")
					leader.wantReadable(d, 0, 4)
					leader.stop()
					l.stop()
				})
			})
		}
	}
}

// A binding whose confirmation is lost, and then its chain: the shard leaves that
// chain as any other, under the next epoch (I4).
func TestABindingThatWasNotConfirmedIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l, out := w.leadOver(Config{SettledEvery: time.Hour})
		d := w.stream(nil)
		l.append(batch(d, "0"), 0, 1)
		epoch := l.epoch()
		if err := w.writer.end(t.Context()); err != nil {
			t.Fatal(err)
		}
		var puts atomic.Int64
		began := time.Now()
		out.follow(func(method string) meeting {
			if method != "PutShard" {
				return passes
			}
			switch n := puts.Add(1); {
			case n == 1 || time.Since(began) > 20*time.Second:
				return passes
			case n == 2: // it binds the shard
				return unasked
			case n == 3:
				if err := w.writer.end(t.Context()); err != nil {
					t.Error(err)
				}
			}
			return fails
		})
		l.later(epoch)
		if l.epoch() < epoch+2 || len(w.writer.chainIDs()) != 3 {
			t.Errorf("epoch %d after %d, %d chains", l.epoch(), epoch, len(w.writer.chainIDs()))
		}
		out.follow(nil)
		l.append(batch(d, "1"), 1, 2)
		w.wantStored(d, "0", "1")
		w.settleAll()
		l.followSettled(t.Context())
		l.wantReadable(d, 0, 2)
		l.stop()
	})
}

// A shard that was in another chain without an entry there goes on in its former
// one behind what it had there.
func TestComingBackFromAnEmptySegment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := w.lead(Config{IdleStream: time.Microsecond, SettledEvery: time.Hour})
		d := w.stream(nil)
		l.append(batch(d, "0"), 0, 1)
		other := w.another("writer2")
		l.moveTo("writer", "writer2")
		w.announce("writer", w.writer, nil)
		w.announce("writer2", other, map[string]string{"draining": "yes"})
		if err := other.end(t.Context()); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is back", func() bool { return l.writesTo() == w.writer.address })
		b := w.bindings()
		if a := w.writer.chainID(); len(b) != 2 || b[0].GetChainId() != a || b[1].GetChainId() != a || !b[0].GetCutKnown() || b[0].GetEpoch() >= b[1].GetEpoch() {
			t.Errorf("bindings %v", b)
		}
		l.append(batch(d, "1"), 1, 2)
		l.evict()
		l.append(batch(d, "2"), 2, 3)
		w.settleAll()
		l.followSettled(t.Context())
		if b := w.bindings(); len(b) != 1 {
			t.Errorf("bindings %v", b)
		}
		l.wantReadable(d, 0, 3)
		w.wantStored(d, "0", "1", "2")
		l.stop()
	})
}
