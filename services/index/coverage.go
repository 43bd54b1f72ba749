package index

import (
	"fmt"

	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// span is records [from, to); empty if from >= to.
type span struct{ from, to uint64 }

func (s span) empty() bool { return s.from >= s.to }

// above is the part from a number on.
func (s span) above(n uint64) span { return span{max(s.from, n), s.to} }

// holds reports that all of x is in s.
func (s span) holds(x span) bool { return x.empty() || s.from <= x.from && x.to <= s.to }

// covered returns which records a head's pages and refs cover, and what is wrong
// with them.
func covered(h *indexpb.Head) (span, error) {
	var all span
	add := func(object string, from, to uint64) error {
		switch {
		case object == "" || from >= to:
			return broken("a ref or page names an object and records")
		case !all.empty() && from != all.to:
			return broken(fmt.Sprintf("refs and pages are contiguous: record %d follows %d", from, all.to))
		case all.empty():
			all.from = from
		}
		all.to = to
		return nil
	}
	for _, p := range h.GetPages() {
		if p.GetLevel() == 0 {
			return all, broken("the level of a page is 1 or more")
		}
		if err := add(p.GetObject(), p.GetFirstSeq(), p.GetNextSeq()); err != nil {
			return all, err
		}
	}
	for _, r := range h.GetRefs() {
		if err := add(r.GetObject(), r.GetFirstSeq(), r.GetNextSeq()); err != nil {
			return all, err
		}
	}
	return all, nil
}

// coverageRule: no change of a head loses the place of a record that is still to
// be read (I2). Of what is not dropped, next covers all that old covered and all
// that it adds to the tail. So what a head covers begins at or below dropped_to
// and ends at tail; only a head whose tail moved before anything was covered
// begins higher, and it never begins higher later. Refs may be replaced by pages
// or by other refs of the same records. A stream that is DELETED has no records.
func coverageRule(old, next *indexpb.Head) error {
	dropped := next.GetDroppedTo()
	switch {
	case dropped < old.GetDroppedTo():
		return broken("dropped_to goes forward only")
	case dropped > next.GetTrim() || dropped > next.GetTail():
		return broken(fmt.Sprintf("only what is trimmed is dropped: to %d, with trim %d and tail %d", dropped, next.GetTrim(), next.GetTail()))
	}
	has, err := covered(next)
	if err != nil || next.GetState() == indexpb.HeadState_HEAD_STATE_DELETED {
		return err
	}
	// What is stored was checked before; one that is odd is judged by its ends.
	had, _ := covered(old)
	added := span{old.GetTail(), next.GetTail()}
	switch {
	case has.to > next.GetTail() || !has.empty() && has.to < next.GetTail() && next.GetQuarantine() == "":
		return broken(fmt.Sprintf("refs end at the tail %d, not at %d", next.GetTail(), has.to))
	case !has.holds(had.above(dropped)):
		return broken(fmt.Sprintf("records [%d, %d) were covered and are not dropped", max(had.from, dropped), had.to))
	case !has.holds(added.above(dropped)):
		return broken(fmt.Sprintf("records [%d, %d) are new and not covered", max(added.from, dropped), added.to))
	}
	return nil
}
