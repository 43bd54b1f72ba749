package sequencer

import "sync"

// workGroup owns the goroutines of a service. After Wait has begun, work is
// done by its caller: it finds the service stopped and ends soon.
type workGroup struct {
	mu     sync.Mutex
	closed bool
	group  sync.WaitGroup
}

// Go runs f in a goroutine that Wait waits for.
func (w *workGroup) Go(f func()) {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		f()
		return
	}
	w.group.Add(1)
	w.mu.Unlock()
	go func() {
		defer w.group.Done()
		f()
	}()
}

// Wait waits for everything that was started.
func (w *workGroup) Wait() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.group.Wait()
}
