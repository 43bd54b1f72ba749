package settled

import (
	"hash/crc32"

	"github.com/nova-stream/nova/libs/stream"
)

// Layout; docs/formats.md is its specification. "NOVS" is a SEAL's magic.
const (
	magic       = "NOVR"
	preamble    = 4 + 1 + 3                                      // magic, version, reserved
	indexFixed  = 1 + 3 + 4 + 8 + 8                              // version, reserved, frames, first record, offset
	frameRow    = 4 + 4 + 8                                      // length, records, last timestamp
	runRow      = 16 + 8 + 8 + 8 + 8 + 8 + 8 + 8 + 8 + 4 + 8 + 4 // as Run, in its order
	trailerCRC  = 8 + 4 + 4 + 4                                  // rows' offset, runs, rows' CRC, version and reserved
	trailer     = trailerCRC + crcBytes + 4                      // and its CRC, magic
	crcBytes    = 4
	tailBytes   = 64 << 10
	minRunBytes = indexFixed + crcBytes + runRow // that a run takes beside frames and their rows
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// indexCRC covers the stream, which the index itself does not name.
func indexCRC(id stream.ID, b []byte) uint32 {
	return crc32.Update(crc32.Checksum(id[:], castagnoli), castagnoli, b)
}
