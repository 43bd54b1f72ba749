package settled

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"

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
type Builder struct {
	out   []byte // preamble and frames
	runs  []Run
	index [][]byte  // per run, its rows
	begun stream.ID // of the run that the next frame starts
	fresh bool      // whether the next frame starts a run
	size  int
}

// NewBuilder starts an object.
func NewBuilder() *Builder {
	return &Builder{out: append([]byte(magic), Version, 0, 0, 0), size: preamble + trailer}
}

// Grow makes room for so many bytes of frames, and for what Finish adds to them, so
// that they are not copied again and again as the object grows. More may be added.
func (b *Builder) Grow(bytes int) {
	const perFrames = 16 // a share of the frames, for their rows and those of runs
	b.out = slices.Grow(b.out, min(bytes+bytes/perFrames, MaxBytes)+trailer)
}

// Begin starts a run of a stream. A run to which no frame is added is none.
func (b *Builder) Begin(id stream.ID) { b.begun, b.fresh = id, true }

// Add adds a frame to the run that was begun last; h is its header. The frame is
// copied as it is: whoever hands it over has verified it. It must continue the
// run in number, content hash and time. After an error the builder is as before;
// ErrFull asks for another object.
func (b *Builder) Add(frame []byte, h *chunk.Header) error {
	run := Run{
		StreamID: b.begun, First: h.BaseSeq, Next: h.BaseSeq, FirstTimestamp: h.FirstTimestamp, LastTimestamp: h.FirstTimestamp,
		HashBefore: h.HashBefore, HashAfter: h.HashBefore, Offset: uint64(len(b.out)),
	}
	more := len(frame) + frameRow
	if b.fresh {
		more += minRunBytes
	} else if len(b.runs) == 0 {
		return errors.New("add frame: no run was begun")
	} else {
		run = b.runs[len(b.runs)-1]
	}
	switch {
	case h.StreamID != run.StreamID:
		return fmt.Errorf("add frame: of stream %s to a run of %s", h.StreamID, run.StreamID)
	case h.BaseSeq != run.Next || h.HashBefore != run.HashAfter || h.FirstTimestamp < run.LastTimestamp:
		return fmt.Errorf("add frame: record %d, hash %016x, at %d does not continue the run at %d, %016x, %d",
			h.BaseSeq, h.HashBefore, h.FirstTimestamp, run.Next, run.HashAfter, run.LastTimestamp)
	case len(b.runs) > 0 && (b.size+more > MaxBytes || b.fresh && len(b.runs) == MaxRuns):
		return fmt.Errorf("add frame: %w: %d bytes to %d of %d, in %d runs", ErrFull, more, b.size, MaxBytes, len(b.runs))
	}
	run.Next, run.LastTimestamp, run.HashAfter = h.Next(), h.LastTimestamp, h.HashAfter
	run.Length += uint64(len(frame))
	run.Frames++
	if b.fresh {
		b.runs, b.index, b.fresh = append(b.runs, run), append(b.index, nil), false
	}
	last := len(b.runs) - 1
	b.runs[last] = run
	le := binary.LittleEndian
	rows := le.AppendUint32(b.index[last], uint32(len(frame)))
	rows = le.AppendUint32(rows, h.Count)
	b.index[last] = le.AppendUint64(rows, uint64(h.LastTimestamp))
	b.out = append(b.out, frame...)
	b.size += more
	return nil
}

// Size returns the bytes that Finish would return now.
func (b *Builder) Size() int { return b.size }

// Finish returns the object and its runs in their order: the place of a run is
// its number. Without a run there is no object. The builder is used up.
func (b *Builder) Finish() ([]byte, []Run) {
	if len(b.runs) == 0 {
		return nil, nil
	}
	le := binary.LittleEndian
	out := b.out
	for i := range b.runs {
		r, start := &b.runs[i], len(out)
		out = append(out, Version, 0, 0, 0)
		out = le.AppendUint32(out, r.Frames)
		out = le.AppendUint64(out, uint64(r.First))
		out = le.AppendUint64(out, r.Offset)
		out = append(out, b.index[i]...)
		out = le.AppendUint32(out, indexCRC(r.StreamID, out[start:]))
		r.IndexOffset, r.IndexLength = uint64(start), uint32(len(out)-start)
	}
	rows := len(out)
	for i := range b.runs {
		r := &b.runs[i]
		out = append(out, r.StreamID[:]...)
		out = le.AppendUint64(out, uint64(r.First))
		out = le.AppendUint64(out, uint64(r.Next))
		out = le.AppendUint64(out, uint64(r.FirstTimestamp))
		out = le.AppendUint64(out, uint64(r.LastTimestamp))
		out = le.AppendUint64(out, uint64(r.HashBefore))
		out = le.AppendUint64(out, uint64(r.HashAfter))
		out = le.AppendUint64(out, r.Offset)
		out = le.AppendUint64(out, r.Length)
		out = le.AppendUint32(out, r.Frames)
		out = le.AppendUint64(out, r.IndexOffset)
		out = le.AppendUint32(out, r.IndexLength)
	}
	end := len(out)
	out = le.AppendUint64(out, uint64(rows))
	out = le.AppendUint32(out, uint32(len(b.runs)))
	out = le.AppendUint32(out, crc32.Checksum(out[rows:end], castagnoli))
	out = append(out, Version, 0, 0, 0)
	out = le.AppendUint32(out, crc32.Checksum(out[end:], castagnoli))
	return append(out, magic...), b.runs
}
