package objectstore_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/nova-stream/nova/libs/objectstore"
)

func TestCheckKey(t *testing.T) {
	segment := strings.Repeat("s", objectstore.MaxSegmentBytes)
	longest := segment + "/" + segment + "/" + segment + "/" + strings.Repeat("t", objectstore.MaxKeyBytes-3*len(segment)-3)
	for _, key := range []string{"a", "a/b", "...", ".a", "-", "A.Z_z-09/..b", segment, longest} {
		if err := objectstore.CheckKey("Get", key); err != nil {
			t.Errorf("CheckKey(%q) = %v", key, err)
		}
	}
	for key, rule := range map[string]string{
		"":              "not empty",
		longest + "t":   "at most 900 bytes",
		segment + "s":   "at most 255 bytes",
		"/a":            "no leading",
		"a/":            "trailing",
		"a//b":          "doubled slash",
		".":             `not "."`,
		"a/../b":        `".."`,
		"a b":           "' '",
		"a\x00":         `'\x00'`,
		"ä":             "keys consist of",
		"a\\b":          `'\\'`,
		"probe/*":       "'*'",
		"a/b/./c":       `not "."`,
		"tilde~":        "'~'",
		"line\nbreak":   `'\n'`,
		"percent%2Fkey": "'%'",
	} {
		err := objectstore.CheckKey("Get", key)
		if !errors.Is(err, objectstore.ErrPermanent) || !strings.Contains(err.Error(), rule) {
			t.Errorf("CheckKey(%q) = %v, want ErrPermanent with %q", key, err, rule)
		}
	}
}

func TestCheckList(t *testing.T) {
	for _, prefix := range []string{"", "a", "a/", "a/.", "..", "a/b-"} {
		if err := objectstore.CheckList(prefix, 1000); err != nil {
			t.Errorf("CheckList(%q) = %v", prefix, err)
		}
	}
	for _, prefix := range []string{"/", "/a", "a//", "../", "a/../b", "a*", strings.Repeat("p", 901)} {
		if err := objectstore.CheckList(prefix, 1); !errors.Is(err, objectstore.ErrPermanent) {
			t.Errorf("CheckList(%q) = %v, want ErrPermanent", prefix, err)
		}
	}
	for _, limit := range []int{-1, 0, 1001} {
		if err := objectstore.CheckList("a", limit); !errors.Is(err, objectstore.ErrPermanent) {
			t.Errorf("CheckList(limit %d) = %v, want ErrPermanent", limit, err)
		}
	}
}

func TestRangeResolve(t *testing.T) {
	for _, c := range []struct {
		r                objectstore.Range
		size, start, end int64
		err              error
	}{
		{objectstore.Range{}, 10, 0, 10, nil},
		{objectstore.Range{Offset: 3}, 10, 3, 10, nil},
		{objectstore.Range{Offset: 3, Length: 4}, 10, 3, 7, nil},
		{objectstore.Range{Offset: 3, Length: 7}, 10, 3, 10, nil},
		{objectstore.Range{Offset: 9, Length: math.MaxInt64}, 10, 9, 10, nil},
		{objectstore.Range{Offset: 10}, 10, 0, 0, objectstore.ErrRange},
		{objectstore.Range{Offset: math.MaxInt64, Length: 1}, 10, 0, 0, objectstore.ErrRange},
		{objectstore.Range{Offset: -1}, 10, 9, 10, nil},
		{objectstore.Range{Offset: -4, Length: 1}, 10, 6, 10, nil},
		{objectstore.Range{Offset: -10}, 10, 0, 10, nil},
		{objectstore.Range{Offset: -11}, 10, 0, 10, nil},
		{objectstore.Range{Offset: math.MinInt64}, 10, 0, 10, nil},
		{objectstore.Range{}, 0, 0, 0, objectstore.ErrRange},
		{objectstore.Range{Offset: -5}, 0, 0, 0, objectstore.ErrRange},
		{objectstore.Range{Length: -1}, 10, 0, 0, objectstore.ErrPermanent},
	} {
		start, end, err := c.r.Resolve("GetRange", "k", c.size)
		if start != c.start || end != c.end || !errors.Is(err, c.err) {
			t.Errorf("%+v of %d = [%d,%d), %v; want [%d,%d), %v", c.r, c.size, start, end, err, c.start, c.end, c.err)
		}
	}
}

func TestClassAndUnknown(t *testing.T) {
	for _, c := range []struct {
		err     error
		class   string
		unknown bool
	}{
		{nil, "ok", false},
		{objectstore.ErrNotFound, "not_found", true},
		{objectstore.ErrExists, "exists", false},
		{objectstore.ErrMismatch, "mismatch", false},
		{objectstore.ErrUnavailable, "unavailable", true},
		{objectstore.ErrThrottled, "throttled", true},
		{objectstore.ErrPermanent, "permanent", false},
		{objectstore.ErrRange, "range", true},
		{context.Canceled, "canceled", true},
		{context.DeadlineExceeded, "deadline", true},
		{errors.New("x"), "other", true},
	} {
		err := c.err
		if err != nil {
			err = fmt.Errorf("wrapped: %w", objectstore.Fail("Get", "k", err, "why %d", 7))
		}
		if got := objectstore.Class(err); got != c.class {
			t.Errorf("Class(%v) = %q, want %q", err, got, c.class)
		}
		if got := objectstore.Unknown(err); got != c.unknown {
			t.Errorf("Unknown(%v) = %v, want %v", err, got, c.unknown)
		}
	}
}
