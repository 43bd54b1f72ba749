package metastore

import (
	"context"
	"fmt"
	"strconv"
)

// Op names a method of Store in errors, metrics and fault scripts.
type Op string

// The operations of Store.
const (
	OpGet          Op = "Get"
	OpFloor        Op = "Floor"
	OpRange        Op = "Range"
	OpPut          Op = "Put"
	OpPutEphemeral Op = "PutEphemeral"
	OpDelete       Op = "Delete"
	OpWatch        Op = "Watch"
)

// Writes reports whether the operation changes a row.
func (o Op) Writes() bool { return o == OpPut || o == OpPutEphemeral || o == OpDelete }

// The functions below are for implementations of Store and for decorators:
// one place says what a legal call is and what an error looks like, so that
// no two stores differ in it.

// Fail returns the error of a failed call. It wraps kind, one of this
// package's sentinels or a context error, and nothing else: a cause from below
// goes into detail as text, lest a caller branch on what only one store says.
func Fail(op Op, path string, kind error, detail string) error {
	if detail == "" {
		return fmt.Errorf("metastore.%s %q: %w", op, path, kind)
	}
	return fmt.Errorf("metastore.%s %q: %w: %s", op, path, kind, detail)
}

// Ended returns the error of a call whose context has ended, else nil.
func Ended(ctx context.Context, op Op, path string) error {
	if err := ctx.Err(); err != nil {
		return Fail(op, path, err, "")
	}
	return nil
}

// Conflict returns ErrConflict, naming both versions.
func Conflict(op Op, path string, expected, found Version) error {
	return Fail(op, path, ErrConflict, fmt.Sprintf("expected %s, found %s", expected, found))
}

// CheckKey returns ErrInvalid unless key keeps the rules of Key.
func CheckKey(op Op, key Key) error {
	if err := checkPath(op, key.Path, key.Path); err != nil {
		return err
	}
	return checkPartition(op, key.Path, key.Partition)
}

// CheckPut returns ErrInvalid unless key, value and expected are legal.
func CheckPut(op Op, key Key, value []byte, expected Version) error {
	if err := CheckKey(op, key); err != nil {
		return err
	}
	if len(value) > MaxValueBytes {
		return Fail(op, key.Path, ErrInvalid, fmt.Sprintf("value has %d bytes, MaxValueBytes is %d", len(value), MaxValueBytes))
	}
	if expected < Absent {
		return Fail(op, key.Path, ErrInvalid, fmt.Sprintf("expected version %d was never given", expected))
	}
	return nil
}

// CheckDelete returns ErrInvalid unless key and expected are legal. Absent is
// no version that a row can have.
func CheckDelete(key Key, expected Version) error {
	if err := CheckKey(OpDelete, key); err != nil {
		return err
	}
	if expected <= Absent {
		return Fail(OpDelete, key.Path, ErrInvalid, fmt.Sprintf("expected version %d is no version of a row", expected))
	}
	return nil
}

// CheckFloor returns ErrInvalid unless key and from are legal and in order.
func CheckFloor(key Key, from string) error {
	if err := CheckKey(OpFloor, key); err != nil {
		return err
	}
	if err := checkPath(OpFloor, key.Path, from); err != nil {
		return err
	}
	if from > key.Path {
		return Fail(OpFloor, key.Path, ErrInvalid, fmt.Sprintf("lower bound %q is above the path", from))
	}
	return nil
}

// CheckRange returns ErrInvalid unless the bounds are legal and in order and
// limit is within 1..MaxRangeLimit.
func CheckRange(partition, from, to string, limit int) error {
	name := RangeName(from, to)
	for _, p := range [...]string{from, to} {
		if err := checkPath(OpRange, name, p); err != nil {
			return err
		}
	}
	if err := checkPartition(OpRange, name, partition); err != nil {
		return err
	}
	if from > to {
		return Fail(OpRange, name, ErrInvalid, "lower bound is above the upper bound")
	}
	if limit < 1 || limit > MaxRangeLimit {
		return Fail(OpRange, name, ErrInvalid, fmt.Sprintf("limit is %d, MaxRangeLimit is %d", limit, MaxRangeLimit))
	}
	return nil
}

// CheckWatch returns ErrInvalid unless prefix is legal. The empty prefix is:
// it watches every row.
func CheckWatch(prefix string) error {
	if prefix == "" {
		return nil
	}
	return checkPath(OpWatch, prefix, prefix)
}

// RangeName is how the errors of Range name what was read.
func RangeName(from, to string) string { return from + ".." + to }

func checkPath(op Op, name, path string) error {
	if path == "" {
		return Fail(op, name, ErrInvalid, "empty path or bound")
	}
	if len(path) > MaxKeyBytes {
		return Fail(op, name, ErrInvalid, fmt.Sprintf("path has %d bytes, MaxKeyBytes is %d", len(path), MaxKeyBytes))
	}
	if i := unprintable(path); i >= 0 {
		return Fail(op, name, ErrInvalid, fmt.Sprintf("byte %d of path %q is not printable ASCII", i, path))
	}
	return nil
}

func checkPartition(op Op, name, partition string) error {
	if len(partition) > MaxKeyBytes {
		return Fail(op, name, ErrInvalid, fmt.Sprintf("partition has %d bytes, MaxKeyBytes is %d", len(partition), MaxKeyBytes))
	}
	if i := unprintable(partition); i >= 0 {
		return Fail(op, name, ErrInvalid, fmt.Sprintf("byte %d of partition %q is not printable ASCII", i, partition))
	}
	return nil
}

// unprintable returns the index of the first byte outside ' '..'~', or -1.
func unprintable(s string) int {
	for i := 0; i < len(s); i++ {
		if s[i] < ' ' || s[i] > '~' {
			return i
		}
	}
	return -1
}

// String is for errors and logs.
func (v Version) String() string {
	if v == Absent {
		return "no row"
	}
	return "version " + strconv.FormatInt(int64(v), 10)
}
