package history

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// MaxPageBytes limits a page object.
const MaxPageBytes = 64 << 10

// PageVersion is the version of the format of page objects that is written.
const PageVersion = 1

// ErrCorrupt means that bytes are damaged, cut short, no page, or one of another
// stream.
var ErrCorrupt = errors.New("corrupt page of refs")

// ErrVersion means that intact bytes have a version that this program does not
// know: a newer one wrote them.
var ErrVersion = errors.New("page of refs has an unknown version")

// Layout of a page object; docs/formats.md is its specification.
const (
	magic    = "NOVP"
	preamble = 4 + 1 + 3 // magic, version, reserved
	crcBytes = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// EncodePage returns the bytes of a page object: of what Overflow returned.
func EncodePage(body *indexpb.RefPageBody) []byte {
	b := append([]byte(magic), PageVersion, 0, 0, 0)
	b, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(b, body)
	if err != nil {
		panic(err) // only text that is no UTF-8, and Append lets none in
	}
	id, _ := stream.ParseID(body.GetStreamId())
	return binary.LittleEndian.AppendUint32(b, pageCRC(id, b))
}

// pageCRC covers the stream, so that not even one with a body that lies about it
// passes for another's.
func pageCRC(id stream.ID, b []byte) uint32 {
	return crc32.Update(crc32.Checksum(id[:], castagnoli), castagnoli, b)
}

// DecodePage returns what a page object of a stream holds. Its refs or pages are in
// order and without gaps.
//
// Errors wrap ErrCorrupt or ErrVersion.
func DecodePage(b []byte, id stream.ID) (*indexpb.RefPageBody, error) {
	end := len(b) - crcBytes
	if end < preamble || len(b) > MaxPageBytes || string(b[:4]) != magic {
		return nil, fmt.Errorf("%w: %d bytes are no page", ErrCorrupt, len(b))
	}
	if pageCRC(id, b[:end]) != binary.LittleEndian.Uint32(b[end:]) {
		return nil, fmt.Errorf("%w: checksum, for stream %s", ErrCorrupt, id)
	}
	// Version and checksum lie at the same places in every version.
	if b[4] != PageVersion || b[5] != 0 || b[6] != 0 || b[7] != 0 {
		return nil, fmt.Errorf("%w: %d, this program reads %d", ErrVersion, b[4], PageVersion)
	}
	body := &indexpb.RefPageBody{}
	if err := proto.Unmarshal(b[preamble:end], body); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if body.GetStreamId() != id.String() {
		return nil, fmt.Errorf("%w: of stream %q, want %s", ErrCorrupt, body.GetStreamId(), id)
	}
	if err := checkBody(body); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return body, nil
}

// PageOf returns the page that names the object of a body, of size bytes.
func PageOf(body *indexpb.RefPageBody, object string, size uint32) *indexpb.RefPage {
	p := &indexpb.RefPage{Object: object, Level: body.GetLevel(), Size: size}
	all := spans(body.GetPages(), body.GetRefs())
	if len(all) == 0 {
		return p
	}
	first, last := all[0], all[len(all)-1]
	p.FirstSeq, p.FirstTimestamp, p.NextSeq, p.LastTimestamp = first.first, first.from, last.next, last.to
	for _, s := range all {
		p.StoredBytes += s.bytes
		p.Refs += s.refs
	}
	return p
}
