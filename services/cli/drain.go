package cli

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/libs/reason"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

func (a *app) drainCommand() *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use: "drain NODE", Short: "hand a node's work to others",
		Long: `drain has a node hand its work to others, for example before its machine is
taken down. A sequencer hands over the shards that it leads and takes none; a
chain-writer gets no new ones to write for; readers, caches, indexes and gateways
are called only where there is no other. Nothing is refused meanwhile, and the
node goes on serving until it is stopped. fleet shows which nodes are draining.

drain waits until a sequencer leads no shard, or no shard is written through a
chain-writer; for other nodes there is nothing to wait for. An interrupt ends the wait; the node goes on draining until undrain, or until its
process is started again.

If no other node could take the shards, drain says so and exits with 1. The
node is draining then, and hands them over as soon as there is one: --wait, if it
is given, waits for that. --wait=false waits for nothing.

NODE is an id as fleet shows it; that of a process will do if it holds one service.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			d := &draining{app: a, node: args[0], stubborn: cmd.Flags().Changed("wait")}
			return d.run(cmd.Context(), wait)
		},
	}
	cmd.Flags().BoolVar(&wait, "wait", true, "wait until the node has no shard; given: also while nobody could take them")
	return cmd
}

// draining waits until a node leads no shard.
type draining struct {
	*app

	node     string
	stubborn bool         // waits although nobody could take the shards
	address  string       // of the node, "" until it is known
	service  atomic.Value // string: what the node does
	left     atomic.Int64
}

const (
	// lookEvery is how often drain looks.
	lookEvery = 300 * time.Millisecond
	// lookPatience is how long it goes on without being able to.
	lookPatience = callTimeout
)

func (d *draining) run(ctx context.Context, wait bool) error {
	c, done, err := d.connect()
	if err != nil {
		return err
	}
	defer done()
	begin, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	d.node = nodeNamed(begin, c, d.node)
	if _, err := c.Admin.DrainNode(begin, &novapb.DrainNodeRequest{NodeId: d.node}); err != nil {
		return err
	}
	if !wait {
		return d.show(map[string]any{"node": d.node, "draining": true}, func(w io.Writer) { fmt.Fprintln(w, d.node, "is draining") })
	}
	stop := d.showLine(d.line)
	told := d.tellLate(func() string {
		if d.left.Load() == 0 {
			return ""
		}
		return "waiting: " + d.line()
	})
	err = d.await(ctx, c)
	told()
	stop()
	switch {
	case ctx.Err() != nil:
		fmt.Fprintf(d.Err, "nova: interrupted; %s goes on draining (nova node undrain %s ends that)\n", d.node, d.node)
		return errSilent
	case err != nil:
		return err
	}
	return d.show(map[string]any{"node": d.node, "draining": true, "shards": 0}, func(w io.Writer) { fmt.Fprintln(w, d.node, d.end()) })
}

func (d *draining) does() discovery.Service {
	s, _ := d.service.Load().(string)
	return discovery.Service(s)
}

func (d *draining) line() string {
	return fmt.Sprintf("%s %s %d shards", d.node, d.verb(), d.left.Load())
}

func (d *draining) verb() string {
	if d.does() == discovery.ChainWriter {
		return "writes for"
	}
	return "leads"
}

func (d *draining) end() string {
	switch d.does() {
	case discovery.Sequencer:
		return "is drained: it leads no shard"
	case discovery.ChainWriter:
		return "is drained: it writes for no shard"
	}
	return "is draining"
}

// await looks until the node leads no shard.
func (d *draining) await(ctx context.Context, c *client.Client) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for seen := time.Now(); ; {
		done, err := d.look(ctx, c)
		switch code := reason.Code(err); {
		case done:
			return err
		case err == nil:
			seen = time.Now()
		case code != codes.Unavailable && code != codes.DeadlineExceeded, time.Since(seen) > lookPatience:
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// look reports whether the wait is over, and why if not because the node leads
// no shard. An error without that is of the look.
func (d *draining) look(ctx context.Context, c *client.Client) (done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	fleet, err := c.Admin.GetFleet(ctx, &novapb.GetFleetRequest{})
	if err != nil {
		return false, err
	}
	alike := map[string]int{} // that could take work, by service
	for _, n := range fleet.GetNodes() {
		switch {
		case n.GetNodeId() == d.node && !n.GetDraining():
			return true, fmt.Errorf("%s is not draining any more: its process was started again, or another undrained it", d.node)
		case n.GetNodeId() == d.node:
			d.address = n.GetAddress()
			d.service.Store(n.GetService())
		case !n.GetDraining():
			alike[n.GetService()]++
		}
	}
	if d.address == "" {
		return true, fmt.Errorf("%s is gone: discovery does not see it any more", d.node)
	}
	left, err := d.count(ctx, c)
	if err != nil {
		return false, err
	}
	d.left.Store(left)
	if left > 0 && alike[string(d.does())] == 0 && !d.stubborn {
		return true, fmt.Errorf("%s is draining, but %s %d shards that nobody else can take: there is no other %s that is not draining; it goes on serving them", d.node, d.verb(), left, d.does())
	}
	return left == 0, nil
}

// count returns how many shards the node leads, or are written through it.
func (d *draining) count(ctx context.Context, c *client.Client) (n int64, err error) {
	switch d.does() {
	case discovery.Sequencer:
		err = eachShard(ctx, c, func(s *novapb.ShardInfo) error {
			if s.GetLeader() == d.address && (s.GetState() == "serving" || s.GetState() == "recovering") {
				n++
			}
			return nil
		})
		return n, err
	case discovery.ChainWriter:
		own := map[string]bool{}
		if err := eachChain(ctx, c, func(chain *novapb.ChainInfo) error {
			if chain.GetAddress() == d.address && chain.GetState() == "open" {
				own[chain.GetChainId()] = true
			}
			return nil
		}); err != nil {
			return 0, err
		}
		err = eachShard(ctx, c, func(s *novapb.ShardInfo) error {
			if ids := s.GetChainIds(); len(ids) > 0 && s.GetState() != "vacant" && own[ids[len(ids)-1]] {
				n++
			}
			return nil
		})
		return n, err
	}
	return 0, nil
}
