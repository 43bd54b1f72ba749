package chain

import (
	"fmt"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/nova-stream/nova/libs/stream"
)

// SlotKey is the object key of a slot.
func SlotKey(c stream.ChainID, s stream.Slot) string {
	return fmt.Sprintf("chain/%s/%016x", c, uint64(s))
}

// DirectoryKey is the object key of one attempt at a directory.
func DirectoryKey(c stream.ChainID, from stream.Slot, a stream.AttemptID) string {
	return fmt.Sprintf("directory/%s/%016x-%s", c, uint64(from), a)
}

// IDFloor returns an id that sorts before those of all chains made at t or
// later, by clocks that agree.
func IDFloor(t time.Time) stream.ChainID {
	var id ulid.ULID
	// It fails for times beyond the year 10889.
	_ = id.SetTime(ulid.Timestamp(t.Add(-time.Millisecond)))
	return stream.ChainID(id)
}
