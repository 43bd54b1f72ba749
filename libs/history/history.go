package history

import (
	"fmt"
	"slices"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// Limits of what a head names by itself. Beyond them the older part goes into
// pages, and then nothing is beyond them: so they bound a head at 20 KiB.
const (
	// MaxRefBytes limits an encoded ref.
	MaxRefBytes = 256

	maxRefs, pageRefs   = 64, 32
	maxPages, pagePages = 32, 16 // of one level
	// wellFilled is the size of all refs and pages from which half of these numbers
	// is too many.
	wellFilled = 16 << 10
)

// Next returns one more than the number of the last settled record; 0 if the
// head names nothing.
func Next(h *indexpb.Head) stream.Seq {
	last, _ := lastOf(h)
	return stream.Seq(last.next)
}

// lastOf returns the last ref, or the last page if there is no ref.
func lastOf(h *indexpb.Head) (span, bool) {
	if n := len(h.GetRefs()); n > 0 {
		return ofRef(h.GetRefs()[n-1]), true
	}
	if n := len(h.GetPages()); n > 0 {
		return ofPage(h.GetPages()[n-1]), true
	}
	return span{}, false
}

// Stored returns the bytes of the frames of all refs, also of those that are
// dead but in a page that is not.
func Stored(h *indexpb.Head) uint64 {
	n := uint64(0)
	for _, s := range spans(h.GetPages(), h.GetRefs()) {
		n += s.bytes
	}
	return n
}

// Append adds the next ref to a head, which keeps it. It must continue exactly
// what is there; if nothing is, it must begin at or below dropped_to. And it must
// end above dropped_to: what is trimmed is dropped by Trim before. Errors wrap
// ErrBroken; the head is then unchanged.
func Append(h *indexpb.Head, r *indexpb.Ref) error {
	if err := checkRef(r); err != nil {
		return err
	}
	last, some := lastOf(h)
	switch {
	case r.GetNextSeq() <= h.GetDroppedTo():
		return fmt.Errorf("%w: records %d..%d to be added are dropped up to %d", ErrBroken, r.GetFirstSeq(), r.GetNextSeq(), h.GetDroppedTo())
	case !some && r.GetFirstSeq() > h.GetDroppedTo():
		return fmt.Errorf("%w: record %d to be added is the first, dropped are those below %d", ErrBroken, r.GetFirstSeq(), h.GetDroppedTo())
	case some && (r.GetFirstSeq() != last.next || r.GetFirstTimestamp() < last.to):
		return fmt.Errorf("%w: record %d at %d to be added after %d at %d", ErrBroken, r.GetFirstSeq(), r.GetFirstTimestamp(), last.next, last.to)
	}
	if n := len(h.GetRefs()); n > 0 && h.GetRefs()[n-1].GetHashAfter() != r.GetHashBefore() {
		return fmt.Errorf("%w: content hash %016x before record %d to be added, want %016x", ErrBroken, r.GetHashBefore(), r.GetFirstSeq(),
			h.GetRefs()[n-1].GetHashAfter())
	}
	h.Refs = append(h.Refs, r)
	return nil
}

func checkRef(r *indexpb.Ref) error {
	if r.GetNextSeq() <= r.GetFirstSeq() || r.GetLastTimestamp() < r.GetFirstTimestamp() || r.GetFrames() == 0 || r.GetLength() == 0 ||
		r.GetObject() == "" || !utf8.ValidString(r.GetObject()) || proto.Size(r) > MaxRefBytes {
		return fmt.Errorf("%w: %v is no ref", ErrBroken, r)
	}
	return nil
}

// Overflow returns the page that must be written next because the head names
// too much, and what changes the head once the page's object (of size bytes) is
// there; nil if nothing must be written. It is called again after that, until it
// returns nil. Between it and replace the head must not change; the body shares
// refs and pages with it.
func Overflow(h *indexpb.Head) (body *indexpb.RefPageBody, replace func(object string, size uint32)) {
	refs, pages := maxRefs, maxPages
	if headBytes(h) > wellFilled {
		refs, pages = pageRefs, pagePages
	}
	if len(h.GetRefs()) > refs {
		body = &indexpb.RefPageBody{StreamId: h.GetStreamId(), Level: 1, Refs: slices.Clone(h.GetRefs()[:pageRefs])}
		return body, func(object string, size uint32) {
			h.Refs = slices.Delete(h.Refs, 0, pageRefs)
			h.Pages = append(h.Pages, PageOf(body, object, size))
		}
	}
	// The lowest level comes last.
	for end := len(h.GetPages()); end > 0; {
		level := h.GetPages()[end-1].GetLevel()
		start := end
		for start > 0 && h.GetPages()[start-1].GetLevel() == level {
			start--
		}
		if end-start > pages {
			body = &indexpb.RefPageBody{StreamId: h.GetStreamId(), Level: level + 1, Pages: slices.Clone(h.GetPages()[start : start+pagePages])}
			return body, func(object string, size uint32) {
				h.Pages = slices.Replace(h.Pages, start, start+pagePages, PageOf(body, object, size))
			}
		}
		end = start
	}
	return nil, nil
}

// headBytes returns what refs and pages take in the head.
func headBytes(h *indexpb.Head) int {
	return proto.Size(&indexpb.Head{Refs: h.GetRefs(), Pages: h.GetPages()})
}
