package sequencer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/head"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// One broken stream stops nobody else. A stream whose log does not fold (a gap, a
// content hash that does not connect, a damaged chunk header, a damaged block of
// a directory) is quarantined: its head says why and pins the slots that a repair
// needs. It is not served, appends to it are refused with NOT_COMMITTED and
// STREAM_QUARANTINED; it may be deleted. Other streams of its shard and its chain
// go on.
//
// The leader keeps the verdict in memory for a while, so that those who try again
// cost nothing; then it looks at the head again. So what lifts a quarantine is
// the repair that clears it in the head, no restart.
//
// Damage that is not the stream's alone, as of a whole directory, quarantines
// nobody: the error passes when that is repaired.

const (
	// quarantineLook is how long a verdict is kept in memory.
	quarantineLook = 10 * time.Second
	// directoryWindow is how many slots a directory covers at most.
	directoryWindow = 64
	// maxPins is the index's limit of the pins of a head.
	maxPins = 16
)

// errBroken is why a stream cannot be opened, found in its log.
type errBroken struct {
	cause  error
	pins   []*indexpb.Pin
	shared bool // not the stream's alone
}

func (e *errBroken) Error() string { return e.cause.Error() }
func (e *errBroken) Unwrap() error { return e.cause }

// errQuarantined is what callers are told: which stream and where, and not the
// objects.
func errQuarantined(id stream.ID, pins []*indexpb.Pin) error {
	where := ""
	if len(pins) > 0 {
		where = fmt.Sprintf(" at slot %d", pins[0].GetFrom())
	}
	return reason.New(codes.DataLoss, reason.StreamQuarantine, "stream "+id.String()+" is quarantined: its log is damaged"+where)
}

// quarantine records what was found twice and returns the stream as it is kept
// in memory: not served.
func (sh *shard) quarantine(ctx context.Context, touched *indexpb.Head, st *openStream, found *errBroken) error {
	s := sh.svc
	if found.shared {
		st.verdict(reason.New(codes.DataLoss, reason.ChecksumMismatch, "stored metadata of stream "+st.id.String()+" and of others is damaged"))
		s.log.ErrorContext(ctx, "a directory is damaged; its streams cannot be opened", "stream", st.id.String(), "shard", sh.number, "err", found)
		return nil
	}
	if err := s.index.QuarantineHead(ctx, touched, found.Error(), found.pins); err != nil {
		return fmt.Errorf("quarantine it, since %s: %w", found.Error(), err)
	}
	st.verdict(errQuarantined(st.id, found.pins))
	s.metrics.quarantined(ctx)
	s.log.ErrorContext(ctx, "stream quarantined", "stream", st.id.String(), "shard", sh.number, "err", found)
	return nil
}

// verdict makes the stream one that is not served, for a while.
func (st *openStream) verdict(err error) {
	st.broken, st.lookAgain = err, st.shard.svc.now().Add(quarantineLook)
}

// deleteQuarantined deletes a stream that cannot be folded. Its DELETE entry needs
// nothing of what is broken; since nobody can fold up to it, the head is told as
// well. A crash in between: the caller tries again.
func (s *Service) deleteQuarantined(ctx context.Context, id stream.ID, n stream.Shard) error {
	sh, err := s.shardOf(ctx, n)
	if err != nil {
		return err
	}
	st, err := sh.openAny(ctx, id)
	if err != nil {
		return err
	}
	st.deleting.Store(true)
	defer st.deleting.Store(false)
	// Not found: an earlier try came so far.
	if _, err := s.write(ctx, st, newRequest(bundle.KindDelete)); err != nil && !reason.Is(err, reason.StreamNotFound) {
		return err
	}
	if err := s.index.DeleteBrokenHead(ctx, id); err != nil {
		return err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	sh.evictLocked(st)
	return nil
}

// brokenAt returns the entry's slot as a pin, and those of the entries behind it:
// nothing of what is not folded may go.
func brokenAt(cause error, unfolded []*chainwriterpb.LocatedEntry) *errBroken {
	var pins []*indexpb.Pin
	for _, le := range unfolded {
		pins = addPin(pins, chainName(le), le.GetAt().GetSlot())
	}
	return &errBroken{cause: cause, pins: fewPins(pins)}
}

func chainName(le *chainwriterpb.LocatedEntry) string {
	if id := le.GetAt().GetChainId(); len(id) == len(stream.ChainID{}) {
		return stream.ChainID(id).String()
	}
	return "unknown"
}

// addPin adds a slot; they come in order.
func addPin(pins []*indexpb.Pin, chain string, slot uint64) []*indexpb.Pin {
	if k := len(pins); k > 0 && pins[k-1].GetChainId() == chain && slot <= pins[k-1].GetTo() {
		pins[k-1].To = max(pins[k-1].GetTo(), slot+1)
		return pins
	}
	return append(pins, &indexpb.Pin{ChainId: chain, From: slot, To: slot + 1})
}

// fewPins keeps within the limit: the first one, where the damage is, stays
// exact; the others become one per chain, wider than need be.
func fewPins(pins []*indexpb.Pin) []*indexpb.Pin {
	if len(pins) <= maxPins {
		return pins
	}
	out := pins[:1:1]
	for _, p := range pins[1:] {
		if last := out[len(out)-1]; len(out) > 1 && last.GetChainId() == p.GetChainId() {
			last.To = p.GetTo()
			continue
		}
		out = append(out, p)
	}
	return out[:min(len(out), maxPins)]
}

// isBroken reports whether an error is about what a stream's log holds, and not
// a newer format or a passing state.
func isBroken(err error) bool {
	return errors.Is(err, head.ErrBroken) || errors.Is(err, chunk.ErrCorrupt) || errors.Is(err, errNoChain)
}

// lookupOwn looks up the stream's entries in a part of a chain. Damage found there
// is an errBroken that names the directory's slots.
func (sh *shard) lookupOwn(ctx context.Context, l *link, p part, id stream.ID) ([]*chainwriterpb.LocatedEntry, error) {
	chain := p.chain
	look := func(id stream.ID, from, to stream.Slot) ([]*chainwriterpb.LocatedEntry, error) {
		return sh.svc.chains.lookup(ctx, l.writer, chain, sh.number, [][]byte{id[:]}, from, to)
	}
	found, err := look(id, p.from, p.to)
	if reason.Code(err) != codes.DataLoss {
		return found, err
	}
	// What is damaged is that directory whose part of the range fails.
	damage := err
	from, end := p.from, p.to
	for end-from > 1 {
		mid := from + (end-from)/2
		switch _, err := look(id, from, mid); {
		case err == nil:
			from = mid
		case reason.Code(err) == codes.DataLoss:
			end, damage = mid, err
		default:
			return nil, err
		}
	}
	if _, err := look(id, from, end); reason.Code(err) != codes.DataLoss {
		return look(id, p.from, p.to) // it was on the way that the bytes were damaged
	}
	// A stream that does not exist has no block that could be damaged.
	_, err = look(stream.NewID(), from, end)
	return nil, &errBroken{
		cause: fmt.Errorf("directory of slot %d of chain %s: %w", from, chain, damage), shared: reason.Code(err) == codes.DataLoss,
		pins: []*indexpb.Pin{{ChainId: chain, From: uint64(from), To: uint64(min(from+directoryWindow, p.to))}},
	}
}
