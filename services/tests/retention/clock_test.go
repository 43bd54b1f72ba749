package retention

import (
	"syscall"
	"time"
)

// clock returns how long something takes, by the real clock: in a bubble
// time.Now is another.
func clock() func() time.Duration {
	now := func() time.Duration {
		var t syscall.Timeval
		_ = syscall.Gettimeofday(&t)
		return time.Duration(t.Nano())
	}
	from := now()
	return func() time.Duration { return (now() - from).Round(time.Millisecond) }
}
