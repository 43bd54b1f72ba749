package sequencer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/sequencer/v1"
)

// A planned handoff moves a shard from its holder to another life. Steps, with
// what a crash or a lost reply leaves:
//
//  1. offer: the successor says that it would lead the shard, and from now on lets
//     requests for it wait for a while. A crash: they are refused after it.
//  2. quiet: the holder numbers and sends nothing more and waits until all that
//     it sent is decided. A crash: as that of any leader. If that takes long, it
//     recovers the shard itself.
//  3. leave: every stream leaves the holder's memory; what has no number is
//     NOT_COMMITTED and goes to the successor. From here on the holder answers
//     nothing from memory, so that a successor never answers beside it (I4).
//  4. release: CAS of the shard's record to RELEASED under the same epoch. A
//     crash before it: as that of any leader; after it: anyone may take the shard.
//     If the reply is lost, the holder recovers the shard, or finds it taken.
//  5. take: the successor goes the one recovery path (recovery.go). If it does
//     not, the former holder takes the shard back by the same path.

const (
	// handoffsAtOnce is how many shards move away from a node at once.
	handoffsAtOnce = 4
	// offerPatience is how long a successor may think about an offer.
	offerPatience = 2 * time.Second
	// expectFor is for how long requests wait at a successor that said yes.
	expectFor = 5 * time.Second
	// quietPatience is how long what is under way may take to be decided.
	quietPatience = 2 * time.Second
	// takePatience is how long a handoff may take from its second step on.
	takePatience = 10 * time.Second
	// unfitLeases is for how many leases nothing moves to a node that did not take
	// what it was given, and a node declines a shard that did not recover there.
	unfitLeases = 10
	// settledLeases is for how many leases a life must be known, and a shard be
	// led, before the shard moves there for balance alone: nodes that come and go
	// move nothing.
	settledLeases = 2
)

var (
	// errStays means that a shard is not handed over now; nothing has changed.
	errStays = errors.New("the shard stays")
	// errNotQuiet means that a shard recovers here because storage is slow.
	errNotQuiet = errors.New("what is under way is not decided in time")
)

// rebalance hands over, few at a time, the shards that fall to others. It does
// not wait; the next look begins where this one ends.
func (s *Service) rebalance(ctx context.Context, peers map[string]peer, taking *sync.WaitGroup) {
	if !s.others.Load() || !s.rebalancing.CompareAndSwap(false, true) {
		return
	}
	leaving := s.leaving(peers)
	if len(leaving) == 0 {
		s.rebalancing.Store(false)
		return
	}
	taking.Go(func() {
		defer s.rebalancing.Store(false)
		s.handOver(ctx, leaving, peers)
	})
}

// leaving returns the shards that are to be handed over.
func (s *Service) leaving(peers map[string]peer) []*shard {
	var out []*shard
	settled := settledLeases * s.lease.ttl
	for _, sh := range s.shards {
		to := first(peers, sh.number)
		if to.node == s.cfg.NodeID {
			continue
		}
		sh.mu.Lock()
		serves, since := sh.held && sh.serving.Load(), sh.since
		sh.mu.Unlock()
		now := s.now()
		if serves && (s.draining.Load() || !s.unfit(to.node) && now.Sub(since) > settled && now.Sub(to.since) > settled) {
			out = append(out, sh)
		}
	}
	return out
}

// unfit reports whether a node did not take what it was given, not long ago.
func (s *Service) unfit(node string) bool {
	since, ok := s.unfitNodes.Load(node)
	return ok && s.now().Sub(since.(time.Time)) < unfitLeases*s.lease.ttl
}

// handOver hands shards over, each to the peer that ranks first for it. A peer
// that declines, or does not take what it was given, is not asked again in this
// round.
func (s *Service) handOver(ctx context.Context, leaving []*shard, peers map[string]peer) {
	others := maps.Clone(peers)
	delete(others, s.cfg.NodeID)
	for node := range others {
		if s.unfit(node) && len(others) > 1 {
			delete(others, node)
		}
	}
	var mu sync.Mutex // guards others
	var moves sync.WaitGroup
	defer moves.Wait()
	room := make(chan struct{}, handoffsAtOnce)
	for _, sh := range leaving {
		select {
		case room <- struct{}{}:
		case <-ctx.Done():
			return
		}
		mu.Lock()
		to := first(others, sh.number)
		mu.Unlock()
		switch {
		case to.node == "":
			return
		case to.node != first(peers, sh.number).node && !s.draining.Load():
			// For balance alone it moves only where it is to stay.
			<-room
			continue
		}
		moves.Go(func() {
			defer func() { <-room }()
			err := s.handOff(ctx, sh, to)
			s.metrics.handedOff(ctx, err)
			if err != nil && ctx.Err() == nil {
				s.log.InfoContext(ctx, "shard not handed over", "shard", sh.number, "to", to.node, "err", err)
			}
			if err != nil && !errors.Is(err, errNotQuiet) {
				mu.Lock()
				delete(others, to.node)
				mu.Unlock()
			}
		})
	}
}

// handOverAll is for a stop: it hands over what others take, for half of the
// time that a stop has.
func (s *Service) handOverAll(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.StopTimeout/2)
	defer cancel()
	if s.cfg.FormerLivesDead || !s.lease.valid() {
		return // no other life, or nothing may be said
	}
	lives, err := s.lives(ctx)
	if err != nil {
		s.log.WarnContext(ctx, "shards are not handed over: the other lives are not known", "err", err)
		return
	}
	peers := s.placeable(ctx, &lives)
	if _, alone := peers[s.cfg.NodeID]; !alone {
		s.handOver(ctx, s.leaving(peers), peers)
	}
}

// handOff goes the steps of a handoff. errStays: the shard is led here as before.
func (s *Service) handOff(ctx context.Context, sh *shard, to peer) error {
	conn, err := s.conns.Address(to.address)
	if err != nil {
		return fmt.Errorf("%w: %w", errStays, err)
	}
	successor := sequencerpb.NewSequencerServiceClient(conn)
	epoch := sh.currentEpoch()
	offering, cancel := context.WithTimeout(ctx, offerPatience)
	_, err = successor.OfferShard(offering, &sequencerpb.OfferShardRequest{Shard: uint32(sh.number), Epoch: uint64(epoch)})
	cancel()
	if err != nil {
		return fmt.Errorf("%w: offer: %w", errStays, err)
	}
	began := s.now()
	if !sh.suspend() {
		return nil // it recovers, or another has it
	}
	// What is begun is finished, also by a stop, which shortens it.
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), takePatience)
	defer cancel()
	defer context.AfterFunc(s.stopping, func() { time.AfterFunc(time.Until(s.stopsBy())-s.cfg.StopTimeout/4, cancel) })()
	if err := sh.quiet(ctx, quietPatience); err != nil {
		s.startRecovery(sh)
		return err
	}
	if l := sh.presentLink(); l != nil {
		l.leave(sh.number, epoch) // nothing is committed beside what follows
	}
	sh.changing.Lock()
	record, version, err := sh.leave(to.address)
	if err == nil {
		_, err = s.index.PutShard(ctx, record, version)
	}
	sh.changing.Unlock()
	if err != nil {
		// Whatever became of it: the record says who leads the shard.
		s.startRecovery(sh)
		return fmt.Errorf("release: %w", err)
	}
	sh.released()
	sh.ledBy(to.address, record.GetEpoch()+1)
	res, err := successor.TakeShard(ctx, &sequencerpb.TakeShardRequest{Shard: uint32(sh.number), Epoch: uint64(epoch)})
	if err != nil {
		s.unfitNodes.Store(to.node, s.now())
		sh.notTaken(record)
		if s.running.Err() == nil && sh.startTaking() {
			s.work.Go(func() { s.takeOver(s.running, sh) })
		}
		return fmt.Errorf("take: %w", err)
	}
	sh.ledBy(to.address, res.GetEpoch())
	s.metrics.paused(ctx, s.now().Sub(began))
	s.log.DebugContext(ctx, "handed over a shard", "shard", sh.number, "to", to.node, "epoch", res.GetEpoch())
	return nil
}

// quiet waits until nothing is under way that was sent. The caller suspended the
// shard.
func (sh *shard) quiet(ctx context.Context, patience time.Duration) error {
	over := time.NewTimer(patience)
	defer over.Stop()
	for {
		sh.mu.Lock()
		sh.quieting = sh.sentLocked()
		quiet, changed := !sh.quieting, sh.changed
		sh.mu.Unlock()
		if quiet {
			return nil
		}
		select {
		case <-changed:
		case <-over.C:
			return errNotQuiet
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// sentLocked reports whether anything is under way.
func (sh *shard) sentLocked() bool {
	return len(sh.pending) > 0 && sh.pending[0].sent
}

// leave has all streams leave memory, and returns what the shard's record is to
// become.
func (sh *shard) leave(to string) (*indexpb.Shard, int64, error) {
	sh.mu.Lock()
	if sh.sentLocked() || !sh.held {
		sh.mu.Unlock()
		return nil, 0, errors.New("the shard is not quiet")
	}
	next, version := givenUp(sh.record), sh.version
	streams := sh.clearLocked()
	sh.mu.Unlock()
	why := errLedBy(to, next.GetEpoch()+1)
	for _, st := range streams {
		st.leave(why)
	}
	return next, version, nil
}

// givenUp returns the record of a shard that its holder lets go under its epoch.
func givenUp(record *indexpb.Shard) *indexpb.Shard {
	next := proto.CloneOf(record)
	next.State = indexpb.ShardState_SHARD_STATE_RELEASED
	return next
}

// released notes that the shard is not held here any more.
func (sh *shard) released() {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.held, sh.recovering = false, false
	sh.signalLocked()
}

// ledBy notes who leads the shard, for those who ask here.
func (sh *shard) ledBy(address string, epoch uint64) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !sh.held && epoch >= sh.record.GetEpoch() {
		sh.record = &indexpb.Shard{Shard: uint32(sh.number), Epoch: epoch, HolderAddress: address}
	}
}

// notTaken takes back what was said of the next epoch: who reads the record must
// not be told that it is old.
func (sh *shard) notTaken(record *indexpb.Shard) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !sh.held && sh.record.GetEpoch() == record.GetEpoch()+1 && sh.record.GetHolderLife() == "" {
		sh.record = record
	}
}

func (sh *shard) presentLink() *link {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.link
}

// startTaking reports whether the caller is to take the shard: nobody does.
func (sh *shard) startTaking() bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.held || sh.taking {
		return false
	}
	sh.taking, sh.from = true, sh.record.GetEpoch()
	return true
}

// takeOver recovers a shard that another held; startTaking came before.
func (s *Service) takeOver(ctx context.Context, sh *shard) {
	s.recover(ctx, sh)
	sh.setTaking(false)
	s.reportReady()
}

// OfferShard says whether this life would lead a shard.
func (s *Service) OfferShard(ctx context.Context, req *sequencerpb.OfferShardRequest) (*sequencerpb.OfferShardResponse, error) {
	sh, err := s.shardOf(ctx, stream.Shard(req.GetShard()))
	if err != nil {
		return nil, err
	}
	declined := func(why string) error { return reason.New(codes.Unavailable, "", "declined: "+why) }
	switch {
	case s.admitting.Err() != nil:
		return nil, declined("stopping")
	case s.draining.Load():
		return nil, declined("draining")
	case !s.lease.valid():
		return nil, declined("no valid lease")
	}
	sh.mu.Lock()
	gaveUp := sh.gaveUp
	sh.mu.Unlock()
	if !gaveUp.IsZero() && s.now().Sub(gaveUp) < unfitLeases*s.lease.ttl {
		return nil, declined("it did not recover here")
	}
	if _, err := s.links.get(ctx); err != nil {
		return nil, declined("no chain-writer: " + err.Error())
	}
	sh.expect(req.GetEpoch(), s.now().Add(expectFor))
	return &sequencerpb.OfferShardResponse{}, nil
}

// TakeShard takes a shard that its holder released.
func (s *Service) TakeShard(ctx context.Context, req *sequencerpb.TakeShardRequest) (*sequencerpb.TakeShardResponse, error) {
	sh, err := s.shardOf(ctx, stream.Shard(req.GetShard()))
	if err != nil {
		return nil, err
	}
	if s.admitting.Err() != nil {
		return nil, errStopping()
	}
	if sh.startTaking() {
		s.work.Go(func() { s.takeOver(s.running, sh) })
	}
	if err := sh.ready(ctx); err != nil {
		return nil, err
	}
	return &sequencerpb.TakeShardResponse{Epoch: uint64(sh.currentEpoch())}, nil
}
