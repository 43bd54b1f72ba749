package index

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// restoreMark begins the row of a constellation that is being restored. No program
// can decode it, of whatever version: so none opens the constellation and works on
// rows that are half there.
const restoreMark = "\x07being restored from export "

// CheckRestored returns an error that is for people if a restore of the metastore
// was begun and did not finish.
func CheckRestored(ctx context.Context, store metastore.Store) error {
	r, err := store.Get(ctx, constellationKey())
	if err != nil {
		return nil // told by whoever needs the row
	}
	if id, ok := strings.CutPrefix(string(r.Value), restoreMark); ok {
		return fmt.Errorf("a restore of the metastore was begun and did not finish (export %q): run novad restore again, with the same flags", id)
	}
	return nil
}

// Rows writes rows as they are, past the rules of their changes: what a restore does
// with a metastore that nobody else uses.
type Rows struct{ s *Service }

// NewRows returns the rows of a metastore.
func NewRows(store metastore.Store) (*Rows, error) {
	s, err := New(Config{}, Deps{Store: store})
	if err != nil {
		return nil, err
	}
	return &Rows{s: s}, nil
}

// ErrInUse means that a metastore holds a constellation.
var ErrInUse = errors.New("the metastore holds a constellation")

// BeginRestore marks the metastore as being restored, before anything else is done
// with it. It returns the export that a restore before, which did not finish, had
// chosen: the caller MUST go on with that one. again: there was such a restore.
// ErrInUse: the metastore holds a constellation, and nothing was changed.
func (r *Rows) BeginRestore(ctx context.Context) (id string, again bool, err error) {
	put := false
	for {
		row, err := r.s.store.Get(ctx, constellationKey())
		if err == nil {
			id, ok := strings.CutPrefix(string(row.Value), restoreMark)
			if !ok {
				return "", false, ErrInUse
			}
			return id, !put, nil
		}
		if !errors.Is(err, metastore.ErrNotFound) {
			return "", false, storeError(err)
		}
		put = true
		_, err = r.s.store.Put(ctx, constellationKey(), []byte(restoreMark), metastore.Absent)
		if err != nil && !errors.Is(err, metastore.ErrConflict) {
			return "", false, storeError(err)
		}
		if ctx.Err() != nil {
			return "", false, storeError(ctx.Err())
		}
	}
}

// ChooseExport notes in the mark which export is restored.
func (r *Rows) ChooseExport(ctx context.Context, id string) error {
	row, err := r.s.store.Get(ctx, constellationKey())
	if err != nil {
		return storeError(err)
	}
	switch string(row.Value) {
	case restoreMark + id:
		return nil
	case restoreMark:
		_, err = r.s.store.Put(ctx, constellationKey(), []byte(restoreMark+id), row.Version)
		return storeError(err)
	}
	return ErrInUse
}

// FinishRestore puts the constellation's row in the place of the mark: from then on
// programs start.
func (r *Rows) FinishRestore(ctx context.Context, c *indexpb.Constellation) error {
	c = proto.CloneOf(c)
	c.Attempt = stream.NewAttemptID().String()
	row, err := r.s.store.Get(ctx, constellationKey())
	if err != nil {
		return storeError(err)
	}
	if !bytes.HasPrefix(row.Value, []byte(restoreMark)) {
		return ErrInUse
	}
	_, err = r.s.put(ctx, constellationKey(), c, row.Version)
	return err
}

// Put writes a row, whatever was there before. A row that is there already in the
// same form is left.
func (r *Rows) Put(ctx context.Context, m proto.Message) error {
	key, err := keyOf(m)
	if err != nil {
		return err
	}
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return broken(fmt.Sprintf("encode %s: %v", key.Path, err))
	}
	// Most rows are not there.
	_, err = r.s.store.Put(ctx, key, value, metastore.Absent)
	for err != nil {
		if !errors.Is(err, metastore.ErrConflict) || ctx.Err() != nil {
			return storeError(err)
		}
		// Also a put whose reply was lost.
		row, gerr := r.s.store.Get(ctx, key)
		switch {
		case gerr == nil && bytes.Equal(row.Value, value):
			return nil
		case errors.Is(gerr, metastore.ErrNotFound):
			row.Version = metastore.Absent
		case gerr != nil:
			return storeError(gerr)
		}
		_, err = r.s.store.Put(ctx, key, value, row.Version)
	}
	return nil
}

// Get reads the row that m names by its key fields into m; false: there is none.
func (r *Rows) Get(ctx context.Context, m proto.Message) (bool, error) {
	key, err := keyOf(m)
	if err != nil {
		return false, err
	}
	_, err = r.s.read(ctx, key, m)
	if reason.Is(err, reason.RowNotFound) {
		return false, nil
	}
	return err == nil, err
}

func keyOf(m proto.Message) (metastore.Key, error) {
	switch m := m.(type) {
	case *indexpb.BucketRecord:
		return bucketKey(m.GetName()), nil
	case *indexpb.NameRecord:
		return nameKey(m.GetBucket(), m.GetName()), nil
	case *indexpb.StreamDescriptor:
		return descriptorKey(m.GetStreamId()), nil
	case *indexpb.Head:
		return headKey(m.GetStreamId()), nil
	case *indexpb.Chain:
		return chainKey(m.GetChainId()), nil
	case *indexpb.Directory:
		return directoryKey(m.GetChainId(), m.GetFrom()), nil
	case *indexpb.Shard:
		return shardKey(m.GetShard()), nil
	case *indexpb.SettledObject:
		return settledKey(m.GetObject()), nil
	case *indexpb.Due:
		return dueKey(m.GetQueue(), m.GetAt(), m.GetDueId()), nil
	case *indexpb.ExportState:
		return exportKey(), nil
	}
	return metastore.Key{}, reason.New(codes.Internal, "", fmt.Sprintf("%T is no row", m))
}

// LostBucket is a bucket as CreateBucket makes it, for streams whose bucket is not
// known.
func LostBucket(name string, at time.Time) *indexpb.BucketRecord {
	none := &novapb.BucketConfig{}
	return &indexpb.BucketRecord{
		Name: name, BucketId: stream.NewID().String(), State: novapb.BucketState_BUCKET_STATE_ACTIVE, CreatedAt: at.UnixMilli(),
		Config: bucketDefaults(none), Submitted: none, Attempt: stream.NewAttemptID().String(),
	}
}

// LostStream is a stream as CreateStream makes it, empty, for one of which only the
// records are known. It keeps them for ever, under its id as its name.
func LostStream(id stream.ID, b *indexpb.BucketRecord, shards uint32, at time.Time) (*indexpb.StreamDescriptor, *indexpb.Head, *indexpb.NameRecord) {
	attempt := stream.NewAttemptID().String()
	d := &indexpb.StreamDescriptor{
		StreamId: id.String(), Bucket: b.GetName(), BucketId: b.GetBucketId(), Name: id.String(), Shard: uint32(id.Shard(shards)),
		Config: streamDefaults(nil, nil), Submitted: &novapb.StreamConfig{}, CreatedAt: at.UnixMilli(), Attempt: attempt,
	}
	h := &indexpb.Head{
		StreamId: d.GetStreamId(), Shard: d.GetShard(), BucketId: d.GetBucketId(), State: indexpb.HeadState_HEAD_STATE_ACTIVE, Attempt: attempt,
	}
	n := &indexpb.NameRecord{Bucket: d.GetBucket(), Name: d.GetName(), StreamId: d.GetStreamId(), Shard: d.GetShard(), Attempt: attempt}
	return d, h, n
}
