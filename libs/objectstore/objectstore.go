// Package objectstore is Nova's view of object storage: whole immutable
// objects written conditionally, read by byte range, and deleted.
//
// Implementations: objectstore/mem, objectstore/fs, objectstore/s3. All pass
// the contract suite in objectstore/objectstoretest; objectstore/fault wraps
// any of them and injects what real stores do.
//
// Promises every implementation MUST keep:
//   - A nil error from a Put means the bytes survive the loss of this process
//     (and, for fs, of the machine's power).
//   - Of any number of PutIfAbsent calls of one key, at most one returns nil,
//     ever, as long as the object is not deleted.
//   - A read that starts after a successful Put sees those bytes.
//   - An error other than ErrExists, ErrMismatch and ErrPermanent leaves
//     unknown whether the call took effect. The caller MUST repeat the same
//     bytes to the same key, or read, before it concludes anything.
package objectstore

import (
	"context"
	"errors"
)

// The errors a caller branches on; test with errors.Is. Every returned error
// wraps exactly one of them, or a context error, and names the operation and key.
var (
	// ErrNotFound: no such object.
	ErrNotFound = errors.New("object not found")
	// ErrExists: PutIfAbsent met an object (HTTP 412). It may be the caller's
	// own, from an attempt whose reply was lost.
	ErrExists = errors.New("object exists")
	// ErrMismatch: PutIfMatch met another version or none (HTTP 412 or 404).
	ErrMismatch = errors.New("object version mismatch")
	// ErrUnavailable: the store did not answer, timed out, answered 5xx, 409
	// ConditionalRequestConflict or RequestTimeout, or its disk is full or
	// read-only. Unknown effect; try again, same bytes, same key.
	ErrUnavailable = errors.New("object store unavailable")
	// ErrThrottled: the store asks to slow down (SlowDown, 503). Unknown
	// effect; try again later.
	ErrThrottled = errors.New("object store throttles")
	// ErrPermanent: the store refuses for good (credentials, no such bucket,
	// malformed request). No effect; repeating does not help.
	ErrPermanent = errors.New("object store refuses")
	// ErrRange: a ranged read starts at or beyond the object's end.
	ErrRange = errors.New("range not satisfiable")
)

// ETag identifies one version of an object's bytes, for PutIfMatch.
type ETag string

// Object is what a read returns. Body is owned by the caller.
type Object struct {
	Body []byte
	ETag ETag
	Size int64 // bytes of the whole object, also for a ranged read
}

// Info describes a listed object.
type Info struct {
	Key  string
	Size int64 // bytes
}

// Range is a byte range of an object.
type Range struct {
	// Offset is where the range starts, in bytes; negative means a suffix: the
	// last -Offset bytes (the whole object if it is shorter), Length ignored.
	Offset int64
	// Length in bytes. 0 means to the end. A range that starts inside the
	// object and ends beyond it returns what there is.
	Length int64
}

// MaxKeyBytes is the longest key, in bytes of UTF-8.
const MaxKeyBytes = 900

// Store is an object store with conditional writes. Keys are slash-separated,
// each segment 1..255 bytes of [A-Za-z0-9._-] and not "." or "..". No key is a prefix-folder
// of another ("a" and "a/b" do not both exist). Methods are safe for
// concurrent use. Bodies passed in are not modified and not kept after return.
// CheckKey, CheckList and Range.Resolve are the rules for arguments; a call
// that breaks one gets ErrPermanent, as does every call after Close.
type Store interface {
	// PutIfAbsent stores body under key unless an object is there: ErrExists.
	PutIfAbsent(ctx context.Context, key string, body []byte) (ETag, error)
	// PutIfMatch replaces the object if its version is still etag: ErrMismatch.
	PutIfMatch(ctx context.Context, key string, body []byte, etag ETag) (ETag, error)
	// Get returns the whole object.
	Get(ctx context.Context, key string) (Object, error)
	// GetRange returns part of an object.
	GetRange(ctx context.Context, key string, r Range) (Object, error)
	// Delete removes objects. A key that is not there is a success. On error
	// any part of keys may have been deleted.
	Delete(ctx context.Context, keys ...string) error
	// List returns up to limit (1..1000) objects whose key starts with prefix
	// and is greater than after, in byte order of keys. For offline tools and
	// tests only: nothing that serves or maintains data may list (I7).
	List(ctx context.Context, prefix, after string, limit int) ([]Info, error)
	// Close releases what the store holds.
	Close() error
}
