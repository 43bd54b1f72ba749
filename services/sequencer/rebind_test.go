package sequencer

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// chainState returns the state of a chain as its record says.
func (w *world) chainState(id string) indexpb.ChainState {
	w.t.Helper()
	res, err := w.index.GetChain(w.t.Context(), &indexpb.GetChainRequest{ChainId: id})
	if err != nil {
		w.t.Fatal(err)
	}
	return res.GetChain().GetState()
}

// chainID returns the id of the writer's present chain.
func (w *writer) chainID() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.chain.id.String()
}

// noted returns how many steps of a name the writer noted.
func (w *writer) noted(step string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, s := range w.steps {
		if s == step {
			n++
		}
	}
	return n
}

// A registered writer is gone when a second node does not reach it either. A
// sequencer that alone does not reach it fences through the second node, and the
// chain goes on for everybody else.
func TestASecondNodeDecidesWhetherAWriterIsGone(t *testing.T) {
	for name, c := range map[string]struct {
		second func(w *world, other *writer)
		sealed bool
	}{
		"it is reached": {func(*world, *writer) {}, false},
		"it is not":     {func(w *world, other *writer) { other.reaches(w.writer.address, nil) }, true},
		"the second cannot tell": {func(_ *world, other *writer) {
			other.mu.Lock()
			defer other.mu.Unlock()
			other.peers = nil
		}, true},
		"another life answers in its place": {func(w *world, other *writer) {
			other.reaches(w.writer.address, newWriter(w.writer.index, w.writer.address))
		}, true},
		"it is not registered any more": {func(w *world, _ *writer) {
			if err := w.registry.Deregister(w.t.Context(), "writer"); err != nil {
				w.t.Fatal(err)
			}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				l, out := w.leadOver(Config{})
				d := w.stream(nil)
				l.append(batch(d, "a"), 0, 1)
				w.writer.script(always(unheard))
				b := l.pending(batch(d, "b"))
				synctest.Wait()
				w.writer.script(nil)
				other := w.another("writer2")
				c.second(w, other)
				id := w.writer.chainID()
				out.sever(w.writer.address, true)
				wantAck(t, receive(t, b), 1, 2)
				l.append(batch(d, "c"), 2, 3)
				w.wantStored(d, "a", "b", "c")
				if at := l.writesTo(); at != other.address {
					t.Errorf("it writes to %s", at)
				}
				if sealed := w.chainState(id) == indexpb.ChainState_CHAIN_STATE_SEALED; sealed != c.sealed {
					t.Errorf("the chain is sealed: %v, want %v", sealed, c.sealed)
				}
				l.stop()
			})
		})
	}
}

// A sequencer that does not reach the writer, nor any second node that could
// tell, leaves the chain alone, however long that lasts and wherever in its
// recovery it began; then it goes on.
func TestACutOffSequencerSealsNothing(t *testing.T) {
	for _, after := range []string{"", "PutShard", "GetChain", "Probe"} {
		t.Run("from "+after, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				l, out := w.leadOver(Config{AppendTimeout: time.Hour})
				d := w.stream(nil)
				l.append(batch(d, "a"), 0, 1)
				w.writer.script(always(lose))
				b := l.pending(batch(d, "b"))
				synctest.Wait()
				w.writer.script(nil)
				other := w.another("writer2")
				id, epoch := w.writer.chainID(), l.recordEpoch(t)
				isolate := func(is bool) {
					out.sever(w.writer.address, is)
					out.sever(other.address, is)
				}
				if after == "" {
					isolate(true)
				} else {
					var opened atomic.Bool
					out.follow(func(method string) meeting {
						if method == "WriteEntries" {
							opened.Store(true)
						}
						if opened.Load() && method == after {
							isolate(true)
						}
						return passes
					})
					w.writer.disconnect()
				}
				time.Sleep(10 * time.Minute)
				silent(t, "what was sent", b)
				if now := l.recordEpoch(t); after == "" && now != epoch {
					t.Errorf("it claimed epoch %d after %d, and reached no writer", now, epoch)
				}
				if w.chainState(id) != indexpb.ChainState_CHAIN_STATE_OPEN || w.writer.noted("seal")+other.noted("seal") != 0 {
					t.Error("a healthy chain was sealed")
				}
				out.follow(nil)
				isolate(false)
				wantAck(t, receive(t, b), 1, 2)
				w.wantStored(d, "a", "b")
				if w.chainState(id) != indexpb.ChainState_CHAIN_STATE_OPEN {
					t.Error("a healthy chain was sealed")
				}
				l.stop()
			})
		})
	}
}

// recordEpoch returns the epoch in the shard's record.
func (l *leader) recordEpoch(t *testing.T) uint64 {
	t.Helper()
	r, _, err := l.w.writer.index.GetShard(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	return r.GetEpoch()
}

// Another chain-writer that takes orders but does not tell what it reaches is no
// second opinion.
func TestNobodyIsSealedOverWithoutASecondOpinion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l, out := w.leadOver(Config{AppendTimeout: time.Hour})
		d := w.stream(nil)
		l.append(batch(d, "a"), 0, 1)
		w.writer.script(always(lose))
		b := l.pending(batch(d, "b"))
		synctest.Wait()
		w.writer.script(nil)
		other := w.another("writer2")
		id := w.writer.chainID()
		out.follow(func(method string) meeting {
			if method == "Probe" {
				return fails
			}
			return passes
		})
		out.sever(w.writer.address, true)
		time.Sleep(10 * time.Minute)
		silent(t, "what was sent", b)
		if w.chainState(id) != indexpb.ChainState_CHAIN_STATE_OPEN || other.noted("seal") != 0 {
			t.Error("a healthy chain was sealed")
		}
		out.follow(nil)
		wantAck(t, receive(t, b), 1, 2) // through the other
		if w.chainState(id) != indexpb.ChainState_CHAIN_STATE_OPEN {
			t.Error("a healthy chain was sealed")
		}
		w.wantStored(d, "a", "b")
		l.stop()
	})
}

// Fences that fail say nothing about a writer that answers: it ends its chain
// itself if it cannot write.
func TestAWriterThatAnswersIsNotSealedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l, out := w.leadOver(Config{})
		d := w.stream(nil)
		l.append(batch(d, "a"), 0, 1)
		w.another("writer2")
		id := w.writer.chainID()
		out.follow(func(method string) meeting {
			if method == "Fence" {
				return fails
			}
			return passes
		})
		w.writer.disconnect()
		time.Sleep(10 * time.Minute)
		if w.chainState(id) != indexpb.ChainState_CHAIN_STATE_OPEN {
			t.Fatal("a chain whose writer answers was sealed")
		}
		out.follow(nil)
		l.append(batch(d, "b"), 1, 2)
		w.wantStored(d, "a", "b")
		l.stop()
	})
}
