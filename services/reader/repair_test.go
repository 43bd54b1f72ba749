package reader

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
)

func (x *rows) PutDue(_ context.Context, req *indexpb.PutDueRequest, _ ...grpc.CallOption) (*indexpb.PutDueResponse, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.due = append(x.due, proto.CloneOf(req.GetDue()))
	return &indexpb.PutDueResponse{}, nil
}

func (x *rows) PutHead(_ context.Context, req *indexpb.PutHeadRequest, _ ...grpc.CallOption) (*indexpb.PutHeadResponse, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.heads[req.GetHead().GetStreamId()] = proto.CloneOf(req.GetHead())
	x.bumped++
	return &indexpb.PutHeadResponse{}, nil
}

func (x *rows) PutSettledObject(_ context.Context, req *indexpb.PutSettledObjectRequest, _ ...grpc.CallOption) (*indexpb.PutSettledObjectResponse, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.settled[req.GetObject().GetObject()] = proto.CloneOf(req.GetObject())
	return &indexpb.PutSettledObjectResponse{}, nil
}

// What a marker puts right is led to by one; verified again, it is in order, or on
// its way. All else stays as it is and says what it needs. Nothing is armed that would
// have something deleted that a head names (I11).
func TestSurveyRepairs(t *testing.T) {
	for name, c := range map[string]struct {
		breakIt func(e *estate)
		queue   string // of the marker; empty: none
		says    string
		left    bool // found again until the marker was worked on
		check   func(e *estate, d *indexpb.Due) bool
	}{
		"nothing": {func(*estate) {}, "", "", false, nil},
		"a chain that nothing reclaims": {func(e *estate) { e.drop("reclaim") }, "reclaim", "leads to them", false, func(e *estate, d *indexpb.Due) bool {
			return d.GetChainId() == e.open && d.GetNumber() == 4 && d.GetStreamId() == ""
		}},
		"a chain that nothing ends": {func(e *estate) {
			e.drop("chain")
			e.due(&indexpb.Due{Queue: "chain", ChainId: e.sealed})
		}, "chain", "to its end", false, func(e *estate, d *indexpb.Due) bool { return d.GetChainId() == e.open }},
		"a reclaimed slot": {func(e *estate) { e.slots(e.sealed, 3, 5) }, "reclaim", "leads to them", true, func(e *estate, d *indexpb.Due) bool {
			return d.GetStreamId() == stream.ID{}.String() && d.GetFrom() == 3 && d.GetNumber() == 5 && d.GetChainId() == e.sealed
		}},
		"a slot far behind a cut": {func(e *estate) { e.slots(e.sealed, 8, 9) }, "", "by hand", true, nil},
		"a reclaimed directory's row": {func(e *estate) { e.directory(e.sealed, 2, 5) }, "reclaim", "leads to them", true, func(_ *estate, d *indexpb.Due) bool {
			return d.GetFrom() == 2 && d.GetNumber() == 5
		}},
		"a directory's object without a row": {func(e *estate) { e.putObject("directory/"+e.open+"/0000000000000004-"+aged(), nil) }, "directory", "leads to it", false,
			func(_ *estate, d *indexpb.Due) bool { return d.GetNumber() == 4 }},
		"an object that nobody judges":  {func(e *estate) { e.unjudged(indexpb.SettledState_SETTLED_STATE_ADOPTING) }, "settled", "its judge", false, nil},
		"an object that nobody deletes": {func(e *estate) { e.unjudged(indexpb.SettledState_SETTLED_STATE_CONDEMNED) }, "settled", "its judge", false, nil},
		"an object with nothing live":   {func(e *estate) { e.dead() }, "settled", "its judge", false, func(e *estate, _ *indexpb.Due) bool { return true }},
		"an object without a row and a name": {func(e *estate) {
			e.dead()
			for key, r := range e.rows.settled {
				if r.GetState() == indexpb.SettledState_SETTLED_STATE_ADOPTED && r.GetLive()[0] == 0 {
					delete(e.rows.settled, key)
				}
			}
		}, "settled", "its judge", false, nil},
		"an object without a row that a head names": {func(e *estate) { delete(e.rows.settled, e.shared) }, "settled", "put again", false, func(e *estate, d *indexpb.Due) bool {
			r := e.rows.settled[e.shared]
			return d.GetObject() == e.shared && r.GetState() == indexpb.SettledState_SETTLED_STATE_ADOPTING && r.GetRuns() == 3 && r.GetLive()[0] == 7 && r.GetSize() > 0
		}},
		"an object without a row, damaged": {func(e *estate) {
			delete(e.rows.settled, e.shared)
			e.rewritten(e.shared, func(b []byte) []byte { b[len(b)-9] ^= 1; return b })
		}, "", "damaged", true, nil},
		"a page without a row": {func(e *estate) { delete(e.rows.settled, e.page) }, "", "by hand", true, nil},
		"a run that is live and not named": {func(e *estate) { e.rows.settled[e.shared].Live[0] |= 1 }, "unref", "drops it", false, func(e *estate, d *indexpb.Due) bool {
			return len(d.GetRefs()) == 1 && d.GetRefs()[0].GetObject() == e.shared && d.GetRefs()[0].GetRun() == 0 && len(d.GetPages()) == 0
		}},
		"a page that is live and not named": {func(e *estate) { e.unnamedPage() }, "unref", "drops it", false, func(_ *estate, d *indexpb.Due) bool {
			return len(d.GetPages()) == 0 && len(d.GetRefs()) == 1 // never what it lists
		}},
		"a deleted stream that nothing removes": {func(e *estate) { e.end(e.a); e.drop("delete") }, "delete", "leads to it", false, func(e *estate, d *indexpb.Due) bool {
			return d.GetStreamId() == e.a.id.String() && d.GetNumber() == uint64(e.a.shard) && d.GetName() == e.a.id.String()
		}},
		"a deleted stream that has a name": {func(e *estate) {
			e.limit(e.a, "")
			e.drop("retention")
			e.end(e.a)
			e.drop("delete")
		}, "delete", "leads to it", false, func(_ *estate, d *indexpb.Due) bool { return d.GetBucket() == "b" && d.GetName() == "s" }},
		"limits that nothing looks after": {func(e *estate) { e.limit(e.a, "M"); e.drop("retention") }, "retention", "there again", false, func(e *estate, d *indexpb.Due) bool {
			return d.GetDueId() == "M" && d.GetStreamId() == e.a.id.String() && d.GetBucket() == "b" && d.GetBucketId() == "B" && d.GetName() == "s" && d.GetAt() == 0
		}},
		"a run that is named and dead": {func(e *estate) { e.rows.settled[e.shared].Live[0] = 0 }, "", "do not fit", true, nil},
		"a slot that is lost":          {func(e *estate) { e.delete(e.slotKey(e.open, 5)) }, "", "copy", true, nil},
		"work that was set aside":      {func(e *estate) { e.due(&indexpb.Due{Queue: "dead-unref", StreamId: "S", Attempts: 9}) }, "", "background revive unref", true, nil},
		"an object of nobody":          {func(e *estate) { e.putObject("chain-backup/x", []byte("x")) }, "", "by hand", true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEstate(t)
			c.breakIt(e)
			due := len(e.rows.due)
			found, _ := e.surveyAnd(true)
			armed := e.rows.due[due:]
			if len(armed) != min(len(c.queue), 1) || len(found) != min(len(c.says), 1) {
				t.Fatalf("found %v, armed %v", found, armed)
			}
			for _, f := range found {
				if f.GetRepaired() != (c.queue != "") || !strings.Contains(f.GetRepair(), c.says) {
					t.Errorf("%v", f)
				}
			}
			for _, d := range armed {
				if d.GetQueue() != c.queue || c.check != nil && !c.check(e, d) {
					t.Errorf("armed %v", d)
				}
			}
			if left, _ := e.survey(); (len(left) > 0) != c.left {
				t.Errorf("then found %v", left)
			}
		})
	}
}
