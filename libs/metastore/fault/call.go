package fault

import (
	"context"
	"strings"

	"github.com/nova-stream/nova/libs/metastore"
)

// Get implements metastore.Store.
func (s *Store) Get(ctx context.Context, key metastore.Key) (metastore.Row, error) {
	return s.readRow(ctx, Get, key, func(ctx context.Context, p plan) (metastore.Row, error) {
		if p.rule.Do == Stale {
			return s.staleGet(ctx, key, p.rule.Back)
		}
		return s.inner.Get(ctx, key)
	})
}

// Floor implements metastore.Store.
func (s *Store) Floor(ctx context.Context, key metastore.Key, from string) (metastore.Row, error) {
	return s.readRow(ctx, Floor, key, func(ctx context.Context, p plan) (metastore.Row, error) {
		if p.rule.Do == Stale {
			return s.staleFloor(ctx, key, from, p.rule.Back)
		}
		return s.inner.Floor(ctx, key, from)
	})
}

func (s *Store) readRow(ctx context.Context, op Op, key metastore.Key, read func(context.Context, plan) (metastore.Row, error)) (metastore.Row, error) {
	p, err := s.arrive(op, key.Path)
	var row metastore.Row
	if err == nil {
		err = s.act(ctx, op, key.Path, p.rule, func(ctx context.Context) error {
			got, err := read(ctx, p)
			if err == nil && p.rule.Do != Stale {
				s.past.seen(key.Partition, got)
			}
			if p.rule.Do != LandLate {
				row = got
			}
			return err
		})
	}
	if err = s.depart(op, key.Path, p, Count{Read: int64(len(row.Value)), Rows: 1}, err); err != nil {
		return metastore.Row{}, err
	}
	return row, nil
}

// Range implements metastore.Store.
func (s *Store) Range(ctx context.Context, partition, from, to string, limit int) ([]metastore.Row, error) {
	p, err := s.arrive(Range, from)
	var rows []metastore.Row
	if err == nil {
		err = s.act(ctx, Range, from, p.rule, func(ctx context.Context) error {
			var got []metastore.Row
			var err error
			if p.rule.Do == Stale {
				got, err = s.staleRange(ctx, partition, from, to, limit, p.rule.Back)
			} else {
				got, err = s.inner.Range(ctx, partition, from, to, limit)
				for _, row := range got {
					s.past.seen(partition, row)
				}
			}
			if p.rule.Do != LandLate {
				rows = got
			}
			return err
		})
	}
	var read int64
	for _, row := range rows {
		read += int64(len(row.Value))
	}
	if err = s.depart(Range, from, p, Count{Read: read, Rows: len(rows)}, err); err != nil {
		return nil, err
	}
	return rows, nil
}

// Put implements metastore.Store.
func (s *Store) Put(ctx context.Context, key metastore.Key, value []byte, expected metastore.Version) (metastore.Version, error) {
	return s.put(ctx, Put, key, value, expected, s.inner.Put)
}

// PutEphemeral implements metastore.Store.
func (s *Store) PutEphemeral(ctx context.Context, key metastore.Key, value []byte, expected metastore.Version) (metastore.Version, error) {
	return s.put(ctx, PutEphemeral, key, value, expected, s.inner.PutEphemeral)
}

func (s *Store) put(ctx context.Context, op Op, key metastore.Key, value []byte, expected metastore.Version,
	put func(context.Context, metastore.Key, []byte, metastore.Version) (metastore.Version, error),
) (metastore.Version, error) {
	p, err := s.arrive(op, key.Path)
	var version metastore.Version
	if err == nil {
		own := append([]byte(nil), value...) // LandLate: the caller may change its own meanwhile
		err = s.act(ctx, op, key.Path, p.rule, func(ctx context.Context) error {
			got, err := put(ctx, key, own, expected)
			if err == nil {
				s.past.put(key, metastore.Row{Path: key.Path, Value: own, Version: got}, expected)
			}
			if p.rule.Do != LandLate {
				version = got
			}
			return err
		})
	}
	if err = s.depart(op, key.Path, p, Count{Written: int64(len(value))}, err); err != nil {
		return 0, err
	}
	return version, nil
}

// Delete implements metastore.Store.
func (s *Store) Delete(ctx context.Context, key metastore.Key, expected metastore.Version) error {
	p, err := s.arrive(Delete, key.Path)
	if err == nil {
		err = s.act(ctx, Delete, key.Path, p.rule, func(ctx context.Context) error {
			err := s.inner.Delete(ctx, key, expected)
			if err == nil {
				s.past.deleted(key)
			}
			return err
		})
	}
	return s.depart(Delete, key.Path, p, Count{}, err)
}

// Watch implements metastore.Store. Events that come during an outage or after
// the kill are lost. A goroutine passes them on; it ends with the inner watch,
// or with ctx.
func (s *Store) Watch(ctx context.Context, prefix string) (<-chan metastore.Event, error) {
	p, err := s.arrive(Watch, prefix)
	var in <-chan metastore.Event
	if err == nil {
		// The watch of a lost reply must end though nobody has it.
		inner, cancel := context.WithCancel(ctx)
		err = s.act(ctx, Watch, prefix, p.rule, func(context.Context) (err error) {
			if p.rule.Do == LandLate {
				return nil
			}
			in, err = s.inner.Watch(inner, prefix)
			return err
		})
		if err = s.depart(Watch, prefix, p, Count{}, err); err != nil {
			cancel()
			return nil, err
		}
		out := make(chan metastore.Event)
		go func() {
			defer cancel()
			defer close(out)
			for e := range in {
				if s.silent() {
					continue
				}
				select {
				case out <- e:
				case <-ctx.Done():
				case <-s.killed: // it came before, and nobody took it
				}
			}
		}()
		return out, nil
	}
	return nil, s.depart(Watch, prefix, p, Count{}, err)
}

func (s *Store) silent() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.outage || s.isKilled()
}

func backOf(back int) int { return max(back, 1) }

func (s *Store) staleGet(ctx context.Context, key metastore.Key, back int) (metastore.Row, error) {
	if err := metastore.Ended(ctx, Get, key.Path); err != nil {
		return metastore.Row{}, err
	}
	old, known := s.past.at(key, backOf(back))
	if !known {
		return s.inner.Get(ctx, key)
	}
	if old.absent {
		return metastore.Row{}, metastore.Fail(Get, key.Path, metastore.ErrNotFound, "injected: stale")
	}
	return old.row, nil
}

// staleFloor looks at the whole range: a row that is there now may not have
// been, and one that is gone may still be seen.
func (s *Store) staleFloor(ctx context.Context, key metastore.Key, from string, back int) (metastore.Row, error) {
	if err := metastore.CheckFloor(key, from); err != nil {
		return metastore.Row{}, err
	}
	row, err := s.staleGet(ctx, key, back)
	if err == nil {
		return row, nil
	}
	rows, err := s.staleRows(ctx, key.Partition, from, key.Path, back)
	if err != nil {
		return metastore.Row{}, err
	}
	if len(rows) == 0 {
		return metastore.Row{}, metastore.Fail(Floor, key.Path, metastore.ErrNotFound, "injected: stale")
	}
	return rows[len(rows)-1], nil
}

func (s *Store) staleRange(ctx context.Context, partition, from, to string, limit, back int) ([]metastore.Row, error) {
	if err := metastore.CheckRange(partition, from, to, limit); err != nil {
		return nil, err
	}
	rows, err := s.staleRows(ctx, partition, from, to, back)
	if err != nil {
		return nil, err
	}
	return rows[:min(limit, len(rows))], nil
}

// staleRows returns all rows of a range as they were: a page that comes short
// must mean that there were no more.
func (s *Store) staleRows(ctx context.Context, partition, from, to string, back int) ([]metastore.Row, error) {
	now := make(map[string]metastore.Row)
	for next := from; next < to; {
		page, err := s.inner.Range(ctx, partition, next, to, metastore.MaxRangeLimit)
		if err != nil {
			return nil, err
		}
		for _, row := range page {
			now[row.Path] = row
		}
		if len(page) < metastore.MaxRangeLimit {
			break
		}
		// The next printable string: paths of MaxKeyBytes cannot be extended,
		// but nothing lies between such a path and its successor's prefix.
		last := page[len(page)-1].Path
		if next = last + " "; len(next) > metastore.MaxKeyBytes {
			if next = strings.TrimRight(last, "~"); next == "" {
				break
			}
			next = next[:len(next)-1] + string(next[len(next)-1]+1)
		}
	}
	return s.past.overlay(partition, from, to, backOf(back), now), nil
}
