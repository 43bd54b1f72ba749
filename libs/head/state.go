package head

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/stream"
)

// ErrBroken means that an entry does not follow the state: a gap, a repeated
// number, or a content hash that does not connect. The stream's log is damaged.
var ErrBroken = errors.New("entry does not follow the stream's state")

// State is a stream at a position of its shard's log. The zero State is an
// empty stream before its first entry. It is not safe for concurrent use.
type State struct {
	// Folded is the last entry applied; Epoch 0 means none.
	Folded        stream.Position
	Tail          stream.Seq
	LastTimestamp stream.Millis
	Hash          stream.Hash
	Trim          stream.Seq
	Token         string
	Sealed        bool
	Deleted       bool // then also Sealed
	Producers     Producers
}

// Entry is what a footer or directory says of one entry of the stream.
type Entry struct {
	Position stream.Position
	Kind     bundle.Kind
	// Timestamp is when the entry was numbered, by its leader's clock. 0, of a
	// chunk: its last record's stands for it.
	Timestamp stream.Millis
	// Chunk is the header of a Chunk entry.
	Chunk *chunk.Header
	// Argument is a control entry's: see TrimArgument; a token's bytes.
	Argument []byte
}

// Fold applies one entry. An entry at or below Folded was applied before and
// is passed over: applied is false. On ErrBroken the state is unchanged.
func (s *State) Fold(e Entry) (applied bool, err error) {
	if s.Folded.Epoch != 0 && !s.Folded.Less(e.Position) {
		return false, nil
	}
	switch e.Kind {
	case bundle.KindChunk:
		if err := s.follows(e.Chunk); err != nil {
			return false, err
		}
		at := e.Timestamp
		if at == 0 {
			at = e.Chunk.LastTimestamp
		}
		s.AppendChunk(e.Chunk, at)
	case bundle.KindSeal:
		s.Sealed = true
	case bundle.KindDelete:
		s.Sealed, s.Deleted = true, true
	case bundle.KindToken:
		s.Token = string(e.Argument)
	case bundle.KindTrim:
		to, err := ParseTrim(e.Argument)
		if err != nil {
			return false, err
		}
		s.Trim = max(s.Trim, min(to, s.Tail))
	default:
		return false, fmt.Errorf("entry kind %d at epoch %d entry %d: %w", e.Kind, e.Position.Epoch, e.Position.Entry, ErrBroken)
	}
	s.Folded = e.Position
	return true, nil
}

func (s *State) follows(h *chunk.Header) error {
	switch {
	case h.BaseSeq != s.Tail:
		return fmt.Errorf("chunk starts at %d, the tail is %d: %w", h.BaseSeq, s.Tail, ErrBroken)
	case h.HashBefore != s.Hash:
		return fmt.Errorf("chunk at %d: content hash %016x does not follow %016x: %w", h.BaseSeq, h.HashBefore, s.Hash, ErrBroken)
	case h.Count > 0 && h.FirstTimestamp < s.LastTimestamp:
		return fmt.Errorf("chunk at %d: timestamp %d is before %d: %w", h.BaseSeq, h.FirstTimestamp, s.LastTimestamp, ErrBroken)
	}
	return nil
}

// AppendChunk moves the state over a chunk that is known to follow it and was
// numbered at a time.
func (s *State) AppendChunk(h *chunk.Header, numbered stream.Millis) {
	at := h.BaseSeq
	for i := range h.Batches {
		b := &h.Batches[i]
		next := at + stream.Seq(b.Count)
		if b.Producer.ID != "" {
			s.Producers.Record(b.Producer, Batch{
				Seq: b.Producer.Batch, First: at, Next: next,
				FirstTimestamp: b.FirstTimestamp, LastTimestamp: b.LastTimestamp, Hash: b.HashAfter,
			}, numbered)
		}
		s.Sealed = s.Sealed || b.Seal
		at = next
	}
	s.Tail = at
	s.Hash = h.HashAfter
	if h.Count > 0 {
		s.LastTimestamp = h.LastTimestamp
	}
}

// TrimArgument encodes the argument of a TRIM entry: the first number that
// stays, 8 bytes little endian.
func TrimArgument(to stream.Seq) []byte {
	return binary.LittleEndian.AppendUint64(nil, uint64(to))
}

// ParseTrim decodes the argument of a TRIM entry.
func ParseTrim(b []byte) (stream.Seq, error) {
	if len(b) != 8 {
		return 0, fmt.Errorf("trim argument of %d bytes, want 8: %w", len(b), ErrBroken)
	}
	return stream.Seq(binary.LittleEndian.Uint64(b)), nil
}
