// Package mem is a metastore in memory, for tests and for `novad --dev`.
//
// Invariants: one mutex orders all calls, so reads are never stale (wrap it in
// metastore/fault to make them so); versions come from one counter that never
// goes back; values are copied on the way in and out.
package mem

import (
	"cmp"
	"context"
	"log/slog"
	"sync"

	"github.com/google/btree"

	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/metastore/internal/hub"
)

// Store is one process's session with an in-memory metastore.
type Store struct {
	rows *table
	hub  *hub.Hub

	mu     sync.RWMutex // held for reading through every call, for writing by Close
	closed bool
}

var _ metastore.Store = (*Store)(nil)

// table is what all sessions share.
type table struct {
	mu       sync.Mutex // guards what follows
	version  metastore.Version
	rows     *btree.BTreeG[row]
	sessions map[*Store]struct{}
}

type row struct {
	partition, path string
	value           []byte // immutable
	version         metastore.Version
	session         *Store // nil unless ephemeral
}

func less(a, b row) bool {
	if c := cmp.Compare(a.partition, b.partition); c != 0 {
		return c < 0
	}
	return a.path < b.path
}

// New returns an empty store.
func New() *Store {
	t := &table{rows: btree.NewG(32, less), sessions: make(map[*Store]struct{})}
	return t.open()
}

// Session returns another session with the same rows, as another process would
// have. It has watches of its own, and closing it removes its ephemeral rows.
// The rows live until the last session is gone.
func (s *Store) Session() *Store { return s.rows.open() }

func (t *table) open() *Store {
	s := &Store{rows: t, hub: hub.New(slog.Default())}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sessions[s] = struct{}{}
	return s
}

// enter begins a call; leave must be called if and only if err is nil.
func (s *Store) enter(ctx context.Context, op metastore.Op, name string) (leave func(), err error) {
	if err := metastore.Ended(ctx, op, name); err != nil {
		return nil, err
	}
	s.mu.RLock()
	if s.closed {
		s.mu.RUnlock()
		return nil, metastore.Fail(op, name, metastore.ErrClosed, "")
	}
	s.rows.mu.Lock()
	return func() {
		s.rows.mu.Unlock()
		s.mu.RUnlock()
	}, nil
}

func (r row) out() metastore.Row {
	return metastore.Row{Path: r.path, Value: append([]byte(nil), r.value...), Version: r.version}
}

// Get implements metastore.Store.
func (s *Store) Get(ctx context.Context, key metastore.Key) (metastore.Row, error) {
	if err := metastore.CheckKey(metastore.OpGet, key); err != nil {
		return metastore.Row{}, err
	}
	leave, err := s.enter(ctx, metastore.OpGet, key.Path)
	if err != nil {
		return metastore.Row{}, err
	}
	defer leave()
	r, ok := s.rows.rows.Get(row{partition: key.Partition, path: key.Path})
	if !ok {
		return metastore.Row{}, metastore.Fail(metastore.OpGet, key.Path, metastore.ErrNotFound, "")
	}
	return r.out(), nil
}

// Floor implements metastore.Store.
func (s *Store) Floor(ctx context.Context, key metastore.Key, from string) (metastore.Row, error) {
	if err := metastore.CheckFloor(key, from); err != nil {
		return metastore.Row{}, err
	}
	leave, err := s.enter(ctx, metastore.OpFloor, key.Path)
	if err != nil {
		return metastore.Row{}, err
	}
	defer leave()
	var found *row
	s.rows.rows.DescendLessOrEqual(row{partition: key.Partition, path: key.Path}, func(r row) bool {
		if r.partition == key.Partition && r.path >= from {
			found = &r
		}
		return false
	})
	if found == nil {
		return metastore.Row{}, metastore.Fail(metastore.OpFloor, key.Path, metastore.ErrNotFound, "no row from "+from)
	}
	return found.out(), nil
}

// Range implements metastore.Store.
func (s *Store) Range(ctx context.Context, partition, from, to string, limit int) ([]metastore.Row, error) {
	if err := metastore.CheckRange(partition, from, to, limit); err != nil {
		return nil, err
	}
	leave, err := s.enter(ctx, metastore.OpRange, metastore.RangeName(from, to))
	if err != nil {
		return nil, err
	}
	defer leave()
	var rows []metastore.Row
	s.rows.rows.AscendRange(row{partition: partition, path: from}, row{partition: partition, path: to}, func(r row) bool {
		rows = append(rows, r.out())
		return len(rows) < limit
	})
	return rows, nil
}

// Put implements metastore.Store.
func (s *Store) Put(ctx context.Context, key metastore.Key, value []byte, expected metastore.Version) (metastore.Version, error) {
	return s.put(ctx, metastore.OpPut, key, value, expected, nil)
}

// PutEphemeral implements metastore.Store. The row goes when the session closes.
func (s *Store) PutEphemeral(ctx context.Context, key metastore.Key, value []byte, expected metastore.Version) (metastore.Version, error) {
	return s.put(ctx, metastore.OpPutEphemeral, key, value, expected, s)
}

func (s *Store) put(ctx context.Context, op metastore.Op, key metastore.Key, value []byte, expected metastore.Version, session *Store) (metastore.Version, error) {
	if err := metastore.CheckPut(op, key, value, expected); err != nil {
		return 0, err
	}
	leave, err := s.enter(ctx, op, key.Path)
	if err != nil {
		return 0, err
	}
	defer leave()
	version := metastore.Absent
	if old, ok := s.rows.rows.Get(row{partition: key.Partition, path: key.Path}); ok {
		version = old.version
	}
	if version != expected {
		return 0, metastore.Conflict(op, key.Path, expected, version)
	}
	s.rows.version++
	s.rows.rows.ReplaceOrInsert(row{
		partition: key.Partition, path: key.Path,
		value: append([]byte(nil), value...), version: s.rows.version, session: session,
	})
	s.rows.publish(metastore.Event{Path: key.Path})
	return s.rows.version, nil
}

// Delete implements metastore.Store.
func (s *Store) Delete(ctx context.Context, key metastore.Key, expected metastore.Version) error {
	if err := metastore.CheckDelete(key, expected); err != nil {
		return err
	}
	leave, err := s.enter(ctx, metastore.OpDelete, key.Path)
	if err != nil {
		return err
	}
	defer leave()
	old, ok := s.rows.rows.Get(row{partition: key.Partition, path: key.Path})
	if !ok {
		return metastore.Fail(metastore.OpDelete, key.Path, metastore.ErrNotFound, "")
	}
	if old.version != expected {
		return metastore.Conflict(metastore.OpDelete, key.Path, expected, old.version)
	}
	s.rows.rows.Delete(old)
	s.rows.publish(metastore.Event{Path: key.Path, Deleted: true})
	return nil
}

// publish tells all sessions; t.mu is held, so events are in version order.
func (t *table) publish(e metastore.Event) {
	for s := range t.sessions {
		s.hub.Publish(e)
	}
}

// Watch implements metastore.Store.
func (s *Store) Watch(ctx context.Context, prefix string) (<-chan metastore.Event, error) {
	if err := metastore.CheckWatch(prefix); err != nil {
		return nil, err
	}
	leave, err := s.enter(ctx, metastore.OpWatch, prefix)
	if err != nil {
		return nil, err
	}
	defer leave()
	events, err := s.hub.Watch(ctx, prefix)
	if err != nil {
		return nil, metastore.Fail(metastore.OpWatch, prefix, metastore.ErrClosed, "")
	}
	return events, nil
}

// Close ends the session: its watches, and its ephemeral rows.
func (s *Store) Close() error {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if closed {
		return nil
	}
	s.rows.end(s)
	s.hub.Close()
	return nil
}

func (t *table) end(s *Store) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.sessions, s)
	var gone []row
	t.rows.Ascend(func(r row) bool {
		if r.session == s {
			gone = append(gone, r)
		}
		return true
	})
	for _, r := range gone {
		t.rows.Delete(r)
		t.publish(metastore.Event{Path: r.path, Deleted: true})
	}
}
