package metastoretest

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"

	"github.com/nova-stream/nova/libs/metastore"
)

func casLifecycle(t *testing.T, e env) {
	k := e.key("row")
	e.wantAbsent(t, k)
	v1 := e.put(t, k, "one", metastore.Absent)
	e.wantRow(t, k, "one", v1)
	v2 := e.put(t, k, "two", v1)
	e.wantRow(t, k, "two", v2)
	v3 := e.put(t, k, "two", v2) // the same value is a new version nevertheless
	if v3 == v2 {
		t.Fatalf("a second write kept version %v", v2)
	}
	e.delete(t, k, v3)
	e.wantAbsent(t, k)
	v4 := e.put(t, k, "four", metastore.Absent)
	e.wantRow(t, k, "four", v4)
}

func casRefusals(t *testing.T, e env) {
	k := e.key("row")
	_, err := e.s.Put(e.ctx, k, []byte("x"), 0)
	wantError(t, err, metastore.ErrConflict, metastore.OpPut, k.Path)
	_, err = e.s.Put(e.ctx, k, []byte("x"), 1<<40)
	wantError(t, err, metastore.ErrConflict, metastore.OpPut, k.Path)
	e.wantAbsent(t, k)

	old := e.put(t, k, "one", metastore.Absent)
	cur := e.put(t, k, "two", old)
	for _, expected := range []metastore.Version{metastore.Absent, old, cur + 1<<40} {
		_, err := e.s.Put(e.ctx, k, []byte("x"), expected)
		wantError(t, err, metastore.ErrConflict, metastore.OpPut, k.Path)
		_, err = e.s.PutEphemeral(e.ctx, k, []byte("x"), expected)
		wantError(t, err, metastore.ErrConflict, metastore.OpPutEphemeral, k.Path)
	}
	e.wantRow(t, k, "two", cur)
}

func deleteRefusals(t *testing.T, e env) {
	k := e.key("row")
	wantError(t, e.s.Delete(e.ctx, k, 0), metastore.ErrNotFound, metastore.OpDelete, k.Path)
	old := e.put(t, k, "one", metastore.Absent)
	cur := e.put(t, k, "two", old)
	wantError(t, e.s.Delete(e.ctx, k, old), metastore.ErrConflict, metastore.OpDelete, k.Path)
	wantError(t, e.s.Delete(e.ctx, k, cur+1<<40), metastore.ErrConflict, metastore.OpDelete, k.Path)
	e.wantRow(t, k, "two", cur)
	e.delete(t, k, cur)
	wantError(t, e.s.Delete(e.ctx, k, cur), metastore.ErrNotFound, metastore.OpDelete, k.Path)
}

// race runs n racers at once and fails the test with the first error of any.
func race(t *testing.T, n int, run func(i int) error) {
	t.Helper()
	var wg sync.WaitGroup
	start := make(chan struct{})
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() {
			<-start
			errs[i] = run(i)
		})
	}
	close(start)
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// raceCAS lets n racers, over two sessions, write one row at one expected
// version and returns the winner's value and version.
func (e env) raceCAS(t *testing.T, k metastore.Key, expected metastore.Version) (string, metastore.Version) {
	t.Helper()
	stores := []metastore.Store{e.s, e.open()}
	if shared, err := stores[1].Get(e.ctx, e.key("marker")); err != nil || shared.Path == "" {
		stores[1] = e.s // open gives separate stores: race within one
	}
	var mu sync.Mutex
	var winners []string
	var version metastore.Version
	race(t, 32, func(i int) error {
		value := strconv.Itoa(i)
		v, err := stores[i%2].Put(e.ctx, k, []byte(value), expected)
		if err == nil {
			mu.Lock()
			winners, version = append(winners, value), v
			mu.Unlock()
			return nil
		}
		return checkError(err, metastore.ErrConflict, metastore.OpPut, k.Path)
	})
	if len(winners) != 1 {
		t.Fatalf("winners of one CAS: %v, want exactly one", winners)
	}
	e.wantRow(t, k, winners[0], version)
	return winners[0], version
}

func racingCreates(t *testing.T, e env) {
	e.put(t, e.key("marker"), "", metastore.Absent)
	e.raceCAS(t, e.key("row"), metastore.Absent)
}

func racingUpdates(t *testing.T, e env) {
	e.put(t, e.key("marker"), "", metastore.Absent)
	k := e.key("row")
	v := e.put(t, k, "start", metastore.Absent)
	for range 4 {
		_, v = e.raceCAS(t, k, v)
	}
}

// racingIncrements is what every CASed record lives on: read, change, CAS, and
// again after a conflict.
func racingIncrements(t *testing.T, e env) {
	const racers, rounds = 8, 8
	k := e.key("counter")
	e.put(t, k, "0", metastore.Absent)
	race(t, racers, func(int) error {
		for done := 0; done < rounds; {
			row, err := e.s.Get(e.ctx, k)
			if err != nil {
				return err
			}
			n, err := strconv.Atoi(string(row.Value))
			if err != nil {
				return fmt.Errorf("counter holds %q: %w", row.Value, err)
			}
			_, err = e.s.Put(e.ctx, k, []byte(strconv.Itoa(n+1)), row.Version)
			switch {
			case err == nil:
				done++
			case !errors.Is(err, metastore.ErrConflict):
				return err
			}
		}
		return nil
	})
	row, err := e.s.Get(e.ctx, k)
	if err != nil {
		t.Fatal(err)
	}
	if want := strconv.Itoa(racers * rounds); string(row.Value) != want {
		t.Fatalf("counter = %q after %s increments", row.Value, want)
	}
}

func versionsNeverRepeat(t *testing.T, e env) {
	k := e.key("row")
	seen := make(map[metastore.Version]bool)
	note := func(v metastore.Version) metastore.Version {
		t.Helper()
		if seen[v] {
			t.Fatalf("version %v of %q was given twice", v, k.Path)
		}
		seen[v] = true
		return v
	}
	for i := range 5 {
		first := note(e.put(t, k, "a", metastore.Absent))
		v := note(e.put(t, k, "b", first))
		v = note(e.put(t, k, "a", v))
		e.put(t, e.key(fmt.Sprintf("other-%d", i)), "x", metastore.Absent)
		e.delete(t, k, v)
		// Whoever still holds a version of the row's former life must lose.
		again := note(e.put(t, k, "a", metastore.Absent))
		_, err := e.s.Put(e.ctx, k, []byte("stale"), first)
		wantError(t, err, metastore.ErrConflict, metastore.OpPut, k.Path)
		e.delete(t, k, again)
	}
}

func ephemeralCAS(t *testing.T, e env) {
	k := e.key("ephemeral")
	v, err := e.s.PutEphemeral(e.ctx, k, []byte("one"), metastore.Absent)
	if err != nil {
		t.Fatal(err)
	}
	e.wantRow(t, k, "one", v)
	v2, err := e.s.PutEphemeral(e.ctx, k, []byte("two"), v)
	if err != nil {
		t.Fatal(err)
	}
	e.wantRow(t, k, "two", v2)
	v3 := e.put(t, k, "kept", v2) // a Put makes the row an ordinary one
	e.wantRow(t, k, "kept", v3)
	e.delete(t, k, v3)
	e.wantAbsent(t, k)
}

func emptyValues(t *testing.T, e env) {
	k := e.key("empty")
	v, err := e.s.Put(e.ctx, k, nil, metastore.Absent)
	if err != nil {
		t.Fatal(err)
	}
	e.wantRow(t, k, "", v)
	_, err = e.s.Put(e.ctx, k, nil, metastore.Absent)
	wantError(t, err, metastore.ErrConflict, metastore.OpPut, k.Path)
}

func notAliased(t *testing.T, e env) {
	k := e.key("row")
	in := []byte("value")
	v, err := e.s.Put(e.ctx, k, in, metastore.Absent)
	if err != nil {
		t.Fatal(err)
	}
	copy(in, "XXXXX")
	e.wantRow(t, k, "value", v)

	got, err := e.s.Get(e.ctx, k)
	if err != nil {
		t.Fatal(err)
	}
	copy(got.Value, "XXXXX")
	e.wantRow(t, k, "value", v)
	if got, err = e.s.Floor(e.ctx, k, k.Path); err != nil {
		t.Fatal(err)
	}
	copy(got.Value, "XXXXX")
	e.wantRow(t, k, "value", v)
	rows, err := e.s.Range(e.ctx, k.Partition, k.Path, k.Path+"~", 1)
	if err != nil || len(rows) != 1 {
		t.Fatalf("Range = %v, %v", rows, err)
	}
	copy(rows[0].Value, "XXXXX")
	e.wantRow(t, k, "value", v)
	if cap(rows[0].Value) > len(rows[0].Value) {
		_ = append(rows[0].Value, "YYYY"...)
		e.wantRow(t, k, "value", v)
	}
}
