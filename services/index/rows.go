package index

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/reason"
)

// row is a record that is changed by compare-and-set.
type row interface {
	proto.Message
	GetAttempt() string
}

// read decodes a row into m and returns its version.
func (s *Service) read(ctx context.Context, key metastore.Key, m proto.Message) (metastore.Version, error) {
	r, err := s.store.Get(ctx, key)
	if err != nil {
		return 0, storeError(err)
	}
	return r.Version, decode(key.Path, r.Value, m)
}

func decode(path string, value []byte, m proto.Message) error {
	if err := proto.Unmarshal(value, m); err != nil {
		return reason.New(codes.DataLoss, "", fmt.Sprintf("row %s cannot be decoded: %v", path, err))
	}
	return nil
}

// change is one compare-and-set of a row of type R. rule says what is wrong
// with the change from old, nil when there was no row.
func change[R row](ctx context.Context, s *Service, key metastore.Key, old, next R, expected int64, rule func(old, next R, existed bool) error) (int64, error) {
	if next.GetAttempt() == "" {
		return 0, broken("a change needs an attempt id")
	}
	want := metastore.Version(expected)
	version, err := s.read(ctx, key, old)
	existed := err == nil
	switch {
	case reason.Is(err, reason.RowNotFound):
		version = metastore.Absent
	case err != nil:
		return 0, err
	case old.GetAttempt() == next.GetAttempt():
		return int64(version), nil // landed before
	}
	if version != want {
		return 0, conflict(key.Path)
	}
	if err := rule(old, next, existed); err != nil {
		return 0, err
	}
	v, err := s.put(ctx, key, next, want)
	return int64(v), err
}

// put writes a row. A write that fails may have landed: the row is read back,
// and the own attempt id means success.
func (s *Service) put(ctx context.Context, key metastore.Key, m row, expected metastore.Version) (metastore.Version, error) {
	value, err := proto.Marshal(m)
	if err != nil {
		return 0, broken(fmt.Sprintf("encode %s: %v", key.Path, err))
	}
	v, err := s.store.Put(ctx, key, value, expected)
	if err == nil {
		return v, nil
	}
	if !errors.Is(err, metastore.ErrConflict) && !errors.Is(err, metastore.ErrUnavailable) {
		return 0, storeError(err)
	}
	found := m.ProtoReflect().New().Interface().(row)
	if version, rerr := s.read(ctx, key, found); rerr == nil && found.GetAttempt() == m.GetAttempt() {
		return version, nil
	}
	return 0, storeError(err)
}

// remove deletes a row of a version. A row that is gone is a success.
func (s *Service) remove(ctx context.Context, key metastore.Key, expected metastore.Version) error {
	err := s.store.Delete(ctx, key, expected)
	if errors.Is(err, metastore.ErrNotFound) {
		return nil
	}
	if errors.Is(err, metastore.ErrConflict) || errors.Is(err, metastore.ErrUnavailable) {
		if _, gerr := s.store.Get(ctx, key); errors.Is(gerr, metastore.ErrNotFound) {
			return nil
		}
	}
	return storeError(err)
}

// list decodes up to limit rows of a range and says whether more follow.
func list[R proto.Message](ctx context.Context, s *Service, partition, from, to string, limit uint32, fresh func() R, each func(R, metastore.Version)) (bool, error) {
	n := int(limit)
	if n < 1 || n > metastore.MaxRangeLimit {
		return false, reason.Field("limit", fmt.Sprintf("must be 1..%d, is %d", metastore.MaxRangeLimit, n))
	}
	// One row more tells whether there are more; a full page asks once again.
	rows, err := s.store.Range(ctx, partition, from, to, min(n+1, metastore.MaxRangeLimit))
	if err != nil {
		return false, storeError(err)
	}
	more := len(rows) > n
	if n == metastore.MaxRangeLimit && len(rows) == n {
		next, err := s.store.Range(ctx, partition, rows[n-1].Path+"\x20", to, 1)
		if err != nil {
			return false, storeError(err)
		}
		more = len(next) > 0
	}
	for _, r := range rows[:min(n, len(rows))] {
		m := fresh()
		if err := decode(r.Path, r.Value, m); err != nil {
			return false, err
		}
		each(m, r.Version)
	}
	return more, nil
}

func conflict(path string) error {
	return reason.New(codes.Aborted, reason.VersionConflict, "row "+path+" has another version")
}

func broken(rule string) error {
	return reason.New(codes.FailedPrecondition, reason.RuleBroken, rule)
}

// storeError gives a metastore's error its code.
func storeError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, metastore.ErrNotFound):
		return reason.New(codes.NotFound, reason.RowNotFound, err.Error())
	case errors.Is(err, metastore.ErrConflict):
		return reason.New(codes.Aborted, reason.VersionConflict, err.Error())
	case errors.Is(err, metastore.ErrInvalid):
		return reason.New(codes.InvalidArgument, "", err.Error())
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return reason.New(reason.Code(err), "", err.Error())
	}
	return reason.New(codes.Unavailable, reason.StorageDown, err.Error())
}
