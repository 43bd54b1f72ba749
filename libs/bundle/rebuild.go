package bundle

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/nova-stream/nova/libs/chunk"
)

// Rebuild reads an object whose start or end is damaged from all of its bytes.
// want says whose slot it is: chain, slot and profile. It succeeds only if the
// bytes prove what was written: that it is of this slot, and, of a bundle, that
// no entry is missing. Else the error is the damage's, which wraps ErrCorrupt.
//
// All entries being there is the point: of an entry that nobody knows of the
// number would be given again (I1, I2).
func Rebuild(b []byte, want Ident) (Footer, error) {
	start := b[:min(len(b), IdentBytes)]
	id, err := Identify(start)
	if errors.Is(err, ErrCorrupt) {
		if start, err = mend(b, want, err); err == nil {
			id, err = Identify(start)
		}
	}
	if err != nil {
		return Footer{}, err
	}
	if id.IsSeal {
		return Footer{Ident: id, Size: int64(len(b))}, nil
	}
	if id.Chain != want.Chain || id.Slot != want.Slot {
		return Footer{Ident: id}, nil // the caller sees that it is another's
	}
	f, _, err := ParseTail(start, b, int64(len(b)))
	if err == nil || !errors.Is(err, ErrCorrupt) {
		return f, err
	}
	written, end, rerr := rewrite(b, id)
	if rerr != nil {
		return Footer{}, rerr
	}
	if !complete(b, written, end) {
		return Footer{}, fmt.Errorf("entries are readable up to byte %d of %d; whether more follow cannot be told: %w", end, len(b), err)
	}
	// Only the footer is kept, not the entries.
	f, _, err = ParseTail(written[:IdentBytes], bytes.Clone(written[end:]), int64(len(written)))
	return f, err
}

// mend returns what a damaged preamble was. One of two things shows that it is
// of the slot: its checksum, with what is known put back; or all that is known
// stands there, so that only the flight or the checksum are damaged. A SEAL has
// a size of its own.
func mend(b []byte, want Ident, damage error) ([]byte, error) {
	if len(b) < preamble {
		return nil, damage
	}
	magic, profile := bundleMagic, byte(want.Profile)
	if len(b) == sealBytes {
		magic, profile = sealMagic, 0
	}
	le := binary.LittleEndian
	p := append(make([]byte, 0, preamble), magic...)
	p = append(p, Version, profile, 0, 0)
	p = append(p, want.Chain[:]...)
	p = append(p, b[24:40]...)
	p = le.AppendUint64(p, uint64(want.Slot))
	crc := crc32.Checksum(p, castagnoli)
	if crc != le.Uint32(b[len(p):]) && !bytes.Equal(p, b[:len(p)]) {
		return nil, damage
	}
	return le.AppendUint32(p, crc), nil
}

// rewrite writes the bundle anew from the entries that are readable from the
// start on without a gap, and tells where they end. A bundle's bytes depend on
// nothing else, so it is what was written, if those are all.
func rewrite(b []byte, id Ident) (written []byte, end int, err error) {
	w := NewBuilder(id.Chain, id.Flight, id.Profile)
	end = preamble
	for len(b)-end >= EntryOverhead {
		n := EntryOverhead + int64(binary.LittleEndian.Uint32(b[end+entryHeader-4:]))
		if n > int64(len(b)-end) {
			break
		}
		e, err := ParseEntry(b[end : end+int(n)])
		if err != nil {
			break
		}
		if _, _, err := w.Add(e); errors.Is(err, chunk.ErrVersion) {
			return nil, 0, chunkError(err)
		} else if err != nil {
			break
		}
		end += int(n)
	}
	if w.Count() == 0 {
		return nil, 0, fmt.Errorf("%w: neither footer nor first entry", ErrCorrupt)
	}
	return w.Finish(id.Slot), end, nil
}

// complete reports whether the entries of b end at end. They do if the trailer
// says so, which has a checksum of its own; or if the footer's first row stands
// there. What else is left of the footer must not be longer than it was, and
// if it is shorter, only its end may be missing.
func complete(b, written []byte, end int) bool {
	if len(b) > len(written) {
		return false
	}
	// Offset and length of the footer and the number of entries.
	const says = trailer - 4 - crcBytes - 4
	t, w := b[len(b)-trailer:], written[len(written)-trailer:]
	if len(b) == len(written) && bytes.Equal(t[:says], w[:says]) &&
		string(t[trailer-4:]) == bundleMagic && crc32.Checksum(t[:trailerCRC], castagnoli) == binary.LittleEndian.Uint32(t[trailerCRC:]) {
		return true
	}
	left, footer := b[end:], written[end:]
	_, row, err := parseFooterEntry(footer)
	if err != nil || len(left) < row || !bytes.Equal(left[:row], footer[:row]) {
		return false
	}
	return len(left) == len(footer) || bytes.HasPrefix(footer, left)
}
