package metastore

import (
	"context"
	"fmt"
	"strings"
	"sync"
)

// MaxPrefixBytes is the longest prefix WithPrefix takes. The prefix counts
// against MaxKeyBytes: a store under a prefix of n bytes takes paths of up to
// MaxKeyBytes-n bytes, so a path of MaxKeyBytes-MaxPrefixBytes always fits.
const MaxPrefixBytes = 128

// WithPrefix returns a view of inner in which every path stands for prefix +
// path. Rows outside the prefix are out of sight and out of reach; partitions
// stay as they are. Closing the view closes inner.
func WithPrefix(inner Store, prefix string) (Store, error) {
	if prefix == "" {
		return inner, nil
	}
	if err := CheckPrefix(prefix); err != nil {
		return nil, err
	}
	return &prefixed{inner: inner, prefix: prefix, done: make(chan struct{})}, nil
}

// CheckPrefix returns ErrInvalid unless prefix is at most MaxPrefixBytes of
// printable ASCII.
func CheckPrefix(prefix string) error {
	if len(prefix) > MaxPrefixBytes || unprintable(prefix) >= 0 {
		return fmt.Errorf("metastore prefix %q: %w: want at most MaxPrefixBytes, %d, of printable ASCII", prefix, ErrInvalid, MaxPrefixBytes)
	}
	return nil
}

type prefixed struct {
	inner  Store
	prefix string

	closing sync.Once
	done    chan struct{} // closed by Close
}

var _ Store = (*prefixed)(nil)

// path rewrites a path. An empty one must stay empty, or the prefix would make
// it legal.
func (s *prefixed) path(p string) string {
	if p == "" {
		return ""
	}
	return s.prefix + p
}

func (s *prefixed) key(k Key) Key {
	return Key{Partition: k.Partition, Path: s.path(k.Path)}
}

func (s *prefixed) strip(r Row) Row {
	r.Path = strings.TrimPrefix(r.Path, s.prefix)
	return r
}

func (s *prefixed) Get(ctx context.Context, key Key) (Row, error) {
	row, err := s.inner.Get(ctx, s.key(key))
	return s.strip(row), err
}

func (s *prefixed) Floor(ctx context.Context, key Key, from string) (Row, error) {
	row, err := s.inner.Floor(ctx, s.key(key), s.path(from))
	return s.strip(row), err
}

func (s *prefixed) Range(ctx context.Context, partition, from, to string, limit int) ([]Row, error) {
	rows, err := s.inner.Range(ctx, partition, s.path(from), s.path(to), limit)
	for i := range rows {
		rows[i] = s.strip(rows[i])
	}
	return rows, err
}

func (s *prefixed) Put(ctx context.Context, key Key, value []byte, expected Version) (Version, error) {
	return s.inner.Put(ctx, s.key(key), value, expected)
}

func (s *prefixed) PutEphemeral(ctx context.Context, key Key, value []byte, expected Version) (Version, error) {
	return s.inner.PutEphemeral(ctx, s.key(key), value, expected)
}

func (s *prefixed) Delete(ctx context.Context, key Key, expected Version) error {
	return s.inner.Delete(ctx, s.key(key), expected)
}

// Watch strips the prefix in a goroutine of its own, which ends with the inner
// channel, and that one ends with ctx.
func (s *prefixed) Watch(ctx context.Context, prefix string) (<-chan Event, error) {
	in, err := s.inner.Watch(ctx, s.prefix+prefix)
	if err != nil {
		return nil, err
	}
	out := make(chan Event)
	go func() {
		defer close(out)
		for e := range in {
			e.Path = strings.TrimPrefix(e.Path, s.prefix)
			select {
			case out <- e:
			case <-ctx.Done(): // inner closes in for the same reason
			case <-s.done:
			}
		}
	}()
	return out, nil
}

func (s *prefixed) Close() error {
	s.closing.Do(func() { close(s.done) })
	return s.inner.Close()
}
