package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nova-stream/nova/libs/catalog"
	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/stream"
	"github.com/nova-stream/nova/proto/gen/nova/index/v1"
	"github.com/nova-stream/nova/proto/gen/nova/settler/v1"
	"github.com/nova-stream/nova/services/index"
	"github.com/nova-stream/nova/services/novad"
)

// settling is a deployment that settles soon, and what is seen of its heads.
type settling struct {
	deployment

	// head returns a stream's head.
	head func(ctx context.Context, id string) (*indexpb.Head, error)
	// hasten lets it settle now; nil: it does by itself.
	hasten func(ctx context.Context) error
}

// settlingNode is one process that settles after a second and reclaims soon after.
func settlingNode(t *testing.T, config func(t *testing.T, args ...string) novad.Config) settling {
	var rows metastore.Store
	d := startSingle(t, func(t *testing.T) *novad.Node {
		cfg := config(t, "--settle-age", "1s", "--read-grace", "1s")
		wrap := cfg.WrapMetastore
		cfg.WrapMetastore = func(own metastore.Store) metastore.Store {
			if wrap != nil {
				own = wrap(own)
			}
			rows = own
			return own
		}
		cfg.Settler.Interval = 100 * time.Millisecond
		return startNode(t, cfg)
	})
	return settling{deployment: d, head: func(ctx context.Context, id string) (*indexpb.Head, error) {
		svc, err := index.New(index.Config{}, index.Deps{Store: rows})
		if err != nil {
			return nil, err
		}
		res, err := svc.GetHead(ctx, &indexpb.GetHeadRequest{StreamId: id})
		return res.GetHead(), err
	}}
}

// settlingSplit is separate processes; their settler is asked.
func settlingSplit(t *testing.T) settling {
	d := splitShape{}.start(t).(splitDeployment)
	s := settling{deployment: d}
	ix := catalog.New(indexpb.NewIndexServiceClient(connect(t, d.Endpoint("NOVA_INDEX_1_GRPC"))))
	settler := settlerpb.NewSettlerServiceClient(connect(t, d.Endpoint("NOVA_SETTLER_1_GRPC")))
	s.head = func(ctx context.Context, id string) (*indexpb.Head, error) {
		parsed, err := stream.ParseID(id)
		if err != nil {
			return nil, err
		}
		h, _, err := ix.GetHead(ctx, parsed)
		return h, err
	}
	s.hasten = func(ctx context.Context) error {
		return ix.EachChain(ctx, func(c *indexpb.Chain) error {
			if c.GetState() == indexpb.ChainState_CHAIN_STATE_RETIRED {
				return nil
			}
			if _, err := settler.Absorb(ctx, &settlerpb.AbsorbRequest{ChainId: c.GetChainId()}); err != nil {
				return err
			}
			_, err := settler.Settle(ctx, &settlerpb.SettleRequest{ChainId: c.GetChainId()})
			return err
		})
	}
	return s
}

// await waits until all records of the streams are settled.
func (s settling) await(t *testing.T, tails map[string]uint64) {
	t.Helper()
	eventually(t, readyLimit, func() error {
		if s.hasten != nil {
			if err := s.hasten(t.Context()); err != nil {
				return err
			}
		}
		for id, tail := range tails {
			h, err := s.head(t.Context(), id)
			if err != nil {
				return err
			}
			if h.GetTail() < tail {
				return fmt.Errorf("stream %s is settled to %d of %d", id, h.GetTail(), tail)
			}
		}
		return nil
	})
}

// I2: what was acknowledged is read byte for byte while it is settled, afterwards,
// after a restart, and after more of it was settled.
func TestSettledRecordsAreReadBack(t *testing.T) {
	for _, shape := range []struct {
		name  string
		start func(t *testing.T) settling
		slow  bool
	}{
		{"memory", func(t *testing.T) settling { return settlingNode(t, newStorage().config) }, false},
		{"dir", func(t *testing.T) settling {
			dir := t.TempDir()
			return settlingNode(t, func(t *testing.T, args ...string) novad.Config {
				return nodeConfig(t, append([]string{"--dir", dir}, args...)...)
			})
		}, false},
		{"split", settlingSplit, true},
	} {
		if shape.slow && testing.Short() {
			continue
		}
		t.Run(shape.name, func(t *testing.T) {
			s := shape.start(t)
			c := dial(t, s.address())
			const streams = 5
			written, tails, ids := make([][]string, streams), map[string]uint64{}, make([]string, streams)
			for i := range streams {
				ids[i] = c.create(t, fmt.Sprint("settled-", i), nil)
			}
			more := func(batches int) {
				for n := range batches {
					for i := range streams {
						// Stream 4 has chunks that are copied as they are, the others are merged.
						size := 50 * (i + 1)
						if i == 4 {
							size = 150_000
						}
						from := len(written[i])
						for k := range 3 {
							written[i] = append(written[i], fmt.Sprint(i, n, k, strings.Repeat(fmt.Sprint(n*k), size)))
						}
						c.append(t, uint64(from), fmt.Sprint("settled-", i), written[i][from:]...)
						tails[ids[i]] = uint64(len(written[i]))
					}
				}
			}
			check := func(when string) {
				t.Helper()
				for i := range streams {
					got, err := c.readAll(t.Context(), fmt.Sprint("settled-", i), 0)
					if err != nil {
						t.Fatalf("%s: %v", when, err)
					}
					if len(got) != len(written[i]) {
						t.Fatalf("%s: stream %d has %d records, want %d", when, i, len(got), len(written[i]))
					}
					for k, r := range got {
						if string(r.GetBody()) != written[i][k] {
							t.Fatalf("%s: stream %d, record %d is another one", when, i, k)
						}
					}
				}
			}
			more(4)
			check("before it is settled")
			s.await(t, tails)
			check("settled")
			more(2)
			check("settled in part")
			s.restart(t)
			c = dial(t, s.address())
			check("after a restart")
			more(2)
			s.await(t, tails)
			check("settled again")
			s.restart(t)
			c = dial(t, s.address())
			check("after a second restart")
			for i, id := range ids {
				h, err := s.head(t.Context(), id)
				if err != nil {
					t.Fatal(err)
				}
				if len(h.GetRefs()) == 0 || h.GetDroppedTo() != 0 {
					t.Errorf("stream %d: head %v", i, h)
				}
			}
		})
	}
}
