package directory

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"sort"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/chunk"
	"github.com/nova-stream/nova/libs/stream"
)

// ErrCorrupt means that bytes are damaged, cut short, or no directory.
var ErrCorrupt = errors.New("corrupt directory")

// Version is the format version that a Builder writes.
const Version = 1

const (
	magic      = "NOVD"
	preamble   = 4 + 4 + 16 + 8 + 8                // magic, version and reserved, chain, from, to
	indexEntry = 16 + 8 + 4 + 4                    // stream id, offset, length, entries
	trailer    = 8 + 4 + 4 + 4 + 4                 // index offset, streams, index CRC, trailer CRC, magic
	located    = 8 + 4 + 4 + 1 + 4 + 8 + 8 + 8 + 4 // slot, offset, length, kind, shard, epoch, entry, timestamp, header length
	crcBytes   = 4
	tailBytes  = 64 << 10
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Located is an entry of a stream and where its bytes are.
type Located struct {
	Kind      bundle.Kind
	Shard     stream.Shard
	Epoch     stream.Epoch
	EntryNo   stream.EntryNo
	StreamID  stream.ID
	Timestamp stream.Millis
	At        stream.Coordinates
	// Header is the encoded chunk header of a chunk, the argument of any other.
	Header []byte
	Chunk  *chunk.Header // of a chunk
}

// Builder gathers the accepted entries of a window.
type Builder struct {
	chain   stream.ChainID
	from    stream.Slot
	streams map[stream.ID]*block
	shards  map[stream.Shard]bool
}

type block struct {
	buf   []byte
	count uint32
}

// NewBuilder starts a directory of a chain from a slot.
func NewBuilder(chain stream.ChainID, from stream.Slot) *Builder {
	return &Builder{chain: chain, from: from, streams: map[stream.ID]*block{}, shards: map[stream.Shard]bool{}}
}

// Add adds an accepted entry. Entries come in chain order. A fence, which is
// of no stream, only names its shard.
func (b *Builder) Add(slot stream.Slot, e *bundle.FooterEntry) {
	b.shards[e.Shard] = true
	if e.Kind == bundle.KindFence {
		return
	}
	s := b.streams[e.StreamID]
	if s == nil {
		s = &block{}
		b.streams[e.StreamID] = s
	}
	le := binary.LittleEndian
	s.buf = le.AppendUint64(s.buf, uint64(slot))
	s.buf = le.AppendUint32(s.buf, e.Offset)
	s.buf = le.AppendUint32(s.buf, e.Length)
	s.buf = append(s.buf, byte(e.Kind))
	s.buf = le.AppendUint32(s.buf, uint32(e.Shard))
	s.buf = le.AppendUint64(s.buf, uint64(e.Epoch))
	s.buf = le.AppendUint64(s.buf, uint64(e.EntryNo))
	s.buf = le.AppendUint64(s.buf, uint64(e.Timestamp))
	s.buf = le.AppendUint32(s.buf, uint32(len(e.Header)))
	s.buf = append(s.buf, e.Header...)
	s.count++
}

// Shards returns the shards that have entries, sorted.
func (b *Builder) Shards() []stream.Shard { return slices.Sorted(maps.Keys(b.shards)) }

// Finish returns the directory of [from, to).
func (b *Builder) Finish(to stream.Slot) []byte {
	le := binary.LittleEndian
	ids := make([]stream.ID, 0, len(b.streams))
	for id := range b.streams {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(x, y stream.ID) int { return bytes.Compare(x[:], y[:]) })
	out := append([]byte(magic), Version, 0, 0, 0)
	out = append(out, b.chain[:]...)
	out = le.AppendUint64(out, uint64(b.from))
	out = le.AppendUint64(out, uint64(to))
	index := make([]byte, 0, len(ids)*indexEntry)
	for _, id := range ids {
		s := b.streams[id]
		index = append(index, id[:]...)
		index = le.AppendUint64(index, uint64(len(out)))
		index = le.AppendUint32(index, uint32(len(s.buf)+crcBytes))
		index = le.AppendUint32(index, s.count)
		out = append(out, s.buf...)
		out = le.AppendUint32(out, blockCRC(id, s.buf))
	}
	offset := len(out)
	// The index's checksum covers the preamble too.
	crc := crc32.Update(crc32.Checksum(out[:preamble], castagnoli), castagnoli, index)
	out = append(out, index...)
	start := len(out)
	out = le.AppendUint64(out, uint64(offset))
	out = le.AppendUint32(out, uint32(len(ids)))
	out = le.AppendUint32(out, crc)
	out = le.AppendUint32(out, crc32.Checksum(out[start:], castagnoli))
	return append(out, magic...)
}

func blockCRC(id stream.ID, b []byte) uint32 {
	return crc32.Update(crc32.Checksum(id[:], castagnoli), castagnoli, b)
}

// Reader looks streams up in a directory without reading all of it.
type Reader struct {
	Chain    stream.ChainID
	From, To stream.Slot

	read  func(offset, length int64) ([]byte, error)
	index []byte
}

// Open reads the index of a directory of size bytes. read returns exactly the
// bytes asked for; it is called with ranges inside the object.
func Open(size int64, read func(offset, length int64) ([]byte, error)) (*Reader, error) {
	if size < preamble+trailer {
		return nil, fmt.Errorf("%w: %d bytes are no directory", ErrCorrupt, size)
	}
	le := binary.LittleEndian
	n := min(size, tailBytes)
	tail, err := read(size-n, n)
	if err != nil {
		return nil, fmt.Errorf("read directory: %w", err)
	}
	if int64(len(tail)) != n {
		return nil, fmt.Errorf("%w: read %d bytes of %d", ErrCorrupt, len(tail), n)
	}
	t := tail[n-trailer:]
	if string(t[trailer-4:]) != magic || crc32.Checksum(t[:16], castagnoli) != le.Uint32(t[16:]) {
		return nil, fmt.Errorf("%w: no trailer", ErrCorrupt)
	}
	offset, length := int64(le.Uint64(t)), int64(le.Uint32(t[8:]))*indexEntry
	if offset < preamble || offset+length+trailer != size {
		return nil, fmt.Errorf("%w: index at %d of %d bytes in %d", ErrCorrupt, offset, length, size)
	}
	r := &Reader{read: read}
	if length+trailer <= n {
		r.index = tail[n-trailer-length : n-trailer]
	} else if r.index, err = read(offset, length); err != nil {
		return nil, fmt.Errorf("read directory: %w", err)
	}
	start := tail
	if n < size {
		if start, err = read(0, preamble); err != nil {
			return nil, fmt.Errorf("read directory: %w", err)
		}
	}
	if len(start) < preamble || string(start[:4]) != magic || start[4] != Version {
		return nil, fmt.Errorf("%w: no preamble of version %d", ErrCorrupt, Version)
	}
	if int64(len(r.index)) != length || crc32.Update(crc32.Checksum(start[:preamble], castagnoli), castagnoli, r.index) != le.Uint32(t[12:]) {
		return nil, fmt.Errorf("%w: index checksum", ErrCorrupt)
	}
	r.Chain = stream.ChainID(start[8:24])
	r.From, r.To = stream.Slot(le.Uint64(start[24:])), stream.Slot(le.Uint64(start[32:]))
	// The bytes read last may be a large page; keep only the index.
	r.index = slices.Clone(r.index)
	return r, nil
}

// Parse opens a directory that is wholly in memory.
func Parse(b []byte) (*Reader, error) {
	return Open(int64(len(b)), func(offset, length int64) ([]byte, error) {
		if offset < 0 || length < 0 || offset+length > int64(len(b)) {
			return nil, fmt.Errorf("%w: range %d+%d of %d", ErrCorrupt, offset, length, len(b))
		}
		return b[offset : offset+length], nil
	})
}

// Len returns the number of streams.
func (r *Reader) Len() int { return len(r.index) / indexEntry }

// Streams returns the ids of all streams, sorted.
func (r *Reader) Streams() []stream.ID {
	ids := make([]stream.ID, r.Len())
	for i := range ids {
		ids[i] = stream.ID(r.index[i*indexEntry:])
	}
	return ids
}

// Stream returns the entries of a stream in chain order; none is no error.
func (r *Reader) Stream(id stream.ID) ([]Located, error) {
	n := r.Len()
	i := sort.Search(n, func(i int) bool { return bytes.Compare(r.index[i*indexEntry:i*indexEntry+16], id[:]) >= 0 })
	if i == n || stream.ID(r.index[i*indexEntry:]) != id {
		return nil, nil
	}
	le := binary.LittleEndian
	at := r.index[i*indexEntry+16:]
	offset, length, count := int64(le.Uint64(at)), int64(le.Uint32(at[8:])), le.Uint32(at[12:])
	b, err := r.read(offset, length)
	if err != nil {
		return nil, fmt.Errorf("read directory: %w", err)
	}
	if int64(len(b)) != length || length < crcBytes || blockCRC(id, b[:length-crcBytes]) != le.Uint32(b[length-crcBytes:]) {
		return nil, fmt.Errorf("%w: block of stream %s", ErrCorrupt, id)
	}
	b = slices.Clone(b[:length-crcBytes])
	if int64(count)*located > int64(len(b)) {
		return nil, fmt.Errorf("%w: %d entries in %d bytes", ErrCorrupt, count, len(b))
	}
	out := make([]Located, count)
	for i := range out {
		n, err := r.parse(&out[i], id, b)
		if err != nil {
			return nil, err
		}
		b = b[n:]
	}
	if len(b) != 0 {
		return nil, fmt.Errorf("%w: %d bytes after the entries of stream %s", ErrCorrupt, len(b), id)
	}
	return out, nil
}

func (r *Reader) parse(l *Located, id stream.ID, b []byte) (int, error) {
	le := binary.LittleEndian
	if len(b) < located {
		return 0, fmt.Errorf("%w: entry of %d bytes", ErrCorrupt, len(b))
	}
	n := int64(le.Uint32(b[45:]))
	if n > int64(len(b)-located) {
		return 0, fmt.Errorf("%w: entry header of %d bytes in %d", ErrCorrupt, n, len(b))
	}
	end := located + int(n)
	*l = Located{
		StreamID: id, Kind: bundle.Kind(b[16]), Shard: stream.Shard(le.Uint32(b[17:])), Epoch: stream.Epoch(le.Uint64(b[21:])),
		EntryNo: stream.EntryNo(le.Uint64(b[29:])), Timestamp: stream.Millis(le.Uint64(b[37:])), Header: b[located:end:end],
		At: stream.Coordinates{Chain: r.Chain, Slot: stream.Slot(le.Uint64(b)), Offset: le.Uint32(b[8:]), Length: le.Uint32(b[12:])},
	}
	if l.Kind == bundle.KindChunk {
		h, m, err := chunk.ParseHeader(l.Header)
		if err != nil || m != len(l.Header) {
			return 0, fmt.Errorf("%w: chunk header: %w", ErrCorrupt, err)
		}
		l.Chunk = &h
	}
	return end, nil
}
