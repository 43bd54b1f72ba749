package sequencer

import (
	"context"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// fate is what the writer does with an entry that arrives.
type fate int

const (
	land    fate = iota // it is committed, and the sender hears of it
	hold                // it waits, with what comes after it, until release
	unheard             // it is committed; the sender does not hear of it
	lose                // it never arrives
	fence               // it is refused, as if a higher epoch had begun
)

// writer is a chain-writer in memory that does as it is told. Every entry that
// it lands is a slot of its own. The rows of its chains are in the real index.
type writer struct {
	chainwriterpb.UnimplementedChainWriterServiceServer

	index   *catalog.Client
	address string
	life    stream.LifeID

	mu     *sync.Mutex // of all writers of a world: each seals and reads every chain
	credit uint64
	fates  func(*chainwriterpb.Entry) fate // nil: all land
	// damage changes what a lookup found, or fails it; nil: none.
	damage func(*chainwriterpb.LookupEntriesRequest, *chainwriterpb.LookupEntriesResponse) error
	chain  *memChain // the present one
	chains map[string]*memChain
	// peers are the other writers that this one reaches, by address; of those that
	// are nil it knows that it does not.
	peers map[string]*writer
	// unfenced are the shards whose fences fail.
	unfenced map[uint32]bool
	// arrived are the entries that came, whatever became of them, and steps the
	// calls of recoveries and openings.
	arrived []*chainwriterpb.Entry
	steps   []string
}

// memChain is one chain and what is under way to it.
type memChain struct {
	id      stream.ChainID
	nth     int // of all that were made
	slots   []*chainwriterpb.Entry
	waiting []arrival // held, in order
	shards  map[uint32]*lane
	sealed  bool
	// absorbed is how far directories reach.
	absorbed uint64
	// gone is how far directories, and slots, are deleted again.
	gone  uint64
	calls map[*call]struct{}
}

// lane is what a chain knows of a shard.
type lane struct {
	epoch, next, cut uint64
	fenced           bool
}

type arrival struct {
	entry *chainwriterpb.Entry
	from  *call
}

// call is one WriteEntries.
type call struct {
	answers chan *chainwriterpb.WriteEntriesResponse
	end     context.CancelCauseFunc
}

func newWriter(index *catalog.Client, address string) *writer {
	return &writer{index: index, address: address, life: stream.NewLifeID(), mu: &sync.Mutex{}, credit: 64 << 20, chains: map[string]*memChain{}}
}

// beside returns another writer over the same chains. Each reaches the other.
func (w *writer) beside(address string) *writer {
	o := newWriter(w.index, address)
	o.mu, o.chains = w.mu, w.chains
	w.reaches(address, o)
	o.reaches(w.address, w)
	return o
}

// reaches says what the writer finds at an address; nil: it reaches nobody there.
func (w *writer) reaches(address string, o *writer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.peers == nil {
		w.peers = map[string]*writer{}
	}
	w.peers[address] = o
}

// OpenChain implements chainwriterpb.ChainWriterServiceServer.
func (w *writer) OpenChain(ctx context.Context, _ *chainwriterpb.OpenChainRequest) (*chainwriterpb.OpenChainResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.chain == nil || w.chain.sealed {
		c := &memChain{id: stream.NewChainID(), shards: map[uint32]*lane{}, calls: map[*call]struct{}{}}
		if _, err := w.index.PutChain(ctx, &indexpb.Chain{
			ChainId: c.id.String(), Profile: novapb.StorageProfile_STORAGE_PROFILE_STANDARD, WriterLife: w.life.String(),
			WriterAddress: w.address, State: indexpb.ChainState_CHAIN_STATE_OPEN,
		}, catalog.Absent); err != nil {
			return nil, err
		}
		c.nth = len(w.chains)
		w.chain, w.chains[c.id.String()] = c, c
	}
	return &chainwriterpb.OpenChainResponse{ChainId: w.chain.id.String(), WriterLife: w.life.String()}, nil
}

// WriteEntries implements chainwriterpb.ChainWriterServiceServer.
func (w *writer) WriteEntries(srv chainwriterpb.ChainWriterService_WriteEntriesServer) error {
	first, err := srv.Recv()
	if err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(srv.Context())
	defer end(nil)
	c := &call{answers: make(chan *chainwriterpb.WriteEntriesResponse, 1<<16), end: end}
	w.mu.Lock()
	chain := w.chains[first.GetOpen().GetChainId()]
	if chain == nil || chain.sealed {
		w.mu.Unlock()
		return errChainEnded()
	}
	chain.calls[c] = struct{}{}
	c.answers <- &chainwriterpb.WriteEntriesResponse{CreditBytes: w.credit}
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(chain.calls, c)
	}()
	go func() {
		for {
			msg, err := srv.Recv()
			if err != nil {
				end(err)
				return
			}
			w.arrive(chain, c, msg.GetEntry())
		}
	}()
	for {
		select {
		case m := <-c.answers:
			if err := srv.Send(m); err != nil {
				return err
			}
			if m.GetChainSealed() {
				return nil
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (w *writer) arrive(c *memChain, from *call, e *chainwriterpb.Entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := c.calls[from]; !ok || c.sealed {
		return // the call was broken before
	}
	does := land
	if w.fates != nil {
		does = w.fates(e)
	}
	w.arrived = append(w.arrived, e)
	if does == lose {
		return
	}
	l := c.lane(e.GetShard())
	if e.GetEpoch() > l.epoch {
		*l = lane{epoch: e.GetEpoch()}
	}
	why := reason.EntryGap
	switch {
	case e.GetEpoch() < l.epoch, does == fence:
		why = reason.EpochFenced
	case e.GetEntryNo() == l.next:
		why = ""
	}
	if why != "" {
		from.answers <- &chainwriterpb.WriteEntriesResponse{Refusals: []*chainwriterpb.Refusal{
			{Shard: e.GetShard(), Epoch: e.GetEpoch(), EntryNo: e.GetEntryNo(), Reason: string(why)},
		}}
		return
	}
	l.next++
	if does == hold || len(c.waiting) > 0 {
		c.waiting = append(c.waiting, arrival{e, from})
		return
	}
	c.land([]arrival{{e, from}}, does == land)
}

func (c *memChain) lane(shard uint32) *lane {
	if c.shards[shard] == nil {
		c.shards[shard] = &lane{}
	}
	return c.shards[shard]
}

// land commits entries; tell: their senders hear of it.
func (c *memChain) land(entries []arrival, tell bool) {
	for _, a := range entries {
		c.slots = append(c.slots, a.entry)
		if _, connected := c.calls[a.from]; connected && tell {
			a.from.answers <- &chainwriterpb.WriteEntriesResponse{Commits: []*chainwriterpb.Commit{{
				Shard: a.entry.GetShard(), Epoch: a.entry.GetEpoch(), EntryNo: a.entry.GetEntryNo(), At: c.at(len(c.slots) - 1),
			}}}
		}
	}
}

func (c *memChain) at(slot int) *chainwriterpb.Coordinates {
	return &chainwriterpb.Coordinates{
		ChainId: c.id[:], Slot: uint64(slot), Offset: 100, Length: uint32(len(c.slots[slot].GetBody()) + bundle.EntryOverhead),
	}
}

func (c *memChain) endCalls(why error) {
	for x := range c.calls {
		delete(c.calls, x)
		x.end(why)
	}
}

// Probe implements chainwriterpb.ChainWriterServiceServer.
func (w *writer) Probe(ctx context.Context, req *chainwriterpb.ProbeRequest) (*chainwriterpb.ProbeResponse, error) {
	if a := req.GetAddress(); a != "" && a != w.address {
		other, known := w.peer(a)
		switch {
		case !known:
			return nil, reason.New(codes.FailedPrecondition, "", "it reaches no others")
		case other == nil:
			return &chainwriterpb.ProbeResponse{}, nil
		}
		return other.Probe(ctx, &chainwriterpb.ProbeRequest{})
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	if w.chain != nil {
		n = len(w.chain.calls)
	}
	return &chainwriterpb.ProbeResponse{Reached: true, WriterLife: w.life.String(), Senders: uint32(n)}, nil
}

func (w *writer) peer(address string) (*writer, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	other, known := w.peers[address]
	return other, known
}

// Fence implements chainwriterpb.ChainWriterServiceServer.
func (w *writer) Fence(ctx context.Context, req *chainwriterpb.FenceRequest) (*chainwriterpb.FenceResponse, error) {
	if a := req.GetWriterAddress(); a != "" && a != w.address {
		other, _ := w.peer(a)
		if other == nil {
			return nil, reason.New(codes.Unavailable, "", "it is not reached")
		}
		return other.Fence(ctx, &chainwriterpb.FenceRequest{ChainId: req.GetChainId(), Shard: req.GetShard(), Epoch: req.GetEpoch()})
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.chains[req.GetChainId()]
	if c == nil || c.sealed {
		return nil, errChainEnded()
	}
	if w.unfenced[req.GetShard()] {
		return nil, reason.New(codes.Unavailable, "", "no fence now")
	}
	l := c.lane(req.GetShard())
	switch {
	case l.fenced && l.epoch == req.GetEpoch():
		return &chainwriterpb.FenceResponse{Cut: l.cut}, nil
	case req.GetEpoch() <= l.epoch:
		return nil, reason.New(codes.FailedPrecondition, reason.EpochFenced, "a higher epoch began")
	}
	// What was taken before the fence is before it in the chain.
	c.land(c.waiting, true)
	c.waiting = nil
	c.slots = append(c.slots, &chainwriterpb.Entry{Kind: chainwriterpb.EntryKind_ENTRY_KIND_FENCE, Shard: req.GetShard(), Epoch: req.GetEpoch()})
	*l = lane{epoch: req.GetEpoch(), fenced: true, cut: uint64(len(c.slots))}
	return &chainwriterpb.FenceResponse{Cut: l.cut}, nil
}

// Seal implements chainwriterpb.ChainWriterServiceServer. What is held is cut off.
func (w *writer) Seal(ctx context.Context, req *chainwriterpb.SealRequest) (*chainwriterpb.SealResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.steps = append(w.steps, "seal")
	c := w.chains[req.GetChainId()]
	c.sealed, c.waiting = true, nil
	for x := range c.calls {
		delete(c.calls, x)
		x.answers <- &chainwriterpb.WriteEntriesResponse{ChainSealed: true}
	}
	cut := uint64(len(c.slots))
	_, err := w.index.UpdateChain(ctx, req.GetChainId(), func(r *indexpb.Chain) (bool, error) {
		r.State, r.Cut = indexpb.ChainState_CHAIN_STATE_SEALED, cut
		return true, nil
	})
	return &chainwriterpb.SealResponse{Cut: cut}, err
}

// end seals the present chain, as another would.
func (w *writer) end(ctx context.Context) error {
	w.mu.Lock()
	id := w.chain.id.String()
	w.mu.Unlock()
	_, err := w.Seal(ctx, &chainwriterpb.SealRequest{ChainId: id})
	return err
}

// AbsorbTo implements chainwriterpb.ChainWriterServiceServer.
func (w *writer) AbsorbTo(ctx context.Context, req *chainwriterpb.AbsorbToRequest) (*chainwriterpb.AbsorbToResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.steps = append(w.steps, "absorb")
	c := w.chains[req.GetChainId()]
	if req.GetTo() > uint64(len(c.slots)) {
		return nil, reason.New(codes.Unavailable, reason.StorageDown, "not committed yet")
	}
	progress := map[uint32]*indexpb.ShardProgress{}
	for _, e := range c.slots[:req.GetTo()] {
		progress[e.GetShard()] = &indexpb.ShardProgress{Shard: e.GetShard(), Epoch: e.GetEpoch(), NextEntry: e.GetEntryNo() + 1}
	}
	r, err := w.index.UpdateChain(ctx, req.GetChainId(), func(r *indexpb.Chain) (bool, error) {
		if r.GetAbsorbedTo() >= req.GetTo() {
			return false, nil
		}
		c.absorbed = req.GetTo()
		r.AbsorbingTo, r.AbsorbedTo, r.Progress = req.GetTo(), req.GetTo(), nil
		for _, p := range progress {
			r.Progress = append(r.Progress, p)
		}
		return true, nil
	})
	return &chainwriterpb.AbsorbToResponse{AbsorbedTo: r.GetAbsorbedTo()}, err
}

// LookupEntries implements chainwriterpb.ChainWriterServiceServer.
func (w *writer) LookupEntries(req *chainwriterpb.LookupEntriesRequest, srv chainwriterpb.ChainWriterService_LookupEntriesServer) error {
	out := &chainwriterpb.LookupEntriesResponse{}
	w.mu.Lock()
	w.steps = append(w.steps, "look up")
	c := w.chains[req.GetChainId()]
	if req.GetTo() > c.absorbed || req.GetFrom() < c.gone {
		w.mu.Unlock()
		return reason.New(codes.Unavailable, reason.DirectoryVanished, "a directory is not there")
	}
	for slot := int(req.GetFrom()); slot < int(req.GetTo()); slot++ {
		e := c.slots[slot]
		if e.GetShard() != req.GetShard() || !slices.ContainsFunc(req.GetStreamIds(), func(id []byte) bool { return slices.Equal(id, e.GetStreamId()) }) {
			continue
		}
		header := e.GetBody()
		if e.GetKind() == chainwriterpb.EntryKind_ENTRY_KIND_CHUNK {
			_, n, err := chunk.ParseHeader(header)
			if err != nil {
				w.mu.Unlock()
				return err
			}
			header = header[:n]
		}
		out.Entries = append(out.Entries, &chainwriterpb.LocatedEntry{
			Kind: e.GetKind(), Shard: e.GetShard(), Epoch: e.GetEpoch(), EntryNo: e.GetEntryNo(), StreamId: e.GetStreamId(),
			Timestamp: e.GetTimestamp(), At: c.at(slot), Header: header,
		})
	}
	damage := w.damage
	w.mu.Unlock()
	if damage != nil {
		if err := damage(req, out); err != nil {
			return err
		}
	}
	return srv.Send(out)
}

func errChainEnded() error {
	return reason.New(codes.FailedPrecondition, reason.ChainSealed, "the chain has ended")
}
