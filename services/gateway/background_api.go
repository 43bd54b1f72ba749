package gateway

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/reaper/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

const (
	// listsAtOnce is how many queues are listed at once for one request: a list may
	// be some hundred KiB.
	listsAtOnce = 4
	// chainPage is how many chain records are read at once, and chainPages how often
	// for one request: chains that ended long ago are read and passed over.
	chainPage, chainPages = 500, 40
	// allTime is later than any marker is due.
	allTime = 1 << 53
)

// GetBackground gathers what the rows say and what the processes know.
func (s *Service) GetBackground(ctx context.Context, req *novapb.GetBackgroundRequest) (*novapb.GetBackgroundResponse, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	out := &novapb.GetBackgroundResponse{Now: time.Now().UnixMilli()}
	var heard *heard
	var chains []*indexpb.Chain
	var export *indexpb.GetExportStateResponse
	var g errgroup.Group
	g.Go(func() error {
		heard = s.askAll(ctx)
		return nil
	})
	g.Go(func() (err error) {
		chains, err = s.chainsInUse(ctx, req, out)
		return err
	})
	g.Go(func() (err error) {
		out.Queues, err = s.queues(ctx, out.GetNow())
		return err
	})
	g.Go(func() (err error) {
		export, err = s.index.GetExportState(ctx, &indexpb.GetExportStateRequest{})
		return err
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	out.Export = &novapb.BackgroundExport{
		Enabled: export.GetEnabled(), IntervalMs: export.GetIntervalMs(), Begun: export.GetBegun(),
		Completed: export.GetCompleted(), CompletedBegunAt: export.GetCompletedBegunAt(),
	}
	for _, c := range chains {
		out.Chains = append(out.Chains, chainInBackground(c, heard.chains[c.GetChainId()]))
	}
	heard.tell(out)
	return out, nil
}

// chainsInUse returns the chain records that a request asks for, without those that
// are retired, and says in out where the list goes on.
func (s *Service) chainsInUse(ctx context.Context, req *novapb.GetBackgroundRequest, out *novapb.GetBackgroundResponse) ([]*indexpb.Chain, error) {
	limit := int(limitOf(req.GetLimit()))
	var chains []*indexpb.Chain
	after := req.GetStartAfter()
	for range chainPages {
		res, err := s.index.ListChains(ctx, &indexpb.ListChainsRequest{StartAfter: after, Limit: chainPage})
		if err != nil {
			return nil, err
		}
		for _, v := range res.GetChains() {
			c := v.GetChain()
			if c.GetState() != indexpb.ChainState_CHAIN_STATE_RETIRED {
				if len(chains) == limit {
					out.MoreChains, out.NextStartAfter = true, after
					return chains, nil
				}
				chains = append(chains, c)
			}
			after = c.GetChainId()
		}
		if !res.GetHasMore() {
			return chains, nil
		}
	}
	out.MoreChains, out.NextStartAfter = true, after
	return chains, nil
}

// queues returns how much is in the queues.
func (s *Service) queues(ctx context.Context, now int64) ([]*novapb.BackgroundQueue, error) {
	names := catalog.Queues()
	out := make([]*novapb.BackgroundQueue, len(names))
	var g errgroup.Group
	g.SetLimit(listsAtOnce)
	for i, name := range names {
		g.Go(func() error {
			q := &novapb.BackgroundQueue{Queue: name}
			out[i] = q
			waiting, err := s.index.ListDue(ctx, &indexpb.ListDueRequest{Queue: name, Until: allTime, Limit: catalog.ListAtOnce(name)})
			if err != nil {
				return err
			}
			q.Waiting, q.MoreWaiting = uint32(len(waiting.GetDue())), waiting.GetHasMore()
			for _, v := range waiting.GetDue() {
				if q.GetOldestAt() == 0 {
					q.OldestAt = max(v.GetDue().GetAt(), 1)
				}
				switch {
				case v.GetDue().GetLeasedUntil() > now:
					q.InWork++
				case v.GetDue().GetAt() <= now:
					q.Due++
				}
			}
			dead, err := s.index.ListDue(ctx, &indexpb.ListDueRequest{Queue: catalog.DeadQueue(name), Until: allTime, Limit: catalog.ListAtOnce(name)})
			if err != nil {
				return err
			}
			q.Dead, q.MoreDead = uint32(len(dead.GetDue())), dead.GetHasMore()
			return nil
		})
	}
	return out, g.Wait()
}

// ListDeadLetters lists markers that were set aside.
func (s *Service) ListDeadLetters(ctx context.Context, req *novapb.ListDeadLettersRequest) (*novapb.ListDeadLettersResponse, error) {
	names := catalog.Queues()
	if name := req.GetQueue(); name != "" {
		if err := knownQueue(name); err != nil {
			return nil, err
		}
		names = []string{name}
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	pages := make([]*indexpb.ListDueResponse, len(names))
	var g errgroup.Group
	g.SetLimit(listsAtOnce)
	for i, name := range names {
		g.Go(func() (err error) {
			limit := min(limitOf(req.GetLimit()), catalog.ListAtOnce(name))
			pages[i], err = s.index.ListDue(ctx, &indexpb.ListDueRequest{Queue: catalog.DeadQueue(name), Until: allTime, Limit: limit})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	out := &novapb.ListDeadLettersResponse{}
	for i, name := range names {
		out.HasMore = out.GetHasMore() || pages[i].GetHasMore()
		for _, v := range pages[i].GetDue() {
			d := v.GetDue()
			out.Letters = append(out.Letters, &novapb.DeadLetter{
				Queue: name, DueId: d.GetDueId(), SetAsideAt: d.GetAt(), Attempts: d.GetAttempts(),
				Bucket: d.GetBucket(), Stream: d.GetName(), StreamId: d.GetStreamId(), ChainId: d.GetChainId(), Object: d.GetObject(), Number: d.GetNumber(),
			})
		}
	}
	return out, nil
}

// ReviveDeadLetter has a reaper put markers back; any of them can.
func (s *Service) ReviveDeadLetter(ctx context.Context, req *novapb.ReviveDeadLetterRequest) (*novapb.ReviveDeadLetterResponse, error) {
	if err := knownQueue(req.GetQueue()); err != nil {
		return nil, err
	}
	due := ""
	if req.GetDueId() != "" {
		id, err := stream.ParseID(req.GetDueId())
		if err != nil {
			return nil, reason.Field("due_id", err.Error())
		}
		due = id.String() // as it is stored, whatever its case was
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	res, err := s.reviveBy(ctx, &reaperpb.ReviveRequest{Queue: req.GetQueue(), DueId: due})
	if err != nil {
		return nil, err
	}
	return &novapb.ReviveDeadLetterResponse{Revived: res.GetRevived()}, nil
}

func knownQueue(name string) error {
	if catalog.IsQueue(name) {
		return nil
	}
	return reason.Field("queue", fmt.Sprintf("must be one of %s, is %q", strings.Join(catalog.Queues(), ", "), name))
}

// maxBlocked limits why a chain is blocked, in bytes: it quotes errors.
const maxBlocked = 400

// chainInBackground is a chain's record, and what a settler said of it; told may be
// nil.
func chainInBackground(c *indexpb.Chain, told *told) *novapb.BackgroundChain {
	out := &novapb.BackgroundChain{
		ChainId: c.GetChainId(), State: strings.ToLower(strings.TrimPrefix(c.GetState().String(), "CHAIN_STATE_")), Cut: c.GetCut(),
		AbsorbedTo: c.GetAbsorbedTo(), SettledTo: c.GetSettledTo(), ReclaimedTo: c.GetReclaimedTo(),
	}
	var pinned []string
	for _, p := range c.GetPins() {
		pinned = append(pinned, p.GetStreamId())
	}
	slices.Sort(pinned)
	out.PinnedStreams = uint32(len(slices.Compact(pinned)))
	done := c.GetState() != indexpb.ChainState_CHAIN_STATE_OPEN && c.GetSettledTo() >= c.GetCut()
	switch {
	case done:
		out.Known = true // settlers do not look after it any more
	case told != nil:
		out.Known = true
		// Either may be the older one.
		out.AbsorbedTo, out.SettledTo = max(out.GetAbsorbedTo(), told.GetAbsorbedTo()), max(out.GetSettledTo(), told.GetSettledTo())
		out.BacklogSlots, out.BacklogSince = told.GetBacklog(), told.GetBacklogSince()
		out.UnsettledBytes, out.UnsettledSince = told.GetUnsettledBytes(), told.since()
		out.Blocked = strings.ToValidUTF8(told.GetBlocked()[:min(len(told.GetBlocked()), maxBlocked)], "")
	}
	return out
}
