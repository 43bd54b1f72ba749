package fault

import (
	"context"
	"time"

	"github.com/nova-stream/nova/libs/objectstore"
)

// answer is what the inner store said to one call.
type answer struct {
	etag   objectstore.ETag
	object objectstore.Object
	infos  []objectstore.Info
}

// do does one call. ask asks the inner store; it may run after do returned
// (LandLate), so it must own what it uses.
func (s *Store) do(ctx context.Context, op Op, c Count, ask func(ctx context.Context, do Action) (answer, error), keys ...string) (answer, error) {
	p, err := s.arrive(op, keys)
	if err != nil {
		return answer{}, err
	}
	var a answer
	err = s.act(ctx, op, keys, p.rule, func(ctx context.Context) error {
		got, err := ask(ctx, p.rule.Do)
		if p.rule.Do != LandLate { // else nobody waits for it
			a = got
		}
		return err
	})
	if err == nil {
		c.Read = int64(len(a.object.Body))
		c.Keys += len(a.infos)
	}
	if err := s.depart(op, keys, p, c, err); err != nil {
		return answer{}, err
	}
	return a, nil
}

func (s *Store) act(ctx context.Context, op Op, keys []string, rule Rule, call func(context.Context) error) error {
	if rule.Hook != nil {
		if err := rule.Hook(ctx, op, first(keys)); err != nil {
			return err
		}
	}
	switch rule.Do {
	case FailBefore:
		return fail(op, keys, objectstore.ErrUnavailable, "nothing landed")
	case Conflict:
		return fail(op, keys, objectstore.ErrUnavailable, "409 ConditionalRequestConflict")
	case Throttle:
		return fail(op, keys, objectstore.ErrThrottled, "503 SlowDown")
	case Permanent:
		return fail(op, keys, objectstore.ErrPermanent, "403 AccessDenied")
	case LoseReply, Cut:
		// What the inner store would have said is lost with the reply.
		if err := call(ctx); err != nil && ctx.Err() != nil {
			return err
		}
		return fail(op, keys, objectstore.ErrUnavailable, "the reply was lost")
	case HangAfter:
		_ = call(ctx)
		return s.hang(ctx, op, keys)
	case Hang:
		return s.hang(ctx, op, keys)
	case LandLate:
		s.mu.Lock()
		s.late = append(s.late, call)
		s.mu.Unlock()
		return fail(op, keys, objectstore.ErrUnavailable, "it lands later")
	case Delay:
		timer := time.NewTimer(rule.Delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-s.killed:
			return s.dead(op, keys)
		case <-ctx.Done():
			return objectstore.Expired(ctx, op.String(), first(keys))
		}
	case Half:
		if err := call(ctx); err != nil || op != Delete {
			return err
		}
		return fail(op, keys, objectstore.ErrUnavailable, "half of them are there still")
	case Pass, Truncate, Corrupt:
	}
	return call(ctx)
}

func (s *Store) hang(ctx context.Context, op Op, keys []string) error {
	select {
	case <-s.killed:
		return s.dead(op, keys)
	case <-ctx.Done():
		return objectstore.Expired(ctx, op.String(), first(keys))
	}
}

// PutIfAbsent implements objectstore.Store.
func (s *Store) PutIfAbsent(ctx context.Context, key string, body []byte) (objectstore.ETag, error) {
	body = append([]byte{}, body...)
	a, err := s.do(ctx, PutIfAbsent, Count{Written: int64(len(body)), Keys: 1}, func(ctx context.Context, _ Action) (a answer, err error) {
		a.etag, err = s.inner.PutIfAbsent(ctx, key, body)
		return a, err
	}, key)
	return a.etag, err
}

// PutIfMatch implements objectstore.Store.
func (s *Store) PutIfMatch(ctx context.Context, key string, body []byte, etag objectstore.ETag) (objectstore.ETag, error) {
	body = append([]byte{}, body...)
	a, err := s.do(ctx, PutIfMatch, Count{Written: int64(len(body)), Keys: 1}, func(ctx context.Context, _ Action) (a answer, err error) {
		a.etag, err = s.inner.PutIfMatch(ctx, key, body, etag)
		return a, err
	}, key)
	return a.etag, err
}

// Get implements objectstore.Store.
func (s *Store) Get(ctx context.Context, key string) (objectstore.Object, error) {
	a, err := s.do(ctx, Get, Count{Keys: 1}, func(ctx context.Context, do Action) (a answer, err error) {
		if a.object, err = s.inner.Get(ctx, key); err != nil {
			return a, err
		}
		switch do {
		case Truncate:
			a.object.Size /= 2
			a.object.Body = a.object.Body[:a.object.Size]
		case Corrupt:
			flip(a.object.Body)
		}
		return a, nil
	}, key)
	return a.object, err
}

// GetRange implements objectstore.Store.
func (s *Store) GetRange(ctx context.Context, key string, r objectstore.Range) (objectstore.Object, error) {
	a, err := s.do(ctx, GetRange, Count{Keys: 1}, func(ctx context.Context, do Action) (a answer, err error) {
		if do == Truncate {
			a.object, err = s.getTruncated(ctx, key, r)
			return a, err
		}
		if a.object, err = s.inner.GetRange(ctx, key, r); err == nil && do == Corrupt {
			flip(a.object.Body)
		}
		return a, err
	}, key)
	return a.object, err
}

// getTruncated reads a range of the first half, as if that were all.
func (s *Store) getTruncated(ctx context.Context, key string, r objectstore.Range) (objectstore.Object, error) {
	o, err := s.inner.Get(ctx, key)
	if err != nil {
		return objectstore.Object{}, err
	}
	o.Size /= 2
	start, end, err := r.Resolve(GetRange.String(), key, o.Size)
	if err != nil {
		return objectstore.Object{}, err
	}
	o.Body = o.Body[start:end]
	return o, nil
}

func flip(body []byte) {
	if len(body) > 0 {
		body[len(body)/2] ^= 0x10
	}
}

// Delete implements objectstore.Store.
func (s *Store) Delete(ctx context.Context, keys ...string) error {
	keys = append([]string{}, keys...)
	_, err := s.do(ctx, Delete, Count{Keys: len(keys)}, func(ctx context.Context, do Action) (answer, error) {
		some := keys
		if do == Half {
			some = keys[:len(keys)/2]
		}
		return answer{}, s.inner.Delete(ctx, some...)
	}, keys...)
	return err
}

// List implements objectstore.Store. A rule's Prefix is compared with the
// listing's.
func (s *Store) List(ctx context.Context, prefix, after string, limit int) ([]objectstore.Info, error) {
	a, err := s.do(ctx, List, Count{}, func(ctx context.Context, _ Action) (a answer, err error) {
		a.infos, err = s.inner.List(ctx, prefix, after, limit)
		return a, err
	}, prefix)
	return a.infos, err
}
