package settled

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"testing"

	"github.com/nova-stream/nova/libs/stream"
)

func typed(t *testing.T, err error) {
	t.Helper()
	if err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
		t.Fatalf("untyped error: %v", err)
	}
}

// rehash changes the content hash after a chunk of one batch and gives its header
// a good checksum again.
func rehash(t testing.TB, c []byte, hash stream.Hash) []byte {
	t.Helper()
	c = bytes.Clone(c)
	le := binary.LittleEndian
	end := le.Uint32(c[8:]) - 4
	le.PutUint64(c[60+21:], uint64(hash))
	le.PutUint32(c[end:], crc32.Checksum(c[:end], castagnoli))
	return c
}

func FuzzParse(f *testing.F) {
	b, _ := build(f)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		_, err := Parse(b)
		typed(t, err)
	})
}

// FuzzFooter looks behind the checksums of the footer.
func FuzzFooter(f *testing.F) {
	b, _ := build(f)
	f.Add(b, true)
	f.Add(b, false)
	f.Fuzz(func(t *testing.T, b []byte, good bool) {
		le := binary.LittleEndian
		if n := len(b); good && n >= trailer {
			tr := b[n-trailer:]
			copy(tr[trailer-4:], magic)
			if at := le.Uint64(tr); at <= uint64(n-trailer) {
				le.PutUint32(tr[12:], crc32.Checksum(b[at:n-trailer], castagnoli))
			}
			le.PutUint32(tr[trailerCRC:], crc32.Checksum(tr[:trailerCRC], castagnoli))
		}
		runs, err := footerOf(b)
		typed(t, err)
		for _, r := range runs {
			if r.Offset+r.Length > uint64(len(b)) || r.IndexOffset+uint64(r.IndexLength) > uint64(len(b)) || r.Next <= r.First {
				t.Fatalf("%+v in %d bytes", r, len(b))
			}
		}
		_, err = Parse(b)
		typed(t, err)
	})
}

// FuzzParseIndex looks behind the checksum of an index.
func FuzzParseIndex(f *testing.F) {
	b, runs := build(f)
	for i := range runs {
		f.Add(bytes.Clone(indexOf(b, &runs[i])), true)
		f.Add(bytes.Clone(indexOf(b, &runs[i])), false)
	}
	f.Fuzz(func(t *testing.T, b []byte, good bool) {
		if good && len(b) >= crcBytes {
			resealIndex(b, idOf(1))
		}
		frames, err := ParseIndex(b, idOf(1))
		typed(t, err)
		for i, fr := range frames {
			if fr.Next <= fr.First || i > 0 && (fr.First != frames[i-1].Next || fr.Offset != frames[i-1].Offset+uint64(frames[i-1].Length)) {
				t.Fatalf("%+v", frames)
			}
		}
	})
}
