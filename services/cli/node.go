package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/nova-stream/nova/libs/client"
	"github.com/nova-stream/nova/proto/gen/nova/v1"
)

func (a *app) nodeCommand() *cobra.Command {
	stats := &cobra.Command{
		Use: "stats NODE", Short: "show a node's figures",
		Long: `stats shows the figures of a node's process: what its /metrics page has, one
number per name. Counters and gauges are summed over their labels; a histogram
has a count and a sum. NODE is an id as fleet shows it; that of a process will do
if it holds one service.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd, func(ctx context.Context, c *client.Client) error {
				res, err := c.Admin.GetNodeStats(ctx, &novapb.GetNodeStatsRequest{NodeId: nodeNamed(ctx, c, args[0])})
				if err != nil {
					return err
				}
				return a.show(res.GetStats(), func(w io.Writer) { statsText(w, res.GetStats()) })
			})
		},
	}
	undrain := &cobra.Command{
		Use: "undrain NODE", Short: "let a node take work again",
		Long: "undrain ends what drain began. Work does not come back at once: the node is\nagain one of those that it is given to. NODE is an id as fleet shows it; that of a\nprocess will do if it holds one service.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd, func(ctx context.Context, c *client.Client) error {
				node := nodeNamed(ctx, c, args[0])
				if _, err := c.Admin.UndrainNode(ctx, &novapb.UndrainNodeRequest{NodeId: node}); err != nil {
					return err
				}
				return a.show(map[string]any{"node": node, "draining": false}, func(w io.Writer) { fmt.Fprintln(w, node, "takes work again") })
			})
		},
	}
	return group("node", "show and steer a node", stats, a.drainCommand(), undrain)
}

// nodeNamed returns the id of the node that is meant: a process with one service
// may be named without it. What is not found is left to the server to refuse.
func nodeNamed(ctx context.Context, c *client.Client, name string) string {
	fleet, err := c.Admin.GetFleet(ctx, &novapb.GetFleetRequest{})
	if err != nil {
		return name
	}
	var of []string
	for _, n := range fleet.GetNodes() {
		switch n.GetNodeId() {
		case name:
			return name
		case name + "." + n.GetService():
			of = append(of, n.GetNodeId())
		}
	}
	if len(of) != 1 {
		return name
	}
	return of[0]
}

func statsText(w io.Writer, stats map[string]float64) {
	var rows [][]string
	for _, name := range slices.Sorted(maps.Keys(stats)) {
		rows = append(rows, []string{name, strconv.FormatFloat(stats[name], 'f', -1, 64)})
	}
	table(w, rows...)
}
