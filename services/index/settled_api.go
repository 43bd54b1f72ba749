package index

import (
	"context"
	"fmt"
	"math/bits"

	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// MaxRuns limits the runs of a settled object.
const MaxRuns = 4096

// checkObject returns an error unless an object can have a row.
func checkObject(field, object string) error {
	if err := objectstore.CheckKey("settled", object); err != nil {
		return reason.Field(field, err.Error())
	}
	return nil
}

// GetSettledObject returns the row of a settled object.
func (s *Service) GetSettledObject(ctx context.Context, req *indexpb.GetSettledObjectRequest) (*indexpb.GetSettledObjectResponse, error) {
	if err := checkObject("object", req.GetObject()); err != nil {
		return nil, err
	}
	var r indexpb.SettledObject
	v, err := s.read(ctx, settledKey(req.GetObject()), &r)
	if err != nil {
		return nil, err
	}
	return &indexpb.GetSettledObjectResponse{Object: &r, Version: int64(v)}, nil
}

// PutSettledObject changes the row of a settled object.
func (s *Service) PutSettledObject(ctx context.Context, req *indexpb.PutSettledObjectRequest) (*indexpb.PutSettledObjectResponse, error) {
	if err := checkObject("object.object", req.GetObject().GetObject()); err != nil {
		return nil, err
	}
	v, err := change(ctx, s, settledKey(req.GetObject().GetObject()), &indexpb.SettledObject{}, req.GetObject(), req.GetExpectedVersion(), settledRule)
	if err != nil {
		return nil, err
	}
	return &indexpb.PutSettledObjectResponse{Version: v}, nil
}

// settledRule: what a head may still come to name is not deleted (I11). A row
// that was CONDEMNED never is ADOPTING again, so its maker, which touches it as
// ADOPTING after it has read a head and before it changes that head, fails; and
// a bit that was cleared stays so.
func settledRule(old, next *indexpb.SettledObject, existed bool) error {
	const adopting, adopted, condemned = indexpb.SettledState_SETTLED_STATE_ADOPTING, indexpb.SettledState_SETTLED_STATE_ADOPTED, indexpb.SettledState_SETTLED_STATE_CONDEMNED
	runs, live := next.GetRuns(), liveRuns(next.GetLive())
	switch {
	case runs < 1 || runs > MaxRuns:
		return broken(fmt.Sprintf("a settled object has 1..%d runs", MaxRuns))
	case !fits(next.GetLive(), runs):
		return broken("live has one bit per run, in whole bytes")
	case !existed:
		if next.GetState() != adopting || live != int(runs) {
			return broken("a settled object begins ADOPTING, all its runs live")
		}
		return nil
	case next.GetObject() != old.GetObject() || runs != old.GetRuns() || next.GetStreamId() != old.GetStreamId() || next.GetCreatedAt() != old.GetCreatedAt():
		return broken("a settled object keeps its runs, stream_id and created_at")
	case !cleared(old.GetLive(), next.GetLive()):
		return broken("bits of live are only ever cleared")
	}
	switch from, to := old.GetState(), next.GetState(); {
	case from == to:
		return nil
	case from != adopted && to == adopted && live > 0:
		return nil
	case from == adopting && to == condemned:
		return nil
	case from == adopted && to == condemned && live == 0:
		return nil
	default:
		return broken(fmt.Sprintf("a settled object with %d live runs does not go from %s to %s", live, from, to))
	}
}

// fits reports that live has exactly a bit per run, and no bits beyond.
func fits(live []byte, runs uint32) bool {
	if len(live) != int(runs+7)/8 {
		return false
	}
	rest := runs % 8
	return rest == 0 || live[len(live)-1]>>rest == 0
}

func liveRuns(live []byte) int {
	n := 0
	for _, b := range live {
		n += bits.OnesCount8(b)
	}
	return n
}

// cleared reports that next has no bit that old has not.
func cleared(old, next []byte) bool {
	if len(old) != len(next) {
		return false
	}
	for i := range next {
		if next[i]&^old[i] != 0 {
			return false
		}
	}
	return true
}

// DeleteSettledObject removes the row of a settled object that is CONDEMNED, so
// that no head names it nor will.
func (s *Service) DeleteSettledObject(ctx context.Context, req *indexpb.DeleteSettledObjectRequest) (*indexpb.DeleteSettledObjectResponse, error) {
	if err := checkObject("object", req.GetObject()); err != nil {
		return nil, err
	}
	key := settledKey(req.GetObject())
	var r indexpb.SettledObject
	v, err := s.read(ctx, key, &r)
	switch {
	case reason.Is(err, reason.RowNotFound):
		return &indexpb.DeleteSettledObjectResponse{}, nil
	case err != nil:
		return nil, err
	case int64(v) != req.GetExpectedVersion():
		return nil, conflict(key.Path)
	case r.GetState() != indexpb.SettledState_SETTLED_STATE_CONDEMNED:
		return nil, broken("only a CONDEMNED object's row is removed")
	}
	return &indexpb.DeleteSettledObjectResponse{}, s.remove(ctx, key, v)
}

// DeleteDirectory removes the row of a directory whose slots are settled. A
// record of the chain that is an old read only refuses.
func (s *Service) DeleteDirectory(ctx context.Context, req *indexpb.DeleteDirectoryRequest) (*indexpb.DeleteDirectoryResponse, error) {
	key := directoryKey(req.GetChainId(), req.GetFrom())
	var d indexpb.Directory
	v, err := s.read(ctx, key, &d)
	if reason.Is(err, reason.RowNotFound) {
		return &indexpb.DeleteDirectoryResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	var c indexpb.Chain
	if _, err := s.read(ctx, chainKey(req.GetChainId()), &c); err != nil {
		return nil, err
	}
	if d.GetTo() > c.GetSettledTo() {
		return nil, broken(fmt.Sprintf("the directory of slots [%d, %d) is needed: the chain is settled to %d", d.GetFrom(), d.GetTo(), c.GetSettledTo()))
	}
	return &indexpb.DeleteDirectoryResponse{}, s.remove(ctx, key, v)
}

// DeleteHead removes the head of a DELETED stream that names nothing, after its
// descriptor: a crash in between leaves the head, and a repeat removes it.
func (s *Service) DeleteHead(ctx context.Context, req *indexpb.DeleteHeadRequest) (*indexpb.DeleteHeadResponse, error) {
	id := req.GetStreamId()
	h, v, err := s.provenHead(ctx, id)
	switch {
	case reason.Is(err, reason.RowNotFound):
		return &indexpb.DeleteHeadResponse{}, nil
	case err != nil:
		return nil, err
	case int64(v) != req.GetExpectedVersion():
		return nil, conflict(headKey(id).Path)
	case h.GetState() != indexpb.HeadState_HEAD_STATE_DELETED:
		return nil, broken("only a DELETED stream's head is removed")
	case len(h.GetRefs()) > 0 || len(h.GetPages()) > 0:
		return nil, broken("a head that names objects is needed to find them")
	}
	err = retry(ctx, func() error {
		at, err := s.read(ctx, descriptorKey(id), &indexpb.StreamDescriptor{})
		if reason.Is(err, reason.RowNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		return s.remove(ctx, descriptorKey(id), at)
	})
	if err != nil {
		return nil, err
	}
	return &indexpb.DeleteHeadResponse{}, s.remove(ctx, headKey(id), v)
}
