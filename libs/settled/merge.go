package settled

import (
	"fmt"

	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/stream"
)

const (
	// FrameBytes limits frames that are made of small chunks, in bytes of records
	// before compression. A record that is larger is a frame by itself.
	FrameBytes = 512 << 10
	// verbatim is the stored payload from which a chunk becomes a frame as it is:
	// to make it again costs more than its header.
	verbatim = 128 << 10
)

// Merger makes frames of the chunks of one stream: few that are large of many
// that are small, with the same records. What it makes anew knows no producers
// and no batches any more. It is not safe for concurrent use. After an error it
// only returns that error.
type Merger struct {
	id   stream.ID
	emit func(frame []byte, h *chunk.Header) error
	err  error

	// After the last chunk that was added.
	started bool
	next    stream.Seq
	hash    stream.Hash
	last    stream.Millis

	records []stream.Record // gathered; they refer to the chunks that were added
	bytes   int             // they take at most, encoded
	before  stream.Hash     // before the first of them

	frame   []byte
	batches []chunk.InputBatch
}

// NewMerger returns a Merger that hands each frame to emit. The frame is valid
// only during the call.
func NewMerger(id stream.ID, emit func(frame []byte, h *chunk.Header) error) *Merger {
	return &Merger{id: id, emit: emit}
}

// Add takes the next chunk of the stream, whose checksums and content hash it
// verifies. It must continue the one before it in number, content hash and time.
// b must not change before the next Flush returned; what is held of it is at most
// FrameBytes of records.
//
// Errors wrap chunk.ErrCorrupt or chunk.ErrVersion, or are those of emit.
func (m *Merger) Add(b []byte) error {
	if m.err == nil {
		m.err = m.add(b)
	}
	return m.err
}

func (m *Merger) add(b []byte) error {
	h, records, err := chunk.Decode(b)
	if err == nil {
		err = chunk.VerifyHash(&h, records)
	}
	if err != nil {
		return fmt.Errorf("merge chunk of stream %s: %w", m.id, err)
	}
	if h.StreamID != m.id || m.started && (h.BaseSeq != m.next || h.HashBefore != m.hash || h.FirstTimestamp < m.last) {
		return fmt.Errorf("merge chunk of stream %s: %w: record %d of stream %s, hash %016x, at %d follows %d, %016x, %d", m.id, chunk.ErrCorrupt,
			h.BaseSeq, h.StreamID, h.HashBefore, h.FirstTimestamp, m.next, m.hash, m.last)
	}
	large := h.PayloadLength >= verbatim
	if large {
		if err := m.flush(); err != nil {
			return err
		}
	}
	m.started, m.next, m.hash, m.last = true, h.Next(), h.HashAfter, h.LastTimestamp
	if large {
		return m.emit(b, &h)
	}
	if len(m.records) == 0 {
		m.before = h.HashBefore
	}
	for i := range records {
		n := chunk.RawBound(records[i : i+1])
		if m.bytes+n > FrameBytes && len(m.records) > 0 {
			if err := m.flush(); err != nil {
				return err
			}
		}
		m.records = append(m.records, records[i])
		m.bytes += n
	}
	return nil
}

// Flush hands over what was gathered. More may be added afterwards.
func (m *Merger) Flush() error {
	if m.err == nil {
		m.err = m.flush()
	}
	return m.err
}

func (m *Merger) flush() error {
	if len(m.records) == 0 {
		return nil
	}
	m.batches = m.batches[:0]
	for rest := m.records; len(rest) > 0; {
		n := min(len(rest), stream.MaxBatchRecords)
		m.batches = append(m.batches, chunk.InputBatch{Records: rest[:n]})
		rest = rest[n:]
	}
	frame, h, err := chunk.Encode(m.frame[:0], chunk.Input{
		StreamID: m.id, BaseSeq: m.records[0].Seq, HashBefore: m.before, Batches: m.batches,
	})
	if err != nil {
		return fmt.Errorf("merge chunks of stream %s: %w", m.id, err)
	}
	// Where a chunk ends its content hash is known.
	if h.Next() == m.next && h.HashAfter != m.hash {
		return fmt.Errorf("merge chunks of stream %s: %w: content hash %016x before record %d, want %016x", m.id, chunk.ErrCorrupt,
			h.HashAfter, m.next, m.hash)
	}
	m.frame, m.before = frame, h.HashAfter
	// What is no longer needed of the chunks is not held.
	clear(m.records)
	m.records, m.bytes = m.records[:0], 0
	return m.emit(frame, &h)
}
