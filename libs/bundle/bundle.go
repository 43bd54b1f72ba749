package bundle

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/stream"
)

// Version is the format version that a Builder writes.
const Version = 1

const (
	bundleMagic = "NOVB"
	sealMagic   = "NOVS"

	// preamble: magic, version, profile, 2 reserved, chain, flight, slot, CRC.
	// A SEAL starts alike, with its attempt id in the place of the flight's.
	preamble   = 4 + 1 + 1 + 2 + 16 + 16 + 8 + crcBytes
	slotOffset = preamble - crcBytes - 8
	sealBytes  = preamble + 16 + crcBytes
	// trailer: footer offset, footer length, entry count, footer CRC, trailer
	// CRC, magic. No checksum covers the entries as a whole: each has its own.
	trailer    = 4 + 4 + 4 + 4 + crcBytes + 4
	trailerCRC = 4 + 4 + 4 + 4 // where it lies
	// footerEntry: offset and length, and the entry's header without its body.
	footerEntry = 4 + 4 + entryHeader

	// IdentBytes is how much of an object's start Identify needs.
	IdentBytes = preamble
	// MaxBytes limits a bundle.
	MaxBytes = 64 << 20
	// TailBytes is a good first suffix to read for ParseTail.
	TailBytes = 64 << 10
)

// Builder gathers the entries of one flight. The zero value is not usable.
type Builder struct {
	preamble []byte
	entries  []Entry
	size     int // bytes of the preamble and the entries
	footer   []byte
}

// NewBuilder starts a flight of a chain.
func NewBuilder(chain stream.ChainID, flight stream.FlightID, profile stream.Profile) *Builder {
	b := &Builder{preamble: make([]byte, 0, preamble), size: preamble}
	b.preamble = append(b.preamble, bundleMagic...)
	b.preamble = append(b.preamble, Version, byte(profile), 0, 0)
	b.preamble = append(b.preamble, chain[:]...)
	b.preamble = append(b.preamble, flight[:]...)
	return b
}

// Add appends an entry and returns where it lies. Its body is kept, and copied
// by Finish: it must not change until then. Add fails, and adds nothing, for an
// entry that breaks the format's rules or does not fit. The chunk's payload is
// not looked at: whoever took it in did (chunk.Check).
func (b *Builder) Add(e Entry) (offset, length uint32, err error) {
	if err := e.check(); err != nil {
		return 0, 0, err
	}
	header := e.Body
	if e.Kind == KindChunk {
		h, n, err := chunk.ParseHeader(e.Body)
		if err != nil {
			return 0, 0, fmt.Errorf("add entry: %w", err)
		}
		if h.StreamID != e.StreamID || n+int(h.PayloadLength) != len(e.Body) {
			return 0, 0, fmt.Errorf("%w: entry of stream %s, %d bytes, holds a chunk of stream %s, %d bytes",
				ErrCorrupt, e.StreamID, len(e.Body), h.StreamID, n+int(h.PayloadLength))
		}
		header = e.Body[:n]
	}
	if b.Size()+EntryOverhead+len(e.Body)+footerEntry+len(header) > MaxBytes {
		return 0, 0, fmt.Errorf("add entry of %d bytes to a bundle of %d: the limit is %d", len(e.Body), b.Size(), MaxBytes)
	}
	offset, length = uint32(b.size), uint32(EntryOverhead+len(e.Body))
	b.size += int(length)
	b.entries = append(b.entries, e)
	le := binary.LittleEndian
	b.footer = le.AppendUint32(b.footer, offset)
	b.footer = le.AppendUint32(b.footer, length)
	// The footer has the entry's header, of what the footer has of its body.
	e.Body = header
	b.footer = appendEntryHeader(b.footer, &e)
	b.footer = append(b.footer, header...)
	return offset, length, nil
}

// Size returns the bytes that Finish would return now.
func (b *Builder) Size() int { return b.size + len(b.footer) + trailer }

// Count returns the number of entries.
func (b *Builder) Count() int { return len(b.entries) }

// Finish returns the bundle for a slot. The builder is used up: a flight goes
// into one slot only, and every try to put it there must write these bytes.
func (b *Builder) Finish(slot stream.Slot) []byte {
	le := binary.LittleEndian
	start := le.AppendUint64(b.preamble, uint64(slot))
	start = le.AppendUint32(start, crc32.Checksum(start, castagnoli))
	// Large bodies are copied once, into memory that is taken in one piece and not
	// cleared before: that is what Join does.
	parts := make([][]byte, 0, 3*len(b.entries)+3)
	parts = append(parts, start)
	frames := make([]byte, 0, len(b.entries)*EntryOverhead)
	for i := range b.entries {
		e, at := &b.entries[i], len(frames)
		frames = appendEntryHeader(frames, e)
		header := frames[at:]
		frames = le.AppendUint32(frames, crc32.Update(crc32.Checksum(header, castagnoli), castagnoli, e.Body))
		parts = append(parts, header, e.Body, frames[len(frames)-crcBytes:])
	}
	end := make([]byte, 0, trailer)
	end = le.AppendUint32(end, uint32(b.size))
	end = le.AppendUint32(end, uint32(len(b.footer)))
	end = le.AppendUint32(end, uint32(len(b.entries)))
	end = le.AppendUint32(end, joinedCRC(start, b.footer))
	end = le.AppendUint32(end, crc32.Checksum(end, castagnoli))
	end = append(end, bundleMagic...)
	out := bytes.Join(append(parts, b.footer, end), nil)
	*b = Builder{}
	return out
}

// joinedCRC is the checksum over a preamble and what belongs to it: a footer
// that is read apart from the entries proves by it which slot and flight it is
// of. The preamble's own checksum is left out, because a CRC over bytes and
// their CRC is the same for all bytes and would prove nothing.
func joinedCRC(start, rest []byte) uint32 {
	return crc32.Update(crc32.Checksum(start[:preamble-crcBytes], castagnoli), castagnoli, rest)
}

// Ident says what an object in a slot is, from its first IdentBytes bytes.
type Ident struct {
	IsSeal  bool
	Chain   stream.ChainID
	Slot    stream.Slot
	Flight  stream.FlightID // of a bundle
	Profile stream.Profile  // of a bundle
}

// Identify verifies and reads the start of an object: of a bundle or a SEAL. It
// says nothing of what follows. The caller compares chain and slot with those
// it asked for.
func Identify(b []byte) (Ident, error) {
	if len(b) < IdentBytes {
		return Ident{}, fmt.Errorf("%w: %d bytes are neither bundle nor SEAL", ErrCorrupt, len(b))
	}
	le, end := binary.LittleEndian, preamble-crcBytes
	isSeal := string(b[:4]) == sealMagic
	if !isSeal && string(b[:4]) != bundleMagic {
		return Ident{}, fmt.Errorf("%w: no bundle or SEAL starts with % x", ErrCorrupt, b[:4])
	}
	if got, want := crc32.Checksum(b[:end], castagnoli), le.Uint32(b[end:]); got != want {
		return Ident{}, fmt.Errorf("%w: preamble checksum %08x, want %08x", ErrCorrupt, got, want)
	}
	// The preamble stays as it is in every version, so that a reader of any
	// version knows a SEAL and its own flight.
	if b[4] != Version || b[6] != 0 || b[7] != 0 {
		return Ident{}, fmt.Errorf("%w: %d, this program reads %d", ErrVersion, b[4], Version)
	}
	id := Ident{IsSeal: isSeal, Chain: stream.ChainID(b[8:24]), Slot: stream.Slot(le.Uint64(b[slotOffset:]))}
	if !isSeal {
		id.Flight, id.Profile = stream.FlightID(b[24:40]), stream.Profile(b[5])
	}
	return id, nil
}

// Footer is what is known of a bundle without its payloads.
type Footer struct {
	Ident

	Size    int64 // bytes of the bundle
	Entries []FooterEntry
}

// ParseTail reads a footer from the start and the end of an object of size
// bytes: start is its first IdentBytes, tail its last bytes. If tail is too
// short, need says how many are needed and the footer is not valid.
func ParseTail(start, tail []byte, size int64) (f Footer, need int64, err error) {
	id, err := Identify(start)
	if err != nil {
		return Footer{}, 0, err
	}
	if id.IsSeal {
		return Footer{Ident: id, Size: size}, 0, nil
	}
	if size > MaxBytes || len(tail) < trailer || int64(len(tail)) > size {
		return Footer{}, 0, fmt.Errorf("%w: tail of %d bytes of %d", ErrCorrupt, len(tail), size)
	}
	le := binary.LittleEndian
	t := tail[len(tail)-trailer:]
	if string(t[trailer-4:]) != bundleMagic || crc32.Checksum(t[:trailerCRC], castagnoli) != le.Uint32(t[trailerCRC:]) {
		return Footer{}, 0, fmt.Errorf("%w: no trailer", ErrCorrupt)
	}
	offset, length, count := int64(le.Uint32(t)), int64(le.Uint32(t[4:])), le.Uint32(t[8:])
	if offset < preamble || offset+length+trailer != size {
		return Footer{}, 0, fmt.Errorf("%w: footer at %d of %d bytes in %d", ErrCorrupt, offset, length, size)
	}
	if length+trailer > int64(len(tail)) {
		return Footer{}, length + trailer, nil
	}
	raw := tail[int64(len(tail))-length-trailer : len(tail)-trailer]
	if got, want := joinedCRC(start, raw), le.Uint32(t[12:]); got != want {
		return Footer{}, 0, fmt.Errorf("%w: footer checksum %08x, want %08x", ErrCorrupt, got, want)
	}
	f = Footer{Ident: id, Size: size}
	if int64(count)*footerEntry > length {
		return Footer{}, 0, fmt.Errorf("%w: %d entries in a footer of %d bytes", ErrCorrupt, count, length)
	}
	f.Entries = make([]FooterEntry, count)
	at := int64(preamble)
	for i := range f.Entries {
		var n int
		if f.Entries[i], n, err = parseFooterEntry(raw); err != nil {
			return Footer{}, 0, fmt.Errorf("entry %d: %w", i, err)
		}
		// Entries lie side by side, and nothing else does.
		if int64(f.Entries[i].Offset) != at {
			return Footer{}, 0, fmt.Errorf("%w: entry %d at %d, want %d", ErrCorrupt, i, f.Entries[i].Offset, at)
		}
		at += int64(f.Entries[i].Length)
		raw = raw[n:]
	}
	if len(raw) != 0 || at != offset {
		return Footer{}, 0, fmt.Errorf("%w: %d bytes after the footer's entries, which end at %d of %d", ErrCorrupt, len(raw), at, offset)
	}
	return f, 0, nil
}

func parseFooterEntry(b []byte) (FooterEntry, int, error) {
	le := binary.LittleEndian
	if len(b) < footerEntry {
		return FooterEntry{}, 0, fmt.Errorf("%w: footer entry of %d bytes", ErrCorrupt, len(b))
	}
	e, n := parseEntryHeader(b[8:])
	if b[8] != entryMagic || n > len(b)-footerEntry {
		return FooterEntry{}, 0, fmt.Errorf("%w: footer entry with %d bytes of %d", ErrCorrupt, n, len(b))
	}
	total := footerEntry + n
	e.Body = b[footerEntry:total:total]
	if err := e.check(); err != nil {
		return FooterEntry{}, 0, err
	}
	f := FooterEntry{
		Kind: e.Kind, Shard: e.Shard, Epoch: e.Epoch, EntryNo: e.EntryNo, StreamID: e.StreamID, Timestamp: e.Timestamp,
		Offset: le.Uint32(b), Length: le.Uint32(b[4:]), Header: e.Body,
	}
	body := int64(n)
	if f.Kind == KindChunk {
		h, m, err := chunk.ParseHeader(e.Body)
		if err != nil {
			return FooterEntry{}, 0, chunkError(err)
		}
		if m != len(e.Body) || h.StreamID != e.StreamID {
			return FooterEntry{}, 0, fmt.Errorf("%w: entry of stream %s has the chunk header of %s", ErrCorrupt, e.StreamID, h.StreamID)
		}
		body += int64(h.PayloadLength)
		f.Chunk = &h
	}
	if int64(f.Length) != EntryOverhead+body {
		return FooterEntry{}, 0, fmt.Errorf("%w: entry of %d bytes with a body of %d", ErrCorrupt, f.Length, body)
	}
	return f, total, nil
}

// chunkError makes a chunk's error one of this package's.
func chunkError(err error) error {
	if errors.Is(err, chunk.ErrVersion) {
		return fmt.Errorf("%w: %w", ErrVersion, err)
	}
	return fmt.Errorf("%w: %w", ErrCorrupt, err)
}

// Parse verifies a whole bundle and decodes its entries, which alias b.
func Parse(b []byte) (Footer, []Entry, error) {
	if len(b) < preamble+trailer {
		return Footer{}, nil, fmt.Errorf("%w: %d bytes are no bundle", ErrCorrupt, len(b))
	}
	f, _, err := ParseTail(b[:IdentBytes], b, int64(len(b)))
	if err != nil {
		return Footer{}, nil, err
	}
	if f.IsSeal {
		return Footer{}, nil, fmt.Errorf("%w: a SEAL is no bundle", ErrCorrupt)
	}
	entries := make([]Entry, len(f.Entries))
	for i := range f.Entries {
		fe := &f.Entries[i]
		e, err := ParseEntry(b[fe.Offset : fe.Offset+fe.Length])
		if err != nil {
			return Footer{}, nil, fmt.Errorf("entry %d: %w", i, err)
		}
		if !fe.describes(&e) {
			return Footer{}, nil, fmt.Errorf("%w: the footer says otherwise of entry %d", ErrCorrupt, i)
		}
		entries[i] = e
	}
	return f, entries, nil
}

// describes reports whether a footer entry is the one of e.
func (f *FooterEntry) describes(e *Entry) bool {
	return f.Kind == e.Kind && f.Shard == e.Shard && f.Epoch == e.Epoch && f.EntryNo == e.EntryNo &&
		f.StreamID == e.StreamID && f.Timestamp == e.Timestamp && bytes.HasPrefix(e.Body, f.Header)
}

// Seal ends a chain where it lies.
type Seal struct {
	Chain   stream.ChainID
	Slot    stream.Slot
	Sealer  stream.LifeID
	Attempt stream.AttemptID
}

// EncodeSeal encodes a SEAL. Its preamble is laid out as a bundle's.
func EncodeSeal(s Seal) []byte {
	le := binary.LittleEndian
	b := make([]byte, 0, sealBytes)
	b = append(b, sealMagic...)
	b = append(b, Version, 0, 0, 0)
	b = append(b, s.Chain[:]...)
	b = append(b, s.Attempt[:]...)
	b = le.AppendUint64(b, uint64(s.Slot))
	b = le.AppendUint32(b, crc32.Checksum(b, castagnoli))
	b = append(b, s.Sealer[:]...)
	return le.AppendUint32(b, joinedCRC(b, s.Sealer[:]))
}

// ParseSeal verifies and decodes a SEAL.
func ParseSeal(b []byte) (Seal, error) {
	id, err := Identify(b)
	if err != nil {
		return Seal{}, err
	}
	if !id.IsSeal || len(b) != sealBytes || b[5] != 0 {
		return Seal{}, fmt.Errorf("%w: %d bytes are no SEAL", ErrCorrupt, len(b))
	}
	le, end := binary.LittleEndian, sealBytes-crcBytes
	if got, want := joinedCRC(b, b[preamble:end]), le.Uint32(b[end:]); got != want {
		return Seal{}, fmt.Errorf("%w: SEAL checksum %08x, want %08x", ErrCorrupt, got, want)
	}
	return Seal{
		Chain: id.Chain, Slot: id.Slot, Attempt: stream.AttemptID(b[24:40]), Sealer: stream.LifeID(b[preamble:end]),
	}, nil
}
