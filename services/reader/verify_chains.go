package reader

import (
	"context"
	"fmt"
	"math"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// slots are the slots [from, to).
type slots struct{ from, to uint64 }

// surveyed is a chain as the list of objects goes through its slots.
type surveyed struct {
	row  *indexpb.Chain
	next uint64 // slots below it were met or missed
	// missed are slots that must be there and are not, extra those that must not.
	missed, extra []slots
}

// kept returns the slots that must be there, in order: what is not settled, and
// what pins keep. Between reclaimed_to and settled_to they are on their way out,
// if a marker says so.
func kept(r *indexpb.Chain, m *markers) []slots {
	if r.GetState() == indexpb.ChainState_CHAIN_STATE_RETIRED {
		return nil
	}
	var out []slots
	from, to := r.GetReclaimedTo(), r.GetAbsorbedTo()
	if m.partial["reclaim"] || m.reclaim[r.GetChainId()] > from {
		from = r.GetSettledTo()
	}
	for _, p := range r.GetPins() {
		out = append(out, slots{p.GetFrom(), min(p.GetTo(), from)})
	}
	if r.GetState() == indexpb.ChainState_CHAIN_STATE_SEALED {
		to = r.GetCut()
	}
	out = append(out, slots{from, to})
	out = slices.DeleteFunc(out, func(s slots) bool { return s.from >= s.to })
	slices.SortFunc(out, func(a, b slots) int { return int(min(max(int64(a.from)-int64(b.from), -1), 1)) })
	return out
}

// mayBe reports whether a slot may be there.
func mayBe(r *indexpb.Chain, slot uint64) bool {
	sealed := r.GetState() != indexpb.ChainState_CHAIN_STATE_OPEN
	switch {
	case sealed && slot == r.GetCut():
		return true // the SEAL stays
	case r.GetState() == indexpb.ChainState_CHAIN_STATE_RETIRED:
		return false
	case slot >= r.GetReclaimedTo():
		// Behind the cut what a late PUT left is deleted when the chain is retired.
		return !sealed || r.GetLanes() == 0 || slot <= r.GetCut()+uint64(r.GetLanes())
	}
	return catalog.Pinned(r.GetPins(), slot, slot+1)
}

// meets notes that a slot is there. It is called in their order.
func (c *surveyed) meets(slot uint64) {
	c.misses(slot)
	c.next = slot + 1
	if mayBe(c.row, slot) {
		return
	}
	if n := len(c.extra); n > 0 && c.extra[n-1].to == slot {
		c.extra[n-1].to++
	} else {
		c.extra = append(c.extra, slots{slot, slot + 1})
	}
}

// misses notes that slots from next on up to one are not there. Those that are on
// their way out are judged later.
func (c *surveyed) misses(to uint64) {
	for _, k := range kept(c.row, &markers{}) {
		if from, to := max(k.from, c.next), min(k.to, to); from < to {
			c.missed = append(c.missed, slots{from, to})
		}
	}
}

// readChains reads the rows of chains and directories.
func (v *survey) readChains(ctx context.Context) error {
	v.chains, v.directories = map[string]*surveyed{}, map[string]*indexpb.Directory{}
	err := v.svc.index.EachChain(ctx, func(r *indexpb.Chain) error {
		c := &surveyed{row: proto.CloneOf(r)}
		v.chains[r.GetChainId()] = c
		v.order = append(v.order, c)
		return nil
	})
	if err != nil {
		return err
	}
	for _, c := range v.order {
		v.counted.Chains++
		rows, err := v.svc.index.Directories(ctx, c.row.GetChainId(), 0, 0)
		if err != nil {
			return err
		}
		for _, d := range rows {
			v.directories[d.GetObject()] = d
		}
		if err := v.doubt(ctx, v.rows(c.row.GetChainId())); err != nil {
			return err
		}
	}
	return nil
}

// rows judges a chain's row and those of its directories.
func (v *survey) rows(id string) suspect {
	return func(ctx context.Context, m *markers) ([]*novapb.VerifyFinding, error) {
		// The directories first: the row may move on meanwhile, and then they are
		// judged by what it was.
		r, _, err := v.svc.index.GetChain(ctx, id)
		if err != nil {
			return nil, ignoreNotFound(err)
		}
		rows, err := v.svc.index.Directories(ctx, id, 0, 0)
		if err != nil {
			return nil, err
		}
		after, _, err := v.svc.index.GetChain(ctx, id)
		if err != nil {
			return nil, ignoreNotFound(err)
		}
		var found []*novapb.VerifyFinding
		end := uint64(math.MaxUint64)
		if r.GetState() != indexpb.ChainState_CHAIN_STATE_OPEN {
			end = r.GetCut()
		}
		if !(r.GetReclaimedTo() <= r.GetSettledTo() && r.GetSettledTo() <= r.GetAbsorbedTo() && r.GetAbsorbedTo() <= end) {
			found = append(found, finding("chain", "chain %s: reclaimed to %d, settled to %d, absorbed to %d, cut %d", id, r.GetReclaimedTo(), r.GetSettledTo(), r.GetAbsorbedTo(), r.GetCut())...)
		}
		if r.GetReclaimedTo() < r.GetSettledTo() && m.reclaim[id] <= r.GetReclaimedTo() && !m.partial["reclaim"] && after.GetReclaimedTo() == r.GetReclaimedTo() {
			found = append(found, v.with(finding("leak", "chain %s: no marker leads to the settled slots %d..%d", id, r.GetReclaimedTo(), r.GetSettledTo()), v.reclaimed(id, r.GetSettledTo()))...)
		}
		if retired := indexpb.ChainState_CHAIN_STATE_RETIRED; r.GetState() != retired && after.GetState() != retired && !m.chains[id] && !m.partial["chain"] && id < v.young {
			found = append(found, v.with(finding("marker", "chain %s: no marker leads to its end", id), v.lookedAfter(id))...)
		}
		// Rows below settled_to are on their way out, or were reclaimed since.
		next := max(after.GetSettledTo(), r.GetSettledTo())
		for _, d := range rows {
			switch {
			case d.GetTo() <= r.GetReclaimedTo() && catalog.Pinned(r.GetPins(), d.GetFrom(), d.GetTo()):
			case d.GetTo() <= r.GetReclaimedTo():
				found = append(found, v.with(finding("leak", "chain %s: the row of directory %d..%d is below %d, up to where it is reclaimed", id, d.GetFrom(), d.GetTo(), r.GetReclaimedTo()), v.reclaimedAgain(r, d.GetFrom(), d.GetTo()))...)
			case d.GetTo() <= next || d.GetFrom() >= r.GetAbsorbedTo():
			case d.GetFrom() != next:
				found = append(found, gap(id, next, d.GetFrom())...)
				next = d.GetTo()
			default:
				next = d.GetTo()
			}
		}
		if next < r.GetAbsorbedTo() {
			found = append(found, gap(id, next, r.GetAbsorbedTo())...)
		}
		return found, nil
	}
}

func gap(id string, from, to uint64) []*novapb.VerifyFinding {
	return finding("directory", "chain %s: no directory for slots %d..%d, which are absorbed", id, from, to)
}

func ignoreNotFound(err error) error {
	if catalog.IsNotFound(err) {
		return nil
	}
	return err
}

// checkChains judges the slots that were missed or are too many, and the
// directories that are not there.
func (v *survey) checkChains(ctx context.Context) error {
	for _, c := range v.order {
		c.misses(math.MaxUint64)
		for _, s := range c.missed {
			if err := v.doubt(ctx, v.missing(c.row.GetChainId(), s)); err != nil {
				return err
			}
		}
		for _, s := range c.extra {
			if err := v.doubt(ctx, v.tooMany(c.row.GetChainId(), s)); err != nil {
				return err
			}
		}
	}
	for _, d := range v.directories {
		if err := v.doubt(ctx, v.noDirectory(d)); err != nil {
			return err
		}
	}
	return nil
}

// missing judges slots that are not there.
func (v *survey) missing(id string, s slots) suspect {
	return v.ofChain(id, func(ctx context.Context, m *markers, r *indexpb.Chain) ([]*novapb.VerifyFinding, error) {
		for _, k := range kept(r, m) {
			gone, err := v.count(ctx, r, slots{max(s.from, k.from), min(s.to, k.to)}, func(_ uint64, there bool) bool { return !there })
			if err != nil || gone == "" {
				if err != nil {
					return nil, err
				}
				continue
			}
			return finding("missing", "chain %s: of slots %d..%d, %s not there", id, s.from, s.to, gone), nil
		}
		return nil, nil
	})
}

// tooMany judges slots that are there.
func (v *survey) tooMany(id string, s slots) suspect {
	return v.ofChain(id, func(ctx context.Context, _ *markers, r *indexpb.Chain) ([]*novapb.VerifyFinding, error) {
		extra, err := v.count(ctx, r, s, func(slot uint64, there bool) bool { return there && !mayBe(r, slot) })
		if err != nil || extra == "" {
			return nil, err
		}
		return v.with(finding("leak", "chain %s: of slots %d..%d, which are not needed, %s there", id, s.from, s.to, extra), v.reclaimedAgain(r, s.from, s.to)), nil
	})
}

// ofChain judges by a chain's row.
func (v *survey) ofChain(id string, judge func(context.Context, *markers, *indexpb.Chain) ([]*novapb.VerifyFinding, error)) suspect {
	return func(ctx context.Context, m *markers) ([]*novapb.VerifyFinding, error) {
		r, _, err := v.svc.index.GetChain(ctx, id)
		if err != nil {
			return nil, ignoreNotFound(err)
		}
		return judge(ctx, m, r)
	}
}

// slotsLooked is how many slots of a range are looked at again.
const slotsLooked = 100

// count says how many slots of a range are wrong, as the list said.
func (v *survey) count(ctx context.Context, r *indexpb.Chain, s slots, wrong func(slot uint64, there bool) bool) (string, error) {
	id, err := stream.ParseChainID(r.GetChainId())
	if err != nil {
		return "", err
	}
	var first, n uint64
	end := s.to
	if s.from < s.to {
		end = s.from + min(s.to-s.from, slotsLooked)
	}
	for slot := s.from; slot < end; slot++ {
		there, err := v.svc.exists(ctx, chain.SlotKey(id, stream.Slot(slot)))
		if err != nil {
			return "", err
		}
		if !wrong(slot, there) {
			continue
		}
		if n++; n == 1 {
			first = slot
		}
	}
	if n == 0 {
		return "", nil
	}
	return fmt.Sprintf("%d of the first %d looked at, from %d on, are", n, end-s.from, first), nil
}

// ofNoChain judges a slot of a chain that has no row.
func (v *survey) ofNoChain(key, id string) suspect {
	return func(ctx context.Context, _ *markers) ([]*novapb.VerifyFinding, error) {
		if id >= v.young {
			return nil, nil
		}
		_, _, err := v.svc.index.GetChain(ctx, id)
		if !catalog.IsNotFound(err) {
			return nil, err
		}
		return v.stillThere(ctx, key, "is a slot of a chain without a row")
	}
}

// ofNoDirectory judges a directory's object that no row names.
func (v *survey) ofNoDirectory(key, id, name string) suspect {
	return func(ctx context.Context, m *markers) ([]*novapb.VerifyFinding, error) {
		var from uint64
		var attempt string
		if _, err := fmt.Sscanf(name, "%16x-%s", &from, &attempt); err != nil {
			return v.stillThere(ctx, key, "is no object of a constellation")
		}
		if attempt >= v.young || m.objects[key] || m.partial["directory"] {
			return nil, nil
		}
		// The object goes before its row; and a chain that reclaims leads to it.
		row, err := v.svc.index.GetDirectory(ctx, id, from)
		if err == nil && row.GetObject() == key || err != nil && !catalog.IsNotFound(err) {
			return nil, err
		}
		found, err := v.stillThere(ctx, key, "is named by no row and no marker")
		return v.with(found, v.lookedAt(key, id, from)), err
	}
}

// noDirectory judges a directory's row whose object was not in the list.
func (v *survey) noDirectory(d *indexpb.Directory) suspect {
	return func(ctx context.Context, m *markers) ([]*novapb.VerifyFinding, error) {
		if is, err := v.svc.exists(ctx, d.GetObject()); err != nil || is {
			return nil, err
		}
		// It goes when its slots are reclaimed.
		r, _, err := v.svc.index.GetChain(ctx, d.GetChainId())
		if err != nil {
			return nil, ignoreNotFound(err)
		}
		row, err := v.svc.index.GetDirectory(ctx, d.GetChainId(), d.GetFrom())
		if err != nil || row.GetObject() != d.GetObject() {
			return nil, ignoreNotFound(err)
		}
		if d.GetTo() <= r.GetSettledTo() && (m.partial["reclaim"] || m.reclaim[d.GetChainId()] >= d.GetTo()) {
			return nil, nil
		}
		return finding("missing", "chain %s: the directory of slots %d..%d, %s, is not there", d.GetChainId(), d.GetFrom(), d.GetTo(), d.GetObject()), nil
	}
}

// stillThere is a leak, if the object is there.
func (v *survey) stillThere(ctx context.Context, key, what string) ([]*novapb.VerifyFinding, error) {
	is, err := v.svc.exists(ctx, key)
	if err != nil || !is {
		return nil, err
	}
	return finding("leak", "%s %s", key, what), nil
}
