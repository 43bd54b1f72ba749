package chain

import (
	"fmt"

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
