// Package metastore is Nova's view of a metadata store: small values under
// ordered keys, changed only by compare-and-set on a version (I6).
//
// Implementations: metastore/mem, metastore/bbolt, metastore/oxia. All pass
// the contract suite in metastore/metastoretest; metastore/fault wraps any of
// them and injects stale reads and lost replies.
//
// Reads may be stale: a value returned by Get, Floor, Range or a Watch was
// current at some time, perhaps not now. A decision therefore rests only on
// the result of a Put or Delete. A CAS whose reply was lost may have landed,
// and a retry inside a client library may report an own landed write as
// ErrConflict: values that are CASed carry an attempt id, and whoever gets
// ErrConflict or ErrUnavailable reads back and recognises its own.
package metastore

import (
	"context"
	"errors"
)

// The errors a caller branches on; test with errors.Is. Every returned error
// wraps exactly one of them, or a context error, and names operation and key.
var (
	// ErrNotFound: no value under the key (or within the range, for Floor).
	ErrNotFound = errors.New("key not found")
	// ErrConflict: the key's version is not the expected one.
	ErrConflict = errors.New("version conflict")
	// ErrUnavailable: no answer, or a passing fault. A write may have landed.
	ErrUnavailable = errors.New("metastore unavailable")
	// ErrInvalid: a key, value or bound breaks the rules of Key or a limit.
	ErrInvalid = errors.New("invalid metastore call")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("metastore closed")
)

// Limits.
const (
	// MaxKeyBytes is the longest Path, in bytes.
	MaxKeyBytes = 1536
	// MaxValueBytes is the largest value, in bytes.
	MaxValueBytes = 512 << 10
	// MaxRangeLimit is the largest limit of Range.
	MaxRangeLimit = 1000
)

// Key names a row. Path is 1..MaxKeyBytes bytes of printable ASCII and sorts
// by bytes. A key family has a constant number of slashes, so that stores that
// sort hierarchically and stores that sort by bytes agree. Partition is a
// function of the path chosen by its family: rows with an equal Partition live
// together, and a range lies within one Partition.
type Key struct {
	Partition string
	Path      string
}

// Version identifies one version of a row's value. A version is never given
// twice to one path, also not after the row was deleted and made again. Callers
// compare versions for equality only.
type Version int64

// Absent as an expected version means: there must be no row.
const Absent Version = -1

// Row is one row as read.
type Row struct {
	Path    string
	Value   []byte // owned by the caller
	Version Version
}

// Event says that a row changed or went away; it is a hint to read again.
type Event struct {
	Path    string
	Deleted bool
}

// Store is a metadata store. Methods are safe for concurrent use.
type Store interface {
	// Get returns the row under key.
	Get(ctx context.Context, key Key) (Row, error)
	// Floor returns the row with the greatest path <= key.Path and >= from,
	// in key's partition.
	Floor(ctx context.Context, key Key, from string) (Row, error)
	// Range returns up to limit (1..MaxRangeLimit) rows with from <= path < to
	// of one partition, in path order. from and to are of one key family.
	Range(ctx context.Context, partition, from, to string, limit int) ([]Row, error)
	// Put stores value if the row's version is expected (Absent: no row) and
	// returns the new version; ErrConflict otherwise. A nil error means the
	// row survives a crash, in stores that survive one.
	Put(ctx context.Context, key Key, value []byte, expected Version) (Version, error)
	// PutEphemeral is Put of a row that goes away some time after this
	// process does. Only a hint: nothing may be decided by its absence.
	PutEphemeral(ctx context.Context, key Key, value []byte, expected Version) (Version, error)
	// Delete removes the row if its version is expected; ErrConflict
	// otherwise, ErrNotFound when there is none.
	Delete(ctx context.Context, key Key, expected Version) error
	// Watch reports changes to rows whose path starts with prefix, until ctx
	// ends; then the channel is closed. Events may be merged, repeated and,
	// after a fault, lost: a watcher also reads again from time to time.
	Watch(ctx context.Context, prefix string) (<-chan Event, error)
	// Close releases the store; calls under way may fail with ErrClosed.
	Close() error
}
