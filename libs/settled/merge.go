package settled

import (
	"errors"

	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/stream"
)

// FrameBytes is the size of frames that are made of small chunks, in bytes of
// records before compression. A record that is larger is a frame by itself.
const FrameBytes = 512 << 10

// Merger makes frames of the chunks of one stream. It is not safe for concurrent
// use. After an error it only returns that error.
type Merger struct{}

// NewMerger returns a Merger that hands each frame to emit. The frame is valid
// only during the call.
func NewMerger(id stream.ID, emit func(frame []byte, h *chunk.Header) error) *Merger {
	return &Merger{}
}

// Add takes the next chunk of the stream. It must continue the one before it in
// number, content hash and time. b must not change before the next Flush
// returned.
//
// Errors wrap ErrCorrupt, chunk.ErrCorrupt or chunk.ErrVersion, or are those of
// emit.
func (m *Merger) Add(b []byte) error { return errors.New("not there yet") }

// Flush hands over what was gathered. More may be added afterwards.
func (m *Merger) Flush() error { return errors.New("not there yet") }
