package clienttest

import (
	"context"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

type bucketService struct {
	novapb.UnimplementedBucketServiceServer

	s *Server
}

func (b bucketService) CreateBucket(ctx context.Context, r *novapb.CreateBucketRequest) (*novapb.CreateBucketResponse, error) {
	if err := check(r); err != nil {
		return nil, err
	}
	if err := b.s.at(Calling); err != nil {
		return nil, err
	}
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	b.s.heardLocked(ctx)
	if b.s.buckets[r.GetBucket()] == nil {
		b.s.buckets[r.GetBucket()] = &novapb.Bucket{Name: r.GetBucket(), State: novapb.BucketState_BUCKET_STATE_ACTIVE, CreatedAt: b.s.now().UnixMilli(), Config: r.GetConfig()}
	}
	return &novapb.CreateBucketResponse{Bucket: b.s.buckets[r.GetBucket()]}, nil
}

func (b bucketService) find(ctx context.Context, name string) (*novapb.Bucket, error) {
	if err := b.s.at(Calling); err != nil {
		return nil, err
	}
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	b.s.heardLocked(ctx)
	if found := b.s.buckets[name]; found != nil {
		return found, nil
	}
	return nil, reason.New(codes.NotFound, reason.BucketNotFound, "bucket "+name+" does not exist")
}

func (b bucketService) GetBucket(ctx context.Context, r *novapb.GetBucketRequest) (*novapb.GetBucketResponse, error) {
	found, err := b.find(ctx, r.GetBucket())
	if err != nil {
		return nil, err
	}
	return &novapb.GetBucketResponse{Bucket: found}, nil
}

func (b bucketService) ListBuckets(_ context.Context, r *novapb.ListBucketsRequest) (*novapb.ListBucketsResponse, error) {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	page, more := matching(slices.Collect(maps.Keys(b.s.buckets)), r.GetPrefix(), r.GetStartAfter(), r.GetLimit())
	out := &novapb.ListBucketsResponse{HasMore: more}
	for _, n := range page {
		out.Buckets = append(out.Buckets, b.s.buckets[n])
	}
	return out, nil
}

func (b bucketService) UpdateBucket(ctx context.Context, r *novapb.UpdateBucketRequest) (*novapb.UpdateBucketResponse, error) {
	if err := check(r); err != nil {
		return nil, err
	}
	found, err := b.find(ctx, r.GetBucket())
	if err != nil {
		return nil, err
	}
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	changed := &novapb.Bucket{Name: found.GetName(), State: found.GetState(), CreatedAt: found.GetCreatedAt(), Config: r.GetConfig()}
	b.s.buckets[r.GetBucket()] = changed
	return &novapb.UpdateBucketResponse{Bucket: changed}, nil
}

func (b bucketService) DeleteBucket(ctx context.Context, r *novapb.DeleteBucketRequest) (*novapb.DeleteBucketResponse, error) {
	if _, err := b.find(ctx, r.GetBucket()); err != nil {
		return nil, err
	}
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	for name := range b.s.streams {
		if !strings.HasPrefix(name, r.GetBucket()+"/") {
			continue
		}
		if !r.GetForce() {
			return nil, reason.New(codes.FailedPrecondition, reason.BucketNotEmpty, "the bucket has streams")
		}
		delete(b.s.streams, name)
	}
	delete(b.s.buckets, r.GetBucket())
	return &novapb.DeleteBucketResponse{}, nil
}

type streamService struct {
	novapb.UnimplementedStreamServiceServer

	s *Server
}

func (ss streamService) CreateStream(ctx context.Context, r *novapb.CreateStreamRequest) (*novapb.CreateStreamResponse, error) {
	if err := check(r); err != nil {
		return nil, err
	}
	if _, err := (bucketService{s: ss.s}).find(ctx, r.GetBucket()); err != nil {
		return nil, err
	}
	key := r.GetBucket() + "/" + r.GetStream()
	ss.s.mu.Lock()
	exists := ss.s.streams[key] != nil
	ss.s.mu.Unlock()
	if exists {
		return nil, reason.New(codes.AlreadyExists, reason.StreamExists, "the stream exists")
	}
	ss.s.Create(r.GetBucket(), r.GetStream())
	ss.s.mu.Lock()
	defer ss.s.mu.Unlock()
	st := ss.s.streams[key]
	if c := r.GetConfig(); c != nil {
		st.info.Config = c
	}
	return &novapb.CreateStreamResponse{Stream: st.info}, nil
}

func (ss streamService) GetStream(ctx context.Context, r *novapb.GetStreamRequest) (*novapb.GetStreamResponse, error) {
	st, err := ss.s.find(ctx, &novapb.CheckTailRequest{Bucket: r.GetBucket(), Stream: r.GetStream()})
	if err != nil {
		return nil, err
	}
	ss.s.mu.Lock()
	defer ss.s.mu.Unlock()
	return &novapb.GetStreamResponse{Stream: st.info, Extent: &novapb.StreamExtent{
		FirstSeq: st.trim, Tail: st.tail(), ContentHash: uint64(st.hash(st.tail())), Leader: "127.0.0.1:1", Epoch: 1,
	}}, nil
}

func (ss streamService) ListStreams(_ context.Context, r *novapb.ListStreamsRequest) (*novapb.ListStreamsResponse, error) {
	ss.s.mu.Lock()
	defer ss.s.mu.Unlock()
	var names []string
	for key, st := range ss.s.streams {
		if st.info.GetBucket() == r.GetBucket() {
			names = append(names, strings.TrimPrefix(key, r.GetBucket()+"/"))
		}
	}
	page, more := matching(names, r.GetPrefix(), r.GetStartAfter(), r.GetLimit())
	out := &novapb.ListStreamsResponse{HasMore: more}
	for _, n := range page {
		out.Streams = append(out.Streams, ss.s.streams[r.GetBucket()+"/"+n].info)
	}
	return out, nil
}

func (ss streamService) UpdateStream(ctx context.Context, r *novapb.UpdateStreamRequest) (*novapb.UpdateStreamResponse, error) {
	if err := check(r); err != nil {
		return nil, err
	}
	st, err := ss.s.find(ctx, r)
	if err != nil {
		return nil, err
	}
	ss.s.mu.Lock()
	defer ss.s.mu.Unlock()
	st.info.Config = r.GetConfig()
	return &novapb.UpdateStreamResponse{Stream: st.info}, nil
}

func (ss streamService) DeleteStream(ctx context.Context, r *novapb.DeleteStreamRequest) (*novapb.DeleteStreamResponse, error) {
	if _, err := ss.s.find(ctx, r); err != nil {
		return nil, err
	}
	ss.s.Delete(r.GetBucket(), r.GetStream())
	return &novapb.DeleteStreamResponse{}, nil
}

// SetFleet says which nodes there are and who leads which shard, at first the
// sequencer n1 and shard 1.
func (s *Server) SetFleet(nodes []*novapb.Node, shards ...*novapb.ShardInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes, s.shards = nodes, shards
}

// Lead gives every shard that is led from one address to another.
func (s *Server) Lead(from, to string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, sh := range s.shards {
		if sh.GetLeader() == from {
			s.shards[i] = &novapb.ShardInfo{Shard: sh.GetShard(), Epoch: sh.GetEpoch() + 1, State: "serving", Leader: to, ChainIds: sh.GetChainIds()}
		}
	}
}

// GetFleet returns the nodes.
func (s *Server) GetFleet(context.Context, *novapb.GetFleetRequest) (*novapb.GetFleetResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &novapb.GetFleetResponse{ConstellationId: "01J00000000000000000000000", ShardCount: 16, Nodes: slices.Clone(s.nodes)}, nil
}

// GetNodeStats returns two figures.
func (s *Server) GetNodeStats(context.Context, *novapb.GetNodeStatsRequest) (*novapb.GetNodeStatsResponse, error) {
	return &novapb.GetNodeStatsResponse{Stats: map[string]float64{"nova.sequencer.streams": 3, "nova.sequencer.pool": 0.5}}, nil
}

// DrainNode marks a node.
func (s *Server) DrainNode(_ context.Context, r *novapb.DrainNodeRequest) (*novapb.DrainNodeResponse, error) {
	return &novapb.DrainNodeResponse{}, s.setDraining(r.GetNodeId(), true)
}

// UndrainNode marks a node.
func (s *Server) UndrainNode(_ context.Context, r *novapb.UndrainNodeRequest) (*novapb.UndrainNodeResponse, error) {
	return &novapb.UndrainNodeResponse{}, s.setDraining(r.GetNodeId(), false)
}

func (s *Server) setDraining(id string, draining bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, n := range s.nodes {
		if n.GetNodeId() == id {
			s.nodes[i] = &novapb.Node{NodeId: id, Service: n.GetService(), Address: n.GetAddress(), Zone: n.GetZone(), Draining: draining}
			return nil
		}
	}
	return reason.New(codes.NotFound, reason.NodeNotFound, "discovery sees no node "+id)
}

// ListShards returns the shards, one to a page.
func (s *Server) ListShards(_ context.Context, r *novapb.ListShardsRequest) (*novapb.ListShardsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, sh := range s.shards {
		if sh.GetShard() >= r.GetStart() {
			return &novapb.ListShardsResponse{Shards: s.shards[i : i+1 : i+1], HasMore: i+1 < len(s.shards)}, nil
		}
	}
	return &novapb.ListShardsResponse{}, nil
}

// ListChains returns one chain.
func (s *Server) ListChains(context.Context, *novapb.ListChainsRequest) (*novapb.ListChainsResponse, error) {
	return &novapb.ListChainsResponse{Chains: []*novapb.ChainInfo{{ChainId: "c", State: "open", Address: "127.0.0.1:2"}}}, nil
}

// GetBackground returns Background, or what an empty constellation is.
func (s *Server) GetBackground(_ context.Context, r *novapb.GetBackgroundRequest) (*novapb.GetBackgroundResponse, error) {
	if err := check(r); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Background == nil {
		return &novapb.GetBackgroundResponse{Now: s.now().UnixMilli(), Totals: &novapb.BackgroundTotals{}, Export: &novapb.BackgroundExport{}}, nil
	}
	return s.Background, nil
}

// ListDeadLetters returns those of DeadLetters that are of the queue.
func (s *Server) ListDeadLetters(_ context.Context, r *novapb.ListDeadLettersRequest) (*novapb.ListDeadLettersResponse, error) {
	if err := check(r); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &novapb.ListDeadLettersResponse{}
	for _, l := range s.DeadLetters {
		if r.GetQueue() == "" || r.GetQueue() == l.GetQueue() {
			out.Letters = append(out.Letters, l)
		}
	}
	return out, nil
}

// ReviveDeadLetter removes one of DeadLetters: the first of the queue, or the one
// that is named.
func (s *Server) ReviveDeadLetter(_ context.Context, r *novapb.ReviveDeadLetterRequest) (*novapb.ReviveDeadLetterResponse, error) {
	if err := check(r); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.DeadLetters, func(l *novapb.DeadLetter) bool {
		return l.GetQueue() == r.GetQueue() && (r.GetDueId() == "" || r.GetDueId() == l.GetDueId())
	})
	if i < 0 {
		return &novapb.ReviveDeadLetterResponse{}, nil
	}
	s.DeadLetters = slices.Delete(s.DeadLetters, i, i+1)
	return &novapb.ReviveDeadLetterResponse{Revived: 1}, nil
}

// Verify reports the Findings on the first stream that the request names.
func (s *Server) Verify(r *novapb.VerifyRequest, srv novapb.AdminService_VerifyServer) error {
	return srv.Send(&novapb.VerifyResponse{Bucket: r.GetBucket(), Stream: r.GetStream(), StreamId: "id", Records: uint64(len(s.Records(r.GetBucket(), r.GetStream()))), Findings: s.Findings, Done: true})
}
