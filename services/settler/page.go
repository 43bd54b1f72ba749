package settler

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/nova-stream/nova/libs/history"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// overflow moves the oldest refs of a head that names too much into pages, and
// returns their objects: made, and named by no head yet.
func (s *span) overflow(ctx context.Context, next *indexpb.Head) ([]*object, error) {
	var out []*object
	for {
		body, replace := history.Overflow(next)
		if body == nil {
			return out, nil
		}
		body.StreamId = next.GetStreamId()
		o, err := s.makePage(ctx, body)
		if err != nil {
			return nil, err
		}
		replace(o.key, uint32(o.row.GetSize()))
		out = append(out, o)
	}
}

// makePage makes the object of a page of a stream.
func (e *engine) makePage(ctx context.Context, body *indexpb.RefPageBody) (*object, error) {
	o, err := e.make(ctx, history.EncodePage(body), &indexpb.SettledObject{Object: "page/" + stream.NewAttemptID().String(), Runs: 1, StreamId: body.GetStreamId()})
	if err != nil {
		return nil, fmt.Errorf("write a page of refs: %w", err)
	}
	o.placed = []*placed{{object: o}}
	return o, nil
}

// loader reads the pages of a stream.
func (e *engine) loader(id stream.ID) history.Load {
	return func(ctx context.Context, p *indexpb.RefPage) (*indexpb.RefPageBody, error) {
		o, err := again(ctx, func(ctx context.Context) (objectstore.Object, error) { return e.objects.Get(ctx, p.GetObject()) })
		if errors.Is(err, objectstore.ErrNotFound) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read page %s: %w", p.GetObject(), err)
		}
		return history.DecodePage(o.Body, id)
	}
}

// errs gathers errors of things that are done in parallel.
type errs struct {
	mu  sync.Mutex
	all []error
}

func (e *errs) add(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil {
		e.all = append(e.all, err)
	}
}

func (e *errs) first() error {
	if len(e.all) == 0 {
		return nil
	}
	return e.all[0]
}
