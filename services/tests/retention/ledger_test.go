package retention

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/objectstore"
)

// ledger is a metastore that knows which rows there are, and counts the calls by
// what they are and the kind of row.
type ledger struct {
	metastore.Store

	mu    sync.Mutex
	rows  map[string]metastore.Key // by path
	calls map[string]int
}

func newLedger(s metastore.Store) *ledger {
	return &ledger{Store: s, rows: map[string]metastore.Key{}, calls: map[string]int{}}
}

func kindOf(path string) string { return path[:strings.IndexByte(path+"/", '/')] }

func (l *ledger) count(op, path string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls[op+" "+kindOf(path)]++
}

func (l *ledger) Get(ctx context.Context, key metastore.Key) (metastore.Row, error) {
	l.count("get", key.Path)
	return l.Store.Get(ctx, key)
}

func (l *ledger) Floor(ctx context.Context, key metastore.Key, from string) (metastore.Row, error) {
	l.count("floor", key.Path)
	return l.Store.Floor(ctx, key, from)
}

func (l *ledger) Range(ctx context.Context, partition, from, to string, limit int) ([]metastore.Row, error) {
	l.count("range", from)
	return l.Store.Range(ctx, partition, from, to, limit)
}

func (l *ledger) Put(ctx context.Context, key metastore.Key, value []byte, expected metastore.Version) (metastore.Version, error) {
	l.count("put", key.Path)
	// Held over the call, so that the ledger has the order of the store.
	l.mu.Lock()
	defer l.mu.Unlock()
	v, err := l.Store.Put(ctx, key, value, expected)
	if err == nil {
		l.rows[key.Path] = key
	}
	return v, err
}

func (l *ledger) Delete(ctx context.Context, key metastore.Key, expected metastore.Version) error {
	l.count("delete", key.Path)
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.Store.Delete(ctx, key, expected)
	if err == nil {
		delete(l.rows, key.Path)
	}
	return err
}

// all returns the keys of the rows of a kind, sorted by path.
func (l *ledger) all(kind string) []metastore.Key {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []metastore.Key
	for path, key := range l.rows {
		if kindOf(path) == kind {
			out = append(out, key)
		}
	}
	slices.SortFunc(out, func(a, b metastore.Key) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// kinds returns how many rows of each kind there are.
func (l *ledger) kinds() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[string]int{}
	for path := range l.rows {
		out[kindOf(path)]++
	}
	return out
}

// counted returns what was called so far.
func (l *ledger) counted() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.calls)
}

// perThousand says how often each call came between two counts, per 1000 records.
func perThousand(before, after map[string]int, records int) string {
	sum := 0
	var lines []string
	for _, what := range slices.Sorted(maps.Keys(after)) {
		n := after[what] - before[what]
		sum += n
		if per := float64(n) * 1000 / float64(records); per >= 0.5 {
			lines = append(lines, fmt.Sprintf("%s %.1f", what, per))
		}
	}
	return fmt.Sprintf("%.0f in all: %s", float64(sum)*1000/float64(records), strings.Join(lines, ", "))
}

// vault is an object store that knows which objects there are and how large they
// are.
type vault struct {
	objectstore.Store

	mu      sync.Mutex
	objects map[string]int64
	bytes   int64
	most    int64 // that bytes has been
	puts    int
}

func newVault(s objectstore.Store) *vault { return &vault{Store: s, objects: map[string]int64{}} }

func (v *vault) PutIfAbsent(ctx context.Context, key string, body []byte) (objectstore.ETag, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	tag, err := v.Store.PutIfAbsent(ctx, key, body)
	v.puts++
	if err == nil {
		v.objects[key] = int64(len(body))
		v.bytes += int64(len(body))
		v.most = max(v.most, v.bytes)
	}
	return tag, err
}

func (v *vault) PutIfMatch(context.Context, string, []byte, objectstore.ETag) (objectstore.ETag, error) {
	panic("nothing changes an object")
}

func (v *vault) Delete(ctx context.Context, keys ...string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	err := v.Store.Delete(ctx, keys...)
	if err == nil {
		for _, k := range keys {
			v.bytes -= v.objects[k]
			delete(v.objects, k)
		}
	}
	return err
}

// all returns the sizes of the objects.
func (v *vault) all() map[string]int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return maps.Clone(v.objects)
}

// summary says how much there is by the first part of the keys.
func (v *vault) summary() string {
	n, size := map[string]int{}, map[string]int64{}
	for key, s := range v.all() {
		n[kindOf(key)]++
		size[kindOf(key)] += s
	}
	var lines []string
	for _, kind := range slices.Sorted(maps.Keys(n)) {
		lines = append(lines, fmt.Sprintf("%s %d objects %d KiB", kind, n[kind], size[kind]>>10))
	}
	return strings.Join(lines, ", ")
}
