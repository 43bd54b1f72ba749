package chainwriter

import (
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/stream"
)

// unsettled is what the committed slots hold that are not known to be settled:
// slot by slot while they are not absorbed, then window by window.
type unsettled struct {
	windows []span // absorbed, oldest first
	slots   []span // not absorbed
	bytes   int64  // of all
}

// span is consecutive slots and the bytes of their bundles.
type span struct {
	from, to stream.Slot
	bytes    int64
}

// committed adds a slot; they come in order.
func (u *unsettled) committed(slot stream.Slot, bytes int64) {
	u.slots = append(u.slots, span{from: slot, to: slot + 1, bytes: bytes})
	u.bytes += bytes
}

// learn takes in how far the chain is absorbed and settled. Slots that were
// absorbed since the last time are counted as one window, or as many as full ones
// would be: who absorbs seldom leaves them shorter within the time between.
func (u *unsettled) learn(absorbed, settled stream.Slot) {
	fresh := true
	for len(u.slots) > 0 && u.slots[0].from < absorbed {
		s := u.slots[0]
		u.slots = u.slots[1:]
		if last := len(u.windows) - 1; fresh || u.windows[last].to-u.windows[last].from >= chain.Window {
			u.windows, fresh = append(u.windows, s), false
		} else {
			u.windows[last].to = s.to
			u.windows[last].bytes += s.bytes
		}
	}
	for len(u.windows) > 0 && u.windows[0].from < settled {
		w := &u.windows[0]
		if w.to <= settled {
			u.bytes -= w.bytes
			u.windows = u.windows[1:]
			continue
		}
		// It was several windows: what is left of it has its share.
		left := w.bytes / int64(w.to-w.from) * int64(w.to-settled)
		u.bytes -= w.bytes - left
		w.from, w.bytes = settled, left
	}
}
