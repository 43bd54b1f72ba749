// Package settled is the format of a settled object: runs of records of one or
// more streams, each a list of frames, and a frame is a chunk (libs/chunk). So
// what reads a chunk from a slot reads a frame, with the same checksums (I10), and
// a small read fetches one frame.
//
// The bytes are specified in docs/formats.md.
package settled

import (
	"errors"

	"github.com/nova-stream/nova/libs/stream"
)

// Version is the version of the format that is written.
const Version = 1

// ErrCorrupt means that bytes are damaged, cut short, or no settled object.
var ErrCorrupt = errors.New("corrupt settled object")

// ErrVersion means that intact bytes have a version that this program does not
// know: a newer one wrote them.
var ErrVersion = errors.New("settled object has an unknown version")

// Frame is one chunk of a run.
type Frame struct {
	Offset        uint64 // in the object
	Length        uint32
	First, Next   stream.Seq
	LastTimestamp stream.Millis // of its last record
}

// Run is what an object's footer says of one run; the fields mean what those of
// indexpb.Ref mean.
type Run struct {
	StreamID       stream.ID
	First, Next    stream.Seq
	FirstTimestamp stream.Millis
	LastTimestamp  stream.Millis
	HashBefore     stream.Hash
	HashAfter      stream.Hash
	Offset, Length uint64
	Frames         uint32
	IndexOffset    uint64
	IndexLength    uint32
}
