package sequencer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
)

// link carries the entries of all shards bound to one chain to its writer, in
// order, and the commits back. It breaks once, for all of them; each shard then
// goes through recovery.
type link struct {
	chain   stream.ChainID
	address string // of its writer
	writer  chainwriterpb.ChainWriterServiceClient
	stream  chainwriterpb.ChainWriterService_WriteEntriesClient
	cancel  context.CancelFunc

	mu     sync.Mutex
	wake   *sync.Cond
	queue  []outgoing
	unsent int64              // bytes sent and not answered
	sent   map[entryKey]int64 // what makes up unsent
	credit int64
	err    error // set once, when it is broken

	delivering sync.Mutex // held while a shard takes a commit
	left       map[stream.Shard]stream.Epoch
}

// entryKey names an entry in a chain.
type entryKey struct {
	shard     uint32
	epoch, no uint64
}

type outgoing struct {
	shard *shard
	msg   *chainwriterpb.WriteEntriesRequest
	size  int64
}

// errMoved ends a link that nothing is bound to any more.
var errMoved = errors.New("all shards moved to another chain")

// linkPatience is how long a chain-writer may take to open a link.
const linkPatience = 5 * time.Second

// openLink opens a link to the chain and waits for the first credit, until
// opening ends. The link itself lasts as long as ctx.
func openLink(ctx, opening context.Context, w chainwriterpb.ChainWriterServiceClient, chain stream.ChainID, life stream.LifeID) (*link, error) {
	ctx, cancel := context.WithCancel(ctx)
	opening, opened := context.WithTimeout(opening, linkPatience)
	defer opened()
	keep := context.AfterFunc(opening, cancel)
	fail := func(err error) (*link, error) {
		cancel()
		return nil, fmt.Errorf("open chain %s for writing: %w", chain, err)
	}
	str, err := w.WriteEntries(ctx)
	if err != nil {
		return fail(err)
	}
	if err := str.Send(&chainwriterpb.WriteEntriesRequest{Message: &chainwriterpb.WriteEntriesRequest_Open{
		Open: &chainwriterpb.WriteEntriesOpen{ChainId: chain.String(), SequencerLife: life.String()},
	}}); err != nil {
		// The reason is in Recv.
		_, err = str.Recv()
		return fail(err)
	}
	first, err := str.Recv()
	if err != nil {
		return fail(err)
	}
	if !keep() {
		return fail(context.Cause(opening))
	}
	l := &link{chain: chain, writer: w, stream: str, cancel: cancel, credit: int64(first.GetCreditBytes()),
		sent: map[entryKey]int64{}, left: map[stream.Shard]stream.Epoch{}}
	l.wake = sync.NewCond(&l.mu)
	return l, nil
}

// send puts an entry in line. The caller holds the shard's lock, so that the
// entries of a shard keep their order.
func (l *link) send(sh *shard, e *entry) {
	id := e.st.id
	msg := &chainwriterpb.WriteEntriesRequest{Message: &chainwriterpb.WriteEntriesRequest_Entry{Entry: &chainwriterpb.Entry{
		Kind: entryKind(e.kind), Shard: uint32(sh.number), Epoch: uint64(sh.epoch), EntryNo: uint64(e.no),
		StreamId: id[:], Timestamp: int64(e.ts), Body: e.body, Spans: e.spans,
	}}}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return // recovery sends it again
	}
	l.queue = append(l.queue, outgoing{shard: sh, msg: msg, size: int64(len(e.body))})
	l.wake.Signal()
}

// run sends and receives until the link breaks; then it returns why. fenced is
// called for a shard that a higher epoch took away: that breaks nothing else.
func (l *link) run(commit func(*chainwriterpb.Commit), fenced func(stream.Shard, stream.Epoch)) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.sendLoop()
	}()
	err := l.receive(commit, fenced)
	l.fail(err)
	<-done
	return l.failure() // what was first
}

func (l *link) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *link) isBroken() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err != nil
}

func (l *link) fail(err error) {
	l.mu.Lock()
	if l.err == nil {
		l.err = err
	}
	l.queue = nil
	l.mu.Unlock()
	l.wake.Broadcast()
	l.cancel()
}

func (l *link) sendLoop() {
	for {
		l.mu.Lock()
		// One entry may always be under way, however small the credit is.
		for l.err == nil && (len(l.queue) == 0 || l.unsent > 0 && l.unsent+l.queue[0].size > l.credit) {
			l.wake.Wait()
		}
		if l.err != nil {
			l.mu.Unlock()
			return
		}
		out := l.queue[0]
		l.queue[0] = outgoing{}
		l.queue = l.queue[1:]
		l.unsent += out.size
		e := out.msg.GetEntry()
		l.sent[entryKey{e.GetShard(), e.GetEpoch(), e.GetEntryNo()}] = out.size
		l.mu.Unlock()
		if err := l.stream.Send(out.msg); err != nil {
			// receive gets the reason and ends the link.
			return
		}
	}
}

func (l *link) receive(commit func(*chainwriterpb.Commit), fenced func(stream.Shard, stream.Epoch)) error {
	for {
		msg, err := l.stream.Recv()
		if err != nil {
			return err
		}
		for _, c := range msg.GetCommits() {
			l.answered(entryKey{c.GetShard(), c.GetEpoch(), c.GetEntryNo()})
			commit(c)
		}
		for _, r := range msg.GetRefusals() {
			l.answered(entryKey{r.GetShard(), r.GetEpoch(), r.GetEntryNo()})
			if r.GetReason() == string(reason.EpochFenced) {
				fenced(stream.Shard(r.GetShard()), stream.Epoch(r.GetEpoch()))
				continue
			}
			return fmt.Errorf("chain %s refused shard %d epoch %d entry %d: %s", l.chain, r.GetShard(), r.GetEpoch(), r.GetEntryNo(), r.GetReason())
		}
		if msg.GetChainSealed() {
			return fmt.Errorf("chain %s is sealed", l.chain)
		}
		if c := msg.GetCreditBytes(); c > 0 {
			l.mu.Lock()
			l.credit = int64(c)
			l.mu.Unlock()
			l.wake.Signal()
		}
	}
}

// answered gives the credit of an entry back that was committed or refused,
// whether or not its shard still waits for it.
func (l *link) answered(key entryKey) {
	l.mu.Lock()
	l.unsent -= l.sent[key]
	delete(l.sent, key)
	l.mu.Unlock()
	l.wake.Signal()
}

// deliver has a shard take a commit, unless it left the link.
func (l *link) deliver(n stream.Shard, epoch stream.Epoch, take func()) {
	l.delivering.Lock()
	defer l.delivering.Unlock()
	if epoch > l.left[n] {
		take()
	}
}

// leave ends the shard's commits up to an epoch: once it has returned, none is
// being taken, nor will be. Recovery, which finds what they say in the chain,
// answers a shard's entries in their order; a link that is not broken must not do
// so beside it.
func (l *link) leave(n stream.Shard, epoch stream.Epoch) {
	l.delivering.Lock()
	defer l.delivering.Unlock()
	l.left[n] = max(l.left[n], epoch)
}

func entryKind(k bundle.Kind) chainwriterpb.EntryKind {
	switch k {
	case bundle.KindChunk:
		return chainwriterpb.EntryKind_ENTRY_KIND_CHUNK
	case bundle.KindFence:
		return chainwriterpb.EntryKind_ENTRY_KIND_FENCE
	case bundle.KindSeal:
		return chainwriterpb.EntryKind_ENTRY_KIND_SEAL
	case bundle.KindDelete:
		return chainwriterpb.EntryKind_ENTRY_KIND_DELETE
	case bundle.KindTrim:
		return chainwriterpb.EntryKind_ENTRY_KIND_TRIM
	case bundle.KindToken:
		return chainwriterpb.EntryKind_ENTRY_KIND_TOKEN
	}
	return chainwriterpb.EntryKind_ENTRY_KIND_UNSPECIFIED
}

func bundleKind(k chainwriterpb.EntryKind) bundle.Kind {
	switch k {
	case chainwriterpb.EntryKind_ENTRY_KIND_CHUNK:
		return bundle.KindChunk
	case chainwriterpb.EntryKind_ENTRY_KIND_SEAL:
		return bundle.KindSeal
	case chainwriterpb.EntryKind_ENTRY_KIND_DELETE:
		return bundle.KindDelete
	case chainwriterpb.EntryKind_ENTRY_KIND_TRIM:
		return bundle.KindTrim
	case chainwriterpb.EntryKind_ENTRY_KIND_TOKEN:
		return bundle.KindToken
	}
	return bundle.KindFence
}
