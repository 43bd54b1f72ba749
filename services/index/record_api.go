package index

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// GetLife returns a life's row.
func (s *Service) GetLife(ctx context.Context, req *indexpb.GetLifeRequest) (*indexpb.GetLifeResponse, error) {
	var r indexpb.Life
	v, err := s.read(ctx, lifeKey(req.GetLifeId()), &r)
	if err != nil {
		return nil, err
	}
	return &indexpb.GetLifeResponse{Life: &r, Version: int64(v)}, nil
}

// PutLife changes a life's row.
func (s *Service) PutLife(ctx context.Context, req *indexpb.PutLifeRequest) (*indexpb.PutLifeResponse, error) {
	if _, err := stream.ParseLifeID(req.GetLife().GetLifeId()); err != nil {
		return nil, reason.Field("life.life_id", err.Error())
	}
	v, err := change(ctx, s, lifeKey(req.GetLife().GetLifeId()), &indexpb.Life{}, req.GetLife(), req.GetExpectedVersion(), lifeRule)
	if err != nil {
		return nil, err
	}
	return &indexpb.PutLifeResponse{Version: v}, nil
}

func lifeRule(old, next *indexpb.Life, existed bool) error {
	live := indexpb.LifeState_LIFE_STATE_LIVE
	switch {
	case next.GetState() == indexpb.LifeState_LIFE_STATE_UNSPECIFIED:
		return broken("a life has a state")
	case !existed:
		// An absent life may be made dead, so that it can never begin.
		return nil
	case old.GetState() != live:
		return broken("a life that is over stays so")
	case next.GetState() == live && next.GetRenewals() <= old.GetRenewals():
		return broken("a renewal raises the count of renewals")
	}
	return nil
}

// ListLives returns a page of lives.
func (s *Service) ListLives(ctx context.Context, req *indexpb.ListLivesRequest) (*indexpb.ListLivesResponse, error) {
	out := &indexpb.ListLivesResponse{}
	more, err := list(ctx, s, partLives, from("life/", req.GetStartAfter()), "life/"+after, req.GetLimit(),
		func() *indexpb.Life { return &indexpb.Life{} },
		func(r *indexpb.Life, v metastore.Version) {
			out.Lives = append(out.Lives, &indexpb.VersionedLife{Life: r, Version: int64(v)})
		})
	out.HasMore = more
	return out, err
}

// from is where a list starts: after a name, or at the first.
func from(prefix, startAfter string) string {
	if startAfter == "" {
		return prefix
	}
	return prefix + startAfter + "\x20"
}

// DeleteLife removes the row of a life that is over.
func (s *Service) DeleteLife(ctx context.Context, req *indexpb.DeleteLifeRequest) (*indexpb.DeleteLifeResponse, error) {
	var r indexpb.Life
	v, err := s.read(ctx, lifeKey(req.GetLifeId()), &r)
	if reason.Is(err, reason.RowNotFound) {
		return &indexpb.DeleteLifeResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if r.GetState() == indexpb.LifeState_LIFE_STATE_LIVE {
		return nil, broken("a live life is not deleted")
	}
	if int64(v) != req.GetExpectedVersion() {
		return nil, conflict(lifeKey(req.GetLifeId()).Path)
	}
	return &indexpb.DeleteLifeResponse{}, s.remove(ctx, lifeKey(req.GetLifeId()), v)
}

// GetShard returns a shard's row.
func (s *Service) GetShard(ctx context.Context, req *indexpb.GetShardRequest) (*indexpb.GetShardResponse, error) {
	var r indexpb.Shard
	v, err := s.read(ctx, shardKey(req.GetShard()), &r)
	if err != nil {
		return nil, err
	}
	return &indexpb.GetShardResponse{Shard: &r, Version: int64(v)}, nil
}

// PutShard changes a shard's row.
func (s *Service) PutShard(ctx context.Context, req *indexpb.PutShardRequest) (*indexpb.PutShardResponse, error) {
	v, err := change(ctx, s, shardKey(req.GetShard().GetShard()), &indexpb.Shard{}, req.GetShard(), req.GetExpectedVersion(), shardRule)
	if err != nil {
		return nil, err
	}
	return &indexpb.PutShardResponse{Version: v}, nil
}

func shardRule(old, next *indexpb.Shard, existed bool) error {
	switch {
	case next.GetEpoch() == 0 || next.GetHolderLife() == "":
		return broken("a shard's row has an epoch and a holder")
	case !existed:
		return nil
	case next.GetProfile() != old.GetProfile():
		return broken("a shard keeps its profile")
	case next.GetEpoch() < old.GetEpoch():
		return broken(fmt.Sprintf("shard %d: epoch %d is below %d", next.GetShard(), next.GetEpoch(), old.GetEpoch()))
	case next.GetEpoch() > old.GetEpoch() && next.GetState() != indexpb.ShardState_SHARD_STATE_RECOVERING:
		return broken("an epoch begins with recovery")
	case next.GetEpoch() == old.GetEpoch() && next.GetHolderLife() != old.GetHolderLife():
		return broken("an epoch has one holder")
	case next.GetEpoch() == old.GetEpoch() && old.GetState() == indexpb.ShardState_SHARD_STATE_RELEASED:
		return broken("a released epoch is over")
	}
	return keepsBindings(old, next)
}

// keepsBindings: no segment that may hold entries is forgotten. A takeover keeps
// all; who begins to serve may leave out those in which the shard has no entry,
// and who serves those that are settled, but never the last, which new entries go
// to. A cut that is decided stays, but for that of the last chain when it is bound
// again.
func keepsBindings(old, next *indexpb.Shard) error {
	const serving = indexpb.ShardState_SHARD_STATE_SERVING
	was, is := old.GetBindings(), next.GetBindings()
	if next.GetState() == serving && len(is) == 0 {
		return broken("a shard that is served has a binding")
	}
	for i := 1; i < len(is); i++ {
		if is[i-1].GetEpoch() > is[i].GetEpoch() {
			return broken("bindings are in the order of their epochs")
		}
	}
	// A change within an epoch that ends in serving.
	mayDrop := next.GetEpoch() == old.GetEpoch() && next.GetState() == serving
	begins := mayDrop && old.GetState() != serving
	for i, b := range was {
		last := i == len(was)-1
		at := slices.IndexFunc(is, func(n *indexpb.Binding) bool { return sameSegment(b, n) })
		switch {
		case at < 0 && (!mayDrop || last && !begins):
			return broken("the binding of chain " + b.GetChainId() + " may hold entries of the shard")
		case at >= 0 && b.GetCutKnown() && !(last && begins) && (!is[at].GetCutKnown() || is[at].GetCut() != b.GetCut()):
			return broken("the shard's cut of chain " + b.GetChainId() + " is decided")
		}
	}
	return nil
}

// sameSegment: a chain that is bound again, after another, is there twice.
func sameSegment(a, b *indexpb.Binding) bool {
	return a.GetChainId() == b.GetChainId() && a.GetEpoch() == b.GetEpoch()
}

// ListShards returns a page of the shards that have a row.
func (s *Service) ListShards(ctx context.Context, req *indexpb.ListShardsRequest) (*indexpb.ListShardsResponse, error) {
	out := &indexpb.ListShardsResponse{}
	more, err := list(ctx, s, partShards, shardKey(req.GetStart()).Path, "shard/"+after, req.GetLimit(),
		func() *indexpb.Shard { return &indexpb.Shard{} },
		func(r *indexpb.Shard, v metastore.Version) {
			out.Shards = append(out.Shards, &indexpb.VersionedShard{Shard: r, Version: int64(v)})
		})
	out.HasMore = more
	return out, err
}

// GetChain returns a chain's row.
func (s *Service) GetChain(ctx context.Context, req *indexpb.GetChainRequest) (*indexpb.GetChainResponse, error) {
	var r indexpb.Chain
	v, err := s.read(ctx, chainKey(req.GetChainId()), &r)
	if err != nil {
		return nil, err
	}
	return &indexpb.GetChainResponse{Chain: &r, Version: int64(v)}, nil
}

// PutChain changes a chain's row.
func (s *Service) PutChain(ctx context.Context, req *indexpb.PutChainRequest) (*indexpb.PutChainResponse, error) {
	if _, err := stream.ParseChainID(req.GetChain().GetChainId()); err != nil {
		return nil, reason.Field("chain.chain_id", err.Error())
	}
	v, err := change(ctx, s, chainKey(req.GetChain().GetChainId()), &indexpb.Chain{}, req.GetChain(), req.GetExpectedVersion(), chainRule)
	if err != nil {
		return nil, err
	}
	return &indexpb.PutChainResponse{Version: v}, nil
}

func chainRule(old, next *indexpb.Chain, existed bool) error {
	open := indexpb.ChainState_CHAIN_STATE_OPEN
	switch {
	case next.GetState() == indexpb.ChainState_CHAIN_STATE_UNSPECIFIED:
		return broken("a chain has a state")
	case next.GetSettledTo() > next.GetAbsorbedTo() || next.GetAbsorbedTo() > next.GetAbsorbingTo():
		return broken(fmt.Sprintf("settled_to %d <= absorbed_to %d <= absorbing_to %d must hold", next.GetSettledTo(), next.GetAbsorbedTo(), next.GetAbsorbingTo()))
	case next.GetState() != open && next.GetAbsorbingTo() > next.GetCut():
		return broken("nothing above the cut is absorbed")
	case !existed:
		if next.GetState() != open {
			return broken("a chain begins open")
		}
		return reclaimRule(&indexpb.Chain{}, next)
	case next.GetState() < old.GetState():
		return broken("a chain's state goes forward only")
	case old.GetState() != open && next.GetCut() != old.GetCut():
		return broken("a cut that is decided stays")
	case next.GetAbsorbedTo() < old.GetAbsorbedTo() || next.GetSettledTo() < old.GetSettledTo():
		return broken("absorbed_to and settled_to go forward only")
	case next.GetWriterLife() != old.GetWriterLife() || next.GetProfile() != old.GetProfile():
		return broken("a chain keeps its writer and profile")
	}
	if err := reclaimRule(old, next); err != nil {
		return err
	}
	claimed := old.GetAbsorbingTo() > old.GetAbsorbedTo()
	clipped := next.GetState() != open && next.GetAbsorbingTo() == next.GetCut() && next.GetCut() < old.GetAbsorbingTo()
	if claimed && next.GetAbsorbedTo() == old.GetAbsorbedTo() && next.GetAbsorbingTo() != old.GetAbsorbingTo() && !clipped {
		return broken("a claimed window is finished, not replaced")
	}
	if claimed && next.GetAbsorbedTo() > old.GetAbsorbedTo() && next.GetAbsorbedTo() != old.GetAbsorbingTo() {
		return broken("a claimed window is absorbed whole")
	}
	return nil
}

// MaxChainPins limits the pins of a chain.
const MaxChainPins = 64

// reclaimRule: only what is settled is reclaimed, but for what is pinned, and a
// chain is retired when nothing of it is left.
func reclaimRule(old, next *indexpb.Chain) error {
	const sealed, retired = indexpb.ChainState_CHAIN_STATE_SEALED, indexpb.ChainState_CHAIN_STATE_RETIRED
	settled, reclaimed := next.GetSettledTo(), next.GetReclaimedTo()
	switch {
	case reclaimed > settled:
		return broken(fmt.Sprintf("reclaimed_to %d <= settled_to %d must hold", reclaimed, settled))
	case reclaimed < old.GetReclaimedTo():
		return broken("reclaimed_to goes forward only")
	case next.GetState() == retired && old.GetState() < sealed:
		return broken("a chain is sealed before it is retired")
	case next.GetState() == retired && (settled != next.GetCut() || reclaimed != next.GetCut() || len(next.GetPins()) > 0):
		return broken("a chain is retired when all of it is settled and reclaimed and nothing is pinned")
	}
	return chainPinRule(old, next)
}

// chainPinRule: slots are pinned by the change that moves settled_to beyond them,
// since later they may be gone.
func chainPinRule(old, next *indexpb.Chain) error {
	pins := next.GetPins()
	if len(pins) > MaxChainPins {
		return broken(fmt.Sprintf("a chain has at most %d pins", MaxChainPins))
	}
	for i, p := range pins {
		if p.GetStreamId() == "" || p.GetFrom() >= p.GetTo() || p.GetTo() > next.GetSettledTo() {
			return broken("a pin names slots below settled_to, for a stream")
		}
		if i > 0 {
			before := pins[i-1]
			if before.GetStreamId() > p.GetStreamId() || before.GetStreamId() == p.GetStreamId() && before.GetTo() > p.GetFrom() {
				return broken("pins are sorted by stream and slot, and do not overlap")
			}
		}
		settled := span{p.GetFrom(), min(p.GetTo(), old.GetSettledTo())}
		if !settled.empty() && !slices.ContainsFunc(old.GetPins(), func(o *indexpb.ChainPin) bool {
			return o.GetStreamId() == p.GetStreamId() && span{o.GetFrom(), o.GetTo()}.holds(settled)
		}) {
			return broken(fmt.Sprintf("slots [%d, %d) are settled already and may be gone", settled.from, settled.to))
		}
	}
	return nil
}

// ListChains returns a page of chains.
func (s *Service) ListChains(ctx context.Context, req *indexpb.ListChainsRequest) (*indexpb.ListChainsResponse, error) {
	out := &indexpb.ListChainsResponse{}
	more, err := list(ctx, s, partChains, from("chain/", req.GetStartAfter()), "chain/"+after, req.GetLimit(),
		func() *indexpb.Chain { return &indexpb.Chain{} },
		func(r *indexpb.Chain, v metastore.Version) {
			out.Chains = append(out.Chains, &indexpb.VersionedChain{Chain: r, Version: int64(v)})
		})
	out.HasMore = more
	return out, err
}

// PutDirectory writes the row of a directory, once: an absorber that comes when
// the window is settled, and its row may be gone, is as late as one that finds it.
func (s *Service) PutDirectory(ctx context.Context, req *indexpb.PutDirectoryRequest) (*indexpb.PutDirectoryResponse, error) {
	d := req.GetDirectory()
	if _, err := stream.ParseChainID(d.GetChainId()); err != nil {
		return nil, reason.Field("directory.chain_id", err.Error())
	}
	if d.GetObject() == "" || d.GetTo() <= d.GetFrom() || d.GetAttempt() == "" {
		return nil, broken("a directory has an object, a range and an attempt id")
	}
	key := directoryKey(d.GetChainId(), d.GetFrom())
	var c indexpb.Chain
	if _, err := s.read(ctx, chainKey(d.GetChainId()), &c); err != nil && !reason.Is(err, reason.RowNotFound) {
		return nil, err
	}
	if d.GetTo() <= c.GetSettledTo() {
		return nil, conflict(key.Path)
	}
	_, err := s.put(ctx, key, d, metastore.Absent)
	return &indexpb.PutDirectoryResponse{}, err
}

// ListDirectories returns a page of a chain's directories.
func (s *Service) ListDirectories(ctx context.Context, req *indexpb.ListDirectoriesRequest) (*indexpb.ListDirectoriesResponse, error) {
	to := "directory/" + req.GetChainId() + "/" + after
	if req.GetTo() > 0 {
		to = directoryKey(req.GetChainId(), req.GetTo()).Path
	}
	out := &indexpb.ListDirectoriesResponse{}
	more, err := list(ctx, s, req.GetChainId(), directoryKey(req.GetChainId(), req.GetFrom()).Path, to, req.GetLimit(),
		func() *indexpb.Directory { return &indexpb.Directory{} },
		func(r *indexpb.Directory, _ metastore.Version) { out.Directories = append(out.Directories, r) })
	out.HasMore = more
	return out, err
}

// MaxHeadBytes limits a head's row.
const MaxHeadBytes = 64 << 10

// GetHead returns a stream's head.
func (s *Service) GetHead(ctx context.Context, req *indexpb.GetHeadRequest) (*indexpb.GetHeadResponse, error) {
	read := s.head
	if req.GetProveAbsence() {
		read = s.provenHead
	}
	h, v, err := read(ctx, req.GetStreamId())
	if err != nil {
		return nil, err
	}
	return &indexpb.GetHeadResponse{Head: h, Version: int64(v)}, nil
}

// PutHead changes a stream's head. It never makes one: creation does.
func (s *Service) PutHead(ctx context.Context, req *indexpb.PutHeadRequest) (*indexpb.PutHeadResponse, error) {
	if n := proto.Size(req.GetHead()); n > MaxHeadBytes {
		return nil, reason.Field("head", fmt.Sprintf("must be at most %d bytes, is %d", MaxHeadBytes, n))
	}
	v, err := change(ctx, s, headKey(req.GetHead().GetStreamId()), &indexpb.Head{}, req.GetHead(), req.GetExpectedVersion(), headRule)
	if err != nil {
		return nil, err
	}
	return &indexpb.PutHeadResponse{Version: v}, nil
}

func headRule(old, next *indexpb.Head, existed bool) error {
	back := next.GetFoldedEpoch() < old.GetFoldedEpoch() ||
		next.GetFoldedEpoch() == old.GetFoldedEpoch() && next.GetFoldedEntry() < old.GetFoldedEntry()
	switch {
	case !existed:
		return broken("a head is made with its stream only")
	case back:
		return broken("folded goes forward only")
	case next.GetTail() < old.GetTail() || next.GetTrim() < old.GetTrim() || next.GetLastTimestamp() < old.GetLastTimestamp():
		return broken("tail, trim and last_timestamp go forward only")
	case next.GetState() < old.GetState() || next.GetOpenedEpoch() < old.GetOpenedEpoch():
		return broken("state and opened_epoch go forward only")
	case next.GetShard() != old.GetShard():
		return broken("a stream keeps its shard")
	case next.GetProducersForgotten() < old.GetProducersForgotten() || next.GetProducersForgottenUntil() < old.GetProducersForgottenUntil():
		return broken("what is known of forgotten producers goes forward only")
	case old.GetBucketId() != "" && next.GetBucketId() != old.GetBucketId():
		return broken("a stream keeps its bucket")
	case next.GetDeletedChain() != "" && next.GetState() != indexpb.HeadState_HEAD_STATE_DELETED,
		next.GetDeletedChain() == "" && next.GetDeletedSlot() != 0:
		return broken("deleted_chain and deleted_slot tell where a DELETED head was deleted")
	case old.GetDeletedChain() != "" && (next.GetDeletedChain() != old.GetDeletedChain() || next.GetDeletedSlot() != old.GetDeletedSlot()):
		return broken("deleted_chain and deleted_slot are set once")
	}
	if err := coverageRule(old, next); err != nil {
		return err
	}
	return quarantineRule(old, next)
}

// GetDescriptor returns a stream's descriptor.
func (s *Service) GetDescriptor(ctx context.Context, req *indexpb.GetDescriptorRequest) (*indexpb.GetDescriptorResponse, error) {
	if req.GetFresh() {
		d, err := s.freshDescriptor(ctx, req.GetStreamId())
		if err != nil {
			return nil, err
		}
		return &indexpb.GetDescriptorResponse{Stream: d}, nil
	}
	d, _, err := s.descriptor(ctx, req.GetStreamId())
	if err != nil {
		return nil, err
	}
	return &indexpb.GetDescriptorResponse{Stream: d}, nil
}

// PutDue writes a due marker.
func (s *Service) PutDue(ctx context.Context, req *indexpb.PutDueRequest) (*indexpb.PutDueResponse, error) {
	d := req.GetDue()
	if d.GetQueue() == "" || d.GetDueId() == "" || d.GetAt() < 0 {
		return nil, broken("a due marker has a queue, an id and a time")
	}
	v, err := change(ctx, s, dueKey(d.GetQueue(), d.GetAt(), d.GetDueId()), &indexpb.Due{}, d, req.GetExpectedVersion(),
		func(_, _ *indexpb.Due, _ bool) error { return nil })
	if err != nil {
		return nil, err
	}
	return &indexpb.PutDueResponse{Version: v}, nil
}

// ListDue returns a page of markers that are due, by time.
func (s *Service) ListDue(ctx context.Context, req *indexpb.ListDueRequest) (*indexpb.ListDueResponse, error) {
	out := &indexpb.ListDueResponse{}
	prefix := "due/" + req.GetQueue() + "/"
	start, to := prefix, dueKey(req.GetQueue(), req.GetUntil()+1, "").Path
	if id := req.GetAfterDueId(); id != "" {
		start = min(from("", dueKey(req.GetQueue(), req.GetAfterAt(), id).Path), to)
	}
	more, err := list(ctx, s, "due/"+req.GetQueue(), start, to, req.GetLimit(),
		func() *indexpb.Due { return &indexpb.Due{} },
		func(r *indexpb.Due, v metastore.Version) {
			out.Due = append(out.Due, &indexpb.VersionedDue{Due: r, Version: int64(v)})
		})
	out.HasMore = more
	return out, err
}

// DeleteDue removes a due marker of a version.
func (s *Service) DeleteDue(ctx context.Context, req *indexpb.DeleteDueRequest) (*indexpb.DeleteDueResponse, error) {
	return &indexpb.DeleteDueResponse{}, s.remove(ctx, dueKey(req.GetQueue(), req.GetAt(), req.GetDueId()), metastore.Version(req.GetExpectedVersion()))
}
