// Package mem is an object store in the process's memory, for tests and
// --dev. A nil error from a Put promises nothing once the process is gone.
//
// It keeps the rule that no key is a folder of another, so that a caller who
// breaks it learns so here and not only on a file system.
package mem

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/nova-stream/nova/libs/objectstore"
)

// Store is an objectstore.Store; make one with New.
type Store struct {
	mu      sync.RWMutex
	objects map[string]object
	folders map[string]int // folder -> how many objects are below it
	version uint64         // of the newest object
	closed  bool
}

type object struct {
	body []byte // never changed in place
	etag objectstore.ETag
}

var _ objectstore.Store = (*Store)(nil)

// New returns an empty store.
func New() *Store {
	return &Store{objects: map[string]object{}, folders: map[string]int{}}
}

func (s *Store) begin(ctx context.Context, op, key string) error {
	if err := objectstore.CheckKey(op, key); err != nil {
		return err
	}
	return objectstore.Expired(ctx, op, key)
}

// open is called with mu held.
func (s *Store) open(op, key string) error {
	if s.closed {
		return objectstore.Fail(op, key, objectstore.ErrPermanent, "the store is closed")
	}
	return nil
}

// PutIfAbsent implements objectstore.Store.
func (s *Store) PutIfAbsent(ctx context.Context, key string, body []byte) (objectstore.ETag, error) {
	const op = "PutIfAbsent"
	if err := s.begin(ctx, op, key); err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.open(op, key); err != nil {
		return "", err
	}
	if _, ok := s.objects[key]; ok {
		return "", objectstore.Fail(op, key, objectstore.ErrExists, "")
	}
	if s.folders[key] > 0 {
		return "", objectstore.Fail(op, key, objectstore.ErrPermanent, "the key is a folder of other objects")
	}
	for folder := range folders(key) {
		if _, ok := s.objects[folder]; ok {
			return "", objectstore.Fail(op, key, objectstore.ErrPermanent, "its folder %q is an object", folder)
		}
	}
	for folder := range folders(key) {
		s.folders[folder]++
	}
	return s.store(key, body), nil
}

// PutIfMatch implements objectstore.Store.
func (s *Store) PutIfMatch(ctx context.Context, key string, body []byte, etag objectstore.ETag) (objectstore.ETag, error) {
	const op = "PutIfMatch"
	if err := s.begin(ctx, op, key); err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.open(op, key); err != nil {
		return "", err
	}
	if old, ok := s.objects[key]; !ok || old.etag != etag {
		return "", objectstore.Fail(op, key, objectstore.ErrMismatch, "")
	}
	return s.store(key, body), nil
}

func (s *Store) store(key string, body []byte) objectstore.ETag {
	s.version++
	etag := objectstore.ETag(strconv.FormatUint(s.version, 10))
	s.objects[key] = object{body: append([]byte{}, body...), etag: etag}
	return etag
}

// Get implements objectstore.Store.
func (s *Store) Get(ctx context.Context, key string) (objectstore.Object, error) {
	o, err := s.read(ctx, "Get", key)
	if err != nil {
		return objectstore.Object{}, err
	}
	return objectstore.Object{Body: append([]byte{}, o.body...), ETag: o.etag, Size: int64(len(o.body))}, nil
}

// GetRange implements objectstore.Store.
func (s *Store) GetRange(ctx context.Context, key string, r objectstore.Range) (objectstore.Object, error) {
	const op = "GetRange"
	if err := r.Check(op, key); err != nil {
		return objectstore.Object{}, err
	}
	o, err := s.read(ctx, op, key)
	if err != nil {
		return objectstore.Object{}, err
	}
	start, end, err := r.Resolve(op, key, int64(len(o.body)))
	if err != nil {
		return objectstore.Object{}, err
	}
	return objectstore.Object{Body: append([]byte{}, o.body[start:end]...), ETag: o.etag, Size: int64(len(o.body))}, nil
}

func (s *Store) read(ctx context.Context, op, key string) (object, error) {
	if err := s.begin(ctx, op, key); err != nil {
		return object{}, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.open(op, key); err != nil {
		return object{}, err
	}
	o, ok := s.objects[key]
	if !ok {
		return object{}, objectstore.Fail(op, key, objectstore.ErrNotFound, "")
	}
	return o, nil
}

// Delete implements objectstore.Store.
func (s *Store) Delete(ctx context.Context, keys ...string) error {
	const op = "Delete"
	for _, key := range keys {
		if err := s.begin(ctx, op, key); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range keys {
		if err := s.open(op, key); err != nil {
			return err
		}
		if _, ok := s.objects[key]; !ok {
			continue
		}
		delete(s.objects, key)
		for folder := range folders(key) {
			if s.folders[folder]--; s.folders[folder] == 0 {
				delete(s.folders, folder)
			}
		}
	}
	return nil
}

// List implements objectstore.Store. It looks at every object.
func (s *Store) List(ctx context.Context, prefix, after string, limit int) ([]objectstore.Info, error) {
	const op = "List"
	if err := objectstore.CheckList(prefix, limit); err != nil {
		return nil, err
	}
	if err := objectstore.Expired(ctx, op, prefix); err != nil {
		return nil, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.open(op, prefix); err != nil {
		return nil, err
	}
	var infos []objectstore.Info
	for key, o := range s.objects {
		if strings.HasPrefix(key, prefix) && key > after {
			infos = append(infos, objectstore.Info{Key: key, Size: int64(len(o.body))})
		}
	}
	slices.SortFunc(infos, func(a, b objectstore.Info) int { return strings.Compare(a.Key, b.Key) })
	return infos[:min(len(infos), limit)], nil
}

// Close implements objectstore.Store; the objects are gone.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.objects, s.folders = nil, nil
	return nil
}

// folders yields the folders that key lies in: for "a/b/c" "a" and "a/b".
func folders(key string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for i := range len(key) {
			if key[i] == '/' && !yield(key[:i]) {
				return
			}
		}
	}
}
