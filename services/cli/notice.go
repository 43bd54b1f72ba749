package cli

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nova-stream/nova/libs/config"
)

// Where there is no terminal, a wait is told on standard error: when it lasts
// for so long, and then now and then.
const (
	firstNotice = 5 * time.Second
	nextNotice  = 30 * time.Second
)

// tellLate tells in lines on standard error, unless that is a terminal, what a
// command waits for, until the function that it returns is called. line returns
// "" while it does not wait.
func (a *app) tellLate(line func() string) func() {
	if a.Terminal {
		return func() {}
	}
	first, next := a.noticeAfter(), nextNotice
	if a.notices != 0 {
		next = a.notices
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		timer := time.NewTimer(first)
		defer timer.Stop()
		for {
			select {
			case <-stop:
				return
			case <-timer.C:
			}
			if text := line(); text != "" {
				fmt.Fprintln(a.Err, "nova: "+text)
				timer.Reset(next)
			} else {
				timer.Reset(min(first, time.Second))
			}
		}
	}()
	return func() {
		close(stop)
		<-done
	}
}

// waiting says whom a command waits for, for how long, and why; "" if it does
// not wait for long.
func (a *app) waiting(since time.Duration, why error) string {
	if since < a.noticeAfter() {
		return ""
	}
	text := "waiting for " + a.whom() + " for " + config.FormatDuration(since.Round(time.Second))
	if why == nil {
		return text + ": no answer"
	}
	return text + ": " + strings.TrimPrefix(a.explain(why), "cannot reach "+a.whom()+": ")
}

// whom are those that a command calls.
func (a *app) whom() string {
	if a.consul != "" {
		return "a service that Consul at " + a.consul + " knows"
	}
	return a.addr
}

func (a *app) noticeAfter() time.Duration {
	if a.notices != 0 {
		return a.notices
	}
	return firstNotice
}

// trying is what a command does again and again until it succeeds.
type trying struct {
	mu    sync.Mutex
	began time.Time
	why   error
}

func (t *trying) failed(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.why = err
}

func (t *trying) waiting() (time.Duration, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Since(t.began), t.why
}
