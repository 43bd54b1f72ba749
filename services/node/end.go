package node

import (
	"fmt"
	"time"
)

// stopGrace is what a stop may take beyond StopTimeout before the program ends
// without it: telemetry that is sent, a lease that is given back.
const stopGrace = 10 * time.Second

// End stops a program. Each part bounds its own stop; what hangs in the kernel
// no part can bound, and a disk that does not answer must not keep the program
// from ending. The end is then like a kill, which every next start recovers from.
func (s *Settings) End(stop func() error) error {
	done := make(chan error, 1)
	go func() { done <- stop() }()
	limit := s.StopTimeout + stopGrace
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return fmt.Errorf("the stop takes longer than %v (--stop-timeout and %v): the program ends without it, the next start recovers what is left", limit, stopGrace)
	}
}
