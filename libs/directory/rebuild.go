package directory

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/stream"
)

// Rebuild returns the entries of a stream whose block is damaged, made again from
// what the slots of the window hold: footers are those of slots [From, To), in
// order. Which entries count is told by the directory's rows of epochs. It answers
// only with what is proven to be the block: it has the length and the number of
// entries that the index says, and the checksum of the block, or all its bytes when
// it is the checksum that is damaged. Else it is ErrCorrupt.
func (r *Reader) Rebuild(id stream.ID, footers []bundle.Footer) ([]Located, error) {
	stored, count, err := r.block(id)
	if err != nil {
		return nil, err
	}
	b := NewBuilder(r.Chain, r.From)
	for i := range footers {
		for k := range footers[i].Entries {
			if e := &footers[i].Entries[k]; e.StreamID == id && e.Kind != bundle.KindFence && r.accepted(footers[i].Slot, e) {
				b.Add(footers[i].Slot, e)
			}
		}
	}
	made := b.streams[id]
	if made == nil || made.count != count || len(made.buf)+crcBytes != len(stored) {
		return nil, fmt.Errorf("%w: the slots do not hold the entries of stream %s that the block had", ErrCorrupt, id)
	}
	body, sum := stored[:len(made.buf)], binary.LittleEndian.Uint32(stored[len(made.buf):])
	if blockCRC(id, made.buf) != sum && !bytes.Equal(made.buf, body) {
		return nil, fmt.Errorf("%w: the slots hold other entries of stream %s than the block had", ErrCorrupt, id)
	}
	return r.entries(id, made.buf, count)
}

// accepted reports whether an entry of a slot counted when the window was absorbed:
// the last epoch of its shard that began at or before it is its own.
func (r *Reader) accepted(slot stream.Slot, e *bundle.FooterEntry) bool {
	is := false
	for _, at := range r.epochs {
		if at.Shard == e.Shard && (at.Slot < slot || at.Slot == slot && at.Offset <= e.Offset) {
			is = at.Epoch == e.Epoch && e.EntryNo >= at.First && e.EntryNo < at.Next
		}
	}
	return is
}
