package sequencer

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
)

// A stream that leaves between the numbering of an entry and its place in the
// shard's line has answered for it: no later epoch of the same life may send it
// (I1), and a commit that comes late finds nothing to answer.
func TestAnEntryOfAStreamThatLeftIsNeverSent(t *testing.T) {
	w := newWorld(t)
	l := w.lead(Config{})
	d := w.stream(nil)
	l.append(batch(d, "a"), 0, 1)
	st, sh := l.open(d), l.shard()
	e := &entry{st: st, kind: bundle.KindSeal}
	st.mu.Lock()
	st.inflight = append(st.inflight, e)
	st.mu.Unlock()
	sh.drop(nil)
	sh.submit(e)
	sh.mu.Lock()
	n := len(sh.pending)
	sh.mu.Unlock()
	if n != 0 {
		t.Errorf("%d entries of streams that left wait for a later epoch", n)
	}
	chain := stream.ChainID{}
	st.commit(e, sh.pieceAt(chain, &chainwriterpb.Coordinates{})) // must not panic
}

// A refused entry gives its credit back, or the link stands still for all shards.
func TestARefusedEntryGivesItsCreditBack(t *testing.T) {
	w := newWorld(t)
	w.writer.credit = 1
	l := w.lead(Config{})
	d := w.stream(nil)
	l.append(batch(d, "a"), 0, 1)
	var once atomic.Bool
	w.writer.script(func(*chainwriterpb.Entry) fate {
		if once.CompareAndSwap(false, true) {
			return fence
		}
		return land
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := l.Append(ctx, batch(d, "b")); err != nil {
		t.Errorf("after a refusal: %v", err)
	}
}

// A renewal that landed and whose reply was lost must not end the life: the next
// one meets its version.
func TestAnOwnRenewalThatLandedUnseenDoesNotEndTheLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := w.lead(Config{})
		d := w.stream(nil)
		l.append(batch(d, "a"), 0, 1)
		l.rows.Script(fault.Rule{Op: fault.Put, Prefix: "life/", Nth: 1, Do: fault.LoseReply, Hook: func(context.Context, fault.Op, string) error {
			l.rows.Script(fault.Rule{Op: fault.Any, Prefix: "life/", Do: fault.FailBefore})
			return nil
		}})
		time.Sleep(14 * time.Second)
		l.rows.Clear()
		time.Sleep(10 * time.Second)
		select {
		case <-l.ended:
			t.Errorf("the life ended: %v", l.err)
		default:
		}
		if !l.lease.valid() {
			t.Error("the lease is not renewed")
		}
		l.stop()
	})
}
