package history

import (
	"context"
	"errors"

	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// ErrBroken means that refs and pages do not fit together: a gap, an overlap, or
// a page that is not what the one that names it says.
var ErrBroken = errors.New("the stream's settled history is broken")

var errSoon = errors.New("not there yet")

// Load reads the object of a page, with DecodePage. nil without an error means
// that the object is gone.
type Load func(ctx context.Context, p *indexpb.RefPage) (*indexpb.RefPageBody, error)

// Next returns one more than the number of the last settled record; 0 if the
// head names nothing.
func Next(h *indexpb.Head) stream.Seq { return 0 }

// Stored returns the bytes of the frames of all refs, also of those that are
// dead but in a page that is not.
func Stored(h *indexpb.Head) uint64 { return 0 }

// Append adds the next ref to a head. It must continue exactly what is there; if
// nothing is, it must begin at or below dropped_to and end above it. So Trim
// comes first. Errors wrap ErrBroken; the head is then unchanged.
func Append(h *indexpb.Head, r *indexpb.Ref) error { return errSoon }

// Overflow returns the page that must be written next because the head names
// too much, and what changes the head once the page's object (of size bytes) is
// there; nil if nothing must be written. It is to be called until it returns nil.
func Overflow(h *indexpb.Head) (body *indexpb.RefPageBody, replace func(object string, size uint32)) {
	return nil, nil
}

// Trim moves dropped_to to a number, removes what is dead then from the head, and
// returns all that becomes dead by it: refs, and pages all of which is dead.
// Nothing below the old dropped_to is returned but what lies in such a page. After
// an error the head is unchanged.
func Trim(ctx context.Context, load Load, h *indexpb.Head, to stream.Seq) (refs []*indexpb.Ref, pages []*indexpb.RefPage, err error) {
	return nil, nil, errSoon
}

// Find returns the ref that holds a record; nil if the head does not name it, or
// it is below dropped_to.
func Find(ctx context.Context, load Load, h *indexpb.Head, seq stream.Seq) (*indexpb.Ref, error) {
	return nil, errSoon
}

// Seek returns the first ref that ends above dropped_to and whose last timestamp
// is at least ts; nil if there is none.
func Seek(ctx context.Context, load Load, h *indexpb.Head, ts stream.Millis) (*indexpb.Ref, error) {
	return nil, errSoon
}

// Walk calls f with the refs that end above from and dropped_to, in order, until
// it returns false or an error.
func Walk(ctx context.Context, load Load, h *indexpb.Head, from stream.Seq, f func(*indexpb.Ref) (bool, error)) error {
	return errSoon
}

// WalkPage calls refs and pages with all that is below a page, whether it is dead
// or not; pages with a page after all that is below that one, and never with p
// itself. Nothing is below a page whose object is gone.
func WalkPage(ctx context.Context, load Load, p *indexpb.RefPage, refs func(*indexpb.Ref) error, pages func(*indexpb.RefPage) error) error {
	return errSoon
}

// Names reports whether the head names a ref: its object and run stand at its
// range, which ends above dropped_to.
func Names(ctx context.Context, load Load, h *indexpb.Head, r *indexpb.Ref) (bool, error) {
	return false, errSoon
}

// NamesPage reports whether the head names a page: its object stands at its
// range and level, and it ends above dropped_to.
func NamesPage(ctx context.Context, load Load, h *indexpb.Head, p *indexpb.RefPage) (bool, error) {
	return false, errSoon
}
