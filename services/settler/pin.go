package settler

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/directory"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// Nothing is folded over a quarantined head. What the span holds of the stream
// above it must stay for the repair, so the change that moves settled_to pins the
// slots in the chain's record.

const (
	// maxChainPins is the index's limit of the pins of a chain.
	maxChainPins = 64
	// maxHeadPins is the index's limit of the pins of a head.
	maxHeadPins = 16
)

// slotRange is slots [from, to).
type slotRange struct{ from, to stream.Slot }

// slotsOf returns the slots of entries, which are in chain order.
func slotsOf(entries []directory.Located) []slotRange {
	var out []slotRange
	for _, e := range entries {
		if k := len(out); k > 0 && e.At.Slot <= out[k-1].to {
			out[k-1].to = e.At.Slot + 1
			continue
		}
		out = append(out, slotRange{e.At.Slot, e.At.Slot + 1})
	}
	return out
}

// pin keeps slots of the span for a stream that is quarantined.
func (s *span) pin(id stream.ID, ranges []slotRange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range ranges {
		from, to := max(r.from, s.from), min(r.to, s.to)
		if from < to {
			s.pins = append(s.pins, &indexpb.ChainPin{StreamId: id.String(), From: uint64(from), To: uint64(to)})
		}
	}
}

// joinPins adds pins of a span to those of its chain's record, sorted; what
// overlaps or lies side by side is joined. Beyond the limit the span's pins of a
// stream become one, which keeps more than need be; beyond it even so, the chain
// stops.
func joinPins(old, fresh []*indexpb.ChainPin) ([]*indexpb.ChainPin, error) {
	out := mergePins(slices.Concat(old, fresh))
	if len(out) > maxChainPins {
		wide := map[string]*indexpb.ChainPin{}
		for _, p := range fresh {
			w := wide[p.GetStreamId()]
			if w == nil {
				w = proto.CloneOf(p)
				wide[p.GetStreamId()] = w
			}
			w.From, w.To = min(w.GetFrom(), p.GetFrom()), max(w.GetTo(), p.GetTo())
		}
		out = slices.Clone(old)
		for _, w := range wide {
			out = append(out, w)
		}
		out = mergePins(out)
	}
	if len(out) > maxChainPins {
		return nil, blocked("%d ranges of slots would be kept for quarantined streams, and the limit is %d: repair or delete some", len(out), maxChainPins)
	}
	return out, nil
}

func mergePins(pins []*indexpb.ChainPin) []*indexpb.ChainPin {
	pins = slices.Clone(pins)
	slices.SortFunc(pins, func(a, b *indexpb.ChainPin) int {
		return cmp.Or(cmp.Compare(a.GetStreamId(), b.GetStreamId()), cmp.Compare(a.GetFrom(), b.GetFrom()))
	})
	var out []*indexpb.ChainPin
	for _, p := range pins {
		if k := len(out); k > 0 && out[k-1].GetStreamId() == p.GetStreamId() && p.GetFrom() <= out[k-1].GetTo() {
			out[k-1].To = max(out[k-1].GetTo(), p.GetTo())
			continue
		}
		out = append(out, proto.CloneOf(p))
	}
	return out
}

// headPins are the same slots for the head of a stream: the first range, where
// the damage is, stays exact; beyond the limit the others become one.
func (s *span) headPins(ranges []slotRange) []*indexpb.Pin {
	if len(ranges) > maxHeadPins {
		rest := ranges[1]
		for _, r := range ranges[2:] {
			rest = slotRange{min(rest.from, r.from), max(rest.to, r.to)}
		}
		ranges = []slotRange{ranges[0], rest}
	}
	out := make([]*indexpb.Pin, 0, len(ranges))
	for _, r := range ranges {
		out = append(out, &indexpb.Pin{ChainId: s.name, From: uint64(r.from), To: uint64(r.to)})
	}
	return out
}
