package reader

import (
	"context"
	"fmt"
	"strings"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/history"
	"github.com/nova-stream/nova/libs/settled"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// settledObject judges an object of runs, or a page: that a row leads to it, or a
// marker, and that the row says of each run what the head of its stream says.
func (v *survey) settledObject(key string) suspect {
	return func(ctx context.Context, m *markers) ([]*novapb.VerifyFinding, error) {
		waits := m.objects[key] || m.partial["settled"]
		row, _, err := v.svc.index.GetSettled(ctx, key)
		switch {
		case catalog.IsNotFound(err):
			if waits {
				return nil, nil
			}
			found, err := v.stillThere(ctx, key, "has no row and no marker")
			return v.with(found, v.rowless(key)), err
		case err != nil:
			return nil, err
		case row.GetState() != indexpb.SettledState_SETTLED_STATE_ADOPTED:
			if waits {
				return nil, nil
			}
			found, err := v.stillThere(ctx, key, "is "+strings.ToLower(strings.TrimPrefix(row.GetState().String(), "SETTLED_STATE_"))+" and no marker leads to it")
			return v.with(found, v.judged(key)), err
		}
		var found []*novapb.VerifyFinding
		if strings.HasPrefix(key, "page/") {
			found, err = v.page(ctx, m, row)
		} else {
			found, err = v.runs(ctx, m, row)
		}
		switch {
		case gone(err):
			return nil, nil // it went meanwhile
		case isDamaged(err):
			return finding("checksum", "%s: %s", key, err), nil
		case err != nil:
			return nil, err
		case len(found) == 0 && !anyLive(row) && !waits:
			found, err = v.stillThere(ctx, key, "has no live run and no marker")
			return v.with(found, v.unlive(row)), err
		}
		return found, nil
	}
}

func anyLive(row *indexpb.SettledObject) bool {
	for _, b := range row.GetLive() {
		if b != 0 {
			return true
		}
	}
	return false
}

func isLive(row *indexpb.SettledObject, run int) bool {
	return run/8 < len(row.GetLive()) && row.GetLive()[run/8]&(1<<(run%8)) != 0
}

// runs judges the runs of an object.
func (v *survey) runs(ctx context.Context, m *markers, row *indexpb.SettledObject) ([]*novapb.VerifyFinding, error) {
	of := verification{svc: v.svc}
	runs, err := of.footer(ctx, row.GetObject())
	if err != nil {
		return nil, err
	}
	if len(runs) != int(row.GetRuns()) {
		return finding("ref", "%s has %d runs, its row says %d", row.GetObject(), len(runs), row.GetRuns()), nil
	}
	var found []*novapb.VerifyFinding
	for i := range runs {
		id, ref := runs[i].StreamID, refOf(row.GetObject(), i, &runs[i])
		names := func(load history.Load, h *indexpb.Head) (bool, error) { return history.Names(ctx, load, h, ref) }
		named, err := v.named(ctx, id, names)
		if err != nil {
			return nil, err
		}
		pending := m.runs[part{row.GetObject(), int64(i)}] || m.partial["unref"]
		of := liveness(fmt.Sprintf("run %d of %s, of stream %s", i, row.GetObject(), id), named, isLive(row, i), pending)
		if !named {
			of = v.with(of, v.dropped(id, ref, names))
		}
		found = append(found, of...)
	}
	return found, nil
}

func refOf(object string, i int, r *settled.Run) *indexpb.Ref {
	return &indexpb.Ref{Object: object, Run: uint32(i), FirstSeq: uint64(r.First), NextSeq: uint64(r.Next)}
}

// page judges a page.
func (v *survey) page(ctx context.Context, m *markers, row *indexpb.SettledObject) ([]*novapb.VerifyFinding, error) {
	key := row.GetObject()
	id, err := stream.ParseID(row.GetStreamId())
	if err != nil {
		return finding("ref", "%s: its row is of stream %q", key, row.GetStreamId()), nil //nolint:nilerr // It is the finding.
	}
	size, err := v.svc.size(ctx, key)
	if err != nil {
		return nil, err
	}
	p := &indexpb.RefPage{Object: key, Size: uint32(min(size, maxPart))}
	body, err := v.svc.loadPage(id, fromStorage[*indexpb.RefPageBody])(ctx, p)
	if err != nil {
		return nil, err
	}
	p = history.PageOf(body, key, p.GetSize())
	names := func(load history.Load, h *indexpb.Head) (bool, error) { return history.NamesPage(ctx, load, h, p) }
	named, err := v.named(ctx, id, names)
	if err != nil {
		return nil, err
	}
	found := liveness(fmt.Sprintf("%s, of stream %s", key, id), named, isLive(row, 0), m.runs[part{key, -1}] || m.runs[part{key, 0}] || m.partial["unref"])
	if !named {
		found = v.with(found, v.dropped(id, &indexpb.Ref{Object: key, FirstSeq: p.GetFirstSeq(), NextSeq: p.GetNextSeq()}, names))
	}
	return found, nil
}

// named asks the head of a stream. What is damaged in it is found where the stream
// is verified, and the object is taken to be named.
func (v *survey) named(ctx context.Context, id stream.ID, names func(history.Load, *indexpb.Head) (bool, error)) (bool, error) {
	h, _, err := v.svc.index.GetHead(ctx, id)
	if err != nil {
		return false, ignoreNotFound(err)
	}
	v.note(id, h)
	named, err := names(v.svc.pages(id), h)
	if err == nil {
		return named, nil
	}
	return true, ctx.Err()
}

// liveness compares what a head and a row say of a run or page.
func liveness(what string, named, live, pending bool) []*novapb.VerifyFinding {
	switch {
	case named && !live:
		return finding("ref", "%s: a head names it, and its row says that none does", what)
	case live && !named && !pending:
		return finding("leak", "%s: no head names it and no marker drops it, and its row says that it is live", what)
	}
	return nil
}
