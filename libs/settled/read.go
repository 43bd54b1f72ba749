package settled

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/stream"
)

// ParseIndex returns the frames of a run, oldest first, from the bytes at its
// IndexOffset and IndexLength. The bytes of a run of another stream are refused;
// which run of its own it is, the caller compares with what named it.
//
// Errors wrap ErrCorrupt or ErrVersion.
func ParseIndex(b []byte, id stream.ID) ([]Frame, error) {
	le := binary.LittleEndian
	end := len(b) - crcBytes
	if end < indexFixed {
		return nil, fmt.Errorf("%w: %d bytes are no index of a run", ErrCorrupt, len(b))
	}
	if indexCRC(id, b[:end]) != le.Uint32(b[end:]) {
		return nil, fmt.Errorf("%w: index of a run of stream %s", ErrCorrupt, id)
	}
	// Version and checksum lie at the same places in every version.
	if err := known(b); err != nil {
		return nil, err
	}
	n, seq, offset := le.Uint32(b[4:]), stream.Seq(le.Uint64(b[8:])), le.Uint64(b[16:])
	rows := b[indexFixed:end]
	if n == 0 || uint64(n)*frameRow != uint64(len(rows)) || offset < preamble {
		return nil, fmt.Errorf("%w: index of %d frames in %d bytes, from %d", ErrCorrupt, n, len(rows), offset)
	}
	frames := make([]Frame, n)
	last := stream.Millis(math.MinInt64)
	for i := range frames {
		f := &frames[i]
		*f = Frame{
			Offset: offset, Length: le.Uint32(rows), First: seq, Next: seq + stream.Seq(le.Uint32(rows[4:])),
			LastTimestamp: stream.Millis(le.Uint64(rows[8:])),
		}
		offset += uint64(f.Length)
		if f.Length == 0 || offset < f.Offset || f.Next <= f.First || f.LastTimestamp < last {
			return nil, fmt.Errorf("%w: frame %d of a run: %+v after %d", ErrCorrupt, i, *f, last)
		}
		rows, seq, last = rows[frameRow:], f.Next, f.LastTimestamp
	}
	return frames, nil
}

// known returns ErrVersion unless version and reserved bytes are those that this
// program writes.
func known(v []byte) error {
	if v[0] != Version || v[1] != 0 || v[2] != 0 || v[3] != 0 {
		return fmt.Errorf("%w: %d, this program reads %d", ErrVersion, v[0], Version)
	}
	return nil
}

// Footer reads what an object of size bytes says of its runs: one read from its
// end, and another if the footer is large. read returns exactly the bytes asked
// for; it is called with ranges inside the object.
//
// Errors wrap ErrCorrupt or ErrVersion, or are those of read.
func Footer(size int64, read func(offset, length int64) ([]byte, error)) ([]Run, error) {
	if size < preamble+trailer {
		return nil, fmt.Errorf("%w: %d bytes are no settled object", ErrCorrupt, size)
	}
	le := binary.LittleEndian
	n := min(size, tailBytes)
	tail, err := exactly(read, size-n, n)
	if err != nil {
		return nil, err
	}
	t := tail[n-trailer:]
	if string(t[trailer-4:]) != magic || crc32.Checksum(t[:trailerCRC], castagnoli) != le.Uint32(t[trailerCRC:]) {
		return nil, fmt.Errorf("%w: no trailer", ErrCorrupt)
	}
	// Version, checksum and magic lie at the same place from the end in every version.
	if err := known(t[trailerCRC-4:]); err != nil {
		return nil, err
	}
	offset, count := le.Uint64(t), le.Uint32(t[8:])
	length := int64(count) * runRow
	if count == 0 || count > MaxRuns || offset < preamble || offset > uint64(size) || int64(offset)+length+trailer != size {
		return nil, fmt.Errorf("%w: %d runs at %d of %d bytes", ErrCorrupt, count, offset, size)
	}
	var rows []byte
	if length+trailer <= n {
		rows = tail[n-trailer-length : n-trailer]
	} else if rows, err = exactly(read, int64(offset), length); err != nil {
		return nil, err
	}
	if got, want := crc32.Checksum(rows, castagnoli), le.Uint32(t[12:]); got != want {
		return nil, fmt.Errorf("%w: checksum of the rows %08x, want %08x", ErrCorrupt, got, want)
	}
	runs := make([]Run, count)
	for i := range runs {
		runs[i] = parseRun(rows[i*runRow:])
	}
	if err := fill(runs, offset); err != nil {
		return nil, err
	}
	return runs, nil
}

// exactly reads length bytes.
func exactly(read func(offset, length int64) ([]byte, error), offset, length int64) ([]byte, error) {
	b, err := read(offset, length)
	if err != nil {
		return nil, fmt.Errorf("read settled object: %w", err)
	}
	if int64(len(b)) != length {
		return nil, fmt.Errorf("%w: read %d bytes of %d", ErrCorrupt, len(b), length)
	}
	return b, nil
}

func parseRun(b []byte) Run {
	le := binary.LittleEndian
	return Run{
		StreamID: stream.ID(b), First: stream.Seq(le.Uint64(b[16:])), Next: stream.Seq(le.Uint64(b[24:])),
		FirstTimestamp: stream.Millis(le.Uint64(b[32:])), LastTimestamp: stream.Millis(le.Uint64(b[40:])),
		HashBefore: stream.Hash(le.Uint64(b[48:])), HashAfter: stream.Hash(le.Uint64(b[56:])),
		Offset: le.Uint64(b[64:]), Length: le.Uint64(b[72:]), Frames: le.Uint32(b[80:]),
		IndexOffset: le.Uint64(b[84:]), IndexLength: le.Uint32(b[92:]),
	}
}

// fill checks that frames and indexes of the runs fill an object up to its rows.
func fill(runs []Run, rows uint64) error {
	at := uint64(preamble)
	for i := range runs {
		r := &runs[i]
		frames := uint64(r.Frames)
		if r.Offset != at || frames == 0 || r.Length < frames || r.Length > rows-at || r.Next < r.First || uint64(r.Next-r.First) < frames ||
			r.LastTimestamp < r.FirstTimestamp {
			return fmt.Errorf("%w: run %d is %+v, want it at %d", ErrCorrupt, i, *r, at)
		}
		at += r.Length
	}
	for i := range runs {
		r := &runs[i]
		if r.IndexOffset != at || uint64(r.IndexLength) != indexFixed+uint64(r.Frames)*frameRow+crcBytes || uint64(r.IndexLength) > rows-at {
			return fmt.Errorf("%w: index of run %d is %+v, want it at %d", ErrCorrupt, i, *r, at)
		}
		at += uint64(r.IndexLength)
	}
	if at != rows {
		return fmt.Errorf("%w: the indexes end at %d, the rows begin at %d", ErrCorrupt, at, rows)
	}
	return nil
}

// Parse verifies all of an object that is in memory, to the checksums of every
// frame, and returns its runs.
//
// Errors wrap ErrCorrupt or ErrVersion.
func Parse(b []byte) ([]Run, error) {
	runs, err := Footer(int64(len(b)), func(offset, length int64) ([]byte, error) { return b[offset : offset+length], nil })
	if err != nil {
		return nil, err
	}
	if string(b[:4]) != magic || known(b[4:]) != nil {
		return nil, fmt.Errorf("%w: no settled object of version %d starts with % x", ErrCorrupt, Version, b[:preamble])
	}
	for i := range runs {
		r := &runs[i]
		if err := check(b, r); err != nil {
			return nil, fmt.Errorf("run %d of stream %s: %w", i, r.StreamID, err)
		}
	}
	return runs, nil
}

// check verifies the index and the frames of a run.
func check(b []byte, r *Run) error {
	frames, err := ParseIndex(b[r.IndexOffset:r.IndexOffset+uint64(r.IndexLength)], r.StreamID)
	if err != nil {
		return err
	}
	last := frames[len(frames)-1]
	if frames[0].Offset != r.Offset || last.Offset+uint64(last.Length) != r.Offset+r.Length || frames[0].First != r.First ||
		last.Next != r.Next || last.LastTimestamp != r.LastTimestamp {
		return fmt.Errorf("%w: the index says %+v to %+v, the footer %+v", ErrCorrupt, frames[0], last, *r)
	}
	hash, at := r.HashBefore, r.FirstTimestamp
	for i, f := range frames {
		h, err := chunk.Check(b[f.Offset : f.Offset+uint64(f.Length)])
		if errors.Is(err, chunk.ErrVersion) {
			return fmt.Errorf("%w: frame %d: %w", ErrVersion, i, err)
		}
		if err != nil {
			return fmt.Errorf("%w: frame %d: %w", ErrCorrupt, i, err)
		}
		if h.StreamID != r.StreamID || h.BaseSeq != f.First || h.Next() != f.Next || h.HashBefore != hash || h.LastTimestamp != f.LastTimestamp ||
			h.FirstTimestamp < at || i == 0 && h.FirstTimestamp != at {
			return fmt.Errorf("%w: frame %d is %+v, the index says %+v", ErrCorrupt, i, h, f)
		}
		hash, at = h.HashAfter, h.LastTimestamp
	}
	if hash != r.HashAfter {
		return fmt.Errorf("%w: content hash %016x after the last frame, the footer says %016x", ErrCorrupt, hash, r.HashAfter)
	}
	return nil
}
