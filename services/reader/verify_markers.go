package reader

import (
	"context"
	"errors"
	"time"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/history"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

// farFuture is when every marker is due.
func farFuture() time.Time { return time.Now().AddDate(100, 0, 0) }

// maxKnown is how much of the markers of a queue is remembered: refs and pages count.
const maxKnown = 1 << 20

// markers are the due markers that lead to objects and streams. Of a queue that holds
// too many, not all are known, and nothing is said to be missing.
type markers struct {
	objects map[string]bool   // that are to be judged
	runs    map[part]bool     // that are to be dropped; pages as run -1
	reclaim map[string]uint64 // up to which slot a chain is to be reclaimed
	chains  map[string]bool   // that are led to their end
	deletes map[string]bool   // streams that are removed
	limits  map[string]bool   // markers that settings name
	partial map[string]bool   // queues of which not all is known
}

func (m *markers) known() int {
	return len(m.objects) + len(m.runs) + len(m.reclaim) + len(m.chains) + len(m.deletes) + len(m.limits)
}

func (s *Service) readMarkers(ctx context.Context) (markers, error) {
	m := markers{
		objects: map[string]bool{}, runs: map[part]bool{}, reclaim: map[string]uint64{}, chains: map[string]bool{},
		deletes: map[string]bool{}, limits: map[string]bool{}, partial: map[string]bool{},
	}
	for _, queue := range catalog.Queues() {
		most := m.known() + maxKnown
		for _, name := range []string{queue, catalog.DeadQueue(queue)} {
			err := s.index.EachDue(ctx, name, farFuture(), func(d catalog.Marker) (bool, error) {
				if m.known() >= most {
					m.partial[queue] = true
					return false, nil
				}
				return true, s.addMarker(ctx, &m, queue, d.Due)
			})
			if err != nil {
				return m, err
			}
		}
	}
	return m, nil
}

func (s *Service) addMarker(ctx context.Context, m *markers, queue string, d *indexpb.Due) error {
	switch queue {
	case "settled", "directory":
		m.objects[d.GetObject()] = true
	case "chain":
		m.chains[d.GetChainId()] = true
	case "reclaim":
		m.reclaim[d.GetChainId()] = max(m.reclaim[d.GetChainId()], d.GetNumber())
	case "delete":
		m.deletes[d.GetStreamId()] = true
	case "retention":
		m.limits[d.GetDueId()] = true
	case "unref":
		return s.addUnref(ctx, m, d)
	}
	return nil
}

// addUnref adds what an unref marker drops, and what lies below its pages.
func (s *Service) addUnref(ctx context.Context, m *markers, d *indexpb.Due) error {
	ref := func(r *indexpb.Ref) error {
		m.runs[part{r.GetObject(), int64(r.GetRun())}] = true
		return nil
	}
	page := func(p *indexpb.RefPage) error {
		m.runs[part{p.GetObject(), -1}] = true
		return nil
	}
	for _, r := range d.GetRefs() {
		_ = ref(r)
	}
	id, err := stream.ParseID(d.GetStreamId())
	if err != nil {
		return nil //nolint:nilerr // It leads to no pages that could be read.
	}
	load := s.loadPage(id, fromStorage[*indexpb.RefPageBody])
	for _, p := range d.GetPages() {
		_ = page(p)
		err := history.WalkPage(ctx, func(ctx context.Context, p *indexpb.RefPage) (*indexpb.RefPageBody, error) {
			body, err := load(ctx, p)
			if gone(err) {
				return nil, nil //nolint:nilnil // so says history.Load
			}
			return body, err
		}, p, ref, page)
		// Of a damaged page it is not known what lies below it; the page itself is
		// found when it comes in the list.
		if err != nil && !isDamaged(err) && !errors.Is(err, history.ErrBroken) {
			return walked(id, 0, err)
		}
	}
	return nil
}

func isDamaged(err error) bool { return errors.Is(err, errDamaged) }
