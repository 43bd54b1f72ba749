package sequencer

import "sync"

// workGroup owns the goroutines of a service. What is started after Wait has
// begun is not waited for: it finds the service stopped and ends at once. It is
// never run by its caller, who may hold locks that it takes.
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
		go f()
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
