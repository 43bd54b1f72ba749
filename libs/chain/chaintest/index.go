// Package chaintest provides an index for tests of what works with chains: the
// rows of chains, directories and due markers, with the rules of their changes,
// over any metastore, so that the faults of a metastore can be injected.
//
// The rules are those of the index service. They are written here again because
// a library cannot import a service; the tests of whole nodes use the real one.
package chaintest

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// Index serves the calls about chains, directories and due markers; any other
// call panics.
type Index struct {
	indexpb.IndexServiceClient

	store metastore.Store
}

// NewIndex returns an index over a metastore.
func NewIndex(store metastore.Store) *Index { return &Index{store: store} }

const end = "~~" // after every path made of printable ASCII

func chainKey(id string) metastore.Key { return metastore.Key{Partition: "chain", Path: "chain/" + id} }

func directoryKey(chain string, from uint64) metastore.Key {
	return metastore.Key{Partition: chain, Path: fmt.Sprintf("directory/%s/%016x", chain, from)}
}

func dueKey(queue string, at int64, id string) metastore.Key {
	return metastore.Key{Partition: "due/" + queue, Path: fmt.Sprintf("due/%s/%016x-%s", queue, uint64(at), id)}
}

type row interface {
	proto.Message
	GetAttempt() string
}

func (x *Index) get(ctx context.Context, key metastore.Key, m proto.Message) (int64, error) {
	r, err := x.store.Get(ctx, key)
	if err != nil {
		return 0, status(err)
	}
	return int64(r.Version), proto.Unmarshal(r.Value, m)
}

// put is one compare-and-set; after an answer that decides nothing the own
// attempt id in the row does.
func (x *Index) put(ctx context.Context, key metastore.Key, m row, expected int64) (int64, error) {
	value, err := proto.Marshal(m)
	if err != nil {
		return 0, err
	}
	v, err := x.store.Put(ctx, key, value, metastore.Version(expected))
	if err == nil {
		return int64(v), nil
	}
	found := m.ProtoReflect().New().Interface().(row)
	if version, gerr := x.get(ctx, key, found); gerr == nil && found.GetAttempt() == m.GetAttempt() {
		return version, nil
	}
	return 0, status(err)
}

func status(err error) error {
	switch {
	case errors.Is(err, metastore.ErrNotFound):
		return reason.New(codes.NotFound, reason.RowNotFound, err.Error())
	case errors.Is(err, metastore.ErrConflict):
		return reason.New(codes.Aborted, reason.VersionConflict, err.Error())
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return reason.New(reason.Code(err), "", err.Error())
	}
	return reason.New(codes.Unavailable, reason.StorageDown, err.Error())
}

// GetChain implements indexpb.IndexServiceClient.
func (x *Index) GetChain(ctx context.Context, req *indexpb.GetChainRequest, _ ...grpc.CallOption) (*indexpb.GetChainResponse, error) {
	c := &indexpb.Chain{}
	v, err := x.get(ctx, chainKey(req.GetChainId()), c)
	if err != nil {
		return nil, err
	}
	return &indexpb.GetChainResponse{Chain: c, Version: v}, nil
}

// PutChain implements indexpb.IndexServiceClient.
func (x *Index) PutChain(ctx context.Context, req *indexpb.PutChainRequest, _ ...grpc.CallOption) (*indexpb.PutChainResponse, error) {
	old, next := &indexpb.Chain{}, req.GetChain()
	version, err := x.get(ctx, chainKey(next.GetChainId()), old)
	existed := err == nil
	switch {
	case reason.Is(err, reason.RowNotFound):
		version = int64(metastore.Absent)
	case err != nil:
		return nil, err
	case old.GetAttempt() == next.GetAttempt():
		return &indexpb.PutChainResponse{Version: version}, nil
	}
	if version != req.GetExpectedVersion() {
		return nil, reason.New(codes.Aborted, reason.VersionConflict, "another version")
	}
	if rule := broken(old, next, existed); rule != "" {
		return nil, reason.New(codes.FailedPrecondition, reason.RuleBroken, rule)
	}
	v, err := x.put(ctx, chainKey(next.GetChainId()), next, req.GetExpectedVersion())
	return &indexpb.PutChainResponse{Version: v}, err
}

// broken names the rule that a change of a chain breaks.
func broken(old, next *indexpb.Chain, existed bool) string {
	open := indexpb.ChainState_CHAIN_STATE_OPEN
	claimed := old.GetAbsorbingTo() > old.GetAbsorbedTo()
	clipped := next.GetState() != open && next.GetAbsorbingTo() == next.GetCut() && next.GetCut() < old.GetAbsorbingTo()
	switch {
	case next.GetSettledTo() > next.GetAbsorbedTo() || next.GetAbsorbedTo() > next.GetAbsorbingTo():
		return "settled_to <= absorbed_to <= absorbing_to"
	case next.GetState() != open && next.GetAbsorbingTo() > next.GetCut():
		return "nothing above the cut is absorbed"
	case next.GetReclaimedTo() > next.GetSettledTo() || next.GetReclaimedTo() < old.GetReclaimedTo():
		return "reclaimed_to <= settled_to goes forward only"
	case next.GetState() == indexpb.ChainState_CHAIN_STATE_RETIRED && (next.GetReclaimedTo() != next.GetCut() || len(next.GetPins()) > 0):
		return "a chain is retired when all of it is reclaimed"
	case !existed:
		return ""
	case next.GetState() < old.GetState():
		return "states go forward only"
	case old.GetState() != open && next.GetCut() != old.GetCut():
		return "a cut stays"
	case next.GetAbsorbedTo() < old.GetAbsorbedTo() || next.GetSettledTo() < old.GetSettledTo():
		return "absorbed_to and settled_to go forward only"
	case claimed && next.GetAbsorbedTo() == old.GetAbsorbedTo() && next.GetAbsorbingTo() != old.GetAbsorbingTo() && !clipped:
		return "a claim is finished, not replaced"
	case claimed && next.GetAbsorbedTo() > old.GetAbsorbedTo() && next.GetAbsorbedTo() != old.GetAbsorbingTo():
		return "a claim is absorbed whole"
	}
	return ""
}

// ListChains implements indexpb.IndexServiceClient.
func (x *Index) ListChains(ctx context.Context, req *indexpb.ListChainsRequest, _ ...grpc.CallOption) (*indexpb.ListChainsResponse, error) {
	from := "chain/"
	if req.GetStartAfter() != "" {
		from += req.GetStartAfter() + " "
	}
	rows, err := x.store.Range(ctx, "chain", from, "chain/"+end, int(req.GetLimit())+1)
	if err != nil {
		return nil, status(err)
	}
	out := &indexpb.ListChainsResponse{HasMore: len(rows) > int(req.GetLimit())}
	for _, r := range rows[:min(len(rows), int(req.GetLimit()))] {
		c := &indexpb.Chain{}
		if err := proto.Unmarshal(r.Value, c); err != nil {
			return nil, err
		}
		out.Chains = append(out.Chains, &indexpb.VersionedChain{Chain: c, Version: int64(r.Version)})
	}
	return out, nil
}

// PutDirectory implements indexpb.IndexServiceClient.
func (x *Index) PutDirectory(ctx context.Context, req *indexpb.PutDirectoryRequest, _ ...grpc.CallOption) (*indexpb.PutDirectoryResponse, error) {
	d := req.GetDirectory()
	c := &indexpb.Chain{}
	if _, err := x.get(ctx, chainKey(d.GetChainId()), c); err != nil && !reason.Is(err, reason.RowNotFound) {
		return nil, err
	}
	if d.GetTo() <= c.GetSettledTo() {
		return nil, reason.New(codes.Aborted, reason.VersionConflict, "settled already")
	}
	_, err := x.put(ctx, directoryKey(d.GetChainId(), d.GetFrom()), d, int64(metastore.Absent))
	return &indexpb.PutDirectoryResponse{}, err
}

// ListDirectories implements indexpb.IndexServiceClient.
func (x *Index) ListDirectories(ctx context.Context, req *indexpb.ListDirectoriesRequest, _ ...grpc.CallOption) (*indexpb.ListDirectoriesResponse, error) {
	to := "directory/" + req.GetChainId() + "/" + end
	if req.GetTo() > 0 {
		to = directoryKey(req.GetChainId(), req.GetTo()).Path
	}
	rows, err := x.store.Range(ctx, req.GetChainId(), directoryKey(req.GetChainId(), req.GetFrom()).Path, to, int(req.GetLimit())+1)
	if err != nil {
		return nil, status(err)
	}
	out := &indexpb.ListDirectoriesResponse{HasMore: len(rows) > int(req.GetLimit())}
	for _, r := range rows[:min(len(rows), int(req.GetLimit()))] {
		d := &indexpb.Directory{}
		if err := proto.Unmarshal(r.Value, d); err != nil {
			return nil, err
		}
		out.Directories = append(out.Directories, d)
	}
	return out, nil
}

// DeleteDirectory implements indexpb.IndexServiceClient.
func (x *Index) DeleteDirectory(ctx context.Context, req *indexpb.DeleteDirectoryRequest, _ ...grpc.CallOption) (*indexpb.DeleteDirectoryResponse, error) {
	d, c := &indexpb.Directory{}, &indexpb.Chain{}
	key := directoryKey(req.GetChainId(), req.GetFrom())
	version, err := x.get(ctx, key, d)
	if reason.Is(err, reason.RowNotFound) {
		return &indexpb.DeleteDirectoryResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if _, err := x.get(ctx, chainKey(req.GetChainId()), c); err != nil {
		return nil, err
	}
	if d.GetTo() > c.GetSettledTo() {
		return nil, reason.New(codes.FailedPrecondition, reason.RuleBroken, "it is needed until its slots are settled")
	}
	if err := x.store.Delete(ctx, key, metastore.Version(version)); err != nil && !errors.Is(err, metastore.ErrNotFound) {
		return nil, status(err)
	}
	return &indexpb.DeleteDirectoryResponse{}, nil
}

// PutDue implements indexpb.IndexServiceClient.
func (x *Index) PutDue(ctx context.Context, req *indexpb.PutDueRequest, _ ...grpc.CallOption) (*indexpb.PutDueResponse, error) {
	d := req.GetDue()
	v, err := x.put(ctx, dueKey(d.GetQueue(), d.GetAt(), d.GetDueId()), d, req.GetExpectedVersion())
	return &indexpb.PutDueResponse{Version: v}, err
}

// ListDue implements indexpb.IndexServiceClient.
func (x *Index) ListDue(ctx context.Context, req *indexpb.ListDueRequest, _ ...grpc.CallOption) (*indexpb.ListDueResponse, error) {
	from, to := dueKey(req.GetQueue(), 0, "").Path, dueKey(req.GetQueue(), req.GetUntil()+1, "").Path
	if id := req.GetAfterDueId(); id != "" {
		from = min(dueKey(req.GetQueue(), req.GetAfterAt(), id).Path+"\x20", to)
	}
	rows, err := x.store.Range(ctx, "due/"+req.GetQueue(), from, to, int(req.GetLimit()))
	if err != nil {
		return nil, status(err)
	}
	out := &indexpb.ListDueResponse{HasMore: len(rows) == int(req.GetLimit())}
	for _, r := range rows {
		d := &indexpb.Due{}
		if err := proto.Unmarshal(r.Value, d); err != nil {
			return nil, err
		}
		out.Due = append(out.Due, &indexpb.VersionedDue{Due: d, Version: int64(r.Version)})
	}
	return out, nil
}

// DeleteDue implements indexpb.IndexServiceClient.
func (x *Index) DeleteDue(ctx context.Context, req *indexpb.DeleteDueRequest, _ ...grpc.CallOption) (*indexpb.DeleteDueResponse, error) {
	err := x.store.Delete(ctx, dueKey(req.GetQueue(), req.GetAt(), req.GetDueId()), metastore.Version(req.GetExpectedVersion()))
	if err != nil && !errors.Is(err, metastore.ErrNotFound) {
		return nil, status(err)
	}
	return &indexpb.DeleteDueResponse{}, nil
}
