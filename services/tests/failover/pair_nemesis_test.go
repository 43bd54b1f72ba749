package failover

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/discovery"
	metafault "github.com/nova-stream/nova/libs/metastore/fault"
	"github.com/nova-stream/nova/libs/objectstore/fault"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/chainwriter/v1"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

// pairNemesis hurts a pair.
type pairNemesis struct {
	*pair
	doors  []*door
	deck   []trouble // not dealt yet: a short run, too, has some of each
	dealt  bool
	victim *member
	undo   func(ctx context.Context) error
}

// trouble is one way to hurt a member of the pair.
type trouble func(n *pairNemesis, ctx context.Context, r *rand.Rand, m *member) (string, error)

// troubles are all, some of them several times.
var troubles = []trouble{
	(*pairNemesis).cutOff, (*pairNemesis).lagThenKill, (*pairNemesis).kill,
	(*pairNemesis).cutOff, (*pairNemesis).lagThenKill, (*pairNemesis).restart, (*pairNemesis).objectFault, (*pairNemesis).objectFault,
	(*pairNemesis).rowFault, (*pairNemesis).settlingFault, (*pairNemesis).settlingFault, (*pairNemesis).slowRows, (*pairNemesis).slowThenKill, (*pairNemesis).outage, (*pairNemesis).seal, (*pairNemesis).drain,
}

// hurt implements nemesis.
func (n *pairNemesis) hurt(ctx context.Context, r *rand.Rand) (string, error) {
	if len(n.deck) == 0 {
		n.deck = slices.Clone(troubles)
		rest := n.deck
		if !n.dealt { // first those that find most
			rest = n.deck[3:]
		}
		r.Shuffle(len(rest), func(i, j int) { rest[i], rest[j] = rest[j], rest[i] })
		n.dealt = true
	}
	next := n.deck[0]
	n.deck = n.deck[1:]
	m := n.leader(ctx)
	if m == nil || r.IntN(4) == 0 {
		m = n.nodes[r.IntN(len(n.nodes))]
	}
	n.victim, n.undo = m, nil
	return next(n, ctx, r, m)
}

// leader is who leads most shards, nil if nobody can tell.
func (n *pairNemesis) leader(ctx context.Context) *member {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	fleet, err := n.doors[0].admin.GetFleet(ctx, &novapb.GetFleetRequest{})
	if err != nil {
		return nil
	}
	shards, err := n.doors[0].admin.ListShards(ctx, &novapb.ListShardsRequest{})
	if err != nil {
		return nil
	}
	leads := map[string]int{}
	for _, s := range shards.GetShards() {
		leads[s.GetLeader()]++
	}
	address := most(leads)
	for _, node := range fleet.GetNodes() {
		for _, m := range n.nodes {
			if node.GetAddress() == address && strings.HasPrefix(node.GetNodeId(), m.id+".") {
				return m
			}
		}
	}
	return nil
}

func (n *pairNemesis) kill(_ context.Context, _ *rand.Rand, m *member) (string, error) {
	m.kill()
	n.undo = m.restart
	return "kill a node", nil
}

func (n *pairNemesis) restart(ctx context.Context, _ *rand.Rand, m *member) (string, error) {
	return "restart a node", m.restart(ctx)
}

func (n *pairNemesis) outage(_ context.Context, _ *rand.Rand, m *member) (string, error) {
	m.rows.SetOutage(true)
	n.undo = func(context.Context) error { m.rows.SetOutage(false); return nil }
	return "metastore away", nil
}

// cutOff lasts until the other leads. This one does not hear of it, goes on
// taking appends, and has a writer that works.
func (n *pairNemesis) cutOff(_ context.Context, r *rand.Rand, m *member) (string, error) {
	m.deaf.Store(true)
	n.undo = func(context.Context) error { m.deaf.Store(false); return nil }
	time.Sleep(2*pairLease + some(r, pairLease/2))
	return "a node is cut off for longer than its lease", nil
}

func (n *pairNemesis) seal(ctx context.Context, r *rand.Rand, _ *member) (string, error) {
	return sealChain(ctx, n.doors[0], r)
}

func (n *pairNemesis) drain(ctx context.Context, r *rand.Rand, _ *member) (string, error) {
	return drain(ctx, n.doors[r.IntN(len(n.doors))], r, &n.undo)
}

// heal implements nemesis.
func (n *pairNemesis) heal(ctx context.Context) error {
	m := n.victim
	n.clear()
	if n.undo != nil {
		if err := n.undo(ctx); err != nil {
			return err
		}
	}
	return within(ctx, time.Minute, func(context.Context) error {
		// Lost its lease, or met a store that refuses: somebody starts it again.
		if m.node == nil || m.ended() {
			return m.restart(ctx)
		}
		return m.node.Ready()
	})
}

// lagThenKill holds one slot up while those behind it land, then kills: what was
// acknowledged out of order would be cut off.
func (n *pairNemesis) lagThenKill(ctx context.Context, r *rand.Rand, m *member) (string, error) {
	for _, m := range n.nodes { // whoever writes
		var held atomic.Pointer[string]
		m.objects.Script(fault.Rule{Op: fault.Put, Prefix: chains, Hook: func(ctx context.Context, _ fault.Op, key string) error {
			held.CompareAndSwap(nil, &key)
			if *held.Load() == key {
				<-ctx.Done()
			}
			return ctx.Err()
		}})
	}
	defer n.clear()
	select {
	case <-ctx.Done():
	case <-time.After(some(r, 400*time.Millisecond)):
	}
	m.kill()
	return "lag, then kill", m.restart(ctx)
}

func (n *pairNemesis) clear() {
	for _, m := range n.nodes {
		m.objects.Clear()
		m.rows.Clear()
	}
}

func (n *pairNemesis) objectFault(_ context.Context, r *rand.Rand, m *member) (string, error) {
	faults := []struct {
		name string
		do   fault.Action
	}{
		{"lost replies", fault.LoseReply}, {"409", fault.Conflict}, {"503", fault.Throttle}, {"failures", fault.FailBefore},
		{"silence", fault.Hang}, {"silence after landing", fault.HangAfter}, {"slow puts", fault.Delay}, {"refusals", fault.Permanent},
	}
	f := faults[r.IntN(len(faults))]
	rule := fault.Rule{Op: fault.Put, Prefix: chains, Nth: 1 + r.IntN(5), Times: 1 + r.IntN(10), Do: f.do, Delay: some(r, 300*time.Millisecond)}
	if f.do == fault.Permanent {
		rule.Times = 1
	}
	m.objects.Script(rule)
	return "objects: " + f.name, nil
}

// settlingFault hurts what settles and reclaims: both nodes do, so both are hurt.
func (n *pairNemesis) settlingFault(_ context.Context, r *rand.Rand, _ *member) (string, error) {
	faults := []struct {
		name string
		do   fault.Action
	}{
		{"lost replies", fault.LoseReply}, {"503", fault.Throttle}, {"failures", fault.FailBefore}, {"slow", fault.Delay},
		{"silence", fault.Hang}, {"silence after landing", fault.HangAfter}, {"half of it", fault.Half}, {"cut", fault.Cut},
	}
	f := faults[r.IntN(len(faults))]
	op := []fault.Op{fault.Put, fault.Read, fault.Delete, fault.Any}[r.IntN(4)]
	prefix := []string{"settled/", "page/", "directory/", ""}[r.IntN(4)]
	if op == fault.Delete || op == fault.Read {
		prefix = []string{prefix, chains}[r.IntN(2)]
	}
	for _, m := range n.nodes {
		m.objects.Script(fault.Rule{
			Op: op, Prefix: prefix, Nth: 1 + r.IntN(3), Times: 1 + r.IntN(10), Do: f.do, Delay: some(r, 500*time.Millisecond),
		})
	}
	time.Sleep(some(r, 500*time.Millisecond))
	return "settling: " + f.name, nil
}

func (n *pairNemesis) rowFault(ctx context.Context, r *rand.Rand, m *member) (string, error) {
	faults := []struct {
		name string
		do   metafault.Action
		op   metafault.Op
	}{
		{"stale reads", metafault.Stale, metafault.Read}, {"lost replies", metafault.LoseReply, metafault.Write},
		{"own conflicts", metafault.OwnConflict, metafault.Write}, {"failures", metafault.FailBefore, metafault.Any}, {"slow", metafault.Delay, metafault.Any},
	}
	f := faults[r.IntN(len(faults))]
	prefixes := []string{"", "shard/", "head/", "chain/", "life/", "settled/", "directory/", "due/"}
	prefix := prefixes[r.IntN(len(prefixes))]
	m.rows.Script(metafault.Rule{
		Op: f.op, Prefix: prefix, Nth: 1 + r.IntN(3), Times: 1 + r.IntN(10), Do: f.do, Back: 1 + r.IntN(2), Delay: some(r, 300*time.Millisecond),
	})
	// Something that reads and writes rows.
	if r.IntN(2) == 0 {
		if _, err := sealChain(ctx, n.doors[0], r); err != nil {
			return "metastore: " + f.name, err
		}
	}
	return "metastore: " + f.name, nil
}

// slowRows holds changes of heads, of chains or of settled objects up, on both
// nodes: what was armed before them is due long before they land.
func (n *pairNemesis) slowRows(_ context.Context, r *rand.Rand, _ *member) (string, error) {
	prefix := []string{"head/", "head/", "chain/", "settled/"}[r.IntN(4)]
	for _, m := range n.nodes {
		m.rows.Script(metafault.Rule{Op: metafault.Write, Prefix: prefix, Times: 200, Do: metafault.Delay, Delay: some(r, 600*time.Millisecond)})
	}
	time.Sleep(some(r, 800*time.Millisecond))
	return "metastore: changes are slow", nil
}

// slowThenKill kills a node while it changes heads: what it armed before them
// finds that they were not changed.
func (n *pairNemesis) slowThenKill(ctx context.Context, r *rand.Rand, m *member) (string, error) {
	m.rows.Script(metafault.Rule{Op: metafault.Write, Prefix: "head/", Times: 200, Do: metafault.Delay, Delay: 600 * time.Millisecond})
	time.Sleep(200*time.Millisecond + some(r, 400*time.Millisecond))
	m.kill()
	return "slow heads, then kill", m.restart(ctx)
}

// sealChain ends a chain that somebody writes, under its writers.
func sealChain(ctx context.Context, d *door, r *rand.Rand) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	const what = "seal a chain"
	var open []*novapb.ChainInfo
	for after, more := "", true; more; {
		res, err := d.admin.ListChains(ctx, &novapb.ListChainsRequest{StartAfter: after})
		if err != nil {
			return what + ": no list", nil // it is hurt already
		}
		for _, c := range res.GetChains() {
			after = c.GetChainId()
			if c.GetState() == "open" && c.GetAddress() != "" {
				open = append(open, c)
			}
		}
		more = res.GetHasMore()
	}
	if len(open) == 0 {
		return what + ": none is open", nil
	}
	// The newest are those in use.
	c := open[len(open)-1-r.IntN(min(2, len(open)))]
	writer, err := openDoor(c.GetAddress())
	if err != nil {
		return what, err
	}
	defer writer.conn.Close()
	if _, err := chainwriterpb.NewChainWriterServiceClient(writer.conn).Seal(ctx, &chainwriterpb.SealRequest{ChainId: c.GetChainId()}); err != nil {
		return what + ": not done", nil
	}
	return what, nil
}

// drain drains a sequencer or a chain-writer; undo undrains it.
func drain(ctx context.Context, d *door, r *rand.Rand, undo *func(context.Context) error) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	service := []discovery.Service{discovery.Sequencer, discovery.ChainWriter}[r.IntN(2)]
	what := "drain a " + string(service)
	fleet, err := d.admin.GetFleet(ctx, &novapb.GetFleetRequest{})
	if err != nil {
		return what + ": no fleet", nil // it is hurt already
	}
	nodes := slices.DeleteFunc(fleet.GetNodes(), func(n *novapb.Node) bool { return n.GetService() != string(service) })
	if len(nodes) == 0 {
		return what + ": none is there", nil
	}
	node := nodes[r.IntN(len(nodes))].GetNodeId()
	_, err = d.admin.DrainNode(ctx, &novapb.DrainNodeRequest{NodeId: node})
	*undo = func(ctx context.Context) error {
		return within(ctx, time.Minute, func(ctx context.Context) error {
			_, err := d.admin.UndrainNode(ctx, &novapb.UndrainNodeRequest{NodeId: node})
			return err
		})
	}
	switch reason.Code(err) {
	case codes.OK:
		return what, nil
	case codes.Unavailable, codes.DeadlineExceeded, codes.NotFound: // it ended meanwhile
		return what + ": not done", nil
	default:
		return what, fmt.Errorf("drain %s: %w", node, err)
	}
}

// pairPlan is a run on a pair.
var pairPlan = plan{
	streams: 3, ops: 60, length: 2500 * time.Millisecond, timeout: 2500 * time.Millisecond,
	patience: time.Minute, search: 20 * time.Second, settles: 75,
}

// Two nodes, their stores hurt, killed and cut off: nothing is lost, nothing is
// said that was not so.
func TestPairKeepsItsWord(t *testing.T) {
	length := 18 * time.Second
	if testing.Short() {
		length = 5 * time.Second
	}
	fightPair(t, pairPlan, length)
}

func fightPair(t *testing.T, p plan, length time.Duration) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed(t), 0))
	pair := startPair(t)
	doors := pair.doors()
	p.upkeep, p.alarms = pair.upkeep(), pair.alarms
	every, err := time.ParseDuration(exports())
	if err != nil {
		t.Fatalf("NOVA_EXPORTS: %v", err)
	}
	end := func() {}
	if every > 0 {
		end = pair.export(every)
		p.settles /= 3 // reclaiming waits for exports
	}
	p.run(t, r, doors, &pairNemesis{pair: pair, doors: doors}, length)
	end()
	if every > 0 && !t.Failed() {
		pair.restore()
	}
	if p.report.of("append done") == 0 {
		t.Error(errors.New("no append was acknowledged"))
	}
}
