package history

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// ErrNotNamed means that a head does not name what is to be replaced.
var ErrNotNamed = errors.New("the head does not name the ref")

// Put writes the object of a page and returns its key and its size in bytes. No head
// names it yet.
type Put func(ctx context.Context, body *indexpb.RefPageBody) (object string, size uint32, err error)

// Replace has the head name a ref to the same records in the place of one that it
// names. If that is in a page, the page is written anew by put, and so are those above
// it: deepest first, one per level. It returns the pages that the head does not name
// any more; all else that is below them it names as before. After an error the head is
// unchanged.
//
// Errors wrap ErrNotNamed, ErrGone or ErrBroken, or are those of load and put.
func Replace(ctx context.Context, load Load, h *indexpb.Head, old, with *indexpb.Ref, put Put) ([]*indexpb.RefPage, error) {
	if err := checkRef(with); err != nil {
		return nil, err
	}
	if ofRef(old) != ofRef(with) || old.GetHashBefore() != with.GetHashBefore() || old.GetHashAfter() != with.GetHashAfter() {
		return nil, fmt.Errorf("%w: %v is to replace %v, which is of other records", ErrBroken, with, old)
	}
	p, err := follow(ctx, load, h, stream.Seq(max(old.GetFirstSeq(), h.GetDroppedTo())), "")
	if err != nil {
		return nil, err
	}
	if p == nil || !proto.Equal(p.ref(), old) {
		return nil, fmt.Errorf("%w: %v", ErrNotNamed, old)
	}
	if len(p.pages) == 0 {
		h.Refs = slices.Clone(h.GetRefs())
		h.Refs[p.at] = with
		return nil, nil
	}
	var page *indexpb.RefPage // that was written last
	for i := len(p.pages) - 1; i >= 0; i-- {
		body := &indexpb.RefPageBody{StreamId: h.GetStreamId(), Level: p.pages[i].GetLevel(), Refs: slices.Clone(p.bodies[i].GetRefs()), Pages: slices.Clone(p.bodies[i].GetPages())}
		if page == nil {
			body.Refs[p.at] = with
		} else {
			body.Pages[p.places[i+1]] = page
		}
		key, size, err := put(ctx, body)
		if err != nil {
			return nil, err
		}
		page = PageOf(body, key, size)
	}
	h.Pages = slices.Clone(h.GetPages())
	h.Pages[p.places[0]] = page
	return p.pages, nil
}

// path is the way from a head to a record, up to a ref or a page.
type path struct {
	pages  []*indexpb.RefPage     // the highest first
	places []int                  // of each in the list that names it
	bodies []*indexpb.RefPageBody // of each
	refs   []*indexpb.Ref         // the list at the end; nil if the path ends at a page
	at     int                    // in refs
}

// ref is what the path ends at; nil: a page.
func (p *path) ref() *indexpb.Ref {
	if p.refs == nil {
		return nil
	}
	return p.refs[p.at]
}

// follow returns the path to the ref that holds a record; if it leads by a page whose
// object is until, it ends there. nil: the head names no ref that holds the record.
func follow(ctx context.Context, load Load, h *indexpb.Head, seq stream.Seq, until string) (*path, error) {
	if err := check(h); err != nil {
		return nil, err
	}
	pages, refs := h.GetPages(), h.GetRefs()
	p := &path{}
	for {
		i := sort.Search(len(pages), func(i int) bool { return pages[i].GetNextSeq() > uint64(seq) })
		if i == len(pages) {
			break
		}
		if pages[i].GetFirstSeq() > uint64(seq) {
			return nil, nil
		}
		if until != "" && pages[i].GetObject() == until {
			return p, nil
		}
		body, err := load.must(ctx, pages[i])
		if err != nil {
			return nil, err
		}
		p.pages, p.places, p.bodies = append(p.pages, pages[i]), append(p.places, i), append(p.bodies, body)
		pages, refs = body.GetPages(), body.GetRefs()
	}
	p.refs = refs
	p.at = sort.Search(len(refs), func(i int) bool { return refs[i].GetNextSeq() > uint64(seq) })
	if p.at == len(refs) || refs[p.at].GetFirstSeq() > uint64(seq) {
		return nil, nil
	}
	return p, nil
}
