package failover

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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
	victim *member
	undo   func(ctx context.Context) error
}

// hurt implements nemesis.
func (n *pairNemesis) hurt(ctx context.Context, r *rand.Rand) (string, error) {
	m := n.nodes[r.IntN(len(n.nodes))]
	n.victim, n.undo = m, nil
	switch r.IntN(10) {
	case 0:
		m.kill()
		n.undo = m.restart
		return "kill a node", nil
	case 1, 2:
		return "lag, then kill", n.lagThenKill(ctx, r, m)
	case 3:
		return "restart a node", m.restart(ctx)
	case 4, 5:
		return n.objectFault(r, m), nil
	case 6:
		return n.rowFault(r, m), nil
	case 7:
		m.rows.SetOutage(true)
		n.undo = func(context.Context) error { m.rows.SetOutage(false); return nil }
		if r.IntN(2) == 0 {
			time.Sleep(2 * pairLease) // until the other leads, if it can
			return "metastore away for longer than the lease", nil
		}
		return "metastore away", nil
	case 8:
		return sealChain(ctx, n.doors[0], r)
	default:
		return drain(ctx, n.doors[r.IntN(len(n.doors))], r, &n.undo)
	}
}

// heal implements nemesis.
func (n *pairNemesis) heal(ctx context.Context) error {
	m := n.victim
	m.objects.Clear()
	m.rows.Clear()
	if n.undo != nil {
		if err := n.undo(ctx); err != nil {
			return err
		}
	}
	// Lost its lease, or met a store that refuses: somebody starts it again.
	select {
	case <-m.node.Failed():
		return m.restart(ctx)
	default:
		return within(ctx, time.Minute, func(context.Context) error {
			select {
			case <-m.node.Failed():
				return m.restart(ctx)
			default:
				return m.node.Ready()
			}
		})
	}
}

// lagThenKill holds one flight up while those behind it land, then kills: what
// was acknowledged out of order would be cut off.
func (n *pairNemesis) lagThenKill(ctx context.Context, r *rand.Rand, m *member) error {
	// Both: one of them writes.
	for _, m := range n.nodes {
		m.objects.Script(fault.Rule{Op: fault.Put, Prefix: chains, Nth: 1 + r.IntN(5), Do: fault.Hang})
	}
	defer n.clear()
	select {
	case <-ctx.Done():
	case <-time.After(some(r, 300*time.Millisecond)):
	}
	m.kill()
	return m.restart(ctx)
}

func (n *pairNemesis) clear() {
	for _, m := range n.nodes {
		m.objects.Clear()
		m.rows.Clear()
	}
}

func (n *pairNemesis) objectFault(r *rand.Rand, m *member) string {
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
	return "objects: " + f.name
}

func (n *pairNemesis) rowFault(r *rand.Rand, m *member) string {
	faults := []struct {
		name string
		do   metafault.Action
		op   metafault.Op
	}{
		{"stale reads", metafault.Stale, metafault.Read}, {"lost replies", metafault.LoseReply, metafault.Write},
		{"own conflicts", metafault.OwnConflict, metafault.Write}, {"failures", metafault.FailBefore, metafault.Any}, {"slow", metafault.Delay, metafault.Any},
	}
	f := faults[r.IntN(len(faults))]
	prefix := []string{"", "shard/", "head/", "chain/", "life/"}[r.IntN(5)]
	m.rows.Script(metafault.Rule{
		Op: f.op, Prefix: prefix, Nth: 1 + r.IntN(3), Times: 1 + r.IntN(10), Do: f.do, Back: 1 + r.IntN(2), Delay: some(r, 300*time.Millisecond),
	})
	// Something that reads and writes rows.
	if r.IntN(2) == 0 {
		_, err := sealChain(context.Background(), n.doors[0], r)
		if err != nil {
			return "metastore: " + f.name + ", no seal"
		}
	}
	return "metastore: " + f.name
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
	if reason.Code(err) == codes.Unimplemented {
		return what + ": not implemented", nil
	}
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
	patience: time.Minute, search: 20 * time.Second,
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
	p.run(t, r, doors, &pairNemesis{pair: pair, doors: doors}, length)
	if p.report.of("append done") == 0 {
		t.Error(errors.New("no append was acknowledged"))
	}
}
