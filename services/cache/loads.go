package cache

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/reason"
)

// loads is what is being read from the store.
type loads struct {
	room *semaphore.Weighted // pages

	running context.Context // of all loads; ends with the service
	cancel  context.CancelFunc
	work    sync.WaitGroup

	mu      sync.Mutex // guards what follows
	stopped bool
	objects map[string]*loading
}

// loading is an object of which pages are on their way.
type loading struct {
	pages  int
	doomed bool // it was deleted
}

func newLoads(limit int64) *loads {
	l := &loads{room: semaphore.NewWeighted(limit), objects: map[string]*loading{}}
	l.running, l.cancel = context.WithCancel(context.Background())
	return l
}

// begin notes a load; end MUST follow, then work.Done. False: the service stops.
func (l *loads) begin(object string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return false
	}
	o := l.objects[object]
	if o == nil {
		o = &loading{}
		l.objects[object] = o
	}
	o.pages++
	l.work.Add(1)
	return true
}

// end reports whether the object was deleted during the load.
func (l *loads) end(object string) (doomed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.objects[object]
	if o.pages--; o.pages == 0 {
		delete(l.objects, object)
	}
	return o.doomed
}

// doom marks deleted objects.
func (l *loads) doom(gone map[string]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for object, o := range l.objects {
		o.doomed = o.doomed || gone[object]
	}
}

// stop ends all loads.
func (l *loads) stop() {
	l.mu.Lock()
	l.stopped = true
	l.mu.Unlock()
	l.cancel()
	l.work.Wait()
}

func errStopping() error {
	return reason.New(codes.Unavailable, reason.StorageDown, "the cache is stopping")
}
