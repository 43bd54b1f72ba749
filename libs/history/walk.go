package history

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"

	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// ErrGone means that the object of a page is gone although the head names it: the
// head is an old one.
var ErrGone = errors.New("the object of a page of refs is gone")

// Load reads the object of a page, with DecodePage. nil without an error means
// that the object is gone.
type Load func(ctx context.Context, p *indexpb.RefPage) (*indexpb.RefPageBody, error)

// read loads a page and checks that it is what was named; nil if it is gone.
func (load Load) read(ctx context.Context, p *indexpb.RefPage) (*indexpb.RefPageBody, error) {
	body, err := load(ctx, p)
	if err != nil {
		return nil, fmt.Errorf("load page %s: %w", p.GetObject(), err)
	}
	if body == nil {
		return nil, nil
	}
	return body, checkPage(p, body)
}

// must is read of a page that must be there.
func (load Load) must(ctx context.Context, p *indexpb.RefPage) (*indexpb.RefPageBody, error) {
	body, err := load.read(ctx, p)
	if err == nil && body == nil {
		err = fmt.Errorf("load page %s: %w", p.GetObject(), ErrGone)
	}
	return body, err
}

// Trim moves dropped_to to a number, removes what is dead then from the head, and
// returns all that becomes dead by it: refs, and pages all of which is dead. What
// was returned by an earlier Trim is not returned again, but may lie in such a
// page. At or below dropped_to there is nothing to do. After an error the head is
// unchanged.
func Trim(ctx context.Context, load Load, h *indexpb.Head, to stream.Seq) (refs []*indexpb.Ref, pages []*indexpb.RefPage, err error) {
	if err := check(h); err != nil {
		return nil, nil, err
	}
	t := trim{load: load, from: h.GetDroppedTo(), to: uint64(to)}
	if t.to <= t.from {
		return nil, nil, nil
	}
	if err := t.of(ctx, h.GetPages(), h.GetRefs()); err != nil {
		return nil, nil, err
	}
	h.Pages = slices.DeleteFunc(h.Pages, func(p *indexpb.RefPage) bool { return p.GetNextSeq() <= t.to })
	h.Refs = slices.DeleteFunc(h.Refs, func(r *indexpb.Ref) bool { return r.GetNextSeq() <= t.to })
	h.DroppedTo = t.to
	return t.refs, t.pages, nil
}

type trim struct {
	load     Load
	from, to uint64
	refs     []*indexpb.Ref
	pages    []*indexpb.RefPage
}

// of adds what becomes dead of lists in order.
func (t *trim) of(ctx context.Context, pages []*indexpb.RefPage, refs []*indexpb.Ref) error {
	for _, p := range pages {
		switch {
		case p.GetNextSeq() <= t.from:
		case p.GetNextSeq() <= t.to:
			t.pages = append(t.pages, p)
		case p.GetFirstSeq() < t.to:
			body, err := t.load.must(ctx, p)
			if err != nil {
				return err
			}
			if err := t.of(ctx, body.GetPages(), body.GetRefs()); err != nil {
				return err
			}
		}
	}
	for _, r := range refs {
		if r.GetNextSeq() > t.from && r.GetNextSeq() <= t.to {
			t.refs = append(t.refs, r)
		}
	}
	return nil
}

// Find returns the ref that holds a record; nil if the head does not name it, or
// it is below dropped_to.
func Find(ctx context.Context, load Load, h *indexpb.Head, seq stream.Seq) (*indexpb.Ref, error) {
	if uint64(seq) < h.GetDroppedTo() {
		return nil, nil
	}
	r, err := first(ctx, load, h, func(s span) bool { return s.next > uint64(seq) })
	if err != nil || r.GetFirstSeq() > uint64(seq) {
		return nil, err
	}
	return r, nil
}

// Seek returns the first ref that ends above dropped_to and whose last timestamp
// is at least ts; nil if there is none.
func Seek(ctx context.Context, load Load, h *indexpb.Head, ts stream.Millis) (*indexpb.Ref, error) {
	return first(ctx, load, h, func(s span) bool { return s.next > h.GetDroppedTo() && s.to >= int64(ts) })
}

// first returns the first ref that is it; once one is, all after it are too, and
// so is a page whose last ref is.
func first(ctx context.Context, load Load, h *indexpb.Head, is func(span) bool) (*indexpb.Ref, error) {
	if err := check(h); err != nil {
		return nil, err
	}
	pages, refs := h.GetPages(), h.GetRefs()
	for {
		i := sort.Search(len(pages), func(i int) bool { return is(ofPage(pages[i])) })
		if i == len(pages) {
			break
		}
		body, err := load.must(ctx, pages[i])
		if err != nil {
			return nil, err
		}
		pages, refs = body.GetPages(), body.GetRefs()
	}
	if i := sort.Search(len(refs), func(i int) bool { return is(ofRef(refs[i])) }); i < len(refs) {
		return refs[i], nil
	}
	return nil, nil
}

// Walk calls f with the refs that end above from and dropped_to, in order, until
// it returns false or an error.
func Walk(ctx context.Context, load Load, h *indexpb.Head, from stream.Seq, f func(*indexpb.Ref) (bool, error)) error {
	if err := check(h); err != nil {
		return err
	}
	w := walk{load: load, from: max(uint64(from), h.GetDroppedTo()), f: f}
	_, err := w.of(ctx, h.GetPages(), h.GetRefs())
	return err
}

type walk struct {
	load Load
	from uint64
	f    func(*indexpb.Ref) (bool, error)
}

// of reports whether to go on after lists in order.
func (w *walk) of(ctx context.Context, pages []*indexpb.RefPage, refs []*indexpb.Ref) (bool, error) {
	for _, p := range pages {
		if p.GetNextSeq() <= w.from {
			continue
		}
		body, err := w.load.must(ctx, p)
		if err != nil {
			return false, err
		}
		if more, err := w.of(ctx, body.GetPages(), body.GetRefs()); err != nil || !more {
			return false, err
		}
	}
	for _, r := range refs {
		if r.GetNextSeq() <= w.from {
			continue
		}
		if more, err := w.f(r); err != nil || !more {
			return false, err
		}
	}
	return true, nil
}

// WalkPage calls refs and pages with all that is below a page, whether it is dead
// or not; pages with a page after all that is below that one, and never with p
// itself. Below a page whose object is gone there is nothing. It ends with the
// first error.
func WalkPage(ctx context.Context, load Load, p *indexpb.RefPage, refs func(*indexpb.Ref) error, pages func(*indexpb.RefPage) error) error {
	body, err := load.read(ctx, p)
	if err != nil || body == nil {
		return err
	}
	for _, r := range body.GetRefs() {
		if err := refs(r); err != nil {
			return err
		}
	}
	for _, below := range body.GetPages() {
		if err := WalkPage(ctx, load, below, refs, pages); err != nil {
			return err
		}
		if err := pages(below); err != nil {
			return err
		}
	}
	return nil
}

// Names reports whether the head names a ref: its object and run stand at its
// range, which ends above dropped_to. A ref to the object of a page is named if a page
// with that object stands there.
func Names(ctx context.Context, load Load, h *indexpb.Head, r *indexpb.Ref) (bool, error) {
	if r.GetNextSeq() <= h.GetDroppedTo() {
		return false, nil
	}
	p, err := follow(ctx, load, h, stream.Seq(max(r.GetFirstSeq(), h.GetDroppedTo())), r.GetObject())
	if err != nil || p == nil {
		return false, err
	}
	found := p.ref()
	return found == nil || found.GetObject() == r.GetObject() && found.GetRun() == r.GetRun(), nil
}

// NamesPage reports whether the head names a page: its object stands at its
// range and level, and it ends above dropped_to.
func NamesPage(ctx context.Context, load Load, h *indexpb.Head, p *indexpb.RefPage) (bool, error) {
	if err := check(h); err != nil {
		return false, err
	}
	seq := max(p.GetFirstSeq(), h.GetDroppedTo())
	for pages := h.GetPages(); p.GetNextSeq() > seq; {
		i := sort.Search(len(pages), func(i int) bool { return pages[i].GetNextSeq() > seq })
		if i == len(pages) || pages[i].GetLevel() <= p.GetLevel() {
			return i < len(pages) && pages[i].GetLevel() == p.GetLevel() && pages[i].GetObject() == p.GetObject(), nil
		}
		body, err := load.must(ctx, pages[i])
		if err != nil {
			return false, err
		}
		pages = body.GetPages()
	}
	return false, nil
}
