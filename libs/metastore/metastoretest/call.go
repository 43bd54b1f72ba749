package metastoretest

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nova-stream/nova/libs/metastore"
)

func limits(t *testing.T, e env) {
	legal := e.key("row")
	long := metastore.Key{Partition: e.base, Path: e.base + strings.Repeat("k", metastore.MaxKeyBytes)}
	for _, tc := range []struct {
		name string
		says string
		call func() error
	}{
		{"empty path", "empty", func() error { _, err := e.s.Get(e.ctx, metastore.Key{Partition: "p"}); return err }},
		{"long path", "MaxKeyBytes", func() error { _, err := e.s.Put(e.ctx, long, nil, metastore.Absent); return err }},
		{"long path read", "MaxKeyBytes", func() error { _, err := e.s.Get(e.ctx, long); return err }},
		{"long path deleted", "MaxKeyBytes", func() error { return e.s.Delete(e.ctx, long, 0) }},
		{"long partition", "MaxKeyBytes", func() error {
			_, err := e.s.Get(e.ctx, metastore.Key{Partition: long.Path, Path: legal.Path})
			return err
		}},
		{"unprintable path", "printable", func() error { _, err := e.s.Get(e.ctx, e.key("a\x1fb")); return err }},
		{"path beyond ASCII", "printable", func() error { _, err := e.s.Put(e.ctx, e.key("ä"), nil, metastore.Absent); return err }},
		{"unprintable partition", "printable", func() error {
			_, err := e.s.Range(e.ctx, "p\x00", legal.Path, legal.Path, 1)
			return err
		}},
		{"large value", "MaxValueBytes", func() error {
			_, err := e.s.Put(e.ctx, legal, make([]byte, metastore.MaxValueBytes+1), metastore.Absent)
			return err
		}},
		{"large ephemeral value", "MaxValueBytes", func() error {
			_, err := e.s.PutEphemeral(e.ctx, legal, make([]byte, metastore.MaxValueBytes+1), metastore.Absent)
			return err
		}},
		{"version that cannot be", "version", func() error { _, err := e.s.Put(e.ctx, legal, nil, -2); return err }},
		{"delete of absent", "version", func() error { return e.s.Delete(e.ctx, legal, metastore.Absent) }},
		{"no limit", "MaxRangeLimit", func() error { _, err := e.s.Range(e.ctx, "p", e.base+"a", e.base+"b", 0); return err }},
		{"large limit", "MaxRangeLimit", func() error {
			_, err := e.s.Range(e.ctx, "p", e.base+"a", e.base+"b", metastore.MaxRangeLimit+1)
			return err
		}},
		{"range without end", "empty", func() error { _, err := e.s.Range(e.ctx, "p", e.base+"a", "", 1); return err }},
		{"range backwards", "bound", func() error { _, err := e.s.Range(e.ctx, "p", e.base+"b", e.base+"a", 1); return err }},
		{"floor without bound", "empty", func() error { _, err := e.s.Floor(e.ctx, legal, ""); return err }},
		{"floor backwards", "bound", func() error { _, err := e.s.Floor(e.ctx, legal, legal.Path+"z"); return err }},
		{"unprintable watch", "printable", func() error { _, err := e.s.Watch(e.ctx, "\n"); return err }},
	} {
		err := tc.call()
		if !errors.Is(err, metastore.ErrInvalid) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: error %v, want ErrInvalid that says %q", tc.name, err, tc.says)
		}
	}
	e.wantAbsent(t, legal)
}

func largest(t *testing.T, e env) {
	// The longest path that also fits under a prefix; see MaxPrefixBytes.
	k := e.key(strings.Repeat("k", metastore.MaxKeyBytes-metastore.MaxPrefixBytes-len(e.base)))
	value := bytes.Repeat([]byte{0, 0xff, 'x', '\n'}, metastore.MaxValueBytes/4)
	v, err := e.s.Put(e.ctx, k, value, metastore.Absent)
	if err != nil {
		t.Fatal(err)
	}
	e.wantRow(t, k, string(value), v)
	rows, err := e.s.Range(e.ctx, k.Partition, e.base, k.Path+"~", 10)
	if err != nil || len(rows) != 1 || !bytes.Equal(rows[0].Value, value) {
		t.Fatalf("Range of the largest row: %d rows, %v", len(rows), err)
	}
}

// next returns the first event of a path, whatever else is reported before it.
func next(t *testing.T, events <-chan metastore.Event, path string) metastore.Event {
	t.Helper()
	patience := time.NewTimer(Patience)
	defer patience.Stop()
	for {
		select {
		case ev, ok := <-events:
			if !ok {
				t.Fatalf("watch closed before it reported %q", path)
			}
			if ev.Path == path {
				return ev
			}
		case <-patience.C:
			t.Fatalf("no event of %q", path)
		}
	}
}

// nextDeleted reads on until the path is reported with the wanted Deleted:
// events may be repeated.
func nextDeleted(t *testing.T, events <-chan metastore.Event, path string, deleted bool) {
	t.Helper()
	for next(t, events, path).Deleted != deleted {
		continue
	}
}

func watchReports(t *testing.T, e env) {
	k := e.key("w/row")
	events, err := e.s.Watch(e.ctx, e.base+"w/")
	if err != nil {
		t.Fatal(err)
	}
	v := e.put(t, k, "one", metastore.Absent)
	nextDeleted(t, events, k.Path, false)
	v = e.put(t, k, "two", v)
	nextDeleted(t, events, k.Path, false)
	e.delete(t, k, v)
	nextDeleted(t, events, k.Path, true)
	if _, err := e.s.PutEphemeral(e.ctx, k, nil, metastore.Absent); err != nil {
		t.Fatal(err)
	}
	nextDeleted(t, events, k.Path, false)
}

func watchPrefix(t *testing.T, e env) {
	events, err := e.s.Watch(e.ctx, e.base+"in/")
	if err != nil {
		t.Fatal(err)
	}
	e.put(t, e.key("out/row"), "x", metastore.Absent)
	e.put(t, e.key("in"), "x", metastore.Absent)
	_, err = e.s.Put(e.ctx, e.key("in/refused"), nil, 7)
	wantError(t, err, metastore.ErrConflict, metastore.OpPut, e.base+"in/refused")
	last := e.key("in/row")
	e.put(t, last, "x", metastore.Absent)
	// What came before the last row would be reported before it.
	select {
	case ev := <-events:
		if ev.Path != last.Path {
			t.Fatalf("watch of %q reported %+v", "in/", ev)
		}
	case <-time.After(Patience):
		t.Fatal("no event")
	}
}

func watchCloses(t *testing.T, e env) {
	ctx, cancel := context.WithCancel(e.ctx)
	events, err := e.s.Watch(ctx, e.base)
	if err != nil {
		t.Fatal(err)
	}
	byClose, err := e.s.Watch(e.ctx, e.base)
	if err != nil {
		t.Fatal(err)
	}
	e.put(t, e.key("row"), "x", metastore.Absent)
	cancel()
	wantClosed(t, events)
	next(t, byClose, e.base+"row") // the other goes on
	if err := e.s.Close(); err != nil {
		t.Fatal(err)
	}
	wantClosed(t, byClose)
}

func wantClosed(t *testing.T, events <-chan metastore.Event) {
	t.Helper()
	patience := time.NewTimer(Patience)
	defer patience.Stop()
	for {
		select {
		case _, ok := <-events:
			if !ok {
				return
			}
		case <-patience.C:
			t.Fatal("watch was not closed")
		}
	}
}

func watchSlow(t *testing.T, e env) {
	if _, err := e.s.Watch(e.ctx, e.base); err != nil { // never read
		t.Fatal(err)
	}
	quick, err := e.s.Watch(e.ctx, e.base)
	if err != nil {
		t.Fatal(err)
	}
	v := e.put(t, e.key("row"), "x", metastore.Absent)
	for range 100 {
		v = e.put(t, e.key("row"), "x", v)
	}
	next(t, quick, e.base+"row")
}

// calls are all calls on one row, for tests that expect each to fail.
func (e env) calls(k metastore.Key) map[metastore.Op]func(ctx context.Context) error {
	return map[metastore.Op]func(context.Context) error{
		metastore.OpGet:          func(ctx context.Context) error { _, err := e.s.Get(ctx, k); return err },
		metastore.OpFloor:        func(ctx context.Context) error { _, err := e.s.Floor(ctx, k, k.Path); return err },
		metastore.OpRange:        func(ctx context.Context) error { _, err := e.s.Range(ctx, k.Partition, k.Path, k.Path, 1); return err },
		metastore.OpPut:          func(ctx context.Context) error { _, err := e.s.Put(ctx, k, nil, metastore.Absent); return err },
		metastore.OpPutEphemeral: func(ctx context.Context) error { _, err := e.s.PutEphemeral(ctx, k, nil, metastore.Absent); return err },
		metastore.OpDelete:       func(ctx context.Context) error { return e.s.Delete(ctx, k, 1) },
		metastore.OpWatch:        func(ctx context.Context) error { _, err := e.s.Watch(ctx, k.Path); return err },
	}
}

func contextEnded(t *testing.T, e env) {
	k := e.key("row")
	canceled, cancel := context.WithCancel(e.ctx)
	cancel()
	late, cancel := context.WithDeadline(e.ctx, time.Unix(1, 0))
	defer cancel()
	for op, call := range e.calls(k) {
		wantError(t, call(canceled), context.Canceled, op, k.Path)
		wantError(t, call(late), context.DeadlineExceeded, op, k.Path)
	}
	e.wantAbsent(t, k) // a call that began after the end has no effect
}

func errorShape(t *testing.T, e env) {
	k := e.key(`odd "name" \ %d`)
	for op, kind := range map[metastore.Op]error{
		metastore.OpGet: metastore.ErrNotFound, metastore.OpFloor: metastore.ErrNotFound, metastore.OpDelete: metastore.ErrNotFound,
	} {
		wantError(t, e.calls(k)[op](e.ctx), kind, op, k.Path)
	}
	e.put(t, k, "x", metastore.Absent)
	for _, op := range []metastore.Op{metastore.OpPut, metastore.OpPutEphemeral} {
		wantError(t, e.calls(k)[op](e.ctx), metastore.ErrConflict, op, k.Path)
	}
}

func closed(t *testing.T, e env) {
	k := e.key("row")
	if err := e.s.Close(); err != nil {
		t.Fatal(err)
	}
	for op, call := range e.calls(k) {
		wantError(t, call(e.ctx), metastore.ErrClosed, op, k.Path)
	}
	if err := e.s.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}
