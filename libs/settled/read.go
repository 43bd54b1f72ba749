package settled

import (
	"errors"

	"github.com/nova-stream/nova/libs/stream"
)

// ParseIndex returns the frames of a run, oldest first, from the bytes at its
// IndexOffset and IndexLength. The bytes of a run of another stream are refused.
//
// Errors wrap ErrCorrupt or ErrVersion.
func ParseIndex(b []byte, id stream.ID) ([]Frame, error) { return nil, errors.New("not there yet") }

// Footer reads what an object of size bytes says of its runs: one read from its
// end, and another if the footer is large. read returns exactly the bytes asked
// for; it is called with ranges inside the object.
//
// Errors wrap ErrCorrupt or ErrVersion, or are those of read.
func Footer(size int64, read func(offset, length int64) ([]byte, error)) ([]Run, error) {
	return nil, errors.New("not there yet")
}

// Parse verifies all of an object that is in memory and returns its runs.
//
// Errors wrap ErrCorrupt or ErrVersion.
func Parse(b []byte) ([]Run, error) { return nil, errors.New("not there yet") }
