package sequencer

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// openingCalls are the calls that an opening consists of.
var openingCalls = []string{"GetChain", "AbsorbTo", "GetHead", "PutHead", "LookupEntries", "GetDescriptor"}

// settleSteps are what may come between two calls of others.
var settleSteps = map[string]func(*span){
	"is folded":           (*span).fold,
	"is settled":          func(s *span) { s.fold(); s.advance() },
	"is settled and gone": (*span).settle,
}

// A stream is opened while what it consists of is settled, wholly or in part, at
// any point of the opening: it gets all its records, and no number twice (I1, I2).
func TestOpeningBesideSettling(t *testing.T) {
	for what, step := range settleSteps {
		for _, upTo := range []uint64{2, 1 << 40} {
			for _, warm := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s up to %d, known chain %v", what, upTo, warm), func(t *testing.T) {
					for nth, met := 1, ""; nth == 1 || met != ""; nth++ {
						synctest.Test(t, func(t *testing.T) { met = openBeside(t, step, upTo, warm, nth) })
						if t.Failed() {
							t.Fatalf("it was before call %d, %s", nth, met)
						}
						if met == "" && nth < 5 {
							t.Fatalf("an opening has only %d calls", nth-1)
						}
					}
				})
			}
		}
	}
}

// openBeside settles before the n-th call of an opening, and returns which call
// that was; none if there were fewer.
func openBeside(t *testing.T, step func(*span), upTo uint64, warm bool, nth int) (met string) {
	w := newWorld(t)
	l, out := w.leadOver(Config{IdleStream: time.Microsecond, SettledEvery: time.Hour})
	d, other := w.stream(nil), w.stream(nil)
	for i := range uint64(3) {
		l.append(batch(d, fmt.Sprint(i)), i, i+1)
		l.append(batch(other, fmt.Sprint(i)), i, i+1)
	}
	l.evict()
	if warm { // the chain's record is known as it was before
		l.append(batch(other, "3"), 3, 4)
		l.evict()
	}
	var n atomic.Int64
	chain := w.writer.chainID()
	out.follow(func(method string) meeting {
		if slices.Contains(openingCalls, method) && n.Add(1) == int64(nth) {
			met = method
			step(w.span(chain, upTo))
		}
		return passes
	})
	l.append(batch(d, "3"), 3, 4)
	out.follow(nil)
	w.wantStored(d, "0", "1", "2", "3")
	l.wantReadable(d, 0, 4)
	l.followSettled(t.Context())
	l.wantReadable(d, 0, 4)
	// Once more, now that it is settled.
	l.evict()
	l.append(batch(d, "4"), 4, 5)
	l.wantReadable(d, 0, 5)
	l.stop()
	return met
}

// Directories that are gone again and again, because the chain's record that is
// read is old, end an opening as something that passes.
func TestOpeningOverGoneDirectoriesEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := w.lead(Config{IdleStream: time.Microsecond, SettledEvery: time.Hour})
		d := w.stream(nil)
		l.append(batch(d, "a"), 0, 1)
		l.evict()
		s := w.span(w.writer.chainID(), 1<<40)
		s.fold()
		s.discard() // and settled_to seems not to have moved
		_, err := l.Append(t.Context(), batch(d, "b"))
		wantRefusal(t, err, "")
		if reason.Code(err) != codes.Unavailable {
			t.Errorf("got %v", err)
		}
		s.advance()
		l.append(batch(d, "b"), 1, 2)
		w.wantStored(d, "a", "b")
		l.stop()
	})
}

// Damage in a directory that was settled before anybody noticed hurts nobody.
func TestDamageInWhatIsSettledQuarantinesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := w.lead(Config{IdleStream: time.Microsecond, SettledEvery: time.Hour})
		d := w.stream(nil)
		l.append(batch(d, "a"), 0, 1)
		l.evict()
		l.state(d) // so that the chain's record is known
		l.evict()
		s := w.span(w.writer.chainID(), 1<<40)
		s.fold()
		s.advance()
		w.writer.spoil(d, func(req *lookupRequest, _ *lookupResponse) error {
			if req.GetFrom() == 0 {
				return errDirectory()
			}
			return nil
		})
		l.append(batch(d, "b"), 1, 2)
		w.wantStored(d, "a", "b")
		l.stop()
	})
}

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

// What was settled while it was pending is acknowledged with its first numbers,
// wherever in a recovery that happens (I1, I2).
func TestPendingThatIsSettledIsAcknowledged(t *testing.T) {
	for what, step := range settleSteps {
		for _, upTo := range []uint64{2, 3, 1 << 40} {
			t.Run(fmt.Sprintf("%s up to %d", what, upTo), func(t *testing.T) {
				for nth, met := 0, ""; nth == 0 || met != ""; nth++ {
					synctest.Test(t, func(t *testing.T) { met = settlePending(t, step, upTo, nth) })
					if t.Failed() {
						t.Fatalf("it was before call %d, %s", nth, met)
					}
					if met == "" && nth < 8 {
						t.Fatalf("a recovery has only %d calls", nth-1)
					}
				}
			})
		}
	}
}

// settlePending settles pending entries before the n-th call of a recovery, or
// before it begins.
func settlePending(t *testing.T, step func(*span), upTo uint64, nth int) (met string) {
	w := newWorld(t)
	l, out := w.leadOver(Config{SettledEvery: time.Hour})
	d, other := w.stream(nil), w.stream(nil)
	l.append(produced(d, 0, "0"), 0, 1)
	w.writer.script(always(unheard))
	pending := []<-chan answer{l.pending(produced(d, 1, "1")), l.pending(batch(other, "x")), l.pending(produced(d, 2, "2"))}
	synctest.Wait()
	w.writer.script(always(lose))
	lost := l.pending(produced(d, 3, "3"))
	synctest.Wait()
	w.writer.script(nil)
	chain := w.writer.chainID()
	if nth == 0 {
		met = "none"
		step(w.span(chain, upTo))
	}
	var n atomic.Int64
	out.follow(func(method string) meeting {
		if (slices.Contains(recoveryCalls, method) || slices.Contains(openingCalls, method)) && n.Add(1) == int64(nth) {
			met = method
			if s := w.span(chain, upTo); s != nil {
				step(s)
			}
		}
		return passes
	})
	w.writer.disconnect()
	wantAck(t, receive(t, pending[0]), 1, 2)
	wantAck(t, receive(t, pending[1]), 0, 1)
	wantAck(t, receive(t, pending[2]), 2, 3)
	wantAck(t, receive(t, lost), 3, 4)
	out.follow(nil)
	l.append(produced(d, 4, "4"), 4, 5)
	w.wantStored(d, "0", "1", "2", "3", "4")
	w.wantStored(other, "x")
	l.wantReadable(d, 0, 5)
	l.followSettled(t.Context())
	l.wantReadable(d, 0, 5)
	l.wantReadable(other, 0, 1)
	l.stop()
	return met
}

// A stream whose log is damaged does not hold up its shard: what it sent and nobody
// can tell of is UNKNOWN; what the others sent is decided (I2).
func TestADamagedPendingStreamHoldsUpNobody(t *testing.T) {
	for what, damage := range map[string]func(w *world, d *indexpb.StreamDescriptor){
		"a damaged block": func(w *world, d *indexpb.StreamDescriptor) {
			w.writer.spoil(d, func(*lookupRequest, *lookupResponse) error { return errDirectory() })
		},
		"quarantined while it was settled": func(w *world, d *indexpb.StreamDescriptor) {
			w.head(d, func(h *indexpb.Head) {
				h.Quarantine, h.Pins = "damaged", []*indexpb.Pin{{ChainId: w.writer.chainID(), From: 1, To: 2}}
			})
			s := w.span(w.writer.chainID(), 1<<40)
			if _, err := w.writer.index.UpdateChain(w.t.Context(), s.chain.id.String(), func(r *indexpb.Chain) (bool, error) {
				r.SettledTo, r.Pins = s.to, []*indexpb.ChainPin{{StreamId: d.GetStreamId(), From: 1, To: 2}}
				return true, nil
			}); err != nil {
				w.t.Fatal(err)
			}
			s.fold() // but for d
			s.discard()
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				l := w.lead(Config{SettledEvery: time.Hour})
				d, other := w.stream(nil), w.stream(nil)
				l.append(batch(other, "0"), 0, 1)
				w.writer.script(always(unheard))
				a, b := l.pending(batch(d, "a")), l.pending(batch(other, "1"))
				synctest.Wait()
				w.writer.script(always(lose))
				c := l.pending(batch(other, "2"))
				synctest.Wait()
				w.writer.script(nil)
				damage(w, d)
				epoch := l.epoch()
				w.writer.disconnect()
				wantFailure(t, receive(t, a).err, "", reason.Unknown)
				wantAck(t, receive(t, b), 1, 2)
				wantAck(t, receive(t, c), 2, 3)
				l.later(epoch)
				l.append(batch(other, "3"), 3, 4)
				w.wantStored(other, "0", "1", "2", "3")
				_, err := l.Append(t.Context(), batch(d, "x"))
				wantRefusal(t, err, "")
				if reason.Code(err) != codes.DataLoss {
					t.Errorf("it is served: %v", err)
				}
				l.stop()
			})
		})
	}
}

// Coordinates are forgotten of what is settled and of nothing else, in the order of
// the stream; readers are told where they begin, and their budget is given back.
func TestCoordinatesOfWhatIsSettledAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := w.lead(Config{SettledEvery: time.Hour})
		d := w.stream(nil)
		var want []string
		add := func(bodies ...string) {
			n := uint64(len(want))
			l.append(batch(d, bodies...), n, n+uint64(len(bodies)))
			want = append(want, bodies...)
		}
		add("0", "1")
		add("2")
		epoch := l.epoch()
		if err := w.writer.end(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.later(epoch)
		add("3")
		add("4")
		chains := w.writer.chainIDs()
		hasCoordinates := func(settled uint64, pieces int) {
			t.Helper()
			st := l.open(d)
			if uint64(st.settledTo) != settled || len(st.pieces) != pieces || l.coordinates.Load() != int64(pieces)*pieceBytes {
				t.Errorf("settled to %d, %d pieces, %d bytes are counted; want %d, %d", st.settledTo, len(st.pieces), l.coordinates.Load(), settled, pieces)
			}
			stored := uint64(0)
			for _, p := range st.pieces {
				stored += uint64(p.length)
			}
			if l.state(d).GetStoredBytes() != stored {
				t.Errorf("%d bytes are stored, want %d", l.state(d).GetStoredBytes(), stored)
			}
			l.wantReadable(d, 0, uint64(len(want)))
		}
		hasCoordinates(0, 4)
		if s := w.span(chains[1], 1<<40); s != nil {
			t.Fatalf("a chain may be settled to %d before the one before it", s.to)
		}
		s := w.span(chains[0], 1)
		s.fold()
		l.followSettled(t.Context())
		hasCoordinates(0, 4) // nothing is, before settled_to says so
		s.advance()
		l.followSettled(t.Context())
		hasCoordinates(2, 3)
		w.span(chains[0], 1<<40).settle()
		// An old read of the first chain's record does not make a hole.
		w.span(chains[1], 1).settle()
		l.chains.keep(nil)
		l.rows.Script(fault.Rule{Op: fault.Get, Prefix: "chain/" + chains[0], Do: fault.Stale, Back: 1})
		l.followSettled(t.Context())
		hasCoordinates(2, 3)
		l.rows.Clear()
		l.followSettled(t.Context())
		hasCoordinates(4, 1)
		if b := w.bindings(); len(b) != 1 {
			t.Errorf("bindings %v", b)
		}
		w.settleAll()
		l.followSettled(t.Context())
		hasCoordinates(5, 0)
		add("5")
		hasCoordinates(5, 1)
		w.wantStored(d, want...)
		l.stop()
	})
}

// A stream that comes into memory with coordinates of a chain that the shard was
// unbound from meanwhile loses them too.
func TestCoordinatesOfAnUnboundChainAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l, out := w.leadOver(Config{IdleStream: time.Microsecond, SettledEvery: time.Hour})
		d := w.stream(nil)
		l.append(batch(d, "0"), 0, 1)
		epoch := l.epoch()
		if err := w.writer.end(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.later(epoch)
		l.append(batch(d, "1"), 1, 2)
		l.evict()
		var once atomic.Bool
		out.follow(func(method string) meeting {
			if method == "GetDescriptor" && once.CompareAndSwap(false, true) { // the last call of an opening
				s := w.span(w.writer.chainIDs()[0], 1<<40)
				s.settle()
				l.followSettled(t.Context())
			}
			return passes
		})
		l.state(d)
		if n := len(w.bindings()); n != 1 || len(l.open(d).pieces) != 2 {
			t.Fatalf("%d bindings, %d pieces", n, len(l.open(d).pieces))
		}
		l.followSettled(t.Context())
		if n := len(l.open(d).pieces); n != 1 {
			t.Errorf("%d pieces", n)
		}
		l.wantReadable(d, 0, 2)
		l.stop()
	})
}

// What is known of chains is forgotten when no shard is bound to them any more (I8).
func TestChainsThatAreLeftAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, l, _, d := twoChains(t, Config{IdleStream: time.Microsecond})
		l.evict()
		l.append(batch(d, "2"), 2, 3)
		known := func() (n int) {
			l.chains.mu.Lock()
			defer l.chains.mu.Unlock()
			first := w.writer.chainIDs()[0]
			for _, is := range []bool{l.chains.records[first] != nil, l.chains.absorbed[first] > 0, l.chains.wanted[first] > 0, l.chains.sealed[first] > 0} {
				n += flag(is)
			}
			l.chainNames.Range(func(k, _ any) bool { n += flag(k.(fmt.Stringer).String() == first); return true })
			return n
		}
		if n := known(); n < 3 {
			t.Errorf("only %d things are known", n)
		}
		l.followSettled(t.Context())
		if n := known(); n != 0 {
			t.Errorf("%d things are known of a chain that was left", n)
		}
		l.append(batch(d, "3"), 3, 4)
		l.stop()
	})
}

// Whatever is fetched from below what is settled comes without pieces and at once;
// what is fetched by time is looked for there first (I2).
func TestFetchBelowWhatIsSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := w.lead(Config{SettledEvery: time.Hour})
		d := w.stream(&novapb.StreamConfig{Timestamping: novapb.TimestampingMode_TIMESTAMPING_MODE_CLIENT_PREFER})
		dated := func(ts int64, n uint64) {
			req := batch(d, "x")
			req.Records[0].SetTimestamp(ts)
			l.append(req, n, n+1)
		}
		for i := range uint64(6) { // record i at 100+10*i
			dated(int64(100+10*i), i)
		}
		if _, err := l.trim(d, 1); err != nil {
			t.Fatal(err)
		}
		w.span(w.writer.chainID(), 4).settle()
		l.followSettled(t.Context())

		bySeq := func(n uint64) *sequencerpb.FetchRequest {
			return &sequencerpb.FetchRequest{Start: &sequencerpb.FetchRequest_Seq{Seq: n}}
		}
		byTime := func(ts int64) *sequencerpb.FetchRequest {
			return &sequencerpb.FetchRequest{Start: &sequencerpb.FetchRequest_Timestamp{Timestamp: ts}}
		}
		back := func(n uint64) *sequencerpb.FetchRequest {
			return &sequencerpb.FetchRequest{Start: &sequencerpb.FetchRequest_TailOffset{TailOffset: n}}
		}
		clamped := bySeq(0)
		clamped.Clamp = true
		for what, c := range map[string]struct {
			req   *sequencerpb.FetchRequest
			start uint64
			n     int  // pieces
			seek  bool // among settled records
			err   reason.Reason
		}{
			"trimmed":                       {req: bySeq(0), err: reason.Trimmed},
			"below the first one, clamped":  {req: clamped, start: 1},
			"the first one":                 {req: bySeq(1), start: 1},
			"none":                          {req: &sequencerpb.FetchRequest{}, start: 1},
			"the last settled one":          {req: bySeq(3), start: 3},
			"the first that is not settled": {req: bySeq(4), start: 4, n: 2},
			"the tail":                      {req: bySeq(6), start: 6},
			"beyond it":                     {req: bySeq(7), err: reason.BeyondTail},
			"three from the end":            {req: back(3), start: 3},
			"two from the end":              {req: back(2), start: 4, n: 2},
			"more than there are":           {req: back(60), start: 1},
			"a time before all":             {req: byTime(5), start: 1, seek: true},
			"a time of a settled one":       {req: byTime(120), start: 1, seek: true},
			"that of the last settled one":  {req: byTime(130), start: 1, seek: true},
			"one behind it":                 {req: byTime(131), start: 4, n: 2},
			"that of one that is not":       {req: byTime(150), start: 5, n: 1},
			"a time behind all":             {req: byTime(151), start: 6},
		} {
			c.req.Stream, c.req.MaxBytes = key(d), 1<<20
			for _, wait := range []uint32{0, 1000} {
				c.req.WaitMs = wait
				began := time.Now()
				res, err := l.Fetch(t.Context(), c.req)
				if c.err != "" {
					if !reason.Is(err, c.err) {
						t.Errorf("%s: %v, %v", what, res, err)
					}
					continue
				}
				if err != nil || res.GetStartSeq() != c.start || len(res.GetPieces()) != c.n || res.GetSeekSettled() != c.seek || res.GetSettledTo() != 4 {
					t.Errorf("%s: %v, %v; want start %d and %d pieces", what, res, err, c.start, c.n)
				}
				if waited := time.Since(began) > 0; waited != (wait > 0 && c.start == 6) {
					t.Errorf("%s: waited %v", what, waited)
				}
			}
		}

		// All that is settled is trimmed: there is nothing to seek.
		if _, err := l.trim(d, 4); err != nil {
			t.Fatal(err)
		}
		req := byTime(5)
		req.Stream, req.MaxBytes = key(d), 1<<20
		if res, err := l.Fetch(t.Context(), req); err != nil || res.GetSeekSettled() || res.GetStartSeq() != 4 || len(res.GetPieces()) != 2 {
			t.Errorf("%v, %v", res, err)
		}
		l.stop()
	})
}

// Who waits at the tail while all before it is settled goes on with what comes (I2).
func TestWaitingAtTheTailWhileItIsSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := w.lead(Config{SettledEvery: time.Hour})
		d := w.stream(nil)
		l.append(batch(d, "a"), 0, 1)
		for _, req := range []*sequencerpb.FetchRequest{
			{Start: &sequencerpb.FetchRequest_TailOffset{TailOffset: 0}},
			{Start: &sequencerpb.FetchRequest_Timestamp{Timestamp: 1 << 60}},
		} {
			tail := l.state(d).GetTail()
			req.Stream, req.MaxBytes, req.WaitMs = key(d), 1<<20, 60_000
			got := make(chan *sequencerpb.FetchResponse, 1)
			go func() {
				res, err := l.Fetch(t.Context(), req)
				if err != nil {
					t.Error(err)
				}
				got <- res
			}()
			synctest.Wait()
			w.settleAll()
			l.followSettled(t.Context())
			synctest.Wait()
			silent(t, "the fetch", got)
			if req.GetTimestamp() > 0 {
				time.Sleep(2 * time.Minute) // it ends by itself, having found nothing
				if res := receive(t, got); len(res.GetPieces()) > 0 || res.GetSeekSettled() {
					t.Errorf("got %v", res)
				}
				continue
			}
			l.append(batch(d, "b"), tail, tail+1)
			if res := receive(t, got); len(res.GetPieces()) != 1 || res.GetStartSeq() != tail || res.GetSettledTo() != tail {
				t.Errorf("got %v, want the piece of %d", res, tail)
			}
		}
		l.stop()
	})
}

// A stream that is quarantined while its leader has it open keeps its coordinates,
// and is not served any more once it is at rest. When that is lifted and its head
// lacks what was settled meanwhile, it is not served as if that had never been (I2).
func TestPinnedRecordsAreNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, l, _, other := twoChains(t, Config{})
		d := w.stream(nil)
		l.append(batch(d, "a"), 0, 1)
		epoch := l.epoch()
		if err := w.writer.end(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.later(epoch)
		l.append(batch(d, "b"), 1, 2)
		second := w.writer.chainIDs()[1]
		w.head(d, func(h *indexpb.Head) {
			h.Quarantine, h.Pins = "damaged", []*indexpb.Pin{{ChainId: second, From: 1, To: 2}}
		})
		s := w.span(second, 1<<40)
		s.fold()
		if _, err := w.writer.index.UpdateChain(t.Context(), second, func(r *indexpb.Chain) (bool, error) {
			r.SettledTo, r.Pins = s.to, []*indexpb.ChainPin{{StreamId: d.GetStreamId(), From: 1, To: 2}}
			return true, nil
		}); err != nil {
			t.Fatal(err)
		}
		s.discard()
		synctest.Wait() // nobody pumps
		st := l.open(d)
		l.evictIdle()
		st.addWaiters(1) // so that it stays
		l.followSettled(t.Context())
		if n := len(st.pieces); n != 2 || st.settledTo != 0 {
			t.Fatalf("%d pieces, settled to %d", n, st.settledTo)
		}
		st.addWaiters(-1)
		l.followSettled(t.Context())
		if l.open(d) != nil {
			t.Error("it stays in memory")
		}
		wantQuarantine(t, l, d, 1)
		chains := func() (out []string) {
			for _, b := range w.bindings() {
				out = append(out, b.GetChainId())
			}
			return out
		}
		if got := chains(); !slices.Equal(got, w.writer.chainIDs()[1:]) {
			t.Errorf("the shard is bound to %v", got)
		}
		// Lifted without its records.
		w.head(d, func(h *indexpb.Head) { h.Quarantine, h.Pins = "", nil })
		time.Sleep(2 * quarantineLook)
		_, err := l.Append(t.Context(), batch(d, "c"))
		wantRefusal(t, err, "")
		// And with them.
		w.settle(d)
		if _, err := w.writer.index.UpdateChain(t.Context(), second, func(r *indexpb.Chain) (bool, error) {
			r.Pins = nil
			return true, nil
		}); err != nil {
			t.Fatal(err)
		}
		l.followSettled(t.Context())
		l.append(batch(d, "c"), 2, 3)
		l.append(batch(other, "2"), 2, 3)
		l.wantReadable(d, 0, 3)
		l.stop()
	})
}

// The bytes of a stream are counted once, whether they are settled, have
// coordinates, or both.
func TestStoredBytesAreCountedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := w.lead(Config{SettledEvery: time.Hour})
		d := w.stream(nil)
		for i := range uint64(3) {
			l.append(batch(d, "same"), i, i+1)
		}
		stored := func(settledToo bool) uint64 {
			t.Helper()
			res, err := l.GetState(t.Context(), &sequencerpb.GetStateRequest{Stream: key(d), StoredBytes: settledToo})
			if err != nil {
				t.Fatal(err)
			}
			return res.GetState().GetStoredBytes()
		}
		all := stored(false)
		if all == 0 || stored(true) != all {
			t.Errorf("%d and %d bytes are stored", all, stored(true))
		}
		const frames = 1 // of the test's refs
		s := w.span(w.writer.chainID(), 2)
		s.fold()
		want := all/3 + frames
		if got := stored(true); got != want {
			t.Errorf("%d bytes are stored of which some have coordinates, too; want %d", got, want)
		}
		s.advance()
		l.followSettled(t.Context())
		if got := stored(true); got != want || stored(false) != all/3 {
			t.Errorf("%d bytes are stored, want %d; %d of them with coordinates", got, want, stored(false))
		}
		// A head that was read as it was before says too little.
		old := l.rows.Script(fault.Rule{Op: fault.Get, Prefix: "head/", Do: fault.Stale, Times: 1})
		if got := stored(true); got != want || old.Acted() != 1 {
			t.Errorf("%d bytes are stored after %d old reads, want %d", got, old.Acted(), want)
		}
		l.rows.Script(fault.Rule{Op: fault.Get, Prefix: "head/", Do: fault.Stale})
		if _, err := l.GetState(t.Context(), &sequencerpb.GetStateRequest{Stream: key(d), StoredBytes: true}); reason.Code(err) != codes.Unavailable {
			t.Errorf("only old reads: %v", err)
		}
		l.stop()
	})
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
