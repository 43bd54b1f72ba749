package sequencer

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

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

	// changing is held while the record is changed under an epoch that is being
	// served: a call to the metastore. It is taken before any other lock.
	changing sync.Mutex

	mu         sync.Mutex
	held       bool      // this life is the holder in the metastore, serving or recovering
	recovering bool      // a recovery runs
	taking     bool      // a takeover is under way, or about to begin
	quieting   bool      // a handoff waits until nothing is under way
	since      time.Time // when this life began to lead it
	// A takeover is about to begin while the record's epoch is not above from;
	// another may hand the shard over until expected, while it is not above offered.
	from, offered uint64
	expected      time.Time
	gaveUp        time.Time // when it was given away because it did not recover here
	looked        time.Time // when the record was read for those who ask a stranger
	epoch         stream.Epoch
	record        *indexpb.Shard // as last written by this life, or last seen
	version       int64
	link          *link
	next          stream.EntryNo
	pending       []*entry // numbered and not committed, in order; sent in that order
	streams       map[stream.ID]*openStream
	opening       map[stream.ID]*opening
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
	if sh.quieting && !sh.sentLocked() {
		sh.signalLocked()
	}
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
	if sh.since.IsZero() {
		sh.since = sh.svc.now()
	}
	sh.quieting = false
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
	sh.held, sh.recovering = false, false
	if record != nil {
		sh.record = record
	}
	why := sh.notLeaderLocked()
	streams := sh.clearLocked()
	sh.mu.Unlock()
	for _, st := range streams {
		st.leave(why)
	}
}

// empty has all streams leave; the shard stays held.
func (sh *shard) empty() {
	sh.mu.Lock()
	streams := sh.clearLocked()
	sh.mu.Unlock()
	for _, st := range streams {
		st.leave(errNoLeader(sh.number))
	}
}

// clearLocked forgets all streams and returns them: they are to leave.
func (sh *shard) clearLocked() map[stream.ID]*openStream {
	streams := sh.streams
	sh.serving.Store(false)
	sh.link, sh.since, sh.quieting = nil, time.Time{}, false
	sh.streams, sh.pending = map[stream.ID]*openStream{}, nil
	sh.signalLocked()
	return streams
}

// notLeaderLocked says who leads the shard, as far as known.
func (sh *shard) notLeaderLocked() error {
	address := sh.record.GetHolderAddress()
	if address == "" || address == sh.svc.cfg.Address {
		return errNoLeader(sh.number)
	}
	return errLedBy(address, sh.record.GetEpoch())
}

func errLedBy(address string, epoch uint64) error {
	return reason.New(codes.FailedPrecondition, reason.NotLeader, "another sequencer leads the shard",
		reason.KeyAddress, address, reason.KeyEpoch, reason.Text(epoch))
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
	defer sh.mu.Unlock()
	sh.taking = is
	sh.signalLocked() // those who wait may have to ask elsewhere
}

// signalLocked wakes those who wait for the shard to change.
func (sh *shard) signalLocked() {
	close(sh.changed)
	sh.changed = make(chan struct{})
}

const (
	// strangerPatience is how long a request waits at a life that does not lead
	// its shard and knows nobody who does. Short, since the caller may ask
	// others meanwhile.
	strangerPatience = 500 * time.Millisecond
	// lookApart is how often the record of one shard is read at most for those
	// who ask a life that does not lead it.
	lookApart = 200 * time.Millisecond
)

// ready waits until the shard serves here, as long as ctx if this life is about
// to lead it. If another life leads it: NOT_LEADER; if nobody does: UNAVAILABLE.
func (sh *shard) ready(ctx context.Context) error {
	var over *time.Timer
	for {
		sh.mu.Lock()
		if sh.serving.Load() {
			sh.mu.Unlock()
			return nil
		}
		err, coming, changed := sh.notLeaderLocked(), sh.comingLocked(), sh.changed
		sh.mu.Unlock()
		if sh.look(ctx) {
			continue
		}
		if !coming && reason.Is(err, reason.NotLeader) {
			return err
		}
		if !coming && over == nil {
			over = time.NewTimer(strangerPatience)
			defer over.Stop()
		}
		// What is coming may go elsewhere instead, which only the record tells.
		again := time.NewTimer(strangerPatience)
		var patience <-chan time.Time
		if !coming {
			patience = over.C
		}
		select {
		case <-changed:
		case <-again.C:
		case <-patience:
			again.Stop()
			return err
		case <-ctx.Done():
			again.Stop()
			return err
		}
		again.Stop()
	}
}

// comingLocked reports whether this life is about to serve the shard.
func (sh *shard) comingLocked() bool {
	epoch := sh.record.GetEpoch()
	return sh.held || sh.taking && epoch <= sh.from || epoch <= sh.offered && sh.svc.now().Before(sh.expected)
}

// expect has requests wait for a shard that is about to be handed over by who
// leads it under an epoch.
func (sh *shard) expect(epoch uint64, until time.Time) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.offered, sh.expected = epoch, until
	sh.signalLocked()
	time.AfterFunc(until.Sub(sh.svc.now()), func() {
		sh.mu.Lock()
		defer sh.mu.Unlock()
		sh.signalLocked() // those who wait may have to give up
	})
}

// look reads the record of a shard that is not held here, so that who asks is sent
// the right way; false if that was done just now, or nothing is new.
func (sh *shard) look(ctx context.Context) bool {
	now := sh.svc.now()
	sh.mu.Lock()
	due := !sh.held && now.Sub(sh.looked) >= lookApart
	if due {
		sh.looked = now
	}
	sh.mu.Unlock()
	if !due {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, strangerPatience)
	defer cancel()
	record, _, err := sh.svc.index.GetShard(ctx, sh.number)
	if err != nil {
		return false
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.held || record.GetEpoch() <= sh.record.GetEpoch() {
		return false
	}
	sh.record = record
	return true
}

// present returns the epoch and a copy of the bindings while the shard serves.
func (sh *shard) present() (stream.Epoch, []*indexpb.Binding, *link, stream.Slot, bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.epoch, slices.Clone(sh.record.GetBindings()), sh.link, sh.evicted, sh.serving.Load()
}
