package history

import (
	"errors"
	"fmt"

	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// ErrBroken means that refs and pages do not fit together: a gap, an overlap, or
// a page that is not what the one that names it says.
var ErrBroken = errors.New("the stream's settled history is broken")

// maxLevel limits the levels of pages: far beyond what 64-bit numbers can fill.
const maxLevel = 16

// span is what refs and pages have in common.
type span struct {
	first, next uint64
	from, to    int64 // timestamps
	bytes, refs uint64
}

func ofRef(r *indexpb.Ref) span {
	return span{r.GetFirstSeq(), r.GetNextSeq(), r.GetFirstTimestamp(), r.GetLastTimestamp(), r.GetLength(), 1}
}

func ofPage(p *indexpb.RefPage) span {
	return span{p.GetFirstSeq(), p.GetNextSeq(), p.GetFirstTimestamp(), p.GetLastTimestamp(), p.GetStoredBytes(), p.GetRefs()}
}

func spans(pages []*indexpb.RefPage, refs []*indexpb.Ref) []span {
	all := make([]span, 0, len(pages)+len(refs))
	for _, p := range pages {
		all = append(all, ofPage(p))
	}
	for _, r := range refs {
		all = append(all, ofRef(r))
	}
	return all
}

// checkLists checks that pages, and then refs, are in order and without gaps.
func checkLists(pages []*indexpb.RefPage, refs []*indexpb.Ref) error {
	all := spans(pages, refs)
	for i, s := range all {
		if s.next <= s.first || s.to < s.from {
			return fmt.Errorf("%w: records %d..%d at %d..%d", ErrBroken, s.first, s.next, s.from, s.to)
		}
		if i > 0 && (s.first != all[i-1].next || s.from < all[i-1].to) {
			return fmt.Errorf("%w: record %d at %d after %d at %d", ErrBroken, s.first, s.from, all[i-1].next, all[i-1].to)
		}
	}
	level := uint32(maxLevel)
	for _, p := range pages {
		if p.GetLevel() < 1 || p.GetLevel() > level || p.GetObject() == "" {
			return fmt.Errorf("%w: page %q of level %d where at most %d may be", ErrBroken, p.GetObject(), p.GetLevel(), level)
		}
		level = p.GetLevel()
	}
	for i, r := range refs {
		if r.GetObject() == "" || i > 0 && r.GetHashBefore() != refs[i-1].GetHashAfter() {
			return fmt.Errorf("%w: ref to %q with content hash %016x before record %d", ErrBroken, r.GetObject(), r.GetHashBefore(), r.GetFirstSeq())
		}
	}
	return nil
}

func check(h *indexpb.Head) error {
	if err := checkLists(h.GetPages(), h.GetRefs()); err != nil {
		return fmt.Errorf("head of stream %s: %w", h.GetStreamId(), err)
	}
	return nil
}

// checkBody checks a body by itself: pages of the level below, or refs.
func checkBody(body *indexpb.RefPageBody) error {
	level, pages, refs := body.GetLevel(), body.GetPages(), body.GetRefs()
	if level < 1 || level > maxLevel || (level == 1) != (len(pages) == 0) || (level == 1) != (len(refs) > 0) {
		return fmt.Errorf("%w: a page of level %d with %d refs and %d pages", ErrBroken, level, len(refs), len(pages))
	}
	for _, p := range pages {
		if p.GetLevel() != level-1 {
			return fmt.Errorf("%w: a page of level %d in one of level %d", ErrBroken, p.GetLevel(), level)
		}
	}
	return checkLists(pages, refs)
}

// checkPage checks that a body is what the page that names it says.
func checkPage(p *indexpb.RefPage, body *indexpb.RefPageBody) error {
	if err := checkBody(body); err != nil {
		return fmt.Errorf("page %s: %w", p.GetObject(), err)
	}
	got := PageOf(body, p.GetObject(), p.GetSize())
	if got.GetLevel() != p.GetLevel() || ofPage(got) != ofPage(p) {
		return fmt.Errorf("%w: page %s holds %+v of level %d, it is named as %+v of level %d", ErrBroken, p.GetObject(),
			ofPage(got), got.GetLevel(), ofPage(p), p.GetLevel())
	}
	return nil
}
