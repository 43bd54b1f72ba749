package reaper

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// queueChain holds a marker per chain, armed before the chain's record is put. It
// stays until the chain is retired: chain_id; since is when its writer was first
// seen to be gone, later when the chain was first seen to be reclaimed, and export
// which export of the metadata shows it; from is how far the last deletion has come.
const queueChain = "chain"

// lookAfterChain brings a chain to its end:
//
//  1. OPEN, and its writer is gone for long: seal it, through a chain-writer.
//  2. remove the pins of streams that are deleted, each behind a marker of queue
//     "reclaim". Other pins keep the chain as it is.
//  3. SEALED, and absorbed, settled and reclaimed to the cut: wait for days, and until
//     no export that is kept has a pin.
//  4. delete once more what a late PUT may have brought back: the slots below the cut
//     and as many above it as the writer may have been ahead, never the SEAL at the
//     cut, which a writer that was frozen for any time must meet. A crash: the next
//     try begins again.
//  5. make it RETIRED. The record stays, since it tells the cut.
func (s *Service) lookAfterChain(ctx context.Context, m catalog.Marker) error {
	id, err := stream.ParseChainID(m.Due.GetChainId())
	if err != nil {
		return err
	}
	r, err := s.unpin(ctx, id)
	switch {
	case catalog.IsNotFound(err) && s.now().Sub(m.Armed()) < settlesAfter:
		return later{lookAgain, "the chain has no record yet"}
	case catalog.IsNotFound(err):
		return nil // its writer died before it put one
	case err != nil:
		return err
	}
	switch r.GetState() {
	case indexpb.ChainState_CHAIN_STATE_RETIRED:
		return nil
	case indexpb.ChainState_CHAIN_STATE_SEALED:
		if reclaimed(r) {
			return s.retire(ctx, m, id, r)
		}
		m.Due.Since, m.Due.From, m.Due.Export = 0, 0, 0
		if r.GetSettledTo() == r.GetCut() && r.GetReclaimedTo() < r.GetCut() {
			// The settler armed one; should that have gone by, this one does.
			if _, err := s.index.ArmDue(ctx, &indexpb.Due{
				Queue: queueReclaim, At: s.now().Add(s.cfg.ReadGrace).UnixMilli(), ChainId: id.String(), Number: r.GetCut(),
			}); err != nil {
				return err
			}
		}
		return later{lookAgain, "the chain is not settled and reclaimed to its cut"}
	default:
		return s.sealAbandoned(ctx, m, r)
	}
}

// reclaimed reports whether nothing of a chain is needed any more.
func reclaimed(r *indexpb.Chain) bool {
	cut := r.GetCut()
	return r.GetAbsorbedTo() == cut && r.GetSettledTo() == cut && r.GetReclaimedTo() == cut && len(r.GetPins()) == 0
}

// sealAbandoned is step 1.
func (s *Service) sealAbandoned(ctx context.Context, m catalog.Marker, r *indexpb.Chain) error {
	nodes, err := s.registry.Nodes(ctx, discovery.ChainWriter)
	if err != nil {
		return reason.New(reason.Code(err), "", "chain-writers: "+err.Error())
	}
	if s.writes(ctx, nodes, r) {
		m.Due.Since = 0
		return later{lookAgain, "the chain's writer is there"}
	}
	now := s.now()
	if m.Due.GetSince() == 0 {
		m.Due.Since = now.UnixMilli()
	}
	if wait := time.UnixMilli(m.Due.GetSince()).Add(s.cfg.SealAfter).Sub(now); wait > 0 {
		return later{wait, "the chain's writer is gone, not for long"}
	}
	nodes = discovery.Preferred(slices.DeleteFunc(nodes, func(n discovery.Node) bool {
		return n.Address == r.GetWriterAddress() && n.Meta["life"] == r.GetWriterLife()
	}))
	if len(nodes) == 0 {
		return later{lookAgain, "there is no chain-writer that could seal"}
	}
	for _, n := range nodes {
		var res *chainwriterpb.SealResponse
		if res, err = s.seal(ctx, n.Address, r.GetChainId()); err == nil {
			s.log.InfoContext(ctx, "sealed a chain whose writer is gone", "chain", r.GetChainId(), "writer", r.GetWriterAddress(), "cut", res.GetCut())
			m.Due.Since = 0
			return later{lookAgain, "the chain was sealed"}
		}
	}
	return fmt.Errorf("seal: %w", err)
}

func (s *Service) seal(ctx context.Context, address, id string) (*chainwriterpb.SealResponse, error) {
	conn, err := s.conns.Address(address)
	if err != nil {
		return nil, err
	}
	return chainwriterpb.NewChainWriterServiceClient(conn).Seal(ctx, &chainwriterpb.SealRequest{ChainId: id})
}

// probePatience is how long a chain-writer may take to say that it lives.
const probePatience = 2 * time.Second

// writes reports whether the life that writes a chain is there: it is registered,
// or it answers though discovery has lost it.
func (s *Service) writes(ctx context.Context, nodes []discovery.Node, r *indexpb.Chain) bool {
	for _, n := range nodes {
		if life, ok := n.Meta["life"]; n.Address == r.GetWriterAddress() && (!ok || life == r.GetWriterLife()) {
			return true
		}
	}
	conn, err := s.conns.Address(r.GetWriterAddress())
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	res, err := chainwriterpb.NewChainWriterServiceClient(conn).Probe(ctx, &chainwriterpb.ProbeRequest{})
	return err == nil && res.GetWriterLife() == r.GetWriterLife()
}

// unpin is step 2: nobody repairs a stream that is deleted. The record is changed
// as it was read, so that every pin that goes has its marker; one that was changed
// since waits for the next look.
func (s *Service) unpin(ctx context.Context, id stream.ChainID) (*indexpb.Chain, error) {
	r, version, err := s.index.GetChain(ctx, id.String())
	if err != nil {
		return nil, err
	}
	deleted := map[string]bool{}
	for _, p := range r.GetPins() {
		if _, known := deleted[p.GetStreamId()]; known {
			continue
		}
		of, err := stream.ParseID(p.GetStreamId())
		if err != nil {
			return nil, err
		}
		h, _, err := s.index.ProvenHead(ctx, of)
		if err != nil && !catalog.IsNotFound(err) {
			return nil, err
		}
		deleted[p.GetStreamId()] = err != nil || h.GetState() == deletedState
	}
	kept := slices.DeleteFunc(slices.Clone(r.GetPins()), func(p *indexpb.ChainPin) bool { return deleted[p.GetStreamId()] })
	if len(kept) == len(r.GetPins()) {
		return r, nil
	}
	for _, p := range r.GetPins() {
		if !deleted[p.GetStreamId()] {
			continue
		}
		_, err := s.index.ArmDue(ctx, &indexpb.Due{
			Queue: queueReclaim, At: s.now().Add(s.cfg.ReadGrace).UnixMilli(),
			ChainId: r.GetChainId(), StreamId: p.GetStreamId(), From: p.GetFrom(), Number: p.GetTo(),
		})
		if err != nil {
			return nil, err
		}
	}
	r.Pins = kept
	if _, err = s.index.PutChain(ctx, r, version); catalog.IsConflict(err) {
		return nil, later{s.cfg.Retry, "the chain's record was changed meanwhile"}
	}
	return r, err
}

// retire is steps 3 to 5.
func (s *Service) retire(ctx context.Context, m catalog.Marker, id stream.ChainID, r *indexpb.Chain) error {
	now := s.now()
	if m.Due.GetSince() == 0 {
		m.Due.Since = now.UnixMilli()
	}
	// All but what pins kept was not needed when it was reclaimed. What these kept
	// may not have been deleted.
	if err := s.unneeded(ctx, m); err != nil {
		return err
	}
	if wait := time.UnixMilli(m.Due.GetSince()).Add(s.cfg.LateAfter).Sub(now); wait > 0 {
		return later{wait, "late PUTs may bring slots back"}
	}
	for from := m.Due.GetFrom(); from < r.GetCut(); {
		if s.nearlyOver(ctx) {
			return s.more("more slots than fit in a turn")
		}
		to := min(from+deleteAtOnce, r.GetCut())
		if err := s.reclaimPart(ctx, queueChain, id, nil, from, to); err != nil {
			return err
		}
		from = to
		m.Due.From = from
	}
	lanes := uint64(r.GetLanes())
	if lanes == 0 {
		lanes = chain.MaxLanes
	}
	var above []object
	for slot := r.GetCut() + 1; slot <= r.GetCut()+lanes; slot++ {
		above = append(above, object{key: chain.SlotKey(id, stream.Slot(slot))})
	}
	if err := s.remove(ctx, queueChain, above); err != nil {
		return err
	}
	done, err := s.index.UpdateChain(ctx, id.String(), func(c *indexpb.Chain) (bool, error) {
		if c.GetState() != indexpb.ChainState_CHAIN_STATE_SEALED || !reclaimed(c) {
			return false, nil
		}
		c.State = indexpb.ChainState_CHAIN_STATE_RETIRED
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("retire: %w", err)
	}
	if done.GetState() != indexpb.ChainState_CHAIN_STATE_RETIRED {
		return later{s.cfg.Retry, "an old read of the chain's record"}
	}
	return nil
}
