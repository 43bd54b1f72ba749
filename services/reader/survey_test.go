package reader

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/bundle"
	"github.com/nova-stream/nova/libs/chain"
	"github.com/nova-stream/nova/libs/history"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/reader/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// rows is an index without rules: what a test puts into it is there.
type rows struct {
	indexpb.IndexServiceClient

	mu          sync.Mutex
	chains      map[string]*indexpb.Chain
	directories []*indexpb.Directory
	settled     map[string]*indexpb.SettledObject
	heads       map[string]*indexpb.Head
	descriptors []*indexpb.StreamDescriptor
	due         []*indexpb.Due
	bumped      int // heads
	// listed is called when the markers of a queue were listed.
	listed func(queue string)
}

func noRow() error { return reason.New(codes.NotFound, reason.RowNotFound, "no row") }

func (x *rows) GetChain(_ context.Context, req *indexpb.GetChainRequest, _ ...grpc.CallOption) (*indexpb.GetChainResponse, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if r := x.chains[req.GetChainId()]; r != nil {
		return &indexpb.GetChainResponse{Chain: proto.CloneOf(r)}, nil
	}
	return nil, noRow()
}

func (x *rows) ListChains(_ context.Context, req *indexpb.ListChainsRequest, _ ...grpc.CallOption) (*indexpb.ListChainsResponse, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := &indexpb.ListChainsResponse{}
	for id, r := range x.chains {
		if id > req.GetStartAfter() {
			out.Chains = append(out.Chains, &indexpb.VersionedChain{Chain: proto.CloneOf(r)})
		}
	}
	sort.Slice(out.Chains, func(i, j int) bool {
		return out.GetChains()[i].GetChain().GetChainId() < out.GetChains()[j].GetChain().GetChainId()
	})
	return out, nil
}

func (x *rows) ListDirectories(_ context.Context, req *indexpb.ListDirectoriesRequest, _ ...grpc.CallOption) (*indexpb.ListDirectoriesResponse, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := &indexpb.ListDirectoriesResponse{}
	for _, d := range x.directories {
		if d.GetChainId() == req.GetChainId() && d.GetFrom() >= req.GetFrom() && (req.GetTo() == 0 || d.GetFrom() < req.GetTo()) {
			out.Directories = append(out.Directories, proto.CloneOf(d))
		}
	}
	return out, nil
}

func (x *rows) GetSettledObject(_ context.Context, req *indexpb.GetSettledObjectRequest, _ ...grpc.CallOption) (*indexpb.GetSettledObjectResponse, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if r := x.settled[req.GetObject()]; r != nil {
		return &indexpb.GetSettledObjectResponse{Object: proto.CloneOf(r)}, nil
	}
	return nil, noRow()
}

func (x *rows) GetHead(_ context.Context, req *indexpb.GetHeadRequest, _ ...grpc.CallOption) (*indexpb.GetHeadResponse, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if r := x.heads[req.GetStreamId()]; r != nil {
		return &indexpb.GetHeadResponse{Head: proto.CloneOf(r)}, nil
	}
	return nil, noRow()
}

func (x *rows) ListDue(_ context.Context, req *indexpb.ListDueRequest, _ ...grpc.CallOption) (*indexpb.ListDueResponse, error) {
	x.mu.Lock()
	out := &indexpb.ListDueResponse{}
	sort.Slice(x.due, func(i, j int) bool { return behind(x.due[j], x.due[i].GetAt(), x.due[i].GetDueId()) })
	for _, d := range x.due {
		switch {
		case d.GetQueue() != req.GetQueue() || d.GetAt() > req.GetUntil():
		case req.GetAfterDueId() != "" && !behind(d, req.GetAfterAt(), req.GetAfterDueId()):
		case len(out.GetDue()) == int(req.GetLimit()):
			out.HasMore = true
		default:
			out.Due = append(out.Due, &indexpb.VersionedDue{Due: proto.CloneOf(d)})
		}
	}
	hook := x.listed
	x.mu.Unlock()
	if hook != nil {
		hook(req.GetQueue())
	}
	return out, nil
}

func behind(d *indexpb.Due, at int64, id string) bool {
	return d.GetAt() > at || d.GetAt() == at && d.GetDueId() > id
}

func (x *rows) ListBuckets(context.Context, *indexpb.ListBucketsRequest, ...grpc.CallOption) (*indexpb.ListBucketsResponse, error) {
	return &indexpb.ListBucketsResponse{Buckets: []*indexpb.BucketRecord{{Name: "b"}}}, nil
}

func (x *rows) ListStreams(context.Context, *indexpb.ListStreamsRequest, ...grpc.CallOption) (*indexpb.ListStreamsResponse, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := &indexpb.ListStreamsResponse{}
	for _, d := range x.descriptors {
		out.Streams = append(out.Streams, proto.CloneOf(d))
	}
	return out, nil
}

func (x *rows) GetDescriptor(_ context.Context, req *indexpb.GetDescriptorRequest, _ ...grpc.CallOption) (*indexpb.GetDescriptorResponse, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, d := range x.descriptors {
		if d.GetStreamId() == req.GetStreamId() {
			return &indexpb.GetDescriptorResponse{Stream: proto.CloneOf(d)}, nil
		}
	}
	return nil, noRow()
}

// aged returns the text of an id that was made some hours ago.
func aged() string {
	return chain.IDFloor(time.Now().Add(-5 * time.Hour)).String()[:10] + stream.NewAttemptID().String()[10:]
}

// estate is a constellation in which everything is in order.
type estate struct {
	*world
	rows *rows
	// Chains: one that is written, settled up to 4 and not yet reclaimed, and absorbed
	// up to 8; one that is sealed at 5 and pins slot 1; one that is retired.
	open, sealed, retired string
	// shared holds runs of streams a and b (settled by the world), and of others that
	// are dead; page names all of a's runs.
	a      *led
	shared string
	page   string
}

func newEstate(t *testing.T) *estate {
	t.Helper()
	e := &estate{world: newWorld(t, Config{}), rows: &rows{
		chains: map[string]*indexpb.Chain{}, settled: map[string]*indexpb.SettledObject{}, heads: map[string]*indexpb.Head{},
	}}
	var err error
	if e.svc, err = New(Config{}, Deps{Index: e.rows, Router: e.world, Cache: e.svc.cache, Objects: e.objects}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.svc.names.Close(); e.svc.ahead.close() })

	e.open, e.sealed, e.retired = aged(), aged(), aged()
	e.rows.chains[e.open] = &indexpb.Chain{ChainId: e.open, State: indexpb.ChainState_CHAIN_STATE_OPEN, AbsorbedTo: 8, SettledTo: 4, Lanes: 2}
	e.rows.chains[e.sealed] = &indexpb.Chain{
		ChainId: e.sealed, State: indexpb.ChainState_CHAIN_STATE_SEALED, Cut: 5, AbsorbedTo: 5, SettledTo: 5, ReclaimedTo: 5, Lanes: 2,
		Pins: []*indexpb.ChainPin{{StreamId: stream.NewID().String(), From: 1, To: 2}},
	}
	e.rows.chains[e.retired] = &indexpb.Chain{ChainId: e.retired, State: indexpb.ChainState_CHAIN_STATE_RETIRED, Cut: 3, AbsorbedTo: 3, SettledTo: 3, ReclaimedTo: 3, Lanes: 2}
	e.slots(e.open, 0, 10)
	e.slots(e.sealed, 1, 2)
	e.slots(e.sealed, 5, 7) // its SEAL, and what a late PUT left
	e.slots(e.retired, 3, 4)
	e.directory(e.open, 0, 4)
	e.directory(e.open, 4, 6)
	e.directory(e.open, 6, 8)
	e.directory(e.open, 8, 9) // absorbed_to is yet to move
	e.due(&indexpb.Due{Queue: "reclaim", ChainId: e.open, Number: 4})
	e.due(&indexpb.Due{Queue: "chain", ChainId: e.open})
	e.due(&indexpb.Due{Queue: "chain", ChainId: e.sealed})

	// Two runs of a, one in a page, in objects with dead runs around them.
	e.a = e.create("s")
	e.chunk(e.a, "x", "y")
	e.chunk(e.a, "z")
	for i := range 2 {
		r := e.settle(e.a, 1, settling{others: 1})
		r.Object = e.age(r.GetObject())
		e.a.head.Refs[len(e.a.head.GetRefs())-1].Object = r.GetObject()
		e.rows.settled[r.GetObject()] = &indexpb.SettledObject{Object: r.GetObject(), State: indexpb.SettledState_SETTLED_STATE_ADOPTED, Runs: 3, Live: []byte{2}}
		e.shared = r.GetObject()
		if i == 0 {
			e.paged(e.a)
			p := e.a.head.GetPages()[0]
			p.Object = e.age(p.GetObject())
			e.page = p.GetObject()
			e.rows.settled[e.page] = &indexpb.SettledObject{
				Object: e.page, State: indexpb.SettledState_SETTLED_STATE_ADOPTED, Runs: 1, Live: []byte{1}, StreamId: e.a.id.String(),
			}
		}
	}
	e.rows.heads[e.a.id.String()] = e.a.head

	// What is on its way: young objects, objects to be judged, runs to be dropped.
	e.putObject("settled/"+stream.NewAttemptID().String(), []byte("young"))
	e.putObject("directory/"+e.open+"/0000000000000008-"+stream.NewAttemptID().String(), []byte("young"))
	e.putObject("chain/"+stream.NewChainID().String()+"/0000000000000000", []byte("young"))
	for _, state := range []indexpb.SettledState{0, indexpb.SettledState_SETTLED_STATE_ADOPTING, indexpb.SettledState_SETTLED_STATE_CONDEMNED} {
		key := "settled/" + aged()
		e.putObject(key, []byte("to be judged"))
		e.due(&indexpb.Due{Queue: "settled", Object: key})
		if state != 0 {
			e.rows.settled[key] = &indexpb.SettledObject{Object: key, State: state, Runs: 1, Live: []byte{1}}
		}
	}
	e.dropping()
	key := "directory/" + e.open + "/0000000000000004-" + aged()
	e.putObject(key, []byte("another attempt"))
	e.due(&indexpb.Due{Queue: "directory", Object: key})
	e.putObject("export/"+aged()+"/manifest", []byte("x"))
	return e
}

// dropping makes an object and a page below a page that a marker drops.
func (e *estate) dropping() {
	s := e.create("dropped")
	e.chunk(s, "x")
	r := e.settle(s, 1, settling{})
	r.Object = e.age(r.GetObject())
	s.head.Refs[0].Object = r.GetObject()
	e.paged(s)
	p := s.head.GetPages()[0]
	p.Object = e.age(p.GetObject())
	for _, key := range []string{r.GetObject(), p.GetObject()} {
		e.rows.settled[key] = &indexpb.SettledObject{Object: key, State: indexpb.SettledState_SETTLED_STATE_ADOPTED, Runs: 1, Live: []byte{1}, StreamId: s.id.String()}
	}
	e.due(&indexpb.Due{Queue: "unref", StreamId: s.id.String(), Pages: []*indexpb.RefPage{p}})
}

// age gives an object a key of some hours ago.
func (e *estate) age(object string) string {
	e.t.Helper()
	o, err := e.objects.Get(e.t.Context(), object)
	if err == nil {
		err = e.objects.Delete(e.t.Context(), object)
	}
	if err != nil {
		e.t.Fatal(err)
	}
	kind, _, _ := strings.Cut(object, "/")
	key := kind + "/" + aged()
	e.putObject(key, o.Body)
	return key
}

func (e *estate) slotKey(id string, slot uint64) string {
	c, err := stream.ParseChainID(id)
	if err != nil {
		e.t.Fatal(err)
	}
	return chain.SlotKey(c, stream.Slot(slot))
}

func (e *estate) slots(id string, from, to uint64) {
	for slot := from; slot < to; slot++ {
		e.putObject(e.slotKey(id, slot), bundle.EncodeSeal(bundle.Seal{}))
	}
}

func (e *estate) directory(id string, from, to uint64) {
	key := fmt.Sprintf("directory/%s/%016x-%s", id, from, aged())
	e.putObject(key, []byte("a directory"))
	e.rows.directories = append(e.rows.directories, &indexpb.Directory{ChainId: id, From: from, To: to, Object: key})
}

func (e *estate) due(d *indexpb.Due) {
	d.DueId = stream.NewAttemptID().String()
	e.rows.due = append(e.rows.due, d)
}

func (e *estate) delete(key string) {
	e.t.Helper()
	if err := e.objects.Delete(context.Background(), key); err != nil {
		e.t.Fatal(err)
	}
}

// lose removes directory i, row and object.
func (e *estate) lose(i int) {
	e.delete(e.rows.directories[i].GetObject())
	e.rows.directories = slices.Delete(e.rows.directories, i, i+1)
}

// crowd puts markers before those of a queue that come in more than a page.
func (e *estate) crowd(queue string) {
	for range 30 {
		e.due(&indexpb.Due{Queue: queue, StreamId: stream.NewID().String(), At: -1})
	}
}

// end deletes a stream, whose end a marker leads to.
func (e *estate) end(s *led) {
	e.rows.heads[s.id.String()].State = indexpb.HeadState_HEAD_STATE_DELETED
	e.due(&indexpb.Due{Queue: "delete", StreamId: s.id.String()})
}

// limit gives a stream limits and a marker, which its settings name.
func (e *estate) limit(s *led, marker string) {
	e.rows.descriptors = append(e.rows.descriptors, &indexpb.StreamDescriptor{
		StreamId: s.id.String(), Bucket: "b", BucketId: "B", Name: "s", RetentionMarker: marker,
		Config: &novapb.StreamConfig{RetentionAgeMsPresence: &novapb.StreamConfig_RetentionAgeMs{RetentionAgeMs: 9}},
	})
	e.due(&indexpb.Due{Queue: "retention", StreamId: s.id.String()})
	e.rows.due[len(e.rows.due)-1].DueId = marker
}

func (e *estate) drop(queue string) {
	e.rows.due = slices.DeleteFunc(e.rows.due, func(d *indexpb.Due) bool { return d.GetQueue() == queue })
}

type objectsStream struct {
	readerpb.ReaderService_VerifyObjectsServer
	ctx context.Context
	got []*novapb.VerifyResponse
}

func (v *objectsStream) Context() context.Context { return v.ctx }

func (v *objectsStream) Send(m *readerpb.VerifyObjectsResponse) error {
	v.got = append(v.got, m.GetProgress())
	return nil
}

func (e *estate) survey() ([]*novapb.VerifyFinding, *novapb.VerifyResponse) {
	e.t.Helper()
	return e.surveyAnd(false)
}

// surveyAnd is survey, with repair if so asked.
func (e *estate) surveyAnd(repair bool) ([]*novapb.VerifyFinding, *novapb.VerifyResponse) {
	e.t.Helper()
	v := &objectsStream{ctx: e.ctx()}
	if err := e.svc.VerifyObjects(&readerpb.VerifyObjectsRequest{Repair: repair}, v); err != nil {
		e.t.Fatal(err)
	}
	var found []*novapb.VerifyFinding
	for _, p := range v.got {
		found = append(found, p.GetFindings()...)
	}
	return found, v.got[len(v.got)-1]
}

// What leaks, what is lost and what does not fit is found, each once; what is on
// its way is not (I11).
func TestSurveyFindsWhatIsWrong(t *testing.T) {
	for name, c := range map[string]struct {
		breakIt func(e *estate)
		kind    string
		says    string
	}{
		"nothing": {func(*estate) {}, "", ""},

		"a slot that is lost":              {func(e *estate) { e.delete(e.slotKey(e.open, 5)) }, "missing", "slots 5..6"},
		"the last absorbed slot":           {func(e *estate) { e.delete(e.slotKey(e.open, 7)) }, "missing", "slots 7..8"},
		"a settled slot that is reclaimed": {func(e *estate) { e.delete(e.slotKey(e.open, 0)) }, "", ""},
		"a pinned slot":                    {func(e *estate) { e.delete(e.slotKey(e.sealed, 1)) }, "missing", "slots 1..2"},
		"a slot below the cut": {func(e *estate) {
			e.rows.chains[e.sealed].SettledTo, e.rows.chains[e.sealed].ReclaimedTo = 4, 4
			e.directory(e.sealed, 4, 5)
		}, "missing", "slots 4..5"},
		"every slot of a chain": {func(e *estate) {
			e.rows.chains[e.open].Lanes = 3
			for i := range uint64(10) {
				e.delete(e.slotKey(e.open, i))
			}
		}, "missing", "of slots 0..8, 4 of"},
		"a reclaimed slot":                   {func(e *estate) { e.slots(e.sealed, 3, 5) }, "leak", "slots 3..5"},
		"a slot of a retired chain":          {func(e *estate) { e.slots(e.retired, 0, 1) }, "leak", "slots 0..1"},
		"a slot behind a retired chain":      {func(e *estate) { e.slots(e.retired, 4, 5) }, "leak", "slots 4..5"},
		"a slot far behind a cut":            {func(e *estate) { e.slots(e.sealed, 8, 9) }, "leak", "slots 8..9"},
		"a chain without a row":              {func(e *estate) { e.slots(aged(), 0, 1) }, "leak", "without a row"},
		"a directory's row":                  {func(e *estate) { e.lose(1) }, "directory", "slots 4..6"},
		"the last directory's row":           {func(e *estate) { e.lose(2) }, "directory", "slots 6..8"},
		"a settled directory's row":          {func(e *estate) { e.lose(0) }, "", ""},
		"a directory's object":               {func(e *estate) { e.delete(e.rows.directories[1].GetObject()) }, "missing", "slots 4..6"},
		"a reclaimed directory's row":        {func(e *estate) { e.directory(e.sealed, 2, 5) }, "leak", "directory 2..5"},
		"a pinned directory's row":           {func(e *estate) { e.directory(e.sealed, 0, 5) }, "", ""},
		"a directory's object without a row": {func(e *estate) { e.putObject("directory/"+e.open+"/0000000000000004-"+aged(), nil) }, "leak", "named by no row"},
		"a chain that nothing reclaims":      {func(e *estate) { e.drop("reclaim") }, "leak", "no marker leads to the settled slots 0..4"},
		"a chain that nothing ends":          {func(e *estate) { e.drop("chain") }, "marker", "no marker leads to its end"},
		"a chain's row that makes no sense":  {func(e *estate) { e.rows.chains[e.sealed].SettledTo = 6; e.rows.chains[e.sealed].ReclaimedTo = 6 }, "chain", "settled to 6"},
		"an object without a row":            {func(e *estate) { e.putObject("settled/"+aged(), []byte("x")) }, "leak", "no row and no marker"},
		"a page without a row":               {func(e *estate) { e.putObject("page/"+aged(), []byte("x")) }, "leak", "no row and no marker"},
		"an object that nobody judges":       {func(e *estate) { e.unjudged(indexpb.SettledState_SETTLED_STATE_ADOPTING) }, "leak", "is adopting"},
		"an object that nobody deletes":      {func(e *estate) { e.unjudged(indexpb.SettledState_SETTLED_STATE_CONDEMNED) }, "leak", "is condemned"},
		"a run that is live and not named":   {func(e *estate) { e.rows.settled[e.shared].Live[0] |= 1 }, "leak", "run 0"},
		"a run that is named and dead":       {func(e *estate) { e.rows.settled[e.shared].Live[0] = 0 }, "ref", "run 1"},
		"a page that is live and not named":  {func(e *estate) { e.unnamedPage() }, "leak", "page/"},
		"a page that is named and dead":      {func(e *estate) { e.rows.settled[e.page].Live[0] = 0 }, "ref", "page/"},
		"an object with nothing live":        {func(e *estate) { e.dead() }, "leak", "no live run"},
		"runs that a row does not know":      {func(e *estate) { e.rows.settled[e.shared].Runs = 2 }, "ref", "its row says 2"},
		"a footer that is damaged":           {func(e *estate) { e.rewritten(e.shared, func(b []byte) []byte { b[len(b)-9] ^= 1; return b }) }, "checksum", "settled/"},
		"a page that is damaged":             {func(e *estate) { e.rewritten(e.page, func(b []byte) []byte { b[20] ^= 1; return b }) }, "checksum", "page/"},
		"runs that nothing drops":            {func(e *estate) { e.drop("unref") }, "leak", "no marker drops it"},
		"work that was set aside":            {func(e *estate) { e.due(&indexpb.Due{Queue: "dead-unref", StreamId: "S", Attempts: 9}) }, "dead_letter", "unref"},
		"work of unref that was set aside, more than a page": {func(e *estate) {
			for range 20 {
				e.due(&indexpb.Due{Queue: "dead-unref", StreamId: "S", Attempts: 9})
			}
		}, "dead_letter", "unref"},
		"runs that nothing drops, behind a full queue": {func(e *estate) { e.drop("unref"); e.crowd("unref") }, "leak", "no marker drops it"},
		"runs that the last of many markers drops":     {func(e *estate) { e.crowd("unref") }, "", ""},
		"a deleted stream that nothing removes":        {func(e *estate) { e.end(e.a); e.drop("delete") }, "marker", "is deleted"},
		"a deleted stream that is removed":             {func(e *estate) { e.end(e.a) }, "", ""},
		"a deleted stream whose work was set aside": {func(e *estate) {
			e.end(e.a)
			e.rows.due[len(e.rows.due)-1].Queue = "dead-delete"
		}, "dead_letter", "delete"},
		"limits that nothing looks after": {func(e *estate) { e.limit(e.a, "M"); e.drop("retention") }, "marker", "it has limits"},
		"limits that a marker looks after that is not named": {func(e *estate) {
			e.limit(e.a, "M")
			e.drop("retention")
			e.due(&indexpb.Due{Queue: "retention", StreamId: e.a.id.String()})
		}, "marker", "it has limits"},
		"limits that are looked after": {func(e *estate) { e.limit(e.a, "M") }, "", ""},
		"limits of an earlier version": {func(e *estate) { e.limit(e.a, ""); e.drop("retention") }, "", ""},
		"limits that were lifted": {func(e *estate) {
			e.limit(e.a, "M")
			e.drop("retention")
			e.rows.descriptors[0].Config = &novapb.StreamConfig{}
		}, "", ""},
		"limits of a stream that is deleted": {func(e *estate) { e.limit(e.a, "M"); e.drop("retention"); e.end(e.a) }, "", ""},
		"an object of nobody":                {func(e *estate) { e.putObject("chain-backup/x", []byte("x")) }, "leak", "no object of a constellation"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEstate(t)
			c.breakIt(e)
			found, last := e.survey()
			for _, f := range found {
				if f.GetKind() != c.kind || !strings.Contains(f.GetMessage(), c.says) {
					t.Errorf("found %s: %s", f.GetKind(), f.GetMessage())
				}
			}
			if c.kind != "" && len(found) == 0 {
				t.Errorf("no %s found", c.kind)
			}
			if !last.GetDone() || last.GetChains() != 3 || last.GetObjects() < 20 {
				t.Errorf("%v", last)
			}
		})
	}
}

func (e *estate) unjudged(state indexpb.SettledState) {
	key := "settled/" + aged()
	e.putObject(key, []byte("x"))
	e.rows.settled[key] = &indexpb.SettledObject{Object: key, State: state, Runs: 1, Live: []byte{1}}
}

// dead makes an object of which every run is dead.
func (e *estate) dead() {
	s := e.create("dead")
	e.chunk(s, "x")
	key := e.age(e.settle(s, 1, settling{}).GetObject())
	e.rows.settled[key] = &indexpb.SettledObject{Object: key, State: indexpb.SettledState_SETTLED_STATE_ADOPTED, Runs: 1, Live: []byte{0}}
}

func (e *estate) unnamedPage() {
	body := e.pageBody(e.a, e.a.head.GetPages()[0])
	key := "page/" + aged()
	e.putObject(key, history.EncodePage(body))
	e.rows.settled[key] = &indexpb.SettledObject{
		Object: key, State: indexpb.SettledState_SETTLED_STATE_ADOPTED, Runs: 1, Live: []byte{1}, StreamId: e.a.id.String(),
	}
}

// What changes while the survey looks at it is judged by what it became.
func TestSurveyOfARunningConstellation(t *testing.T) {
	for name, c := range map[string]struct{ before, after func(e *estate) }{
		"a span is settled and reclaimed": {func(*estate) {}, func(e *estate) {
			e.rows.chains[e.open].SettledTo, e.rows.chains[e.open].ReclaimedTo = 8, 8
			for i := range uint64(8) {
				e.delete(e.slotKey(e.open, i))
			}
			for _, d := range e.rows.directories[:3] {
				e.delete(d.GetObject())
			}
			e.rows.directories = e.rows.directories[3:]
			e.drop("reclaim")
		}},
		"a chain is begun": {func(*estate) {}, func(e *estate) {
			id := aged()
			e.rows.chains[id] = &indexpb.Chain{ChainId: id, State: indexpb.ChainState_CHAIN_STATE_OPEN}
			e.slots(id, 0, 3)
		}},
		"a head drops a run": {func(*estate) {}, func(e *estate) {
			h := e.rows.heads[e.a.id.String()]
			e.due(&indexpb.Due{Queue: "unref", StreamId: e.a.id.String(), Refs: h.GetRefs()})
			h.Refs = nil
		}},
		"a stream is deleted": {func(*estate) {}, func(e *estate) { e.end(e.a) }},
		"limits are put again": {func(e *estate) { e.limit(e.a, "M") }, func(e *estate) {
			e.drop("retention")
			e.rows.descriptors = nil
			e.limit(e.a, "N")
		}},
		"an object is judged": {func(e *estate) { e.unjudgedKey("settled/" + aged()) }, func(e *estate) {
			for key, r := range e.rows.settled {
				if r.GetState() != indexpb.SettledState_SETTLED_STATE_ADOPTED {
					e.delete(key)
					delete(e.rows.settled, key)
				}
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEstate(t)
			c.before(e)
			var once sync.Once
			// After the rows were read and before the store is listed.
			e.objects.Script(fault.Rule{Op: fault.List, Hook: func(context.Context, fault.Op, string) error {
				once.Do(func() {
					e.rows.mu.Lock()
					defer e.rows.mu.Unlock()
					c.after(e)
				})
				return nil
			}})
			if found, _ := e.survey(); len(found) > 0 {
				t.Errorf("found %v", found)
			}
		})
	}
}

func (e *estate) unjudgedKey(key string) {
	e.putObject(key, []byte("x"))
	e.rows.settled[key] = &indexpb.SettledObject{Object: key, State: indexpb.SettledState_SETTLED_STATE_CONDEMNED, Runs: 1, Live: []byte{1}}
}

// A store that does not answer ends the survey; it is no finding.
func TestSurveyWithoutAStore(t *testing.T) {
	for _, op := range []fault.Op{fault.List, fault.GetRange} {
		e := newEstate(t)
		e.objects.Script(fault.Rule{Op: op, Do: fault.FailBefore})
		v := &objectsStream{ctx: e.ctx()}
		err := e.svc.VerifyObjects(&readerpb.VerifyObjectsRequest{}, v)
		want(t, err, codes.Unavailable, reason.StorageDown)
		for _, m := range v.got {
			if len(m.GetFindings()) > 0 || m.GetDone() {
				t.Errorf("%v", m)
			}
		}
	}
}
