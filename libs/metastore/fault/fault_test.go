package fault_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/metastore/mem"
	"github.com/nova-stream/nova/libs/metastore/metastoretest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestContractWithoutRules(t *testing.T) {
	metastoretest.Run(t, func(*testing.T) metastore.Store { return fault.New(mem.New()) })
}

func key(path string) metastore.Key { return metastore.Key{Partition: "p", Path: path} }

func newFault(t *testing.T) *fault.Store {
	s := fault.New(mem.New())
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func put(t *testing.T, s metastore.Store, path, value string, expected metastore.Version) metastore.Version {
	t.Helper()
	v, err := s.Put(t.Context(), key(path), []byte(value), expected)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// value returns what Get says: the value, or the error's kind.
func value(t *testing.T, s metastore.Store, path string) string {
	t.Helper()
	row, err := s.Get(t.Context(), key(path))
	switch {
	case err == nil:
		return string(row.Value)
	case errors.Is(err, metastore.ErrNotFound):
		return "absent"
	case errors.Is(err, fault.ErrKilled):
		return "killed"
	case errors.Is(err, metastore.ErrUnavailable):
		return "unavailable"
	}
	t.Fatalf("Get(%q): %v", path, err)
	return ""
}

func TestActionsOnAWrite(t *testing.T) {
	for _, tc := range []struct {
		do     fault.Action
		err    error
		landed bool
	}{
		{fault.Pass, nil, true},
		{fault.FailBefore, metastore.ErrUnavailable, false},
		{fault.LoseReply, metastore.ErrUnavailable, true},
		{fault.OwnConflict, metastore.ErrConflict, true},
		{fault.Stale, nil, true},
		{fault.LandLate, metastore.ErrUnavailable, false},
	} {
		s := newFault(t)
		rule := s.Script(fault.Rule{Op: fault.Put, Prefix: "a", Nth: 2, Do: tc.do})
		put(t, s, "a1", "x", metastore.Absent)
		put(t, s, "b", "x", metastore.Absent) // another prefix does not count
		_, err := s.Put(t.Context(), key("a2"), []byte("x"), metastore.Absent)
		if !errors.Is(err, tc.err) {
			t.Errorf("action %d: Put = %v, want %v", tc.do, err, tc.err)
		}
		if landed := value(t, s, "a2") == "x"; landed != tc.landed {
			t.Errorf("action %d: landed %v, want %v", tc.do, landed, tc.landed)
		}
		put(t, s, "a3", "x", metastore.Absent) // Nth without Times strikes once
		if rule.Matched() != 3 || rule.Acted() != 1 {
			t.Errorf("action %d: matched %d, acted %d", tc.do, rule.Matched(), rule.Acted())
		}
	}
}

func TestLateWriteLandsIfItsVersionStillFits(t *testing.T) {
	s := newFault(t)
	v := put(t, s, "a", "one", metastore.Absent)
	s.Script(fault.Rule{Op: fault.Put, Nth: 1, Times: 2, Do: fault.LandLate})
	late := []byte("late")
	for range 2 {
		if _, err := s.Put(t.Context(), key("a"), late, v); !errors.Is(err, metastore.ErrUnavailable) {
			t.Fatal(err)
		}
	}
	copy(late, "XXXX")
	errs := s.Land(t.Context())
	if len(errs) != 2 || errs[0] != nil || !errors.Is(errs[1], metastore.ErrConflict) {
		t.Fatalf("Land = %v, want success, then conflict", errs)
	}
	if got := value(t, s, "a"); got != "late" {
		t.Errorf("value = %q", got)
	}
}

func TestStaleReadsAnswerFromThePast(t *testing.T) {
	s := newFault(t)
	other := s.Fork() // another process writes
	one := put(t, other, "a", "one", metastore.Absent)
	two := put(t, other, "a", "two", one)
	if err := other.Delete(t.Context(), key("a"), two); err != nil {
		t.Fatal(err)
	}
	put(t, other, "a", "four", metastore.Absent)

	for back, want := range []string{"absent", "absent", "two", "one", "absent", "absent"} {
		s.Clear()
		s.Script(fault.Rule{Op: fault.Read, Nth: 1, Do: fault.Stale, Back: back})
		if got := value(t, s, "a"); got != want {
			t.Errorf("Get %d versions back = %q, want %q", back, got, want)
		}
		if got := value(t, s, "a"); got != "four" {
			t.Errorf("Get after the stale one = %q", got)
		}
	}
	if got := value(t, other, "a"); got != "four" {
		t.Errorf("Get of the other process = %q", got)
	}
}

func TestStaleRangesAndFloors(t *testing.T) {
	s := newFault(t)
	va := put(t, s, "a", "a1", metastore.Absent)
	vb := put(t, s, "b", "b1", metastore.Absent)
	put(t, s, "a", "a2", va)
	if err := s.Delete(t.Context(), key("b"), vb); err != nil {
		t.Fatal(err)
	}
	put(t, s, "c", "c1", metastore.Absent)

	s.Script(fault.Rule{Op: fault.Read, Do: fault.Stale})
	rows, err := s.Range(t.Context(), "p", "a", "z", 10)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range rows {
		got = append(got, r.Path+"="+string(r.Value))
	}
	if want := []string{"a=a1", "b=b1"}; !slices.Equal(got, want) {
		t.Errorf("stale Range = %q, want %q", got, want)
	}
	row, err := s.Floor(t.Context(), key("z"), "a")
	if err != nil || string(row.Value) != "b1" {
		t.Errorf("stale Floor = %q, %v; want b1", row.Value, err)
	}
	if _, err := s.Floor(t.Context(), key("z"), "c"); !errors.Is(err, metastore.ErrNotFound) {
		t.Errorf("stale Floor of a newer row: %v, want ErrNotFound", err)
	}
	// The rows of another partition are none of ours.
	if rows, err := s.Range(t.Context(), "q", "a", "z", 10); err != nil || len(rows) != 0 {
		t.Errorf("stale Range of an empty partition = %v, %v", rows, err)
	}
}

// A short page means the end of a range, also in a stale one.
func TestStaleRangeFillsItsPages(t *testing.T) {
	inner := mem.New()
	s := fault.New(inner)
	defer s.Close()
	for i := range metastore.MaxRangeLimit + 5 { // before the decorator's time
		put(t, inner, fmt.Sprintf("%05d", i), "x", metastore.Absent)
	}
	put(t, s, "00001x", "new", metastore.Absent)
	s.Script(fault.Rule{Op: fault.Range, Do: fault.Stale})
	rows, err := s.Range(t.Context(), "p", "0", "1", metastore.MaxRangeLimit)
	if err != nil || len(rows) != metastore.MaxRangeLimit || rows[2].Path != "00002" {
		t.Fatalf("stale Range: %d rows, %v", len(rows), err)
	}
}

func TestHangAndDelayEndWithTheContext(t *testing.T) {
	for do, landed := range map[fault.Action]bool{fault.Hang: false, fault.HangAfter: true, fault.Delay: false} {
		synctest.Test(t, func(t *testing.T) {
			s := fault.New(mem.New())
			defer s.Close()
			s.Script(fault.Rule{Op: fault.Put, Nth: 1, Do: do, Delay: time.Hour})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			start := time.Now()
			_, err := s.Put(ctx, key("a"), []byte("x"), metastore.Absent)
			if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Minute {
				t.Errorf("action %d: %v after %v, want DeadlineExceeded after a minute", do, err, time.Since(start))
			}
			if got := value(t, s, "a") == "x"; got != landed {
				t.Errorf("action %d: landed %v, want %v", do, got, landed)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		s := fault.New(mem.New())
		defer s.Close()
		s.Script(fault.Rule{Do: fault.Delay, Delay: time.Hour})
		start := time.Now()
		put(t, s, "a", "x", metastore.Absent)
		if time.Since(start) != time.Hour {
			t.Errorf("delayed by %v", time.Since(start))
		}
	})
}

func TestKillStopsEverything(t *testing.T) {
	for when, survives := range map[fault.When]string{fault.Before: "absent", fault.After: "x"} {
		synctest.Test(t, func(t *testing.T) {
			s := fault.New(mem.New())
			defer s.Close()
			next := s.Fork()
			s.Script(fault.Rule{Op: fault.Get, Prefix: "hang", Do: fault.Hang})
			hanging := make(chan string)
			go func() { hanging <- value(t, s, "hang") }()
			synctest.Wait()
			events, err := s.Watch(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			s.KillAt(2, when)
			if got := value(t, s, "b"); got != "absent" {
				t.Fatalf("call before the kill = %q", got)
			}
			_, err = s.Put(t.Context(), key("a"), []byte("x"), metastore.Absent)
			if !errors.Is(err, fault.ErrKilled) || !errors.Is(err, metastore.ErrUnavailable) {
				t.Fatalf("killed Put: %v", err)
			}
			if got := <-hanging; got != "killed" {
				t.Errorf("call under way = %q", got)
			}
			if got := value(t, s, "a"); got != "killed" {
				t.Errorf("call after the kill = %q", got)
			}
			if got := value(t, next, "a"); got != survives {
				t.Errorf("killed %v: the next process reads %q, want %q", when, got, survives)
			}
			synctest.Wait()
			select {
			case e := <-events:
				t.Errorf("a dead process saw %+v", e)
			default:
			}
		})
	}
}

func TestOutageEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fault.New(mem.New())
		defer s.Close()
		other := s.Fork()
		events, err := s.Watch(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		s.SetOutage(true)
		if got := value(t, s, "a"); got != "unavailable" {
			t.Errorf("Get during the outage = %q", got)
		}
		if _, err := s.Watch(t.Context(), ""); !errors.Is(err, metastore.ErrUnavailable) {
			t.Errorf("Watch during the outage: %v", err)
		}
		put(t, other, "lost", "x", metastore.Absent)
		synctest.Wait()
		s.SetOutage(false)
		put(t, s, "a", "x", metastore.Absent)
		if e := <-events; e.Path != "a" {
			t.Errorf("event %+v, want only what came after the outage", e)
		}
	})
}

func TestHookDecides(t *testing.T) {
	s := newFault(t)
	refused := errors.New("refused by the hook")
	s.Script(fault.Rule{Op: fault.Write, Hook: func(_ context.Context, op fault.Op, path string) error {
		if op == fault.Delete && path == "a" {
			return refused
		}
		return nil
	}})
	v := put(t, s, "a", "x", metastore.Absent)
	if err := s.Delete(t.Context(), key("a"), v); !errors.Is(err, refused) {
		t.Errorf("Delete: %v", err)
	}
	if got := value(t, s, "a"); got != "x" {
		t.Errorf("value = %q", got)
	}
}

func TestCounts(t *testing.T) {
	s := newFault(t)
	v := put(t, s, "a", "four", metastore.Absent)
	_, _ = s.Put(t.Context(), key("a"), []byte("four"), metastore.Absent)
	_ = value(t, s, "a")
	_ = value(t, s, "none")
	_, _ = s.Range(t.Context(), "p", "a", "z", 9)
	_ = s.Delete(t.Context(), key("a"), v)
	want := map[fault.Op]fault.Count{
		fault.Put:    {Calls: 2, Errors: 1, Written: 8},
		fault.Get:    {Calls: 2, Errors: 1, Read: 4, Rows: 1},
		fault.Range:  {Calls: 1, Read: 4, Rows: 1},
		fault.Delete: {Calls: 1},
	}
	got := s.Counts()
	for op, c := range want {
		if got[op] != c {
			t.Errorf("%s: %+v, want %+v", op, got[op], c)
		}
	}
	if len(got) != len(want) {
		t.Errorf("counts of %d operations: %+v", len(got), got)
	}
}
