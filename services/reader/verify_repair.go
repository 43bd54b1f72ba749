package reader

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/history"
	"github.com/nova-stream/nova/libs/settled"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// What a repair puts right here is what a marker leads to: the reaper decides then,
// by its own rules, beside all that runs. So each remedy arms one marker, and before it
// makes sure, by changes, of what the reaper takes for granted. Arming twice does no
// harm. All else stays a finding.

// remedy puts right what a finding says, and returns what it did. errLeft: it did
// nothing, and why.
type remedy func(ctx context.Context) (string, error)

type errLeft string

func (e errLeft) Error() string { return string(e) }

// with gives findings a remedy, if this is a repair.
func (v *survey) with(found []*novapb.VerifyFinding, r remedy) []*novapb.VerifyFinding {
	for _, f := range found {
		if v.repair {
			v.remedies[f] = r
		}
	}
	return found
}

// put applies the remedy of a finding that was confirmed, if it has one.
func (v *survey) put(ctx context.Context, f *novapb.VerifyFinding) error {
	r := v.remedies[f]
	switch {
	case !v.repair || f.GetRepair() != "":
		return nil
	case r == nil:
		f.Repair = needs(f.GetKind())
		return nil
	}
	delete(v.remedies, f)
	done, err := r(ctx)
	var left errLeft
	switch {
	case ctx.Err() != nil:
		return ended(ctx, "verify")
	case errors.As(err, &left):
		f.Repair = left.Error()
	case err != nil:
		f.Repair = "the repair failed, and may be tried again: " + err.Error()
	default:
		f.Repaired, f.Repair = true, done
	}
	return nil
}

// needs says what a finding needs that nothing here puts right.
func needs(kind string) string {
	switch kind {
	case "missing", "checksum":
		return "only a copy restores it: put the object back from the bucket's older versions or a backup"
	case "leak":
		return "nothing proves that it may go: delete it by hand once it is known what it is"
	case "directory", "chain", "ref":
		return "rows do not fit together: keep rows and objects as they are, and see docs/repair.md"
	}
	return "see docs/repair.md"
}

func (v *survey) arm(ctx context.Context, d *indexpb.Due, done string) (string, error) {
	if d.GetAt() == 0 {
		d.At = time.Now().UnixMilli()
	}
	_, err := v.svc.index.ArmDue(ctx, d)
	return done, err
}

// reclaimed leads to slots that are settled.
func (v *survey) reclaimed(id string, to uint64) remedy {
	return func(ctx context.Context) (string, error) {
		return v.arm(ctx, &indexpb.Due{Queue: "reclaim", ChainId: id, Number: to}, "a marker leads to them now")
	}
}

// reclaimedAgain leads once more to slots below reclaimed_to and the directories that
// overlap them. The reaper takes such a marker for one of slots that a pin kept, of
// a stream that pins nothing, and leaves what other pins keep.
func (v *survey) reclaimedAgain(r *indexpb.Chain, from, to uint64) remedy {
	return func(ctx context.Context) (string, error) {
		if from >= r.GetReclaimedTo() {
			return "", errLeft(fmt.Sprintf("no work of the constellation deletes slots from %d on of a chain that is reclaimed to there: delete them by hand, never the one at the cut %d", r.GetReclaimedTo(), r.GetCut()))
		}
		return v.arm(ctx, &indexpb.Due{
			Queue: "reclaim", ChainId: r.GetChainId(), StreamId: stream.ID{}.String(), From: from, Number: min(to, r.GetReclaimedTo()),
		}, "a marker leads to them now")
	}
}

// lookedAt leads to a directory's object, which the reaper deletes when the window has
// another, or none any more.
func (v *survey) lookedAt(key, chain string, from uint64) remedy {
	return func(ctx context.Context) (string, error) {
		return v.arm(ctx, &indexpb.Due{Queue: "directory", ChainId: chain, Object: key, Number: from}, "a marker leads to it now; it is deleted days after")
	}
}

// judged leads to a settled object whose row says that it is to be judged.
func (v *survey) judged(key string) remedy {
	return func(ctx context.Context) (string, error) {
		return v.arm(ctx, &indexpb.Due{Queue: "settled", Object: key}, "a marker leads its judge to it now")
	}
}

// unlive leads to an object no run of which is live. Its judge deletes it without
// looking at heads, so they are asked here, after a change of each.
func (v *survey) unlive(row *indexpb.SettledObject) remedy {
	return func(ctx context.Context) (string, error) {
		runs, err := (&verification{svc: v.svc}).footer(ctx, row.GetObject())
		if strings.HasPrefix(row.GetObject(), "page/") || err != nil {
			return "", errLeft("which heads may name it is not known: it is left")
		}
		if _, named, err := v.namedRuns(ctx, row.GetObject(), runs); err != nil || named > 0 {
			return "", leave(err, "a head names it: it must not be deleted")
		}
		return v.judged(row.GetObject())(ctx)
	}
}

func leave(err error, why string) error {
	if err != nil {
		return err
	}
	return errLeft(why)
}

// rowless sees to an object of runs without a row. The judge would delete it unseen,
// so it is led to it only when no head names a run; no maker can have one named any
// more, since it would have to change the row first. If a head does, the row is put
// again, as its maker did, and then the judge finds out which runs are live. The row
// comes before the marker: a judge that finds none deletes. A crash in between
// leaves a row that no marker leads to, which the next repair finds.
func (v *survey) rowless(key string) remedy {
	return func(ctx context.Context) (string, error) {
		size, err := v.svc.size(ctx, key)
		if err != nil {
			return "", err
		}
		if strings.HasPrefix(key, "page/") {
			return "", errLeft("of which stream a page without a row is is not known: delete it by hand when no stream that is verified misses it")
		}
		runs, err := (&verification{svc: v.svc}).footer(ctx, key)
		if isDamaged(err) {
			return "", errLeft("its footer is damaged, so that it is not known whether a head names it: restore it, or delete it by hand when no stream that is verified misses it")
		}
		if err != nil {
			return "", err
		}
		_, named, err := v.namedRuns(ctx, key, runs)
		if err != nil {
			return "", err
		}
		if named == 0 {
			return v.judged(key)(ctx)
		}
		live := make([]byte, (len(runs)+7)/8)
		for i := range runs {
			live[i/8] |= 1 << (i % 8)
		}
		_, err = v.svc.index.PutSettled(ctx, &indexpb.SettledObject{
			Object: key, State: indexpb.SettledState_SETTLED_STATE_ADOPTING, Runs: uint32(len(runs)), Live: live, Size: uint64(size),
			CreatedAt: time.Now().UnixMilli(),
		}, catalog.Absent)
		if catalog.IsConflict(err) {
			return "", errLeft("it has a row by now: verify again")
		}
		if err != nil {
			return "", err
		}
		_, err = v.judged(key)(ctx)
		return fmt.Sprintf("heads name %d of its runs: its row was put again", named), err
	}
}

// namedRuns returns which runs of an object heads name, by heads that were changed for
// that, so that no read was old.
func (v *survey) namedRuns(ctx context.Context, key string, runs []settled.Run) (is []bool, n int, err error) {
	is = make([]bool, len(runs))
	for i := range runs {
		is[i], err = v.certainly(ctx, runs[i].StreamID, func(load history.Load, h *indexpb.Head) (bool, error) {
			return history.Names(ctx, load, h, refOf(key, i, &runs[i]))
		})
		if err != nil {
			return nil, 0, err
		}
		if is[i] {
			n++
		}
	}
	return is, n, nil
}

// certainly asks the head of a stream, after a change of it. That there is none is
// proven. What is damaged in it is an error.
func (v *survey) certainly(ctx context.Context, id stream.ID, names func(history.Load, *indexpb.Head) (bool, error)) (bool, error) {
	h, _, err := v.svc.index.BumpHead(ctx, id)
	if err != nil {
		return false, ignoreNotFound(err)
	}
	return names(v.svc.pages(id), h)
}

// dropped clears the bit of a run, or a page, that its row says is live though no head
// names it. The row is ADOPTED, so no head will: the change of the head that is made
// here proves that none does. Of a page only its own object goes: what it lists may be
// named by others.
func (v *survey) dropped(id stream.ID, r *indexpb.Ref, names func(history.Load, *indexpb.Head) (bool, error)) remedy {
	return func(ctx context.Context) (string, error) {
		named, err := v.certainly(ctx, id, names)
		if err != nil || named {
			return "", leave(err, "the head names it by now: verify again")
		}
		return v.arm(ctx, &indexpb.Due{Queue: "unref", StreamId: id.String(), Refs: []*indexpb.Ref{r}}, "a marker drops it now")
	}
}

// lookedAfter leads to a chain's end.
func (v *survey) lookedAfter(id string) remedy {
	return func(ctx context.Context) (string, error) {
		return v.arm(ctx, &indexpb.Due{Queue: "chain", ChainId: id}, "a marker leads to its end now")
	}
}
