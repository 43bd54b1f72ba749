package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"
)

// attempt is one request's life: canceled when the store is silent too long.
type attempt struct {
	ctx     context.Context
	cancel  context.CancelCauseFunc
	silence time.Duration
	timer   *time.Timer
}

var errDone = errors.New("the attempt is over")

func begin(ctx context.Context, silence time.Duration) *attempt {
	a := &attempt{silence: silence}
	a.ctx, a.cancel = context.WithCancelCause(ctx)
	a.timer = time.AfterFunc(silence, func() {
		a.cancel(fmt.Errorf("the store sent nothing for %v", silence))
	})
	return a
}

// heard says that the store sent something.
func (a *attempt) heard() { a.timer.Reset(a.silence) }

func (a *attempt) end() {
	a.timer.Stop()
	a.cancel(errDone)
}

// cause returns why the attempt failed with err: the silence, if it was that.
func (a *attempt) cause(err error) error {
	if a.ctx.Err() != nil && err != nil {
		if cause := context.Cause(a.ctx); !errors.Is(cause, errDone) {
			return cause
		}
	}
	return err
}

// readFull reads size bytes of a body.
func (a *attempt) readFull(body io.Reader, size int64) ([]byte, error) {
	buf := make([]byte, size)
	for n := 0; ; {
		m, err := body.Read(buf[n:])
		n += m
		a.heard()
		switch {
		case n == len(buf):
			return buf, nil
		case err != nil:
			return nil, fmt.Errorf("the answer's body broke after %d of %d bytes: %w", n, size, a.cause(err))
		}
	}
}

const (
	tries    = 4 // of a read, delete or list
	maxPause = 2 * time.Second
)

// again repeats call while it fails in passing. The pause is random up to a
// bound that doubles, so that many callers do not return together.
func (s *Store) again(ctx context.Context, call func() error) error {
	for i, bound := 1, s.config.RetryPause; ; i, bound = i+1, min(2*bound, maxPause) {
		err := call()
		if i == tries || !passing(err) {
			return err
		}
		timer := time.NewTimer(bound/2 + rand.N(bound/2+1))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}
