package export

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"
	"github.com/oklog/ulid/v2"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// Version is the version of the format that is written.
const Version = 1

// Limits.
const (
	// MaxPartBytes limits an object of an export.
	MaxPartBytes = 16 << 20
	// MaxRawBytes limits the records of a part before compression. What cannot be
	// compressed grows by far less than is left.
	MaxRawBytes = 15 << 20
	// MaxRecordBytes limits a record: more than a row of a metastore may have.
	MaxRecordBytes = 1 << 20
	// MaxParts limits the parts of one export.
	MaxParts = 100_000
)

// ErrCorrupt means that bytes are damaged, cut short, or no part of this export.
var ErrCorrupt = errors.New("corrupt export")

// ErrVersion means that intact bytes have a version that this program does not
// know: a newer one wrote them.
var ErrVersion = errors.New("export has an unknown version")

// Layout; docs/restore.md is its specification.
const (
	magicPart     = "NOVX"
	magicManifest = "NOVM"
	preamble      = 4 + 1 + 3 // magic, version, reserved
	partFixed     = 8 + 8     // bytes of the records before compression, records
	crcBytes      = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Prefix begins the keys of all objects of exports.
const Prefix = "export/"

// PartKey is the object key of a part.
func PartKey(id string, n int) string { return fmt.Sprintf("%s%s/%08d", Prefix, id, n) }

// ManifestKey is the object key of a manifest.
func ManifestKey(id string) string { return Prefix + id + "/manifest" }

// ParseKey tells which export an object belongs to, and which part it is: -1 for
// the manifest. ok is false for a key that no export has.
func ParseKey(key string) (id string, part int, ok bool) {
	rest, found := strings.CutPrefix(key, Prefix)
	id, name, cut := strings.Cut(rest, "/")
	if !found || !cut {
		return "", 0, false
	}
	if _, err := ulid.ParseStrict(id); err != nil {
		return "", 0, false
	}
	if name == "manifest" {
		return id, -1, true
	}
	n, err := strconv.ParseUint(name, 10, 31)
	if err != nil || PartKey(id, int(n)) != key {
		return "", 0, false
	}
	return id, int(n), true
}

var encoder = sync.OnceValue(func() *zstd.Encoder {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedDefault))
	if err != nil {
		panic(err) // of options that do not fit together
	}
	return e
})

var decoder = sync.OnceValue(func() *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecodeAllCapLimit(true),
		zstd.WithDecoderMaxMemory(MaxRawBytes), zstd.WithDecoderMaxWindow(MaxPartBytes))
	if err != nil {
		panic(err)
	}
	return d
})

// encodePart returns the bytes of a part: raw is records, each behind its length.
func encodePart(raw []byte, records uint64) ([]byte, *indexpb.ExportPart) {
	le := binary.LittleEndian
	b := append([]byte(magicPart), Version, 0, 0, 0)
	b = le.AppendUint64(b, uint64(len(raw)))
	b = le.AppendUint64(b, records)
	b = encoder().EncodeAll(raw, b)
	b = le.AppendUint32(b, checksum(b))
	return b, &indexpb.ExportPart{Size: uint64(len(b)), Records: records, Checksum: checksum(b)}
}

// open checks what parts and manifests have in common and returns what is between.
func open(b []byte, magic string) ([]byte, error) {
	end := len(b) - crcBytes
	if end < preamble || len(b) > MaxPartBytes || string(b[:4]) != magic {
		return nil, fmt.Errorf("%w: %d bytes do not begin with %s", ErrCorrupt, len(b), magic)
	}
	if checksum(b[:end]) != binary.LittleEndian.Uint32(b[end:]) {
		return nil, fmt.Errorf("%w: checksum", ErrCorrupt)
	}
	// Version and checksum lie at the same places in every version.
	if b[4] != Version || b[5] != 0 || b[6] != 0 || b[7] != 0 {
		return nil, fmt.Errorf("%w: %d, this program reads %d", ErrVersion, b[4], Version)
	}
	return b[preamble:end], nil
}

// DecodePart calls f with every record of a part, in order. want is what the
// manifest says of it. After an error f may have been called with some of them;
// all of those were in the part.
//
// Errors wrap ErrCorrupt or ErrVersion, or are those of f.
func DecodePart(b []byte, want *indexpb.ExportPart, f func(*indexpb.ExportRecord) error) error {
	if uint64(len(b)) != want.GetSize() || checksum(b) != want.GetChecksum() {
		return fmt.Errorf("%w: a part of %d bytes is not the one of %d that the manifest names", ErrCorrupt, len(b), want.GetSize())
	}
	in, err := open(b, magicPart)
	if err != nil {
		return err
	}
	if len(in) < partFixed {
		return fmt.Errorf("%w: a part of %d bytes", ErrCorrupt, len(b))
	}
	le := binary.LittleEndian
	size, records := le.Uint64(in), le.Uint64(in[8:])
	if size > MaxRawBytes || records != want.GetRecords() {
		return fmt.Errorf("%w: a part of %d records in %d bytes", ErrCorrupt, records, size)
	}
	raw, err := decoder().DecodeAll(in[partFixed:], make([]byte, 0, size))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if uint64(len(raw)) != size {
		return fmt.Errorf("%w: %d bytes of records, want %d", ErrCorrupt, len(raw), size)
	}
	for n := uint64(0); ; n++ {
		if len(raw) == 0 {
			if n != records {
				return fmt.Errorf("%w: %d records, want %d", ErrCorrupt, n, records)
			}
			return nil
		}
		body, used := protowire.ConsumeBytes(raw)
		if used < 0 {
			return fmt.Errorf("%w: record %d is cut short", ErrCorrupt, n)
		}
		raw = raw[used:]
		r := &indexpb.ExportRecord{}
		if err := proto.Unmarshal(body, r); err != nil {
			return fmt.Errorf("%w: record %d: %w", ErrCorrupt, n, err)
		}
		if err := f(r); err != nil {
			return err
		}
	}
}

// EncodeManifest returns the bytes of a manifest.
func EncodeManifest(m *indexpb.ExportManifest) ([]byte, error) {
	b := append([]byte(magicManifest), Version, 0, 0, 0)
	b, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(b, m)
	if err != nil {
		return nil, fmt.Errorf("encode the manifest of export %s: %w", m.GetExportId(), err)
	}
	return binary.LittleEndian.AppendUint32(b, checksum(b)), nil
}

// DecodeManifest returns what the manifest of an export says.
//
// Errors wrap ErrCorrupt or ErrVersion.
func DecodeManifest(b []byte, id string) (*indexpb.ExportManifest, error) {
	in, err := open(b, magicManifest)
	if err != nil {
		return nil, err
	}
	m := &indexpb.ExportManifest{}
	if err := proto.Unmarshal(in, m); err != nil {
		return nil, fmt.Errorf("%w: manifest: %w", ErrCorrupt, err)
	}
	if m.GetExportId() != id || m.GetNumber() == 0 || m.GetConstellationId() == "" || len(m.GetParts()) > MaxParts {
		return nil, fmt.Errorf("%w: a manifest of export %q, number %d, of %d parts, want %s", ErrCorrupt, m.GetExportId(), m.GetNumber(), len(m.GetParts()), id)
	}
	for i, p := range m.GetParts() {
		if p.GetSize() > MaxPartBytes || p.GetRecords() == 0 {
			return nil, fmt.Errorf("%w: the manifest names a part %d of %d bytes and %d records", ErrCorrupt, i, p.GetSize(), p.GetRecords())
		}
	}
	return m, nil
}

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }
