package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/node/v1"
	"github.com/nova-stream/nova/proto/gen/nova/reaper/v1"
	"github.com/nova-stream/nova/proto/gen/nova/settler/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// backWorld is an index, discovery and the nodes that it sees, all in memory.
type backWorld struct {
	indexpb.IndexServiceClient

	chains []*indexpb.Chain
	due    map[string][]*indexpb.Due // by queue, by time
	export *indexpb.GetExportStateResponse
	down   error // of the index

	lost     error // discovery
	nodes    []discovery.Node
	settlers map[string]*settlerpb.GetProgressResponse // by address
	reapers  map[string]*reaperpb.GetProgressResponse
	stats    map[string]map[string]float64
	hangs    map[string]bool
	failure  map[string]error

	mu      sync.Mutex
	revives []string
	listed  int // chain records
}

func (w *backWorld) ListChains(_ context.Context, req *indexpb.ListChainsRequest, _ ...grpc.CallOption) (*indexpb.ListChainsResponse, error) {
	out := &indexpb.ListChainsResponse{}
	for _, c := range w.chains {
		if c.GetChainId() <= req.GetStartAfter() {
			continue
		}
		if len(out.GetChains()) == int(req.GetLimit()) {
			out.HasMore = true
			break
		}
		w.listed++
		out.Chains = append(out.Chains, &indexpb.VersionedChain{Chain: c})
	}
	return out, w.down
}

func (w *backWorld) ListDue(_ context.Context, req *indexpb.ListDueRequest, _ ...grpc.CallOption) (*indexpb.ListDueResponse, error) {
	out := &indexpb.ListDueResponse{}
	for _, d := range w.due[req.GetQueue()] {
		if len(out.GetDue()) == int(req.GetLimit()) {
			out.HasMore = true
			break
		}
		if d.GetAt() <= req.GetUntil() {
			out.Due = append(out.Due, &indexpb.VersionedDue{Due: d})
		}
	}
	return out, nil
}

func (w *backWorld) GetExportState(context.Context, *indexpb.GetExportStateRequest, ...grpc.CallOption) (*indexpb.GetExportStateResponse, error) {
	return w.export, nil
}

func (w *backWorld) Nodes(_ context.Context, s discovery.Service) ([]discovery.Node, error) {
	var out []discovery.Node
	for _, n := range w.nodes {
		if n.Service == s {
			out = append(out, n)
		}
	}
	return out, w.lost
}

func (w *backWorld) Address(address string) (grpc.ClientConnInterface, error) {
	if address == "" {
		return nil, errors.New("no address")
	}
	return backConn{w, address}, nil
}

func (w *backWorld) Node(n discovery.Node) (nodepb.NodeServiceClient, error) {
	return nodepb.NewNodeServiceClient(backConn{w, n.Address}), nil
}

type backConn struct {
	*backWorld

	address string
}

func (c backConn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("no streams")
}

func (c backConn) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	if c.hangs[c.address] {
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	if err := c.failure[c.address]; err != nil {
		return err
	}
	var answer proto.Message
	switch req := args.(type) {
	case *settlerpb.GetProgressRequest:
		answer = c.settlers[c.address]
	case *reaperpb.GetProgressRequest:
		answer = c.reapers[c.address]
	case *nodepb.GetStatsRequest:
		answer = &nodepb.GetStatsResponse{Stats: c.stats[c.address]}
	case *reaperpb.ReviveRequest:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.revives = append(c.revives, c.address+" "+req.GetQueue()+" "+req.GetDueId())
		answer = &reaperpb.ReviveResponse{Revived: 3}
	default:
		return fmt.Errorf("no %s here", method)
	}
	proto.Merge(reply.(proto.Message), answer)
	return nil
}

func (w *backWorld) gateway() *Service {
	return &Service{cfg: Config{Patience: time.Minute}, index: w, registry: w, nodes: w, conns: w, log: slog.New(slog.DiscardHandler)}
}

func (w *backWorld) node(s discovery.Service, address string) {
	w.nodes = append(w.nodes, discovery.Node{ID: address + "." + string(s), Service: s, Address: address})
}

// ids of chains, by age.
func chainID(n byte) string {
	id := stream.ChainID{0, 0, 0, 0, 0x10, n}
	return id.String()
}

// begin is a constellation with two settlers, two reapers and a node that writes.
func beginBackground() *backWorld {
	w := &backWorld{
		export: &indexpb.GetExportStateResponse{}, due: map[string][]*indexpb.Due{}, settlers: map[string]*settlerpb.GetProgressResponse{},
		reapers: map[string]*reaperpb.GetProgressResponse{}, stats: map[string]map[string]float64{}, hangs: map[string]bool{}, failure: map[string]error{},
	}
	for _, a := range []string{"a", "b"} {
		w.node(discovery.Settler, a)
		w.node(discovery.Reaper, a)
		w.settlers[a], w.reapers[a] = &settlerpb.GetProgressResponse{}, &reaperpb.GetProgressResponse{}
	}
	w.node(discovery.Sequencer, "a")
	w.node(discovery.ChainWriter, "a")
	return w
}

func background(t *testing.T, w *backWorld, req *novapb.GetBackgroundRequest) *novapb.GetBackgroundResponse {
	t.Helper()
	res, err := w.gateway().GetBackground(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// What several processes and the rows say is put together.
func TestBackgroundIsGathered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now().UnixMilli()
		w := beginBackground()
		const open, sealed, retired = indexpb.ChainState_CHAIN_STATE_OPEN, indexpb.ChainState_CHAIN_STATE_SEALED, indexpb.ChainState_CHAIN_STATE_RETIRED
		w.chains = []*indexpb.Chain{
			{ChainId: chainID(1), State: retired, Cut: 5, AbsorbedTo: 5, SettledTo: 5, ReclaimedTo: 5},
			{ChainId: chainID(2), State: sealed, Cut: 5, AbsorbedTo: 5, SettledTo: 5, ReclaimedTo: 3, Pins: []*indexpb.ChainPin{{StreamId: "s"}, {StreamId: "r"}, {StreamId: "s"}}},
			{ChainId: chainID(3), State: open, AbsorbedTo: 70, SettledTo: 30},
			{ChainId: chainID(4), State: open, AbsorbedTo: 8, SettledTo: 8},
			{ChainId: chainID(5), State: open, AbsorbedTo: 1},
		}
		w.settlers["a"] = &settlerpb.GetProgressResponse{SettledBytes: 100, WrittenBytes: 90, RewrittenBytes: 5, Since: now - 5000, Chains: []*settlerpb.ChainProgress{
			{ChainId: chainID(3), AbsorbedTo: 80, SettledTo: 40, Backlog: 3, BacklogSince: now - 2000, UnsettledBytes: 1000, UnsettledSince: now - 60_000, Blocked: strings.Repeat("é", 300)},
			{ChainId: chainID(4), AbsorbedTo: 8, SettledTo: 8, Backlog: 1, BacklogSince: now - 7000},
		}}
		w.settlers["b"] = &settlerpb.GetProgressResponse{SettledBytes: 20, WrittenBytes: 30, RewrittenBytes: 6, Since: now - 9000, Chains: []*settlerpb.ChainProgress{
			// It looked after this one before, and is behind.
			{ChainId: chainID(3), AbsorbedTo: 80, SettledTo: 30, Backlog: 9, BacklogSince: now - 99_000, UnsettledBytes: 5000, UnsettledSince: now - 99_000},
		}}
		w.reapers["a"] = &reaperpb.GetProgressResponse{Queues: []*reaperpb.QueueProgress{{Queue: "reclaim", Done: 1, Failed: 2}, {Queue: "new", Done: 9}}}
		w.reapers["b"] = &reaperpb.GetProgressResponse{Queues: []*reaperpb.QueueProgress{{Queue: "reclaim", Done: 10, Failed: 20}}}
		w.stats["a"] = map[string]float64{figureAppended: 100, figureCommitted: 120}
		w.export = &indexpb.GetExportStateResponse{Begun: 4, Completed: 3, Enabled: true, IntervalMs: 7, CompletedBegunAt: 55}
		w.due["reclaim"] = []*indexpb.Due{{At: now - 50, LeasedUntil: now + 1}, {At: now - 40, LeasedUntil: now - 1}, {At: now}, {At: now + 1}}
		w.due["dead-reclaim"] = []*indexpb.Due{{At: 1}, {At: now + 60_000}}
		for range 9 {
			w.due["unref"] = append(w.due["unref"], &indexpb.Due{At: now + 77})
		}

		got := background(t, w, &novapb.GetBackgroundRequest{})
		want := &novapb.GetBackgroundResponse{
			Now: now, Settlers: 2, Reapers: 2,
			Export: &novapb.BackgroundExport{Enabled: true, IntervalMs: 7, Begun: 4, Completed: 3, CompletedBegunAt: 55},
			Totals: &novapb.BackgroundTotals{
				UnsettledBytes: 1000, SettledBytes: 120, SettledSince: now - 9000, AppendedBytes: 100, TransitWrittenBytes: 120, SettledWrittenBytes: 120, RewrittenBytes: 11,
				WriteAmplification: 2.4, BacklogSlots: 4, AbsorbLagMs: 7000, SettleLagMs: 60_000, BlockedChains: 1,
			},
			Chains: []*novapb.BackgroundChain{
				{ChainId: chainID(2), State: "sealed", Cut: 5, AbsorbedTo: 5, SettledTo: 5, ReclaimedTo: 3, PinnedStreams: 2, Known: true},
				{
					ChainId: chainID(3), State: "open", AbsorbedTo: 80, SettledTo: 40, Known: true, BacklogSlots: 3, BacklogSince: now - 2000,
					UnsettledBytes: 1000, UnsettledSince: now - 60_000, Blocked: strings.Repeat("é", 200),
				},
				{ChainId: chainID(4), State: "open", AbsorbedTo: 8, SettledTo: 8, Known: true, BacklogSlots: 1, BacklogSince: now - 7000},
				{ChainId: chainID(5), State: "open", AbsorbedTo: 1},
			},
		}
		for _, name := range catalog.Queues() {
			q := &novapb.BackgroundQueue{Queue: name}
			switch name {
			case "reclaim":
				q.Waiting, q.Due, q.InWork, q.OldestAt, q.Dead, q.Done, q.NotDone = 4, 2, 1, now-50, 2, 11, 22
			case "unref":
				q.Waiting, q.MoreWaiting, q.OldestAt = 8, true, now+77
			}
			want.Queues = append(want.Queues, q)
		}
		if !proto.Equal(got, want) {
			t.Errorf("got\n%v\nwant\n%v", got, want)
		}
	})
}

// The list is bounded, and a page leads to the next; what is retired takes no place.
func TestBackgroundChainsInPages(t *testing.T) {
	w := beginBackground()
	for i := range 40 {
		state := indexpb.ChainState_CHAIN_STATE_OPEN
		if i < 20 || i%2 == 0 {
			state = indexpb.ChainState_CHAIN_STATE_RETIRED
		}
		w.chains = append(w.chains, &indexpb.Chain{ChainId: chainID(byte(i)), State: state})
	}
	var got []string
	pages := 0
	for after := ""; ; pages++ {
		res := background(t, w, &novapb.GetBackgroundRequest{Limit: 3, StartAfter: after})
		if len(res.GetChains()) > 3 {
			t.Fatalf("%d chains", len(res.GetChains()))
		}
		for _, c := range res.GetChains() {
			got = append(got, c.GetChainId())
		}
		if !res.GetMoreChains() {
			break
		}
		if after = res.GetNextStartAfter(); after == "" {
			t.Fatal("more, and nothing to go on from")
		}
	}
	var want []string
	for i := 21; i < 40; i += 2 {
		want = append(want, chainID(byte(i)))
	}
	if !slices.Equal(got, want) || pages != 3 {
		t.Errorf("%d pages of %v, want %v", pages+1, got, want)
	}
	// However many ended long ago: a request reads so many and says where to go on.
	w.chains, w.listed = nil, 0
	for i := range chainPage*chainPages + 1 {
		id := stream.ChainID{0, 0, byte(i >> 16), byte(i >> 8), byte(i)}
		w.chains = append(w.chains, &indexpb.Chain{ChainId: id.String(), State: indexpb.ChainState_CHAIN_STATE_RETIRED})
	}
	w.chains[len(w.chains)-1].State = indexpb.ChainState_CHAIN_STATE_OPEN
	res := background(t, w, &novapb.GetBackgroundRequest{})
	if len(res.GetChains()) != 0 || !res.GetMoreChains() || w.listed > chainPage*chainPages {
		t.Errorf("%d chains, more %v, %d records read", len(res.GetChains()), res.GetMoreChains(), w.listed)
	}
	res = background(t, w, &novapb.GetBackgroundRequest{StartAfter: res.GetNextStartAfter()})
	if len(res.GetChains()) != 1 || res.GetMoreChains() {
		t.Errorf("then %v", res.GetChains())
	}
}

// Who does not answer is named, costs a bounded time, and hides nothing else.
func TestBackgroundWithoutSome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := beginBackground()
		w.chains = []*indexpb.Chain{{ChainId: chainID(1), State: indexpb.ChainState_CHAIN_STATE_OPEN}}
		w.settlers["b"].Chains = []*settlerpb.ChainProgress{{ChainId: chainID(1), UnsettledBytes: 5}}
		w.stats["a"] = map[string]float64{figureAppended: 100, figureCommitted: 120}
		w.node(discovery.Settler, "c")
		w.node(discovery.Reaper, "")
		w.node(discovery.ChainWriter, "d")
		w.hangs["c"] = true
		w.failure["d"] = status.Error(codes.Unavailable, "connection refused")
		began := time.Now()
		got := background(t, w, &novapb.GetBackgroundRequest{})
		if took := time.Since(began); took > nodePatience {
			t.Errorf("it took %v", took)
		}
		if want := []string{".reaper", "c.settler", "d.chain-writer"}; !slices.Equal(got.GetUnanswered(), want) {
			t.Errorf("unanswered %v, want %v", got.GetUnanswered(), want)
		}
		if got.GetSettlers() != 2 || got.GetReapers() != 2 || got.GetChains()[0].GetUnsettledBytes() != 5 || got.GetTotals().GetTransitWrittenBytes() != 120 {
			t.Errorf("got %v", got)
		}
		if a := got.GetTotals().GetWriteAmplification(); a != 0 {
			t.Errorf("amplification %v of what is known in part", a)
		}
		w.lost = discovery.Fail("Nodes", "x", discovery.ErrUnavailable, "")
		got = background(t, w, &novapb.GetBackgroundRequest{})
		if !slices.Equal(got.GetUnanswered(), []string{"discovery"}) || len(got.GetChains()) != 1 || got.GetChains()[0].GetKnown() || len(got.GetQueues()) != len(catalog.Queues()) {
			t.Errorf("without discovery: %v", got)
		}
		// Without the index there is nothing to show.
		w.down = reason.New(codes.Unavailable, reason.StorageDown, "down")
		if _, err := w.gateway().GetBackground(t.Context(), &novapb.GetBackgroundRequest{}); !reason.Is(err, reason.StorageDown) {
			t.Errorf("without the index: %v", err)
		}
	})
}

// Rows of older releases do not say when they were absorbed: then it is at most as
// long ago as the chain.
func TestBackgroundOfOldRows(t *testing.T) {
	w := beginBackground()
	id := stream.NewChainID()
	w.settlers["a"].Chains = []*settlerpb.ChainProgress{{ChainId: id.String(), UnsettledSince: 1}}
	got := background(t, w, &novapb.GetBackgroundRequest{})
	if lag := got.GetTotals().GetSettleLagMs(); lag < 0 || lag > time.Minute.Milliseconds() {
		t.Errorf("lag %d ms of a chain that was made just now", lag)
	}
}

func TestDeadLettersAreListed(t *testing.T) {
	w := beginBackground()
	w.due["dead-reclaim"] = []*indexpb.Due{{DueId: "1", At: 5, Attempts: 50, ChainId: "c", Number: 7}, {DueId: "2", At: 6, StreamId: "s"}}
	w.due["dead-bucket"] = []*indexpb.Due{{DueId: "3", At: 9, Bucket: "b"}}
	w.due["reclaim"] = []*indexpb.Due{{DueId: "4"}}
	for i := range 9 {
		w.due["dead-unref"] = append(w.due["dead-unref"], &indexpb.Due{DueId: fmt.Sprint("u", i), Object: "o", Name: "n", Bucket: "b"})
	}
	list := func(req *novapb.ListDeadLettersRequest) (ids []string, res *novapb.ListDeadLettersResponse) {
		t.Helper()
		res, err := w.gateway().ListDeadLetters(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range res.GetLetters() {
			ids = append(ids, l.GetQueue()+" "+l.GetDueId())
		}
		return ids, res
	}
	ids, res := list(&novapb.ListDeadLettersRequest{Queue: "reclaim"})
	if !slices.Equal(ids, []string{"reclaim 1", "reclaim 2"}) || res.GetHasMore() {
		t.Errorf("of a queue: %v", res)
	}
	if want := (&novapb.DeadLetter{Queue: "reclaim", DueId: "1", SetAsideAt: 5, Attempts: 50, ChainId: "c", Number: 7}); !proto.Equal(res.GetLetters()[0], want) {
		t.Errorf("got %v, want %v", res.GetLetters()[0], want)
	}
	ids, res = list(&novapb.ListDeadLettersRequest{})
	if len(ids) != 11 || ids[0] != "bucket 3" || ids[10] != "unref u7" || !res.GetHasMore() || res.GetLetters()[10].GetStream() != "n" || res.GetLetters()[10].GetObject() != "o" {
		t.Errorf("of all: %v", res)
	}
	if ids, res = list(&novapb.ListDeadLettersRequest{Limit: 1}); !slices.Equal(ids, []string{"bucket 3", "reclaim 1", "unref u0"}) || !res.GetHasMore() {
		t.Errorf("one of each: %v", res)
	}
	for _, bad := range []string{"dead-reclaim", "x"} {
		if _, err := w.gateway().ListDeadLetters(t.Context(), &novapb.ListDeadLettersRequest{Queue: bad}); reason.Code(err) != codes.InvalidArgument {
			t.Errorf("queue %q: %v", bad, err)
		}
	}
}

// Any reaper can do it: one that does not answer is passed over.
func TestDeadLettersAreRevivedByAnyReaper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := beginBackground()
		id := stream.NewID().String()
		revive := func(req *novapb.ReviveDeadLetterRequest) (*novapb.ReviveDeadLetterResponse, error) {
			return w.gateway().ReviveDeadLetter(t.Context(), req)
		}
		if res, err := revive(&novapb.ReviveDeadLetterRequest{Queue: "reclaim", DueId: strings.ToLower(id)}); err != nil || res.GetRevived() != 3 {
			t.Errorf("%v, %v", res, err)
		}
		w.hangs["a"] = true
		if res, err := revive(&novapb.ReviveDeadLetterRequest{Queue: "unref"}); err != nil || res.GetRevived() != 3 {
			t.Errorf("%v, %v", res, err)
		}
		if want := []string{"a reclaim " + id, "b unref "}; !slices.Equal(w.revives, want) {
			t.Errorf("asked %q, want %q", w.revives, want)
		}
		w.failure["b"] = status.Error(codes.Unavailable, "no")
		if _, err := revive(&novapb.ReviveDeadLetterRequest{Queue: "unref"}); !reason.Is(err, reason.NodeUnavailable) {
			t.Errorf("when none can: %v", err)
		}
		if _, err := revive(&novapb.ReviveDeadLetterRequest{Queue: "x"}); reason.Code(err) != codes.InvalidArgument {
			t.Errorf("no queue: %v", err)
		}
		w.nodes = nil
		if _, err := revive(&novapb.ReviveDeadLetterRequest{Queue: "unref"}); !reason.Is(err, reason.NodeUnavailable) {
			t.Errorf("without reapers: %v", err)
		}
		w.lost = errors.New("no")
		if _, err := revive(&novapb.ReviveDeadLetterRequest{Queue: "unref"}); !reason.Is(err, reason.NodeUnavailable) {
			t.Errorf("without discovery: %v", err)
		}
	})
}
