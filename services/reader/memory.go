package reader

import (
	"context"
	"fmt"
	"time"

	"github.com/nova-stream/nova/libs/reason"
)

// share is a call's part of the memory for fetching.
type share struct {
	svc  *Service
	size int64
	held bool
}

// share returns a call's part, not taken yet: who waits at a tail needs none.
func (s *Service) share(size int64) *share {
	return &share{svc: s, size: min(size, s.cfg.MemoryBytes)}
}

// take takes the part, once, or refuses after Patience.
func (h *share) take(ctx context.Context) error {
	if h.held {
		return nil
	}
	s := h.svc
	wait, cancel := context.WithTimeout(ctx, s.cfg.Patience)
	defer cancel()
	if err := s.memory.Acquire(wait, h.size); err != nil {
		if ctx.Err() != nil {
			return ended(ctx, "read")
		}
		return s.over(ctx, "reader_memory", fmt.Sprintf("%d bytes are being read, the limit", s.cfg.MemoryBytes))
	}
	h.held = true
	return nil
}

func (h *share) release() {
	if h.held {
		h.held = false
		h.svc.memory.Release(h.size)
	}
}

// over is the refusal at a limit, counted and logged.
func (s *Service) over(ctx context.Context, budget, message string) error {
	s.refused.Add(ctx, 1)
	s.log.WarnContext(ctx, "read refused", "budget", budget, "limit", message)
	return reason.Over(budget, message, time.Second)
}

// ended says that a call ended before its time.
func ended(ctx context.Context, what string) error {
	return reason.New(reason.Code(ctx.Err()), "", what+": "+ctx.Err().Error())
}
