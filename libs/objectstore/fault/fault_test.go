package fault_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/objectstore/mem"
	"github.com/nova-stream/nova/libs/objectstore/objectstoretest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestContractWithoutRules(t *testing.T) {
	objectstoretest.Run(t, func(t *testing.T) objectstore.Store { return fault.New(mem.New()) })
}

func TestHalfOfADelete(t *testing.T) {
	inner := mem.New()
	f := fault.New(inner)
	f.Script(fault.Rule{Do: fault.Half, Times: 4})
	for _, key := range []string{"a", "b", "c"} {
		if _, err := f.PutIfAbsent(t.Context(), key, nil); err != nil {
			t.Fatalf("a put passes: %v", err)
		}
	}
	if err := f.Delete(t.Context(), "a", "b", "c"); !errors.Is(err, objectstore.ErrUnavailable) {
		t.Errorf("Delete: %v", err)
	}
	if left, err := inner.List(t.Context(), "", "", 10); err != nil || len(left) != 2 || left[0].Key != "b" {
		t.Errorf("left: %v, %v, want b and c", left, err)
	}
}

func TestActions(t *testing.T) {
	ctx := t.Context()
	for _, c := range []struct {
		do     fault.Action
		err    error
		landed bool
	}{
		{fault.Pass, nil, true},
		{fault.FailBefore, objectstore.ErrUnavailable, false},
		{fault.LoseReply, objectstore.ErrUnavailable, true},
		{fault.LandLate, objectstore.ErrUnavailable, false},
		{fault.Conflict, objectstore.ErrUnavailable, false},
		{fault.Throttle, objectstore.ErrThrottled, false},
		{fault.Permanent, objectstore.ErrPermanent, false},
		{fault.Cut, objectstore.ErrUnavailable, true},
	} {
		t.Run(fmt.Sprint(c.do), func(t *testing.T) {
			inner := mem.New()
			f := fault.New(inner)
			f.Script(fault.Rule{Op: fault.Put, Prefix: "a/", Nth: 2, Do: c.do})
			for _, key := range []string{"a/1", "b/1", "b/2"} {
				if _, err := f.PutIfAbsent(ctx, key, []byte("x")); err != nil {
					t.Fatalf("a call the rule does not act on: %v", err)
				}
			}
			etag, err := f.PutIfAbsent(ctx, "a/2", []byte("x"))
			if !errors.Is(err, c.err) || (err == nil) != (etag != "") {
				t.Errorf("the second call: %q, %v; want %v", etag, err, c.err)
			}
			if _, err := inner.Get(ctx, "a/2"); (err == nil) != c.landed {
				t.Errorf("landed: %v, want %v", err, c.landed)
			}
			if _, err := f.PutIfAbsent(ctx, "a/3", nil); err != nil {
				t.Errorf("the third call: %v", err)
			}
		})
	}
}

func TestLostReplyThenOwnObject(t *testing.T) {
	f := fault.New(mem.New())
	f.Script(fault.Rule{Op: fault.PutIfAbsent, Do: fault.LoseReply, Nth: 1})
	_, err := f.PutIfAbsent(t.Context(), "k", []byte("mine"))
	if !errors.Is(err, objectstore.ErrUnavailable) {
		t.Fatal(err)
	}
	if _, err = f.PutIfAbsent(t.Context(), "k", []byte("mine")); !errors.Is(err, objectstore.ErrExists) {
		t.Errorf("the repeated put: %v, want ErrExists", err)
	}
}

func TestLateLanding(t *testing.T) {
	inner := mem.New()
	f := fault.New(inner)
	rule := f.Script(fault.Rule{Op: fault.Put, Nth: 1, Do: fault.LandLate})
	body := []byte("late")
	if _, err := f.PutIfAbsent(t.Context(), "k", body); !errors.Is(err, objectstore.ErrUnavailable) {
		t.Fatal(err)
	}
	copy(body, "!!!!")
	f.KillAt(1, fault.Before)
	_, _ = f.Get(t.Context(), "k")
	if errs := f.Land(t.Context()); len(errs) != 1 || errs[0] != nil {
		t.Fatalf("Land: %v", errs)
	}
	if o, err := inner.Get(t.Context(), "k"); err != nil || string(o.Body) != "late" {
		t.Errorf("after Land: %q, %v", o.Body, err)
	}
	if errs := f.Land(t.Context()); len(errs) != 0 {
		t.Errorf("Land again: %v", errs)
	}
	if rule.Acted() != 1 || rule.Matched() != 1 {
		t.Errorf("acted on %d of %d", rule.Acted(), rule.Matched())
	}
}

func TestHangEndsWithTheContextOrTheKill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := mem.New()
		f := fault.New(inner)
		f.Script(fault.Rule{Op: fault.PutIfAbsent, Prefix: "before", Do: fault.Hang})
		f.Script(fault.Rule{Op: fault.PutIfAbsent, Prefix: "after", Do: fault.HangAfter})
		for key, landed := range map[string]bool{"before": false, "after": true} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			start := time.Now()
			_, err := f.PutIfAbsent(ctx, key, nil)
			if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Minute {
				t.Errorf("%s: %v after %v", key, err, time.Since(start))
			}
			if _, err := inner.Get(t.Context(), key); (err == nil) != landed {
				t.Errorf("%s landed: %v", key, err)
			}
		}
		done := make(chan error)
		go func() { _, err := f.PutIfAbsent(t.Context(), "before", nil); done <- err }()
		synctest.Wait()
		f.KillAt(1, fault.Before)
		_ = f.Delete(t.Context(), "x")
		if err := <-done; !errors.Is(err, fault.ErrKilled) {
			t.Errorf("a call that hung at the kill: %v", err)
		}
	})
}

func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fault.New(mem.New())
		f.Script(fault.Rule{Op: fault.Any, Times: 2, Nth: 2, Do: fault.Delay, Delay: time.Second})
		for i, want := range []time.Duration{0, time.Second, time.Second, 0} {
			start := time.Now()
			if err := f.Delete(t.Context(), "k"); err != nil || time.Since(start) != want {
				t.Errorf("call %d took %v, %v; want %v", i, time.Since(start), err, want)
			}
		}
	})
}

func TestTornAndCorruptReads(t *testing.T) {
	ctx := t.Context()
	f := fault.New(mem.New())
	if _, err := f.PutIfAbsent(ctx, "k", []byte("0123456789")); err != nil {
		t.Fatal(err)
	}
	f.Script(fault.Rule{Op: fault.Read, Do: fault.Truncate})
	if o, err := f.Get(ctx, "k"); err != nil || string(o.Body) != "01234" || o.Size != 5 {
		t.Errorf("truncated Get: %q, %d, %v", o.Body, o.Size, err)
	}
	if o, err := f.GetRange(ctx, "k", objectstore.Range{Offset: -2}); err != nil || string(o.Body) != "34" || o.Size != 5 {
		t.Errorf("truncated suffix: %q, %d, %v", o.Body, o.Size, err)
	}
	if _, err := f.GetRange(ctx, "k", objectstore.Range{Offset: 7}); !errors.Is(err, objectstore.ErrRange) {
		t.Errorf("range in the lost half: %v", err)
	}
	f.Clear()
	f.Script(fault.Rule{Op: fault.Read, Do: fault.Corrupt})
	if o, err := f.Get(ctx, "k"); err != nil || string(o.Body) != "01234%6789" {
		t.Errorf("corrupt Get: %q, %v", o.Body, err)
	}
	if o, err := f.GetRange(ctx, "k", objectstore.Range{Offset: 5, Length: 1}); err != nil || string(o.Body) != "%" {
		t.Errorf("corrupt GetRange: %q, %v", o.Body, err)
	}
	f.Clear()
	if o, err := f.Get(ctx, "k"); err != nil || string(o.Body) != "0123456789" {
		t.Errorf("the object itself was changed: %q, %v", o.Body, err)
	}
}

func TestCounts(t *testing.T) {
	ctx := t.Context()
	f := fault.New(mem.New())
	under := f.Script(fault.Rule{Op: fault.Put, Prefix: "a/"})
	etag, _ := f.PutIfAbsent(ctx, "a/1", []byte("1234"))
	_, _ = f.PutIfAbsent(ctx, "a/1", []byte("1234"))
	_, _ = f.PutIfMatch(ctx, "a/1", []byte("12"), etag)
	_, _ = f.PutIfAbsent(ctx, "b", nil)
	_, _ = f.Get(ctx, "a/1")
	_, _ = f.GetRange(ctx, "a/1", objectstore.Range{Offset: 1})
	_, _ = f.List(ctx, "", "", 10)
	_ = f.Delete(ctx, "a/1", "b", "c")
	want := map[fault.Op]fault.Count{
		fault.PutIfAbsent: {Calls: 3, Errors: 1, Written: 8, Keys: 3},
		fault.PutIfMatch:  {Calls: 1, Written: 2, Keys: 1},
		fault.Get:         {Calls: 1, Read: 2, Keys: 1},
		fault.GetRange:    {Calls: 1, Read: 1, Keys: 1},
		fault.List:        {Calls: 1, Keys: 2},
		fault.Delete:      {Calls: 1, Keys: 3},
	}
	for op, got := range f.Counts() {
		if got != want[op] {
			t.Errorf("%v: %+v, want %+v", op, got, want[op])
		}
	}
	if n := under.Matched(); n != 3 {
		t.Errorf("%d puts below a/, want 3", n)
	}
}

func TestKillAt(t *testing.T) {
	ctx := t.Context()
	for _, when := range []fault.When{fault.Before, fault.After} {
		for n := 1; n <= 4; n++ {
			inner := mem.New()
			f := fault.New(inner)
			f.KillAt(n, when)
			for i := 1; i <= 4; i++ {
				_, err := f.PutIfAbsent(ctx, fmt.Sprint(i), nil)
				if (err != nil) != (i >= n) || err != nil && (!errors.Is(err, fault.ErrKilled) || !errors.Is(err, objectstore.ErrUnavailable)) {
					t.Errorf("killed at %d: call %d: %v", n, i, err)
				}
				_, err = inner.Get(ctx, fmt.Sprint(i))
				if landed := i < n || i == n && when == fault.After; (err == nil) != landed {
					t.Errorf("killed at %d (%v): call %d landed: %v", n, when, i, err)
				}
			}
			select {
			case <-f.Killed():
			default:
				t.Errorf("killed at %d: Killed is not closed", n)
			}
			if _, err := fault.New(inner).PutIfAbsent(ctx, "next", nil); err != nil {
				t.Errorf("a new process: %v", err)
			}
		}
	}
}

func TestHook(t *testing.T) {
	f := fault.New(mem.New())
	boom := objectstore.Fail("PutIfAbsent", "k", objectstore.ErrThrottled, "by the hook")
	f.Script(fault.Rule{Op: fault.Put, Nth: 1, Hook: func(_ context.Context, op fault.Op, key string) error {
		if op != fault.PutIfAbsent || key != "k" {
			t.Errorf("hook: %v %q", op, key)
		}
		return boom
	}})
	if _, err := f.PutIfAbsent(t.Context(), "k", nil); !errors.Is(err, objectstore.ErrThrottled) {
		t.Error(err)
	}
	if _, err := f.PutIfAbsent(t.Context(), "k", nil); err != nil {
		t.Error(err)
	}
}
