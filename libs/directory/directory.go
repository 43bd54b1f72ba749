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

// ErrVersion means that intact bytes have a version that this program does not
// know: a newer one wrote them.
var ErrVersion = errors.New("directory has an unknown version")

// Version is the format version that a Builder writes.
const Version = 1

const (
	magic      = "NOVD"
	preamble   = 4 + 1 + 3                         // magic, version, reserved
	epochRow   = 4 + 8 + 8 + 4 + 8 + 8             // shard, epoch, slot, offset, first, next
	indexRow   = 16 + 8 + 4 + 4                    // stream id, offset, length, entries
	located    = 8 + 4 + 4 + 1 + 4 + 8 + 8 + 8 + 4 // slot, offset, length, kind, shard, epoch, entry, timestamp, header length
	crcBytes   = 4
	tailBytes  = 64 << 10
	trailerCRC = 16 + 8 + 8 + 8 + 4 + 4 + 4 + 4 // chain, from, to, rows' offset, epochs, streams, rows' CRC, version and reserved
	trailer    = trailerCRC + crcBytes + 4
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

// ShardEpoch is what a window holds of one epoch of one shard.
type ShardEpoch struct {
	Shard stream.Shard
	Epoch stream.Epoch
	// Slot and Offset are where the epoch starts in the window: at its fence or
	// its first entry. Lower epochs of the shard have nothing from there on.
	Slot   stream.Slot
	Offset uint32
	// First and Next are the number of its first entry and one more than that of
	// its last; both 0 if there is only a fence.
	First, Next stream.EntryNo
}

// Builder gathers the accepted entries of a window.
type Builder struct {
	chain   stream.ChainID
	from    stream.Slot
	streams map[stream.ID]*block
	shards  map[stream.Shard][]ShardEpoch // by epoch
}

type block struct {
	buf   []byte
	count uint32
}

// NewBuilder starts a directory of a chain from a slot.
func NewBuilder(chain stream.ChainID, from stream.Slot) *Builder {
	return &Builder{chain: chain, from: from, streams: map[stream.ID]*block{}, shards: map[stream.Shard][]ShardEpoch{}}
}

// Add adds an accepted entry. Entries MUST come in chain order, and so with
// epochs of a shard that never fall. A fence is of no stream; it only starts
// its epoch.
func (b *Builder) Add(slot stream.Slot, e *bundle.FooterEntry) {
	epochs := b.shards[e.Shard]
	if n := len(epochs); n == 0 || epochs[n-1].Epoch != e.Epoch {
		epochs = append(epochs, ShardEpoch{Shard: e.Shard, Epoch: e.Epoch, Slot: slot, Offset: e.Offset})
		b.shards[e.Shard] = epochs
	}
	if e.Kind == bundle.KindFence {
		return
	}
	last := &epochs[len(epochs)-1]
	if last.Next == 0 {
		last.First = e.EntryNo
	}
	last.Next = e.EntryNo + 1
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
	ids := slices.SortedFunc(maps.Keys(b.streams), func(x, y stream.ID) int { return bytes.Compare(x[:], y[:]) })
	size := preamble + trailer
	for _, s := range b.streams {
		size += len(s.buf) + crcBytes + indexRow
	}
	out := make([]byte, 0, size+len(b.shards)*epochRow)
	out = append(out, magic...)
	out = append(out, Version, 0, 0, 0)
	index := make([]byte, 0, len(ids)*indexRow)
	for _, id := range ids {
		s := b.streams[id]
		index = append(index, id[:]...)
		index = le.AppendUint64(index, uint64(len(out)))
		index = le.AppendUint32(index, uint32(len(s.buf)+crcBytes))
		index = le.AppendUint32(index, s.count)
		out = append(out, s.buf...)
		out = le.AppendUint32(out, blockCRC(id, s.buf))
	}
	rows, epochs := len(out), 0
	for _, shard := range b.Shards() {
		for _, e := range b.shards[shard] {
			out = le.AppendUint32(out, uint32(e.Shard))
			out = le.AppendUint64(out, uint64(e.Epoch))
			out = le.AppendUint64(out, uint64(e.Slot))
			out = le.AppendUint32(out, e.Offset)
			out = le.AppendUint64(out, uint64(e.First))
			out = le.AppendUint64(out, uint64(e.Next))
			epochs++
		}
	}
	out = append(out, index...)
	end := len(out)
	out = append(out, b.chain[:]...)
	out = le.AppendUint64(out, uint64(b.from))
	out = le.AppendUint64(out, uint64(to))
	out = le.AppendUint64(out, uint64(rows))
	out = le.AppendUint32(out, uint32(epochs))
	out = le.AppendUint32(out, uint32(len(ids)))
	out = le.AppendUint32(out, crc32.Checksum(out[rows:end], castagnoli))
	out = append(out, Version, 0, 0, 0)
	out = le.AppendUint32(out, crc32.Checksum(out[end:], castagnoli))
	return append(out, magic...)
}

func blockCRC(id stream.ID, b []byte) uint32 {
	return crc32.Update(crc32.Checksum(id[:], castagnoli), castagnoli, b)
}

// Reader looks streams up in a directory without reading all of it. It is safe
// for concurrent use if its read function is.
type Reader struct {
	Chain    stream.ChainID
	From, To stream.Slot

	read   func(offset, length int64) ([]byte, error)
	index  []byte // rows of streams, sorted
	epochs []ShardEpoch
}

// Open reads the index of a directory of size bytes: one read from its end, and
// another if the index is large. read returns exactly the bytes asked for; it
// is called with ranges inside the object.
func Open(size int64, read func(offset, length int64) ([]byte, error)) (*Reader, error) {
	if size < preamble+trailer {
		return nil, fmt.Errorf("%w: %d bytes are no directory", ErrCorrupt, size)
	}
	le := binary.LittleEndian
	n := min(size, tailBytes)
	tail, err := exactly(read, size-n, n)
	if err != nil {
		return nil, err
	}
	t := tail[n-trailer:]
	if string(t[trailer-4:]) != magic || crc32.Checksum(t[:trailerCRC], castagnoli) != le.Uint32(t[trailerCRC:]) {
		return nil, fmt.Errorf("%w: no trailer", ErrCorrupt)
	}
	// Version, checksum and magic lie at the same place from the end in every version.
	if v := t[trailerCRC-4:]; v[0] != Version || v[1] != 0 || v[2] != 0 || v[3] != 0 {
		return nil, fmt.Errorf("%w: %d, this program reads %d", ErrVersion, v[0], Version)
	}
	r := &Reader{
		Chain: stream.ChainID(t), From: stream.Slot(le.Uint64(t[16:])), To: stream.Slot(le.Uint64(t[24:])), read: read,
	}
	offset, epochs := le.Uint64(t[32:]), int64(le.Uint32(t[40:]))
	length := epochs*epochRow + int64(le.Uint32(t[44:]))*indexRow
	if offset < preamble || offset > uint64(size) || int64(offset)+length+trailer != size {
		return nil, fmt.Errorf("%w: rows at %d of %d bytes in %d", ErrCorrupt, offset, length, size)
	}
	var rows []byte
	if length+trailer <= n {
		rows = tail[n-trailer-length : n-trailer]
	} else if rows, err = exactly(read, int64(offset), length); err != nil {
		return nil, err
	}
	if got, want := crc32.Checksum(rows, castagnoli), le.Uint32(t[48:]); got != want {
		return nil, fmt.Errorf("%w: checksum of the rows %08x, want %08x", ErrCorrupt, got, want)
	}
	r.epochs = make([]ShardEpoch, epochs)
	for i := range r.epochs {
		r.epochs[i] = ShardEpoch{
			Shard: stream.Shard(le.Uint32(rows)), Epoch: stream.Epoch(le.Uint64(rows[4:])), Slot: stream.Slot(le.Uint64(rows[12:])),
			Offset: le.Uint32(rows[20:]), First: stream.EntryNo(le.Uint64(rows[24:])), Next: stream.EntryNo(le.Uint64(rows[32:])),
		}
		rows = rows[epochRow:]
	}
	// What was read may be a large page; keep only the index.
	r.index = slices.Clone(rows)
	return r, nil
}

// exactly reads length bytes.
func exactly(read func(offset, length int64) ([]byte, error), offset, length int64) ([]byte, error) {
	b, err := read(offset, length)
	if err != nil {
		return nil, fmt.Errorf("read directory: %w", err)
	}
	if int64(len(b)) != length {
		return nil, fmt.Errorf("%w: read %d bytes of %d", ErrCorrupt, len(b), length)
	}
	return b, nil
}

// InMemory opens a directory that is wholly in memory. Like Open it verifies the
// index, and a stream's entries when they are asked for: damage to those of one
// stream is none to others.
func InMemory(b []byte) (*Reader, error) {
	return Open(int64(len(b)), func(offset, length int64) ([]byte, error) {
		if offset < 0 || length < 0 || offset > int64(len(b))-length {
			return nil, fmt.Errorf("%w: range %d+%d of %d", ErrCorrupt, offset, length, len(b))
		}
		return b[offset : offset+length], nil
	})
}

// Parse is InMemory, and verifies all of it.
func Parse(b []byte) (*Reader, error) {
	r, err := InMemory(b)
	if err != nil {
		return nil, err
	}
	if string(b[:4]) != magic || b[4] != Version || b[5] != 0 || b[6] != 0 || b[7] != 0 {
		return nil, fmt.Errorf("%w: no directory of version %d starts with % x", ErrCorrupt, Version, b[:preamble])
	}
	var last stream.ID
	at := uint64(preamble)
	for i, id := range r.Streams() {
		if bytes.Compare(id[:], last[:]) <= 0 {
			return nil, fmt.Errorf("%w: stream %s after %s", ErrCorrupt, id, last)
		}
		last = id
		row := r.index[i*indexRow+16:]
		if offset := binary.LittleEndian.Uint64(row); offset != at {
			return nil, fmt.Errorf("%w: entries of stream %s at %d, want %d", ErrCorrupt, id, offset, at)
		}
		at += uint64(binary.LittleEndian.Uint32(row[8:]))
		if _, err := r.Stream(id); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Len returns the number of streams.
func (r *Reader) Len() int { return len(r.index) / indexRow }

// Streams returns the ids of all streams, sorted.
func (r *Reader) Streams() []stream.ID {
	ids := make([]stream.ID, r.Len())
	for i := range ids {
		ids[i] = stream.ID(r.index[i*indexRow:])
	}
	return ids
}

// Epochs returns what the window holds of shards, by shard and epoch. The
// caller does not change it.
func (r *Reader) Epochs() []ShardEpoch { return r.epochs }

// block returns what is stored of a stream, checksum and all, and how many entries
// it is said to hold; nil: there is none.
func (r *Reader) block(id stream.ID) ([]byte, uint32, error) {
	n := r.Len()
	i := sort.Search(n, func(i int) bool { return bytes.Compare(r.index[i*indexRow:i*indexRow+16], id[:]) >= 0 })
	if i == n || stream.ID(r.index[i*indexRow:]) != id {
		return nil, 0, nil
	}
	le := binary.LittleEndian
	at := r.index[i*indexRow+16:]
	b, err := exactly(r.read, int64(le.Uint64(at)), int64(le.Uint32(at[8:])))
	return b, le.Uint32(at[12:]), err
}

// Stream returns the entries of a stream in chain order; none is no error.
func (r *Reader) Stream(id stream.ID) ([]Located, error) {
	b, count, err := r.block(id)
	if b == nil || err != nil {
		return nil, err
	}
	length := len(b)
	if length < crcBytes || blockCRC(id, b[:length-crcBytes]) != binary.LittleEndian.Uint32(b[length-crcBytes:]) {
		return nil, fmt.Errorf("%w: block of stream %s", ErrCorrupt, id)
	}
	return r.entries(id, slices.Clone(b[:length-crcBytes]), count)
}

// entries parses a stream's block without its checksum.
func (r *Reader) entries(id stream.ID, b []byte, count uint32) ([]Located, error) {
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
		if errors.Is(err, chunk.ErrVersion) {
			return 0, fmt.Errorf("%w: %w", ErrVersion, err)
		}
		if err != nil {
			return 0, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		if m != len(l.Header) || h.StreamID != id {
			return 0, fmt.Errorf("%w: entry of stream %s has the chunk header of %s", ErrCorrupt, id, h.StreamID)
		}
		l.Chunk = &h
	}
	return end, nil
}
