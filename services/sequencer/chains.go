package sequencer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// chains asks chain-writers to cut, absorb and look up chains. Many shards
// recover from the same chain at once: what was decided for ever is remembered,
// as long as a shard here is bound to the chain, and equal questions are asked
// once.
type chains struct {
	svc   *Service
	calls singleflight.Group

	mu       sync.Mutex
	sealed   map[string]stream.Slot    // cut of sealed chains
	absorbed map[string]stream.Slot    // known absorbed_to
	wanted   map[string]stream.Slot    // the highest slot that absorb was asked for
	records  map[string]*indexpb.Chain // newest seen
	failures map[string]failures       // of the chain's writer, in a row
}

func newChains(s *Service) *chains {
	return &chains{
		svc: s, sealed: map[string]stream.Slot{}, absorbed: map[string]stream.Slot{}, wanted: map[string]stream.Slot{},
		records: map[string]*indexpb.Chain{}, failures: map[string]failures{},
	}
}

// share makes a call once for all who want it at the same time. It lasts as long
// as the service runs, not as long as the first caller; each waits for it as long
// as it wants.
func (c *chains) share(ctx context.Context, key string, call func(context.Context) (any, error)) (any, error) {
	running := ctx
	if c.svc != nil {
		running = c.svc.running
	}
	select {
	case res := <-c.calls.DoChan(key, func() (any, error) { return call(running) }):
		return res.Val, res.Err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// failures are counted by tries, not by the shards that try at once.
type failures struct {
	count int
	last  time.Time
}

const (
	failureApart  = 500 * time.Millisecond
	fencePatience = 10 * time.Second
	// reachPatience is how long a chain-writer may take to say that it lives, and
	// opinionPatience one that asks another on this life's behalf.
	reachPatience   = 2 * time.Second
	opinionPatience = 4 * time.Second
)

// writerFailures is how often the registered writer of a chain may fail to
// answer before others are asked whether they reach it.
const writerFailures = 3

// cut decides where the shard's part of a chain ends: by a fence if its writer
// lives, else by sealing the chain through any writer.
func (c *chains) cut(ctx context.Context, via chainwriterpb.ChainWriterServiceClient, chain string, n stream.Shard, epoch uint64) (stream.Slot, error) {
	if cut, ok := c.sealedCut(chain); ok {
		return cut, nil
	}
	record, err := c.record(ctx, chain, 0)
	if err != nil {
		return 0, err
	}
	if record.GetState() != indexpb.ChainState_CHAIN_STATE_OPEN {
		return c.remember(chain, stream.Slot(record.GetCut())), nil
	}
	to, err := c.find(ctx, record)
	if err != nil {
		return 0, fmt.Errorf("writer of chain %s: %w", chain, err)
	}
	if to.writer != nil {
		fencing, cancel := context.WithTimeout(ctx, fencePatience)
		res, err := to.writer.Fence(fencing, &chainwriterpb.FenceRequest{ChainId: chain, Shard: uint32(n), Epoch: epoch, WriterAddress: to.passOn})
		cancel()
		switch {
		case err == nil:
			return stream.Slot(res.GetCut()), nil
		case reason.Is(err, reason.EpochFenced):
			return 0, fmt.Errorf("%w: %w", errLost, err)
		case !reason.Is(err, reason.ChainSealed):
			// It lives, so nobody seals over its head. If it cannot write, it ends its
			// chain itself.
			return 0, err
		}
	}
	v, err := c.share(ctx, "seal/"+chain, func(ctx context.Context) (any, error) {
		c.svc.log.InfoContext(ctx, "seals a chain whose writer is gone or has ended it", "chain", chain, "writer", record.GetWriterAddress())
		res, err := via.Seal(ctx, &chainwriterpb.SealRequest{ChainId: chain})
		if err != nil {
			return stream.Slot(0), err
		}
		return c.remember(chain, stream.Slot(res.GetCut())), nil
	})
	if err != nil {
		return 0, err
	}
	return v.(stream.Slot), nil
}

// absorb sees that a chain is absorbed up to a slot. One call per chain is under
// way; those that come meanwhile share the next one, up to the highest slot.
func (c *chains) absorb(ctx context.Context, w chainwriterpb.ChainWriterServiceClient, chain string, to stream.Slot) error {
	for {
		c.mu.Lock()
		done := c.absorbed[chain] >= to
		c.wanted[chain] = max(c.wanted[chain], to)
		c.mu.Unlock()
		if done {
			return nil
		}
		_, err := c.share(ctx, "absorb/"+chain, func(ctx context.Context) (any, error) { return nil, c.absorbWanted(ctx, w, chain) })
		if err != nil {
			return err
		}
	}
}

func (c *chains) absorbWanted(ctx context.Context, w chainwriterpb.ChainWriterServiceClient, chain string) error {
	c.mu.Lock()
	to := c.wanted[chain]
	done := c.absorbed[chain] >= to // by a call that ended just now
	c.mu.Unlock()
	if done {
		return nil
	}
	res, err := w.AbsorbTo(ctx, &chainwriterpb.AbsorbToRequest{ChainId: chain, To: uint64(to)})
	if err != nil {
		return err
	}
	absorbed := stream.Slot(res.GetAbsorbedTo())
	if absorbed < to {
		return reason.New(codes.Unavailable, "", fmt.Sprintf("chain %s is absorbed to %d, not to %d", chain, absorbed, to))
	}
	c.mu.Lock()
	c.absorbed[chain] = max(c.absorbed[chain], absorbed)
	c.mu.Unlock()
	return nil
}

// holds reports whether the chain has entries of the shard below its cut.
func (c *chains) holds(ctx context.Context, chain string, n stream.Shard, cut stream.Slot) (bool, error) {
	record, err := c.record(ctx, chain, cut)
	if err != nil {
		return false, err
	}
	for _, p := range record.GetProgress() {
		if p.GetShard() == uint32(n) {
			return true, nil
		}
	}
	return false, nil
}

// record returns the chain's record, absorbed at least to a slot. Reads may be
// stale, so an older one is an error that passes.
func (c *chains) record(ctx context.Context, chain string, absorbed stream.Slot) (*indexpb.Chain, error) {
	c.mu.Lock()
	r := c.records[chain]
	c.mu.Unlock()
	// An open chain's record is read anew: it may have been sealed.
	if r != nil && stream.Slot(r.GetAbsorbedTo()) >= absorbed && (absorbed > 0 || r.GetState() != indexpb.ChainState_CHAIN_STATE_OPEN) {
		return r, nil
	}
	r, err := c.read(ctx, chain)
	if err != nil {
		return nil, err
	}
	if stream.Slot(r.GetAbsorbedTo()) < absorbed {
		return nil, reason.New(codes.Unavailable, "", fmt.Sprintf("chain %s: the record read is older than absorbed_to %d", chain, absorbed))
	}
	return r, nil
}

// read reads the chain's record and returns it, or a newer one that is known. It
// is shared: nobody may change it.
func (c *chains) read(ctx context.Context, chain string) (*indexpb.Chain, error) {
	v, err := c.share(ctx, "record/"+chain, func(ctx context.Context) (any, error) {
		r, _, err := c.svc.index.GetChain(ctx, chain)
		return r, err
	})
	if err != nil {
		return nil, err
	}
	r := v.(*indexpb.Chain)
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.records[chain]; known != nil && isOlder(r, known) {
		return known, nil
	}
	c.records[chain] = r
	return r, nil
}

// isOlder reports whether a record was read from before another: nothing of it
// goes back.
func isOlder(r, than *indexpb.Chain) bool {
	return r.GetAbsorbedTo() < than.GetAbsorbedTo() || r.GetSettledTo() < than.GetSettledTo() || r.GetState() < than.GetState()
}

// forget has the chain's record be read anew.
func (c *chains) forget(chain string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.records, chain)
}

// keep forgets all chains but these. Who is about to ask for another asks again.
func (c *chains) keep(bound map[string]bool) {
	other := func(chain string) bool { return !bound[chain] }
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range []map[string]stream.Slot{c.sealed, c.absorbed, c.wanted} {
		maps.DeleteFunc(m, func(chain string, _ stream.Slot) bool { return other(chain) })
	}
	maps.DeleteFunc(c.records, func(chain string, _ *indexpb.Chain) bool { return other(chain) })
	maps.DeleteFunc(c.failures, func(chain string, _ failures) bool { return other(chain) })
}

// lookup returns the located entries of streams in the absorbed part of a chain
// that is not settled. DIRECTORY_VANISHED means that a part of it was settled and
// is gone: the caller forgets the chain's record and starts again from it.
func (c *chains) lookup(ctx context.Context, w chainwriterpb.ChainWriterServiceClient, chain string, n stream.Shard, ids [][]byte, from, to stream.Slot) ([]*chainwriterpb.LocatedEntry, error) {
	if from >= to {
		return nil, nil
	}
	str, err := w.LookupEntries(ctx, &chainwriterpb.LookupEntriesRequest{
		ChainId: chain, StreamIds: ids, From: uint64(from), To: uint64(to), Shard: uint32(n),
	})
	if err != nil {
		return nil, err
	}
	var out []*chainwriterpb.LocatedEntry
	for {
		page, err := str.Recv()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		out = append(out, page.GetEntries()...)
	}
}

func (c *chains) sealedCut(chain string) (stream.Slot, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cut, ok := c.sealed[chain]
	return cut, ok
}

func (c *chains) remember(chain string, cut stream.Slot) stream.Slot {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sealed[chain] = cut
	delete(c.failures, chain)
	return cut
}
