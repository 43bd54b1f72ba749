package sequencer

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// shard is one shard as this life sees it. While nobody here leads it, it only
// remembers who does.
type shard struct {
	number stream.Shard
	svc    *Service

	// serving is true while entries may be numbered and sent.
	serving atomic.Bool

	mu         sync.Mutex
	held       bool // this life is the holder in the metastore, serving or recovering
	recovering bool // a recovery runs
	taking     bool // placement recovers it
	epoch      stream.Epoch
	record     *indexpb.Shard // as last written by this life, or last seen
	version    int64
	link       *link
	next       stream.EntryNo
	pending    []*entry // numbered and not committed, in order; sent in that order
	streams    map[stream.ID]*openStream
	opening    map[stream.ID]*opening
	// committedTo is one more than the newest slot of the present chain with a
	// committed entry of the shard.
	committedTo stream.Slot
	evicted     stream.Slot // slots below it of the present chain may hold entries of streams that left memory
	changed     chan struct{}
}

func newShard(s *Service, n stream.Shard) *shard {
	return &shard{number: n, svc: s, streams: map[stream.ID]*openStream{}, opening: map[stream.ID]*opening{}, changed: make(chan struct{})}
}

// submit gives an entry its place in the shard's order and sends it. While the
// shard is recovering, it waits in that order.
func (sh *shard) submit(e *entry) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.streams[e.st.id] != e.st {
		// The stream left this leader since the entry was put in line, and leave
		// answered for it: no later epoch may send it.
		return
	}
	sh.pending = append(sh.pending, e)
	if sh.serving.Load() {
		sh.sendLocked(e)
	}
}

func (sh *shard) sendLocked(e *entry) {
	e.no = sh.next
	e.sent = true
	sh.next++
	sh.link.send(sh, e)
}

// committed takes the commit of the shard's oldest entry.
func (sh *shard) committed(l *link, c *chainwriterpb.Commit) {
	sh.mu.Lock()
	if sh.link != l || uint64(sh.epoch) != c.GetEpoch() || len(sh.pending) == 0 || uint64(sh.pending[0].no) != c.GetEntryNo() {
		// Of an epoch that is over, or repeated: recovery decides those.
		sh.mu.Unlock()
		return
	}
	e := sh.pending[0]
	sh.pending[0] = nil
	sh.pending = sh.pending[1:]
	sh.committedTo = max(sh.committedTo, stream.Slot(c.GetAt().GetSlot())+1)
	sh.mu.Unlock()
	e.st.commit(e, sh.pieceAt(l.chain, c.GetAt()))
}

func (sh *shard) pieceAt(chain stream.ChainID, at *chainwriterpb.Coordinates) piece {
	return piece{slot: stream.Slot(at.GetSlot()), offset: at.GetOffset(), length: at.GetLength(), chain: sh.svc.chainPointer(chain)}
}

// lead makes the shard serve under its epoch over the link; what is pending is
// sent again in its order, under new entry numbers. Slots of the chain below
// evicted hold entries of the shard's earlier epochs.
func (sh *shard) lead(l *link, evicted stream.Slot) {
	sh.mu.Lock()
	sh.link, sh.next, sh.evicted, sh.committedTo = l, 0, evicted, evicted
	for _, e := range sh.pending {
		sh.sendLocked(e)
	}
	sh.serving.Store(true)
	sh.recovering = false
	sh.signalLocked()
	streams := make([]*openStream, 0, len(sh.streams))
	for _, st := range sh.streams {
		streams = append(streams, st)
	}
	sh.mu.Unlock()
	for _, st := range streams {
		st.mu.Lock()
		st.kickLocked()
		st.mu.Unlock()
	}
}

// suspend stops numbering and sending; the caller recovers. False: somebody
// else does already, or the shard is not held.
func (sh *shard) suspend() bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.recovering || !sh.held {
		return false
	}
	sh.recovering = true
	sh.serving.Store(false)
	return true
}

// drop ends everything the shard does here: another life leads it, or this
// life is over. What was sent and not committed is UNKNOWN.
func (sh *shard) drop(record *indexpb.Shard) {
	sh.mu.Lock()
	sh.serving.Store(false)
	sh.held, sh.recovering, sh.link = false, false, nil
	if record != nil {
		sh.record = record
	}
	why := sh.notLeaderLocked()
	streams := sh.streams
	sh.streams, sh.pending = map[stream.ID]*openStream{}, nil
	sh.signalLocked()
	sh.mu.Unlock()
	for _, st := range streams {
		st.leave(why)
	}
}

// notLeaderLocked says who leads the shard, as far as known.
func (sh *shard) notLeaderLocked() error {
	address := sh.record.GetHolderAddress()
	if address == "" || address == sh.svc.cfg.Address {
		return errNoLeader(sh.number)
	}
	return reason.New(codes.FailedPrecondition, reason.NotLeader, "another sequencer leads the shard",
		reason.KeyAddress, address, reason.KeyEpoch, reason.Text(sh.record.GetEpoch()))
}

func errNoLeader(n stream.Shard) error {
	return reason.New(codes.Unavailable, reason.NoLeader, "shard "+reason.Text(n)+" has no leader yet")
}

// ownEpoch is the highest epoch that this life wrote into the shard's record.
func (sh *shard) ownEpoch() stream.Epoch {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return max(sh.epoch, stream.Epoch(sh.record.GetEpoch()))
}

func (sh *shard) setTaking(is bool) {
	sh.mu.Lock()
	sh.taking = is
	sh.mu.Unlock()
}

// signalLocked wakes those who wait for the shard to change.
func (sh *shard) signalLocked() {
	close(sh.changed)
	sh.changed = make(chan struct{})
}

// ready waits until the shard serves here. If another life leads it:
// NOT_LEADER; if nobody does and ctx ends first: UNAVAILABLE.
func (sh *shard) ready(ctx context.Context) error {
	for {
		sh.mu.Lock()
		if sh.serving.Load() {
			sh.mu.Unlock()
			return nil
		}
		err, held, changed := sh.notLeaderLocked(), sh.held, sh.changed
		sh.mu.Unlock()
		if !held && reason.Is(err, reason.NotLeader) {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return err
		}
	}
}

// present returns the epoch and a copy of the bindings while the shard serves.
func (sh *shard) present() (stream.Epoch, []*indexpb.Binding, *link, stream.Slot, bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.epoch, slices.Clone(sh.record.GetBindings()), sh.link, sh.evicted, sh.serving.Load()
}
