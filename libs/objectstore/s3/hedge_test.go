package s3_test

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nova-stream/nova/libs/objectstore"
)

// The first request hangs, the second is answered: so is the read, and the first
// is canceled.
func TestSlowReadIsHedgedOnce(t *testing.T) {
	var n atomic.Int64
	canceled := make(chan struct{})
	s := scripted(t, func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1) == 1 {
			<-r.Context().Done()
			close(canceled)
			return
		}
		_, _ = io.WriteString(w, "body")
	})
	start := time.Now()
	o, err := s.Get(t.Context(), "k")
	if err != nil || string(o.Body) != "body" || n.Load() != 2 {
		t.Errorf("Get: %q, %v after %d requests", o.Body, err, n.Load())
	}
	if took := time.Since(start); took < 50*time.Millisecond {
		t.Errorf("hedged after %v already", took)
	}
	select {
	case <-canceled:
	case <-time.After(5 * time.Second):
		t.Error("the slow request was not canceled")
	}
}

func TestFastReadIsNotHedged(t *testing.T) {
	var n atomic.Int64
	s := scripted(t, func(w http.ResponseWriter, _ *http.Request) {
		n.Add(1)
		_, _ = io.WriteString(w, "body")
	})
	most := int64(0)
	for range 20 {
		start := time.Now()
		if _, err := s.Get(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		most++
		if time.Since(start) >= 50*time.Millisecond {
			most++ // a busy machine made it slow
		}
	}
	if n.Load() > most {
		t.Errorf("20 reads made %d requests, want %d", n.Load(), most)
	}
}

// A definite answer of the second request stands; a passing fault of it does not
// end the read while the first may yet succeed.
func TestHedgeThatFails(t *testing.T) {
	var n atomic.Int64
	second := make(chan struct{})
	s := scripted(t, func(w http.ResponseWriter, _ *http.Request) {
		if n.Add(1) == 2 {
			refuse(w, 503, "SlowDown")
			close(second)
			return
		}
		<-second
		time.Sleep(100 * time.Millisecond) // so that the refusal arrives first
		_, _ = io.WriteString(w, "body")
	})
	if o, err := s.Get(t.Context(), "k"); err != nil || string(o.Body) != "body" || n.Load() != 2 {
		t.Errorf("Get: %q, %v after %d requests", o.Body, err, n.Load())
	}
	s = scripted(t, func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1) == 4 {
			refuse(w, 404, "NoSuchKey")
			return
		}
		<-r.Context().Done()
	})
	if _, err := s.Get(t.Context(), "k"); !errors.Is(err, objectstore.ErrNotFound) || n.Load() != 4 {
		t.Errorf("Get: %v after %d requests", err, n.Load()-2)
	}
}

// When the whole store is slow, not everything is asked twice.
func TestHedgesHaveABudget(t *testing.T) {
	var n atomic.Int64
	s := scripted(t, func(w http.ResponseWriter, _ *http.Request) {
		n.Add(1)
		time.Sleep(70 * time.Millisecond) // the store's pace
		_, _ = io.WriteString(w, "body")
	})
	const reads = 60
	done := make(chan error)
	for range reads {
		go func() {
			_, err := s.Get(t.Context(), "k")
			done <- err
		}()
	}
	for range reads {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if hedges := n.Load() - reads; hedges > 16 {
		t.Errorf("%d reads were hedged %d times", reads, hedges)
	}
}
