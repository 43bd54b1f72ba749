package settler

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/nova-stream/nova/libs/history"
	metafault "github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/settled"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// The reply to the change of a head was lost, and what was read then did not show
// it: the run may be named, so its bit stays (I11).
func TestUncertainRunIsLeftToItsJudge(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		l, other := w.open("first"), w.open("first")
		l.append(1, 100)
		other.append(1, 100)
		c.absorb()
		p := w.process(Config{})
		prefix := "head/" + l.id.String()
		p.rows.Script(metafault.Rule{Op: metafault.Put, Prefix: prefix, Nth: 1, Do: metafault.OwnConflict})
		p.rows.Script(metafault.Rule{Op: metafault.Get, Prefix: prefix, Nth: 3, Do: metafault.Stale})
		p.must(w)
		due := w.due(queueSettled)
		if len(due) != 1 {
			t.Fatalf("markers %v", due)
		}
		w.judge(due[0].GetObject())
		w.check()
	})
}

// The judge of an object condemns it while its settler is about to change heads
// (I11).
func TestCondemnedObjectIsNotNamed(t *testing.T) {
	for _, at := range []int{1, 3, 5} {
		t.Run(fmt.Sprint("before head ", at), func(t *testing.T) {
			one(t, func(t *testing.T, w *world, c *written) {
				for range 5 {
					w.open("first").append(1, 100)
				}
				c.absorb()
				p := w.process(Config{})
				var once sync.Mutex
				condemned := ""
				p.rows.Script(metafault.Rule{Op: metafault.Put, Prefix: "head/", Nth: at, Times: 1, Hook: func(context.Context, metafault.Op, string) error {
					once.Lock()
					defer once.Unlock()
					condemned = w.due(queueSettled)[0].GetObject()
					w.judge(condemned)
					return nil
				}})
				p.must(w)
				r, _, err := w.catalog().GetSettled(t.Context(), condemned)
				if err != nil {
					t.Fatal(err)
				}
				runs := w.named()[condemned]
				if len(runs) > 0 != (r.GetState() == indexpb.SettledState_SETTLED_STATE_ADOPTED) {
					t.Errorf("%d runs are named and it is %s", len(runs), r.GetState())
				}
			})
		})
	}
}

// judge does what the judge of an object does.
func (w *world) judge(object string) {
	w.t.Helper()
	ix := w.catalog()
	_, _, err := ix.UpdateSettled(w.ctx, object, func(r *indexpb.SettledObject) (bool, error) {
		r.State = indexpb.SettledState_SETTLED_STATE_CONDEMNED
		return true, nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	o, err := w.objects.Get(w.ctx, object)
	if err != nil {
		w.t.Fatal(err)
	}
	runs, err := settled.Parse(o.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	live := make([]bool, len(runs))
	named := false
	for i, r := range runs {
		h, _, err := ix.BumpHead(w.ctx, r.StreamID)
		if err != nil {
			w.t.Fatal(err)
		}
		live[i], err = history.Names(w.ctx, w.load(r.StreamID), h, &indexpb.Ref{
			Object: object, Run: uint32(i), FirstSeq: uint64(r.First), NextSeq: uint64(r.Next),
		})
		if err != nil {
			w.t.Fatal(err)
		}
		named = named || live[i]
	}
	if !named {
		return // it would be deleted; the row stays
	}
	_, _, err = ix.UpdateSettled(w.ctx, object, func(r *indexpb.SettledObject) (bool, error) {
		r.State, r.Live = indexpb.SettledState_SETTLED_STATE_ADOPTED, settled.NewLive(len(runs), func(run int) bool { return live[run] })
		return true, nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// I1, I2: what a head says at the time of its change counts, not what it said
// when the objects were made.
func TestHeadThatMovedIsFoldedAnew(t *testing.T) {
	one(t, func(t *testing.T, w *world, c *written) {
		for range 4 {
			w.open("first").append(3, 100)
		}
		c.absorb()
		p, other := w.process(Config{}), w.process(Config{})
		p.rows.Script(metafault.Rule{Op: metafault.Put, Prefix: "head/", Nth: 1, Times: 1, Hook: func(context.Context, metafault.Op, string) error {
			// Another settles a part of what this one is about to.
			_, err := other.settle(context.Background(), c.id)
			return err
		}})
		p.must(w)
	})
	one(t, func(t *testing.T, w *world, c *written) {
		l := w.open("first")
		l.append(3, 100)
		c.absorb()
		p := w.process(Config{})
		p.rows.Script(metafault.Rule{Op: metafault.Put, Prefix: "head/", Nth: 1, Times: 1, Hook: func(context.Context, metafault.Op, string) error {
			_, err := w.catalog().TouchHead(context.Background(), l.id, 7)
			return err
		}})
		p.must(w)
		if l.head().GetOpenedEpoch() != 7 {
			t.Error("the leader's touch was undone")
		}
		if n := p.objects.Counts()[fault.PutIfAbsent].Calls; n != 1 {
			t.Errorf("%d objects for a head that a leader touched", n)
		}
	})
}
