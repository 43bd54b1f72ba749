package sequencer

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// route leads to the life that writes a chain.
type route struct {
	writer chainwriterpb.ChainWriterServiceClient // nil: that life is gone
	passOn string                                 // if not empty, writer is another, which passes calls on to this address
}

// find looks for the life that writes an open chain. It is gone if it is not
// registered and does not answer, since discovery may have lost its state; if another life answers in its place, or if neither this node nor
// a second one reaches it. That only this one does not proves nothing: it may be
// this one that is cut off, and sealing would disturb all who write to the chain.
// An error means that it is not known yet.
func (c *chains) find(ctx context.Context, record *indexpb.Chain) (route, error) {
	nodes, err := c.svc.chainWriters(ctx)
	if err != nil {
		return route{}, err
	}
	var others []discovery.Node
	registered := false
	for _, n := range nodes {
		if n.Address == record.GetWriterAddress() {
			registered = true
		} else {
			others = append(others, n)
		}
	}
	// All shards of the chain ask at once.
	v, err := c.share(ctx, "find/"+record.GetChainId(), func(ctx context.Context) (any, error) {
		w, err := c.svc.writerOf(record.GetWriterAddress())
		if err != nil {
			return route{}, err
		}
		res, err := probe(ctx, w)
		switch {
		case err == nil:
			c.answered(record.GetChainId())
			return routeTo(res, record, w, ""), nil
		case reason.Code(err) == codes.Unimplemented:
			return route{writer: w}, nil // an older version; the fence tells
		case !registered && ctx.Err() == nil:
			return route{}, nil
		}
		if ctx.Err() != nil || c.failed(record.GetChainId()) < writerFailures {
			return route{}, err
		}
		return c.findThrough(ctx, others, record, err)
	})
	if err != nil {
		return route{}, err
	}
	return v.(route), nil
}

// errOpen means that no second node told whether it reaches a writer.
var errOpen = errors.New("no other chain-writer tells whether it is there")

// findThrough asks others, in turn, until one tells. own is why this node does
// not reach the writer; it decides if there is nobody to ask.
func (c *chains) findThrough(ctx context.Context, others []discovery.Node, record *indexpb.Chain, own error) (route, error) {
	alone := true
	for _, n := range byPreference(others, c.svc.cfg.Zone, c.svc.cfg.NodeID) {
		w, err := c.svc.writerOf(n.Address)
		if err != nil {
			continue
		}
		asking, cancel := context.WithTimeout(ctx, opinionPatience)
		res, err := w.Probe(asking, &chainwriterpb.ProbeRequest{Address: record.GetWriterAddress()})
		cancel()
		switch code := reason.Code(err); {
		case err == nil && !res.GetReached():
			c.svc.log.WarnContext(ctx, "neither this node nor another reaches a chain-writer; its chain is sealed",
				"chain", record.GetChainId(), "writer", record.GetWriterAddress(), "asked", n.Address, "err", own)
			return route{}, nil
		case err == nil:
			return routeTo(res, record, w, record.GetWriterAddress()), nil
		case code != codes.FailedPrecondition && code != codes.Unimplemented:
			alone = false // it might have told
		}
	}
	if alone {
		return route{}, nil
	}
	return route{}, fmt.Errorf("%w: %w", errOpen, own)
}

// routeTo judges the life that answered.
func routeTo(res *chainwriterpb.ProbeResponse, record *indexpb.Chain, w chainwriterpb.ChainWriterServiceClient, passOn string) route {
	if res.GetWriterLife() != record.GetWriterLife() {
		return route{}
	}
	return route{writer: w, passOn: passOn}
}

// probe asks a chain-writer whether it lives.
func probe(ctx context.Context, w chainwriterpb.ChainWriterServiceClient) (*chainwriterpb.ProbeResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, reachPatience)
	defer cancel()
	return w.Probe(ctx, &chainwriterpb.ProbeRequest{})
}

func (c *chains) failed(chain string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, now := c.failures[chain], c.svc.now()
	if f.count == 0 || now.Sub(f.last) >= failureApart {
		f = failures{count: f.count + 1, last: now}
		c.failures[chain] = f
	}
	return f.count
}

func (c *chains) answered(chain string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.failures, chain)
}
