package objectstore

import (
	"fmt"
	"strings"
)

const (
	// MaxSegmentBytes is the longest segment of a key, in bytes: the longest
	// file name of the usual file systems, which fs and many S3 servers map
	// segments to.
	MaxSegmentBytes = 255
	// MaxListLimit is the largest limit of List.
	MaxListLimit = 1000
)

// CheckKey returns nil for a key that keeps the rules of Store, or ErrPermanent
// naming op, the key and the rule. Implementations call it before anything else,
// so that a key one of them takes is taken by all.
func CheckKey(op, key string) error {
	switch {
	case key == "":
		return Fail(op, key, ErrPermanent, "a key is not empty")
	case len(key) > MaxKeyBytes:
		return Fail(op, key, ErrPermanent, "a key has at most %d bytes, this one %d", MaxKeyBytes, len(key))
	}
	if rule := brokenRule(key); rule != "" {
		return Fail(op, key, ErrPermanent, "%s", rule)
	}
	return nil
}

// CheckList is CheckKey for the arguments of List: the prefix is empty or the
// beginning of a valid key (a trailing slash is fine), after is any string.
func CheckList(prefix string, limit int) error {
	const op = "List"
	if limit < 1 || limit > MaxListLimit {
		return Fail(op, prefix, ErrPermanent, "the limit is 1..%d, not %d", MaxListLimit, limit)
	}
	if len(prefix) > MaxKeyBytes {
		return Fail(op, prefix, ErrPermanent, "a prefix has at most %d bytes, this one %d", MaxKeyBytes, len(prefix))
	}
	// The last segment may be cut anywhere, so "", "." and ".." may yet become
	// a valid one.
	whole := strings.LastIndexByte(prefix, '/')
	if whole < 0 {
		whole = 0
	} else if rule := brokenRule(prefix[:whole]); rule != "" {
		return Fail(op, prefix, ErrPermanent, "%s", rule)
	}
	if rule := badByte(prefix[whole:]); rule != "" {
		return Fail(op, prefix, ErrPermanent, "%s", rule)
	}
	return nil
}

// brokenRule names the rule that a non-empty key breaks, or "".
func brokenRule(key string) string {
	if rule := badByte(key); rule != "" {
		return rule
	}
	for segment := range strings.SplitSeq(key, "/") {
		switch {
		case segment == "":
			return "a segment is not empty: no leading, trailing or doubled slash"
		case segment == "." || segment == "..":
			return `a segment is not "." or ".."`
		case len(segment) > MaxSegmentBytes:
			return fmt.Sprintf("a segment has at most %d bytes", MaxSegmentBytes)
		}
	}
	return ""
}

func badByte(s string) string {
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '.', c == '_', c == '-', c == '/':
		default:
			return fmt.Sprintf("keys consist of A-Z a-z 0-9 . _ - and slashes, not of %q", c)
		}
	}
	return ""
}

// Resolve turns r into the half-open byte range [start, end) of an object of
// size bytes. op and key go into the error: ErrRange when the range starts at
// or beyond the end (any range of an empty object does), ErrPermanent when
// Length is negative.
func (r Range) Resolve(op, key string, size int64) (start, end int64, err error) {
	if err := r.Check(op, key); err != nil {
		return 0, 0, err
	}
	if r.Offset < 0 {
		// Compared before negating: -MinInt64 overflows.
		if r.Offset < -size {
			start = 0
		} else {
			start = size + r.Offset
		}
		end = size
	} else {
		start, end = r.Offset, size
		if r.Length > 0 && r.Length < size-start {
			end = start + r.Length
		}
	}
	if start >= size {
		return 0, 0, Fail(op, key, ErrRange, "offset %d of %d bytes", r.Offset, size)
	}
	return start, end, nil
}

// Check returns ErrPermanent for a range that no object can satisfy.
func (r Range) Check(op, key string) error {
	if r.Length < 0 {
		return Fail(op, key, ErrPermanent, "a range has no negative length: %d", r.Length)
	}
	return nil
}
