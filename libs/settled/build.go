package settled

import (
	"errors"

	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/stream"
)

// Limits of one object.
const (
	// MaxBytes limits an object.
	MaxBytes = 64 << 20
	// MaxRuns limits its runs.
	MaxRuns = 4096
)

// ErrFull means that a frame does not fit into the object any more. One frame
// always fits into an object that has none.
var ErrFull = errors.New("settled object is full")

// Builder makes an object. It is not safe for concurrent use.
type Builder struct{}

// NewBuilder starts an object.
func NewBuilder() *Builder { return &Builder{} }

// Begin starts a run of a stream. A run to which no frame is added is none.
func (b *Builder) Begin(id stream.ID) {}

// Add adds a frame to the run that was begun last; h is its header. The frame is
// copied as it is: whoever hands it over has verified it. After an error the
// builder is as before; ErrFull asks for another object.
func (b *Builder) Add(frame []byte, h *chunk.Header) error { return errors.New("not there yet") }

// Size returns the bytes that Finish would return now.
func (b *Builder) Size() int { return 0 }

// Finish returns the object and its runs in their order: the place of a run is
// its number. The builder is used up.
func (b *Builder) Finish() ([]byte, []Run) { return nil, nil }
