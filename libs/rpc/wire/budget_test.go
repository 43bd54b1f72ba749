package wire

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"pgregory.net/rapid"

	"github.com/nova-stream/nova/libs/reason"
)

// Whatever calls do, no more is taken than the budget has (I8); a call's floor is
// there for it at once; and when all are over, nothing is left.
func TestBudgetIsNeverExceeded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size, floor = 1000, 20
		b := NewBudget(BudgetConfig{Bytes: size, Stall: time.Hour})
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // nobody waits
		var calls []*Call
		rooms := map[*Call][]*Room{}
		sums := func() (all int64) {
			for _, c := range calls {
				var held int64
				for _, r := range rooms[c] {
					held += r.Size()
				}
				all += max(held, floor)
			}
			return all
		}
		t.Repeat(map[string]func(*rapid.T){
			"open": func(t *rapid.T) {
				if c, err := b.Open(ctx, floor, nil); err == nil {
					calls = append(calls, c)
				} else if len(calls)*floor < size/2 && b.Used()+floor <= size {
					t.Fatalf("refused with %d of %d used", b.Used(), size)
				}
			},
			"take": func(t *rapid.T) {
				if len(calls) == 0 {
					return
				}
				c := rapid.SampledFrom(calls).Draw(t, "call")
				want := rapid.Int64Range(1, size).Draw(t, "want")
				least := rapid.Int64Range(1, want).Draw(t, "least")
				var r *Room
				if rapid.Bool().Draw(t, "wait") {
					r, _ = c.Take(ctx, want, least)
				} else {
					r = c.Try(want, least)
				}
				if r == nil {
					if len(rooms[c]) == 0 && least <= floor {
						t.Fatalf("a call that holds nothing did not get %d of its floor", least)
					}
					return
				}
				if r.Size() < least || r.Size() > want {
					t.Fatalf("room for %d, want %d to %d", r.Size(), least, want)
				}
				rooms[c] = append(rooms[c], r)
			},
			"shrink": func(t *rapid.T) {
				for _, c := range calls {
					for _, r := range rooms[c] {
						r.Shrink(rapid.Int64Range(0, size).Draw(t, "to"))
						return
					}
				}
			},
			"free": func(*rapid.T) {
				for _, c := range calls {
					if rs := rooms[c]; len(rs) > 0 {
						rs[0].Free()
						rs[0].Free()
						rooms[c] = rs[1:]
						return
					}
				}
			},
			"close": func(t *rapid.T) {
				if len(calls) > 0 {
					i := rapid.IntRange(0, len(calls)-1).Draw(t, "i")
					calls[i].Close()
					delete(rooms, calls[i])
					calls = append(calls[:i:i], calls[i+1:]...)
				}
			},
			"": func(t *rapid.T) {
				if used := b.Used(); used > size || used != sums() {
					t.Fatalf("%d of %d used, %d taken", used, size, sums())
				}
			},
		})
		for _, c := range calls {
			c.Close()
		}
		if b.Used() != 0 {
			t.Fatalf("%d used in the end", b.Used())
		}
	})
}

// While room is short, the peer that takes nothing for the longest is ended, once
// it took nothing for long enough; what its transport has is ended after as long
// again. Who takes what it gets is not.
func TestLongestStalledIsEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(BudgetConfig{Bytes: 100, Stall: 5 * time.Second, Patience: time.Minute})
		open := func(end func()) *Call {
			c, err := b.Open(t.Context(), 0, end)
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		sent := func(c *Call, n int64, kill func()) *Room {
			r, err := c.Take(t.Context(), n, n)
			if err != nil {
				t.Fatal(err)
			}
			r.Sending(kill)
			return r
		}
		var first, second, third *Call
		killed := false
		first = open(func() { first.Close() }) // a handler that returns at once
		second = open(func() { second.Close() })
		third = open(func() { third.Close() })
		stuck := sent(first, 40, nil)
		time.Sleep(time.Second)
		sent(second, 40, nil)
		alive := sent(third, 20, nil)
		_ = stuck
		waiting := open(nil)
		start := time.Now()
		r, err := waiting.Take(t.Context(), 30, 30)
		if err != nil || !first.Ended() || second.Ended() || third.Ended() || time.Since(start) > 5*time.Second {
			t.Fatalf("%v after %v; ended: %v %v %v", err, time.Since(start), first.Ended(), second.Ended(), third.Ended())
		}
		alive.Free()
		r.Free()
		waiting.Close()

		// What is left of a call that is over goes with its connection.
		left := open(nil)
		room := sent(left, 60, nil)
		room.Free()
		orphan, _ := left.Take(t.Context(), 60, 60)
		orphan.detach()
		orphan.Sending(func() { killed = true; orphan.Free() })
		left.Close()
		second.Close()
		other := open(nil)
		if _, err := other.Take(t.Context(), 90, 90); err != nil || !killed {
			t.Fatalf("%v, killed: %v", err, killed)
		}
		other.Close()
		third.Close()
		if b.Used() != 0 {
			t.Errorf("%d used in the end", b.Used())
		}
	})
}

// Who waits for room in vain is refused with a reason, after its patience.
func TestShortBudgetRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(BudgetConfig{Bytes: 100})
		c, err := b.Open(t.Context(), 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Take(t.Context(), 100, 100); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		_, err = c.Take(t.Context(), 1, 1)
		if reason.Code(err) != codes.ResourceExhausted || reason.Meta(err, reason.KeyBudget) != "delivery" || time.Since(start) != 10*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Take(ctx, 1, 1); reason.Code(err) != codes.DeadlineExceeded {
			t.Error(err)
		}
	})
}
