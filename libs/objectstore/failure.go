package objectstore

import (
	"context"
	"errors"
	"fmt"
)

// Fail makes the error of one operation: it names op (the method) and key and
// wraps kind, one of the package's sentinels or a context error. format and
// args add why; a cause wrapped there must not be a sentinel or context error
// itself, or callers would see two answers.
func Fail(op, key string, kind error, format string, args ...any) error {
	if format == "" {
		return fmt.Errorf("objectstore: %s %q: %w", op, key, kind)
	}
	return fmt.Errorf("objectstore: %s %q: %w: "+format, append([]any{op, key, kind}, args...)...)
}

// Expired returns nil while ctx is alive, and afterwards its error as an error
// of op and key.
func Expired(ctx context.Context, op, key string) error {
	if err := ctx.Err(); err != nil {
		return Fail(op, key, err, "")
	}
	return nil
}

// Class names the kind of an error in one word, for metrics and logs: "ok" for
// nil, "canceled" and "deadline" for context errors, "other" for what no store
// should return.
func Class(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, ErrNotFound):
		return "not_found"
	case errors.Is(err, ErrExists):
		return "exists"
	case errors.Is(err, ErrMismatch):
		return "mismatch"
	case errors.Is(err, ErrUnavailable):
		return "unavailable"
	case errors.Is(err, ErrThrottled):
		return "throttled"
	case errors.Is(err, ErrPermanent):
		return "permanent"
	case errors.Is(err, ErrRange):
		return "range"
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, context.DeadlineExceeded):
		return "deadline"
	}
	return "other"
}

// Unknown reports whether err leaves open if a write took effect, so that the
// caller must repeat it or read.
func Unknown(err error) bool {
	switch {
	case err == nil, errors.Is(err, ErrExists), errors.Is(err, ErrMismatch), errors.Is(err, ErrPermanent):
		return false
	}
	return true
}
