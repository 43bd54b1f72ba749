package history

import (
	"errors"

	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// MaxPageBytes limits a page object.
const MaxPageBytes = 64 << 10

// ErrCorrupt means that bytes are damaged, cut short, no page, or one of another
// stream.
var ErrCorrupt = errors.New("corrupt page of refs")

// ErrVersion means that intact bytes have a version that this program does not
// know: a newer one wrote them.
var ErrVersion = errors.New("page of refs has an unknown version")

// EncodePage returns the bytes of a page object; body.stream_id is set.
func EncodePage(body *indexpb.RefPageBody) []byte { return nil }

// DecodePage returns what a page object of a stream holds.
//
// Errors wrap ErrCorrupt or ErrVersion.
func DecodePage(b []byte, id stream.ID) (*indexpb.RefPageBody, error) {
	return nil, errSoon
}

// PageOf returns the page that names the object of a body, of size bytes.
func PageOf(body *indexpb.RefPageBody, object string, size uint32) *indexpb.RefPage {
	return nil
}
