package failover

import (
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/services/tests/constellation"
)

// splitLease is short, so that a killed sequencer is followed soon.
const splitLease = 3 * time.Second

// split is the one constellation of separate processes that the tests share.
// What is stored is settled and reclaimed soon, and exported meanwhile.
var split = constellation.Shared{
	Flags: []string{"--lease-ttl", splitLease.String(), "--gateways", "2", "--settlers", "2", "--reapers", "2"},
	More: map[string][]string{
		"nova-settler": {"--settle-age", "1s", "--settle-mib", "1", "--settle-memory-mib", "64", "--read-grace", "1s"},
		"nova-reaper":  {"--read-grace", "1s"},
		"nova-index":   {"--export-interval", exports()},
	},
}

// exports is how often the metadata are exported: NOVA_EXPORTS, by default never.
func exports() string {
	if text := os.Getenv("NOVA_EXPORTS"); text != "" {
		return text
	}
	return "0"
}

// splitDoors opens both gateways.
func splitDoors(t *testing.T, c *constellation.Constellation) []*door {
	t.Helper()
	var all []*door
	for _, key := range []string{"NOVA_GATEWAY_1_GRPC", "NOVA_GATEWAY_2_GRPC"} {
		d, err := openDoor(c.Endpoint(key))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = d.conn.Close() })
		all = append(all, d)
	}
	return all
}

// splitPlan is a run on the split shape.
var splitPlan = plan{
	streams: 3, ops: 60, length: 8 * time.Second, timeout: 5 * time.Second, patience: 2 * time.Minute, search: 20 * time.Second,
	settles: 40, // it takes seconds until anything is looked at
}

// Separate processes over real servers, killed, stopped and frozen: nothing is
// lost, nothing is said that was not so.
func TestSplitKeepsItsWord(t *testing.T) {
	if testing.Short() {
		return // the long run has it
	}
	fightSplit(t, splitPlan, 18*time.Second)
}

// splitUpkeep sees what an index tells.
func splitUpkeep(t *testing.T, c *constellation.Constellation) *upkeep {
	t.Helper()
	d, err := openDoor(c.Endpoint("NOVA_INDEX_1_GRPC"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.conn.Close() })
	return newUpkeep(indexpb.NewIndexServiceClient(d.conn), nil, false)
}

func fightSplit(t *testing.T, p plan, length time.Duration) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed(t), 0))
	c := split.For(t)
	doors := splitDoors(t, c)
	p.upkeep, p.alarms = splitUpkeep(t, c), &alarms{more: c.Errors}
	p.up = c.Up
	if exports() != "0" {
		p.settles /= 20 // what reclaiming waits for, two exports, takes as long as a round
	}
	p.run(t, r, doors, &splitNemesis{Constellation: c, doors: doors}, length)
	if p.report.of("append done") == 0 {
		t.Error("no append was acknowledged")
	}
}
