package index

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

func ref(from, to uint64) *indexpb.Ref {
	return &indexpb.Ref{Object: fmt.Sprint("settled/", from), FirstSeq: from, NextSeq: to}
}

func page(level uint32, from, to uint64) *indexpb.RefPage {
	return &indexpb.RefPage{Object: fmt.Sprint("page/", from), Level: level, FirstSeq: from, NextSeq: to}
}

// No change of a head loses the place of a record that is neither trimmed nor
// dropped (I2).
func TestNoChangeOfAHeadLosesARecord(t *testing.T) {
	const deleted = indexpb.HeadState_HEAD_STATE_DELETED
	pins := []*indexpb.Pin{{ChainId: "c", From: 5, To: 7}}
	fresh := &indexpb.Head{}
	// Its tail moved before anything was settled.
	ancient := &indexpb.Head{Tail: 100}
	// All of it was trimmed and dropped.
	empty := &indexpb.Head{Tail: 100, Trim: 100, DroppedTo: 100}
	// Records 30 to 99 are to be read; 20 to 29 stand in a ref that is needed.
	base := &indexpb.Head{Tail: 100, Trim: 30, DroppedTo: 30, Refs: []*indexpb.Ref{ref(20, 40), ref(40, 70), ref(70, 100)}}
	paged := &indexpb.Head{Tail: 100, Pages: []*indexpb.RefPage{page(2, 0, 30), page(1, 30, 60)}, Refs: []*indexpb.Ref{ref(60, 100)}}
	stuck := changed(base, func(h *indexpb.Head) { h.Quarantine, h.Pins = "gap", pins })
	gone := changed(base, func(h *indexpb.Head) { h.State = deleted })
	type edit = func(*indexpb.Head)
	for _, c := range []struct {
		what string
		old  *indexpb.Head
		f    edit
		ok   bool
	}{
		{"the first records", fresh, func(h *indexpb.Head) { h.Tail, h.Refs = 10, []*indexpb.Ref{ref(0, 10)} }, true},
		{"the first records in two runs", fresh, func(h *indexpb.Head) { h.Tail, h.Refs = 10, []*indexpb.Ref{ref(0, 4), ref(4, 10)} }, true},
		{"the first records without a ref", fresh, func(h *indexpb.Head) { h.Tail = 10 }, false},
		{"the first records, the first of them missing", fresh, func(h *indexpb.Head) { h.Tail, h.Refs = 10, []*indexpb.Ref{ref(1, 10)} }, false},
		{"the first records, the first of them trimmed", fresh, func(h *indexpb.Head) {
			h.Tail, h.Trim, h.DroppedTo, h.Refs = 10, 4, 4, []*indexpb.Ref{ref(3, 10)}
		}, true},
		{"the first of them trimmed, and more is left out", fresh, func(h *indexpb.Head) {
			h.Tail, h.Trim, h.DroppedTo, h.Refs = 10, 4, 4, []*indexpb.Ref{ref(5, 10)}
		}, false},
		{"left out by the trim alone, which is not dropped yet", fresh, func(h *indexpb.Head) { h.Tail, h.Trim, h.Refs = 10, 4, []*indexpb.Ref{ref(4, 10)} }, false},
		{"all of them trimmed", fresh, func(h *indexpb.Head) { h.Tail, h.Trim, h.DroppedTo = 10, 10, 10 }, true},
		{"a ref beyond the tail (I3)", fresh, func(h *indexpb.Head) { h.Tail, h.Refs = 10, []*indexpb.Ref{ref(0, 11)} }, false},
		{"a ref that does not reach the tail", fresh, func(h *indexpb.Head) { h.Tail, h.Refs = 10, []*indexpb.Ref{ref(0, 9)} }, false},
		{"refs with a gap", fresh, func(h *indexpb.Head) { h.Tail, h.Refs = 10, []*indexpb.Ref{ref(0, 4), ref(5, 10)} }, false},
		{"refs that overlap", fresh, func(h *indexpb.Head) { h.Tail, h.Refs = 10, []*indexpb.Ref{ref(0, 5), ref(4, 10)} }, false},
		{"refs out of order", fresh, func(h *indexpb.Head) { h.Tail, h.Refs = 10, []*indexpb.Ref{ref(4, 10), ref(0, 4)} }, false},
		{"a ref of no records", fresh, func(h *indexpb.Head) { h.Tail, h.Refs = 10, []*indexpb.Ref{ref(0, 0), ref(0, 10)} }, false},
		{"a ref without an object", fresh, func(h *indexpb.Head) { h.Tail, h.Refs = 10, []*indexpb.Ref{{NextSeq: 10}} }, false},
		{"a page without a level", fresh, func(h *indexpb.Head) { h.Tail, h.Pages = 10, []*indexpb.RefPage{page(0, 0, 10)} }, false},
		{"the tail stays and something is covered below it", ancient, func(h *indexpb.Head) { h.Refs = []*indexpb.Ref{ref(90, 100)} }, true},
		{"an ancient head goes on", ancient, func(h *indexpb.Head) { h.Tail, h.Refs = 110, []*indexpb.Ref{ref(100, 110)} }, true},
		{"an ancient head goes on with a gap", ancient, func(h *indexpb.Head) { h.Tail, h.Refs = 110, []*indexpb.Ref{ref(101, 110)} }, false},
		{"an ancient head goes on without a ref", ancient, func(h *indexpb.Head) { h.Tail = 110 }, false},
		{"an empty head goes on", empty, func(h *indexpb.Head) { h.Tail, h.Refs = 110, []*indexpb.Ref{ref(100, 110)} }, true},
		{"an empty head goes on with a gap", empty, func(h *indexpb.Head) { h.Tail, h.Refs = 110, []*indexpb.Ref{ref(105, 110)} }, false},
		{"an empty head goes on without a ref", empty, func(h *indexpb.Head) { h.Tail = 110 }, false},
		{"a leader opens it", base, func(h *indexpb.Head) { h.OpenedEpoch++ }, true},
		{"more records", base, func(h *indexpb.Head) { h.Tail, h.Refs = 120, append(h.Refs, ref(100, 120)) }, true},
		{"more records behind a gap", base, func(h *indexpb.Head) { h.Tail, h.Refs = 120, append(h.Refs, ref(110, 120)) }, false},
		{"the tail moves and no ref does", base, func(h *indexpb.Head) { h.Tail = 120 }, false},
		{"a ref is put beyond the tail", base, func(h *indexpb.Head) { h.Refs = append(h.Refs, ref(100, 120)) }, false},
		{"the first ref is lost", base, func(h *indexpb.Head) { h.Refs = h.Refs[1:] }, false},
		{"a ref in the middle is lost", base, func(h *indexpb.Head) { h.Refs = []*indexpb.Ref{h.Refs[0], h.Refs[2]} }, false},
		{"the last ref is lost", base, func(h *indexpb.Head) { h.Refs = h.Refs[:2] }, false},
		{"all refs are lost", base, func(h *indexpb.Head) { h.Refs = nil }, false},
		{"all refs are lost while the tail moves", base, func(h *indexpb.Head) { h.Tail, h.Refs = 120, []*indexpb.Ref{ref(100, 120)} }, false},
		{"the first ref is trimmed", base, func(h *indexpb.Head) { h.Trim, h.DroppedTo, h.Refs = 40, 40, h.Refs[1:] }, true},
		{"the first ref is trimmed, and more records", base, func(h *indexpb.Head) {
			h.Trim, h.DroppedTo, h.Tail, h.Refs = 40, 40, 120, append(h.Refs[1:], ref(100, 120))
		}, true},
		{"the first ref is trimmed but for a record", base, func(h *indexpb.Head) { h.Trim, h.DroppedTo, h.Refs = 39, 39, h.Refs[1:] }, false},
		{"a ref of which a part is trimmed stays", base, func(h *indexpb.Head) { h.Trim, h.DroppedTo, h.Refs = 50, 50, h.Refs[1:] }, true},
		{"all is trimmed", base, func(h *indexpb.Head) { h.Trim, h.DroppedTo, h.Refs = 100, 100, nil }, true},
		{"all is trimmed and new records come", base, func(h *indexpb.Head) {
			h.Trim, h.DroppedTo, h.Tail, h.Refs = 100, 100, 110, []*indexpb.Ref{ref(100, 110)}
		}, true},
		{"all is trimmed, with more than there is", base, func(h *indexpb.Head) { h.Trim, h.DroppedTo, h.Refs = 200, 200, nil }, false},
		{"what is dropped is above the trim", base, func(h *indexpb.Head) { h.DroppedTo = 31 }, false},
		{"dropped_to goes back", base, func(h *indexpb.Head) { h.DroppedTo = 29 }, false},
		{"the trim moves and nothing is dropped yet", base, func(h *indexpb.Head) { h.Trim = 50 }, true},
		{"the trim moves and a ref is dropped without saying so", base, func(h *indexpb.Head) { h.Trim, h.Refs = 50, h.Refs[1:] }, false},
		{"refs become a page", base, func(h *indexpb.Head) { h.Pages, h.Refs = []*indexpb.RefPage{page(1, 20, 70)}, h.Refs[2:] }, true},
		{"all refs become a page", base, func(h *indexpb.Head) { h.Pages, h.Refs = []*indexpb.RefPage{page(1, 20, 100)}, nil }, true},
		{"refs become a page that lacks the first", base, func(h *indexpb.Head) { h.Pages, h.Refs = []*indexpb.RefPage{page(1, 40, 70)}, h.Refs[2:] }, false},
		{"refs become a page that lacks the last", base, func(h *indexpb.Head) { h.Pages, h.Refs = []*indexpb.RefPage{page(1, 20, 40)}, h.Refs[2:] }, false},
		{"refs become a page and are there still", base, func(h *indexpb.Head) { h.Pages = []*indexpb.RefPage{page(1, 20, 70)} }, false},
		{"refs are rewritten as one", base, func(h *indexpb.Head) { h.Refs = []*indexpb.Ref{ref(20, 100)} }, true},
		{"refs are rewritten as one that begins higher", base, func(h *indexpb.Head) { h.Refs = []*indexpb.Ref{ref(31, 100)} }, false},
		{"refs are rewritten as one, without what is dropped", base, func(h *indexpb.Head) { h.Refs = []*indexpb.Ref{ref(30, 100)} }, true},
		{"pages become one", paged, func(h *indexpb.Head) { h.Pages = []*indexpb.RefPage{page(2, 0, 60)} }, true},
		{"a page is lost", paged, func(h *indexpb.Head) { h.Pages = h.Pages[1:] }, false},
		{"a page is dropped", paged, func(h *indexpb.Head) { h.Trim, h.DroppedTo, h.Pages = 35, 35, h.Pages[1:] }, true},
		{"the last page is lost", paged, func(h *indexpb.Head) { h.Pages = h.Pages[:1] }, false},
		{"a quarantine begins", base, func(h *indexpb.Head) { h.Quarantine, h.Pins = "gap", pins }, true},
		{"a quarantine begins and a ref is lost", base, func(h *indexpb.Head) { h.Quarantine, h.Pins, h.Refs = "gap", pins, h.Refs[1:] }, false},
		{"a quarantine ends", stuck, func(h *indexpb.Head) { h.Quarantine, h.Pins = "", nil }, true},
		{"a quarantine ends and a ref is lost", stuck, func(h *indexpb.Head) { h.Quarantine, h.Pins, h.Refs = "", nil, h.Refs[:2] }, false},
		{"the tail of a quarantined head moves", stuck, func(h *indexpb.Head) { h.Tail = 120 }, false},
		{"a stream is deleted", base, func(h *indexpb.Head) { h.State = deleted }, true},
		{"a stream is deleted and drops all", base, func(h *indexpb.Head) { h.State, h.Refs = deleted, nil }, true},
		{"a deleted stream drops some", gone, func(h *indexpb.Head) { h.Refs = h.Refs[1:] }, true},
		{"a deleted stream drops all", gone, func(h *indexpb.Head) { h.Refs = nil }, true},
		{"a deleted stream's refs have a gap", gone, func(h *indexpb.Head) { h.Refs = []*indexpb.Ref{h.Refs[0], h.Refs[2]} }, false},
	} {
		t.Run(c.what, func(t *testing.T) { judge(t, headRule(c.old, changed(c.old, c.f), true), c.ok) })
	}
}

// Whatever is done to a head, by whom it may be, in any order: what is accepted
// leaves every record between dropped_to and the tail covered, once (I2).
func TestEveryRecordOfAHeadStaysCovered(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &indexpb.Head{}
		for range rapid.IntRange(1, 60).Draw(t, "changes") {
			next := changed(h, func(h *indexpb.Head) { scramble(t, h) })
			if headRule(h, next, true) != nil {
				continue
			}
			h = next
			times := make([]int, h.GetTail())
			count := func(from, to uint64) {
				for n := from; n < to; n++ {
					if n >= h.GetTail() {
						t.Fatalf("record %d is covered, and the tail is %d: %v", n, h.GetTail(), h)
					}
					times[n]++
				}
			}
			for _, p := range h.GetPages() {
				count(p.GetFirstSeq(), p.GetNextSeq())
			}
			for _, r := range h.GetRefs() {
				count(r.GetFirstSeq(), r.GetNextSeq())
			}
			for n := h.GetDroppedTo(); n < h.GetTail(); n++ {
				if times[n] != 1 {
					t.Fatalf("record %d is covered %d times: %v", n, times[n], h)
				}
			}
		}
	})
}

// scramble changes a head as a settler does, or as a broken one might.
func scramble(t *rapid.T, h *indexpb.Head) {
	n := func(what string, upTo uint64) uint64 { return rapid.Uint64Range(0, upTo).Draw(t, what) }
	for range rapid.IntRange(1, 3).Draw(t, "edits") {
		switch rapid.IntRange(0, 7).Draw(t, "edit") {
		case 0: // more records
			from := h.GetTail()
			h.Tail += 1 + n("records", 3)
			h.Refs = append(h.Refs, ref(from, h.GetTail()))
		case 1: // a trim
			h.Trim = n("trim", h.GetTail()+1)
			h.DroppedTo = h.GetTrim()
		case 2: // what the trim makes dead goes
			for len(h.GetPages()) > 0 && h.GetPages()[0].GetNextSeq() <= h.GetDroppedTo() {
				h.Pages = h.GetPages()[1:]
			}
			for len(h.GetPages()) == 0 && len(h.GetRefs()) > 0 && h.GetRefs()[0].GetNextSeq() <= h.GetDroppedTo() {
				h.Refs = h.GetRefs()[1:]
			}
		case 3: // the oldest refs become a page
			if k := int(n("refs", uint64(len(h.GetRefs())))); k > 0 {
				h.Pages = append(h.Pages, page(1, h.GetRefs()[0].GetFirstSeq(), h.GetRefs()[k-1].GetNextSeq()))
				h.Refs = h.GetRefs()[k:]
			}
		case 4: // a ref is lost
			if k := len(h.GetRefs()); k > 0 {
				i := int(n("lost", uint64(k-1)))
				h.Refs = append(h.Refs[:i:i], h.Refs[i+1:]...)
			}
		case 5: // the tail moves
			h.Tail += n("tail", 2)
		case 6: // a ref is another
			if k := len(h.GetRefs()); k > 0 {
				r := h.Refs[n("which", uint64(k-1))]
				r.FirstSeq, r.NextSeq = n("first", h.GetTail()), n("next", h.GetTail()+1)
			}
		case 7: // the page is lost
			h.Pages = nil
		}
	}
}
