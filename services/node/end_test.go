package node

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := Settings{StopTimeout: 3 * time.Second}
		began := time.Now()
		failed := errors.New("failed")
		if err := s.End(func() error { time.Sleep(s.StopTimeout); return failed }); !errors.Is(err, failed) || time.Since(began) != s.StopTimeout {
			t.Errorf("a stop that ends: %v after %v", err, time.Since(began))
		}
		began = time.Now()
		release := make(chan struct{})
		defer close(release)
		err := s.End(func() error { <-release; return nil })
		if took := time.Since(began); err == nil || !strings.Contains(err.Error(), "--stop-timeout") || took != s.StopTimeout+stopGrace {
			t.Errorf("a stop that hangs: %v after %v", err, took)
		}
	})
}
