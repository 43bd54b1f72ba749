package sequencer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// step names the states of the one recovery path, in order. Every takeover
// goes through all of them: of a vacant shard, of a dead life's, and of the own
// one when its chain or the way to it is lost. A crash in any of them leaves a
// shard record that the next takeover starts from.
type step string

const (
	// stepClaim: CAS the shard record to epoch+1, holder = this life,
	// RECOVERING, all bindings kept. A crash after it: the next claims epoch+2.
	stepClaim step = "claim"
	// stepCut: decide where the shard's part of every bound chain ends: a fence
	// through a live writer, else the seal of the chain. Repeating it gives the
	// same cuts.
	stepCut step = "cut"
	// stepAbsorb: absorb every chain up to its cut. Idempotent.
	stepAbsorb step = "absorb"
	// stepSettle: find which pending entries lie below the cut: they are
	// committed. Heads of streams may be touched; nothing else is written.
	stepSettle step = "settle"
	// stepServe: CAS to SERVING with the new binding. Only after it is
	// confirmed is anything sent to the new chain, and acknowledged.
	stepServe step = "serve"
)

// errLost means that another life has the shard.
var errLost = errors.New("another life leads the shard")

// recovery is one run of the path for one shard.
type recovery struct {
	svc   *Service
	shard *shard
	step  step
	next  *link // to the chain to bind

	record   *indexpb.Shard
	version  int64
	claimed  *indexpb.Shard // as this run claimed it, all bindings in it
	oldEpoch stream.Epoch
	// found holds the coordinates of pending entries that are committed; the zero
	// piece if they are settled.
	found map[*entry]piece
	// lost are streams of whose pending entries nobody can tell, and why.
	lost map[*openStream]error
}

// recover takes the shard over and serves, trying again until ctx ends or
// another life has it.
func (s *Service) recover(ctx context.Context, sh *shard) {
	started := s.now()
	r := &recovery{svc: s, shard: sh, step: stepClaim}
	for pause := retryLeast; ; pause = min(2*pause, retryMost) {
		err := r.run(ctx)
		switch {
		case err == nil:
			s.metrics.recovered(ctx, s.now().Sub(started))
			s.log.DebugContext(ctx, "leads shard", "shard", sh.number, "epoch", r.record.GetEpoch(), "chain", r.next.chain.String())
			// Whoever waits for the shard must not wait for discovery, too.
			s.work.Go(func() { s.hint(s.running, r.record) })
			return
		case errors.Is(err, errLost), s.lease.isLost():
			sh.drop(r.record)
			return
		case ctx.Err() != nil:
			sh.drop(nil)
			return
		}
		s.sayWaiting(ctx, r, err)
		if s.gaveUp(ctx, r, s.now().Sub(started)) {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(jittered(pause)):
		}
	}
}

// stuckLeases is for how many leases a recovery may fail before the shard is
// given to others: what keeps it may be this node's alone.
const stuckLeases = 4

// gaveUp gives a shard away that does not recover here, if there is somebody to
// take it. What was sent and not decided is UNKNOWN then. It reports whether this
// life is done with the shard.
func (s *Service) gaveUp(ctx context.Context, r *recovery, took time.Duration) bool {
	if !s.others.Load() || took < stuckLeases*s.lease.ttl && !s.draining.Load() {
		return false
	}
	sh := r.shard
	sh.mu.Lock()
	from, version, held := r.claimed, r.version, sh.held
	if from == nil {
		from, version = sh.record, sh.version
	}
	sh.mu.Unlock()
	if !held {
		// Not even claimed: placement looks at it again.
		sh.drop(nil)
		return true
	}
	// Nothing is answered from memory any more before the record says so (I4).
	sh.empty()
	next := givenUp(from)
	if _, err := s.index.PutShard(ctx, next, version); err != nil {
		sh.reread(ctx, from) // a change before may have lost its reply
		return false         // the next try finds out what became of it
	}
	s.log.WarnContext(ctx, "a shard does not recover here and is given to others", "shard", sh.number, "step", string(r.step))
	sh.mu.Lock()
	sh.gaveUp = s.now()
	sh.mu.Unlock()
	sh.drop(next)
	return true
}

// sayEvery is how often one cause of waiting is logged: hundreds of shards wait
// for the same.
const sayEvery = 10 * time.Second

// sayWaiting logs why a recovery waits, once per step and cause.
func (s *Service) sayWaiting(ctx context.Context, r *recovery, err error) {
	cause := string(r.step) + ": " + status.Code(err).String()
	s.saidMu.Lock()
	last, said := s.said[cause]
	if said && s.now().Sub(last) < sayEvery {
		s.saidMu.Unlock()
		return
	}
	s.said[cause] = s.now()
	s.saidMu.Unlock()
	s.log.WarnContext(ctx, "recovery waits", "shard", r.shard.number, "step", string(r.step), "err", err)
}

// run goes on from the step it is at.
func (r *recovery) run(ctx context.Context) error {
	if r.step == stepClaim {
		// A candidate that reaches no writer must not touch the shard: it could
		// neither fence nor serve.
		l, err := r.svc.links.get(ctx)
		if err != nil {
			return err
		}
		r.next = l
		if err := r.claim(ctx); err != nil {
			return err
		}
		r.step = stepCut
	}
	if r.next.isBroken() {
		l, err := r.svc.links.get(ctx)
		if err != nil {
			return err
		}
		r.next = l
	}
	if r.step == stepCut {
		if err := r.cut(ctx); err != nil {
			return err
		}
		r.step = stepAbsorb
	}
	if r.step == stepAbsorb {
		if err := r.absorb(ctx); err != nil {
			return err
		}
		r.step = stepSettle
	}
	if r.step == stepSettle {
		if err := r.settle(ctx); err != nil {
			return err
		}
		r.step = stepServe
	}
	return r.serve(ctx)
}

// claim: see stepClaim.
func (r *recovery) claim(ctx context.Context) error {
	cur, version, err := r.svc.index.GetShard(ctx, r.shard.number)
	if err != nil && !catalog.IsNotFound(err) {
		return err
	}
	if catalog.IsNotFound(err) {
		cur, version = &indexpb.Shard{Shard: uint32(r.shard.number), Profile: r.svc.profileOf(r.shard.number)}, catalog.Absent
	}
	r.shard.mu.Lock()
	r.oldEpoch = r.shard.epoch
	held := r.shard.held
	r.shard.mu.Unlock()
	own := cur.GetHolderLife() == r.svc.lease.life.String()
	if held && !own && stream.Epoch(cur.GetEpoch()) < r.shard.ownEpoch() {
		return errors.New("the shard's record is an old read")
	}
	if held && !own || !held && !own && !r.svc.mayTake(cur) {
		r.record = cur
		return errLost
	}
	cur.Epoch++
	cur.State = indexpb.ShardState_SHARD_STATE_RECOVERING
	cur.HolderLife, cur.HolderAddress = r.svc.lease.life.String(), r.svc.cfg.Address
	version, err = r.svc.index.PutShard(ctx, cur, version)
	if err != nil {
		// Lost to another, or a stale read: the next run reads again.
		return err
	}
	// What others see of it is not what the next steps change.
	r.record, r.version, r.claimed = cur, version, proto.CloneOf(cur)
	r.shard.mu.Lock()
	r.shard.held, r.shard.recovering = true, true
	r.shard.record, r.shard.version = r.claimed, version
	r.shard.mu.Unlock()
	return nil
}

// cut: see stepCut.
func (r *recovery) cut(ctx context.Context) error {
	for _, b := range r.record.GetBindings() {
		if b.GetCutKnown() {
			continue
		}
		cut, err := r.svc.chains.cut(ctx, r.next.writer, b.GetChainId(), r.shard.number, r.record.GetEpoch())
		if err != nil {
			return fmt.Errorf("cut chain %s: %w", b.GetChainId(), err)
		}
		b.Cut, b.CutKnown = uint64(cut), true
	}
	return nil
}

// absorb: see stepAbsorb. Chains in which the shard has no entry are unbound.
func (r *recovery) absorb(ctx context.Context) error {
	var kept []*indexpb.Binding // the next try begins with all of them
	for _, b := range r.record.GetBindings() {
		if b.GetCut() > 0 {
			if err := r.svc.chains.absorb(ctx, r.next.writer, b.GetChainId(), stream.Slot(b.GetCut())); err != nil {
				return fmt.Errorf("absorb chain %s: %w", b.GetChainId(), err)
			}
		}
		// Of a chain that is bound twice this is about both.
		holds, err := r.svc.chains.holds(ctx, b.GetChainId(), r.shard.number, stream.Slot(b.GetCut()))
		if err != nil {
			return err
		}
		if holds {
			kept = append(kept, b)
		}
	}
	r.record.Bindings = kept
	return nil
}

// settle: see stepSettle. What is pending may even be settled by now, and its
// directories gone: how far the chain is settled is read before the heads, and the
// heads tell of what lies below. A stream of which nobody can tell holds up no other.
func (r *recovery) settle(ctx context.Context) error {
	r.found, r.lost = map[*entry]piece{}, map[*openStream]error{}
	l := r.shard.presentLink()
	if l != nil {
		// A link that is not broken must not commit beside what follows.
		l.leave(r.shard.number, r.oldEpoch)
	}
	r.shard.mu.Lock()
	sent := map[*openStream][]*entry{}
	for _, e := range r.shard.pending {
		if e.sent {
			sent[e.st] = append(sent[e.st], e)
		}
	}
	committedTo := r.shard.committedTo
	r.shard.mu.Unlock()
	if len(sent) == 0 || l == nil {
		return nil
	}
	chain := l.chain.String()
	cut := cutOf(r.record.GetBindings(), chain)
	if cut == 0 {
		return nil // the chain holds nothing of the shard
	}
	record, err := r.svc.chains.record(ctx, chain, cut)
	if err != nil {
		return err
	}
	settled := min(stream.Slot(record.GetSettledTo()), cut)
	// What is pending lies in the slot of what was committed last, or above.
	if settled >= max(committedTo, 1) {
		if err := r.settledPending(ctx, sent); err != nil {
			return err
		}
	}
	byNo := map[stream.EntryNo]*entry{}
	var streams []*openStream
	for st, entries := range sent {
		if r.lost[st] != nil {
			continue
		}
		streams = append(streams, st)
		for _, e := range entries {
			byNo[e.no] = e
		}
	}
	look := pendingLookup{recovery: r, chain: l.chain, from: settled, to: cut, take: func(le *chainwriterpb.LocatedEntry) {
		e := byNo[stream.EntryNo(le.GetEntryNo())]
		// The same entry number under the same epoch holds the same bytes, so
		// this is the own entry; another epoch's may be someone else's.
		if stream.Epoch(le.GetEpoch()) == r.oldEpoch && e != nil {
			r.found[e] = r.shard.pieceAt(l.chain, le.GetAt())
		}
	}}
	for page := range slices.Chunk(streams, pageStreams) {
		if err := look.all(ctx, page); err != nil {
			return err
		}
	}
	return nil
}

const (
	// pageStreams is how many streams one lookup is about at most.
	pageStreams = 1000
	// touchesAtOnce is how many heads are touched in parallel.
	touchesAtOnce = 16
)

// cutOf returns where the shard's part of a chain ends; the chain may be bound twice.
func cutOf(bindings []*indexpb.Binding, chain string) (cut stream.Slot) {
	for _, b := range bindings {
		if b.GetChainId() == chain {
			cut = max(cut, stream.Slot(b.GetCut()))
		}
	}
	return cut
}

// settledPending finds the pending entries that are folded into the heads of their
// streams, which is proven by touching the heads under the new epoch.
func (r *recovery) settledPending(ctx context.Context, sent map[*openStream][]*entry) error {
	var mu sync.Mutex // guards found and lost
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(touchesAtOnce)
	for st, entries := range sent {
		group.Go(func() error {
			h, err := r.svc.index.TouchHead(gctx, st.id, r.record.GetEpoch())
			gone := catalog.IsNotFound(err)
			if err != nil && !gone {
				return fmt.Errorf("touch the head of stream %s: %w", st.id, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if h.GetQuarantine() != "" && h.GetState() != indexpb.HeadState_HEAD_STATE_DELETED {
				// What the settler did not fold it passed over.
				r.lost[st] = errQuarantined(st.id, h.GetPins())
				return nil
			}
			for _, e := range entries {
				// A stream that is gone was deleted, by the last of its entries.
				if gone || h.GetFoldedEpoch() == uint64(r.oldEpoch) && uint64(e.no) <= h.GetFoldedEntry() {
					r.found[e] = piece{}
				}
			}
			return nil
		})
	}
	err := group.Wait()
	if catalog.IsRuleBroken(err) {
		r.step = stepClaim // a later leader touched it; the shard's record tells
	}
	return err
}

// pendingLookup finds pending entries in the part of a chain that is not settled.
type pendingLookup struct {
	*recovery

	chain    stream.ChainID
	from, to stream.Slot
	take     func(*chainwriterpb.LocatedEntry)
}

func (p *pendingLookup) look(ctx context.Context, ids ...stream.ID) ([]*chainwriterpb.LocatedEntry, error) {
	keys := make([][]byte, len(ids))
	for i := range ids {
		keys[i] = ids[i][:]
	}
	chains, chain := p.svc.chains, p.chain.String()
	found, err := chains.lookup(ctx, p.next.writer, chain, p.shard.number, keys, p.from, p.to)
	if reason.Is(err, reason.DirectoryVanished) {
		chains.forget(chain) // more may be settled by now, and gone
	}
	return found, err
}

// all looks up streams. Those whose part of a directory is damaged are lost; the
// others are found all the same.
func (p *pendingLookup) all(ctx context.Context, streams []*openStream) error {
	ids := make([]stream.ID, len(streams))
	for i, st := range streams {
		ids[i] = st.id
	}
	located, err := p.look(ctx, ids...)
	if reason.Code(err) != codes.DataLoss {
		for _, le := range located {
			p.take(le)
		}
		return err
	}
	// A stream that does not exist has no block that could be damaged.
	if _, shared := p.look(ctx, stream.NewID()); reason.Code(shared) == codes.DataLoss {
		for _, st := range streams {
			p.lose(ctx, st, shared)
		}
		return nil
	}
	for _, st := range streams {
		located, err := p.look(ctx, st.id)
		if reason.Code(err) == codes.DataLoss {
			p.lose(ctx, st, err)
			continue
		}
		if err != nil {
			return err
		}
		for _, le := range located {
			p.take(le)
		}
	}
	return nil
}

func (p *pendingLookup) lose(ctx context.Context, st *openStream, err error) {
	p.svc.log.ErrorContext(ctx, "nobody can tell what became of a stream's last entries", "stream", st.id.String(), "shard", p.shard.number, "err", err)
	p.lost[st] = reason.New(codes.DataLoss, reason.ChecksumMismatch, "stored metadata of stream "+st.id.String()+" is damaged")
}

// serve: see stepServe.
func (r *recovery) serve(ctx context.Context) error {
	next := indexpb.Shard{
		Shard: r.record.GetShard(), Profile: r.record.GetProfile(), Epoch: r.record.GetEpoch(),
		State: indexpb.ShardState_SHARD_STATE_SERVING, HolderLife: r.record.GetHolderLife(), HolderAddress: r.record.GetHolderAddress(),
	}
	chain := r.next.chain.String()
	next.Bindings = bind(r.record.GetBindings(), chain, r.record.GetEpoch(), lastChain(r.claimed) == chain)
	evicted := cutOf(r.record.GetBindings(), chain)
	version, err := r.svc.index.PutShard(ctx, &next, r.version)
	if err != nil {
		if !catalog.IsConflict(err) && !catalog.IsRuleBroken(err) {
			return err
		}
		cur, v, gerr := r.svc.index.GetShard(ctx, r.shard.number)
		if gerr != nil {
			return gerr
		}
		if cur.GetEpoch() < r.record.GetEpoch() {
			return err // an old read
		}
		if cur.GetEpoch() != r.record.GetEpoch() || cur.GetHolderLife() != r.record.GetHolderLife() {
			r.record = cur
			return errLost
		}
		// The read that failed was stale, or the write landed in a try before: write
		// over what is there. If that was with another link, the shard is bound to its
		// chain, and leaves it as any other.
		r.version = v
		if cur.GetState() == indexpb.ShardState_SHARD_STATE_SERVING && lastChain(cur) != chain {
			r.step = stepClaim
		}
		return err
	}
	r.record, r.version = &next, version
	r.acknowledge()
	r.shard.mu.Lock()
	r.shard.record, r.shard.version, r.shard.epoch = r.record, r.version, stream.Epoch(r.record.GetEpoch())
	r.shard.mu.Unlock()
	if !r.svc.links.attach(r.next, r.shard) {
		// The chain was lost meanwhile: the same path again, under a new epoch.
		r.step = stepClaim
		r.shard.mu.Lock()
		r.shard.link, r.shard.committedTo = r.next, 0
		r.shard.mu.Unlock()
		return errors.New("the chain was lost before it was used")
	}
	r.shard.lead(r.next, evicted)
	if r.next.isBroken() && r.shard.suspend() {
		// It broke between attach and lead, and whoever broke it saw no serving shard.
		r.svc.startRecovery(r.shard)
	}
	return nil
}

// bind returns the bindings of a shard that goes on in a chain under an epoch. A
// binding is a segment of the shard's log: only the last one goes on, if the shard
// stays where it was, since entries of another chain may lie between an earlier one
// of this chain and what comes now.
func bind(old []*indexpb.Binding, chain string, epoch uint64, stays bool) []*indexpb.Binding {
	if last := len(old) - 1; stays && last >= 0 && old[last].GetChainId() == chain {
		old, epoch = old[:last], old[last].GetEpoch()
	}
	return append(slices.Clone(old), &indexpb.Binding{ChainId: chain, Epoch: epoch})
}

// lastChain returns the chain that the shard was bound to last.
func lastChain(r *indexpb.Shard) string {
	if k := len(r.GetBindings()); k > 0 {
		return r.GetBindings()[k-1].GetChainId()
	}
	return ""
}

// acknowledge commits the pending entries that were found below the cut. They
// are the first ones: a chain holds a shard's entries without gaps. Streams of which
// nobody can tell leave memory.
func (r *recovery) acknowledge() {
	sh := r.shard
	sh.mu.Lock()
	pending := slices.DeleteFunc(sh.pending, func(e *entry) bool { return r.lost[e.st] != nil })
	n := 0
	for n < len(pending) {
		if _, ok := r.found[pending[n]]; !ok {
			break
		}
		n++
	}
	sh.pending = append([]*entry(nil), pending[n:]...)
	for st := range r.lost {
		if sh.streams[st.id] == st {
			delete(sh.streams, st.id)
		}
	}
	sh.mu.Unlock()
	for st, why := range r.lost {
		st.leave(why)
	}
	for _, e := range pending[:n] {
		e.st.commit(e, r.found[e])
	}
}

// chainWriters returns the registered chain-writers.
func (s *Service) chainWriters(ctx context.Context) ([]discovery.Node, error) {
	return s.nodes.of(ctx, discovery.ChainWriter)
}

// writerOf returns a client of the chain-writer at an address.
func (s *Service) writerOf(address string) (chainwriterpb.ChainWriterServiceClient, error) {
	conn, err := s.conns.Address(address)
	if err != nil {
		return nil, err
	}
	return chainwriterpb.NewChainWriterServiceClient(conn), nil
}
