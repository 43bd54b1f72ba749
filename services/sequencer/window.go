package sequencer

import (
	"sync"
	"sync/atomic"
)

// tailWindow keeps the newest committed chunks of all streams for readers, up
// to a number of bytes; the oldest goes first.
type tailWindow struct {
	limit int64

	mu    sync.Mutex
	bytes int64
	queue []*windowed // oldest first
}

// windowed is a chunk in the window; bytes is nil once it was put out.
type windowed struct {
	bytes atomic.Pointer[[]byte]
	size  int64
}

func (w *windowed) load() []byte {
	if w == nil {
		return nil
	}
	if b := w.bytes.Load(); b != nil {
		return *b
	}
	return nil
}

// add puts a chunk in and returns its handle, or nil if it is larger than the
// whole window.
func (t *tailWindow) add(b []byte) *windowed {
	size := int64(cap(b))
	if size > t.limit {
		return nil
	}
	w := &windowed{size: size}
	w.bytes.Store(&b)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.queue = append(t.queue, w)
	t.bytes += size
	for t.bytes > t.limit {
		t.bytes -= t.queue[0].size
		t.queue[0].bytes.Store(nil)
		t.queue[0] = nil
		t.queue = t.queue[1:]
	}
	return w
}
