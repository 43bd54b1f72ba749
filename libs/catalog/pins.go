package catalog

import (
	"slices"

	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// Pinned reports whether pins of a chain keep some of slots [from, to), or a directory
// of them.
func Pinned(pins []*indexpb.ChainPin, from, to uint64) bool {
	return slices.ContainsFunc(pins, func(p *indexpb.ChainPin) bool { return p.GetFrom() < to && p.GetTo() > from })
}
