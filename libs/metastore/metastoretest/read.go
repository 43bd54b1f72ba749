package metastoretest

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/nova-stream/nova/libs/metastore"
)

func (e env) wantFloor(t *testing.T, name, from, want string) {
	t.Helper()
	k := e.key(name)
	row, err := e.s.Floor(e.ctx, k, e.base+from)
	if want == "" {
		wantError(t, err, metastore.ErrNotFound, metastore.OpFloor, k.Path)
		return
	}
	if err != nil {
		t.Fatalf("Floor(%q, %q): %v", name, from, err)
	}
	if row.Path != e.base+want || string(row.Value) != want {
		t.Fatalf("Floor(%q, %q) = %q %q, want %q", name, from, row.Path, row.Value, want)
	}
}

func floorBounds(t *testing.T, e env) {
	for _, name := range []string{"b10", "b20", "b30"} {
		e.put(t, e.key(name), name, metastore.Absent)
	}
	e.wantFloor(t, "b20", "b10", "b20")  // the path itself
	e.wantFloor(t, "b20", "b20", "b20")  // the narrowest range
	e.wantFloor(t, "b29", "b10", "b20")  // the next below
	e.wantFloor(t, "b9", "b10", "b30")   // above all rows
	e.wantFloor(t, "b19", "b11", "")     // a row below, but below from
	e.wantFloor(t, "b0", "a", "")        // rows above only
	e.wantFloor(t, "b10~", "b10", "b10") // from is inclusive
	e.wantFloor(t, "b10~", "b10!", "")   // and exact
	e.wantFloor(t, "b200", "b10", "b20") // a path that extends a row's
	v, err := e.s.Get(e.ctx, e.key("b20"))
	if err != nil {
		t.Fatal(err)
	}
	e.delete(t, e.key("b20"), v.Version)
	e.wantFloor(t, "b20", "b10", "b10") // a deleted row is no floor
}

func floorPartition(t *testing.T, e env) {
	for i := range 16 { // enough that some share a server's shard
		p := fmt.Sprintf("%sp%02d", e.base, i)
		k := metastore.Key{Partition: p, Path: fmt.Sprintf("%srow/%02d", e.base, i)}
		e.put(t, k, p, metastore.Absent)
	}
	for i := range 16 {
		k := metastore.Key{Partition: fmt.Sprintf("%sp%02d", e.base, i), Path: e.base + "row/~"}
		row, err := e.s.Floor(e.ctx, k, e.base+"row/")
		if err != nil {
			t.Fatal(err)
		}
		if string(row.Value) != k.Partition {
			t.Fatalf("Floor in partition %q returned a row of %q", k.Partition, row.Value)
		}
	}
	for i := range 16 { // empty partitions, each next to one that is not
		k := metastore.Key{Partition: fmt.Sprintf("%sp%02d~", e.base, i), Path: e.base + "row/~"}
		_, err := e.s.Floor(e.ctx, k, e.base+"row/")
		wantError(t, err, metastore.ErrNotFound, metastore.OpFloor, k.Path)
	}
}

func (e env) rangePaths(t *testing.T, from, to string, limit int) []string {
	t.Helper()
	rows, err := e.s.Range(e.ctx, e.base, e.base+from, e.base+to, limit)
	if err != nil {
		t.Fatalf("Range(%q, %q, %d): %v", from, to, limit, err)
	}
	var names []string
	for _, r := range rows {
		name := strings.TrimPrefix(r.Path, e.base)
		if string(r.Value) != name || r.Version <= metastore.Absent {
			t.Fatalf("Range returned row %q with value %q, %v", name, r.Value, r.Version)
		}
		names = append(names, name)
	}
	return names
}

func rangeBounds(t *testing.T, e env) {
	for _, name := range []string{"c", "a", "e", "b", "d"} {
		e.put(t, e.key(name), name, metastore.Absent)
	}
	for _, tc := range []struct {
		from, to string
		limit    int
		want     []string
	}{
		{"a", "z", 100, []string{"a", "b", "c", "d", "e"}},
		{"a", "e", 100, []string{"a", "b", "c", "d"}}, // to is exclusive
		{"b", "d!", 100, []string{"b", "c", "d"}},
		{"b!", "d", 100, []string{"c"}},
		{"a", "z", 2, []string{"a", "b"}},
		{"a", "z", 5, []string{"a", "b", "c", "d", "e"}},
		{"b", "z", 1, []string{"b"}},
		{"c", "c", 100, nil}, // an empty range
		{"f", "z", 100, nil},
		{"A", "B", 100, nil},
		{"a", "z", metastore.MaxRangeLimit, []string{"a", "b", "c", "d", "e"}},
	} {
		if got := e.rangePaths(t, tc.from, tc.to, tc.limit); !slices.Equal(got, tc.want) {
			t.Errorf("Range(%q, %q, %d) = %q, want %q", tc.from, tc.to, tc.limit, got, tc.want)
		}
	}
}

func rangePartition(t *testing.T, e env) {
	for i := range 16 {
		for _, row := range []string{"x", "y"} {
			k := metastore.Key{Partition: fmt.Sprintf("%sp%02d", e.base, i), Path: fmt.Sprintf("%srow/%s%02d", e.base, row, i)}
			e.put(t, k, k.Path, metastore.Absent)
		}
	}
	for i := range 16 {
		rows, err := e.s.Range(e.ctx, fmt.Sprintf("%sp%02d", e.base, i), e.base+"row/", e.base+"row/~", 100)
		if err != nil {
			t.Fatal(err)
		}
		want := []string{fmt.Sprintf("%srow/x%02d", e.base, i), fmt.Sprintf("%srow/y%02d", e.base, i)}
		if got := paths(rows); !slices.Equal(got, want) {
			t.Fatalf("Range of partition %d = %q, want %q", i, got, want)
		}
	}
}

// rangeByteOrder holds stores that sort by path segment to byte order: '-' and
// '.' sort before '/', letters after it.
func rangeByteOrder(t *testing.T, e env) {
	names := []string{"k/a/x", "k/a-b/x", "k/a.b/x", "k/a/y", "k/a0/x", "k/ab/x", "k/B/x", "k/a b/x", "k/a~/x"}
	for _, name := range names {
		e.put(t, e.key(name), name, metastore.Absent)
	}
	sort.Strings(names)
	if got := e.rangePaths(t, "k/", "k/~", 100); !slices.Equal(got, names) {
		t.Fatalf("Range = %q, want byte order %q", got, names)
	}
	for i := 1; i < len(names); i++ {
		k := e.key(names[i][:len(names[i])-1]) // "…/", just below names[i] and "…/x"'s siblings
		row, err := e.s.Floor(e.ctx, k, e.base+"k/")
		var want string
		for _, n := range names {
			if e.base+n <= k.Path {
				want = e.base + n
			}
		}
		if want == "" && errors.Is(err, metastore.ErrNotFound) {
			continue
		}
		if err != nil || row.Path != want {
			t.Fatalf("Floor(%q) = %q, %v, want %q", k.Path, row.Path, err, want)
		}
	}
}

func rangePages(t *testing.T, e env) {
	const n = 300
	want := make([]string, n)
	race(t, n, func(i int) error {
		want[i] = fmt.Sprintf("page/%04d", i)
		_, err := e.s.Put(e.ctx, e.key(want[i]), []byte(want[i]), metastore.Absent)
		return err
	})
	var got []string
	for from := "page/"; ; {
		page := e.rangePaths(t, from, "page/~", 64)
		got = append(got, page...)
		if len(page) < 64 {
			break
		}
		from = page[len(page)-1] + "!" // the least path above "page/dddd" of this family
	}
	if !slices.Equal(got, want) {
		t.Fatalf("%d rows in pages, want %d: %q", len(got), n, got)
	}
}

func printablePaths(t *testing.T, e env) {
	for b := byte(' '); b <= '~'; b++ {
		name := "c" + string(b) + "c"
		k := metastore.Key{Partition: e.base + name, Path: e.base + name}
		v := e.put(t, k, name, metastore.Absent)
		e.wantRow(t, k, name, v)
		row, err := e.s.Floor(e.ctx, k, k.Path)
		if err != nil || row.Path != k.Path {
			t.Fatalf("Floor(%q) = %q, %v", k.Path, row.Path, err)
		}
	}
}

func rowIdentity(t *testing.T, e env) {
	a := metastore.Key{Partition: e.base + "p", Path: e.base + "row"}
	v := e.put(t, a, "one", metastore.Absent)
	noPartition := metastore.Key{Path: e.base + "unpartitioned"}
	w := e.put(t, noPartition, "two", metastore.Absent)
	e.wantRow(t, a, "one", v)
	e.wantRow(t, noPartition, "two", w)
	e.wantAbsent(t, metastore.Key{Partition: e.base + "other", Path: a.Path})
}
