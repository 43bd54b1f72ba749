package fault

import (
	"bytes"
	"cmp"
	"slices"
	"sync"

	"github.com/nova-stream/nova/libs/metastore"
)

// MaxStates is how many states of one row are remembered.
const MaxStates = 32

// state is what a row was at some time.
type state struct {
	row    metastore.Row // its value is immutable
	absent bool
}

// history remembers former states of rows, oldest first. Writes that end at
// the same moment may be remembered in either order: each state was current at
// some time, which is all a stale read promises.
type history struct {
	mu     sync.Mutex
	states map[metastore.Key][]state
}

func newHistory() *history { return &history{states: make(map[metastore.Key][]state)} }

func (h *history) add(key metastore.Key, st state) {
	states := append(h.states[key], st)
	if len(states) > MaxStates {
		states = slices.Delete(states, 0, len(states)-MaxStates)
	}
	h.states[key] = states
}

// put remembers a landed write. A row made now was absent before.
func (h *history) put(key metastore.Key, row metastore.Row, expected metastore.Version) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if expected == metastore.Absent && len(h.states[key]) == 0 {
		h.add(key, state{absent: true})
	}
	h.add(key, state{row: row})
}

func (h *history) deleted(key metastore.Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.add(key, state{absent: true})
}

// seen remembers a row that was there before the first write through us.
func (h *history) seen(partition string, row metastore.Row) {
	key := metastore.Key{Partition: partition, Path: row.Path}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.states[key]) == 0 {
		row.Value = bytes.Clone(row.Value)
		h.add(key, state{row: row})
	}
}

// at returns a row as it was back states ago.
func (h *history) at(key metastore.Key, back int) (state, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.atLocked(key, back)
}

func (h *history) atLocked(key metastore.Key, back int) (state, bool) {
	states := h.states[key]
	if len(states) == 0 {
		return state{}, false
	}
	st := states[max(len(states)-1-back, 0)]
	st.row.Value = bytes.Clone(st.row.Value)
	return st, true
}

// overlay replaces what is known of the past in the rows of now, and returns
// the outcome in path order.
func (h *history) overlay(partition, from, to string, back int, now map[string]metastore.Row) []metastore.Row {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key := range h.states {
		if key.Partition != partition || key.Path < from || key.Path >= to {
			continue
		}
		if st, _ := h.atLocked(key, back); st.absent {
			delete(now, key.Path)
		} else {
			now[key.Path] = st.row
		}
	}
	rows := make([]metastore.Row, 0, len(now))
	for _, row := range now {
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b metastore.Row) int { return cmp.Compare(a.Path, b.Path) })
	return rows
}
