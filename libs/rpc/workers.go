package rpc

import "sync"

// maxIdleWorkers is how many goroutines of a server wait for the next call.
const maxIdleWorkers = 32

// workers run functions, each on a goroutine of its own, which then waits for
// another one: its stack has grown to what a handler needs, and growing it costs
// more than the rest of a call.
type workers struct {
	mu    sync.Mutex
	idle  []chan func() // one per goroutine that waits, the last one the warmest
	ended bool
}

// run runs f on another goroutine.
func (w *workers) run(f func()) {
	w.mu.Lock()
	n := len(w.idle)
	if n == 0 {
		w.mu.Unlock()
		go w.work(f)
		return
	}
	next := w.idle[n-1]
	w.idle = w.idle[:n-1]
	w.mu.Unlock()
	next <- f // has room
}

func (w *workers) work(f func()) {
	next := make(chan func(), 1)
	for {
		f()
		w.mu.Lock()
		if w.ended || len(w.idle) == maxIdleWorkers {
			w.mu.Unlock()
			return
		}
		w.idle = append(w.idle, next)
		w.mu.Unlock()
		var ok bool
		if f, ok = <-next; !ok {
			return
		}
	}
}

// end lets those that wait go; the others follow.
func (w *workers) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	for _, next := range w.idle {
		close(next)
	}
	w.idle = nil
}
