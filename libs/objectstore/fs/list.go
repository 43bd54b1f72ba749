package fs

import (
	"context"
	"os"
	"slices"
	"strings"

	"github.com/nova-stream/nova/libs/objectstore"
)

// List implements objectstore.Store. It walks the folders; what it returns may
// not be durable yet.
func (s *Store) List(ctx context.Context, prefix, after string, limit int) ([]objectstore.Info, error) {
	const op = "List"
	if err := objectstore.CheckList(prefix, limit); err != nil {
		return nil, err
	}
	if err := objectstore.Expired(ctx, op, prefix); err != nil {
		return nil, err
	}
	if err := s.begin(ctx, op); err != nil {
		return nil, err
	}
	defer s.end()
	l := listing{s: s, ctx: ctx, prefix: prefix, after: after, limit: limit}
	if err := l.walk(prefix[:strings.LastIndexByte(prefix, '/')+1]); err != nil {
		if ctxErr := objectstore.Expired(ctx, op, prefix); ctxErr != nil {
			return nil, ctxErr
		}
		return nil, fail(op, prefix, err)
	}
	return l.infos, nil
}

type listing struct {
	s             *Store
	ctx           context.Context
	prefix, after string
	limit         int
	infos         []objectstore.Info
}

// walk adds what is in a folder, named with its slash, in byte order of keys.
func (l *listing) walk(folder string) error {
	if err := l.ctx.Err(); err != nil {
		return err
	}
	entries, err := os.ReadDir(l.s.path(folder))
	if absent(err) {
		return l.s.present()
	}
	if err != nil {
		return err
	}
	// The keys in folder "a" start with "a/", and "a-b" sorts before that.
	name := func(e os.DirEntry) string {
		if e.IsDir() {
			return e.Name() + "/"
		}
		return e.Name()
	}
	slices.SortFunc(entries, func(a, b os.DirEntry) int { return strings.Compare(name(a), name(b)) })
	for _, e := range entries {
		if len(l.infos) == l.limit {
			return nil
		}
		key := folder + name(e)
		if e.IsDir() {
			overlaps := strings.HasPrefix(key, l.prefix) || strings.HasPrefix(l.prefix, key)
			passed := l.after > key && !strings.HasPrefix(l.after, key)
			if overlaps && !passed {
				if err := l.walk(key); err != nil {
					return err
				}
			}
			continue
		}
		if !strings.HasPrefix(key, l.prefix) || key <= l.after {
			continue
		}
		fi, err := e.Info()
		if absent(err) {
			continue // deleted since
		}
		if err != nil {
			return err
		}
		l.infos = append(l.infos, objectstore.Info{Key: key, Size: fi.Size()})
	}
	return nil
}
