package cli

import (
	"fmt"
	"time"
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
	first, next := firstNotice, nextNotice
	if a.notices != 0 {
		first, next = a.notices, a.notices
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
