// Package metastoretest is the contract every metastore keeps, as tests.
//
// The suite assumes nothing about what else is in the store: each test works
// under paths of its own, so it runs on a shared server, under a key prefix
// and beside other rows.
package metastoretest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/nova-stream/nova/libs/metastore"
)

// Patience is how long a test waits for something that must happen. Only a
// failing test ever waits that long.
const Patience = 20 * time.Second

// Run runs the suite. open returns a store that the suite closes; each call
// may return a new one or another session with the same rows. The stores MUST
// NOT be stale in the calls the suite makes one after the other.
func Run(t *testing.T, open func(t *testing.T) metastore.Store) {
	tests := []struct {
		name string
		run  func(*testing.T, env)
	}{
		{"PutCreatesUpdatesAndDeletesByVersion", casLifecycle},
		{"PutRefusesWrongVersionsWithoutEffect", casRefusals},
		{"DeleteRefusesWrongVersionsWithoutEffect", deleteRefusals},
		{"RacingCreatesHaveOneWinner", racingCreates},
		{"RacingUpdatesHaveOneWinner", racingUpdates},
		{"RacingIncrementsLoseNothing", racingIncrements},
		{"VersionsNeverRepeatForOnePath", versionsNeverRepeat},
		{"EphemeralRowsAreCASedLikeOthers", ephemeralCAS},
		{"EmptyValuesAreRows", emptyValues},
		{"ValuesAreNotAliased", notAliased},
		{"FloorStaysWithinItsBounds", floorBounds},
		{"FloorStaysWithinItsPartition", floorPartition},
		{"RangeReturnsBoundsOrderAndLimit", rangeBounds},
		{"RangeStaysWithinItsPartition", rangePartition},
		{"RangeOrdersByBytes", rangeByteOrder},
		{"RangePagesThroughManyRows", rangePages},
		{"PathsMayHoldEveryPrintableByte", printablePaths},
		{"OneRowPerPartitionAndPath", rowIdentity},
		{"LimitsAreNamed", limits},
		{"LargestKeyAndValueAreStored", largest},
		{"WatchReportsChanges", watchReports},
		{"WatchOfAnotherPrefixIsSilent", watchPrefix},
		{"WatchClosesWithItsContext", watchCloses},
		{"SlowWatcherHoldsNobodyUp", watchSlow},
		{"EndedContextIsReported", contextEnded},
		{"ErrorsWrapOneSentinelAndNameTheCall", errorShape},
		{"ClosedStoreSaysSo", closed},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			tc.run(t, newEnv(t, open))
		})
	}
}

// env is one test's store and its corner of the key space.
type env struct {
	ctx  context.Context
	s    metastore.Store
	base string // "contract-<ulid>/", unique to the test
	open func() metastore.Store
}

func newEnv(t *testing.T, open func(t *testing.T) metastore.Store) env {
	ctx, cancel := context.WithTimeout(t.Context(), 3*Patience)
	t.Cleanup(cancel)
	reopen := func() metastore.Store {
		s := open(t)
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
		return s
	}
	return env{ctx: ctx, s: reopen(), base: "contract-" + ulid.Make().String() + "/", open: reopen}
}

// key is a row of the test's own, in a partition of its own.
func (e env) key(name string) metastore.Key {
	return metastore.Key{Partition: e.base, Path: e.base + name}
}

func (e env) put(t *testing.T, key metastore.Key, value string, expected metastore.Version) metastore.Version {
	t.Helper()
	v, err := e.s.Put(e.ctx, key, []byte(value), expected)
	if err != nil {
		t.Fatalf("Put(%q, %q, %v): %v", key.Path, value, expected, err)
	}
	if v <= metastore.Absent {
		t.Fatalf("Put(%q) returned version %d, which means Absent or less", key.Path, int64(v))
	}
	return v
}

func (e env) delete(t *testing.T, key metastore.Key, expected metastore.Version) {
	t.Helper()
	if err := e.s.Delete(e.ctx, key, expected); err != nil {
		t.Fatalf("Delete(%q, %v): %v", key.Path, expected, err)
	}
}

func (e env) wantRow(t *testing.T, key metastore.Key, value string, version metastore.Version) {
	t.Helper()
	row, err := e.s.Get(e.ctx, key)
	if err != nil {
		t.Fatalf("Get(%q): %v", key.Path, err)
	}
	if row.Path != key.Path || string(row.Value) != value || row.Version != version {
		t.Fatalf("Get(%q) = %q %q %v, want %q %v", key.Path, row.Path, row.Value, row.Version, value, version)
	}
}

func (e env) wantAbsent(t *testing.T, key metastore.Key) {
	t.Helper()
	row, err := e.s.Get(e.ctx, key)
	wantError(t, err, metastore.ErrNotFound, metastore.OpGet, key.Path)
	if row.Value != nil || row.Version != 0 {
		t.Fatalf("Get(%q) of no row returned %+v", key.Path, row)
	}
}

// sentinels are what an error may wrap, one of them at a time.
var sentinels = []error{
	metastore.ErrNotFound, metastore.ErrConflict, metastore.ErrUnavailable, metastore.ErrInvalid,
	metastore.ErrClosed, context.Canceled, context.DeadlineExceeded,
}

// wantError checks an error's kind and shape: exactly one sentinel, and the
// operation and key in the text.
func wantError(t *testing.T, err, kind error, op metastore.Op, name string) {
	t.Helper()
	if err := checkError(err, kind, op, name); err != nil {
		t.Fatal(err)
	}
}

func checkError(err, kind error, op metastore.Op, name string) error {
	if !errors.Is(err, kind) {
		return fmt.Errorf("%s(%q) returned %v, want %w", op, name, err, kind)
	}
	for _, other := range sentinels {
		if !errors.Is(other, kind) && errors.Is(err, other) {
			return fmt.Errorf("%s(%q) returned %v, which is both %v and %v", op, name, err, kind, other)
		}
	}
	if text := strings.ToLower(err.Error()); !strings.Contains(text, strings.ToLower(string(op))) {
		return fmt.Errorf("error %q does not name the operation %s", err, op)
	}
	if !strings.Contains(err.Error(), strings.Trim(fmt.Sprintf("%q", name), `"`)) {
		return fmt.Errorf("error %q does not name %q", err, name)
	}
	return nil
}

func paths(rows []metastore.Row) []string {
	var p []string
	for _, r := range rows {
		p = append(p, r.Path)
	}
	return p
}
