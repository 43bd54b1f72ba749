package index

import (
	"fmt"
	"slices"

	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// MaxPins limits the pins of a head.
const MaxPins = 16

// quarantineRule: nothing is folded over a quarantined head, and as long as it
// is quarantined it keeps its pins, which reclaim relies on.
func quarantineRule(old, next *indexpb.Head) error {
	moved := next.GetFoldedEpoch() != old.GetFoldedEpoch() || next.GetFoldedEntry() != old.GetFoldedEntry()
	switch {
	case len(next.GetPins()) > MaxPins:
		return broken(fmt.Sprintf("a head has at most %d pins", MaxPins))
	case next.GetQuarantine() == "" && len(next.GetPins()) > 0:
		return broken("only a quarantine has pins")
	case next.GetQuarantine() != "" && len(next.GetPins()) == 0:
		return broken("a quarantine names the slots it is about")
	case next.GetQuarantine() != "" && moved:
		return broken("nothing is folded over a quarantined head")
	}
	for _, p := range next.GetPins() {
		if p.GetFrom() >= p.GetTo() || p.GetChainId() == "" {
			return broken("a pin names slots of a chain")
		}
	}
	if next.GetQuarantine() == "" {
		return nil
	}
	for _, p := range old.GetPins() {
		kept := func(n *indexpb.Pin) bool {
			return n.GetChainId() == p.GetChainId() && n.GetFrom() <= p.GetFrom() && n.GetTo() >= p.GetTo()
		}
		if !slices.ContainsFunc(next.GetPins(), kept) {
			return broken("a quarantined head keeps its pins")
		}
	}
	return nil
}
