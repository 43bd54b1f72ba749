package gateway

import (
	"context"
	"encoding/binary"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/node/v1"
	"github.com/nova-stream/nova/proto/gen/nova/reaper/v1"
	"github.com/nova-stream/nova/proto/gen/nova/settler/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

const (
	// asksAtOnce is how many nodes are asked at once for one request.
	asksAtOnce = 16
	// The names of figures, as /metrics has them.
	figureAppended  = "nova_sequencer_appended_bytes_total"
	figureCommitted = "nova_chainwriter_committed_bytes_total"
)

// told is what a settler said of a chain.
type told struct {
	*settlerpb.ChainProgress
}

// since is when the oldest that is not settled was absorbed, milliseconds since the
// Unix epoch. Rows of older releases do not tell; it was not before the chain's id
// was made.
func (t *told) since() int64 {
	const untold = 1
	if t.GetUnsettledSince() != untold {
		return t.GetUnsettledSince()
	}
	id, err := stream.ParseChainID(t.GetChainId())
	if err != nil {
		return untold
	}
	return int64(binary.BigEndian.Uint64(id[:8]) >> 16) // an id begins with 48 bits of time
}

// heard is what the nodes of a constellation said.
type heard struct {
	mu         sync.Mutex
	chains     map[string]*told // by id
	queues     map[string]*reaperpb.QueueProgress
	totals     *novapb.BackgroundTotals
	settlers   uint32
	reapers    uint32
	unanswered []string
}

// askAll asks every settler and reaper for its progress, and every sequencer and
// chain-writer for what it wrote. It never fails: who does not answer is noted.
func (s *Service) askAll(ctx context.Context) *heard {
	h := &heard{chains: map[string]*told{}, queues: map[string]*reaperpb.QueueProgress{}, totals: &novapb.BackgroundTotals{}}
	room := make(chan struct{}, asksAtOnce)
	var asks sync.WaitGroup
	defer asks.Wait()
	for _, service := range []discovery.Service{discovery.Settler, discovery.Reaper, discovery.Sequencer, discovery.ChainWriter} {
		nodes, err := s.registry.Nodes(ctx, service)
		if err != nil {
			s.log.WarnContext(ctx, "discovery does not answer", "err", err)
			h.silent("discovery")
			return h
		}
		for _, n := range nodes {
			asks.Go(func() {
				room <- struct{}{}
				defer func() { <-room }()
				call, cancel := context.WithTimeout(ctx, nodePatience)
				defer cancel()
				if err := s.ask(call, h, n); err != nil {
					s.log.WarnContext(ctx, "a node does not tell what it does", "node", n.ID, "err", err)
					h.silent(n.ID)
				}
			})
		}
	}
	return h
}

func (h *heard) silent(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.unanswered = append(h.unanswered, id)
}

// ask asks one node.
func (s *Service) ask(ctx context.Context, h *heard, n discovery.Node) error {
	switch n.Service {
	case discovery.Settler:
		conn, err := s.conns.Address(n.Address)
		if err != nil {
			return err
		}
		res, err := settlerpb.NewSettlerServiceClient(conn).GetProgress(ctx, &settlerpb.GetProgressRequest{})
		if err != nil {
			return err
		}
		h.settler(res)
	case discovery.Reaper:
		conn, err := s.conns.Address(n.Address)
		if err != nil {
			return err
		}
		res, err := reaperpb.NewReaperServiceClient(conn).GetProgress(ctx, &reaperpb.GetProgressRequest{})
		if err != nil {
			return err
		}
		h.reaper(res)
	default:
		node, err := s.nodes.Node(n)
		if err != nil {
			return err
		}
		res, err := node.GetStats(ctx, &nodepb.GetStatsRequest{NodeId: n.ID})
		if err != nil {
			return err
		}
		h.figures(n.Service, res.GetStats())
	}
	return nil
}

func (h *heard) settler(res *settlerpb.GetProgressResponse) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.settlers++
	h.totals.SettledBytes += res.GetSettledBytes()
	h.totals.SettledWrittenBytes += res.GetWrittenBytes()
	h.totals.RewrittenBytes += res.GetRewrittenBytes()
	if since := res.GetSince(); since > 0 && (h.totals.GetSettledSince() == 0 || since < h.totals.GetSettledSince()) {
		h.totals.SettledSince = since
	}
	for _, c := range res.GetChains() {
		// While chains are shared anew two settlers may tell of one: who is further on
		// knows better.
		if old := h.chains[c.GetChainId()]; old == nil || further(c, old.ChainProgress) {
			h.chains[c.GetChainId()] = &told{c}
		}
	}
}

// further reports whether a settler knows a chain to be further on than another.
func further(c, other *settlerpb.ChainProgress) bool {
	if c.GetSettledTo() != other.GetSettledTo() {
		return c.GetSettledTo() > other.GetSettledTo()
	}
	return c.GetAbsorbedTo() > other.GetAbsorbedTo()
}

func (h *heard) reaper(res *reaperpb.GetProgressResponse) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reapers++
	for _, q := range res.GetQueues() {
		sum := h.queues[q.GetQueue()]
		if sum == nil {
			sum = &reaperpb.QueueProgress{}
			h.queues[q.GetQueue()] = sum
		}
		sum.Done += q.GetDone()
		sum.Failed += q.GetFailed()
	}
}

// figures adds what a process wrote. In a process of several services the figures
// are the same for each: of every service only its own are looked at.
func (h *heard) figures(service discovery.Service, stats map[string]float64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch service {
	case discovery.Sequencer:
		h.totals.AppendedBytes += uint64(stats[figureAppended])
	case discovery.ChainWriter:
		h.totals.TransitWrittenBytes += uint64(stats[figureCommitted])
	}
}

// tell adds what was heard to an answer whose chains and queues are there.
func (h *heard) tell(out *novapb.GetBackgroundResponse) {
	slices.Sort(h.unanswered)
	out.Unanswered, out.Settlers, out.Reapers = h.unanswered, h.settlers, h.reapers
	for _, q := range out.GetQueues() {
		q.Done, q.NotDone = h.queues[q.GetQueue()].GetDone(), h.queues[q.GetQueue()].GetFailed()
	}
	t := h.totals
	for _, c := range h.chains {
		t.UnsettledBytes += c.GetUnsettledBytes()
		t.BacklogSlots += c.GetBacklog()
		if since := c.GetBacklogSince(); since > 0 {
			t.AbsorbLagMs = max(t.GetAbsorbLagMs(), out.GetNow()-since)
		}
		if since := c.since(); since > 0 {
			t.SettleLagMs = max(t.GetSettleLagMs(), out.GetNow()-since)
		}
		if c.GetBlocked() != "" {
			t.BlockedChains++
		}
	}
	if t.GetAppendedBytes() > 0 && len(h.unanswered) == 0 {
		t.WriteAmplification = float64(t.GetTransitWrittenBytes()+t.GetSettledWrittenBytes()) / float64(t.GetAppendedBytes())
	}
	out.Totals = t
}

// reviveBy asks the reapers in turn until one answers. Who answers late has done no
// harm: reviving is idempotent.
func (s *Service) reviveBy(ctx context.Context, req *reaperpb.ReviveRequest) (*reaperpb.ReviveResponse, error) {
	nodes, err := s.registry.Nodes(ctx, discovery.Reaper)
	if err != nil {
		s.log.WarnContext(ctx, "discovery does not answer", "err", err)
		return nil, reason.New(codes.Unavailable, reason.NodeUnavailable, "discovery does not answer, so that nodes cannot be found")
	}
	if len(nodes) == 0 {
		return nil, reason.New(codes.Unavailable, reason.NodeUnavailable, "there is no reaper to do it")
	}
	for _, n := range nodes {
		var conn grpc.ClientConnInterface
		if conn, err = s.conns.Address(n.Address); err != nil {
			continue
		}
		var res *reaperpb.ReviveResponse
		call, cancel := context.WithTimeout(ctx, max(nodePatience, s.cfg.Patience/2))
		res, err = reaperpb.NewReaperServiceClient(conn).Revive(call, req)
		cancel()
		if err == nil || ctx.Err() != nil {
			return res, err
		}
		s.log.WarnContext(ctx, "a reaper does not revive", "node", n.ID, "err", err)
	}
	switch reason.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Unknown:
		return nil, reason.New(codes.Unavailable, reason.NodeUnavailable, "no reaper could put it back, or not all of it; asking again is safe")
	}
	return nil, err
}
