package bundle

import (
	"encoding/binary"
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

	// preamble: magic, version, profile, 2 reserved, chain, flight, slot.
	preamble   = 4 + 1 + 1 + 2 + 16 + 16 + 8
	slotOffset = preamble - 8
	// trailer: footer offset, footer length, entry count, body CRC, footer CRC,
	// trailer CRC, magic.
	trailer = 4 + 4 + 4 + 4 + 4 + 4 + 4

	// IdentBytes is how much of an object's start Identify needs.
	IdentBytes = preamble
	// MaxBytes limits a bundle.
	MaxBytes = 64 << 20
	// TailBytes is a good first suffix to read for ParseTail.
	TailBytes = 64 << 10
)

// Builder gathers the entries of one flight. The zero value is not usable.
type Builder struct {
	buf    []byte
	footer []byte
	count  uint32
}

// NewBuilder starts a flight of a chain.
func NewBuilder(chain stream.ChainID, flight stream.FlightID, profile stream.Profile) *Builder {
	b := &Builder{}
	b.buf = append(b.buf, bundleMagic...)
	b.buf = append(b.buf, Version, byte(profile), 0, 0)
	b.buf = append(b.buf, chain[:]...)
	b.buf = append(b.buf, flight[:]...)
	b.buf = binary.LittleEndian.AppendUint64(b.buf, 0) // the slot, by Finish
	return b
}

// Add appends an entry and returns where it lies. Its body is copied. It fails
// for an entry that breaks the format's rules or does not fit.
func (b *Builder) Add(e Entry) (offset, length uint32, err error) {
	if err := e.check(); err != nil {
		return 0, 0, err
	}
	header := e.Body
	if e.Kind == KindChunk {
		_, n, err := chunk.ParseHeader(e.Body)
		if err != nil {
			return 0, 0, fmt.Errorf("add entry: %w", err)
		}
		header = e.Body[:n]
	}
	if b.Size()+EntryOverhead+len(e.Body)+entryHeader+8+len(header) > MaxBytes {
		return 0, 0, fmt.Errorf("add entry of %d bytes to a bundle of %d: the limit is %d", len(e.Body), b.Size(), MaxBytes)
	}
	offset = uint32(len(b.buf))
	b.buf = appendEntry(b.buf, &e)
	length = uint32(len(b.buf)) - offset
	le := binary.LittleEndian
	b.footer = le.AppendUint32(b.footer, offset)
	b.footer = le.AppendUint32(b.footer, length)
	short := e
	short.Body = header
	b.footer = appendEntryHeader(b.footer, &short)
	b.footer = append(b.footer, header...)
	b.count++
	return offset, length, nil
}

// Size returns the bytes that Finish would return now.
func (b *Builder) Size() int { return len(b.buf) + len(b.footer) + trailer }

// Count returns the number of entries.
func (b *Builder) Count() int { return int(b.count) }

// Finish returns the bundle for a slot. The builder is used up.
func (b *Builder) Finish(slot stream.Slot) []byte {
	le := binary.LittleEndian
	le.PutUint64(b.buf[slotOffset:], uint64(slot))
	offset := uint32(len(b.buf))
	body := crc32.Checksum(b.buf, castagnoli)
	out := append(b.buf, b.footer...)
	start := len(out)
	out = le.AppendUint32(out, offset)
	out = le.AppendUint32(out, uint32(len(b.footer)))
	out = le.AppendUint32(out, b.count)
	out = le.AppendUint32(out, body)
	// The footer's checksum covers the preamble too, so that a footer read by
	// itself proves which slot and flight it is of.
	crc := crc32.Update(crc32.Checksum(b.buf[:preamble], castagnoli), castagnoli, b.footer)
	out = le.AppendUint32(out, crc)
	out = le.AppendUint32(out, crc32.Checksum(out[start:], castagnoli))
	out = append(out, bundleMagic...)
	b.buf, b.footer = nil, nil
	return out
}

// Ident says what an object in a slot is, from its first IdentBytes bytes.
type Ident struct {
	IsSeal  bool
	Chain   stream.ChainID
	Slot    stream.Slot
	Flight  stream.FlightID // of a bundle
	Profile stream.Profile  // of a bundle
}

// Identify reads the start of an object. It is not protected by a checksum of
// its own: Parse and ParseTail are.
func Identify(b []byte) (Ident, error) {
	if len(b) < IdentBytes {
		return Ident{}, fmt.Errorf("%w: %d bytes are neither bundle nor SEAL", ErrCorrupt, len(b))
	}
	if b[4] != Version {
		return Ident{}, fmt.Errorf("%w: format version %d, this program reads %d", ErrCorrupt, b[4], Version)
	}
	id := Ident{Chain: stream.ChainID(b[8:24]), Slot: stream.Slot(binary.LittleEndian.Uint64(b[slotOffset:]))}
	switch string(b[:4]) {
	case sealMagic:
		id.IsSeal = true
	case bundleMagic:
		id.Flight, id.Profile = stream.FlightID(b[24:40]), stream.Profile(b[5])
	default:
		return Ident{}, fmt.Errorf("%w: magic %x", ErrCorrupt, b[:4])
	}
	return id, nil
}

// Footer is what is known of a bundle without its payloads.
type Footer struct {
	Ident

	Size    int64 // bytes of the bundle
	BodyCRC uint32
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
	if string(t[trailer-4:]) != bundleMagic || crc32.Checksum(t[:20], castagnoli) != le.Uint32(t[20:]) {
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
	if crc := crc32.Update(crc32.Checksum(start[:preamble], castagnoli), castagnoli, raw); crc != le.Uint32(t[16:]) {
		return Footer{}, 0, fmt.Errorf("%w: footer checksum %08x", ErrCorrupt, crc)
	}
	f = Footer{Ident: id, Size: size, BodyCRC: le.Uint32(t[12:])}
	if int64(count)*(8+entryHeader) > length {
		return Footer{}, 0, fmt.Errorf("%w: %d entries in a footer of %d bytes", ErrCorrupt, count, length)
	}
	f.Entries = make([]FooterEntry, count)
	for i := range f.Entries {
		var n int
		if f.Entries[i], n, err = parseFooterEntry(raw, offset); err != nil {
			return Footer{}, 0, err
		}
		raw = raw[n:]
	}
	if len(raw) != 0 {
		return Footer{}, 0, fmt.Errorf("%w: %d bytes after the footer's entries", ErrCorrupt, len(raw))
	}
	return f, 0, nil
}

func parseFooterEntry(b []byte, end int64) (FooterEntry, int, error) {
	le := binary.LittleEndian
	if len(b) < 8+entryHeader {
		return FooterEntry{}, 0, fmt.Errorf("%w: footer entry of %d bytes", ErrCorrupt, len(b))
	}
	e, n := parseEntryHeader(b[8:])
	total := 8 + entryHeader + n
	if b[8] != entryMagic || n > len(b)-8-entryHeader {
		return FooterEntry{}, 0, fmt.Errorf("%w: footer entry with %d bytes of %d", ErrCorrupt, n, len(b))
	}
	e.Body = b[8+entryHeader : total : total]
	if err := e.check(); err != nil {
		return FooterEntry{}, 0, err
	}
	f := FooterEntry{
		Kind: e.Kind, Shard: e.Shard, Epoch: e.Epoch, EntryNo: e.EntryNo, StreamID: e.StreamID, Timestamp: e.Timestamp,
		Offset: le.Uint32(b), Length: le.Uint32(b[4:]), Header: e.Body,
	}
	if int64(f.Offset) < preamble || int64(f.Offset)+int64(f.Length) > end {
		return FooterEntry{}, 0, fmt.Errorf("%w: entry at %d of %d bytes", ErrCorrupt, f.Offset, f.Length)
	}
	if f.Kind == KindChunk {
		h, m, err := chunk.ParseHeader(e.Body)
		if err != nil || m != len(e.Body) {
			return FooterEntry{}, 0, fmt.Errorf("%w: chunk header in footer: %w", ErrCorrupt, err)
		}
		f.Chunk = &h
	}
	return f, total, nil
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
	end := len(b) - trailer - int(binary.LittleEndian.Uint32(b[len(b)-trailer+4:]))
	if crc := crc32.Checksum(b[:end], castagnoli); crc != f.BodyCRC {
		return Footer{}, nil, fmt.Errorf("%w: body checksum %08x, want %08x", ErrCorrupt, crc, f.BodyCRC)
	}
	entries := make([]Entry, len(f.Entries))
	at := uint32(preamble)
	for i := range f.Entries {
		fe := &f.Entries[i]
		if fe.Offset != at {
			return Footer{}, nil, fmt.Errorf("%w: entry %d at %d, want %d", ErrCorrupt, i, fe.Offset, at)
		}
		if entries[i], err = ParseEntry(b[fe.Offset : fe.Offset+fe.Length]); err != nil {
			return Footer{}, nil, err
		}
		at += fe.Length
	}
	if int(at) != end {
		return Footer{}, nil, fmt.Errorf("%w: entries end at %d, the footer starts at %d", ErrCorrupt, at, end)
	}
	return f, entries, nil
}

// Seal ends a chain where it lies.
type Seal struct {
	Chain   stream.ChainID
	Slot    stream.Slot
	Sealer  stream.LifeID
	Attempt stream.AttemptID
}

// EncodeSeal encodes a SEAL. Its first bytes are laid out as a bundle's.
func EncodeSeal(s Seal) []byte {
	le := binary.LittleEndian
	b := make([]byte, 0, preamble+16+crcBytes)
	b = append(b, sealMagic...)
	b = append(b, Version, 0, 0, 0)
	b = append(b, s.Chain[:]...)
	b = append(b, s.Attempt[:]...)
	b = le.AppendUint64(b, uint64(s.Slot))
	b = append(b, s.Sealer[:]...)
	return le.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// ParseSeal verifies and decodes a SEAL.
func ParseSeal(b []byte) (Seal, error) {
	if len(b) != preamble+16+crcBytes || string(b[:4]) != sealMagic {
		return Seal{}, fmt.Errorf("%w: %d bytes are no SEAL", ErrCorrupt, len(b))
	}
	if b[4] != Version {
		return Seal{}, fmt.Errorf("%w: SEAL of format version %d, this program reads %d", ErrCorrupt, b[4], Version)
	}
	le := binary.LittleEndian
	end := len(b) - crcBytes
	if got, want := crc32.Checksum(b[:end], castagnoli), le.Uint32(b[end:]); got != want {
		return Seal{}, fmt.Errorf("%w: SEAL checksum %08x, want %08x", ErrCorrupt, got, want)
	}
	return Seal{
		Chain: stream.ChainID(b[8:24]), Attempt: stream.AttemptID(b[24:40]),
		Slot: stream.Slot(le.Uint64(b[slotOffset:])), Sealer: stream.LifeID(b[preamble : preamble+16]),
	}, nil
}
