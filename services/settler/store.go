package settler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nova-stream/nova/libs/objectstore"
)

const (
	// callTimeout ends one call that the object store does not answer.
	callTimeout = 30 * time.Second
	// patience is how long a call to the object store is repeated, while its error
	// passes, before the span is given up.
	patience = 10 * time.Second
)

// again repeats a call to the object store, which MUST be repeatable, while its
// error passes.
func again[T any](ctx context.Context, call func(context.Context) (T, error)) (T, error) {
	until := time.Now().Add(patience)
	for n := 0; ; n++ {
		v, err := limited(ctx, call)
		passing := errors.Is(err, objectstore.ErrUnavailable) || errors.Is(err, objectstore.ErrThrottled)
		if !passing || time.Now().After(until) || sleep(ctx, backoff(n)) != nil {
			return v, err
		}
	}
}

// limited makes one call that ends by itself. Silence is ErrUnavailable.
func limited[T any](ctx context.Context, call func(context.Context) (T, error)) (T, error) {
	inner, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	v, err := call(inner)
	if err != nil && inner.Err() != nil && ctx.Err() == nil {
		return v, fmt.Errorf("no answer for %s: %w", callTimeout, objectstore.ErrUnavailable)
	}
	return v, err
}

// backoff is the jittered pause before try n, from 0.
func backoff(n int) time.Duration {
	d := min(10*time.Millisecond<<min(n, 10), time.Second)
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
