package gateway

import (
	"context"
	"errors"
	"io"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/reader/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// GetFleet returns the nodes that discovery sees.
func (s *Service) GetFleet(ctx context.Context, _ *novapb.GetFleetRequest) (*novapb.GetFleetResponse, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	c, err := s.index.OpenConstellation(ctx, &indexpb.OpenConstellationRequest{ShardCount: s.cfg.Shards})
	if err != nil {
		return nil, err
	}
	out := &novapb.GetFleetResponse{ConstellationId: c.GetConstellation().GetId(), ShardCount: c.GetConstellation().GetShardCount()}
	for _, service := range discovery.Services() {
		nodes, err := s.registry.Nodes(ctx, service)
		if err != nil {
			s.log.WarnContext(ctx, "discovery does not answer", "err", err)
			return nil, reason.New(codes.Unavailable, reason.NodeUnavailable, "discovery does not answer, so that nodes cannot be found")
		}
		for _, n := range nodes {
			out.Nodes = append(out.Nodes, &novapb.Node{
				NodeId: n.ID, Service: string(n.Service), Address: n.Address, Zone: n.Zone, Draining: n.Draining(),
			})
		}
	}
	return out, nil
}

// ListShards returns the shard records.
func (s *Service) ListShards(ctx context.Context, req *novapb.ListShardsRequest) (*novapb.ListShardsResponse, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	res, err := s.index.ListShards(ctx, &indexpb.ListShardsRequest{Start: req.GetStart(), Limit: limitOf(req.GetLimit())})
	if err != nil {
		return nil, err
	}
	out := &novapb.ListShardsResponse{HasMore: res.GetHasMore()}
	for _, v := range res.GetShards() {
		r := v.GetShard()
		info := &novapb.ShardInfo{
			Shard: r.GetShard(), Epoch: r.GetEpoch(), State: shardState(r.GetState()), Leader: r.GetHolderAddress(), LifeId: r.GetHolderLife(),
		}
		for _, b := range r.GetBindings() {
			info.ChainIds = append(info.ChainIds, b.GetChainId())
		}
		out.Shards = append(out.Shards, info)
	}
	return out, nil
}

func shardState(st indexpb.ShardState) string {
	if st == indexpb.ShardState_SHARD_STATE_UNSPECIFIED {
		return "vacant"
	}
	return strings.ToLower(strings.TrimPrefix(st.String(), "SHARD_STATE_"))
}

// ListChains returns the chain records.
func (s *Service) ListChains(ctx context.Context, req *novapb.ListChainsRequest) (*novapb.ListChainsResponse, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	res, err := s.index.ListChains(ctx, &indexpb.ListChainsRequest{StartAfter: req.GetStartAfter(), Limit: limitOf(req.GetLimit())})
	if err != nil {
		return nil, err
	}
	out := &novapb.ListChainsResponse{HasMore: res.GetHasMore()}
	for _, v := range res.GetChains() {
		r := v.GetChain()
		out.Chains = append(out.Chains, &novapb.ChainInfo{
			ChainId: r.GetChainId(), State: strings.ToLower(strings.TrimPrefix(r.GetState().String(), "CHAIN_STATE_")),
			LifeId: r.GetWriterLife(), Address: r.GetWriterAddress(), Cut: r.GetCut(), AbsorbedTo: r.GetAbsorbedTo(), SettledTo: r.GetSettledTo(),
		})
	}
	return out, nil
}

// Verify checks one stream, a bucket's, or all; with all, also that the rows of the
// metadata and the objects in the store belong to each other. With repair it puts
// right what can be put right without guessing.
func (s *Service) Verify(req *novapb.VerifyRequest, srv novapb.AdminService_VerifyServer) error {
	ctx, cancel := s.whileRunning(srv.Context())
	defer cancel()
	return s.ended(srv.Context(), s.verifyAll(ctx, req, srv))
}

func (s *Service) verifyAll(ctx context.Context, req *novapb.VerifyRequest, srv novapb.AdminService_VerifyServer) error {
	if req.GetStream() != "" {
		return s.verifyOne(ctx, req.GetBucket(), req.GetStream(), req.GetRepair(), srv)
	}
	buckets := []string{req.GetBucket()}
	if req.GetAll() {
		buckets = nil
		for after, more := "", true; more; {
			page, err := s.index.ListBuckets(ctx, &indexpb.ListBucketsRequest{StartAfter: after, Limit: pageLimit})
			if err != nil {
				return err
			}
			for _, b := range page.GetBuckets() {
				buckets = append(buckets, b.GetName())
				after = b.GetName()
			}
			more = page.GetHasMore()
		}
	}
	for _, b := range buckets {
		for after, more := "", true; more; {
			page, err := s.index.ListStreams(ctx, &indexpb.ListStreamsRequest{Bucket: b, StartAfter: after, Limit: pageLimit})
			if err != nil {
				return err
			}
			for _, d := range page.GetStreams() {
				err := s.verifyOne(ctx, b, d.GetName(), req.GetRepair(), srv)
				if err != nil && ctx.Err() != nil {
					return err
				}
				// One that cannot be read is a finding, not the end of the others; one
				// that was deleted meanwhile is neither.
				if err != nil && !reason.Is(err, reason.StreamNotFound) {
					s.log.WarnContext(ctx, "a stream cannot be verified", "stream", d.GetStreamId(), "err", err)
					err = srv.Send(&novapb.VerifyResponse{
						Bucket: b, Stream: d.GetName(), StreamId: d.GetStreamId(), Done: true,
						Findings: []*novapb.VerifyFinding{{Kind: "unreadable", Message: "it cannot be read: " + reason.Code(err).String() + " " + string(reason.Of(err))}},
					})
					if err != nil {
						return err
					}
				}
				after = d.GetName()
			}
			more = page.GetHasMore()
		}
	}
	if !req.GetAll() {
		return nil
	}
	up, err := s.readers.VerifyObjects(ctx, &readerpb.VerifyObjectsRequest{Repair: req.GetRepair()})
	if err != nil {
		return err
	}
	return passOn(up.Recv, srv)
}

// verifyOne verifies a stream, and repairs it first if it cannot be.
func (s *Service) verifyOne(ctx context.Context, bucket, name string, repair bool, srv novapb.AdminService_VerifyServer) error {
	err := s.verifyStream(ctx, bucket, name, srv)
	if repair && ctx.Err() == nil && repairable(err) {
		return s.repairStream(ctx, bucket, name, err, srv)
	}
	return err
}

func (s *Service) verifyStream(ctx context.Context, bucket, name string, srv novapb.AdminService_VerifyServer) error {
	up, err := s.readers.VerifyStream(ctx, &readerpb.VerifyStreamRequest{Bucket: bucket, Stream: name})
	if err != nil {
		return err
	}
	return passOn(up.Recv, srv)
}

// passOn sends what a reader reports to the caller.
func passOn[T interface {
	GetProgress() *novapb.VerifyResponse
}](recv func() (T, error), srv novapb.AdminService_VerifyServer) error {
	for {
		msg, err := recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := srv.Send(msg.GetProgress()); err != nil {
			return err
		}
	}
}

// MintToken is not available yet.
func (s *Service) MintToken(context.Context, *novapb.MintTokenRequest) (*novapb.MintTokenResponse, error) {
	return nil, reason.Missing("tokens")
}

// ListTokens is not available yet.
func (s *Service) ListTokens(context.Context, *novapb.ListTokensRequest) (*novapb.ListTokensResponse, error) {
	return nil, reason.Missing("tokens")
}

// RevokeToken is not available yet.
func (s *Service) RevokeToken(context.Context, *novapb.RevokeTokenRequest) (*novapb.RevokeTokenResponse, error) {
	return nil, reason.Missing("tokens")
}
