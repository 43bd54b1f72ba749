package bundle

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/stream"
)

// ErrCorrupt means that bytes are damaged, cut short, or of another kind.
var ErrCorrupt = errors.New("corrupt bundle")

// ErrVersion means that intact bytes have a version that this program does not
// know: a newer one wrote them.
var ErrVersion = errors.New("bundle has an unknown version")

// Kind says what an entry is.
type Kind uint8

// The kinds of entries. Their numbers are part of the format.
const (
	KindChunk  Kind = 1 // body: an encoded chunk
	KindFence  Kind = 2 // lower epochs of the shard end here; no body
	KindSeal   Kind = 3 // the stream is closed for appends; no body
	KindDelete Kind = 4 // the stream is deleted; no body
	KindTrim   Kind = 5 // body: the first number that stays, 8 bytes little endian
	KindToken  Kind = 6 // body: the new fencing token; empty clears it
)

func (k Kind) String() string {
	names := [...]string{"none", "chunk", "fence", "seal", "delete", "trim", "token"}
	if int(k) < len(names) {
		return names[k]
	}
	return "unknown"
}

// Entry is one item of a bundle.
type Entry struct {
	Kind      Kind
	Shard     stream.Shard
	Epoch     stream.Epoch
	EntryNo   stream.EntryNo
	StreamID  stream.ID     // zero for a fence, and only for it
	Timestamp stream.Millis // when it was numbered, by its leader's clock
	Body      []byte
}

const (
	entryMagic  = 0xE7
	entryHeader = 1 + 1 + 4 + 8 + 8 + 16 + 8 + 4 // magic .. body length
	crcBytes    = 4

	// EntryOverhead is what an entry takes beside its body, in bytes.
	EntryOverhead = entryHeader + crcBytes
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendEntryHeader encodes what precedes the body; a CRC32C over both follows.
func appendEntryHeader(dst []byte, e *Entry) []byte {
	le := binary.LittleEndian
	dst = append(dst, entryMagic, byte(e.Kind))
	dst = le.AppendUint32(dst, uint32(e.Shard))
	dst = le.AppendUint64(dst, uint64(e.Epoch))
	dst = le.AppendUint64(dst, uint64(e.EntryNo))
	dst = append(dst, e.StreamID[:]...)
	dst = le.AppendUint64(dst, uint64(e.Timestamp))
	return le.AppendUint32(dst, uint32(len(e.Body)))
}

func parseEntryHeader(b []byte) (Entry, int) {
	le := binary.LittleEndian
	return Entry{
		Kind: Kind(b[1]), Shard: stream.Shard(le.Uint32(b[2:])), Epoch: stream.Epoch(le.Uint64(b[6:])),
		EntryNo: stream.EntryNo(le.Uint64(b[14:])), StreamID: stream.ID(b[22:38]), Timestamp: stream.Millis(le.Uint64(b[38:])),
	}, int(le.Uint32(b[46:]))
}

// ParseEntry verifies and decodes one entry from exactly its bytes. Body
// aliases b. The caller compares it with the entry it expects.
func ParseEntry(b []byte) (Entry, error) {
	if len(b) < EntryOverhead || b[0] != entryMagic {
		return Entry{}, fmt.Errorf("%w: %d bytes are no entry", ErrCorrupt, len(b))
	}
	e, n := parseEntryHeader(b)
	if n != len(b)-EntryOverhead {
		return Entry{}, fmt.Errorf("%w: entry of %d bytes says its body has %d", ErrCorrupt, len(b), n)
	}
	end := len(b) - crcBytes
	if got, want := crc32.Checksum(b[:end], castagnoli), binary.LittleEndian.Uint32(b[end:]); got != want {
		return Entry{}, fmt.Errorf("%w: entry checksum %08x, want %08x", ErrCorrupt, got, want)
	}
	e.Body = b[entryHeader:end:end]
	return e, e.check()
}

// check tests what every entry promises.
func (e *Entry) check() error {
	if (e.Kind == KindFence) != e.StreamID.IsZero() {
		return fmt.Errorf("%w: %s entry of stream %s", ErrCorrupt, e.Kind, e.StreamID)
	}
	want := -1
	switch e.Kind {
	case KindChunk:
		if len(e.Body) == 0 {
			return fmt.Errorf("%w: chunk entry without a chunk", ErrCorrupt)
		}
	case KindFence, KindSeal, KindDelete:
		want = 0
	case KindTrim:
		want = 8
	case KindToken:
		if len(e.Body) > stream.MaxTokenBytes {
			return fmt.Errorf("%w: token of %d bytes", ErrCorrupt, len(e.Body))
		}
	default:
		return fmt.Errorf("%w: entry kind %d", ErrCorrupt, e.Kind)
	}
	if want >= 0 && len(e.Body) != want {
		return fmt.Errorf("%w: %s entry with a body of %d bytes", ErrCorrupt, e.Kind, len(e.Body))
	}
	return nil
}

// FooterEntry is what a footer says of an entry: where its bytes are, and
// everything but a chunk's payload.
type FooterEntry struct {
	Kind      Kind
	Shard     stream.Shard
	Epoch     stream.Epoch
	EntryNo   stream.EntryNo
	StreamID  stream.ID
	Timestamp stream.Millis
	Offset    uint32 // of the entry, bytes from the bundle's start
	Length    uint32 // bytes of the entry
	// Header is the encoded chunk header of a chunk, the body of any other.
	Header []byte
	Chunk  *chunk.Header // of a chunk
}
