package chain

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/nova-stream/nova/libs/objectstore"
)

// limited makes one call that ends after d, if the store does not answer: then
// it is ErrUnavailable, and its effect is unknown.
func limited[T any](ctx context.Context, d time.Duration, call func(context.Context) (T, error)) (T, error) {
	inner, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	v, err := call(inner)
	if err != nil && inner.Err() != nil && ctx.Err() == nil {
		// The cause is a context error, which would look like the caller's.
		return v, errSilent{d}
	}
	return v, err
}

// errSilent is the error of a call that got no answer in time.
type errSilent struct{ after time.Duration }

func (e errSilent) Error() string { return "the object store did not answer for " + e.after.String() }
func (errSilent) Unwrap() error   { return objectstore.ErrUnavailable }

// passing reports whether the same call may do better later.
func passing(err error) bool {
	return errors.Is(err, objectstore.ErrUnavailable) || errors.Is(err, objectstore.ErrThrottled)
}

// again repeats a call that MUST be repeatable while its error passes, for the
// store's patience. tries is how many there were.
func (s *Store) again(ctx context.Context, call func() error) (tries int, err error) {
	until := time.Now().Add(s.cfg.Patience)
	for tries = 1; ; tries++ {
		err = call()
		if !passing(err) || time.Now().After(until) || sleep(ctx, backoff(tries-1, time.Second)) != nil {
			return tries, err
		}
	}
}

// backoff is the jittered pause before try n, from 0, of an undecided call.
func backoff(n int, limit time.Duration) time.Duration {
	d := min(10*time.Millisecond<<min(n, 10), limit)
	return d/2 + rand.N(d)
}

// sleep pauses, or returns early with the context's error.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
