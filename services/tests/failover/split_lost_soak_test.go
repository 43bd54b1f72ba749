//go:build soak

package failover

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/services/tests/constellation"
)

// loser is a nemesis that first of all kills everything, loses the metastore and
// restores it. What it does then is what others do.
type loser struct {
	*splitNemesis
	t     *testing.T
	index *catalog.Client
	done  bool
}

// hurt implements nemesis.
func (n *loser) hurt(ctx context.Context, r *rand.Rand) (string, error) {
	if n.done {
		return n.splitNemesis.hurt(ctx, r)
	}
	n.done = true
	n.dead, n.frozen, n.undo = "", "", nil
	const what = "lose the metastore"
	// What an export does not know loses its name, and that no history expects.
	before, err := n.index.ExportState(ctx)
	if err != nil {
		return what, err
	}
	err = within(ctx, time.Minute, func(ctx context.Context) error {
		st, err := n.index.ExportState(ctx)
		if err == nil && st.GetCompleted() <= before.GetBegun() {
			err = fmt.Errorf("export %d is complete, %d had begun", st.GetCompleted(), before.GetBegun())
		}
		return err
	})
	if err != nil {
		return what, err
	}
	time.Sleep(some(r, 4*time.Second)) // work goes on behind that export
	began := time.Now()
	said, err := n.LoseMetastore(ctx)
	n.t.Logf("lost and restored in %v:\n%s", time.Since(began).Round(time.Millisecond), said)
	return what, err
}

// Everything is killed and the metastore lost, NOVA_SOAK_LOSSES times, 3 by default;
// it comes back from the bucket while clients try again: their histories are
// linearizable, and what is settled, reclaimed and verified is in order (I1 to I5,
// I11).
func TestSoakLosses(t *testing.T) {
	losses := 3
	if text := os.Getenv("NOVA_SOAK_LOSSES"); text != "" {
		var err error
		if losses, err = strconv.Atoi(text); err != nil || losses < 1 {
			t.Fatalf("NOVA_SOAK_LOSSES: %q is no number above 0", text)
		}
	}
	more := map[string][]string{}
	for program, flags := range split.More {
		more[program] = flags
	}
	more["nova-index"] = []string{"--export-interval", "2s"}
	c, err := constellation.Start(t.Context(), more, split.Flags...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.Said(3 << 10))
		}
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	r := rand.New(rand.NewPCG(seed(t), 0))
	doors := splitDoors(t, c)
	p := splitPlan
	p.length, p.ops, p.settles, p.patience = 40*time.Second, 200, 0, 4*time.Minute
	p.upkeep, p.alarms = splitUpkeep(t, c), &alarms{more: c.Errors}
	p.up = c.Up
	p.report = newReport()
	p.makeBucket(t, doors[0])
	p.elder = newElder(fmt.Sprint("elder-", time.Now().UnixNano()))
	began := time.Now()
	for round := range losses {
		enemy := &loser{splitNemesis: &splitNemesis{Constellation: c, doors: doors}, t: t, index: p.upkeep.index}
		if !p.round(t.Context(), t, r, doors, enemy, round) {
			return
		}
		p.report.rounds++
		p.tell(t.Context(), t, began)
	}
}
